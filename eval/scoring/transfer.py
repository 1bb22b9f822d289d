"""SentEval's transfer, probing and relatedness tasks: sorted rows, features, a probe, a score."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from sts_dino.eval.scoring import probe
from sts_dino.eval.scoring.cosines import compute_pearson, compute_spearman
from sts_dino.eval.scoring.probe import SNLI_GRID, SNLI_SCHEDULE, Fit, ProbeSettings
from sts_dino.eval.scoring.probe_senteval import Classes, Features, State, train
from sts_dino.eval.tasks.rows import Indices, Rows, Vector
from sts_dino.eval.tasks.sources import BLANK_TEXT_REPLACEMENT, TaskData
from sts_dino.eval.tasks.task import Embed, Measured, Outcomes, Task
from sts_dino.hub.errors import InputError, RunError


class SortedRows(NamedTuple):
    """Rows of a split in the toolkit's order, on which folds and shuffles depend.

    ``order[i]`` is the index in the data of the sorted row i.
    """

    order: Indices  # (n,)
    X: Features  # (n, d)
    y: NDArray[Any]  # (n,) classes or scores


Sets = Mapping[str, SortedRows]  # split → rows


@dataclass(frozen=True)
class SeedRun:
    """Outcome of one seed: a prediction for each scored row, the score x 100, other metrics."""

    predicted: NDArray[Any]  # (n,), in the order of the sorted rows
    score: float
    other: dict[str, float]


def measure_transfer(data: TaskData, embed: Embed, seeds: Sequence[int]) -> Measured:
    """Measure the score x 100 of the task's probe or regression head, as a mean over ``seeds``.

    The outcomes of the rows are those of the first seed. ``other`` has the standard deviation over
    several seeds. A probe is scored by accuracy; ``other`` has the accuracy on the dev rows or
    folds, and F1 for MRPC. In the mode ``lbfgs`` a seed changes only the folds of TREC and MRPC. A
    head is scored by Spearman's correlation with human scores; ``other`` has Pearson x 100, the
    mean squared error, and Pearson x 100 on the dev rows.

    Args:
        data: the task and its rows.
        embed: function from n texts to embeddings (n, d).
        seeds: the seeds, one or more.

    Raises InputError, with the task's name, when the rows do not allow the protocol; RunError when
    a fit of the mode ``lbfgs`` does not converge, and for an undefined correlation; also the errors
    of ``embed``.
    """
    # Read the embeddings of every split
    started = time.perf_counter()
    sets = {split: sort_rows(data.task, rows, embed) for split, rows in data.rows.items()}
    scored = sets[data.split]
    embedded = time.perf_counter()

    # Train and score with every seed
    run = _run_head if data.task.family == "relatedness" else _run_probe
    runs = [run(data.task, sets, scored, seed) for seed in seeds]
    scores = [seed_run.score for seed_run in runs]
    other = {
        name: float(np.mean([seed_run.other[name] for seed_run in runs])) for name in runs[0].other
    }
    if len(seeds) > 1:
        other["sd_over_seeds"] = float(np.std(scores, ddof=1))
    return Measured(
        outcomes=Outcomes(
            gold=restore_order(scored.y, scored.order),
            predicted=restore_order(runs[0].predicted, scored.order),
        ),
        score=float(np.mean(scores)),
        other=other,
        seconds={
            "reading_embeddings": embedded - started,
            "probing": time.perf_counter() - embedded,
        },
        seeds=tuple(seeds),
    )


def _run_probe(task: Task, sets: Sets, scored: SortedRows, seed: int) -> SeedRun:
    """Train and score the task's probe with one seed; ``scored``: the rows of the scored split.

    Raises InputError, with the task's name, when the rows do not allow the protocol; RunError when
    a fit of the mode ``lbfgs`` does not converge.
    """
    # A task of a probe declares design and mode; the design names a function of ``probe``
    assert task.design is not None and task.mode is not None, task.name
    sets_of_probe = [(sets[split].X, sets[split].y) for split in task.design.rows]
    settings = ProbeSettings(task.mode, seed)
    if task.as_snli:
        settings = replace(settings, grid=SNLI_GRID, pace=SNLI_SCHEDULE)
    score_probe = getattr(probe, task.design.probe)
    try:
        fit: Fit = score_probe(*sets_of_probe, settings)
    except InputError as error:
        raise InputError(task.name, str(error)) from error

    # F1 of class 1 over the scored rows
    other = {"dev_accuracy": fit.dev_accuracy}
    if task.with_f1:
        f1 = float(f1_score(scored.y, fit.predicted, zero_division=0))
        other["f1"] = round(100 * f1, 2)  # as the toolkit
    return SeedRun(fit.predicted, fit.accuracy, other)


def sort_rows(task: Task, rows: Rows, embed: Embed) -> SortedRows:
    """Return the rows of a split in the toolkit's order, with features and classes or scores.

    Raises the errors of ``embed``.
    """
    order = sort_as_toolkit(rows, task.as_snli)
    if len(rows.columns) > 1:
        X = make_pair_features(rows, order, embed, task.as_snli)
    else:
        X = _embed_in_order(rows.first, order, embed)
    return SortedRows(order, X, rows.target[order])


def _embed_in_order(texts: Sequence[str], order: Indices, embed: Embed) -> Features:
    """Return the embeddings (n, d) of texts in ``order``, with a replacement for blank texts."""
    return embed([texts[row] or BLANK_TEXT_REPLACEMENT for row in order])


def sort_as_toolkit(rows: Rows, as_snli: bool = False) -> Indices:
    """Return the indices of the rows in SentEval's order, (n,); equal rows keep their order.

    Rows are sorted by number of tokens, then by class. Pairs are sorted by the number of tokens of
    the first sentence, then of the second, then by class. SNLI is sorted by the number of tokens of
    the second sentence, then of the first, then by the name of the class.
    """
    # ``np.lexsort`` sorts by its last key first
    sizes = [count_tokens(column) for column in rows.columns]
    if as_snli:
        rank_of_class = np.argsort(np.argsort(rows.classes))  # alphabetical
        return np.lexsort((rank_of_class[rows.target], *sizes))
    return np.lexsort((rows.target, *reversed(sizes)))


def count_tokens(texts: Sequence[str]) -> Indices:
    """Count the tokens of each text, which single spaces separate: (n,); 0 for a blank text."""
    counts = [text.count(" ") + bool(text) for text in texts]
    return np.array(counts, dtype=np.int64)


def make_pair_features(rows: Rows, order: Indices, embed: Embed, as_snli: bool = False) -> Features:
    """Return the features of the pairs in ``order``, from their embeddings u and v (n, d).

    Features are |u - v|, u * v: (n, 2d); for SNLI u, v, u * v, |u - v|: (n, 4d).
    """
    u, v = (_embed_in_order(column, order, embed) for column in rows.columns)
    # Write all parts into one array to save memory: SNLI has half a million pairs
    product, difference = (2, 3) if as_snli else (1, 0)
    parts = np.empty((len(u), 4 if as_snli else 2, u.shape[1]), dtype=u.dtype)
    if as_snli:
        parts[:, 0] = u
        parts[:, 1] = v
    np.multiply(u, v, out=parts[:, product])
    np.subtract(u, v, out=parts[:, difference])
    np.abs(parts[:, difference], out=parts[:, difference])
    return parts.reshape(len(u), -1)


def restore_order(sorted_values: Classes | Vector, order: Indices) -> Vector:
    """Return the values of sorted rows, (n,), in the order of the data, as float64.

    ``order`` is that of ``SortedRows``.
    """
    values = np.empty(len(order))
    values[order] = sorted_values
    return values


# Settings of SentEval's ``relatedness.py``
INTEGER_SCORES = 5  # scores 1 to 5, the classes of the head
PASSES_BETWEEN_CHECKS = 50
LAST_PASS = 1000
MAX_MISSES = 3  # checks without a better dev correlation that training survives


def _run_head(_: Task, sets: Sets, scored: SortedRows, seed: int) -> SeedRun:
    """Train the regression head with one seed, and score the test rows.

    ``scored``: the test rows. The first argument, the task, is unused: ``_run_probe`` has the same
    signature. Raises RunError for an undefined correlation.
    """
    predicted, dev_pearson = fit_head(sets["train"], sets["validation"], scored.X, seed)
    other = {
        "pearson": 100 * compute_pearson(predicted, scored.y),
        "mse": float(np.mean((predicted - scored.y) ** 2)),
        "dev_pearson": 100 * dev_pearson,
    }
    return SeedRun(predicted, 100 * compute_spearman(predicted, scored.y), other)


def make_soft_targets(scores: Vector) -> NDArray[np.float32]:
    """Return each score as a distribution over the integer scores 1 to 5: (n,) → (n, 5).

    A score's mass is split between the two nearest integers, so that the mean of the distribution
    is the score; e.g. 3.4 has 0.6 at 3 and 0.4 at 4. There is no class for 0: a score of 0 has no
    mass, and 0.4 has 0.4 at 1. Source: Tai, Socher and Manning 2015, section 4.2.
    """
    targets = np.zeros((len(scores), INTEGER_SCORES), dtype=np.float32)
    below = np.floor(scores)
    for integer in range(1, INTEGER_SCORES + 1):
        column = targets[:, integer - 1]
        column += np.where(below == integer, below - scores + 1, 0)
        column += np.where(below + 1 == integer, scores - below, 0)
    return targets


def fit_head(
    train_rows: SortedRows, dev_rows: SortedRows, X_test: Features, seed: int
) -> tuple[Vector, float]:
    """Train a regression head, and return its test scores and the best dev correlation.

    Args:
        train_rows: the rows to train on, in the toolkit's order.
        dev_rows: the rows whose Pearson correlation decides when to stop.
        X_test: features of the test rows, (n, d).
        seed: seed of initial weights and shuffles.

    Returns the predicted scores of the test rows, (n,), 1 to 5, and the best Pearson correlation of
    the dev rows, -1 to 1.
    Raises RunError when the correlation of the dev rows is undefined or never above -1.
    """
    # Start one linear layer with softmax over the integer scores, without weight decay
    X = torch.from_numpy(train_rows.X)
    compute_error = make_squared_error(torch.from_numpy(make_soft_targets(train_rows.y)))
    state = State.start(X.shape[1], INTEGER_SCORES, np.zeros((1, 1)), seed)
    shuffles = np.random.RandomState(seed)
    updates = torch.zeros(())

    # Train until ``MAX_MISSES`` + 1 checks, consecutive or not, have not improved the correlation
    best_pearson = -1.0
    best_weights = None
    misses = 0
    for _ in range(0, LAST_PASS + 1, PASSES_BETWEEN_CHECKS):
        orders = (
            torch.from_numpy(shuffles.permutation(len(X)))[None]
            for _ in range(PASSES_BETWEEN_CHECKS)
        )
        train(X, state, orders, updates, compute_error)
        dev_scores = _predict_means(dev_rows.X, state.weights[0, 0])
        pearson = compute_pearson(dev_scores, dev_rows.y)
        if pearson > best_pearson:
            best_pearson = pearson
            best_weights = state.weights[0, 0].clone()
        elif misses >= MAX_MISSES:
            break
        else:
            misses += 1
    if best_weights is None:
        raise RunError(
            "regression head", "its scores of the dev rows never correlate with the human ones"
        )
    return _predict_means(X_test, best_weights), best_pearson


def make_squared_error(targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that computes the derivative of the squared error by the logits.

    The error of a row is the mean over the integer scores of (softmax - target)², with ``targets``
    (n, 5). Probabilities and derivative are (f, r, 5, rows).
    """

    def compute_error(p: Tensor, at: Tensor) -> Tensor:
        # Bring the targets to the axes of p: (f, 1, 5, rows)
        chosen = targets.index_select(0, at).view(len(p), 1, -1, INTEGER_SCORES)
        gold = chosen.transpose(2, 3)
        # The derivative by the probabilities, then the chain rule of softmax
        outer = (p - gold) * (2 / INTEGER_SCORES)
        return p * (outer - (p * outer).sum(dim=2, keepdim=True))

    return compute_error


def _predict_means(X: Features, weights: Tensor) -> Vector:
    """Predict the score of each row, (n,): the mean of the head's distribution over scores.

    ``weights``: the head, (5, padded); column d is the intercept.
    """
    d = X.shape[1]
    intercepts = weights[:, d]
    logits = torch.addmm(intercepts, torch.from_numpy(X), weights[:, :d].T)
    probabilities = torch.softmax(logits, dim=1).numpy()
    return np.dot(probabilities, np.arange(1, INTEGER_SCORES + 1))
