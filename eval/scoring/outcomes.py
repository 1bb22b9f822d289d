"""Per-example outcomes of a task: enough to score it again, resample it and test two models against each other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eval.tasks.rows import Vector

Embed = Callable[[Sequence[str]], NDArray[np.float32]]  # n texts → (n, dimension)


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
