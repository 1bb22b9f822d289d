"""The optimum of logistic regression, for all folds of a task together.

Objective: mean cross-entropy + l2/2 (|W|² + |b|²) over the k x (d + 1) weights, whose gradient Adam is given in the
toolkit; in scikit-learn's terms C = 1 / (n l2), with the intercept as a column of ones. All classifiers see the same
rows, so a product with all their weights is one, and folds are masks, not copies. L-BFGS (Nocedal and Wright 2006,
algorithm 7.4) starts each fold at the optimum of all rows, and that at the one of the next larger l2. Its first inverse
Hessian is diagonal in the eigenvectors of the rows' second moments, mean p(1 - p) x eigenvalue + l2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from eval.scoring.probe_senteval import PACE, EpochSchedule, Fitted, Indices, ProbeRows, Split, accuracies
from hub.errors import RunError

GAP = 1e-9  # of the objective to its minimum, estimated as half the squared length of the Newton step
CHOICE_GAP = 1e-7  # of classifiers that only choose the regularisation
ROUGH_GAP = 1e-3  # where the preconditioner is taken anew
FLOOR_GAP = 1e-6  # below it, the gap that no longer halves is rounding
PATIENCE = 20  # iterations in which it should have halved
HISTORY = 10
ITERATIONS = 2000
HALVINGS = 30
ARMIJO = 1e-4
ROUNDING = 1e-7  # of the objective in float32
LOGITS = 2**20  # at a time
Turn = tuple[Tensor, Tensor, Tensor]  # differences of weights and of gradients (C, k, d + 1), inverse product (C,)
Inverse = Callable[[Tensor], Tensor]  # gradients (C, k, d + 1) → times a guess of the inverse Hessian, of all folds


@dataclass
class ConvexSolver:
    """Solves on some rows; the optima of all rows are kept, from one call to the next. Seed and pace are not used."""

    rows: ProbeRows
    seed: int
    pace: EpochSchedule = PACE
    _path: dict[float, Tensor] = field(default_factory=dict)  # l2 → (1, k, d + 1)

    def __post_init__(self) -> None:
        self._eigenvalues, self._basis = _second_moments(self.rows)

    def fit(self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None) -> Fitted:
        """The optimum per split and value of ``grid``, with its accuracy on the split's dev rows (of ``dev``).

        With ``dev`` the classifiers may be final ones (``held_out``), and are as near the optimum as those.
        """
        lists, gap = [split.train for split in splits], CHOICE_GAP if dev is None else GAP
        weights = torch.stack([self._optima(lists, l2, grid, gap) for l2 in sorted(grid, reverse=True)], dim=1)
        weights = weights[:, np.argsort(np.argsort(-np.array(grid)))]
        checked = self.rows if dev is None else dev
        accuracy = [accuracies(checked, split.dev, own) for split, own in zip(splits, weights, strict=True)]
        return Fitted(weights, np.stack(accuracy))

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """The optimum per list of rows at its value: (F, k, d + 1)."""
        weights = torch.empty(len(lists), self.rows.k, self.rows.dimension + 1)
        for l2 in sorted(set(values), reverse=True):
            chosen = [position for position, value in enumerate(values) if value == l2]
            weights[chosen] = self._optima([lists[position] for position in chosen], l2, values, GAP)
        return weights

    def _optima(self, lists: Sequence[Indices], l2: float, grid: Sequence[float], gap: float) -> Tensor:
        """(F, k, d + 1) for lists of rows."""
        start, n = self._whole(l2, grid), len(self.rows)
        shares = torch.zeros(n, len(lists))
        for column, indices in enumerate(lists):
            shares[torch.from_numpy(indices), column] = 1 / len(indices)
        return minimise(Objective(self.rows, shares, l2), start.repeat(len(lists), 1, 1), self._inverse(start, l2), gap)

    def _whole(self, l2: float, grid: Sequence[float]) -> Tensor:
        """The optimum of all rows, from that at the next larger value."""
        if l2 not in self._path:
            larger = [value for value in {*grid, *self._path} if value > l2]
            start = self._whole(min(larger), grid) if larger else torch.zeros(1, self.rows.k, self.rows.dimension + 1)
            objective = Objective(self.rows, torch.full((len(self.rows), 1), 1 / len(self.rows)), l2)
            for gap in (ROUGH_GAP, CHOICE_GAP):
                start = minimise(objective, start, self._inverse(start, l2), gap)
            self._path[l2] = start
        return self._path[l2]

    def _inverse(self, weights: Tensor, l2: float) -> Inverse:
        """An inverse Hessian for classifiers near ``weights`` (1, k, d + 1)."""
        spread = torch.zeros(self.rows.k)
        for X in self.rows.X.split(max(1, LOGITS // self.rows.k)):
            p = torch.softmax(torch.addmm(weights[0, :, -1], X, weights[0, :, :-1].T), dim=1)
            spread += (p * (1 - p)).sum(0)
        basis, diagonal = self._basis, spread[:, None] / len(self.rows) * self._eigenvalues + l2
        return lambda gradient: ((gradient @ basis) / diagonal) @ basis.T


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

    def __call__(self, weights: Tensor, live: Tensor) -> tuple[Tensor, Tensor]:
        """Values (c,) in float64 and gradients (c, k, d + 1) of the classifiers ``live``."""
        c, k, _ = weights.shape
        flat, one_hot = weights.flatten(0, 1), torch.eye(k)
        value = 0.5 * self.l2 * weights.double().square().sum((1, 2))
        gradient = self.l2 * flat
        size = max(1, LOGITS // (c * k))
        for X, y, shares in zip(*(part.split(size) for part in (self.rows.X, self.rows.y, self.shares)), strict=True):
            share = shares[:, live]
            log_p = torch.log_softmax(torch.addmm(flat[:, -1], X, flat[:, :-1].T).view(-1, c, k), dim=2)
            own = log_p.gather(2, y[:, None, None].expand(-1, c, 1))[..., 0]
            value -= (own * share).sum(0, dtype=torch.float64)
            error = log_p.exp_().sub_(one_hot[y][:, None]).mul_(share[..., None]).flatten(1)
            gradient[:, :-1].addmm_(error.T, X)
            gradient[:, -1] += error.sum(0)
        return value, gradient.view_as(weights)


def minimise(objective: Objective, start: Tensor, inverse: Inverse, gap: float) -> Tensor:
    """Weights (C, k, d + 1) within ``gap`` of each objective's minimum, or as near as float32 tells.

    float32 cannot tell when the gap stays below ``FLOOR_GAP`` without halving: on few rows the gradient's rounding,
    divided by l2, is as large. Raises RunError when some have not got there after ``ITERATIONS``.
    """
    weights, live = start.clone(), torch.arange(len(start))
    value, gradient = objective(weights, live)
    history: list[Turn] = []
    best, stalled = torch.full((len(start),), torch.inf), torch.zeros(len(start), dtype=torch.int64)
    for _ in range(ITERATIONS):
        step = _direction(gradient[live], live, history, inverse)
        slope = _dot(gradient[live], step)
        left = 0.5 * slope
        halved = left < 0.5 * best[live]
        best[live] = torch.where(halved, left, best[live])
        stalled[live] = torch.where(halved, 0, stalled[live] + 1)
        going = (left > gap) & ((left > FLOOR_GAP) | (stalled[live] < PATIENCE))
        live, step, slope = live[going], step[going], slope[going]
        if not len(live):
            return weights - weights.mean(dim=1, keepdim=True)  # what all classes share changes nothing but the penalty
        new, new_value, new_gradient, moved = _search(objective, weights[live], value[live], live, step, slope)
        history = [*history, _turn(start, live, new - weights[live], new_gradient - gradient[live])][-HISTORY:]
        weights[live], value[live], gradient[live] = new, new_value, new_gradient
        live = live[moved]
    problem = f"{len(live)} classifiers at l2 {objective.l2:g} did not converge in {ITERATIONS} iterations"
    raise RunError("probe", problem)


def _turn(like: Tensor, live: Tensor, moved: Tensor, bent: Tensor) -> Turn:
    """One iteration's differences of weights and gradients and their inverse product, 0 for classifiers that ended."""
    product = _dot(moved, bent)
    turn = torch.zeros_like(like), torch.zeros_like(like), torch.zeros(len(like))
    turn[0][live], turn[1][live] = moved, bent
    turn[2][live] = torch.where(product > 0, 1 / product.clamp(min=torch.finfo().tiny), torch.zeros(()))
    return turn


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return (left * right).sum((1, 2))


def _direction(gradient: Tensor, live: Tensor, history: Sequence[Turn], inverse: Inverse) -> Tensor:
    """The inverse Hessian times the gradient by the two-loop recursion, to be subtracted."""
    q, factors = gradient.clone(), []
    turns = [(moved[live], bent[live], scale[live]) for moved, bent, scale in history]
    for moved, bent, scale in reversed(turns):
        factors.append(scale * _dot(moved, q))
        q -= factors[-1][:, None, None] * bent
    q = inverse(q)
    for (moved, bent, scale), factor in zip(turns, reversed(factors), strict=True):
        q += (factor - scale * _dot(bent, q))[:, None, None] * moved
    return q


def _search(
    objective: Objective, weights: Tensor, value: Tensor, live: Tensor, step: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Halve each classifier's step until it lowers its objective enough (Armijo's rule).

    Returns weights, values, gradients and ``moved`` (c,): False where no step lowered the objective, float32's limit.
    """
    length, todo = torch.ones(len(live)), torch.arange(len(live))
    new = weights - step
    new_value, new_gradient = objective(new, live)
    for _ in range(HALVINGS):
        limit = value[todo] - ARMIJO * length[todo] * slope[todo] + ROUNDING * value[todo].abs()
        todo = todo[~(new_value[todo] <= limit)]
        if not len(todo):
            break
        length[todo] *= 0.5
        new[todo] = weights[todo] - length[todo, None, None] * step[todo]
        new_value[todo], new_gradient[todo] = objective(new[todo], live[todo])
    moved = torch.ones(len(live), dtype=torch.bool)
    moved[todo] = False
    return new, new_value, new_gradient, moved
