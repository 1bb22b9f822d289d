"""Spearman's and Pearson's correlation with bootstrap intervals, for the ``evaluate`` library."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from sts_dino.eval.scoring import bootstrap

DESCRIPTION = """
Spearman's and Pearson's correlation (-1 to 1) of predicted with gold scores, each with a percentile
bootstrap interval over the pairs. Ranks are computed anew in every resample; a resample with a
constant side is drawn again.
"""

INPUTS = """
Args:
    predictions (list of float): predicted scores, e.g. cosines of two sentence embeddings.
    references (list of float): gold scores.
    resamples (int): number of bootstrap resamples, 1000 by default.
    level (float): share of the resamples inside the interval, 0.95 by default.
    seed (int): seed of the resampling, 0 by default.
Returns:
    spearman, spearman_low, spearman_high, pearson, pearson_low, pearson_high (float).
"""

CITATION = "Efron and Tibshirani (1993): An Introduction to the Bootstrap. Chapman and Hall."


class CorrelationInterval(evaluate.Metric):
    """``compute(predictions=, references=)``: both correlations and their intervals."""

    def _info(self) -> evaluate.MetricInfo:
        # Return the texts about the metric, and the type of its two inputs
        value = datasets.Value("float64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(
        self, predictions: Sequence[float], references: Sequence[float], **options: Any
    ) -> dict[str, float]:
        """Return the results that ``INPUTS`` lists; ``options`` are resamples, level and seed.

        Raises ValueError for fewer than two rows or no resample, when all predictions or all
        references are equal, and when a value is not finite; RunError when nearly all resamples
        have a constant side.
        """
        bootstrap.require_correlation(predictions, references)
        return bootstrap.score_with_intervals(
            predictions, references, ("spearman", "pearson"), **options
        )
