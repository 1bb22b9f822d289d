"""Our modules of the ``evaluate`` library: loaded by path, offline, equal to the evaluation."""

import ast
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import evaluate
import numpy as np
import pytest
import yaml
from scipy.stats import pearsonr, spearmanr

from sts_dino.eval.scoring.bootstrap import compute_interval, compute_score, resample
from sts_dino.eval.tasks.task import Outcomes

METRICS = Path("eval/metrics")
NAMES = sorted(
    path.name for path in METRICS.iterdir() if path.is_dir() and not path.name.startswith("_")
)
ALLOWED = {"numpy", "datasets", "evaluate", "sts_dino"} | set(sys.stdlib_module_names)


@pytest.fixture(scope="module")
def modules():
    return {name: evaluate.load(str(METRICS / name), keep_in_memory=True) for name in NAMES}


@pytest.fixture(scope="module")
def pairs():
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 11, 90) / 2  # with ties
    predicted = gold + draw.normal(0, 2, 90)
    return gold, np.round(predicted, 1), tuple(draw.choice(["a", "b", "c"], 90))


@pytest.mark.parametrize("name", NAMES)
def test_a_module_needs_our_package_alone_and_has_a_card(name):
    tree = ast.parse((METRICS / name / f"{name}.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in imports:
        roots = (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        assert len(roots) == 1  # evaluate's parser reads `import a, b` as one name
        assert roots[0].split(".")[0] in ALLOWED
    _, front, body = (METRICS / name / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["tags"] == ["evaluate", "metric"]
    assert card["sdk"] == "static" and (METRICS / name / "index.html").is_file()
    assert f'evaluate.load("eval/metrics/{name}")' in body


@pytest.mark.parametrize("name", NAMES)
def test_a_module_is_loaded_from_any_folder(name, tmp_path, monkeypatch):
    """As from a Space of its own, where nothing of ours lies beside it."""
    folder = shutil.copytree(METRICS / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert evaluate.load(str(folder), keep_in_memory=True).inputs_description


@pytest.mark.parametrize("name", NAMES)
def test_the_cards_example_runs(name, modules):
    code = (
        (METRICS / name / "README.md")
        .read_text(encoding="utf-8")
        .split("```python\n")[1]
        .split("```")[0]
    )
    call = code[code.index("results =") :]
    found: dict = {"metric": modules[name]}
    exec(call, found)
    assert all(
        np.isfinite(value) for value in found["results"].values() if isinstance(value, float)
    )


def intervals(
    outcomes: Outcomes, found: dict[str, float], metrics: Sequence[str], seed: int
) -> None:
    """A module's scores and intervals are those of the evaluation."""
    for metric in metrics:
        around = compute_interval(resample([outcomes], metric, samples=200, seed=seed)[0])
        expected = [compute_score(outcomes, metric), around.low, around.high]
        assert [100 * found[f"{metric}{end}"] for end in ("", "_low", "_high")] == pytest.approx(
            expected
        )


def test_correlations_and_intervals_are_those_of_the_evaluation_and_of_scipy(modules, pairs):
    gold, predicted, _ = pairs
    found = modules["correlation_interval"].compute(
        predictions=predicted, references=gold, resamples=200, seed=3
    )
    intervals(Outcomes(gold, predicted), found, ("spearman", "pearson"), seed=3)
    expected = [function(gold, predicted).statistic for function in (spearmanr, pearsonr)]
    assert [found["spearman"], found["pearson"]] == pytest.approx(expected)


def test_a_correlation_stays_within_its_range(modules):
    found = modules["correlation_interval"].compute(
        predictions=[0.1, 0.5, 0.3, 0.9, 0.2], references=[0, 2, 1, 5, 1.5]
    )
    assert max(found.values()) <= 1


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_aggregations_are_those_of_the_evaluation(modules, pairs, metric):
    gold, predicted, subsets = pairs
    rows = {"predictions": predicted, "references": gold, "subsets": list(subsets)}
    found = modules["sts_aggregation"].compute(**rows, correlation=metric)
    for aggregation in ("all", "mean", "wmean"):
        expected = compute_score(Outcomes(gold, predicted, subsets), metric, aggregation)
        assert 100 * found[aggregation] == pytest.approx(expected)
    assert sum(part["n"] for part in found["subsets"].values()) == 90
    assert len({round(found[name], 9) for name in ("all", "mean", "wmean")}) == 3


def test_accuracy_and_f1_are_those_of_the_evaluation(modules):
    draw = np.random.default_rng(1)
    gold = draw.integers(0, 2, 120)
    predicted = np.where(draw.random(120) < 0.8, gold, 1 - gold)
    found = modules["probe_accuracy"].compute(
        predictions=predicted, references=gold, resamples=200, seed=7
    )
    intervals(
        Outcomes(gold.astype(float), predicted.astype(float)), found, ("accuracy", "f1"), seed=7
    )


def test_f1_is_absent_where_it_is_undefined(modules):
    several = modules["probe_accuracy"].compute(predictions=[0, 1, 2], references=[0, 1, 1])
    no_positive = modules["probe_accuracy"].compute(predictions=[0, 0], references=[0, 0])
    assert several["accuracy"] == pytest.approx(2 / 3)
    assert "f1" not in several and "f1" not in no_positive


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("correlation_interval", {"predictions": [1.0, 1.0], "references": [1.0, 2.0]}, "constant"),
        (
            "correlation_interval",
            {"predictions": [np.nan, 1.0], "references": [1.0, 2.0]},
            "not finite",
        ),
        (
            "sts_aggregation",
            {"predictions": [1.0], "references": [1.0], "subsets": ["a"]},
            "a: .*two or more rows",
        ),
        ("correlation_interval", {"predictions": [], "references": []}, "two or more rows"),
        (
            "correlation_interval",
            {"predictions": [1.0, 2.0], "references": [1.0, 2.0], "resamples": 0},
            "resamples is 0; allowed: 1 or more",
        ),
    ],
)
def test_what_is_undefined_is_told_and_not_scored(modules, name, inputs, said):
    with pytest.raises(ValueError, match=said):
        modules[name].compute(**inputs)
