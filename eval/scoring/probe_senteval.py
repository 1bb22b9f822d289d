"""SentEval's optimiser for linear classifiers, and the data types of both solvers.

Classifiers of all folds and regularisation values train together. Their weights are bit-identical
to the toolkit's, which trains one classifier after another.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from sts_dino.eval.tasks.rows import Indices, Vector

Features = NDArray[np.float32]  # (n, d)
Classes = NDArray[np.int64]  # (n,), 0 … k-1
WEIGHT_DECAYS = tuple(10**power for power in range(-5, -1))  # the toolkit's grid
MAX_LOGITS = 2**22  # numbers of one matrix product, which bound its memory


@dataclass(frozen=True)
class ProbeRows:
    """Features and classes of n rows, as tensors; ``k`` is the number of classes."""

    X: Tensor  # (n, d) float32
    y: Tensor  # (n,) int64
    k: int

    @classmethod
    def from_arrays(cls, X: Features, y: Classes, k: int) -> "ProbeRows":
        """Return the rows of two arrays; tensors share the arrays' memory where possible."""
        features = torch.from_numpy(np.ascontiguousarray(X, dtype=np.float32))
        return cls(features, torch.from_numpy(np.asarray(y)), k)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def dimension(self) -> int:
        """Number of features of a row."""
        return self.X.shape[1]


@dataclass(frozen=True)
class Split:
    """Numbers of the rows that a classifier is fitted on, and of the rows that check it.

    ``train`` is in the order of the protocol.
    """

    train: Indices
    dev: Indices


@dataclass(frozen=True)
class EpochSchedule:
    """Passes over the rows in ``senteval``: between two checks, and before training ends."""

    epoch_size: int = 4
    max_epoch: int = 200


DEFAULT_SCHEDULE = EpochSchedule()


@dataclass(frozen=True)
class Fitted:
    """Fitted classifiers of F splits and R regularisation values, and their accuracies.

    A row of weights ends with the intercept.
    """

    weights: Tensor  # (F, R, k, d + 1)
    accuracy: Vector  # (F, R), a share of the split's dev rows


def predict_classes(rows: ProbeRows, at: Indices | None, weights: Tensor) -> Tensor:
    """Predict the class of each row with C classifiers: (C, rows).

    Args:
        rows: the rows.
        at: numbers of the rows to predict; None: all rows.
        weights: the classifiers, (C, k, d + 1).
    """
    flat = weights.flatten(0, 1)
    order = torch.arange(len(rows)) if at is None else torch.from_numpy(at)
    parts = []
    for piece in order.split(max(1, MAX_LOGITS // len(flat))):
        logits = torch.addmm(flat[:, -1], rows.X[piece], flat[:, :-1].T)
        parts.append(logits.view(len(piece), *weights.shape[:2]).argmax(2).T)
    return torch.cat(parts, dim=1)


def compute_accuracies(rows: ProbeRows, at: Indices, weights: Tensor) -> Vector:
    """Compute the share of the rows ``at`` that each classifier (C, k, d + 1) gets right, (C,)."""
    gold = rows.y[torch.from_numpy(at)]
    right = (predict_classes(rows, at, weights) == gold).sum(1).numpy()
    return np.asarray(1.0 * right / len(gold))


BATCH_ROWS = 64  # the toolkit's batch size
ADAM_OPTIONS: Any = {  # torch's defaults
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "fused": True,
    "amsgrad": False,
    "maximize": False,
}
ROW_MULTIPLE_FLOATS = 16  # rows of weights are padded to a multiple, for vector instructions

# Function of probabilities (f, r, k, b) and row numbers (f * b,): derivative of the loss by logits
ComputeError = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class State:
    """F x R classifiers in training.

    A row of ``weights`` has d weights, the intercept and padding. ``mean`` and ``square`` are
    Adam's moments of the gradient. ``decay`` times the weights is added to the gradient.
    """

    weights: Tensor  # (F, R, k, padded)
    mean: Tensor  # (F, R, k, padded)
    square: Tensor  # (F, R, k, padded)
    decay: Tensor  # (F, R, 1, 1)

    @classmethod
    def start(cls, dimension: int, classes: int, decay: NDArray[np.float64], seed: int) -> "State":
        """Return classifiers that all begin with torch's weights of a seeded linear layer.

        Args:
            dimension: number of features.
            classes: number of classes.
            decay: the weight decay of each classifier, (F, R).
            seed: seed of the first weights.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = torch.nn.Linear(dimension, classes)
        padded = math.ceil((dimension + 1) / ROW_MULTIPLE_FLOATS) * ROW_MULTIPLE_FLOATS
        first = torch.zeros(classes, padded)
        first[:, :dimension] = layer.weight.detach()
        first[:, dimension] = layer.bias.detach()
        weights = first.repeat(*decay.shape, 1, 1)
        per_classifier = torch.from_numpy(decay.astype(np.float32))[..., None, None]
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights), per_classifier)

    def take(self, at: tuple[Tensor, Tensor]) -> "State":
        """Return a copy of the classifiers at the numbers of folds and regularisation values."""
        return State(self.weights[at], self.mean[at], self.square[at], self.decay[at])

    def put(self, at: tuple[Tensor, Tensor], piece: "State") -> None:
        """Write weights and moments of a copy back to the numbers of folds and values."""
        self.weights[at] = piece.weights
        self.mean[at] = piece.mean
        self.square[at] = piece.square


def train(
    X: Tensor, state: State, orders: Iterable[Tensor], updates: Tensor, compute_error: ComputeError
) -> None:
    """Update classifiers in place by Adam, batch by batch of each pass.

    Args:
        X: features, (n, d).
        state: the (f, r) classifiers.
        orders: the row numbers of each pass, (f, n).
        updates: the number of updates so far, a float32 scalar that is counted up.
        compute_error: the derivative of a row's loss by the logits; the loss of a batch is the mean
            over its rows.
    """
    # Views in which one matrix product serves all classifiers of a fold
    f, r, k, padded = state.weights.shape
    weights = state.weights.view(f, r * k, padded)
    gradient = torch.empty_like(state.weights)
    flat_gradient = gradient.view(f, r * k, padded)

    # Space for the rows of a batch, with a feature of 1 for the intercept and padding
    gathered = torch.zeros(f * BATCH_ROWS, padded)
    gathered[:, X.shape[1]] = 1.0
    for order in orders:
        for batch in order.split(BATCH_ROWS, dim=1):
            # Gather the rows of the batch, and compute the logits
            size = batch.shape[1]
            at = batch.reshape(-1)
            torch.index_select(X, 0, at, out=gathered[: f * size, : X.shape[1]])
            rows = gathered[: f * size].view(f, size, padded)
            logits = torch.bmm(weights, rows.transpose(1, 2)).view(f, r, k, size)

            # The gradient of loss and weight decay, and Adam's update
            error = compute_error(torch.softmax(logits, dim=2), at).view(f, r * k, size)
            torch.mul(state.weights, state.decay, out=gradient)
            flat_gradient.baddbmm_(error, rows, alpha=1 / size)
            adam(
                [state.weights],
                [gradient],
                [state.mean],
                [state.square],
                [],
                [updates],
                **ADAM_OPTIONS,
            )


MAX_MISSES = 5  # checks without a better accuracy before a classifier stops
DEV_SHARE = 0.05  # share of the rows of a final fit that check it
BATCH_CACHE_BYTES = 2**20  # gathered rows of a batch, which should fit a processor's cache


@dataclass(frozen=True)
class SentEvalSolver:
    """Solver that trains classifiers by SentEval's Adam with early stopping.

    ``rows`` are the rows to train on, ``seed`` decides first weights and shuffles, and ``pace`` the
    number of passes.
    """

    rows: ProbeRows
    seed: int
    pace: EpochSchedule = DEFAULT_SCHEDULE

    def fit(
        self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None
    ) -> Fitted:
        """Fit a classifier for each split and value of ``grid``; dev rows decide when to stop.

        Args:
            splits: F splits; ``train`` numbers the solver's rows.
            grid: R values of the weight decay.
            dev: the rows that ``dev`` of a split numbers; None: the solver's rows.
        """
        values = np.tile(grid, (len(splits), 1))
        dev_rows = self.rows if dev is None else dev
        return self._train(splits, [0] * len(splits), values, dev_rows)

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """Fit a classifier for each list of row numbers at its weight decay: (F, k, d + 1).

        A random ``DEV_SHARE`` of the rows decides when to stop, and is not trained on.
        """
        splits = []
        for indices in lists:
            order = np.random.RandomState(self.seed).permutation(len(indices))
            cut = int(DEV_SHARE * len(indices))
            splits.append(Split(indices[order[cut:]], indices[order[:cut]]))
        drawn = [len(indices) for indices in lists]
        fitted = self._train(splits, drawn, np.array(values)[:, None], self.rows)
        return fitted.weights[:, 0]

    def _train(
        self, splits: Sequence[Split], drawn: Sequence[int], values: Vector, dev: ProbeRows
    ) -> Fitted:
        """Train F x R classifiers, and stop each classifier early.

        Args:
            splits: the F splits.
            drawn: for each split, the length of a permutation that the toolkit drew before
                training; 0: none.
            values: the weight decay of each classifier, (F, R).
            dev: the rows that ``dev`` of a split numbers.
        """
        width = self.rows.dimension + 1
        state = State.start(self.rows.dimension, self.rows.k, values, self.seed)
        courses = _make_courses(splits, drawn, self.seed)
        best = Fitted(state.weights[..., :width].clone(), np.full(values.shape, -1.0))
        misses = np.zeros(values.shape, dtype=int)
        live = np.ones(values.shape, dtype=bool)
        for _ in range(0, self.pace.max_epoch + 1, self.pace.epoch_size):
            # Pass over the train rows
            for course in courses:
                course.advance(self.rows, state, live, self.pace.epoch_size)

            # Keep classifiers that improved on the dev rows; stop those that missed too often
            for fold, split in enumerate(splits):
                running = np.flatnonzero(live[fold])
                if not len(running):
                    continue
                weights = state.weights[fold, running, :, :width]
                accuracy = compute_accuracies(dev, split.dev, weights)
                is_better = accuracy > best.accuracy[fold, running]
                missed = running[~is_better]
                best.accuracy[fold, running[is_better]] = accuracy[is_better]
                best.weights[fold, running[is_better]] = weights[is_better]
                live[fold, missed] = misses[fold, missed] < MAX_MISSES
                misses[fold, missed] += 1
            if not live.any():
                break
        return best


@dataclass(frozen=True)
class _Course:
    """Folds with equally many train rows, hence the same shuffles and number of updates.

    ``shuffles`` is the random state of the shuffles. ``updates`` counts Adam's updates.
    """

    shuffles: np.random.RandomState
    folds: Indices  # (f,) numbers of the folds
    train_rows: Tensor  # (f, n) row numbers
    updates: Tensor  # scalar

    def advance(
        self,
        rows: ProbeRows,
        state: State,
        live: NDArray[np.bool_],
        passes: int,
    ) -> None:
        """Train the classifiers that still run.

        Args:
            rows: the rows to train on.
            state: the classifiers of all folds, updated in place.
            live: whether each classifier still runs, (F, R).
            passes: number of passes over the train rows.
        """
        if not live[self.folds].any():
            return
        length = self.train_rows.shape[1]
        orders = [torch.from_numpy(self.shuffles.permutation(length)) for _ in range(passes)]
        size = max(1, BATCH_CACHE_BYTES // (4 * BATCH_ROWS * state.weights.shape[3]))
        for members, values in self._iter_pieces(live, size):
            at = torch.from_numpy(self.folds[members])[:, None], torch.from_numpy(values)
            piece = state.take(at)
            piece_rows = self.train_rows[torch.from_numpy(members)]
            piece_orders = (piece_rows[:, order] for order in orders)
            train(rows.X, piece, piece_orders, self.updates.clone(), make_cross_entropy(rows))
            state.put(at, piece)
        self.updates.add_(passes * math.ceil(length / BATCH_ROWS))

    def _iter_pieces(self, live: NDArray[np.bool_], size: int) -> Iterator[tuple[Indices, Indices]]:
        """Yield pieces of up to ``size`` folds with equally many running classifiers.

        A piece is the positions of its folds in ``folds``, (m,), and the numbers of the
        regularisation values that still run, (m, r). ``live`` is (F, R).
        """
        running = [np.flatnonzero(live[fold]) for fold in self.folds]
        counts = np.array([len(values) for values in running])
        for count in sorted(set(counts.tolist()) - {0}):
            members = np.flatnonzero(counts == count)
            for start in range(0, len(members), size):
                piece = members[start : start + size]
                yield piece, np.stack([running[member] for member in piece])


def _make_courses(splits: Sequence[Split], drawn: Sequence[int], seed: int) -> list[_Course]:
    """Return courses of the splits that have the same shuffles; arguments as of ``_train``."""
    folds: dict[tuple[int, int], list[int]] = {}
    for fold, (split, drawn_length) in enumerate(zip(splits, drawn, strict=True)):
        folds.setdefault((drawn_length, len(split.train)), []).append(fold)
    courses = []
    for (drawn_length, _), members in folds.items():
        shuffles = np.random.RandomState(seed)
        if drawn_length:
            shuffles.permutation(drawn_length)
        train_rows = torch.from_numpy(np.stack([splits[fold].train for fold in members]))
        courses.append(_Course(shuffles, np.array(members), train_rows, torch.zeros(())))
    return courses


def make_cross_entropy(rows: ProbeRows) -> ComputeError:
    """Return the function that computes the derivative of the rows' cross-entropy by logits."""
    one_hot = torch.eye(rows.k)

    def compute_error(p: Tensor, at: Tensor) -> Tensor:
        gold = one_hot.index_select(0, rows.y.index_select(0, at))
        return p.sub_(gold.view(len(p), 1, -1, rows.k).transpose(2, 3))

    return compute_error
