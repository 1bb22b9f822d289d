"""A correlation over the subsets of an STS task in three aggregations, for ``evaluate``."""

from collections.abc import Sequence
from typing import Any

import evaluate
import numpy as np

from sts_dino.eval.metrics import intervals

DESCRIPTION = """
The correlation (-1 to 1) of predicted with gold similarities over a semantic textual similarity
task of several subsets, aggregated in the three ways that papers use, which differ by several
points: `all` (one correlation over the pairs of all subsets together), `mean` (of the subsets'
correlations) and `wmean` (weighted by their pairs).
"""

INPUTS = """
Args:
    predictions (list of float): predicted similarities.
    references (list of float): gold similarities.
    subsets (list of str): the subset of every pair.
    correlation (str): "spearman" (by default) or "pearson".
Returns:
    all, mean, wmean (float), and subsets: name -> {"score", "n"}.
"""

CITATION = (
    "Conneau and Kiela (2018): SentEval: An Evaluation Toolkit for Universal Sentence "
    "Representations. LREC."
)


class StsAggregation(evaluate.Metric):
    """``compute(predictions=, references=, subsets=)``: three aggregations, and each subset."""

    def _info(self) -> evaluate.MetricInfo:
        columns = {"predictions": "float64", "references": "float64", "subsets": "string"}
        return intervals.make_info(DESCRIPTION, INPUTS, CITATION, columns)

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        subsets: Sequence[str],
        correlation: str = "spearman",
    ) -> dict[str, Any]:
        """Return the results that ``INPUTS`` lists.

        Raises ValueError for an unknown correlation, and for a subset in which a side is constant
        or not finite.
        """
        if correlation not in intervals.CORRELATIONS:
            raise ValueError(f"unknown correlation {correlation!r}; allowed: spearman, pearson")

        # Score every subset
        predicted = np.asarray(predictions)
        gold = np.asarray(references)
        subset_of_row = np.asarray(subsets)
        subset_scores = {}
        for name in dict.fromkeys(subsets):
            in_subset = subset_of_row == name
            intervals.require_correlation(predicted[in_subset], gold[in_subset], f"{name}: ")
            score = intervals.score(predicted[in_subset], gold[in_subset], correlation)
            subset_scores[name] = {"score": score, "n": int(in_subset.sum())}

        # Aggregate in three ways
        scores = {}
        for aggregation in ("all", "mean", "wmean"):
            scores[aggregation] = intervals.score(
                predicted, gold, correlation, aggregation, subsets
            )
        return scores | {"subsets": subset_scores}
