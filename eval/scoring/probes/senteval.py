"""SentEval's own logistic regression, trained for all folds and regularisation values of a task together.

The toolkit (Conneau and Kiela 2018; `tools/classifier.py`) trains one torch module after the other: Adam on the mean
cross-entropy of batches of 64, weight decay added to the gradient (of the intercept too), a check on the dev rows after
every four passes, an end at the sixth check without a new best (misses are never forgotten) or after 204 passes, the
weights of the best check. SNLI is checked after every pass and ends after 16 at the latest. Every classifier is seeded
anew, so all start from the same weights, and those with equally many rows see the same shuffles. (It sets
``size_average = False`` on a finished loss. torch 0.4.0 and older heeded that and took the batch's sum, beside which
weight decay is 64 times weaker; newer ones take the mean. So do we.)

Here folds are stacked in pieces that fit the processor's cache, and a classifier leaves when it stops. Initial weights,
shuffles, batches and updates are the toolkit's, sums differ in the last bits alone. Beside the rows it needs four times
the weights, the row numbers of all folds and some MiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.scoring.probes.adam import BATCH_SIZE, Error, State, train
from eval.scoring.probes.problem import PACE, EpochSchedule, Fitted, Indices, ProbeRows, Split, Vector, accuracies

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
