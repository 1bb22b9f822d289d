"""Probes: accuracy of a linear classifier on frozen embeddings, by SentEval's protocols.

Splits, grid, choice and rounding are the toolkit's (`tools/validation.py`) in both modes. Folds and
shuffles depend on the order of the rows: rows must have the toolkit's order
(`sts_dino.eval.scoring.transfer` sorts them).
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits
from torch import Tensor

from sts_dino.eval.scoring.probe_senteval import (
    DEFAULT_SCHEDULE,
    DEV_SHARE,
    WEIGHT_DECAYS,
    Classes,
    EpochSchedule,
    Features,
    Fitted,
    ProbeRows,
    SentEvalSolver,
    Split,
    compute_accuracies,
    predict_classes,
)
from sts_dino.eval.tasks.rows import Indices
from sts_dino.eval.tasks.task import Mode
from sts_dino.hub.errors import InputError, RunError

GRADIENT_TOLERANCE = 1e-6  # largest number in the gradient at the optimum
MAX_ITERATIONS = 20_000


@dataclass(frozen=True)
class ConvexSolver:
    """Solver that finds the optimum of logistic regression by scikit-learn's L-BFGS, in float32.

    Objective: mean cross-entropy + l2/2 (|W|² + |b|²) over the k x (d + 1) weights. SentEval's Adam
    follows the gradient of the same objective. In scikit-learn's terms C = 1 / (n l2), with the
    intercept as a column of ones. ``seed`` and ``pace`` are unused: both solvers have the same
    fields.
    """

    rows: ProbeRows
    seed: int
    pace: EpochSchedule = DEFAULT_SCHEDULE

    def fit(
        self, splits: Sequence[Split], grid: Sequence[float], dev: ProbeRows | None = None
    ) -> Fitted:
        """Find the optimum for each split and value of ``grid``, with accuracies on the dev rows.

        Args:
            splits: F splits, each with indices ``train`` of the solver's rows, and ``dev`` of the
                dev rows.
            grid: R values of the l2 regularisation.
            dev: the dev rows; None: the solver's rows.

        Raises RunError when a fit does not converge.
        """
        dev_rows = self.rows if dev is None else dev
        weights = []
        accuracies = []
        for split in splits:
            optima = self._solve(split.train, grid)
            split_weights = torch.stack([optima[l2] for l2 in grid])
            weights.append(split_weights)
            accuracies.append(compute_accuracies(dev_rows, split.dev, split_weights))
        return Fitted(torch.stack(weights), np.stack(accuracies))

    def refit(self, lists: Sequence[Indices], values: Sequence[float]) -> Tensor:
        """Find the optimum for each of F lists of row indices at its l2 value: (F, k, d + 1).

        Raises RunError when a fit does not converge.
        """
        optima = []
        for indices, l2 in zip(lists, values, strict=True):
            optima.append(self._solve(indices, [l2])[l2])
        return torch.stack(optima)

    def _solve(self, indices: Indices, grid: Sequence[float]) -> dict[float, Tensor]:
        """Return l2 value → optimum (k, d + 1), fitted on the rows ``indices``.

        The search for a value starts at the optimum of the next larger value. It also ends where
        float32 cannot represent a better point. Raises RunError after ``MAX_ITERATIONS``.
        """
        # The intercept is the weight of a column of ones, so it is regularised, too
        X = np.ones((len(indices), self.rows.dimension + 1), dtype=np.float32)
        X[:, :-1] = self.rows.X.numpy()[indices]
        y = self.rows.y.numpy()[indices]
        model = LogisticRegression(
            fit_intercept=False, tol=GRADIENT_TOLERANCE, max_iter=MAX_ITERATIONS, warm_start=True
        )
        # For two classes scikit-learn fits one vector, the difference w of the two vectors w/2 and
        # -w/2; their penalty is half of that of w, so C is twice as large
        is_binary = self.rows.k == 2
        scale = 2 if is_binary else 1
        optima = {}
        # Threads slow products of few rows, and their number changes the last bits. A search that
        # ends at float32's precision warns without need.
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore", ConvergenceWarning)
            for l2 in sorted(set(grid), reverse=True):
                model.set_params(C=scale / (len(y) * l2))
                model.fit(X, y)
                if model.n_iter_[0] >= MAX_ITERATIONS:
                    raise RunError(
                        "probe", f"no convergence at l2 {l2:g} in {MAX_ITERATIONS} iterations"
                    )
                weights = torch.from_numpy(model.coef_.astype(np.float32))
                if is_binary:
                    weights = torch.cat([-weights / 2, weights / 2])
                optima[l2] = weights
        return optima


SOLVERS: dict[Mode, type[SentEvalSolver | ConvexSolver]] = {
    "senteval": SentEvalSolver,
    "lbfgs": ConvexSolver,
}
NESTED_FOLD_SEED = 1111  # the toolkit's seed of nested folds, for every seed of the classifiers
# Features (n, d), and classes (n,) from 0 to k-1
LabelledRows = tuple[Features, Classes]


@dataclass(frozen=True)
class ProbeSettings:
    """Settings of a probe.

    ``mode``: the solver. ``seed``: seed of initial weights, of shuffles, and of folds that are not
    nested. ``folds``: number of folds that choose the regularisation, and of nested test folds.
    ``grid``: values of the regularisation. ``pace``: number of passes in the mode ``senteval``.
    """

    mode: Mode = "senteval"
    seed: int = 1111
    folds: int = 10
    grid: Sequence[float] = WEIGHT_DECAYS
    pace: EpochSchedule = DEFAULT_SCHEDULE

    def make_solver(self, rows: ProbeRows) -> SentEvalSolver | ConvexSolver:
        """Return the solver of the mode for ``rows``."""
        return SOLVERS[self.mode](rows, self.seed, self.pace)


SNLI_GRID = (1e-9,)  # in effect no regularisation
SNLI_SCHEDULE = EpochSchedule(epoch_size=1, max_epoch=15)


@dataclass(frozen=True)
class Fit:
    """Outcome of a probe.

    ``predicted`` has the index of the predicted class of each scored row, in their order.
    ``accuracy`` is over the scored rows, ``dev_accuracy`` over the rows that choose the
    regularisation. Both are x 100, rounded to two decimals as in the toolkit.
    ``chosen`` has the regularisation of each final classifier.
    """

    predicted: Classes  # (n,)
    accuracy: float
    dev_accuracy: float
    chosen: tuple[float, ...]


@dataclass(frozen=True)
class Choice:
    """The chosen regularisation: the first value of the grid with the best mean dev accuracy.

    ``accuracy`` is this mean over the F splits, x 100; ``weights`` are the classifiers of the
    splits at the chosen value.
    """

    value: float
    accuracy: float
    splits: Sequence[Split]
    weights: Tensor  # (F, k, d + 1)

    @classmethod
    def from_fits(cls, fitted: Fitted, splits: Sequence[Split], grid: Sequence[float]) -> "Choice":
        """Choose among the R values of ``grid`` by the rounded mean accuracies of the F splits."""
        # A mean over contiguous numbers has the bits of the toolkit's mean over a list
        columns = np.ascontiguousarray(fitted.accuracy.T)
        scores = [float(round(100 * np.mean(column), 2)) for column in columns]
        best = int(np.argmax(scores))
        return cls(grid[best], scores[best], splits, fitted.weights[:, best])

    def predict_dev_rows(self, rows: ProbeRows, predicted: Classes) -> None:
        """Write the predicted class of each split's dev rows into ``predicted``, (n,)."""
        for split, weights in zip(self.splits, self.weights, strict=True):
            predicted[split.dev] = predict_classes(rows, split.dev, weights[None])[0].numpy()


def score_nested_folds(rows: LabelledRows, settings: ProbeSettings) -> Fit:
    """Score MR, CR, SUBJ or MPQA by nested cross-validation.

    For each test fold, folds of the rows outside choose the regularisation. Raises the InputErrors
    of ``check_sets`` and ``require_enough_rows``; in the mode ``lbfgs`` RunError when a fit does
    not converge.
    """
    _, y = rows
    tensors, outer, choices = _choose_nested(rows, settings)

    # Fit a classifier on all rows outside each test fold
    chosen = tuple(choice.value for choice in choices)
    weights = settings.make_solver(tensors).refit([fold.train for fold in outer], chosen)

    # Score each test fold with its classifier
    predicted = np.empty_like(y)
    scores = []
    for fold, fold_weights in zip(outer, weights, strict=True):
        predicted[fold.dev] = predict_classes(tensors, fold.dev, fold_weights[None])[0].numpy()
        scores.append(_compute_percent(predicted[fold.dev], y[fold.dev]))
    accuracy = float(round(np.mean(scores), 2))
    return Fit(predicted, accuracy, _compute_mean_accuracy(choices), chosen)


def validate_nested_folds(rows: LabelledRows, settings: ProbeSettings) -> Fit:
    """Score by the mean, over test folds, of the best mean accuracy on the inner folds.

    ``score_nested_folds`` chooses the regularisation by these accuracies. No test fold is scored.
    Every row is a dev row once for each test fold that it is not in; ``predicted`` has its class
    from the first of these test folds. Raises the errors of ``score_nested_folds``.
    """
    tensors, _, choices = _choose_nested(rows, settings)
    predicted = np.empty_like(rows[1])
    # In reverse order, so that the first test fold overwrites the later ones
    for choice in reversed(choices):
        choice.predict_dev_rows(tensors, predicted)
    mean = _compute_mean_accuracy(choices)
    return Fit(predicted, mean, mean, tuple(choice.value for choice in choices))


def _choose_nested(
    rows: LabelledRows, settings: ProbeSettings
) -> tuple[ProbeRows, list[Split], list[Choice]]:
    """Return the rows as tensors, the test folds, and the choice for each test fold.

    A choice uses only the rows outside of its test fold. Raises the errors of
    ``score_nested_folds``.
    """
    _, y = rows
    folds = settings.folds
    (tensors,) = check_sets(rows)
    require_enough_rows(y, folds, nested=True)

    # Fit the inner folds of all test folds at once
    outer = _make_folds(y, np.arange(len(y)), folds, NESTED_FOLD_SEED)
    inner: list[Split] = []
    for fold in outer:
        inner += _make_folds(y, fold.train, folds, NESTED_FOLD_SEED)
    fitted = settings.make_solver(tensors).fit(inner, settings.grid)

    # Choose the regularisation of each test fold by its inner folds
    choices = []
    for start in range(0, len(inner), folds):
        of_test_fold = slice(start, start + folds)
        inner_fits = Fitted(fitted.weights[of_test_fold], fitted.accuracy[of_test_fold])
        choices.append(Choice.from_fits(inner_fits, inner[of_test_fold], settings.grid))
    return tensors, outer, choices


def _compute_mean_accuracy(choices: Sequence[Choice]) -> float:
    """Compute the mean of the choices' accuracies x 100, to two decimals as in the toolkit."""
    return float(round(np.mean([choice.accuracy for choice in choices]), 2))


def score_cross_validated(train: LabelledRows, test: LabelledRows, settings: ProbeSettings) -> Fit:
    """Score TREC or MRPC: folds of the train rows choose the regularisation of one classifier.

    Raises the errors of ``score_nested_folds``.
    """
    train_rows, test_rows = check_sets(train, test)
    choice = _choose_by_folds(train_rows, train[1], settings)
    every_row = np.arange(len(train_rows))
    weights = settings.make_solver(train_rows).refit([every_row], [choice.value])
    return _score_test_rows(test_rows, weights, choice)


def validate_by_folds(train: LabelledRows, settings: ProbeSettings) -> Fit:
    """Score by the best mean accuracy over folds of the train rows.

    ``score_cross_validated`` chooses the regularisation by this accuracy. Raises the errors of
    ``score_nested_folds``.
    """
    (train_rows,) = check_sets(train)
    choice = _choose_by_folds(train_rows, train[1], settings)
    predicted = np.empty_like(train[1])
    choice.predict_dev_rows(train_rows, predicted)
    return Fit(predicted, choice.accuracy, choice.accuracy, (choice.value,))


def _choose_by_folds(rows: ProbeRows, y: Classes, settings: ProbeSettings) -> Choice:
    """Choose the regularisation by stratified folds of the rows, whose classes are ``y`` (n,).

    Raises InputError for rows that cannot be folded; in the mode ``lbfgs`` RunError when a fit does
    not converge.
    """
    require_enough_rows(y, settings.folds)
    splits = _make_folds(y, np.arange(len(y)), settings.folds, settings.seed)
    fitted = settings.make_solver(rows).fit(splits, settings.grid)
    return Choice.from_fits(fitted, splits, settings.grid)


def score_held_out(
    train: LabelledRows, dev: LabelledRows, test: LabelledRows, settings: ProbeSettings
) -> Fit:
    """Score SST2, SST5, SICK-E, SNLI or a probing task: dev rows choose the regularisation.

    In the mode ``senteval`` the dev rows also decide when training stops. The toolkit fits the
    chosen classifier a second time from the same seed on the same rows; this function scores the
    first fit, which is equal. Raises the InputErrors of ``check_sets``; in the mode ``lbfgs``
    RunError when a fit does not converge.
    """
    train_rows, dev_rows, test_rows = check_sets(train, dev, test)
    splits = [Split(np.arange(len(train_rows)), np.arange(len(dev_rows)))]
    fitted = settings.make_solver(train_rows).fit(splits, settings.grid, dev_rows)
    choice = Choice.from_fits(fitted, splits, settings.grid)
    return _score_test_rows(test_rows, choice.weights, choice)


# Number of sets of rows → names of the sets, for errors
SET_NAMES = {1: ("train",), 2: ("train", "test"), 3: ("train", "dev", "test")}


def check_sets(*sets: LabelledRows) -> list[ProbeRows]:
    """Check sets of rows, and return them as tensors, in the given order.

    ``sets``: train; train and test; or train, dev and test. Raises InputError, with the name of the
    set, for features that are not finite, for a class that the train rows lack, and for classes
    that are not 0 to k-1 with k ≥ 2.
    """
    classes = np.unique(sets[0][1])

    # Check the features and classes of every set against the first set
    for name, (X, y) in zip(SET_NAMES[len(sets)], sets, strict=True):
        place = f"probe, {name} rows"
        # The sum of a row is finite only if every feature is, and needs no mask as large as X
        is_broken = ~np.isfinite(X.sum(axis=1, dtype=np.float64))
        if is_broken.any():
            raise InputError(
                place,
                f"{int(is_broken.sum())} rows hold NaN or infinity",
                hint="is the encoder sound?",
            )
        unknown = y[~np.isin(y, classes)]
        if len(unknown):
            raise InputError(place, f"class {int(unknown[0])} is not among the train rows")

    # Check that classes are numbered without gaps
    if not np.array_equal(classes, np.arange(len(classes))) or len(classes) < 2:
        raise InputError(
            "probe, train rows",
            f"their classes are {classes[:9].tolist()}",
            allowed="0 … k-1, two or more",
        )
    return [ProbeRows.from_arrays(X, y, len(classes)) for X, y in sets]


def require_enough_rows(y: Classes, folds: int, nested: bool = False) -> None:
    """Raise InputError if a fold would lack a class, or SentEval's final fit would lack dev rows.

    Both modes have the same rule.

    Args:
        y: the classes of the rows, (n,).
        folds: the number of folds.
        nested: whether the rows outside each fold are folded once more.
    """
    # Every fold needs a row of every class. With nested folds, the rows of a class outside a fold,
    # a share of (folds - 1) / folds, must be at least ``folds``.
    rarest = int(np.bincount(y).min())
    needed = folds
    train_rows = len(y)
    if nested:
        needed = math.ceil(folds * folds / (folds - 1))
        train_rows = len(y) * (folds - 1) // folds
    if rarest < needed:
        raise InputError(
            "probe", f"a class has {rarest} rows, {folds} folds", allowed=f"{needed} rows and more"
        )
    # The final fit stops by the accuracy on a share of its rows
    if DEV_SHARE * train_rows < 1:
        raise InputError(
            "probe",
            f"{len(y)} rows leave no dev rows",
            allowed=f"a share of {DEV_SHARE} of the train rows must be a row or more",
        )


def _make_folds(y: Classes, rows: Indices, folds: int, seed: int) -> list[Split]:
    """Cut the rows with the indices ``rows`` (m,) into folds, stratified by the classes ``y`` (n,).

    Each split has values of ``rows``, so it indexes ``y``. ``seed``: seed of the shuffle.
    """
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return [Split(rows[train], rows[dev]) for train, dev in splitter.split(rows, y[rows])]


def _compute_percent(predicted: Classes, gold: Classes) -> float:
    """Compute the accuracy x 100 of n rows, rounded to two decimals as in the toolkit."""
    right = int((predicted == gold).sum())
    return round(100 * (right / len(gold)), 2)


def _score_test_rows(test: ProbeRows, weights: Tensor, choice: Choice) -> Fit:
    """Score the test rows with the final classifier, ``weights`` (1, k, d + 1), of a choice."""
    predicted = predict_classes(test, None, weights)[0].numpy()
    accuracy = _compute_percent(predicted, test.y.numpy())
    return Fit(predicted, accuracy, choice.accuracy, (choice.value,))
