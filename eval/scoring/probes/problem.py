"""Data types of the probe solvers: rows, splits of them, and linear classifiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Features = NDArray[np.float32]  # (n, d)
Classes = NDArray[np.int64]  # (n,), 0 … k-1
Indices = NDArray[np.int64]
Vector = NDArray[np.float64]
GRID = tuple(10**power for power in range(-5, -1))  # the toolkit's weight decay
LOGITS = 2**22  # at a time


@dataclass(frozen=True)
class ProbeRows:
    """Rows and their classes out of ``k``, as tensors that share the arrays' memory."""

    X: Tensor  # (n, d) float32
    y: Tensor  # (n,) int64
    k: int

    @classmethod
    def of(cls, X: Features, y: Classes, k: int) -> "ProbeRows":
        """From arrays."""
        return cls(torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32)), torch.from_numpy(np.asarray(y)), k)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        """d."""
        return self.X.shape[1]


@dataclass(frozen=True)
class Split:
    """The rows that a classifier is fitted on, in the protocol's order, and those that it is checked on."""

    train: Indices
    dev: Indices


@dataclass(frozen=True)
class EpochSchedule:
    """How long ``senteval`` trains: passes between two checks, and the last pass after which it goes on."""

    epoch_size: int = 4
    max_epoch: int = 200


PACE = EpochSchedule()


@dataclass(frozen=True)
class Fitted:
    """Classifiers of F splits and R regularisation values; the last column of a weight row is the intercept."""

    weights: Tensor  # (F, R, k, d + 1)
    accuracy: Vector  # (F, R), a share of the split's dev rows


class Solver(Protocol):
    """A mode of the probe: fits linear classifiers on the rows it was made for, from a seed, at a pace."""

    def __init__(self, rows: ProbeRows, seed: int, pace: EpochSchedule = PACE) -> None: ...

    def fit(self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None) -> Fitted:
        """One classifier per split and value of ``grid``; the splits' dev rows are of ``dev``, if given."""

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """Final classifiers, one per list of rows with its value, and no dev rows given: (F, k, d + 1)."""


def predictions(rows: ProbeRows, at: Indices | None, weights: Tensor) -> Tensor:
    """Classes that classifiers give rows: weights (C, k, d + 1) → (C, rows)."""
    flat = weights.flatten(0, 1)
    order = torch.arange(len(rows)) if at is None else torch.from_numpy(at)
    parts = []
    for piece in order.split(max(1, LOGITS // len(flat))):
        logits = torch.addmm(flat[:, -1], rows.X[piece], flat[:, :-1].T)
        parts.append(logits.view(len(piece), *weights.shape[:2]).argmax(2).T)
    return torch.cat(parts, dim=1)


def accuracies(rows: ProbeRows, at: Indices | None, weights: Tensor) -> Vector:
    """Share of rows that each of (C, k, d + 1) classifiers gets right, (C,)."""
    gold = rows.y if at is None else rows.y[torch.from_numpy(at)]
    right = (predictions(rows, at, weights) == gold).sum(1).numpy()
    return np.asarray(1.0 * right / len(gold))
