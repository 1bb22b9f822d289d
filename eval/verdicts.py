"""Which differences between two models are real: better, worse, or not separable, task by task.

The rule, for two models on the same rows under the same protocol: a model is ``better`` (``worse``) on a task when the
paired 95 % bootstrap interval of the difference lies above (below) 0 AND the test's p-value, adjusted by Holm's method
over all tasks on which the two are compared, is below 0.05. All else is ``not separable``.

Why both: the interval makes no assumption about the distribution of scores, but knows nothing of the other tasks, of
which one in twenty would look different by chance. The adjusted test does know, but where it is a correlation's, it is
derived for normal data, and on ranks it finds a little too much. A difference that only one of them sees is not
claimed. Tasks on the same rows (``sts12/all``, ``sts12/mean``) count as several, which errs on the safe side.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from eval.correlation_tests import Test, bootstrap_z, correlations, holm, mcnemar, williams
from eval.data.forms import Vector
from eval.jackknife import influence
from eval.outcomes import Aggregation, Metric, Outcomes
from eval.significance import Interval, Matrix, interval, resample, score
from hub.results import Method, TaskScore

Word = Literal["better", "worse", "not separable"]
LEVEL = 0.05  # of the adjusted p-value; the intervals are 95 % ones


@dataclass(frozen=True)
class Measurement:
    """What two scores must share to stand in one row: the same question put to the same rows."""

    task: str
    split: str
    metric: str
    protocol: str
    data: str  # the rows' hash, or the revision of the Hub dataset they are from
    n: int

    @classmethod
    def of(cls, score: TaskScore) -> "Measurement":
        """The measurement that a score is of."""
        data = score.data_sha256 or score.data_revision or ""
        return cls(score.task, score.split, score.main_metric, score.protocol, data, score.n)

    def unlike(self, other: "Measurement") -> str:
        """What tells the two apart, in words with both values; empty when nothing does."""
        names = ("task", "split", "metric", "protocol", "data", "n")
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return "; ".join(f"{name}: {one!r} and {two!r}" for name, one, two in pairs if one != two)


@dataclass(frozen=True)
class Settings:
    """How the paired intervals are made."""

    samples: int = 1000
    method: Method = "bca"
    seed: int = 42


@dataclass(frozen=True)
class Verdict:
    """The first model against the second on one measurement; ``difference`` in points, on the rows that were kept.

    A score that is a mean over seeds keeps the rows of the first seed, so that its own difference may be another.
    """

    first: str
    second: str
    measurement: Measurement
    difference: float
    around: Interval
    test: Test
    adjusted: float = float("nan")  # p-value over all tasks of the two models

    @property
    def word(self) -> Word:
        """The rule at the head of this file."""
        if self.adjusted >= LEVEL or self.around.low <= 0 <= self.around.high:
            return "not separable"
        return "better" if self.around.low > 0 else "worse"


@dataclass(frozen=True)
class Resampled:
    """Systems scored on the same rows, resampled together, once for all their pairs."""

    outcomes: tuple[Outcomes, ...]
    metric: Metric
    aggregation: Aggregation
    method: Method
    samples: Matrix  # (systems, resamples)

    def difference(self, first: int, second: int) -> tuple[float, Interval, Test]:
        """The first system's score minus the second's on these rows, its paired interval and its test.

        The test is Williams' for a correlation over all rows (on ranks for Spearman), McNemar's exact one for accuracy,
        and the difference in bootstrap standard errors where neither exists: means over parts, F1, recall.
        """
        pair = self.outcomes[first], self.outcomes[second]
        moved: Vector = self.samples[first] - self.samples[second]
        one, other = (score(outcomes, self.metric, self.aggregation) for outcomes in pair)
        influences = [influence(outcomes, self.metric, self.aggregation) for outcomes in pair]
        around = interval(moved, self.method, point=one - other, influence=influences[0] - influences[1])
        return one - other, around, _test(pair, self.metric, self.aggregation, one - other, moved)


def resampled(outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, settings: Settings) -> Resampled:
    """Resample systems together. Raises RunError when a score is undefined, ValueError when rows differ."""
    samples = resample(outcomes, metric, aggregation, settings.samples, settings.seed)
    return Resampled(tuple(outcomes), metric, aggregation, settings.method, samples)


def _test(
    rows: tuple[Outcomes, Outcomes], metric: Metric, aggregation: Aggregation, point: float, moved: Vector
) -> Test:
    first, second = rows
    if metric == "accuracy":
        return mcnemar(first.gold, first.predicted, second.predicted)
    if metric in ("spearman", "pearson") and (aggregation == "all" or not first.part) and len(first) > 3:
        ranks = metric == "spearman"
        return williams(*correlations(first.gold, first.predicted, second.predicted, ranks), len(first))
    return bootstrap_z(point, moved)


def adjusted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one pair of models with p-values adjusted over all of them."""
    values = holm([verdict.test.p for verdict in verdicts])
    return [replace(verdict, adjusted=value) for verdict, value in zip(verdicts, values, strict=True)]
