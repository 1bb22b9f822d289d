"""SentEval's transfer and probing tasks: rows in the toolkit's order, features from embeddings, a probe, a score."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from torch import Tensor

from eval.scoring import probe
from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.scoring.probe import SNLI_PACE, UNREGULARISED, Fit
from eval.scoring.probe_senteval import Classes, Features, Indices, State, train
from eval.scoring.sts import pearson, spearman
from eval.tasks.rows import Rows, Vector
from eval.tasks.sources import BLANK
from eval.tasks.task import Task
from hub.errors import InputError, RunError

Sets = Mapping[str, tuple[Indices, Features, NDArray[Any]]]  # split → what ``arranged`` gives


@dataclass(frozen=True)
class SeedRun:
    """What one seed gives: a value for each scored row, the score x 100 and further metrics."""

    predicted: NDArray[Any]
    score: float
    other: dict[str, float]


def measure_transfer(task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int]) -> Measured:
    """Accuracy x 100 of the task's probe; the mean over ``seeds``, with the rows' outcomes under the first of them.

    ``other`` has the accuracy on the dev rows or folds, F1 for MRPC, and the standard deviation over seeds if several.
    ``lbfgs`` draws nothing but TREC's and MRPC's folds. Raises InputError naming the task when the rows do not allow
    the protocol.
    """
    return _over_seeds(task, data, embed, seeds, _probe)


def measure_regression(task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int]) -> Measured:
    """Spearman x 100 of the head's scores with human ones; the mean over ``seeds``, the rows' outcomes under the first.

    ``other``: Pearson x 100, mean squared error, Pearson x 100 on the dev rows, standard deviation over several seeds.
    Raises InputError for features that are not finite, RunError where a correlation is undefined.
    """
    return _over_seeds(task, data, embed, seeds, _head)


def _over_seeds(
    task: Task,
    data: Mapping[str, Rows],
    embed: Embed,
    seeds: Sequence[int],
    run: Callable[[Task, Sets, int], SeedRun],
) -> Measured:
    started = time.perf_counter()
    sets = {split: arranged(task, rows, embed) for split, rows in data.items()}
    read = time.perf_counter()
    runs = [run(task, sets, seed) for seed in seeds]
    order, _, gold = sets[task.default_split]
    other = {name: float(np.mean([one.other[name] for one in runs])) for name in runs[0].other}
    scores = [one.score for one in runs]
    if len(seeds) > 1:
        other["sd_over_seeds"] = float(np.std(scores, ddof=1))
    return Measured(
        outcomes=Outcomes(restored(gold, order), restored(runs[0].predicted, order)),
        score=float(np.mean(scores)),
        other=other,
        seconds={"reading_embeddings": read - started, "probing": time.perf_counter() - read},
        seeds=tuple(seeds),
    )


def _probe(task: Task, sets: Sets, seed: int) -> SeedRun:
    """The task's probe on sorted rows."""
    assert task.design is not None, task.name
    rows = [array for split in task.design.rows for array in sets[split][1:]]
    snli: dict[str, Any] = {"grid": UNREGULARISED, "pace": SNLI_PACE} if task.as_snli else {}
    try:
        fit: Fit = getattr(probe, task.design.probe)(*rows, mode=task.mode, seed=seed, **snli)
    except InputError as error:
        raise InputError(task.name, str(error)) from error
    other = {"dev_accuracy": fit.dev_accuracy}
    if task.with_f1:
        found = f1_score(sets[task.default_split][2], fit.predicted, zero_division=0)
        other["f1"] = round(100 * float(found), 2)  # as the toolkit
    return SeedRun(fit.predicted, fit.accuracy, other)


def arranged(task: Task, rows: Rows, embed: Embed) -> tuple[Indices, Features, NDArray[Any]]:
    """Where each sorted row was, and the sorted features and classes or scores."""
    order = toolkit_order(rows, task.as_snli)
    is_pair = len(rows.columns) > 1
    X = pair_features(rows, order, embed, task.as_snli) if is_pair else _embedded(rows.first, order, embed)
    return order, X, rows.target[order]


def _embedded(texts: Sequence[str], order: Indices, embed: Embed) -> Features:
    return embed([texts[row] or BLANK for row in order])


def toolkit_order(rows: Rows, as_snli: bool = False) -> Indices:
    """SentEval's order of rows, on which folds and shuffles depend: by number of tokens, then class; stable.

    Pairs go by the first sentence, then the second; SNLI by the second, then the first, and by the class's name.
    """
    sizes = [tokens(column) for column in rows.columns]
    if as_snli:
        return np.lexsort((np.argsort(np.argsort(rows.classes))[rows.target], *sizes))
    return np.lexsort((rows.target, *reversed(sizes)))


def tokens(texts: Sequence[str]) -> Indices:
    """Tokens of texts whose tokens are joined by single spaces, (n,)."""
    return np.array([text.count(" ") + 1 if text else 0 for text in texts], dtype=np.int64)


def pair_features(rows: Rows, order: Indices, embed: Embed, as_snli: bool = False) -> Features:
    """|u - v|, u * v of the embeddings u, v of the pairs in ``order``: (n, 2d). SNLI: u, v, u * v, |u - v|: (n, 4d)."""
    u, v = (_embedded(column, order, embed) for column in rows.columns)
    n, d = u.shape
    features = np.empty((n, 4 * d if as_snli else 2 * d), dtype=np.float32)
    if as_snli:
        features[:, :d], features[:, d : 2 * d] = u, v
    product, difference = (slice(2 * d, 3 * d), slice(3 * d, None)) if as_snli else (slice(d, None), slice(d))
    np.multiply(u, v, out=features[:, product])
    np.abs(np.subtract(u, v, out=features[:, difference]), out=features[:, difference])
    return features


def restored(sorted_values: Classes | Vector, order: Indices) -> Vector:
    """Values of sorted rows in the data's order."""
    values = np.empty(len(order))
    values[order] = sorted_values
    return values


SCORES = 5
EPOCH_SIZE = 50
MAX_EPOCH = 1000
TENACITY = 3


def _head(task: Task, sets: Sets, seed: int) -> SeedRun:
    for split, (_, X, _) in sets.items():
        if not np.isfinite(X).all():
            place = f"{task.name}, {split} rows"
            raise InputError(place, "features hold NaN or infinity", hint="is the encoder sound?")
    (_, X, y), (_, X_dev, y_dev), (_, X_test, gold) = (sets[split] for split in ("train", "validation", "test"))
    predicted, dev_pearson = fit(X, y, X_dev, y_dev, X_test, seed)
    other = {"pearson": 100 * pearson(predicted, gold), "mse": float(np.mean((predicted - gold) ** 2))}
    return SeedRun(predicted, 100 * spearman(predicted, gold), other | {"dev_pearson": 100 * dev_pearson})


def soft_targets(scores: Vector) -> NDArray[np.float32]:
    """(n,) scores → (n, 5): the mass of each whole score 1 … 5; a score of 0 has none."""
    targets = np.zeros((len(scores), SCORES), dtype=np.float32)
    below = np.floor(scores)
    for score in range(1, SCORES + 1):
        targets[:, score - 1] = np.where(below == score, below - scores + 1, 0)
        targets[:, score - 1] += np.where(below + 1 == score, scores - below, 0)
    return targets


def fit(X: Features, y: Vector, X_dev: Features, y_dev: Vector, X_test: Features, seed: int) -> tuple[Vector, float]:
    """Predicted scores of the test rows by a head trained on rows in the toolkit's order, and the best dev Pearson.

    Raises RunError when the dev rows' correlation is never defined.
    """
    state = State.start(X.shape[1], SCORES, np.zeros((1, 1)), seed)
    shuffles, updates = np.random.RandomState(seed), torch.zeros(())
    rows, error = torch.from_numpy(X), squared_error(torch.from_numpy(soft_targets(y)))
    best, weights, misses = -1.0, None, 0
    for _ in range(0, MAX_EPOCH + 1, EPOCH_SIZE):
        orders = (torch.from_numpy(shuffles.permutation(len(X)))[None] for _ in range(EPOCH_SIZE))
        train(rows, state, orders, updates, error)
        correlation = pearson(_means(X_dev, state.weights[0, 0]), y_dev)
        if correlation > best:
            best, weights = correlation, state.weights[0, 0].clone()
        elif misses >= TENACITY:
            break
        else:
            misses += 1
    if weights is None:
        raise RunError("regression head", "its scores of the dev rows never correlate with the human ones")
    return _means(X_test, weights), best


def squared_error(targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The derivative by the logits of the squared error of softmax probabilities, a mean over the scores."""

    def error(p: Tensor, at: Tensor) -> Tensor:
        gold = targets.index_select(0, at).view(len(p), 1, -1, SCORES).transpose(2, 3)
        outer = (p - gold) * (2 / SCORES)
        return p * (outer - (p * outer).sum(dim=2, keepdim=True))

    return error


def _means(X: Features, weights: Tensor) -> Vector:
    """Mean scores (n,) under one head (5, padded)."""
    d = X.shape[1]
    p = torch.softmax(torch.addmm(weights[:, d], torch.from_numpy(X), weights[:, :d].T), dim=1)
    return np.dot(p.numpy(), np.arange(1, SCORES + 1))
