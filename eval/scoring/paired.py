"""Difference of two systems on the same rows: points, paired interval, test and verdict.

The rule of the verdict: a system is ``better`` (``worse``) on a task when the paired 95 % bootstrap
interval of the difference lies above (below) 0 AND the test's p-value is below 0.05. The p-value is
adjusted by Holm's method over all tasks on which the two systems are compared. All other verdicts
are ``not significant``. The interval covers one task only; the adjusted test assumes that the
difference is normally distributed.

The test is McNemar's for accuracies. For every other score the test statistic is the difference
over its bootstrap standard error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sts_dino.eval.scoring.bootstrap import (
    EvaluationSettings,
    Interval,
    Matrix,
    compute_interval,
    compute_score,
    resample,
)
from sts_dino.eval.tasks.rows import Vector
from sts_dino.eval.tasks.task import Aggregation, Metric, Outcomes
from sts_dino.hub.contract.results import SIGNIFICANCE_LEVEL, Gain, Limit, TaskScore, VerdictWord

# Metrics whose difference is tested by McNemar's test
MCNEMAR_METRICS: tuple[Metric, ...] = ("accuracy",)


@dataclass(frozen=True)
class Test:
    """A test's name, statistic (positive: the first system is better) and two-sided p-value."""

    name: str
    statistic: float
    p: float

    __test__ = False  # not a test case of pytest


def compute_bootstrap_z(points: float, differences: Vector) -> Test:
    """Test a difference by z, its points over the standard deviation of its resamples.

    The two-sided p-value of z is that of the normal distribution. The test assumes nothing about
    the distribution of the rows. Williams' t assumes normal rows, and its error rate on ranks is
    twice the nominal one.

    Where all of several resamples are equal and ``points`` is not 0, z is infinite and p is 0. One
    resample, or equal ones and ``points`` 0, gives z = 0 and p = 1.

    Args:
        points: the difference of the scores, x 100.
        differences: the difference in each resample, x 100, (n,) with n >= 1.
    """
    from scipy.stats import norm

    standard_error = float(np.std(differences))
    if standard_error != 0:
        z = points / standard_error
    elif points != 0 and len(differences) > 1:
        z = float(np.copysign(np.inf, points))
    else:
        z = 0.0
    return Test("bootstrap z", z, float(2 * norm.sf(abs(z))))


def compute_mcnemar(first: Outcomes, second: Outcomes) -> Test:
    """Test two accuracies on the same rows by McNemar's exact test (1947).

    Only the rows count that exactly one system gets right. Under the null hypothesis each system
    gets such a row right with probability 1/2. The statistic is the number of these rows that the
    first system gets right minus the number that the second gets right. Without such rows p is 1.
    """
    from scipy.stats import binomtest

    first_right = np.asarray(first.predicted) == first.gold
    second_right = np.asarray(second.predicted) == second.gold
    wins = int((first_right & ~second_right).sum())
    losses = int((~first_right & second_right).sum())
    discordant = wins + losses
    p = float(binomtest(wins, discordant).pvalue) if discordant else 1.0
    return Test("McNemar's exact test", float(wins - losses), p)


def apply_holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests by Holm's method (1979), in the given order.

    The k-th smallest of m p-values is multiplied by m - k + 1, raised to the adjusted value of
    every smaller p-value, and cut at 1. When adjusted values below 0.05 are called significant, the
    probability of any false positive is at most 0.05, also for dependent tests.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    scaled = np.maximum.accumulate(values[order] * factors)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(scaled, 1.0)
    adjusted_values: list[float] = adjusted.tolist()
    return adjusted_values


class PairedTest(NamedTuple):
    """The paired interval of a difference, and its test."""

    interval: Interval
    test: Test


@dataclass(frozen=True)
class Difference:
    """One system's score minus another's, in points.

    ``tested`` is None where the outcomes of the rows were not recorded for both systems.
    """

    points: float
    tested: PairedTest | None = None


@dataclass(frozen=True)
class Resampled:
    """Systems that were scored on the same rows and resampled together.

    ``samples`` has the score x 100 of each system in each resample.
    """

    outcomes: tuple[Outcomes, ...]
    metric: Metric
    aggregation: Aggregation
    samples: Matrix  # (systems, resamples)

    def compare(self, first: int, second: int, reported: tuple[TaskScore, TaskScore]) -> Difference:
        """Return the first system's score minus the second's, with its interval and test.

        Args:
            first: index of the first system in ``outcomes``.
            second: index of the second system in ``outcomes``.
            reported: the reported scores of the first and the second system, which may be means
                over seeds or folds. Their difference is the result's ``points``. If one is a mean
                over several seeds, the interval, which is resampled from the rows of the first
                seed, is shifted to ``points``. A mean over folds differs only slightly from the
                score of the rows, so that interval is not shifted.

        Raises RunError when the score of a system's rows is undefined.
        """
        # Compute two differences: of the scores of the rows, and of the reported scores
        first_outcomes = self.outcomes[first]
        second_outcomes = self.outcomes[second]
        first_score = compute_score(first_outcomes, self.metric, self.aggregation)
        row_points = first_score - compute_score(second_outcomes, self.metric, self.aggregation)
        points = reported[0].main_score - reported[1].main_score
        shift = 0.0
        if any(len(score.seeds) > 1 for score in reported):
            shift = points - row_points

        # Test the difference of the rows, and shift the interval of the resamples
        samples = self.samples[first] - self.samples[second]
        if self.metric in MCNEMAR_METRICS:
            test = compute_mcnemar(first_outcomes, second_outcomes)
        else:
            test = compute_bootstrap_z(row_points, samples)
        interval = compute_interval(samples + shift)
        return Difference(points, PairedTest(interval, test))


def resample_together(
    outcomes: Sequence[Outcomes],
    metric: Metric,
    aggregation: Aggregation,
    settings: EvaluationSettings,
) -> Resampled:
    """Resample systems together, on the same resamples of the rows.

    Args:
        outcomes: the outcomes of each system.
        metric: the metric.
        aggregation: how the subsets of the rows make one score.
        settings: number of resamples and seed.

    Raises RunError when a score is undefined or a value is not finite, ValueError when the systems
    were not scored on the same rows.
    """
    samples = resample(outcomes, metric, aggregation, settings.bootstrap_samples, settings.seed)
    return Resampled(tuple(outcomes), metric, aggregation, samples)


@dataclass(frozen=True)
class Measurement:
    """The facts that two scores must share to be compared: task, protocol and rows.

    ``data`` is the hash of the rows, or the revision of their Hub dataset.
    """

    task: str
    split: str
    metric: str
    protocol: str
    data: str
    n: int
    limit: Limit | None = None  # the protocol names the limit, too

    @classmethod
    def from_score(cls, score: TaskScore) -> "Measurement":
        """Return the measurement of a score."""
        data = score.data_sha256 or score.data_revision or ""
        return cls(
            score.task, score.split, score.main_metric, score.protocol, data, score.n, score.limit
        )

    def describe_mismatch(self, other: "Measurement") -> str:
        """Describe the facts that differ, with both values; "" when all are equal.

        The protocol names the limit, so ``limit`` is not compared.
        """
        differences = []
        for name in ("task", "split", "metric", "protocol", "data", "n"):
            first, second = getattr(self, name), getattr(other, name)
            if first != second:
                differences.append(f"{name}: {first!r} and {second!r}")
        return "; ".join(differences)


@dataclass(frozen=True)
class Verdict:
    """Verdict on the first model against the second model, on one measurement.

    ``adjusted`` is the p-value, adjusted over all tasks of the two models; NaN before
    ``adjust_verdicts``, when ``word`` and ``gain`` are not final.
    """

    first: str
    second: str
    measurement: Measurement
    difference: Difference
    adjusted: float = float("nan")

    @property
    def word(self) -> VerdictWord:
        """The verdict by the rule in this module's docstring; untested: "not significant"."""
        tested = self.difference.tested
        if tested is None or self.adjusted >= SIGNIFICANCE_LEVEL:
            return "not significant"
        if tested.interval.low > 0:
            return "better"
        if tested.interval.high < 0:
            return "worse"
        return "not significant"

    @property
    def gain(self) -> Gain:
        """The difference as a gain of the first model; only for a difference that was tested."""
        assert self.difference.tested is not None
        interval, test = self.difference.tested
        return Gain(
            task=self.measurement.task,
            split=self.measurement.split,
            difference=self.difference.points,
            low=interval.low,
            high=interval.high,
            test=test.name,
            p=test.p,
            p_holm=self.adjusted,
            verdict=self.word,
        )


def adjust_verdicts(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts of one pair of models with p-values adjusted over the tested tasks.

    The order is that of ``verdicts``. Untested verdicts are unchanged.
    """
    p_values = []
    tested_indices = []
    for index, verdict in enumerate(verdicts):
        if verdict.difference.tested is not None:
            p_values.append(verdict.difference.tested.test.p)
            tested_indices.append(index)
    adjusted_verdicts = list(verdicts)
    for index, p_holm in zip(tested_indices, apply_holm(p_values), strict=True):
        adjusted_verdicts[index] = replace(verdicts[index], adjusted=p_holm)
    return adjusted_verdicts
