"""The optimum of logistic regression, for all folds of a task together.

Objective: mean cross-entropy + l2/2 (|W|² + |b|²) over the k x (d + 1) weights, whose gradient Adam is given in the
toolkit; in scikit-learn's terms C = 1 / (n l2), with the intercept as a column of ones. All classifiers see the same
rows, so a product with all their weights is one, and folds are masks, not copies: scipy's L-BFGS minimises the sum of
the folds' objectives. It sees the weights in the eigenvectors of the rows' second moments, scaled by the curvature of
equal probabilities, p(1 - p) x eigenvalue + l2. Each value of l2 starts at the optimum of the next larger one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from eval.scoring.probe_senteval import PACE, EpochSchedule, Fitted, Indices, ProbeRows, Split, Vector, accuracies
from hub.errors import RunError

SLOPE = 2e-5  # largest number in the scaled gradient at the optimum
HISTORY = 10
ITERATIONS = 2000
LOGITS = 2**20  # at a time


@dataclass(frozen=True)
class ConvexSolver:
    """Solves on some rows. Seed and pace are not used."""

    rows: ProbeRows
    seed: int
    pace: EpochSchedule = PACE

    def fit(self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None) -> Fitted:
        """The optimum per split and value of ``grid``, with its accuracy on the split's dev rows (of ``dev``)."""
        optima = self._path([split.train for split in splits], grid)
        weights = torch.stack([optima[l2] for l2 in grid], dim=1)
        checked = self.rows if dev is None else dev
        accuracy = [accuracies(checked, split.dev, own) for split, own in zip(splits, weights, strict=True)]
        return Fitted(weights, np.stack(accuracy))

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """The optimum per list of rows at its value: (F, k, d + 1)."""
        optima = self._path(lists, values)
        return torch.stack([optima[l2][position] for position, l2 in enumerate(values)])

    def _path(self, lists: Sequence[Indices], grid: Sequence[float]) -> dict[float, Tensor]:
        """l2 → the optima (F, k, d + 1) of lists of rows."""
        shares = torch.zeros(len(self.rows), len(lists))
        for column, indices in enumerate(lists):
            shares[torch.from_numpy(indices), column] = 1 / len(indices)
        weights, optima = torch.zeros(len(lists), self.rows.k, self.rows.dimension + 1), {}
        eigenvalues, basis = _second_moments(self.rows)
        for l2 in sorted(set(grid), reverse=True):
            scale = (eigenvalues * (self.rows.k - 1) / self.rows.k**2 + l2).rsqrt()
            weights = optima[l2] = minimised(Objective(self.rows, shares, l2), weights, basis * scale, basis / scale)
        return optima


def _second_moments(rows: ProbeRows) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the mean of (x, 1)(x, 1)ᵀ."""
    d, n = rows.dimension, len(rows)
    moments = torch.empty(d + 1, d + 1)
    moments[:d, :d] = rows.X.T @ rows.X / n
    moments[d, :d] = moments[:d, d] = rows.X.mean(0)
    moments[d, d] = 1
    values, vectors = torch.linalg.eigh(moments)
    return values.clamp(min=float(values[-1]) * torch.finfo(values.dtype).eps), vectors


@dataclass(frozen=True)
class Objective:
    """Mean cross-entropy + l2/2 of the squared weights; ``shares`` (n, C) weigh the rows of each classifier."""

    rows: ProbeRows
    shares: Tensor
    l2: float

    def __call__(self, weights: Tensor) -> tuple[float, Tensor]:
        """The sum of the values and the gradients (C, k, d + 1) of all classifiers."""
        c, k, _ = weights.shape
        flat, one_hot = weights.flatten(0, 1), torch.eye(k)
        value = 0.5 * self.l2 * float(weights.double().square().sum())
        gradient = self.l2 * flat
        size = max(1, LOGITS // (c * k))
        for X, y, share in zip(*(part.split(size) for part in (self.rows.X, self.rows.y, self.shares)), strict=True):
            log_p = torch.log_softmax(torch.addmm(flat[:, -1], X, flat[:, :-1].T).view(-1, c, k), dim=2)
            own = log_p.gather(2, y[:, None, None].expand(-1, c, 1))[..., 0]
            value -= float((own * share).sum(dtype=torch.float64))
            error = log_p.exp_().sub_(one_hot[y][:, None]).mul_(share[..., None]).flatten(1)
            gradient[:, :-1].addmm_(error.T, X)
            gradient[:, -1] += error.sum(0)
        return value, gradient.view_as(weights)


def minimised(objective: Objective, start: Tensor, to_weights: Tensor, from_weights: Tensor) -> Tensor:
    """The weights (C, k, d + 1) of the minimum; ``to_weights`` (d + 1, d + 1) maps scaled weights to weights.

    Raises RunError when ``ITERATIONS`` are too few. Where float32 tells no better point, the search ends.
    """

    def scaled(point: Vector) -> tuple[float, Vector]:
        weights = torch.from_numpy(point.astype(np.float32)).view_as(start) @ to_weights.T
        value, gradient = objective(weights)
        return value, (gradient @ to_weights).flatten().double().numpy()

    options = {"maxiter": ITERATIONS, "maxfun": 2 * ITERATIONS, "maxcor": HISTORY, "gtol": SLOPE, "ftol": 1e-9}
    first = (start @ from_weights).flatten().double().numpy()
    found = minimize(scaled, first, jac=True, method="L-BFGS-B", options=options)
    if found.nit >= ITERATIONS:
        raise RunError("probe", f"no convergence at l2 {objective.l2:g} in {ITERATIONS} iterations")
    weights = torch.from_numpy(found.x.astype(np.float32)).view_as(start) @ to_weights.T
    return weights - weights.mean(dim=1, keepdim=True)  # what all classes share changes nothing but the penalty
