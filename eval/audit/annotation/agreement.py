"""How well two label the same things: the confusion table, the share of equal labels, Cohen's κ and its interval.

κ = 1 - Σ w·observed / Σ w·expected over the cells of the table (Cohen 1960; weighted: Cohen 1968), with weights w of 1
off the diagonal, or the distance of the two labels in the scale's order (linear) or its square (quadratic).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.audit.annotation.sample import Scale

WEIGHTS = ("linear", "quadratic")
SAMPLES = 2_000
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """Two raters on the same ``n`` items. A κ is None where it is undefined: both gave one and the same label only.

    ``counts``: (labels, labels), row = the first rater's label, column = the second's. ``same``: percent, with Wilson's
    interval; the κ have percentile bootstrap intervals over the items.
    """

    counts: Counts
    n: int
    same: Estimate
    kappa: Estimate | None
    weighted: dict[str, Estimate | None]  # weights → κ; empty when the scale has no order


def agreement(first: Sequence[str], second: Sequence[str], scale: Scale, seed: int = 0) -> Agreement:
    """Agreement of two raters' labels, item by item; at least one item.

    The bootstrap draws items with replacement. κ depends on the table alone, so its resamples are drawn as tables: from
    the multinomial of the observed cells, which is the same distribution.
    """
    from scipy.stats import binomtest
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(first, second, labels=list(scale.labels))
    n = len(first)
    hits = binomtest(int(np.trace(counts)), n)
    around = hits.proportion_ci(method="wilson")
    same = Estimate(100 * hits.statistic, 100 * around.low, 100 * around.high)
    tables = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=SAMPLES).reshape(-1, *counts.shape)
    weighted = {kind: _kappa(first, second, scale, tables, kind) for kind in WEIGHTS if scale.ordered}
    return Agreement(counts, n, same, _kappa(first, second, scale, tables, None), weighted)


def column_percent(counts: Counts) -> NDArray[np.float64]:
    """Each column in percent of its sum, as in DINO's Table 3; NaN where the column is empty."""
    sums = counts.sum(axis=0)
    return 100 * np.divide(counts, sums, out=np.full(counts.shape, np.nan), where=sums > 0)


def kappas(tables: Counts, weights: str | None = None) -> NDArray[np.float64]:
    """Cohen's κ of many confusion tables (tables, labels, labels) → (tables,); NaN where it is undefined."""
    places = np.arange(tables.shape[-1])
    distance = np.abs(places[:, None] - places).astype(float)
    cost = {None: distance > 0, "linear": distance, "quadratic": distance**2}[weights]
    expected = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :] / tables.sum(axis=(1, 2))[:, None, None]
    observed_cost, expected_cost = (cost * tables).sum(axis=(1, 2)), (cost * expected).sum(axis=(1, 2))
    ratio = np.full(len(tables), np.nan)
    return 1 - np.divide(observed_cost, expected_cost, out=ratio, where=expected_cost > 0)


def _kappa(
    first: Sequence[str], second: Sequence[str], scale: Scale, tables: Counts, weights: str | None
) -> Estimate | None:
    from sklearn.metrics import cohen_kappa_score

    if len({*first, *second}) == 1:
        return None
    value = cohen_kappa_score(first, second, labels=list(scale.labels), weights=weights)
    resampled = kappas(tables, weights)
    low, high = np.percentile(resampled[~np.isnan(resampled)], [2.5, 97.5])
    return Estimate(float(value), float(low), float(high))
