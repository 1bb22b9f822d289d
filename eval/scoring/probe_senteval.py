"""SentEval's optimiser for linear classifiers, all folds and values together; the data types of both solvers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

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


BATCH_SIZE = 64
ADAM: Any = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}  # torch's defaults
ADAM |= {"fused": True, "amsgrad": False, "maximize": False}
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
            adam([state.weights], [gradient], [state.mean], [state.square], [], [updates], **ADAM)


TENACITY = 5
DEV_SHARE = 0.05  # of the rows of a final fit
CACHE_BYTES = 2**20  # of gathered rows


@dataclass(frozen=True)
class SentEvalSolver:
    """Trains on some rows; ``seed`` gives the first weights and all shuffles."""

    rows: ProbeRows
    seed: int
    pace: EpochSchedule = PACE

    def fit(self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None) -> Fitted:
        """One classifier per split and value of ``grid``, checked on the split's dev rows (of ``dev``, if given)."""
        values = np.tile(grid, (len(splits), 1))
        return self._train(splits, [0] * len(splits), values, self.rows if dev is None else dev)

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """One classifier per list of rows at its value, checked on a random 5 % of them: (F, k, d + 1)."""
        splits = []
        for indices in lists:
            order = np.random.RandomState(self.seed).permutation(len(indices))
            cut = int(DEV_SHARE * len(indices))
            splits.append(Split(indices[order[cut:]], indices[order[:cut]]))
        drawn = [len(indices) for indices in lists]
        return self._train(splits, drawn, np.array(values)[:, None], self.rows).weights[:, 0]

    def _train(self, splits: Sequence[Split], drawn: Sequence[int], values: Vector, dev: ProbeRows) -> Fitted:
        """Classifiers of ``values`` (F, R); ``drawn``: length of a permutation drawn before training (0: none)."""
        state = State.start(self.rows.dimension, self.rows.k, values, self.seed)
        courses, width = _courses(splits, drawn, self.seed), self.rows.dimension + 1
        best = Fitted(state.weights[..., :width].clone(), np.full(values.shape, -1.0))
        misses, live = np.zeros(values.shape, dtype=int), np.ones(values.shape, dtype=bool)
        for _ in range(0, self.pace.max_epoch + 1, self.pace.epoch_size):
            for course in courses:
                course.advance(self.rows, state, live, self.pace.epoch_size)
            for fold in range(len(splits)):
                running = np.flatnonzero(live[fold])
                if not len(running):
                    continue
                weights = state.weights[fold, running, :, :width]
                accuracy = accuracies(dev, splits[fold].dev, weights)
                better = accuracy > best.accuracy[fold, running]
                missed = running[~better]
                best.accuracy[fold, running[better]] = accuracy[better]
                best.weights[fold, running[better]] = weights[better]
                live[fold, missed] = misses[fold, missed] < TENACITY
                misses[fold, missed] += 1
            if not live.any():
                break
        return best


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
        rows = torch.from_numpy(np.stack([splits[fold].train for fold in members]))
        courses.append(_Course(shuffles, np.array(members), rows, torch.zeros(())))
    return courses


@dataclass(frozen=True)
class _Course:
    """Folds with equally many rows to train on, hence the same shuffles and number of updates."""

    shuffles: np.random.RandomState
    folds: Indices  # (f,)
    train: Tensor  # (f, n) row numbers
    updates: Tensor  # scalar

    def advance(self, rows: ProbeRows, state: State, live: NDArray[np.bool_], passes: int) -> None:
        """Train the classifiers that still run for so many passes."""
        if not live[self.folds].any():
            return
        length = self.train.shape[1]
        orders = [torch.from_numpy(self.shuffles.permutation(length)) for _ in range(passes)]
        for members, values in self._pieces(live, max(1, CACHE_BYTES // (4 * BATCH_SIZE * state.weights.shape[3]))):
            at = torch.from_numpy(self.folds[members])[:, None], torch.from_numpy(values)
            piece, own = state.take(at), self.train[torch.from_numpy(members)]
            train(rows.X, piece, (own[:, order] for order in orders), self.updates.clone(), cross_entropy(rows))
            state.put(at, piece)
        self.updates.add_(passes * -(-length // BATCH_SIZE))

    def _pieces(self, live: NDArray[np.bool_], size: int) -> Iterator[tuple[Indices, Indices]]:
        """(members (m,), regularisation values (m, r)): up to ``size`` folds with equally many running classifiers."""
        running = [np.flatnonzero(live[fold]) for fold in self.folds]
        for count in sorted({len(values) for values in running} - {0}):
            members = np.array([member for member, values in enumerate(running) if len(values) == count])
            for start in range(0, len(members), size):
                piece = members[start : start + size]
                yield piece, np.stack([running[member] for member in piece])


def cross_entropy(rows: ProbeRows) -> Error:
    """The derivative of the cross-entropy of the rows' classes."""
    one_hot = torch.eye(rows.k)

    def error(p: Tensor, at: Tensor) -> Tensor:
        gold = one_hot.index_select(0, rows.y.index_select(0, at))
        return p.sub_(gold.view(len(p), 1, -1, rows.k).transpose(2, 3))

    return error
