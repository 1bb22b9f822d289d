"""Outcomes of a task's examples, from which scores are computed, resampled and compared."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.tasks.rows import Indices, Vector
from sts_dino.eval.tasks.task import Aggregation

# Function of n texts, and the side of a search if any, that returns (n, dimension)
Embed = Callable[..., NDArray[np.float32]]


@dataclass(frozen=True)
class Outcomes:
    """Gold and predicted values of the scored rows, in the order of the data.

    ``gold``: human score, number of the class, or a query's number of relevant documents.
    ``predicted``: similarity, predicted score, number of the predicted class, or a query's score.
    ``part``: the subset of each row, (n,); empty: all rows are one part.
    """

    gold: Vector  # (n,)
    predicted: Vector  # (n,)
    part: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    def list_parts(self, aggregation: Aggregation) -> list[tuple[Indices, float]]:
        """List (row numbers, weight) of the parts whose weighted scores add up to the task's score.

        ``all`` makes one part of all rows; ``mean`` weights the subsets equally, ``wmean`` by their
        number of rows. The weights sum to 1.
        """
        if aggregation == "all" or not self.part:
            return [(np.arange(len(self)), 1.0)]
        names = np.asarray(self.part)
        subsets = list(dict.fromkeys(self.part))
        parts = []
        for subset in subsets:
            rows = np.flatnonzero(names == subset)
            weight = len(rows) / len(self) if aggregation == "wmean" else 1 / len(subsets)
            parts.append((rows, weight))
        return parts


@dataclass(frozen=True)
class Measured:
    """A task's score x 100 by the task's protocol, with the outcomes of the rows.

    ``other``: further metric → value. ``parts``: subset → (score x 100, number of rows).
    ``seconds``: phase of the work → seconds. ``seeds``: the seeds of a probe; empty without one.
    """

    outcomes: Outcomes
    score: float
    other: dict[str, float] = field(default_factory=dict)
    parts: dict[str, tuple[float, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
