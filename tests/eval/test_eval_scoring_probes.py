"""Probes: SentEval mode equals its unbatched procedure to the last prediction, convex mode
scikit-learn's optimum.
"""

import numpy as np
import pytest
import reference_probe as reference
import torch
from reference_probe import blobs
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from sts_dino.eval.scoring import probe
from sts_dino.eval.scoring import probe_senteval as batched
from sts_dino.eval.scoring.probe import (
    SNLI_GRID,
    ConvexSolver,
    ProbeSettings,
    score_cross_validated,
    score_held_out,
    score_nested_folds,
)
from sts_dino.eval.scoring.probe_senteval import WEIGHT_DECAYS, ProbeRows, Split
from sts_dino.hub.errors import InputError, RunError

FOLDS = 3


def same(fit, answer) -> None:
    assert np.array_equal(fit.predicted, answer.predicted)
    assert fit.accuracy == answer.accuracy
    assert fit.dev_accuracy == answer.dev_accuracy
    assert list(fit.chosen) == list(answer.chosen)


@pytest.mark.parametrize(
    "cache", [batched.BATCH_CACHE_BYTES, 1], ids=["all folds at once", "in pieces of one fold"]
)
def test_nested_folds_equal_the_unbatched_procedure(monkeypatch, cache):
    strong = (1e-3, 1e-1, 1.0, 10.0)  # on so few rows the toolkit's own values hardly differ
    monkeypatch.setattr(reference, "GRID", [*strong])
    monkeypatch.setattr(batched, "BATCH_CACHE_BYTES", cache)
    X, y = blobs(101, 9, 2, seed=5)
    fit = score_nested_folds((X, y), ProbeSettings(folds=FOLDS, grid=strong))
    same(fit, reference.nested_kfold(X, y, folds=FOLDS))
    assert len(set(fit.chosen)) > 1, (
        "the folds must not all choose alike, or the choice is not tested"
    )


@pytest.mark.parametrize(("k", "seed"), [(2, 1111), (6, 5)])
def test_cross_validation_equals_the_unbatched_procedure(k, seed):
    X, y = blobs(139, 10, k, seed=2)
    X_test, y_test = blobs(90, 10, k, seed=3)
    same(
        score_cross_validated((X, y), (X_test, y_test), ProbeSettings(folds=FOLDS, seed=seed)),
        reference.cross_validated(X, y, X_test, y_test, folds=FOLDS, seed=seed),
    )


@pytest.mark.parametrize(("k", "grid", "seed"), [(6, WEIGHT_DECAYS, 1111), (2, SNLI_GRID, 7)])
def test_dev_rows_equal_the_unbatched_procedure(k, grid, seed):
    sets = [blobs(170 - 30 * number, 8, k, seed=4 + number) for number in range(3)]
    arrays = [array for labelled in sets for array in labelled]
    same(
        score_held_out(*sets, ProbeSettings(grid=grid, seed=seed)),
        reference.held_out(*arrays, grid=grid, seed=seed),
    )


def test_neither_global_randomness_nor_threads_matter():
    X, y = blobs(120, 6, 2, seed=9)
    np.random.seed(0)
    torch.manual_seed(0)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    first = score_nested_folds((X, y), ProbeSettings(folds=2))
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads % 2 + 1)
        second = score_nested_folds((X, y), ProbeSettings(folds=2))
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(first.predicted, second.predicted)
    assert (first.accuracy, first.chosen) == (second.accuracy, second.chosen)


def test_gpus_keep_their_random_state(monkeypatch):
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    first, second = (batched.State.start(4, 2, np.zeros((1, 1)), seed=7) for _ in "12")
    assert torch.equal(first.weights, second.weights)
    assert not seeded


def test_bad_rows_are_named():
    X, y = blobs(60, 4, 2, seed=11)
    broken = X.copy()
    broken[[3, 5], 1] = np.nan
    for problem, rows in (
        ("train rows: 2 rows hold NaN", [(broken, y)]),
        (r"classes are \[0, 2\]", [(X, 2 * y)]),
        ("test rows: class 2 is not among the train rows", [(X, y), (X, np.where(y == 1, 2, y))]),
    ):
        with pytest.raises(InputError, match=problem):
            score_probe = score_cross_validated if len(rows) == 2 else score_nested_folds
            score_probe(*rows, ProbeSettings(folds=2))


@pytest.mark.parametrize("mode", ["senteval", "lbfgs"])
def test_too_few_rows_are_refused_before_training(mode):
    X, _ = blobs(60, 4, 2, seed=12)
    rare = np.zeros(60, dtype=np.int64)
    rare[:9] = 1
    with pytest.raises(InputError, match="a class has 9 rows, 10 folds; allowed: 10"):
        score_cross_validated((X, rare), (X, rare), ProbeSettings(mode))
    with pytest.raises(InputError, match="a class has 9 rows, 9 folds; allowed: 11"):
        score_nested_folds((X, rare), ProbeSettings(mode, folds=9))
    rare[9:11] = 1
    assert score_nested_folds((X, rare), ProbeSettings(mode, folds=9)).predicted.shape == (60,)
    with pytest.raises(InputError, match="19 rows leave no dev rows"):
        score_cross_validated((X[:19], np.arange(19) % 2), (X, rare), ProbeSettings(mode, folds=2))


def optimum(X: np.ndarray, y: np.ndarray, l2: float) -> LogisticRegression:
    """In float64, with a column of ones: scikit-learn's own intercept is not regularised. With two
    classes it has one weight vector, the difference of our two, whose penalty is half as strong.
    """
    C = (2 if y.max() == 1 else 1) / (len(y) * l2)
    return LogisticRegression(C=C, fit_intercept=False, tol=1e-9, max_iter=20000).fit(ones(X), y)


def ones(X: np.ndarray) -> np.ndarray:
    return np.c_[X.astype(np.float64), np.ones(len(X))]


@pytest.mark.parametrize("k", [2, 4])
def test_every_fold_is_at_scikit_learns_optimum(k):
    X, y = blobs(400, 9, k, seed=21)
    splits = [Split(*pair) for pair in StratifiedKFold(3, shuffle=True, random_state=1).split(X, y)]
    fitted = ConvexSolver(ProbeRows.from_arrays(X, y, k), 0).fit(splits, WEIGHT_DECAYS)
    for fold, split in enumerate(splits):
        for column, l2 in enumerate(WEIGHT_DECAYS):
            known = optimum(X[split.train], y[split.train], l2)
            weights = fitted.weights[fold, column].double().numpy()
            found = weights[1:] - weights[:1] if k == 2 else weights
            np.testing.assert_allclose(found, known.coef_, atol=0.01 * np.abs(known.coef_).max())
            p = torch.softmax(torch.from_numpy(ones(X[split.dev]) @ weights.T), dim=1).numpy()
            np.testing.assert_allclose(p, known.predict_proba(ones(X[split.dev])), atol=2e-3)
            share = (known.predict(ones(X[split.dev])) == y[split.dev]).mean()
            assert fitted.accuracy[fold, column] == pytest.approx(share, abs=1.5 / len(split.dev))


def test_no_convergence_is_an_error(monkeypatch):
    monkeypatch.setattr(probe, "MAX_ITERATIONS", 1)
    X, y = blobs(100, 6, 2, seed=27)
    with pytest.raises(RunError, match="no convergence at l2 1e-05 in 1 iterations"):
        ConvexSolver(ProbeRows.from_arrays(X, y, 2), 0).refit([np.arange(100)], [1e-5])
