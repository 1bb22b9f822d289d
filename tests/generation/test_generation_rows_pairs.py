import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sts_dino.generation.rows import pairs
from sts_dino.generation.rows.pairs import make_triplets
from sts_dino.hub.contract.recipe import DatasetRecipe, Postprocess
from sts_dino.hub.contract.recipe_file import load_recipe

X2 = Path("recipes/demo/sts-dino-x2.yaml")


@pytest.fixture(scope="module")
def recipe() -> DatasetRecipe:
    return load_recipe(X2, DatasetRecipe)


def raw(text1: str, text2: str, target: str = "1", attempt: int = 0) -> dict:
    row = {
        "text1": text1,
        "text2": text2,
        "source_id": text1,
        "target": target,
        "sample": 0,
        "attempt": attempt,
    }
    return {**row, "seed": 1, "log_prob": -1.0, "margin": None}


@pytest.mark.parametrize(("score", "smoothed"), [(0, 0.1), (0.5, 0.5), (1, 0.9)])
def test_smoothing_is_the_papers(score, smoothed):
    assert Postprocess(smoothing=0.2).smooth_score(score) == pytest.approx(smoothed)
    assert Postprocess(smoothing=0.0).smooth_score(score) == score


def finished(kept: list[dict], recipe: DatasetRecipe) -> dict[str, dict[str, list[dict]]]:
    """Split → finished config → rows, with the rows of the split themselves as the pool of sampled
    negatives.
    """
    splits = pairs.split_rows(kept, recipe)
    return {
        split: pairs.FINISHING[recipe.schema_name](
            rows, [(row["text1"], row["text2"]) for row in rows], recipe
        )
        for split, rows in splits.items()
    }


def test_no_source_sentence_stands_in_two_splits_and_about_a_tenth_is_validation(recipe):
    rows = [raw(f"text {i}", f"other {i} {n}", attempt=n) for i in range(500) for n in range(2)]
    splits = finished(rows, recipe)
    names = ("train", "validation")
    train, validation = (
        {row["sentence1"] for row in splits[name]["postprocessed"]} for name in names
    )
    assert not train & validation and len(train | validation) == 500 and 25 <= len(validation) <= 80


def test_sampled_negatives_are_two_other_texts_of_the_pool_with_score_zero(recipe):
    kept = [raw(f"text {i}", f"other {i}") for i in range(300)]
    pool = [(row["text1"], row["text2"]) for row in kept]
    rows = pairs.make_scored_pairs(kept, pool, recipe)
    second = {row["sentence2"]: row["sentence1"] for row in rows if row["target"] != "sampled"}
    sampled = [row for row in rows if row["target"] == "sampled"]
    assert set(Counter(row["sentence1"] for row in sampled).values()) == {2}
    assert len({(row["sentence1"], row["sentence2"]) for row in sampled}) == len(sampled) == 600
    for row in sampled:
        assert (
            row["score"] == 0
            and second[row["sentence2"]] != row["sentence1"]
            and row["log_prob"] is None
        )
    assert [row["sample"] for row in sampled[:4]] == [0, 1, 0, 1]
    assert max(Counter(row["sentence2"] for row in sampled).values()) <= 12


def test_a_source_sentence_alone_gets_no_sampled_negative():
    assert (
        pairs.sample_negatives([raw("a", "b"), raw("a", "c")], [("a", "b"), ("a", "c")], 1, 2) == []
    )
    assert (
        len(pairs.sample_negatives([raw("a", "b"), raw("c", "d")], [("a", "b"), ("c", "d")], 1, 2))
        == 2
    )
    assert pairs.sample_negatives([raw("a", "b")], [("c", "b"), ("d", "a")], 1, 2) == []


def test_triplets_and_classified_pairs():
    recipe = load_recipe(Path("recipes/demo/auto-nli.yaml"), DatasetRecipe)
    rows = [
        raw("p", "e", "entailment") | {"example_set": 3},
        raw("p", "c", "contradiction") | {"example_set": 3},
        raw("q", "e2", "entailment"),
        raw("r", "same", "entailment"),
        raw("r", "same", "contradiction"),
    ]
    splits = finished(rows, recipe).values()
    flat = [row for split in splits for row in split["triplet"]]
    different = {
        "anchor": "p",
        "positive": "e",
        "negative": "c",
        "source_id": "p",
        "example_set": 3,
    }
    # the authors keep it
    equal = {"anchor": "r", "positive": "same", "negative": "same", "source_id": "r"}
    assert sorted(flat, key=lambda row: row["anchor"]) == [different, equal]
    assert make_triplets(rows, may_be_equal=False) == [different]
    labels = {(row["hypothesis"], row["label"]) for split in splits for row in split["pair-class"]}
    assert labels == {("e", 0), ("c", 2), ("e2", 0), ("same", 0), ("same", 2)}


def test_search_rows_are_pairs_triplets_and_single_queries():
    kept = [raw("p", "a?", "1"), raw("p", "b?", "0"), raw("q", "c?", "1"), raw("r", "d?", "0")]
    kept += [raw("s", "e?", "1"), raw("s", "e?", "0")]  # one query for both labels is no triplet
    found = pairs.make_search_rows(kept)
    assert [(row["anchor"], row["positive"]) for row in found["pair"]] == [
        ("a?", "p"),
        ("c?", "q"),
        ("e?", "s"),
    ]
    triplet = {"anchor": "p", "positive": "a?", "negative": "b?", "source_id": "p"}
    assert found["query-triplet"] == [triplet]
    rows = [
        (row["query"], row["passage"], row["label"], row["target"]) for row in found["query-class"]
    ]
    assert rows[:2] == [("a?", "p", 1, "1"), ("b?", "p", 0, "0")] and len(rows) == len(kept)


def test_nothing_depends_on_the_hash_seed_of_the_process():
    code = (
        "import json; from test_generation_rows_pairs import *\n"
        "recipe = load_recipe(X2, DatasetRecipe)\n"
        "rows = [raw(f't{i}', f'o{i}') for i in range(50)]\n"
        "pool = [(row['text1'], row['text2']) for row in rows]\n"
        "scored = pairs.make_scored_pairs(rows, pool, recipe)\n"
        "print(json.dumps([pairs.split_rows(rows, recipe), scored]))"
    )
    outputs = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": "tests/generation:."}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1
