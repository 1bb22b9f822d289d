"""Probes: how well a linear classifier on frozen embeddings solves a task, under SentEval's protocols.

Splits, grid, choice and rounding are the toolkit's (`tools/validation.py`) in both modes. Rows must come in the
toolkit's order (`eval.scoring.transfer` sorts them), which folds and shuffles depend on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from eval.scoring.probe_lbfgs import ConvexSolver
from eval.scoring.probe_senteval import (
    DEV_SHARE,
    GRID,
    PACE,
    Classes,
    EpochSchedule,
    Features,
    Fitted,
    Indices,
    ProbeRows,
    SentEvalSolver,
    Split,
    predictions,
)
from hub.errors import InputError

Mode = Literal["senteval", "lbfgs"]
SOLVERS: dict[Mode, type[SentEvalSolver | ConvexSolver]] = {"senteval": SentEvalSolver, "lbfgs": ConvexSolver}
SPLIT_SEED = 1111  # of nested folds, whatever the seed of the classifiers
FOLDS = 10
UNREGULARISED = (1e-9,)  # SNLI
SNLI_PACE = EpochSchedule(epoch_size=1, max_epoch=15)


@dataclass(frozen=True)
class Fit:
    """A probe's outcome. ``accuracy`` x 100 is rounded where the toolkit rounds: per fold, then their mean."""

    predicted: Classes  # (scored rows,)
    fold: Indices  # (scored rows,), zeros without folds
    accuracy: float
    dev_accuracy: float
    chosen: tuple[float, ...]  # regularisation, one per final classifier


@dataclass(frozen=True)
class Choice:
    """The first best value of the grid, its mean accuracy x 100 over the splits, and its classifier of each split."""

    value: float
    accuracy: float
    splits: Sequence[Split]
    weights: Tensor  # (F, k, d + 1)

    @classmethod
    def of(cls, fitted: Fitted, splits: Sequence[Split], grid: Sequence[float], start: int = 0) -> "Choice":
        """From the fits of the splits that begin at ``start``; accuracies are rounded as the toolkit does."""
        own = slice(start, start + len(splits))
        columns = fitted.accuracy[own].T
        scores = [float(round(100 * np.mean(np.ascontiguousarray(column)), 2)) for column in columns]
        best = int(np.argmax(scores))
        return cls(grid[best], scores[best], splits, fitted.weights[own, best])

    def check(self, rows: ProbeRows, predicted: Classes) -> None:
        """Write the classes that each split's classifier gives its dev rows into ``predicted``."""
        for split, weights in zip(self.splits, self.weights, strict=True):
            predicted[split.dev] = predictions(rows, split.dev, weights[None])[0].numpy()


def nested_kfold(X: Features, y: Classes, mode: Mode = "senteval", folds: int = FOLDS, seed: int = 1111) -> Fit:
    """MR, CR, SUBJ, MPQA: ``folds`` test folds; in each, ``folds`` folds of the other rows choose the regularisation.

    X: (n, d), y: (n,) classes 0 … k-1. Raises InputError for rows that cannot be folded or are not finite.
    """
    rows, outer, choices = _nested(X, y, mode, folds, seed)
    chosen = tuple(choice.value for choice in choices)
    weights = SOLVERS[mode](rows, seed).refit([held.train for held in outer], chosen)
    predicted, fold, scores = np.empty_like(y), np.empty_like(y), []
    for number, held in enumerate(outer):
        predicted[held.dev] = predictions(rows, held.dev, weights[number, None])[0].numpy()
        fold[held.dev] = number
        scores.append(_percent(predicted[held.dev], y[held.dev]))
    return Fit(predicted, fold, float(round(np.mean(scores), 2)), _mean(choices), chosen)


def nested_validation(X: Features, y: Classes, mode: Mode = "senteval", folds: int = FOLDS, seed: int = 1111) -> Fit:
    """What ``nested_kfold`` chooses by: the mean of the best inner accuracies; no classifier is fitted for a test fold.

    A row is checked once in each test fold but its own; ``predicted`` is of the first of them.
    """
    rows, _, choices = _nested(X, y, mode, folds, seed)
    predicted, mean = np.empty_like(y), _mean(choices)
    for choice in reversed(choices):
        choice.check(rows, predicted)
    return Fit(predicted, np.zeros_like(y), mean, mean, tuple(choice.value for choice in choices))


def _nested(X: Features, y: Classes, mode: Mode, folds: int, seed: int) -> tuple[ProbeRows, list[Split], list[Choice]]:
    """The rows, the test folds, and what is chosen on the other rows of each."""
    (rows,) = checked((X, y))
    enough(y, folds, nested=True)
    outer = _folds(y, np.arange(len(y)), folds, SPLIT_SEED)
    inner = [_folds(y, held.train, folds, SPLIT_SEED) for held in outer]
    fitted = SOLVERS[mode](rows, seed).fit([split for splits in inner for split in splits], GRID)
    return rows, outer, [Choice.of(fitted, splits, GRID, number * folds) for number, splits in enumerate(inner)]


def _mean(choices: Sequence[Choice]) -> float:
    return float(round(np.mean([choice.accuracy for choice in choices]), 2))


def cross_validated(
    X: Features, y: Classes, X_test: Features, y_test: Classes, mode: Mode = "senteval", folds: int = FOLDS,
    seed: int = 1111,
) -> Fit:  # fmt: skip
    """TREC, MRPC: ``folds`` folds of the train rows choose the regularisation, one classifier of all scores the test.

    Raises InputError as `nested_kfold`.
    """
    rows, test = checked((X, y), (X_test, y_test))
    choice = _crossed(rows, y, mode, folds, seed)
    weights = SOLVERS[mode](rows, seed).refit([np.arange(len(y))], [choice.value])
    return _scored(test, weights, choice)


def cross_validation(X: Features, y: Classes, mode: Mode = "senteval", folds: int = FOLDS, seed: int = 1111) -> Fit:
    """What ``cross_validated`` chooses by: the best mean accuracy over folds of the train rows, with their classes."""
    (rows,) = checked((X, y))
    choice, predicted = _crossed(rows, y, mode, folds, seed), np.empty_like(y)
    choice.check(rows, predicted)
    return Fit(predicted, np.zeros_like(y), choice.accuracy, choice.accuracy, (choice.value,))


def _crossed(rows: ProbeRows, y: Classes, mode: Mode, folds: int, seed: int) -> Choice:
    enough(y, folds)
    splits = _folds(y, np.arange(len(y)), folds, seed)
    return Choice.of(SOLVERS[mode](rows, seed).fit(splits, GRID), splits, GRID)


def held_out(
    X: Features, y: Classes, X_dev: Features, y_dev: Classes, X_test: Features, y_test: Classes,
    mode: Mode = "senteval", grid: Sequence[float] = GRID, seed: int = 1111, pace: EpochSchedule = PACE,
) -> Fit:  # fmt: skip
    """SST2, SST5, SICK-E, SNLI, probing tasks: dev rows choose the regularisation and, in ``senteval``, when to stop.

    The toolkit fits the chosen classifier a second time, from the same seed on the same rows; here it is kept. ``grid``
    is `UNREGULARISED` and ``pace`` `SNLI_PACE` for SNLI. Raises InputError as `nested_kfold`.
    """
    rows, dev, test = checked((X, y), (X_dev, y_dev), (X_test, y_test))
    every = Split(np.arange(len(y)), np.arange(len(y_dev)))
    choice = Choice.of(SOLVERS[mode](rows, seed, pace).fit([every], grid, dev), [every], grid)
    return _scored(test, choice.weights, choice)


def checked(*sets: tuple[Features, Classes]) -> list[ProbeRows]:
    """The sets as tensors; the first is trained on. Raises InputError, naming the set, for what no probe can take."""
    classes = np.unique(sets[0][1])
    for name, (X, y) in zip(("train", "test") if len(sets) < 3 else ("train", "dev", "test"), sets, strict=False):
        place = f"probe, {name} rows"
        if X.ndim != 2 or len(X) != len(y) or len(y) == 0 or X.shape[1] != sets[0][0].shape[1]:
            raise InputError(place, f"features {X.shape} do not fit {y.shape} classes and the train features")
        broken = ~np.isfinite(X.sum(axis=1, dtype=np.float64))  # no mask as large as X
        if broken.any():
            raise InputError(place, f"{int(broken.sum())} rows hold NaN or infinity", hint="is the encoder sound?")
        if not np.isin(y, classes).all():
            raise InputError(place, f"class {int(y[~np.isin(y, classes)][0])} is not among the train rows")
    if not np.array_equal(classes, np.arange(len(classes))) or len(classes) < 2:
        found = f"their classes are {classes[:9].tolist()}"
        raise InputError("probe, train rows", found, allowed="0 … k-1, two or more")
    return [ProbeRows.of(X, y, len(classes)) for X, y in sets]


def enough(y: Classes, folds: int, nested: bool = False) -> None:
    """Raises InputError when a class would be missing in a fold, or a final fit would have no dev rows."""
    rarest = int(np.bincount(y).min())
    needed = -(-folds * folds // (folds - 1)) if nested else folds
    if folds < 2 or rarest < needed:
        raise InputError("probe", f"a class has {rarest} rows, {folds} folds", allowed=f"{needed} rows and more")
    if DEV_SHARE * (len(y) * (folds - 1) // folds if nested else len(y)) < 1:
        raise InputError("probe", f"{len(y)} rows leave no dev rows", allowed=f"a share of {DEV_SHARE} must be a row")


def _folds(y: Classes, rows: Indices, folds: int, seed: int) -> list[Split]:
    """Stratified folds of some rows, as row numbers of the whole."""
    cut = StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows, y[rows])
    return [Split(rows[train], rows[dev]) for train, dev in cut]


def _percent(predicted: Classes, gold: Classes) -> float:
    return round(100 * (1.0 * int((predicted == gold).sum()) / len(gold)), 2)


def _scored(test: ProbeRows, weights: Tensor, choice: Choice) -> Fit:
    """What one final classifier (1, k, d + 1) makes of the test rows."""
    predicted = predictions(test, None, weights)[0].numpy()
    accuracy = _percent(predicted, test.y.numpy())
    return Fit(predicted, np.zeros_like(predicted), accuracy, choice.accuracy, (choice.value,))
