"""Accuracy and F1 of a classifier with bootstrap intervals, as a module of the ``evaluate`` library.

Stand-alone, since ``evaluate.load`` fetches this file alone, with one import a line, as its parser wants.
"""

from collections.abc import Callable, Sequence

import datasets
import evaluate
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Score = Callable[[NDArray[np.int64]], Array]  # rows of every resample (resamples, n) -> its score (resamples,)
CELLS = 1_000_000  # rows x resamples in memory at once

DESCRIPTION = """
Accuracy (0 to 1) of predicted classes and, where there are only the classes 0 and 1, the F1 of class 1, each with a
percentile bootstrap interval over the examples: for probes trained on sentence embeddings.
"""

INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): gold classes.
    resamples (int): number of bootstrap resamples, 1000 by default.
    level (float): share of the resamples inside the interval, 0.95 by default.
    seed (int): of the resampling, 0 by default.
Returns:
    accuracy, accuracy_low, accuracy_high and, for two classes, f1, f1_low, f1_high (float).
"""

CITATION = "Efron and Tibshirani (1993): An Introduction to the Bootstrap. Chapman and Hall."


class ProbeAccuracy(evaluate.Metric):
    """``compute(predictions=, references=)``: accuracy, F1 where it is defined, and their intervals."""

    def _info(self) -> evaluate.MetricInfo:
        columns = {"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(columns),
        )

    def _compute(
        self,
        predictions: Sequence[int],
        references: Sequence[int],
        resamples: int = 1000,
        level: float = 0.95,
        seed: int = 0,
    ) -> dict[str, float]:
        chosen, gold = np.asarray(predictions), np.asarray(references)
        hits = (chosen == gold).astype(np.float64)
        scores: dict[str, Score] = {"accuracy": lambda rows: hits[rows].mean(axis=1)}
        # F1 = hits / mean of chosen and gold positives
        positives = ((chosen == 1).astype(np.float64) + (gold == 1)) / 2
        if set(gold.tolist()) | set(chosen.tolist()) <= {0, 1} and positives.any():
            right = hits * (gold == 1)
            scores["f1"] = lambda rows: ratio(right[rows].sum(axis=1), positives[rows].sum(axis=1))
        found = {}
        for name, score in scores.items():
            found[name] = float(score(np.arange(len(gold))[None])[0])
            found[f"{name}_low"], found[f"{name}_high"] = interval(score, len(gold), resamples, level, seed)
        return found


def ratio(above: Array, below: Array) -> Array:
    """``above / below``, NaN where ``below`` is 0."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


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
