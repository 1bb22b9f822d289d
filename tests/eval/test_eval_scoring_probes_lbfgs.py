"""The convex mode is scikit-learn's logistic regression at the same optimum, for every fold at once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from benchmarks.evaluation.reference_probe import blobs
from eval.scoring import probe_lbfgs
from eval.scoring.probe import cross_validated, held_out, nested_kfold
from eval.scoring.probe_lbfgs import ConvexSolver
from eval.scoring.probe_senteval import GRID, ProbeRows, Split
from hub.errors import RunError


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


def test_the_gradient_with_the_toolkits_weight_decay_vanishes():
    X, y = blobs(300, 8, 3, seed=22)
    refitted = ConvexSolver(ProbeRows.of(X, y, 3), 0).refit([np.arange(300), np.arange(0, 300, 2)], [1e-3, 1e-5])
    for weights, rows, l2 in zip(refitted, (np.arange(300), np.arange(0, 300, 2)), (1e-3, 1e-5), strict=True):
        layer = torch.nn.Linear(8, 3)
        with torch.no_grad():
            layer.weight.copy_(weights[:, :-1])
            layer.bias.copy_(weights[:, -1])
        torch.nn.functional.cross_entropy(layer(torch.from_numpy(X[rows])), torch.from_numpy(y[rows])).backward()
        for parameter in layer.parameters():
            assert (parameter.grad + l2 * parameter).abs().max() < 3e-5
            assert (parameter.grad).abs().max() > 0 or l2 == 0


def test_the_optimum_does_not_depend_on_what_was_solved_before(monkeypatch):
    X, y = blobs(200, 6, 2, seed=23)
    rows, lists = ProbeRows.of(X, y, 2), [np.arange(150)]
    warm = ConvexSolver(rows, 0)
    warm.fit([Split(np.arange(200), np.arange(10))], GRID)
    cold = ConvexSolver(rows, 0).refit(lists, [1e-4])
    torch.testing.assert_close(warm.refit(lists, [1e-4]), cold, rtol=0, atol=0.01 * float(cold.abs().max()))
    monkeypatch.setattr(probe_lbfgs, "LOGITS", 64)
    pieces = ConvexSolver(rows, 0).refit(lists, [1e-4])
    torch.testing.assert_close(pieces, cold, rtol=0, atol=0.01 * float(cold.abs().max()))


def test_protocols_choose_and_score_at_the_optimum():
    X, y = blobs(240, 7, 3, seed=24)
    X_test, y_test = blobs(150, 7, 3, seed=25)
    fit = cross_validated(X, y, X_test, y_test, "lbfgs", folds=4)
    known = optimum(X, y, fit.chosen[0])
    assert (fit.predicted == known.predict(ones(X_test))).mean() > 0.99
    again = cross_validated(X, y, X_test, y_test, "lbfgs", folds=4)
    assert np.array_equal(fit.predicted, again.predicted)
    split = held_out(X, y, X_test[:70], y_test[:70], X_test[70:], y_test[70:], "lbfgs")
    assert (split.predicted == optimum(X, y, split.chosen[0]).predict(ones(X_test[70:]))).mean() > 0.98
    nested = nested_kfold(X, y, "lbfgs", folds=3)
    for number, l2 in enumerate(nested.chosen):
        held = nested.fold == number
        assert (nested.predicted[held] == optimum(X[~held], y[~held], l2).predict(ones(X[held]))).mean() > 0.97


def test_classes_apart_have_an_optimum_too():
    X, y = blobs(80, 30, 2, seed=26, spread=0.05)
    fit = nested_kfold(X, y, "lbfgs", folds=2)
    assert fit.accuracy == 100


def test_no_convergence_is_an_error(monkeypatch):
    monkeypatch.setattr(probe_lbfgs, "ITERATIONS", 1)
    X, y = blobs(100, 6, 2, seed=27)
    with pytest.raises(RunError, match="1 classifiers at l2 1e-05 did not converge in 1 iterations"):
        ConvexSolver(ProbeRows.of(X, y, 2), 0).refit([np.arange(100)], [1e-5])
