"""How two systems differ on the same rows: the points, their paired interval, a test, and what all that amounts to.

The rule, for two systems on the same rows under the same protocol: one is ``better`` (``worse``) on a task when the
paired 95 % bootstrap interval of the difference lies above (below) 0 AND the test's p-value, adjusted by Holm's method
over all tasks on which the two are compared, is below 0.05. All else is ``not separable``.

Why both: the interval is not symmetric about the difference where the resamples are not, but knows nothing of the other
tasks, of which one in twenty would look different by chance. The adjusted test does know, but takes the difference for
normal. A difference that only one of them sees is not claimed. Tasks on the same rows (``sts12/all``, ``sts12/mean``)
count as several, which errs on the safe side. Cards and comparisons both ask here, so they give one answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import Interval, Resampling, interval, resample, score
from eval.statistics.jackknife import influence
from eval.statistics.paired_tests import Test, holm, jackknife_z, mcnemar
from eval.statistics.resampling import Matrix
from eval.tasks.data.example_types import Vector
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import LEVEL, Gain, TaskScore, Word


@dataclass(frozen=True)
class Difference:
    """One system's score minus another's, in points, with its paired interval and its test."""

    points: float
    around: Interval
    test: Test

    def word(self, adjusted: float) -> Word:
        """The rule at the head of this file; ``adjusted`` is the p-value over all tasks of the two systems."""
        if adjusted >= LEVEL or self.around.low <= 0 <= self.around.high:
            return "not separable"
        return "better" if self.around.low > 0 else "worse"


@dataclass(frozen=True)
class Resampled:
    """Systems scored on the same rows, resampled together, once for all their pairs."""

    outcomes: tuple[Outcomes, ...]
    metric: Metric
    aggregation: Aggregation
    method: Resampling
    samples: Matrix  # (systems, resamples)

    def difference(self, first: int, second: int, scores: tuple[TaskScore, TaskScore] | None = None) -> Difference:
        """The first system's score minus the second's.

        ``scores`` are what is told of the two, where that is more than their rows: a mean over seeds, of which the rows
        of the first are kept, or over folds. The difference is theirs, and of means over seeds the interval is moved to
        it; the test is that of the rows.
        """
        pair = self.outcomes[first], self.outcomes[second]
        moved: Vector = self.samples[first] - self.samples[second]
        one, other = (score(outcomes, self.metric, self.aggregation) for outcomes in pair)
        rows = one - other
        points = rows if scores is None else scores[0].main_score - scores[1].main_score
        centre = points if scores is not None and any(len(told.seeds) > 1 for told in scores) else rows
        influences = [influence(outcomes, self.metric, self.aggregation) for outcomes in pair]
        by_row = influences[0] - influences[1]
        around = interval(moved + (centre - rows), self.method.method, point=centre, influence=by_row)
        return Difference(points, around, paired_test(pair, self.metric, rows, by_row))


def resampled(outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, how: Resampling) -> Resampled:
    """Resample systems together. Raises RunError when a score is undefined, ValueError when rows differ."""
    samples = resample(outcomes, metric, aggregation, how.samples, how.seed)
    return Resampled(tuple(outcomes), metric, aggregation, how, samples)


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
