import json
from pathlib import Path

import numpy as np
import pytest
import small_runs
from scipy.stats import spearmanr
from small_runs import small_recipe, small_run

from benchmarks.generation import label_fidelity
from benchmarks.generation.label_fidelity import RunRows, measured, read_run, told
from hub.contract.recipe import Verification
from hub.errors import InputError

SCORES = {"1": 1.0, "0.5": 0.5, "0": 0.0}


def encode(texts: list[str]) -> np.ndarray:
    """A first text begins with x; the cosine of a second text is its last word."""
    angles = np.arccos([1.0 if text.startswith("x") else float(text.split()[-1]) for text in texts])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def rows(label: str, cosines: list[float]) -> list[dict]:
    return [{"text1": f"x {n}", "text2": f"text {value}", "target": label} for n, value in enumerate(cosines)]


def test_means_correlation_and_intervals_by_label():
    numbers = np.random.default_rng(0)
    cosines = {label: np.clip(numbers.normal(0.2 + 0.3 * score, 0.1, 40), -1, 1) for label, score in SCORES.items()}
    kept = [row for label, values in cosines.items() for row in rows(label, list(values))]
    found = measured(RunRows("run", kept, kept, 150, SCORES), encode)
    for label, values in cosines.items():
        told_of = found["cosine"][label]
        assert told_of["value"] == pytest.approx(values.mean(), abs=1e-4)
        assert told_of["low"] < told_of["value"] < told_of["high"] < told_of["low"] + 0.1
    expected = spearmanr([SCORES[row["target"]] for row in kept], np.concatenate(list(cosines.values()))).statistic
    assert found["spearman"]["value"] == pytest.approx(expected, abs=1e-4)
    assert found["kept"] == 0.8 and found["texts"]["first_texts"] == 40
    assert told({"run": found}).count("|") > 10


def test_copies_are_counted_among_what_was_written_and_what_was_kept():
    kept = [row for label in SCORES for row in rows(label, [0.5])]
    copy = {"text1": "x a b c d e", "text2": "x a b c d e f", "target": "1"}
    same = {"text1": "x a", "text2": "x a", "target": "1"}
    found = measured(RunRows("run", kept, [*kept, copy, same], 5, SCORES), encode)["copies"]
    assert found["closed"]["1"]["identical"] == found["kept"]["1"]["near"] + round(1 / 3, 4)
    assert found["closed"]["1"]["near"] == round(2 / 3, 4) and found["closed"]["0"]["near"] == 0
    with pytest.raises(InputError, match="no text of label '0' was kept"):
        measured(RunRows("run", kept[:2], kept, 5, SCORES), encode)


def test_the_texts_of_a_run_are_those_that_post_processing_keeps(tmp_path):
    manifest = small_run(tmp_path / "run", small_recipe("sts"))
    found = read_run(tmp_path / "run")
    assert (len(found.kept), found.asked) == (manifest.counts["kept"], manifest.counts["requested"])
    assert len(found.closed) == manifest.counts["splits"]["raw"]["train"] and found.scores == SCORES
    small_run(tmp_path / "nli", small_recipe("nli"))
    with pytest.raises(InputError, match="its form nli has no scores"):
        read_run(tmp_path / "nli")


def test_texts_that_verification_drops_are_not_kept(tmp_path, monkeypatch):
    plain = small_runs.raw_rows

    def verified_rows(recipe, shard):
        """Every fourth text is likelier under the next label's prompt."""
        names = [label.name for label in recipe.labels]
        for number, row in enumerate(plain(recipe, shard)):
            best = names[(names.index(row["target"]) + (number % 4 == 0)) % len(names)]
            nats = {name: -1.0 if name == best else -9.0 for name in names}
            yield {**row, "log_likelihoods": nats, "label_probability": 0.9 if best == row["target"] else 0.1}

    monkeypatch.setattr(small_runs, "raw_rows", verified_rows)
    recipe = small_recipe("sts").model_copy(update={"verification": Verification(drop=True)})
    manifest = small_run(tmp_path / "run", recipe)
    assert manifest.counts["rejected"]["other_label"] > 0
    assert len(read_run(tmp_path / "run").kept) == manifest.counts["kept"]


def test_the_command_writes_a_file(tmp_path, monkeypatch, capsys):
    small_run(tmp_path / "run", small_recipe("sts"))
    monkeypatch.setattr("benchmarks.generation.demo_lm.minilm", lambda: lambda texts: np.ones((len(texts), 1)))
    monkeypatch.setattr(label_fidelity, "DRAWS", 20)
    with np.errstate(invalid="ignore"):
        label_fidelity.main([tmp_path / "run"], tmp_path / "out.json")
    assert (
        "run" in json.loads(Path(tmp_path / "out.json").read_text())["runs"] and "Spearman" in capsys.readouterr().out
    )
