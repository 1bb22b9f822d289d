"""The fast bootstrap equals a plain slow one; intervals are scipy's and cover."""

import sys

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import interval, resample, score
from eval.statistics.paired import influence
from hub.errors import RunError

MODULE = sys.modules["eval.statistics.bootstrap"]


def data(rows=60, seed=0):
    """Gold with many ties, as people's scores have, a good system and a bad one; three parts of unlike size."""
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 6, rows).astype(float)
    good = np.round(gold + generator.normal(size=rows), 1)
    part = tuple(np.repeat(["a", "b", "c"], [rows // 2, rows // 3, rows - rows // 2 - rows // 3]).tolist())
    return [Outcomes(gold, good, part), Outcomes(gold, generator.normal(size=rows), part)]


def classes(rows=90, seed=0):
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 2, rows).astype(float)
    return [Outcomes(gold, np.where(generator.random(rows) < share, gold, 1 - gold)) for share in (0.9, 0.6)]


def ranks(rows=40, seed=0):
    generator = np.random.default_rng(seed)
    part = ("to text",) * (rows // 4) + ("to image",) * (rows - rows // 4)
    return [Outcomes(np.zeros(rows), generator.integers(0, top, rows).astype(float), part) for top in (4, 30)]


def spearman(gold, predicted):
    return stats.spearmanr(gold, predicted).statistic


def pearson(gold, predicted):
    return stats.pearsonr(gold, predicted).statistic


def accuracy(gold, predicted):
    return np.mean(gold == predicted)


def recall(gold, predicted):
    return np.mean([np.mean(predicted < k) for k in (1, 5, 10)])


CASES = [
    (data(), "spearman", "all", spearman),
    (data(), "spearman", "mean", spearman),
    (data(), "spearman", "wmean", spearman),
    (data(), "pearson", "all", pearson),
    (data(), "pearson", "wmean", pearson),
    (classes(), "accuracy", "all", accuracy),
    (classes(), "f1", "all", f1_score),
    (ranks(), "recall", "mean", recall),
]
NAMES = [f"{metric} {aggregation}" for _, metric, aggregation, _ in CASES]


def parts_of(outcomes, aggregation):
    names = outcomes.part if aggregation != "all" else ("",) * len(outcomes)
    rows = [np.flatnonzero(np.array(names) == name) for name in dict.fromkeys(names)]
    weights = [len(part) / len(outcomes) if aggregation == "wmean" else 1 / len(rows) for part in rows]
    return rows, weights


def plain(outcomes, metric, aggregation, drawn):
    """The definition: the metric of the drawn rows of every part, averaged."""
    rows, weights = parts_of(outcomes, aggregation)
    return 100 * sum(
        weight * metric(outcomes.gold[part][chosen], outcomes.predicted[part][chosen])
        for part, weight, chosen in zip(rows, weights, drawn, strict=True)
    )


@pytest.mark.parametrize(("systems", "metric", "aggregation", "reference"), CASES, ids=NAMES)
def test_equals_a_plain_bootstrap_resample_by_resample(systems, metric, aggregation, reference):
    fast = resample(systems, metric, aggregation, 40, seed=7)
    rows, _ = parts_of(systems[0], aggregation)
    streams = [
        np.random.default_rng([7, index]).integers(0, len(part), (40, len(part))) for index, part in enumerate(rows)
    ]
    slow = [[plain(one, reference, aggregation, drawn) for drawn in zip(*streams, strict=True)] for one in systems]
    assert np.abs(fast - np.array(slow)).max() < 1e-10
    every = [np.arange(len(part)) for part in rows]
    assert score(systems[0], metric, aggregation) == pytest.approx(plain(systems[0], reference, aggregation, every))


@pytest.mark.parametrize(("systems", "metric", "aggregation", "reference"), CASES, ids=NAMES)
def test_influence_is_that_of_leaving_each_row_out(systems, metric, aggregation, reference):
    outcomes = systems[0]
    rows, weights = parts_of(outcomes, aggregation)
    wanted = []
    for part, weight in zip(rows, weights, strict=True):
        gold, predicted = outcomes.gold[part], outcomes.predicted[part]
        left = [reference(np.delete(gold, row), np.delete(predicted, row)) for row in range(len(part))]
        wanted += [100 * weight * (len(part) - 1) / len(part) * (np.mean(left) - value) for value in left]
    assert np.abs(influence(outcomes, metric, aggregation) - wanted).max() < 1e-10


def test_spearmans_influence_without_ties_and_over_several_blocks_of_values():
    generator = np.random.default_rng(3)
    gold = generator.normal(size=300)
    predicted = gold + generator.normal(size=300)
    left = np.array([spearman(np.delete(gold, row), np.delete(predicted, row)) for row in range(300)])
    found = influence(Outcomes(gold, predicted), "spearman")
    assert np.abs(found - 100 * 299 / 300 * (left.mean() - left)).max() < 1e-9


@pytest.mark.parametrize(
    ("metric", "plain_metric"), [("spearman", spearman), ("pearson", pearson), ("accuracy", accuracy)]
)
def test_bca_is_scipys(metric, plain_metric):
    """The same interval from the same resampled scores, where scipy leaves each row out one by one."""
    outcomes = (data(50) if metric != "accuracy" else classes(50))[0]
    theirs = stats.bootstrap(
        (outcomes.gold, outcomes.predicted),
        plain_metric,
        paired=True,
        vectorized=False,
        n_resamples=300,
        random_state=1,
    )
    point = score(outcomes, metric)
    samples = 100 * theirs.bootstrap_distribution
    ours = interval(samples, "bca", point=point, influence=influence(outcomes, metric))
    wanted = theirs.confidence_interval
    assert (ours.low, ours.high) == pytest.approx((100 * wanted.low, 100 * wanted.high), abs=1e-9)
    plain_interval = interval(samples)
    assert (plain_interval.low, plain_interval.high) != (ours.low, ours.high)


def test_bca_needs_what_it_is_made_of_and_takes_the_edges():
    samples = np.arange(1001) / 10
    with pytest.raises(ValueError, match="influence"):
        interval(samples, "bca")
    flat = interval(np.full(50, 3.0), "bca", point=3.0, influence=np.zeros(4))
    assert (flat.low, flat.high) == (3.0, 3.0)
    outside = interval(samples, "bca", point=200.0, influence=np.zeros(4))
    assert np.isfinite([outside.low, outside.high]).all() and outside.high == 100.0


def test_the_interval_is_the_central_ninety_five_percent():
    found = interval(np.arange(1001) / 10)
    assert (found.low, found.high) == pytest.approx((2.5, 97.5))


def test_the_memory_bound_changes_no_resample(monkeypatch):
    systems = data()
    whole = resample(systems, "spearman", "wmean", 50, 3)
    monkeypatch.setattr(MODULE, "CELLS", 200)
    assert np.array_equal(resample(systems, "spearman", "wmean", 50, 3), whole)


def test_the_seed_decides_the_resamples_and_a_system_has_the_same_alone():
    systems = data(30)
    once, again, other = (resample(systems, "spearman", "all", 50, seed) for seed in (1, 1, 2))
    assert np.array_equal(once, again) and not np.array_equal(once, other)
    assert np.allclose(resample(systems[:1], "pearson", "all", 50, 1), resample(systems, "pearson", "all", 50, 1)[:1])
    assert np.array_equal(resample(systems[:1], "spearman", "all", 50, 1), once[:1])


def test_a_system_gains_nothing_over_itself_and_much_over_noise():
    good, noise = data(200)
    same = resample([good, good], "spearman", "all", 100, 3)
    assert np.array_equal(same[0], same[1])
    gain = resample([good, noise], "spearman", "all", 400, 3)
    assert interval(gain[0] - gain[1]).low > 30


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(method):
    generator = np.random.default_rng(11)
    rho = 0.6
    truth = 100 * 6 / np.pi * np.arcsin(rho / 2)  # Spearman of a bivariate normal
    covered = 0
    for seed in range(150):
        gold = generator.normal(size=120)
        one = Outcomes(gold, rho * gold + np.sqrt(1 - rho**2) * generator.normal(size=120))
        samples = resample([one], "spearman", "all", 200, seed)[0]
        found = interval(samples, method, point=score(one, "spearman"), influence=influence(one, "spearman"))
        covered += found.low <= truth <= found.high
    assert 132 <= covered <= 150  # 142.5 ± 3.9 standard deviations


def test_influence_gives_the_bootstraps_standard_error():
    for systems, metric, aggregation, _ in CASES:
        expected = resample(systems, metric, aggregation, 1000, 1)[0].std()
        assert np.sqrt(np.sum(influence(systems[0], metric, aggregation) ** 2)) == pytest.approx(expected, rel=0.2)


def test_resamples_without_a_score_are_drawn_again_and_counted():
    small = Outcomes(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    with pytest.warns(RuntimeWarning, match="drawn again"):
        assert np.isfinite(resample([small], "spearman", "all", 300, 1)).all()


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_an_undefined_score_is_said_and_is_not_zero(metric):
    constant = Outcomes(np.arange(5.0), np.full(5, 0.7))
    with pytest.raises(RunError, match="undefined"):
        resample([constant], metric, "all", 10, 1)
    with pytest.raises(RunError, match="undefined"):
        score(constant, metric)
    nobody = Outcomes(np.zeros(5), np.zeros(5))
    with pytest.raises(RunError, match="undefined"):
        score(nobody, "f1")
    with pytest.raises(RunError, match="not finite"):
        score(Outcomes(np.arange(5.0), np.array([0.1, np.nan, 0.2, 0.3, 0.4])), metric)


def test_one_odd_row_in_a_tiny_part_cannot_be_resampled():
    alike = Outcomes(np.array([0.0] * 999 + [1.0]), np.arange(1000.0))
    with pytest.warns(RuntimeWarning, match="drawn again"):
        resample([alike], "spearman", "all", 20, 1)


def test_systems_on_other_rows_are_not_paired():
    with pytest.raises(ValueError, match="different rows"):
        resample([data(30)[0], data(30, seed=1)[0]], "spearman")
