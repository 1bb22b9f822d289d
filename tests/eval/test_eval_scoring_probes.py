"""Probes: SentEval mode equals its unbatched procedure to the last prediction, convex mode scikit-learn's optimum."""

import numpy as np
import pytest
import reference_probe as reference
import torch
from reference_probe import blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from eval.scoring import probe_lbfgs
from eval.scoring import probe_senteval as batched
from eval.scoring.probe import UNREGULARISED, cross_validated, held_out, nested_kfold
from eval.scoring.probe_lbfgs import ConvexSolver
from eval.scoring.probe_senteval import GRID, ProbeRows, Split
from hub.errors import InputError, RunError

FOLDS = 3


def same(fit, answer) -> None:
    assert np.array_equal(fit.predicted, answer.predicted)
    assert fit.accuracy == answer.accuracy
    assert fit.dev_accuracy == answer.dev_accuracy
    assert list(fit.chosen) == list(answer.chosen)


@pytest.mark.parametrize("cache", [batched.CACHE_BYTES, 1], ids=["all folds at once", "in pieces of one fold"])
def test_nested_folds_equal_the_unbatched_procedure(monkeypatch, cache):
    strong = (1e-3, 1e-1, 1.0, 10.0)  # on so few rows the toolkit's own values hardly differ
    monkeypatch.setattr(reference, "GRID", [*strong])
    monkeypatch.setattr("eval.scoring.probe.GRID", strong)
    monkeypatch.setattr(batched, "CACHE_BYTES", cache)
    X, y = blobs(101, 9, 2, seed=5)
    fit = nested_kfold(X, y, folds=FOLDS)
    same(fit, reference.nested_kfold(X, y, folds=FOLDS))
    assert len(set(fit.chosen)) > 1, "the folds must not all choose alike, or the choice is not tested"
    outer = StratifiedKFold(FOLDS, shuffle=True, random_state=1111)
    for number, (_, held) in enumerate(outer.split(X, y)):
        assert (fit.fold[held] == number).all()


@pytest.mark.parametrize(("k", "seed"), [(2, 1111), (6, 5)])
def test_cross_validation_equals_the_unbatched_procedure(k, seed):
    X, y = blobs(139, 10, k, seed=2)
    X_test, y_test = blobs(90, 10, k, seed=3)
    same(
        cross_validated(X, y, X_test, y_test, folds=FOLDS, seed=seed),
        reference.cross_validated(X, y, X_test, y_test, folds=FOLDS, seed=seed),
    )


@pytest.mark.parametrize(("k", "grid", "seed"), [(6, GRID, 1111), (2, UNREGULARISED, 7)])
def test_dev_rows_equal_the_unbatched_procedure(k, grid, seed):
    sets = [array for number in range(3) for array in blobs(170 - 30 * number, 8, k, seed=4 + number)]
    same(held_out(*sets, grid=grid, seed=seed), reference.held_out(*sets, grid=grid, seed=seed))


def test_neither_global_randomness_nor_threads_matter():
    X, y = blobs(120, 6, 2, seed=9)
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = nested_kfold(X, y, folds=2)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads % 2 + 1)
        second = nested_kfold(X, y, folds=2)
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(first.predicted, second.predicted)
    assert (first.accuracy, first.chosen) == (second.accuracy, second.chosen)


def test_bad_rows_are_named():
    X, y = blobs(60, 4, 2, seed=11)
    broken = X.copy()
    broken[[3, 5], 1] = np.nan
    for problem, rows in (
        ("train rows: 2 rows hold NaN", (broken, y)),
        (r"classes are \[0, 2\]", (X, 2 * y)),
        ("test rows: class 2 is not among the train rows", (X, y, X, np.where(y == 1, 2, y))),
        ("do not fit", (X, y, X[:, :3], y)),
    ):
        with pytest.raises(InputError, match=problem):
            (cross_validated if len(rows) > 2 else nested_kfold)(*rows, folds=2)


@pytest.mark.parametrize("mode", ["senteval", "lbfgs"])
def test_too_few_rows_are_refused_before_training(mode):
    X, _ = blobs(60, 4, 2, seed=12)
    rare = np.zeros(60, dtype=np.int64)
    rare[:9] = 1
    with pytest.raises(InputError, match="a class has 9 rows, 10 folds; allowed: 10"):
        cross_validated(X, rare, X, rare, mode)
    with pytest.raises(InputError, match="a class has 9 rows, 9 folds; allowed: 11"):
        nested_kfold(X, rare, mode, folds=9)
    rare[9:11] = 1
    assert nested_kfold(X, rare, mode, folds=9).predicted.shape == (60,)
    with pytest.raises(InputError, match="19 rows leave no dev rows"):
        cross_validated(X[:19], np.arange(19) % 2, X, rare, mode, folds=2)


def optimum(X: np.ndarray, y: np.ndarray, l2: float) -> LogisticRegression:
    """In float64, with a column of ones: scikit-learn's own intercept is not regularised. With two classes it has one
    weight vector, the difference of our two, whose penalty is half as strong.
    """
    C = (2 if y.max() == 1 else 1) / (len(y) * l2)
    return LogisticRegression(C=C, fit_intercept=False, tol=1e-9, max_iter=20000).fit(ones(X), y)


def ones(X: np.ndarray) -> np.ndarray:
    return np.c_[X.astype(np.float64), np.ones(len(X))]


@pytest.mark.parametrize("k", [2, 4])
def test_every_fold_is_at_scikit_learns_optimum(k):
    X, y = blobs(400, 9, k, seed=21)
    splits = [Split(*pair) for pair in StratifiedKFold(3, shuffle=True, random_state=1).split(X, y)]
    fitted = ConvexSolver(ProbeRows.of(X, y, k), 0).fit(splits, GRID)
    for fold, split in enumerate(splits):
        for column, l2 in enumerate(GRID):
            known = optimum(X[split.train], y[split.train], l2)
            weights = fitted.weights[fold, column].double().numpy()
            found = weights[1:] - weights[:1] if k == 2 else weights
            np.testing.assert_allclose(found, known.coef_, atol=0.01 * np.abs(known.coef_).max())
            p = torch.softmax(torch.from_numpy(ones(X[split.dev]) @ weights.T), dim=1).numpy()
            np.testing.assert_allclose(p, known.predict_proba(ones(X[split.dev])), atol=2e-3)
            share = (known.predict(ones(X[split.dev])) == y[split.dev]).mean()
            assert fitted.accuracy[fold, column] == pytest.approx(share, abs=1.5 / len(split.dev))


def test_no_convergence_is_an_error(monkeypatch):
    monkeypatch.setattr(probe_lbfgs, "ITERATIONS", 1)
    X, y = blobs(100, 6, 2, seed=27)
    with pytest.raises(RunError, match="no convergence at l2 1e-05 in 1 iterations"):
        ConvexSolver(ProbeRows.of(X, y, 2), 0).refit([np.arange(100)], [1e-5])
