"""Verification: what every text is scored as, and what each option makes of it."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from seeded_writer import FIRSTS, ScoringWriter, rows_of, write_pairs
from small_runs import raw_rows, small_recipe, small_run

from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.pipeline import job
from sts_dino.generation.rows import pairs, selection
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe

X2 = Path("recipes/demo/sts-dino-x2.yaml")
LABELS = ("1", "0.5", "0")


def recipe_with(**section: Any) -> DatasetRecipe:
    settings = [f"verification.{key}={value}" for key, value in section.items()] or [
        "verification={}"
    ]
    return load_recipe(X2, DatasetRecipe, [*settings, "decoding.max_attempts=8"])


def row(target: str, *nats: float, text1: str = "x", text2: str = "y") -> dict[str, Any]:
    found = {
        "text1": text1,
        "text2": text2,
        "target": target,
        "log_likelihoods": dict(zip(LABELS, nats, strict=True)),
    }
    return {**found, "label_probability": selection.compute_probabilities(found)[target]}


def test_probabilities_are_a_softmax_and_the_own_label_wins_among_equals():
    assert selection.choose_likeliest_label(row("0.5", -4, -4, -9)) == "0.5"
    assert selection.choose_likeliest_label(row("0", -4, -4, -9)) == "1"
    assert selection.choose_likeliest_label(row("0", -4, -5, -9), {"1": 6.0, "0.5": 6.0}) == "0"
    found = selection.compute_probabilities(row("1", -3.0, -3.0 - math.log(3), -900.0))
    assert found == pytest.approx({"1": 0.75, "0.5": 0.25, "0": 0.0})
    cool = selection.compute_probabilities(row("1", -3.0, -5.0, -5.0), temperature=2)
    assert cool["1"] / cool["0"] == pytest.approx(math.e)
    shifted = selection.compute_probabilities(row("1", -3.0, -3.0, -3.0), {"0": -math.log(2)})
    assert shifted["0"] == pytest.approx(0.5)


def test_the_bias_weighs_labels_alike_and_leaves_copies_out():
    recipe = recipe_with(calibrated="true", drop="true")
    rows = [
        row("1", -3, -6, -9),
        row("0.5", -3, -6, -9),
        row("0", -3, -6, -9),
        row("0", -6, -6, -6),
    ]
    rows.append(row("1", -900, 0, 0, text2="x"))
    found = selection.compute_label_bias(rows, recipe)
    assert found == pytest.approx({"1": 2.5, "0.5": 0.0, "0": -2.5})
    assert (
        selection.compute_label_bias(rows[:2], recipe) == {}
        and selection.compute_label_bias(rows, recipe_with()) == {}
    )
    fitting = [selection.choose_likeliest_label(one, found) for one in rows[:4]]
    assert fitting == ["1", "1", "1", "0"]


def test_texts_that_fit_another_label_better_are_dropped_by_name():
    rows = [
        row("1", -3, -6, -9),
        row("0.5", -3, -6, -9),
        row("0", -9, -9, -2),
        row("0", -1, 0, -2, text2="x"),
    ]
    kept, dropped = filter_rows(rows, recipe_with(drop="true"))
    assert kept == [rows[0], rows[2]]
    assert [one["reason"] for one in dropped] == ["other_label", "identical"]
    assert filter_rows(rows, recipe_with())[0] == rows[:3]


def test_the_best_texts_stay_and_repeats_share_their_fate():
    nats = {"a": -5.0, "b": -1.0, "c": -3.0, "d": -4.0}
    rows = [row("1", nats[text], -3, -3, text2=text) for text in "abcda"] + [
        row("0", -3, -3, -9, text2="a")
    ]
    kept, dropped = filter_rows([*rows, rows[1]], recipe_with(best_of=4))
    assert [one["text2"] for one in kept] == ["b", "c", "a"]
    assert [(one["text2"], one["reason"]) for one in dropped] == [
        ("a", "not_best"), ("d", "not_best"), ("a", "not_best"), ("b", "duplicate"),
    ]  # fmt: skip


@pytest.mark.parametrize("calibrated", ["true", "false"])
def test_soft_scores_keep_each_labels_mean_and_order(calibrated):
    recipe, numbers = (
        recipe_with(scores="soft", calibrated=calibrated, temperature=5),
        np.random.default_rng(0),
    )
    rows = [row(LABELS[i % 3], *numbers.normal(-20, 8, 3), text2=f"{i}") for i in range(90)]
    hard = {"1": 0.9, "0.5": 0.5, "0": 0.1}
    found = pairs.add_scores(rows, rows, recipe)
    bias = selection.compute_label_bias(rows, recipe)
    assert (bias != {}) == (calibrated == "true")
    for label, score in hard.items():
        mine = [one for one in found if one["target"] == label]
        scores = [one["score"] for one in mine]
        assert np.mean(scores) == pytest.approx(score) and np.std(scores) > 0.03
        assert min(scores) >= 0 and max(scores) <= 1
        expected = [
            sum(p * hard[name] for name, p in selection.compute_probabilities(one, bias, 5).items())
            for one in mine
        ]
        assert np.argsort(scores).tolist() == np.argsort(expected).tolist()
    assert pairs.add_scores(rows, rows, recipe_with()) == rows
    alone = pairs.add_scores(rows[:1], rows[:1], recipe)
    assert [one["score"] for one in alone] == [0.9]


def test_texts_that_will_be_dropped_are_asked_for_again():
    recipe = recipe_with(drop="true")
    results = [
        write_pairs(ScoringWriter(order, 0.9), Prompts(recipe), recipe, FIRSTS, int)
        for order in range(4)
    ]
    assert all(found == results[0] for found in results)
    raw, failed = results[0]
    kept, dropped = filter_rows(raw, recipe)
    assert {one["reason"] for one in dropped} == {"other_label"}
    attempts = Counter((one["source_id"], one["target"]) for one in (*raw, *failed))
    left = Counter((one["source_id"], one["target"]) for one in kept)
    assert all(attempts[key] == 8 or left[key] == recipe.decoding.samples for key in attempts)
    assert max(attempts.values()) > 2 and len(attempts) == 3 * len(FIRSTS)
    later = recipe_with(drop="true", calibrated="true")
    raw, failed = write_pairs(ScoringWriter(0, 1.0), Prompts(later), later, FIRSTS, int)
    assert len(raw) == 2 * 3 * len(FIRSTS) and not failed


def tiny(lm: Path, *settings: str) -> DatasetRecipe:
    given = [
        "source.limit=12",
        "decoding.max_new_tokens=6",
        "shard_size=4",
        "decoding.max_attempts=20",
    ]
    return load_recipe(X2, DatasetRecipe, [f"model.path={lm}", *given, *settings])


def test_scoring_changes_no_text_and_adds_columns_alone(lm, tmp_path):
    job.generate(tiny(lm), tmp_path / "without", "test")
    manifest = job.generate(tiny(lm, "verification={}"), tmp_path / "with", "test")
    for config in ("raw", "rejected", "postprocessed"):
        found = rows_of(tmp_path / "with", config)
        new = ("log_likelihoods", "label_probability")
        more = [{name: one.pop(name) for name in new if name in one} for one in found]
        assert found == rows_of(tmp_path / "without", config) and found
        assert set(more[0]) == {"label_probability"} | (
            {"log_likelihoods"} if config != "postprocessed" else set()
        )
        for one, columns in zip(found, more, strict=True):
            assert (columns["label_probability"] is None) == (one["target"] == "sampled")
            if config == "raw":
                own = columns["log_likelihoods"][one["target"]]
                # tokens
                assert own / one["log_prob"] == pytest.approx(
                    round(own / one["log_prob"]), abs=1e-3
                )
    likeliest = manifest.counts["likeliest"]
    assert sum(sum(found.values()) for found in likeliest.values()) == len(
        rows_of(tmp_path / "with", "raw")
    )
    assert "likeliest" not in job.generate(tiny(lm), tmp_path / "without", "test").counts


def test_the_card_shows_which_label_the_texts_fit(tmp_path, monkeypatch):
    recipe = small_recipe(
        "sts", verification={"drop": True, "calibrated": True, "scores": "soft", "temperature": 2}
    )

    def scored_rows(recipe, shard):
        for number, one in enumerate(raw_rows(recipe, shard)):
            numbers = np.random.default_rng(number)
            nats = {label.name: float(np.float32(numbers.normal(-9, 4))) for label in recipe.labels}
            one = {**one, "log_likelihoods": nats}
            yield {
                **one,
                "label_probability": float(
                    np.float32(selection.compute_probabilities(one)[one["target"]])
                ),
            }

    monkeypatch.setattr("small_runs.raw_rows", scored_rows)
    manifest = small_run(tmp_path / "run", recipe)
    assert manifest.counts["rejected"]["other_label"] > 0
    card = (tmp_path / "run" / "DETAILS.md").read_text()
    for words in (
        "Most likely label of the texts",
        "`label_probability`",
        "`other_label`",
        "soft, at temperature 2",
    ):
        assert words in card
    front = (tmp_path / "run" / "README.md").read_text().split("---\n")[1]
    infos = yaml.safe_load(front)["dataset_info"]
    assert {info["config_name"] for info in infos} == set(recipe.configs)
