"""Every metric's score of many resamples at once, from how often each of them drew each row.

A metric that is a function of sums is one matrix product; the ranks of Spearman come from cumulative sums over values
sorted once.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eval.tasks.data.example_types import Vector
from eval.tasks.task import Metric

Matrix = NDArray[np.float64]
Statistic = Callable[[Matrix], Matrix]  # how often each row was drawn (rows, resamples) → scores (systems, resamples)
RECALL_AT = (1, 5, 10)


class _Ranking:
    """Values (rows,) sorted once; gives the average ranks of any resample of them."""

    def __init__(self, values: Vector):
        self.order = np.argsort(values, kind="stable")
        _, self.starts, inverse = np.unique(values[self.order], return_index=True, return_inverse=True)
        self.group = np.empty(len(values), dtype=np.intp)
        self.group[self.order] = inverse

    def centred(self, drawn: Matrix) -> Matrix:
        """Average rank of every row in every resample minus the mean rank, (rows, resamples)."""
        weight = np.add.reduceat(drawn[self.order], self.starts, axis=0)  # members of each group of ties drawn
        rank = np.cumsum(weight, axis=0)
        rank -= weight / 2
        rank -= len(drawn) / 2  # the halves of + 1 / 2 and of the mean rank (n + 1) / 2 cancel
        return rank[self.group]


def _spearman(gold: Vector, predicted: Matrix) -> Statistic:
    ranking, rankings = _Ranking(gold), [_Ranking(system) for system in predicted]

    def statistic(drawn: Matrix) -> Matrix:
        y = ranking.centred(drawn)
        weighted = drawn * y
        spread = np.einsum("ij,ij->j", weighted, y)
        scores = []
        for other in rankings:
            x = other.centred(drawn)
            product = np.einsum("ij,ij->j", weighted, x)
            scores.append(ratio(product, np.sqrt(spread * np.einsum("ij,ij,ij->j", drawn, x, x))))
        return np.stack(scores)

    return statistic


def _pearson(gold: Vector, predicted: Matrix) -> Statistic:
    y, x = gold - gold.mean(), predicted - predicted.mean(axis=1, keepdims=True)
    n, systems = len(gold), len(predicted)
    columns = np.concatenate([y[None], y[None] ** 2, x, x**2, x * y])

    def statistic(drawn: Matrix) -> Matrix:
        means = columns @ drawn / n
        y1, y2 = means[0], means[1]
        x1, x2, xy = (means[2 + k * systems : 2 + (k + 1) * systems] for k in range(3))
        spread = _positive(x2 - x1**2, x2) * _positive(y2 - y1**2, y2)
        return ratio(xy - x1 * y1, np.sqrt(spread))

    return statistic


def _positive(variance: Matrix, square: Matrix) -> Matrix:
    """``variance``, or 0 where it is rounding: a constant side."""
    return np.where(variance > 1e-12 * square, variance, 0.0)


def recall_of(ranks: Matrix) -> Matrix:
    """Per row, the mean over k = 1, 5, 10 of whether the first right answer is among the first k; ranks from 0."""
    return np.mean([ranks < k for k in RECALL_AT], axis=0)


def _mean(values: Matrix) -> Statistic:
    return lambda drawn: values @ drawn / len(drawn)


def _f1(gold: Vector, predicted: Matrix) -> Statistic:
    """F1 of class 1: twice the hits over gold plus predicted positives."""
    positive, chosen = (gold == 1).astype(np.float64), (predicted == 1).astype(np.float64)
    return lambda drawn: ratio(2 * (chosen * positive) @ drawn, chosen @ drawn + positive @ drawn)


def ratio(above: Matrix, below: Matrix) -> Matrix:
    """``above / below``, NaN where ``below`` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


STATISTICS: dict[Metric, Callable[[Vector, Matrix], Statistic]] = {  # gold (rows,), predicted (systems, rows)
    "spearman": _spearman,
    "pearson": _pearson,
    "accuracy": lambda gold, predicted: _mean((predicted == gold).astype(np.float64)),
    "f1": _f1,
    "recall": lambda gold, predicted: _mean(recall_of(predicted)),
}
