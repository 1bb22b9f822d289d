"""eval.scoring.transfer is the toolkit's trained head for scored pairs, to float32's last bits."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from test_eval_scoring_transfer import embed, sentences

from benchmarks.evaluation import reference_probe as reference
from eval.scoring import transfer as relatedness
from eval.scoring.sts import pearson
from eval.scoring.transfer import fit, measure_regression, pair_features, soft_targets, toolkit_order
from eval.tasks.registry import find_task
from eval.tasks.rows import ScoredPairs
from hub.errors import InputError, RunError

SPLITS = {"train": (60, 1), "validation": (40, 2), "test": (50, 3)}


@pytest.fixture(scope="module")
def data() -> dict[str, ScoredPairs]:
    """Scores from 0 to 5 that fall with the distance of the two embeddings."""
    made = {}
    for split, (n, seed) in SPLITS.items():
        first, second = sentences(n, seed), sentences(n, seed + 100)
        distance = np.linalg.norm(embed(first) - embed(second), axis=1)
        noise = np.random.default_rng(seed).normal(scale=0.5, size=n)
        gold = np.clip(5 - 2 * distance + noise, 0, 5).round(1)
        made[split] = ScoredPairs(first, second, gold, sha256="")
    return made


def test_a_score_is_shared_by_its_neighbours():
    scores = np.array([1, 5, 3.6, 0, 0.4, 4.95])
    known = [reference.soft_target(score) for score in scores]
    np.testing.assert_allclose(soft_targets(scores), known, atol=1e-7)
    np.testing.assert_allclose(soft_targets(scores).sum(1), [1, 1, 1, 0, 0.4, 1], atol=1e-6)
    np.testing.assert_allclose((soft_targets(scores) @ np.arange(1, 6))[:3], [1, 5, 3.6], atol=1e-6)


@pytest.fixture
def checks(monkeypatch) -> list[float]:
    """The dev correlations that are taken in training."""
    found: list[float] = []

    def kept(*columns: np.ndarray) -> float:
        found.append(pearson(*columns))
        return found[-1]

    monkeypatch.setattr(relatedness, "pearson", kept)
    return found


def test_the_head_equals_the_unbatched_procedure(data, checks):
    sets = []
    for rows in data.values():
        order = toolkit_order(rows)
        sets.append((pair_features(rows, order, embed), rows.gold[order]))
    (X, y), (X_dev, y_dev), (X_test, _) = sets
    predicted, dev, known = reference.relatedness(X, y, X_dev, y_dev, X_test, seed=4)
    assert 4 < known < 21, "training must end early, and not at once"
    head = fit(X, y, X_dev, y_dev, X_test, seed=4)
    assert len(checks) == known
    np.testing.assert_allclose(head.predicted, predicted, atol=1e-4)
    assert head.dev_pearson == pytest.approx(dev, abs=1e-5)


def test_training_that_still_improves_ends_where_the_toolkits_does(checks):
    draw = np.random.default_rng(38)
    X, X_dev, X_test = (draw.normal(size=(n, 5)).astype(np.float32) for n in (40, 12, 20))
    y, y_dev = (np.clip(2.5 + 0.6 * rows.sum(1) + draw.normal(size=len(rows)), 0, 5) for rows in (X, X_dev))
    predicted, dev, known = reference.relatedness(X, y, X_dev, y_dev, X_test)
    assert known == 21
    head = fit(X, y, X_dev, y_dev, X_test, seed=1111)
    assert len(checks) == known
    np.testing.assert_allclose(head.predicted, predicted, atol=1e-4)
    assert head.dev_pearson == pytest.approx(dev, abs=1e-5)


def test_a_task_is_measured_in_the_datas_order(data):
    measured = measure_regression(find_task("stsb/regression"), data, embed, (4, 5))
    assert np.array_equal(measured.outcomes.gold, data["test"].gold)
    first = spearmanr(measured.outcomes.predicted, measured.outcomes.gold)[0]
    second = measure_regression(find_task("stsb/regression"), data, embed, (5,)).score
    assert measured.score == pytest.approx((100 * first + second) / 2)
    assert measured.other["sd_over_seeds"] == pytest.approx(np.std([100 * first, second], ddof=1))
    alone = measure_regression(find_task("stsb/regression"), data, embed, (4,))
    gold, predicted = alone.outcomes.gold, alone.outcomes.predicted
    assert alone.other["pearson"] == pytest.approx(100 * pearsonr(predicted, gold)[0])
    assert alone.other["mse"] == pytest.approx(np.mean((predicted - gold) ** 2))


def test_bad_encoders_are_named(data):
    task = find_task("sick-r/regression")
    with pytest.raises(InputError, match="sick-r/regression, train rows: features hold NaN"):
        measure_regression(task, data, lambda texts: embed(texts) * np.nan, (1,))
    with pytest.raises(RunError, match="undefined"):
        measure_regression(task, data, lambda texts: np.ones((len(texts), 3), dtype=np.float32), (1,))
