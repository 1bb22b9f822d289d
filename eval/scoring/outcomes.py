"""Per-example outcomes of a task: enough to score it again, resample it and test two models against each other."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eval.tasks.rows import Indices, Vector
from eval.tasks.task import Aggregation

Embed = Callable[..., NDArray[np.float32]]  # n texts, and their side of a search if they have one → (n, dimension)
WEIGHTS: dict[Aggregation, Callable[[Vector], Vector] | None] = {  # of parts, by their sizes; None: one part
    "all": None,
    "mean": lambda sizes: np.full(len(sizes), 1 / len(sizes)),
    "wmean": lambda sizes: sizes / sizes.sum(),
}


@dataclass(frozen=True)
class Outcomes:
    """One row per scored example, in the data's order.

    gold: human score or the class's number; predicted: the similarity, predicted score or class. ``part`` is the row's
    subset; empty: all are one part.
    """

    gold: Vector  # (n,)
    predicted: Vector  # (n,)
    part: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    def parts(self, aggregation: Aggregation) -> list[tuple[Indices, float]]:
        """(rows, weight in the score) of every part that is drawn and scored by itself."""
        weigh = WEIGHTS[aggregation]
        if weigh is None or not self.part:
            return [(np.arange(len(self)), 1.0)]
        names = np.asarray(self.part)
        rows = [np.flatnonzero(names == name) for name in dict.fromkeys(self.part)]
        return list(zip(rows, weigh(np.array([float(len(part)) for part in rows])).tolist(), strict=True))


@dataclass(frozen=True)
class Measured:
    """A task's score x 100 as its protocol computes it, with the rows it came from."""

    outcomes: Outcomes
    score: float
    other: dict[str, float] = field(default_factory=dict)  # further metrics
    parts: dict[str, tuple[float, int]] = field(default_factory=dict)  # part → (score, rows)
    seconds: dict[str, float] = field(default_factory=dict)  # e.g. probing
    seeds: tuple[int, ...] = ()
