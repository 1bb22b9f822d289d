"""What chooses the checkpoint, by its own reading of cosine and rank; bad data are refused."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tiny_bases import make_mlm
from training_inputs import model_recipe, triplet_rows, write_dataset
from training_inputs import sts_rows as equal_rows

from sts_dino.hub.contract.recipe import TrainingData, ValidationData
from sts_dino.hub.contract.schema import TRIPLET
from sts_dino.training.data.training_sets import load_training_sets
from sts_dino.training.loop.validation import (
    SPEARMAN,
    TRIPLET_ACCURACY,
    build_validation_evaluator,
    read_pairs,
)


def sts_rows(count, seed=0):
    """Scored pairs of differing sentences: the cosines of equal ones are 1 but for rounding, and so
    is their order.
    """
    return [{**row, "sentence2": f"{row['sentence2']} too"} for row in equal_rows(count, seed)]


STSB_DEV = Path("assets/stsb/sts-dev.csv")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    transformer = Transformer(
        str(make_mlm(tmp_path_factory.mktemp("mlm"))), processor_kwargs={"padding_side": "right"}
    )
    return SentenceTransformer(modules=[transformer, Pooling(32, "mean")]).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "sts": write_dataset(
            folder / "sts", {"train": sts_rows(9), "validation": sts_rows(12, seed=1)}
        ),
        "sts2": write_dataset(
            folder / "sts2", {"train": sts_rows(9), "validation": sts_rows(15, seed=2)}
        ),
        "triplet": write_dataset(
            folder / "triplet",
            {"train": triplet_rows(9), "validation": triplet_rows(6)},
            "triplet",
            TRIPLET,
        ),
        "bare": write_dataset(folder / "bare", {"train": sts_rows(9)}),
    }


def data(path, form="sts"):
    config, loss = (
        ("triplet", "MultipleNegativesRankingLoss")
        if form == "triplet"
        else ("postprocessed", "CoSENTLoss")
    )
    return TrainingData(path=str(path), config=config, example_type=form, loss=loss)


def evaluator(datasets, *validation):
    made = model_recipe(*datasets, validation=validation)
    return build_validation_evaluator(
        made.validation,
        load_training_sets(made.datasets, None, own_validation=not made.validation),
        4,
    )


def cosines(encoder, first, second):
    left, right = (encoder.encode(list(texts)).astype(np.float64) for texts in (first, second))
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def correlation(encoder, rows):
    similarities = cosines(
        encoder, [row["sentence1"] for row in rows], [row["sentence2"] for row in rows]
    )
    return spearmanr(similarities, [row["score"] for row in rows]).statistic


def test_the_mean_of_spearmans_correlations_on_the_sets_own_splits(encoder, folders):
    found = evaluator((data(folders["sts"]), data(folders["sts2"]), data(folders["bare"])))
    wanted = (
        correlation(encoder, sts_rows(12, seed=1)) + correlation(encoder, sts_rows(15, seed=2))
    ) / 2
    assert found(encoder)["sequential_score"] == pytest.approx(wanted, abs=1e-6)
    assert found.metric == SPEARMAN == "Spearman's correlation"
    assert found.inputs == {}
    assert found.sources[0] == {
        "path": "sts",
        "config": "postprocessed",
        "split": "validation",
        "rows": 12,
    }


def test_triplets_score_the_share_whose_positive_is_nearer(encoder, folders):
    found = evaluator((data(folders["triplet"], "triplet"),))
    rows = triplet_rows(6)
    anchors, positives, negatives = (
        [row[name] for row in rows] for name in ("anchor", "positive", "negative")
    )
    nearer = cosines(encoder, anchors, positives) > cosines(encoder, anchors, negatives)
    assert found(encoder)["sequential_score"] == pytest.approx(nearer.mean())
    assert 0 < nearer.mean() <= 1
    assert found.metric == TRIPLET_ACCURACY


def test_pairs_alone_decide_beside_triplets(encoder, folders):
    found = evaluator((data(folders["triplet"], "triplet"), data(folders["sts"])))
    assert found.metric == SPEARMAN
    assert found(encoder)["sequential_score"] == pytest.approx(
        correlation(encoder, sts_rows(12, seed=1)), abs=1e-6
    )


def test_without_validation_data_nothing_is_chosen(folders):
    assert evaluator((data(folders["bare"]),)) is None


def test_a_file_in_the_sts_benchmarks_layout(encoder, folders):
    entry = {"path": str(STSB_DEV)}
    found = evaluator((data(folders["sts"]),), entry)
    sha256 = hashlib.sha256(STSB_DEV.read_bytes()).hexdigest()
    assert found.sources == [{"path": str(STSB_DEV), "sha256": sha256, "rows": 1500}]
    assert found.inputs == {"validation:0": sha256}
    pairs = read_pairs(ValidationData(path=str(STSB_DEV)), "validation.0")
    assert (pairs.first[0], pairs.scores[0]) == ("A man with a hard hat is dancing.", 5.0)
    assert (min(pairs.scores), max(pairs.scores)) == (0.0, 5.0)
    assert sum('"' in text for text in pairs.first) > 10  # quotation marks are characters


def line(score, first="a b", second="c"):
    return f"g\tf\t2012\t1\t{score}\t{first}\t{second}\n"


def test_characters_that_other_readers_break_lines_at(tmp_path):
    (tmp_path / "v.csv").write_text(
        line(1, "one\u2028two\x0bthree") + line(2, 'a "quoted'), encoding="utf-8"
    )
    pairs = read_pairs(ValidationData(path=str(tmp_path / "v.csv")), "validation.0")
    assert pairs.first == ["one\u2028two\x0bthree", 'a "quoted']
