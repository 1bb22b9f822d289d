"""How two systems differ on the same rows: the points, their paired interval, a test, and the verdict.

The rule, for two systems on the same rows under the same protocol: one is ``better`` (``worse``) on a task when the
paired 95 % bootstrap interval of the difference lies above (below) 0 AND the test's p-value, adjusted by Holm's method
over all tasks on which the two are compared, is below 0.05. All else is ``not significant``.

Why both: the interval is not symmetric about the difference where the resamples are not, but knows nothing of the other
tasks, of which one in twenty would look different by chance. The adjusted test does know, but takes the difference for
normal. A difference that only one of them sees is not claimed. Tasks on the same rows (``sts12/all``, ``sts12/mean``)
count as several, which errs on the safe side. Cards and comparisons both use this rule, so they give one answer.

The test is McNemar's for accuracies. For every other score it is the difference over its jackknife standard error, from
the influence of each row: O(n log n + n g) steps for Spearman, g the number of distinct values of the side that has
fewer (human scores have some dozens: 0.02 s for 10,000 rows).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import (
    Interval,
    Matrix,
    Resampling,
    interval,
    ratio,
    recall_of,
    resample,
    score,
    stratify,
)
from eval.tasks.rows import Vector
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import LEVEL, Gain, Limit, TaskScore, Word

BLOCK = 128  # distinct values in memory at once, times n


def influence(outcomes: Outcomes, metric: Metric, aggregation: Aggregation = "all") -> Vector:
    """Per row (n,), in the order of the parts: (m - 1) / m x (mean of the leave-one-out scores - the row's), x 100.

    m counts the rows of the row's part, whose values are weighted as its score is (Davison & Hinkley 1997, equations
    2.42 and 5.25). Their sum of squares estimates the score's variance. The influence on a paired difference is the
    difference of the two systems' influences. Rows without which the score is undefined have none.
    """
    gold, predicted = np.asarray(outcomes.gold, dtype=np.float64), np.asarray(outcomes.predicted, dtype=np.float64)
    values = []
    for rows, weight in stratify(outcomes, metric, aggregation):
        left_out = 100 * weight * LEFT_OUT[metric](gold[rows], predicted[rows])
        defined = np.isfinite(left_out)
        mean = left_out[defined].mean() if defined.any() else 0.0
        values.append(np.where(defined, mean - left_out, 0.0) * (len(rows) - 1) / len(rows))
    return np.concatenate(values)


def _spearman(gold: Vector, predicted: Vector) -> Vector:
    """Spearman's correlation without each row in turn.

    Without row i, the rank of row j falls by a_ij = 1 if j lies above i, 1/2 if they tie, else 0 (and i itself goes).
    So the sums of squares and products of the remaining ranks are those of all ranks less sums over the rows above i.
    """
    from scipy.stats import rankdata

    n = len(gold)
    x, y = rankdata(gold), rankdata(predicted)
    mean = n / 2  # of the n - 1 remaining ranks
    product = x @ y - _above(x, y) - _above(y, x) + _both_above(x, y) - _own(x, y)
    spread_x = x @ x - 2 * _above(x, x) + _squares(x) - _own(x, x)
    spread_y = y @ y - 2 * _above(y, y) + _squares(y) - _own(y, y)
    centre = (n - 1) * mean**2
    return ratio(product - centre, np.sqrt(np.maximum(spread_x - centre, 0) * np.maximum(spread_y - centre, 0)))


def _own(x: Vector, y: Vector) -> Vector:
    """What row i itself put into the sum of products: its ranks, each less its own half."""
    return (x - 0.5) * (y - 0.5)


def _above(key: Vector, values: Vector) -> Vector:
    """Sum over j of a_ij values_j, a_ij as above for ``key``: (n,)."""
    group = _groups(key)
    sums = np.bincount(group, weights=values)
    return (np.cumsum(sums[::-1])[::-1] - sums / 2)[group]


def _squares(key: Vector) -> Vector:
    """Sum over j of a_ij²: (n,)."""
    group = _groups(key)
    sums = np.bincount(group).astype(np.float64)
    return (np.cumsum(sums[::-1])[::-1] - sums * 3 / 4)[group]


def _both_above(x: Vector, y: Vector) -> Vector:
    """Sum over j of a_ij b_ij, for x and for y: (n,). The side with fewer distinct values is cut into blocks."""
    columns, many = (_groups(y), _groups(x)) if len(np.unique(y)) <= len(np.unique(x)) else (_groups(x), _groups(y))
    found = np.empty(len(x))
    higher = np.zeros(many.max() + 1)  # rows of the blocks already seen, by the other side's value
    for stop in range(columns.max() + 1, 0, -BLOCK):
        start = max(0, stop - BLOCK)
        inside = np.flatnonzero((columns >= start) & (columns < stop))
        cells = many[inside] * (stop - start) + columns[inside] - start
        counts = np.bincount(cells, minlength=len(higher) * (stop - start)).reshape(len(higher), -1).astype(np.float64)
        table = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts / 2 + higher[:, None]
        halved = np.cumsum(table[::-1], axis=0)[::-1] - table / 2
        found[inside] = halved.ravel()[cells]
        higher += counts.sum(axis=1)
    return found


def _groups(values: Vector) -> NDArray[np.intp]:
    return np.unique(values, return_inverse=True)[1]


def _pearson(gold: Vector, predicted: Vector) -> Vector:
    x, y, n = gold - gold.mean(), predicted - predicted.mean(), len(gold)
    scale = n / (n - 1)  # a row's distance from the others' mean
    product = x @ y - scale * x * y
    return ratio(product, np.sqrt(np.maximum(x @ x - scale * x**2, 0) * np.maximum(y @ y - scale * y**2, 0)))


def _mean(values: Vector) -> Vector:
    return ratio(values.sum() - values, np.full(len(values), len(values) - 1.0))


def _f1(gold: Vector, predicted: Vector) -> Vector:
    positive, chosen = gold == 1, predicted == 1
    hits, either = (positive & chosen).astype(np.float64), positive.astype(np.float64) + chosen
    return ratio(2 * (hits.sum() - hits), either.sum() - either)


LEFT_OUT: dict[Metric, Callable[[Vector, Vector], Vector]] = {  # gold, predicted → scores without each row (n,)
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


def jackknife_z(difference: float, influence: Vector) -> Test:
    """Any difference of two scores over its jackknife standard error, against a normal distribution.

    ``influence`` (n,) is that of every row on the difference (``eval.statistics.paired``), in the same unit; its sum
    of squares estimates the variance (Davison & Hinkley 1997, section 2.7). It asks nothing of the distribution of the
    rows: Williams' t, which is derived for normal ones, errs on ranks twice as often as it says
    (``benchmarks/evaluation/verdicts.py``).
    """
    from scipy import stats

    spread = float(np.sqrt(np.sum(influence**2)))
    if spread == 0:
        return Test("jackknife z", 0.0, 1.0 if difference == 0 else 0.0)
    statistic = difference / spread
    return Test("jackknife z", statistic, float(2 * stats.norm.sf(abs(statistic))))


def mcnemar(gold: Vector, first: Vector, second: Vector) -> Test:
    """McNemar's exact test of two accuracies: is a row that one system alone has right as often the first's (1947)?"""
    from scipy import stats

    right, other = np.asarray(first) == gold, np.asarray(second) == gold
    wins, losses = int((right & ~other).sum()), int((~right & other).sum())
    p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return Test("McNemar's exact test", float(wins - losses), p)


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

        ``scores`` are the reported ones, where they are of more than these rows: a mean over seeds, of which the rows
        of the first are kept, or over folds. The difference is theirs, and of means over seeds the interval is moved to
        it; the test is that of the rows.
        """
        pair = self.outcomes[first], self.outcomes[second]
        moved: Vector = self.samples[first] - self.samples[second]
        one, other = (score(outcomes, self.metric, self.aggregation) for outcomes in pair)
        rows = one - other
        points = rows if scores is None else scores[0].main_score - scores[1].main_score
        centre = points if scores is not None and any(len(one.seeds) > 1 for one in scores) else rows
        influences = [influence(outcomes, self.metric, self.aggregation) for outcomes in pair]
        by_row = influences[0] - influences[1]
        around = interval(moved + (centre - rows))
        return Difference(points, around, paired_test(pair, self.metric, rows, by_row))


def resampled(outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, how: Resampling) -> Resampled:
    """Resample systems together. Raises RunError when a score is undefined, ValueError when rows differ."""
    samples = resample(outcomes, metric, aggregation, how.samples, how.seed)
    return Resampled(tuple(outcomes), metric, aggregation, samples)


def paired_test(rows: tuple[Outcomes, Outcomes], metric: Metric, points: float, by_row: Vector) -> Test:
    """McNemar's exact test for accuracies, the jackknife's z for every other score.

    ``points`` is the difference of the two scores on these rows, ``by_row`` the influence (n,) of every row on it.
    """
    if metric == "accuracy":
        return mcnemar(rows[0].gold, rows[0].predicted, rows[1].predicted)
    return jackknife_z(points, by_row)


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
