"""How sure a correlation is: percentile bootstrap over sentence pairs, for one system and for the gain between two.

Sentence pairs are drawn with replacement (Efron & Tibshirani 1993, chapter 13); ranks are computed anew in every
resample. A resample is kept as the number of times each pair was drawn, so ranks come from cumulative sums over values
sorted once, not from sorting 1000 times. All systems are scored on the same resamples, so their differences are paired.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.sts import Vector

CHUNK = 200  # resamples held in memory at once; part of the result, as draws are made chunk by chunk


@dataclass(frozen=True)
class Interval:
    """A 95 % percentile interval, in the unit of what was resampled."""

    low: float
    high: float


def interval(samples: Vector, level: float = 0.95) -> Interval:
    """The central ``level`` interval of bootstrap ``samples`` (n,)."""
    tail = 50 * (1 - level)
    low, high = np.percentile(samples, [tail, 100 - tail])
    return Interval(float(low), float(high))


def bootstrap_spearman(gold: Vector, systems: NDArray[np.float64], samples: int, seed: int) -> NDArray[np.float64]:
    """Spearman correlations of every system with ``gold`` over ``samples`` resamples of the pairs.

    gold: (pairs,); systems: (systems, pairs) → (systems, samples), values -1…1. A resample in which one side happens to
    be constant (possible with a handful of pairs) is drawn again.
    """
    generator = np.random.default_rng(seed)
    ranking, rankings = _Ranking(gold), [_Ranking(system) for system in systems]
    parts: list[NDArray[np.float64]] = []
    found = 0
    for _ in range(100 * (1 + samples // CHUNK)):
        if found >= samples:
            break
        drawn = _draw(generator, CHUNK, len(gold))
        gold_ranks = ranking.centred(drawn)
        part = np.stack([_correlation(drawn, gold_ranks, other.centred(drawn)) for other in rankings])
        parts.append(part[:, np.isfinite(part).all(axis=0)])
        found += parts[-1].shape[1]
    if found < samples:
        raise ValueError(f"{len(gold)} pairs are too few (or too alike) to resample")
    return np.concatenate(parts, axis=1)[:, :samples]


def _draw(generator: np.random.Generator, resamples: int, pairs: int) -> NDArray[np.float64]:
    """How often each pair was drawn: (resamples, pairs), every row summing to ``pairs``."""
    chosen = generator.integers(0, pairs, size=(resamples, pairs))
    cells = (chosen + np.arange(resamples)[:, None] * pairs).ravel()
    return np.bincount(cells, minlength=resamples * pairs).reshape(resamples, pairs).astype(np.float64)


class _Ranking:
    """Values sorted once; gives the average ranks of any resample of them."""

    def __init__(self, values: Vector):
        self.order = np.argsort(values, kind="stable")
        _, starts, inverse = np.unique(values[self.order], return_index=True, return_inverse=True)
        self.starts = starts  # where each group of tied values begins, in sorted order
        self.group = np.empty(len(values), dtype=np.intp)
        self.group[self.order] = inverse

    def centred(self, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Average rank of every pair in every resample minus the mean rank, (resamples, pairs)."""
        weight = np.add.reduceat(drawn[:, self.order], self.starts, axis=1)  # members of each tie group drawn
        rank = np.cumsum(weight, axis=1) - (weight - 1) / 2
        return rank[:, self.group] - (drawn.shape[1] + 1) / 2


def _correlation(drawn: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64]) -> Vector:
    """Pearson correlation of centred x and y, each pair counted as often as drawn: (resamples,); NaN if constant."""
    weighted = drawn * x
    spread = np.einsum("ij,ij->i", weighted, x) * np.einsum("ij,ij,ij->i", drawn, y, y)
    product = np.einsum("ij,ij->i", weighted, y)
    return np.divide(product, np.sqrt(spread), out=np.full_like(product, np.nan), where=spread > 0)
