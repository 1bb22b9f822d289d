"""Tests for two systems scored on the same rows: any score, accuracies, and many tasks at once. All are two-sided."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.tasks.data.example_types import Vector


@dataclass(frozen=True)
class Test:
    """A test's name, its statistic (positive: the first system is better) and its two-sided p-value."""

    name: str
    statistic: float
    p: float

    __test__ = False  # not a test case of pytest


def jackknife_z(difference: float, influence: Vector) -> Test:
    """Any difference of two scores over its jackknife standard error, against a normal distribution.

    ``influence`` (n,) is that of every row on the difference (``eval.statistics.jackknife``), in the same unit; its sum
    of squares estimates the variance (Davison & Hinkley 1997, section 2.7). It asks nothing of the distribution of the
    rows: Williams' t, which is derived for normal ones, errs on ranks twice as often as it says
    (``benchmarks/evaluation/verdicts.py``).
    """
    from scipy import stats

    spread = float(np.sqrt(np.sum(influence**2)))
    if spread == 0:
        return Test("jackknife z", 0.0, 1.0 if difference == 0 else 0.0)
    statistic = difference / spread
    return Test("jackknife z", statistic, float(2 * stats.norm.sf(abs(statistic))))


def mcnemar(gold: Vector, first: Vector, second: Vector) -> Test:
    """McNemar's exact test of two accuracies: is a row that one system alone has right as often the first's (1947)?"""
    from scipy import stats

    right, other = np.asarray(first) == gold, np.asarray(second) == gold
    wins, losses = int((right & ~other).sum()), int((~right & other).sum())
    p = float(stats.binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
    return Test("McNemar's exact test", float(wins - losses), p)


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
