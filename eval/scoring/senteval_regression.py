"""SentEval's trained head for scored pairs (STSb, SICK-R): a distribution over whole scores, and its mean.

The toolkit's `tools/relatedness.py`, after Tai, Socher and Manning 2015 (section 4.2): softmax of a linear layer on
|u - v| and u * v; mean squared error to a distribution over a score's two neighbouring whole numbers; Adam without
weight decay, batches of 64. Every 50 passes the dev rows' Pearson correlation is taken; the fourth check without a new
best ends training (misses are never forgotten), so do 1,050 passes, and the head of the best check is used. There are
five scores, 1 to 5, for STSb (0 to 5) too: a gold score below 1 has target mass below 1, and no prediction is below 1.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.scoring.outcomes import Embed, Measured, Outcomes
from eval.scoring.probes.adam import State, train
from eval.scoring.sts import pearson, spearman
from eval.scoring.transfer import pair_features, restored, toolkit_order
from eval.tasks.data.example_types import Rows, ScoredPairs, Vector
from eval.tasks.task import Task
from hub.errors import InputError, RunError

SCORES = 5
EPOCH_SIZE = 50
MAX_EPOCH = 1000
TENACITY = 3


@dataclass(frozen=True)
class Head:
    """Predicted scores of the test rows and the best Pearson correlation on the dev rows."""

    predicted: Vector
    dev_pearson: float


def measure_regression(task: Task, data: Mapping[str, Rows], embed: Embed, seeds: Sequence[int]) -> Measured:
    """Spearman x 100 of the head's scores with people's; the mean over ``seeds``, the rows' outcomes under the first.

    ``other``: Pearson x 100, mean squared error, Pearson x 100 on the dev rows, standard deviation over several seeds.
    Raises InputError for features that are not finite, RunError where a
    correlation is undefined.
    """
    started = time.perf_counter()
    sets = {}
    for split in ("train", "validation", "test"):
        rows = data[split]
        assert isinstance(rows, ScoredPairs)
        order = toolkit_order(rows)
        sets[split] = order, pair_features(rows, order, embed), rows.gold[order]
        if not np.isfinite(sets[split][1]).all():
            raise InputError(
                f"{task.name}, {split} rows", "features hold NaN or infinity", hint="is the encoder sound?"
            )
    started, embedded = time.perf_counter(), time.perf_counter() - started
    (_, X, y), (_, X_dev, y_dev), (order, X_test, gold) = sets.values()
    heads = [fit(X, y, X_dev, y_dev, X_test, seed) for seed in seeds]
    scores = [100 * spearman(head.predicted, gold) for head in heads]
    other = {
        "pearson": float(np.mean([100 * pearson(head.predicted, gold) for head in heads])),
        "mse": float(np.mean([np.mean((head.predicted - gold) ** 2) for head in heads])),
        "dev_pearson": float(np.mean([100 * head.dev_pearson for head in heads])),
    }
    if len(seeds) > 1:
        other["sd_over_seeds"] = float(np.std(scores, ddof=1))
    return Measured(
        outcomes=Outcomes(restored(gold, order), restored(heads[0].predicted, order)),
        score=float(np.mean(scores)),
        other=other,
        seconds={"reading_embeddings": embedded, "probing": time.perf_counter() - started},
        seeds=tuple(seeds),
    )


def soft_targets(scores: Vector) -> NDArray[np.float32]:
    """(n,) scores → (n, 5): the mass of each whole score 1 … 5; a score of 0 has none."""
    targets = np.zeros((len(scores), SCORES), dtype=np.float32)
    below = np.floor(scores)
    for score in range(1, SCORES + 1):
        targets[:, score - 1] = np.where(below == score, below - scores + 1, 0)
        targets[:, score - 1] += np.where(below + 1 == score, scores - below, 0)
    return targets


def fit(
    X: NDArray[np.float32], y: Vector, X_dev: NDArray[np.float32], y_dev: Vector, X_test: NDArray[np.float32], seed: int
) -> Head:
    """Train a head on rows in the toolkit's order. Raises RunError when the dev rows' correlation is never defined."""
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
        raise RunError("regression head", "its scores of the dev rows never correlate with people's")
    return Head(_means(X_test, weights), best)


def squared_error(targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The derivative by the logits of the squared error of softmax probabilities, a mean over the scores."""

    def error(p: Tensor, at: Tensor) -> Tensor:
        gold = targets.index_select(0, at).view(len(p), 1, -1, SCORES).transpose(2, 3)
        outer = (p - gold) * (2 / SCORES)
        return p * (outer - (p * outer).sum(dim=2, keepdim=True))

    return error


def _means(X: NDArray[np.float32], weights: Tensor) -> Vector:
    """Mean scores (n,) under one head (5, padded)."""
    d = X.shape[1]
    p = torch.softmax(torch.addmm(weights[:, d], torch.from_numpy(X), weights[:, :d].T), dim=1)
    return np.dot(p.numpy(), np.arange(1, SCORES + 1))
