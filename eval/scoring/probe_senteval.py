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
    """Indices of the rows that a classifier is fitted on, and of the rows that check it.

    ``train`` keeps the order of the protocol, on which the shuffles depend. ``dev`` may index
    another set of rows than ``train``.
    """

    train: Indices
    dev: Indices


@dataclass(frozen=True)
class EpochSchedule:
    """Passes over the train rows: ``epoch_size`` between two checks, ``max_epoch`` in all.

    The names are the toolkit's.
    """

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
    """Predict the index of each row's class with C classifiers: (C, rows).

    Args:
        rows: the rows.
        at: indices of the rows to predict; None: all rows.
        weights: the classifiers, (C, k, d + 1).
    """
    class_vectors = weights.flatten(0, 1)  # (C * k, d + 1)
    order = torch.arange(len(rows)) if at is None else torch.from_numpy(at)
    chunk_rows = max(1, MAX_LOGITS // len(class_vectors))
    predicted = []
    for chunk in order.split(chunk_rows):
        intercepts = class_vectors[:, -1]
        logits = torch.addmm(intercepts, rows.X[chunk], class_vectors[:, :-1].T)
        per_classifier = logits.view(len(chunk), *weights.shape[:2])
        predicted.append(per_classifier.argmax(2).T)
    return torch.cat(predicted, dim=1)


def compute_accuracies(rows: ProbeRows, at: Indices, weights: Tensor) -> Vector:
    """Compute the accuracy, 0 to 1, of C classifiers on some of the rows: (C,).

    ``at``: indices of these rows. ``weights``: the classifiers, (C, k, d + 1).
    """
    gold = rows.y[torch.from_numpy(at)]
    right = (predict_classes(rows, at, weights) == gold).sum(1).numpy()
    return np.asarray(right / len(gold))


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
ROW_MULTIPLE_FLOATS = 16  # a row of weights is padded to a multiple, for vector instructions

# Function from probabilities (f, r, k, b) and row indices (f * b,) to the derivative of each row's
# loss by the logits (f, r, k, b)
ComputeError = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class State:
    """F x R classifiers in training, one for each fold and regularisation value.

    A row of ``weights`` has d weights, the intercept and padding. ``mean`` and ``square`` are
    Adam's moments of the gradient. ``decay`` times the weights is added to the gradient.
    """

    weights: Tensor  # (F, R, k, padded)
    mean: Tensor  # (F, R, k, padded)
    square: Tensor  # (F, R, k, padded)
    decay: Tensor  # (F, R, 1, 1)

    @classmethod
    def start(cls, dimension: int, classes: int, decay: NDArray[np.float64], seed: int) -> "State":
        """Return F x R classifiers with the same initial weights, and moments of 0.

        The weights are those of a ``torch.nn.Linear`` after ``torch.manual_seed(seed)``, as in the
        toolkit. The random state of torch is restored: only that of the CPU is used.

        Args:
            dimension: number of features.
            classes: number of classes.
            decay: the weight decay of each classifier, (F, R).
            seed: seed of the initial weights.
        """
        # Draw the initial weights, and pad their rows
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            layer = torch.nn.Linear(dimension, classes)
        padded = math.ceil((dimension + 1) / ROW_MULTIPLE_FLOATS) * ROW_MULTIPLE_FLOATS
        initial = torch.zeros(classes, padded)
        initial[:, :dimension] = layer.weight.detach()
        initial[:, dimension] = layer.bias.detach()

        # Give every classifier a copy
        weights = initial.repeat(*decay.shape, 1, 1)
        decay_tensor = torch.from_numpy(decay.astype(np.float32))[..., None, None]
        return cls(weights, torch.zeros_like(weights), torch.zeros_like(weights), decay_tensor)

    def copy_part(self, at: tuple[Tensor, Tensor]) -> "State":
        """Return a copy of some of the classifiers.

        ``at``: indices of folds (m, 1), and of regularisation values (m, r), which broadcast.
        """
        return State(self.weights[at], self.mean[at], self.square[at], self.decay[at])

    def write_part(self, at: tuple[Tensor, Tensor], piece: "State") -> None:
        """Write the weights and moments of a copy back; ``at`` is as in ``copy_part``."""
        self.weights[at] = piece.weights
        self.mean[at] = piece.mean
        self.square[at] = piece.square


def train(
    X: Tensor, state: State, orders: Iterable[Tensor], updates: Tensor, compute_error: ComputeError
) -> None:
    """Update classifiers by Adam, in one step for each batch of each pass.

    Args:
        X: features, (N, d).
        state: the (f, r) classifiers of f folds, updated in place.
        orders: for each pass the row indices of each fold in training order, (f, n).
        updates: the number of updates so far, a float32 scalar that is increased in place.
        compute_error: the derivative of a row's loss by the logits; the loss of a batch is the mean
            over its rows.
    """
    # One matrix product serves the r * k weight rows of all classifiers of a fold
    f, r, k, padded = state.weights.shape
    weights = state.weights.view(f, r * k, padded)
    gradient = torch.empty_like(state.weights)
    flat_gradient = gradient.view(f, r * k, padded)

    # A buffer for the rows of a batch: the features, 1 for the intercept, and 0 as padding
    buffer = torch.zeros(f * BATCH_ROWS, padded)
    buffer[:, X.shape[1]] = 1.0
    for order in orders:
        for batch in order.split(BATCH_ROWS, dim=1):
            # Gather the rows of the batch, and compute the logits
            size = batch.shape[1]
            at = batch.reshape(-1)
            torch.index_select(X, 0, at, out=buffer[: f * size, : X.shape[1]])
            rows = buffer[: f * size].view(f, size, padded)
            logits = torch.bmm(weights, rows.transpose(1, 2)).view(f, r, k, size)

            # Compute the gradient of loss and weight decay, and update by Adam
            error = compute_error(torch.softmax(logits, dim=2), at).view(f, r * k, size)
            torch.mul(state.weights, state.decay, out=gradient)
            flat_gradient.baddbmm_(error, rows, alpha=1 / size)
            adam(
                [state.weights],
                [gradient],
                [state.mean],
                [state.square],
                [],  # moments of AMSGrad, which is off
                [updates],
                **ADAM_OPTIONS,
            )


MAX_MISSES = 5  # checks without a better accuracy that a classifier survives
DEV_SHARE = 0.05  # share of the rows of a final fit that check it
BATCH_CACHE_BYTES = 2**20  # size of a batch's rows, which should fit a processor's cache


@dataclass(frozen=True)
class SentEvalSolver:
    """Solver that trains classifiers by SentEval's Adam with early stopping.

    ``rows`` are the rows to train on. ``seed`` decides initial weights and shuffles, ``pace`` the
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
            splits: F splits, each with indices ``train`` of the solver's rows, and ``dev`` of the
                dev rows.
            grid: R values of the weight decay.
            dev: the dev rows; None: the solver's rows.
        """
        decay = np.tile(grid, (len(splits), 1))
        # The toolkit draws no permutation before this training
        drawn = [0] * len(splits)
        dev_rows = self.rows if dev is None else dev
        return self._train(splits, drawn, decay, dev_rows)

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """Fit a classifier for each of F lists of row indices at its weight decay: (F, k, d + 1).

        A random ``DEV_SHARE`` of a list decides when to stop, and is not trained on. The shuffles
        of training follow this draw in the same random stream, as in the toolkit.
        """
        splits = []
        for indices in lists:
            order = np.random.RandomState(self.seed).permutation(len(indices))
            dev_count = int(DEV_SHARE * len(indices))
            splits.append(Split(indices[order[dev_count:]], indices[order[:dev_count]]))
        drawn = [len(indices) for indices in lists]
        decay = np.array(values)[:, None]
        fitted = self._train(splits, drawn, decay, self.rows)
        return fitted.weights[:, 0]

    def _train(
        self, splits: Sequence[Split], drawn: Sequence[int], decay: Vector, dev: ProbeRows
    ) -> Fitted:
        """Train F x R classifiers, and return the best state of each by its dev accuracy.

        A classifier stops when more than ``MAX_MISSES`` checks, consecutive or not, gave no better
        accuracy.

        Args:
            splits: the F splits.
            drawn: for each split, the length of the permutation that the toolkit draws from the
                random stream before training; 0: none.
            decay: the weight decay of each classifier, (F, R).
            dev: the dev rows, which ``dev`` of a split indexes.
        """
        # Start all classifiers from the same weights
        width = self.rows.dimension + 1
        state = State.start(self.rows.dimension, self.rows.k, decay, self.seed)
        courses = _make_courses(splits, drawn, self.seed)
        # Start at an accuracy of -1, so that the first check is better
        initial_weights = state.weights[..., :width].clone()
        best = Fitted(initial_weights, np.full(decay.shape, -1.0))
        misses = np.zeros(decay.shape, dtype=int)
        is_live = np.ones(decay.shape, dtype=bool)

        # As in the toolkit, the last check may come after more than ``max_epoch`` passes
        for _ in range(0, self.pace.max_epoch + 1, self.pace.epoch_size):
            # Pass over the train rows
            for course in courses:
                course.train_passes(self.rows, state, is_live, self.pace.epoch_size)

            # Keep classifiers that improved on the dev rows; stop those that missed too often
            for fold, split in enumerate(splits):
                running = np.flatnonzero(is_live[fold])
                if not len(running):
                    continue
                weights = state.weights[fold, running, :, :width]
                accuracy = compute_accuracies(dev, split.dev, weights)
                is_better = accuracy > best.accuracy[fold, running]
                missed = running[~is_better]
                best.accuracy[fold, running[is_better]] = accuracy[is_better]
                best.weights[fold, running[is_better]] = weights[is_better]
                is_live[fold, missed] = misses[fold, missed] < MAX_MISSES
                misses[fold, missed] += 1
            if not is_live.any():
                break
        return best


@dataclass(frozen=True)
class _Course:
    """Folds that train with the same shuffles, and so with the same number of updates.

    ``shuffles`` is the random state of the shuffles. ``updates`` counts Adam's updates.
    """

    shuffles: np.random.RandomState
    folds: Indices  # (f,) indices of the folds
    train_rows: Tensor  # (f, n) row indices
    updates: Tensor  # scalar

    def train_passes(
        self,
        rows: ProbeRows,
        state: State,
        is_live: NDArray[np.bool_],
        passes: int,
    ) -> None:
        """Train the classifiers of the course that have not stopped, for some passes.

        Args:
            rows: the rows to train on.
            state: the classifiers of all folds, updated in place.
            is_live: whether each classifier still trains, (F, R).
            passes: number of passes over the train rows.
        """
        if not is_live[self.folds].any():
            return

        # Draw the shuffles of the passes, which all folds of the course have in common
        length = self.train_rows.shape[1]
        orders = [torch.from_numpy(self.shuffles.permutation(length)) for _ in range(passes)]

        # Train pieces of so few folds that one batch of all of them fits the cache. Each piece
        # starts from the same number of updates, so it gets a copy.
        batch_bytes = 4 * BATCH_ROWS * state.weights.shape[3]  # 4 bytes a float32
        max_folds = max(1, BATCH_CACHE_BYTES // batch_bytes)
        for members, values in self._iter_pieces(is_live, max_folds):
            at = torch.from_numpy(self.folds[members])[:, None], torch.from_numpy(values)
            piece = state.copy_part(at)
            piece_rows = self.train_rows[torch.from_numpy(members)]
            piece_orders = (piece_rows[:, order] for order in orders)
            train(rows.X, piece, piece_orders, self.updates.clone(), make_cross_entropy(rows))
            state.write_part(at, piece)
        self.updates.add_(passes * math.ceil(length / BATCH_ROWS))

    def _iter_pieces(
        self, is_live: NDArray[np.bool_], max_folds: int
    ) -> Iterator[tuple[Indices, Indices]]:
        """Yield pieces of up to ``max_folds`` folds with the same number of live classifiers.

        A piece is the positions of its m folds in ``folds``, (m,), and the indices of their live
        regularisation values, (m, r). Folds without a live classifier are in no piece. ``is_live``
        is (F, R).
        """
        running = [np.flatnonzero(is_live[fold]) for fold in self.folds]
        counts = np.array([len(values) for values in running])
        nonzero_counts = set(counts.tolist()) - {0}
        for count in sorted(nonzero_counts):
            members = np.flatnonzero(counts == count)
            for start in range(0, len(members), max_folds):
                piece = members[start : start + max_folds]
                yield piece, np.stack([running[member] for member in piece])


def _make_courses(splits: Sequence[Split], drawn: Sequence[int], seed: int) -> list[_Course]:
    """Group the splits that have the same shuffles into courses.

    Args:
        splits: the splits of all folds.
        drawn: for each split, the length of the permutation that is drawn before its shuffles; 0:
            none.
        seed: seed of the random stream of each course.
    """
    # Shuffles depend on the length of the earlier permutation, and on the number of train rows
    folds_by_lengths: dict[tuple[int, int], list[int]] = {}
    for fold, (split, drawn_length) in enumerate(zip(splits, drawn, strict=True)):
        lengths = (drawn_length, len(split.train))
        folds_by_lengths.setdefault(lengths, []).append(fold)

    # Make the courses, each with its own random stream
    courses = []
    for (drawn_length, _), folds in folds_by_lengths.items():
        shuffles = np.random.RandomState(seed)
        if drawn_length:
            shuffles.permutation(drawn_length)  # only advances the stream, as in the toolkit
        train_rows = torch.from_numpy(np.stack([splits[fold].train for fold in folds]))
        courses.append(_Course(shuffles, np.array(folds), train_rows, updates=torch.zeros(())))
    return courses


def make_cross_entropy(rows: ProbeRows) -> ComputeError:
    """Return the function that computes the derivative of the rows' cross-entropy by the logits.

    The derivative (f, r, k, b) is the probabilities minus the one-hot classes; it overwrites the
    probabilities.
    """
    one_hot = torch.eye(rows.k)

    def compute_error(p: Tensor, at: Tensor) -> Tensor:
        # Bring the one-hot classes (f * b, k) to the axes of p: (f, 1, k, b)
        classes = rows.y.index_select(0, at)
        gold = one_hot.index_select(0, classes).view(len(p), 1, -1, rows.k)
        return p.sub_(gold.transpose(2, 3))

    return compute_error
