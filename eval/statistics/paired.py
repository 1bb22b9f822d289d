"""How two systems differ on the same rows: the points, their paired interval, a test, and the verdict.

The rule: one is ``better`` (``worse``) on a task when the paired 95 % bootstrap interval of the difference lies above
(below) 0 AND the test's p-value, adjusted by Holm's method over all tasks on which the two are compared, is below 0.05.
All else is ``not significant``. The interval knows one task only; the adjusted test takes the difference for normal.

The test is McNemar's for accuracies. For every other score it is the difference over its bootstrap standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import EvaluationSettings, Interval, Matrix, interval, resample, score
from eval.tasks.rows import Vector
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import LEVEL, Gain, Limit, TaskScore, Word

BY_ROW: tuple[Metric, ...] = ("accuracy",)  # metrics that McNemar's test compares row by row


@dataclass(frozen=True)
class Test:
    """A test's name, its statistic (positive: the first system is better) and its two-sided p-value."""

    name: str
    statistic: float
    p: float

    __test__ = False  # not a test case of pytest


def bootstrap_z(points: float, differences: Vector) -> Test:
    """A difference over the standard deviation of its resamples (n,), against a normal distribution.

    It asks nothing of the distribution of the rows. Williams' t, which is derived for normal ones, errs on ranks twice
    as often as it says.
    """
    from scipy.stats import norm

    spread = float(np.std(differences))
    if spread == 0:
        return Test("bootstrap z", 0.0, 1.0 if points == 0 or len(differences) < 2 else 0.0)
    return Test("bootstrap z", points / spread, float(2 * norm.sf(abs(points) / spread)))


def mcnemar(first: Outcomes, second: Outcomes) -> Test:
    """McNemar's exact test of two accuracies: is a row that one system alone has right as often the first's (1947)?"""
    from scipy.stats import binomtest

    right, other = (np.asarray(one.predicted) == one.gold for one in (first, second))
    wins, losses = int((right & ~other).sum()), int((~right & other).sum())
    p = float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
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
    """One system's score minus another's, in points, with its paired interval and its test.

    ``tested`` is None where the scored rows of one were not kept.
    """

    points: float
    tested: tuple[Interval, Test] | None = None

    def word(self, adjusted: float) -> Word:
        """The rule at the head of this file; ``adjusted`` is the p-value over all tasks of the two systems."""
        if self.tested is None or adjusted >= LEVEL or self.tested[0].low <= 0 <= self.tested[0].high:
            return "not significant"
        return "better" if self.tested[0].low > 0 else "worse"


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
        moved = self.samples[first] - self.samples[second]
        test = mcnemar(*pair) if self.metric in BY_ROW else bootstrap_z(rows, moved)
        return Difference(points, (interval(moved + (centre - rows)), test))


def resampled(
    outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, how: EvaluationSettings
) -> Resampled:
    """Resample systems together. Raises RunError when a score is undefined, ValueError when rows differ."""
    samples = resample(outcomes, metric, aggregation, how.bootstrap_samples, how.seed)
    return Resampled(tuple(outcomes), metric, aggregation, samples)


def gains(found: Sequence[tuple[TaskScore, Difference]]) -> tuple[Gain, ...]:
    """The tested differences of one pair of systems, task by task (the first one's score with each), with verdicts."""
    tested = [(after, one, *one.tested) for after, one in found if one.tested is not None]
    adjusted = holm([test.p for *_, test in tested])
    return tuple(
        Gain(
            task=after.task,
            split=after.split,
            difference=one.points,
            low=around.low,
            high=around.high,
            test=test.name,
            p=test.p,
            p_holm=p,
            verdict=one.word(p),
        )
        for (after, one, around, test), p in zip(tested, adjusted, strict=True)
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
    """The verdicts of one pair of models with p-values adjusted over all that were tested."""
    values = iter(holm([one.difference.tested[1].p for one in verdicts if one.difference.tested]))
    return [replace(one, adjusted=next(values)) if one.difference.tested else one for one in verdicts]
