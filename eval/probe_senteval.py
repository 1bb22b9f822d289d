"""SentEval's own logistic regression, trained for all folds and regularisation values of a task together.

The toolkit (Conneau and Kiela 2018; `tools/classifier.py`) trains one torch module after the other: Adam on the mean
cross-entropy of batches of 64, weight decay added to the gradient (of the intercept too), a check on the dev rows after
every four passes, an end at the sixth check without a new best (misses are never forgotten), the weights of the best
check. Every classifier is seeded anew, so all start from the same weights, and those with equally many rows see the same
shuffles.

Here the classifiers of a fold share each gathered batch, folds are stacked in pieces that fit the processor's cache, and
a classifier leaves when it stops. Initial weights, shuffles, batches and updates are the toolkit's, sums differ in the
last bits alone. Beside the rows it needs four times the weights, the row numbers of all folds and 1 MiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from eval.probe_problem import Fitted, Indices, Rows, Split, Vector, accuracies

BATCH_SIZE = 64
EPOCH_SIZE = 4  # passes between two checks
MAX_EPOCH = 200
TENACITY = 5
DEV_SHARE = 0.05  # of the rows of a final fit
CACHE_BYTES = 2**20  # of gathered rows
LANES = 16  # weight rows begin on vectors of so many floats


@dataclass(frozen=True)
class SentEvalSolver:
    """Trains on some rows; ``seed`` gives the first weights and all shuffles."""

    rows: Rows
    seed: int

    def fit(self, splits: Sequence[Split], grid: Sequence[float], dev: Rows | None = None) -> Fitted:
        """One classifier per split and value of ``grid``, checked on the split's dev rows (of ``dev``, if given)."""
        values = np.tile(grid, (len(splits), 1))
        return _train(self.rows, splits, [0] * len(splits), values, self.seed, self.rows if dev is None else dev)

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """One classifier per list of rows at its value, checked on a random 5 % of them: (F, k, d + 1)."""
        splits = []
        for indices in lists:
            order = np.random.RandomState(self.seed).permutation(len(indices))
            cut = int(DEV_SHARE * len(indices))
            splits.append(Split(indices[order[cut:]], indices[order[:cut]]))
        drawn = [len(indices) for indices in lists]
        return _train(self.rows, splits, drawn, np.array(values)[:, None], self.seed, self.rows).weights[:, 0]


def _train(rows: Rows, splits: Sequence[Split], drawn: Sequence[int], values: Vector, seed: int, dev: Rows) -> Fitted:
    """Classifiers of ``values`` (F, R); ``drawn`` is the length of a permutation drawn before training (0: none)."""
    state = _State.start(_first_weights(rows, seed), values)
    courses = _courses(splits, drawn, seed)
    width = rows.dimension + 1
    best = state.weights[..., :width].clone()
    best_accuracy, misses = np.full(values.shape, -1.0), np.zeros(values.shape, dtype=int)
    live = np.ones(values.shape, dtype=bool)
    for _ in range(0, MAX_EPOCH + 1, EPOCH_SIZE):
        for course in courses:
            course.advance(rows, state, live)
        for fold in np.flatnonzero(live.any(axis=1)):
            running = np.flatnonzero(live[fold])
            accuracy = accuracies(dev, splits[fold].dev, state.weights[fold, running, :, :width])
            better = accuracy > best_accuracy[fold, running]
            best_accuracy[fold, running[better]] = accuracy[better]
            best[fold, running[better]] = state.weights[fold, running[better], :, :width]
            live[fold, running[~better]] = misses[fold, running[~better]] < TENACITY
            misses[fold, running[~better]] += 1
        if not live.any():
            break
    return Fitted(best, best_accuracy)


@dataclass(frozen=True)
class _State:
    """Adam's state of F x R classifiers; a weight row is the d weights, the intercept and padding."""

    weights: Tensor  # (F, R, k, padded)
    mean: Tensor
    square: Tensor
    decay: Tensor  # (F, R, 1, 1)

    @classmethod
    def start(cls, first: Tensor, values: Vector) -> "_State":
        """All classifiers begin with the weights ``first``."""
        weights = first.repeat(*values.shape, 1, 1)
        decay = torch.from_numpy(values.astype(np.float32))[..., None, None]
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights), decay)


def _first_weights(rows: Rows, seed: int) -> Tensor:
    """torch's initial weights of a linear layer, (k, padded)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = torch.nn.Linear(rows.dimension, rows.k)
    weights = torch.zeros(rows.k, -(-(rows.dimension + 1) // LANES) * LANES)
    weights[:, : rows.dimension] = layer.weight.detach()
    weights[:, rows.dimension] = layer.bias.detach()
    return weights


def _courses(splits: Sequence[Split], drawn: Sequence[int], seed: int) -> list["_Course"]:
    """Splits that see the same shuffles, together."""
    folds: dict[tuple[int, int], list[int]] = {}
    for fold, (split, before) in enumerate(zip(splits, drawn, strict=True)):
        folds.setdefault((before, len(split.train)), []).append(fold)
    courses = []
    for (before, _), members in folds.items():
        shuffles = np.random.RandomState(seed)
        if before:
            shuffles.permutation(before)
        train = torch.from_numpy(np.stack([splits[fold].train for fold in members]))
        courses.append(_Course(shuffles, np.array(members), train, torch.zeros(())))
    return courses


@dataclass(frozen=True)
class _Course:
    """Folds with equally many rows to train on, hence the same shuffles and number of updates."""

    shuffles: np.random.RandomState
    folds: Indices  # (f,)
    train: Tensor  # (f, n)
    updates: Tensor  # scalar

    def advance(self, rows: Rows, state: _State, live: NDArray[np.bool_]) -> None:
        """Train the classifiers that still run for ``EPOCH_SIZE`` passes."""
        if not live[self.folds].any():
            return
        length = self.train.shape[1]
        orders = [torch.from_numpy(self.shuffles.permutation(length)) for _ in range(EPOCH_SIZE)]
        for members, values in self._pieces(live, max(1, CACHE_BYTES // (4 * BATCH_SIZE * state.weights.shape[3]))):
            at = (torch.from_numpy(self.folds[members])[:, None], torch.from_numpy(values))
            piece = _State(state.weights[at], state.mean[at], state.square[at], state.decay[at])
            train = self.train[torch.from_numpy(members)]
            _pass(rows, piece, (train[:, order] for order in orders), self.updates.clone())
            state.weights[at], state.mean[at], state.square[at] = piece.weights, piece.mean, piece.square
        self.updates.add_(EPOCH_SIZE * -(-length // BATCH_SIZE))

    def _pieces(self, live: NDArray[np.bool_], size: int) -> Iterator[tuple[Indices, Indices]]:
        """(members (m,), regularisation values (m, r)): up to ``size`` folds with equally many running classifiers."""
        running = [np.flatnonzero(live[fold]) for fold in self.folds]
        for count in sorted({len(values) for values in running} - {0}):
            members = np.array([member for member, values in enumerate(running) if len(values) == count])
            for start in range(0, len(members), size):
                piece = members[start : start + size]
                yield piece, np.stack([running[member] for member in piece])


def _pass(rows: Rows, state: _State, orders: Iterator[Tensor], updates: Tensor) -> None:
    """Update (f, r) classifiers in place on batches of each (f, n) order of rows."""
    f, r, k, padded = state.weights.shape
    weights, gradient = state.weights.view(f, r * k, padded), torch.empty_like(state.weights)
    gathered = torch.zeros(f * BATCH_SIZE, padded)
    gathered[:, rows.dimension] = 1.0  # the intercept's feature
    one_hot = torch.eye(k)
    for order in orders:
        for batch in order.split(BATCH_SIZE, dim=1):
            size, at = batch.shape[1], batch.reshape(-1)
            torch.index_select(rows.X, 0, at, out=gathered[: f * size, : rows.dimension])
            X = gathered[: f * size].view(f, size, padded)
            error = torch.softmax(torch.bmm(weights, X.transpose(1, 2)).view(f, r, k, size), dim=2)
            error -= one_hot[rows.y[at]].view(f, 1, size, k).transpose(2, 3)
            torch.mul(state.weights, state.decay, out=gradient)
            gradient.view(f, r * k, padded).baddbmm_(error.view(f, r * k, size), X, alpha=1 / size)
            adam(
                [state.weights], [gradient], [state.mean], [state.square], [], [updates], fused=True,
                amsgrad=False, beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=0.0, eps=1e-8, maximize=False,
            )  # fmt: skip
