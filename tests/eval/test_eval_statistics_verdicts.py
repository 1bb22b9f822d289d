"""A planted gain of 0.1 point is not separable, one of 5 points is found, for every
kind of score; equal systems are told apart as rarely as is promised.
"""

import numpy as np
import pytest

from benchmarks.evaluation.verdicts import SCENARIOS, p_value
from eval.scoring.outcomes import Measured, Outcomes
from eval.statistics.bootstrap import Interval, Resampling, interval, score
from eval.statistics.paired import Difference, Measurement, Test, Verdict, adjusted, holm, resampled
from eval.statistics.scores import EvaluationSettings, task_score
from eval.tasks.registry import find_task

HOW = Resampling(samples=200)
MEASUREMENT = Measurement("stsb/cosine", "test", "spearman", "cosine", "e" * 64, 1379)
PARTS = ("a",) * 500 + ("b",) * 500 + ("c",) * 379


def correlated(gain: float, seed: int, rows: int = 1379) -> tuple[Outcomes, Outcomes]:
    """Two encoders of about 80 points on as many pairs as STSb's test has, noise mostly shared; the first is better."""
    generator = np.random.default_rng(seed)
    gold, shared, own, other = generator.normal(size=(4, rows))

    def system(points: float, private: np.ndarray) -> Outcomes:
        noise = np.sqrt(0.85) * shared + np.sqrt(0.15) * private
        rho = 2 * np.sin(np.pi * points / 600)  # Pearson of a bivariate normal with that Spearman
        return Outcomes(np.round(gold, 1), rho * gold + np.sqrt(1 - rho**2) * noise, PARTS[:rows])

    return system(80 + gain, own), system(80, other)


def accurate(gain: float, seed: int, rows: int = 2000) -> tuple[Outcomes, Outcomes]:
    """Two classifiers of about 85 % that agree on most rows, on half as many as CR has; the first is better."""
    generator = np.random.default_rng(seed)
    gold = generator.integers(0, 2, rows).astype(float)
    hard, private = generator.random(rows), generator.random((2, rows))

    def system(points: float, own: np.ndarray) -> Outcomes:
        wrong = np.where(own < 0.3, (own / 0.3) >= points / 100, hard >= points / 100)
        return Outcomes(gold, np.where(wrong, 1 - gold, gold))

    return system(85 + gain, private[0]), system(85, private[1])


def verdict(rows, metric, aggregation, tasks=24) -> Verdict:
    """The verdict on one task among ``tasks``; the others differ by nothing at all."""
    difference = resampled(rows, metric, aggregation, HOW).difference(0, 1)
    found = Verdict("one", "two", MEASUREMENT, difference)
    assert difference.points == score(rows[0], metric, aggregation) - score(rows[1], metric, aggregation)
    same = Verdict("one", "two", MEASUREMENT, Difference(0.0, Interval(-1.0, 1.0), Test("none", 0.0, 1.0)))
    return adjusted([found] + [same] * (tasks - 1))[0]


KINDS = [
    (correlated, "spearman", "all", "jackknife z"),
    (correlated, "pearson", "all", "jackknife z"),
    (correlated, "spearman", "wmean", "jackknife z"),
    (accurate, "accuracy", "all", "McNemar's exact test"),
    (accurate, "f1", "all", "jackknife z"),
]


@pytest.mark.parametrize(
    ("make", "metric", "aggregation", "test"), KINDS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_tenth_of_a_point_is_not_separable_and_five_points_are_found(make, metric, aggregation, test):
    small = [verdict(make(0.1, seed), metric, aggregation) for seed in range(10)]
    large = [verdict(make(5.0, seed), metric, aggregation) for seed in range(10)]
    assert [found.word for found in small] == ["not separable"] * 10
    assert [found.word for found in large] == ["better"] * 10
    differences = [found.difference for found in small + large]
    assert {one.test.name for one in differences} == {test}
    assert all(one.around.low <= one.points <= one.around.high for one in differences)
    first, second = make(5.0, 0)
    assert verdict((second, first), metric, aggregation).word == "worse"


def test_a_paired_interval_is_skewed_as_the_differences_of_the_rows_are():
    """The difference of two accuracies is the mean of what the rows differ by, whose influence is known."""
    rows = accurate(5.0, 3, 200)
    together = resampled(rows, "accuracy", "all", Resampling(samples=2000, method="bca"))
    found = together.difference(0, 1)
    by_row = 100 * np.subtract(*((one.predicted == one.gold).astype(float) for one in rows))
    moved = together.samples[0] - together.samples[1]
    known = interval(moved, "bca", point=by_row.mean(), influence=by_row - by_row.mean())
    assert (found.around.low, found.around.high) == pytest.approx((known.low, known.high))
    assert found.points == pytest.approx(by_row.mean())


def test_equal_models_are_rarely_told_apart_without_correction_and_never_with_it():
    found = [verdict(correlated(0.0, 100 + seed, 400), "spearman", "all") for seed in range(60)]
    assert sum(one.difference.test.p < 0.05 for one in found) <= 8
    assert {one.word for one in found} == {"not separable"}


@pytest.mark.parametrize(
    ("low", "high", "p", "word"),
    [
        (0.1, 0.9, 0.01, "better"),
        (-0.9, -0.1, 0.01, "worse"),
        (0.1, 0.9, 0.05, "not separable"),  # the interval alone
        (-0.1, 0.9, 0.01, "not separable"),  # the test alone
        (0.0, 0.9, 0.01, "not separable"),
    ],
)
def test_the_rule_needs_the_interval_and_the_adjusted_test(low, high, p, word):
    one = Verdict("a", "b", MEASUREMENT, Difference(0.5, Interval(low, high), Test("t", 1.0, p)))
    assert adjusted([one])[0].word == word


def test_p_values_are_adjusted_over_the_tasks_of_a_pair():
    one = Verdict("a", "b", MEASUREMENT, Difference(0.5, Interval(0.1, 0.9), Test("t", 1.0, 0.04)))
    assert adjusted([one])[0].word == "better"
    twice = adjusted([one, one])
    assert [found.adjusted for found in twice] == [0.08, 0.08]
    assert {found.word for found in twice} == {"not separable"}


def test_what_tells_two_measurements_apart_is_named_with_both_values():
    other = Measurement("stsb/cosine", "test", "spearman", "cosine; ONLY 10 rows of each split", "e" * 64, 10)
    assert MEASUREMENT.unlike(MEASUREMENT) == ""
    assert MEASUREMENT.unlike(other) == "protocol: 'cosine' and 'cosine; ONLY 10 rows of each split'; n: 1379 and 10"


def test_a_pair_among_several_systems_has_the_verdict_it_has_alone():
    first, second = correlated(5.0, 3, 300)
    third = correlated(2.0, 3, 300)[0]
    together = resampled([first, second, third], "spearman", "all", HOW)
    assert together.difference(2, 1) == resampled([third, second], "spearman", "all", HOW).difference(0, 1)
    points = [together.difference(*pair).points for pair in ((0, 2), (2, 1), (0, 1))]
    assert points[0] + points[1] == pytest.approx(points[2])


def test_families_of_equal_systems_on_ranks_are_told_apart_in_one_of_twenty_at_most():
    """By the tests alone, on ties, heavy tails and noise that falls with the gold: Williams' t finds 29 of 150."""
    scenario, draw = SCENARIOS["spearman, seven tasks of 250 rows"], np.random.default_rng(7)
    families = ([p_value(scenario, systems) for systems in scenario.family(draw)] for _ in range(150))
    assert sum(min(holm(p)) < 0.05 for p in families) <= 13  # 7.5 ± 2.7 of a rule at exactly 5 %


def test_means_over_seeds_have_the_interval_and_the_difference_of_the_means():
    """As a card tells a gain: moved to the difference of the means, tested on the first seed's rows."""
    rows, task = accurate(2.0, 3), find_task("sst2/senteval")
    own = resampled(rows, "accuracy", "all", HOW).difference(0, 1)
    seeds = ((1, 2), (1, 2))
    scores = [
        task_score(
            task, "test", Measured(one, score(one, "accuracy") + more, seeds=of), "0" * 64, EvaluationSettings(), {}
        )
        for one, more, of in zip(rows, (1.0, 0.0), seeds, strict=True)
    ]
    means = resampled(rows, "accuracy", "all", HOW).difference(0, 1, (scores[0], scores[1]))
    assert means.points == pytest.approx(own.points + 1)
    assert (means.around.low, means.around.high) == pytest.approx((own.around.low + 1, own.around.high + 1))
    assert means.test == own.test
