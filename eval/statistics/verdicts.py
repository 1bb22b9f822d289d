"""Which measurements compare, and the verdict on two models on one of them: better, worse, or not separable.

The rule is ``eval.statistics.differences``'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eval.statistics.differences import Difference
from eval.statistics.paired_tests import holm
from hub.contract.results import Limit, TaskScore, Word


@dataclass(frozen=True)
class Measurement:
    """What two scores must share to stand in one row: the same question put to the same rows."""

    task: str
    split: str
    metric: str
    protocol: str
    data: str  # the rows' hash, or the revision of the Hub dataset they are from
    n: int
    limit: Limit | None = None  # told by the protocol as well

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
        """Better, worse or not separable."""
        return self.difference.word(self.adjusted)


def adjusted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of one pair of models with p-values adjusted over all of them."""
    values = holm([verdict.difference.test.p for verdict in verdicts])
    return [replace(verdict, adjusted=value) for verdict, value in zip(verdicts, values, strict=True)]
