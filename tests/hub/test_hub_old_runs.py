"""Runs of version 0.1, kept as revision 5ab29a2 wrote them: today's loaders, cards and reports read every file."""

import shutil
from pathlib import Path

import datasets
import pytest
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer

import model_cards.render
import sts_dino.report.run
from sts_dino import api

OLD = Path(__file__).parent / "published"


@pytest.fixture
def runs(tmp_path):
    """Copies of the dataset of twelve source sentences and of the encoder trained on it."""
    return [shutil.copytree(OLD / name, tmp_path / name) for name in ("sts-dino-x2", "demo-sts-dino")]


def test_texts_and_weights_load(runs):
    dataset, encoder = runs
    pairs = api.read_pairs(dataset)
    assert len(pairs) == 87 and {0.0, 0.5} < set(pairs["score"])
    plain = datasets.load_dataset("parquet", data_dir=str(dataset / "data/postprocessed"), split="train")
    assert plain.to_list() == pairs.to_list()
    assert SentenceTransformer(str(encoder)).encode(pairs["sentence1"][:3]).shape == (3, 8)


def test_cards_and_the_report_show_what_was_measured(runs, tmp_path):
    dataset, encoder = runs
    for run in runs:
        done = outcome_of(model_cards.render, run, "--repo-id", f"org/{run.name}")
        assert done.code == 0, done.stderr
    card = (dataset / "DETAILS.md").read_text()
    assert "(unsupervised SimCSE baseline) | 61.44 [58.14, 64.81]" in card and "## Label agreement" in card
    card = (encoder / "README.md").read_text()
    assert "+0.07 [-0.01, +0.15] not significant" in card and "+0.14 [+0.04, +0.25] better" in card
    assert outcome_of(sts_dino.report.run, *runs, "--out", tmp_path / "report.html").code == 0
