"""A task's data are read and checked once, at the door; what scores them takes them unchecked."""

import numpy as np
import pytest
from walks import record_walk

from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.runs.score import score_encoder
from sts_dino.eval.scoring.bootstrap import EvaluationSettings

SPLITS = 2  # of the STS Benchmark in assets: validation and test
READING = ("check_rows", "hash_rows", "read_checked_rows", "read_table")
DATA_OBJECTS = ("TaskData.", "Rows.", "Outcomes.")
FILES, FUNCTIONS = 17, 140  # of ours that run for a score


def count_letters(texts: list[str]) -> np.ndarray:
    """Stand in for an encoder: the counts of the letters of every text."""
    letters = [chr(97 + number) for number in range(26)]
    return np.array([[text.count(letter) + 0.1 for letter in letters] for text in texts])


@pytest.fixture(scope="module")
def walk():
    """Calls of our functions for a whole score, and those while rows are scored."""
    settings = EvaluationSettings(limit=50, bootstrap_samples=20)
    with record_walk("measure_sts") as recorded:
        score_encoder(wrap(count_letters, "letters"), ["stsb/cosine"], settings=settings)
    return recorded


def test_every_split_is_read_and_checked_once(walk):
    assert walk.count_by_name(READING) == dict.fromkeys(READING, SPLITS)


def test_scoring_checks_no_data_again(walk):
    tasks = {name for path, name in walk.within_phase if path.startswith("eval/tasks/")}
    assert tasks and all(name.startswith(DATA_OBJECTS) for name in tasks), tasks


def test_a_score_passes_few_files_and_functions(walk):
    assert 10 < len(walk.files) <= FILES, sorted(walk.files)
    assert 50 < len(walk.calls) <= FUNCTIONS, len(walk.calls)
