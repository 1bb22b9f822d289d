"""Tests for two systems scored on the same rows: correlations that share the gold, accuracies, and many tasks at once.

All are two-sided. For Spearman they are applied to the ranks, as is usual; that is an approximation, because their
distributions are derived for normal data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from eval.data.forms import Vector

LARGEST = 1 - 1e-12  # a correlation of 1 has no Fisher z


@dataclass(frozen=True)
class Test:
    """A test's name, its statistic (positive: the first system is better) and its two-sided p-value."""

    name: str
    statistic: float
    p: float

    __test__ = False  # not a test case of pytest


def williams(first: float, second: float, between: float, n: int) -> Test:
    """Williams' t with n - 3 degrees of freedom: are two correlations with the gold equal?

    first, second: each system's correlation with the gold; between: that of the two systems; n: rows, above 3 (Williams
    1959; recommended by Steiger 1980, equation 7).
    """
    if between > LARGEST:
        return Test("Williams' t", 0.0, 1.0)
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    mean = (first + second) / 2
    spread = 2 * determinant * (n - 1) / (n - 3) + mean**2 * (1 - between) ** 3
    statistic = (first - second) * float(np.sqrt((n - 1) * (1 + between) / spread))
    return Test("Williams' t", statistic, float(2 * stats.t.sf(abs(statistic), n - 3)))


def steiger(first: float, second: float, between: float, n: int, pooled: bool = True) -> Test:
    """Steiger's Z for the same question (Steiger 1980, equation 14), or, not ``pooled``, Dunn & Clark's (1969).

    The difference of Fisher's z over its standard error; ``pooled`` takes the covariance at the two correlations' mean.
    """
    name = "Steiger's Z" if pooled else "Dunn and Clark's z"
    if between > LARGEST:
        return Test(name, 0.0, 1.0)
    a, b = ((first + second) / 2,) * 2 if pooled else (first, second)
    psi = between * (1 - a**2 - b**2) - a * b * (1 - a**2 - b**2 - between**2) / 2
    covariance = psi / ((1 - a**2) * (1 - b**2))
    fisher = np.arctanh(np.clip([first, second], -LARGEST, LARGEST))
    statistic = float((fisher[0] - fisher[1]) * np.sqrt((n - 3) / (2 - 2 * covariance)))
    return Test(name, statistic, float(2 * stats.norm.sf(abs(statistic))))


def correlations(gold: Vector, first: Vector, second: Vector, ranks: bool) -> tuple[float, float, float]:
    """(first with gold, second with gold, first with second): what the tests above take. ``ranks``: Spearman's."""
    columns = [stats.rankdata(column) if ranks else column for column in (first, second, gold)]
    matrix = np.corrcoef(np.stack(columns))
    return float(matrix[0, 2]), float(matrix[1, 2]), float(matrix[0, 1])


def mcnemar(gold: Vector, first: Vector, second: Vector) -> Test:
    """McNemar's exact test of two accuracies: is a row that one system alone has right as often the first's (1947)?"""
    right, other = np.asarray(first) == gold, np.asarray(second) == gold
    wins, losses = int((right & ~other).sum()), int((~right & other).sum())
    p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return Test("McNemar's exact test", float(wins - losses), p)


def bootstrap_z(difference: float, samples: Vector) -> Test:
    """The difference over the standard deviation of its paired bootstrap ``samples``, against a normal distribution.

    For scores without a test of their own. A count of the resamples beyond 0 could not go below 2 / samples, which a
    correction over many tasks would always find too large.
    """
    spread = float(np.std(samples, ddof=1))
    if spread == 0:
        return Test("bootstrap z", 0.0, 1.0 if difference == 0 else 0.0)
    return Test("bootstrap z", difference / spread, float(2 * stats.norm.sf(abs(difference) / spread)))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, in the order given (Holm 1979).

    The k-th smallest of m is multiplied by m - k + 1, never below a smaller one's adjusted value, nor above 1. Calling
    all below 0.05 significant errs anywhere with probability at most 0.05, however the tests depend on one another.
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(scaled, 1.0)
    return [float(value) for value in adjusted]
