"""Jackknife influence values (how much every row moves a score), in closed form for every metric.

They give a BCa interval its acceleration. Leaving out each of n rows and scoring the rest anew would cost Spearman n
rankings; here all n come from suffix sums over values sorted once and a table of how many rows lie above a row on both
sides: O(n log n + n g) steps, g the number of distinct values of the side that has fewer. People's scores have some
dozens: 0.02 s for 10,000 rows; with 10,000 distinct values on both sides it is 3 s.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eval.scoring.outcomes import Outcomes
from eval.statistics.bootstrap import stratify
from eval.statistics.resampling import ratio, recall_of
from eval.tasks.data.example_types import Vector
from eval.tasks.task import Aggregation, Metric

BLOCK = 128  # distinct values in memory at once, times n


def influence(outcomes: Outcomes, metric: Metric, aggregation: Aggregation = "all") -> Vector:
    """Per row (n,), in the order of the parts: (m - 1) / m x (mean of the leave-one-out scores - the row's), x 100.

    m counts the rows of the row's part, whose values are weighted as its score is (Davison & Hinkley 1997, equations
    2.42 and 5.25). Their sum of squares estimates the score's variance. The influence on a paired difference is the
    difference of the two systems' influences. Rows without which the score is undefined have none.
    """
    gold, predicted = np.asarray(outcomes.gold, dtype=np.float64), np.asarray(outcomes.predicted, dtype=np.float64)
    values = []
    for rows, weight in stratify(outcomes, metric, aggregation):
        left_out = 100 * weight * LEFT_OUT[metric](gold[rows], predicted[rows])
        defined = np.isfinite(left_out)
        mean = left_out[defined].mean() if defined.any() else 0.0
        values.append(np.where(defined, mean - left_out, 0.0) * (len(rows) - 1) / len(rows))
    return np.concatenate(values)


def _spearman(gold: Vector, predicted: Vector) -> Vector:
    """Spearman's correlation without each row in turn.

    Without row i, the rank of row j falls by a_ij = 1 if j lies above i, 1/2 if they tie, else 0 (and i itself goes).
    So the sums of squares and products of the remaining ranks are those of all ranks less sums over the rows above i.
    """
    from scipy.stats import rankdata

    n = len(gold)
    x, y = rankdata(gold), rankdata(predicted)
    mean = n / 2  # of the n - 1 remaining ranks
    product = x @ y - _above(x, y) - _above(y, x) + _both_above(x, y) - _own(x, y)
    spread_x = x @ x - 2 * _above(x, x) + _squares(x) - _own(x, x)
    spread_y = y @ y - 2 * _above(y, y) + _squares(y) - _own(y, y)
    centre = (n - 1) * mean**2
    return ratio(product - centre, np.sqrt(np.maximum(spread_x - centre, 0) * np.maximum(spread_y - centre, 0)))


def _own(x: Vector, y: Vector) -> Vector:
    """What row i itself put into the sum of products: its ranks, each less its own half."""
    return (x - 0.5) * (y - 0.5)


def _above(key: Vector, values: Vector) -> Vector:
    """Sum over j of a_ij values_j, a_ij as above for ``key``: (n,)."""
    group = _groups(key)
    sums = np.bincount(group, weights=values)
    return (np.cumsum(sums[::-1])[::-1] - sums / 2)[group]


def _squares(key: Vector) -> Vector:
    """Sum over j of a_ij²: (n,)."""
    group = _groups(key)
    sums = np.bincount(group).astype(np.float64)
    return (np.cumsum(sums[::-1])[::-1] - sums * 3 / 4)[group]


def _both_above(x: Vector, y: Vector) -> Vector:
    """Sum over j of a_ij b_ij, for x and for y: (n,). The side with fewer distinct values is cut into blocks."""
    columns, many = (_groups(y), _groups(x)) if len(np.unique(y)) <= len(np.unique(x)) else (_groups(x), _groups(y))
    found = np.empty(len(x))
    higher = np.zeros(many.max() + 1)  # rows of the blocks already seen, by the other side's value
    for stop in range(columns.max() + 1, 0, -BLOCK):
        start = max(0, stop - BLOCK)
        inside = np.flatnonzero((columns >= start) & (columns < stop))
        cells = many[inside] * (stop - start) + columns[inside] - start
        counts = np.bincount(cells, minlength=len(higher) * (stop - start)).reshape(len(higher), -1).astype(np.float64)
        table = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts / 2 + higher[:, None]
        halved = np.cumsum(table[::-1], axis=0)[::-1] - table / 2
        found[inside] = halved.ravel()[cells]
        higher += counts.sum(axis=1)
    return found


def _groups(values: Vector) -> NDArray[np.intp]:
    return np.unique(values, return_inverse=True)[1]


def _pearson(gold: Vector, predicted: Vector) -> Vector:
    x, y, n = gold - gold.mean(), predicted - predicted.mean(), len(gold)
    scale = n / (n - 1)  # a row's distance from the others' mean
    product = x @ y - scale * x * y
    return ratio(product, np.sqrt(np.maximum(x @ x - scale * x**2, 0) * np.maximum(y @ y - scale * y**2, 0)))


def _mean(values: Vector) -> Vector:
    return ratio(values.sum() - values, np.full(len(values), len(values) - 1.0))


def _f1(gold: Vector, predicted: Vector) -> Vector:
    positive, chosen = gold == 1, predicted == 1
    hits, either = (positive & chosen).astype(np.float64), positive.astype(np.float64) + chosen
    return ratio(2 * (hits.sum() - hits), either.sum() - either)


LEFT_OUT: dict[Metric, Callable[[Vector, Vector], Vector]] = {  # gold, predicted → scores without each row (n,)
    "spearman": _spearman,
    "pearson": _pearson,
    "accuracy": lambda gold, predicted: _mean((gold == predicted).astype(np.float64)),
    "f1": _f1,
    "recall": lambda gold, predicted: _mean(recall_of(predicted)),
}
