"""Adam on many softmax classifiers at once, with torch's own update: the step that SentEval's trained heads share.

A fold's classifiers share each gathered batch; a batch of all folds is two products of stacked matrices, the gradient
is written out, and the update is torch's fused Adam on the stacked weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

BATCH_SIZE = 64
LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8  # torch's defaults
LANES = 16  # weight rows begin on vectors of so many floats

Error = Callable[[Tensor, Tensor], Tensor]  # probabilities (f, r, k, b), row numbers (f * b,) → derivative by logits


@dataclass(frozen=True)
class State:
    """F x R classifiers in training; a weight row is the d weights, the intercept and padding."""

    weights: Tensor  # (F, R, k, padded)
    mean: Tensor
    square: Tensor
    decay: Tensor  # (F, R, 1, 1), times the weights it is added to the gradient

    @classmethod
    def start(cls, dimension: int, classes: int, decay: NDArray[np.float64], seed: int) -> "State":
        """All classifiers begin with the weights that torch gives a linear layer after ``manual_seed(seed)``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = torch.nn.Linear(dimension, classes)
        first = torch.zeros(classes, -(-(dimension + 1) // LANES) * LANES)
        first[:, :dimension] = layer.weight.detach()
        first[:, dimension] = layer.bias.detach()
        weights = first.repeat(*decay.shape, 1, 1)
        per_classifier = torch.from_numpy(decay.astype(np.float32))[..., None, None]
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights), per_classifier)

    def take(self, at: tuple[Tensor, Tensor]) -> "State":
        """A copy of the classifiers at (folds, values)."""
        return State(self.weights[at], self.mean[at], self.square[at], self.decay[at])

    def put(self, at: tuple[Tensor, Tensor], piece: "State") -> None:
        """Write a copy back."""
        self.weights[at], self.mean[at], self.square[at] = piece.weights, piece.mean, piece.square


def train(X: Tensor, state: State, orders: Iterable[Tensor], updates: Tensor, error: Error) -> None:
    """Update (f, r) classifiers in place, batch by batch of each order (f, n) of the rows of X.

    ``error`` is the derivative of a row's loss by its logits; a batch's loss is the mean over rows. ``updates`` is the
    number of updates so far, a float32 scalar that is counted up.
    """
    f, r, k, padded = state.weights.shape
    weights, gradient = state.weights.view(f, r * k, padded), torch.empty_like(state.weights)
    gathered = torch.zeros(f * BATCH_SIZE, padded)
    gathered[:, X.shape[1]] = 1.0  # the intercept's feature
    for order in orders:
        for batch in order.split(BATCH_SIZE, dim=1):
            size, at = batch.shape[1], batch.reshape(-1)
            torch.index_select(X, 0, at, out=gathered[: f * size, : X.shape[1]])
            rows = gathered[: f * size].view(f, size, padded)
            p = torch.softmax(torch.bmm(weights, rows.transpose(1, 2)).view(f, r, k, size), dim=2)
            torch.mul(state.weights, state.decay, out=gradient)
            gradient.view(f, r * k, padded).baddbmm_(error(p, at).view(f, r * k, size), rows, alpha=1 / size)
            adam(
                [state.weights],
                [gradient],
                [state.mean],
                [state.square],
                [],
                [updates],
                fused=True,
                amsgrad=False,
                beta1=BETA1,
                beta2=BETA2,
                lr=LEARNING_RATE,
                weight_decay=0.0,
                eps=EPSILON,
                maximize=False,
            )
