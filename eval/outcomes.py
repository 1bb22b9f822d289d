"""What a task's measurement leaves for every row: enough to score it again, resample it and compare two models."""

from dataclasses import dataclass, field
from typing import Literal

from eval.data.forms import Vector

Metric = Literal["spearman", "pearson", "accuracy", "f1", "recall"]
Aggregation = Literal["all", "mean", "wmean"]


@dataclass(frozen=True)
class Outcomes:
    """One row per scored example, in the data's order.

    gold: people's score or the class's number; predicted: the similarity, predicted score or class, or, for retrieval,
    the rank (from 0) of the first right answer. ``part`` is the row's subset or direction; empty: all are one part.
    """

    gold: Vector  # (n,)
    predicted: Vector  # (n,)
    part: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)


@dataclass(frozen=True)
class Measured:
    """A task's score x 100 as its protocol computes it, with the rows it came from."""

    outcomes: Outcomes
    score: float
    other: dict[str, float] = field(default_factory=dict)  # further metrics
    parts: dict[str, tuple[float, int]] = field(default_factory=dict)  # part → (score, rows)
    seconds: dict[str, float] = field(default_factory=dict)  # e.g. probing
    seeds: tuple[int, ...] = ()
