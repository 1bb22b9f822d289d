"""Spearman's and Pearson's correlation with bootstrap intervals, as a module of the ``evaluate`` library.

Stand-alone, since ``evaluate.load`` fetches this file alone, with one import a line, as its parser wants.
"""

from collections.abc import Callable, Sequence

import datasets
import evaluate
import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
Score = Callable[[NDArray[np.int64]], Array]  # rows of every resample (resamples, n) -> its score (resamples,)
CELLS = 1_000_000  # rows x resamples in memory at once

DESCRIPTION = """
Spearman's and Pearson's correlation (-1 to 1) of predicted with gold scores, each with a percentile bootstrap interval
over the pairs. Ranks are computed anew in every resample; one with a constant side is left out.
"""

INPUTS = """
Args:
    predictions (list of float): predicted scores, e.g. cosines of two sentence embeddings.
    references (list of float): gold scores.
    resamples (int): number of bootstrap resamples, 1000 by default.
    level (float): share of the resamples inside the interval, 0.95 by default.
    seed (int): of the resampling, 0 by default.
Returns:
    spearman, spearman_low, spearman_high, pearson, pearson_low, pearson_high (float).
"""

CITATION = "Efron and Tibshirani (1993): An Introduction to the Bootstrap. Chapman and Hall."


class CorrelationInterval(evaluate.Metric):
    """``compute(predictions=, references=)``: both correlations and their intervals."""

    def _info(self) -> evaluate.MetricInfo:
        columns = {"predictions": datasets.Value("float64"), "references": datasets.Value("float64")}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(columns),
        )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        resamples: int = 1000,
        level: float = 0.95,
        seed: int = 0,
    ) -> dict[str, float]:
        x, y = np.asarray(predictions, dtype=np.float64), np.asarray(references, dtype=np.float64)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError("a prediction or reference is not finite")
        if np.ptp(x) == 0 or np.ptp(y) == 0:
            raise ValueError("a correlation with a constant is undefined")
        scores: dict[str, Score] = {
            "spearman": lambda rows: pearson(rankdata(x[rows], axis=1), rankdata(y[rows], axis=1)),
            "pearson": lambda rows: pearson(x[rows], y[rows]),
        }
        found = {}
        for name, score in scores.items():
            found[name] = float(score(np.arange(len(x))[None])[0])
            found[f"{name}_low"], found[f"{name}_high"] = interval(score, len(x), resamples, level, seed)
        return found


def pearson(x: Array, y: Array) -> Array:
    """Pearson's correlation of every row of x with that of y, (resamples, n) twice -> (resamples,); NaN if constant."""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    spread = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), spread, out=np.full(len(x), np.nan), where=spread > 0)


def interval(score: Score, n: int, resamples: int, level: float, seed: int) -> tuple[float, float]:
    """The percentile bootstrap interval of a score over ``n`` rows (Efron and Tibshirani 1993, chapter 13).

    Resamples without a defined score are left out. Raises ValueError when none has one.
    """
    generator, size, scores = np.random.default_rng([seed, 0]), max(1, CELLS // n), []
    for start in range(0, resamples, size):
        scores.append(score(generator.integers(0, n, size=(min(size, resamples - start), n))))
    drawn = np.concatenate(scores)
    if not np.isfinite(drawn).any():
        raise ValueError(f"{n} rows are too few, or too alike, to resample")
    tail = 50 * (1 - level)
    low, high = np.nanpercentile(drawn, [tail, 100 - tail])
    return float(low), float(high)
