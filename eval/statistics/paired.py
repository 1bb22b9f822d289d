"""How two systems differ on the same rows: the points, their paired interval, a test, and the verdict.

The rule: one is ``better`` (``worse``) on a task when the paired 95 % bootstrap interval of the difference lies above
(below) 0 AND the test's p-value, adjusted by Holm's method over all tasks on which the two are compared, is below 0.05.
All else is ``not significant``. The interval knows one task only; the adjusted test takes the difference for normal.

The test is McNemar's for accuracies. For every other score it is the difference over its infinitesimal jackknife
standard error, from the influence of each row: O(n log n) steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import Interval, Matrix, Resampling, interval, recall_of, resample, score
from eval.tasks.rows import Vector
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import LEVEL, Gain, Limit, TaskScore, Word


def influence(outcomes: Outcomes, metric: Metric, aggregation: Aggregation = "all") -> Vector:
    """Per row (n,), in the order of the parts: the derivative of the score x 100 by the row's weight.

    These are the empirical influence values over n (Davison & Hinkley 1997, section 2.7.2); a row of a part counts with
    the part's weight. Their sum of squares estimates the score's variance (the infinitesimal jackknife, Efron 1982,
    chapter 6). The influence on a paired difference is the difference of the two systems' influences.
    """
    gold, predicted = np.asarray(outcomes.gold, dtype=np.float64), np.asarray(outcomes.predicted, dtype=np.float64)
    parts = outcomes.parts(aggregation)
    return np.concatenate([100 * weight * INFLUENCES[metric](gold[rows], predicted[rows]) for rows, weight in parts])


def _spearman(gold: Vector, predicted: Vector) -> Vector:
    """A row moves the sums of the ranks' squares and products by its own share and by the ranks above its own."""
    from scipy.stats import rankdata

    x, y = (rankdata(side) - (len(gold) + 1) / 2 for side in (gold, predicted))
    products = x * y + _above(x, y) + _above(y, x)
    return _of_correlation(x, y, products, x**2 + 2 * _above(x, x), y**2 + 2 * _above(y, y))


def _pearson(gold: Vector, predicted: Vector) -> Vector:
    x, y = gold - gold.mean(), predicted - predicted.mean()
    return _of_correlation(x, y, x * y, x**2, y**2)


def _of_correlation(x: Vector, y: Vector, product: Vector, square_x: Vector, square_y: Vector) -> Vector:
    """Influence on the correlation of centred sides from that on the sums of their products and squares."""
    xx, yy, xy = x @ x, y @ y, x @ y
    return np.asarray((product - xy * (square_x / xx + square_y / yy) / 2) / np.sqrt(xx * yy))


def _above(key: Vector, values: Vector) -> Vector:
    """For each row, the sum of the values of the rows whose key is larger, and of half of those with the same key."""
    group = np.unique(key, return_inverse=True)[1]
    sums = np.bincount(group, weights=values)
    return np.asarray((np.cumsum(sums[::-1])[::-1] - sums / 2)[group])


def _mean(values: Vector) -> Vector:
    return (values - values.mean()) / len(values)


def _f1(gold: Vector, predicted: Vector) -> Vector:
    positive, chosen = gold == 1, predicted == 1
    hits, either = 2.0 * (positive & chosen), 1.0 * positive + chosen
    return (hits - hits.sum() / either.sum() * either) / either.sum()


INFLUENCES: dict[Metric, Callable[[Vector, Vector], Vector]] = {  # gold, predicted → of each row (n,)
    "spearman": _spearman,
    "pearson": _pearson,
    "accuracy": lambda gold, predicted: _mean((gold == predicted).astype(np.float64)),
    "f1": _f1,
    "recall": lambda gold, predicted: _mean(recall_of(predicted)),
}


@dataclass(frozen=True)
class Test:
    """A test's name, its statistic (positive: the first system is better) and its two-sided p-value."""

    name: str
    statistic: float
    p: float

    __test__ = False  # not a test case of pytest


def jackknife_z(pair: Sequence[Outcomes], metric: Metric, aggregation: Aggregation) -> Test:
    """The difference of two scores over its jackknife standard error, against a normal distribution.

    It asks nothing of the distribution of the rows. Williams' t, which is derived for normal ones, errs on ranks twice
    as often as it says.
    """
    from scipy.stats import norm

    first, second = (score(one, metric, aggregation) for one in pair)
    by_row = influence(pair[0], metric, aggregation) - influence(pair[1], metric, aggregation)
    spread = float(np.sqrt(np.sum(by_row**2)))
    if spread == 0:
        return Test("jackknife z", 0.0, 1.0 if first == second else 0.0)
    statistic = (first - second) / spread
    return Test("jackknife z", statistic, float(2 * norm.sf(abs(statistic))))


def mcnemar(pair: Sequence[Outcomes], *_: object) -> Test:
    """McNemar's exact test of two accuracies: is a row that one system alone has right as often the first's (1947)?"""
    from scipy.stats import binomtest

    right, other = (np.asarray(one.predicted) == one.gold for one in pair)
    wins, losses = int((right & ~other).sum()), int((~right & other).sum())
    p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return Test("McNemar's exact test", float(wins - losses), p)


TESTS: dict[Metric, Callable[[Sequence[Outcomes], Metric, Aggregation], Test]] = {"accuracy": mcnemar}
"""The paired test of a metric; ``jackknife_z`` of every other one."""


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in the order given (Holm 1979).

    The k-th smallest of m is multiplied by m - k + 1, never below a smaller one's adjusted value, nor above 1. Calling
    all below 0.05 significant errs anywhere with probability at most 0.05, however the tests depend on one another.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class Difference:
    """One system's score minus another's, in points, with its paired interval and its test."""

    points: float
    around: Interval
    test: Test

    def word(self, adjusted: float) -> Word:
        """The rule at the head of this file; ``adjusted`` is the p-value over all tasks of the two systems."""
        if adjusted >= LEVEL or self.around.low <= 0 <= self.around.high:
            return "not significant"
        return "better" if self.around.low > 0 else "worse"


@dataclass(frozen=True)
class Resampled:
    """Systems scored on the same rows, resampled together, once for all their pairs."""

    outcomes: tuple[Outcomes, ...]
    metric: Metric
    aggregation: Aggregation
    samples: Matrix  # (systems, resamples)

    def difference(self, first: int, second: int, scores: tuple[TaskScore, TaskScore] | None = None) -> Difference:
        """The first system's score minus the second's.

        ``scores`` are the reported ones, where they are means over seeds or folds: the difference is theirs, and of
        means over seeds the interval is moved to it. The test is that of these rows.
        """
        pair = self.outcomes[first], self.outcomes[second]
        one, other = (score(outcomes, self.metric, self.aggregation) for outcomes in pair)
        rows = one - other
        points = rows if scores is None else scores[0].main_score - scores[1].main_score
        centre = points if scores is not None and any(len(one.seeds) > 1 for one in scores) else rows
        around = interval(self.samples[first] - self.samples[second] + (centre - rows))
        return Difference(points, around, TESTS.get(self.metric, jackknife_z)(pair, self.metric, self.aggregation))


def resampled(outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, how: Resampling) -> Resampled:
    """Resample systems together. Raises RunError when a score is undefined, ValueError when rows differ."""
    samples = resample(outcomes, metric, aggregation, how.samples, how.seed)
    return Resampled(tuple(outcomes), metric, aggregation, samples)


def gains(found: Sequence[tuple[TaskScore, Difference]]) -> tuple[Gain, ...]:
    """The differences of one pair of systems, task by task (the first one's score with each), with their verdicts."""
    adjusted = holm([difference.test.p for _, difference in found])
    return tuple(
        Gain(
            task=after.task,
            split=after.split,
            difference=one.points,
            low=one.around.low,
            high=one.around.high,
            test=one.test.name,
            p=one.test.p,
            p_holm=p,
            verdict=one.word(p),
        )
        for (after, one), p in zip(found, adjusted, strict=True)
    )


@dataclass(frozen=True)
class Measurement:
    """What two scores must share to be in one row: the same question put to the same rows."""

    task: str
    split: str
    metric: str
    protocol: str
    data: str  # the rows' hash, or the revision of the Hub dataset they are from
    n: int
    limit: Limit | None = None  # also in the protocol

    @classmethod
    def of(cls, score: TaskScore) -> "Measurement":
        """The measurement that a score is of."""
        data = score.data_sha256 or score.data_revision or ""
        return cls(score.task, score.split, score.main_metric, score.protocol, data, score.n, score.limit)

    def unlike(self, other: "Measurement") -> str:
        """What tells the two apart, in words with both values; empty when nothing does."""
        names = ("task", "split", "metric", "protocol", "data", "n")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return "; ".join(f"{name}: {one!r} and {two!r}" for name, one, two in pairs if one != two)


@dataclass(frozen=True)
class Verdict:
    """The first model against the second on one measurement."""

    first: str
    second: str
    measurement: Measurement
    difference: Difference
    adjusted: float = float("nan")  # p-value over all tasks of the two models

    @property
    def word(self) -> Word:
        """Better, worse or not significant."""
        return self.difference.word(self.adjusted)


def adjusted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one pair of models with p-values adjusted over all of them."""
    values = holm([verdict.difference.test.p for verdict in verdicts])
    return [replace(verdict, adjusted=value) for verdict, value in zip(verdicts, values, strict=True)]
