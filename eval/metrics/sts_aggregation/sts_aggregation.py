"""A correlation over the subsets of an STS task in three aggregations, for ``evaluate``."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from sts_dino.eval.scoring import bootstrap
from sts_dino.eval.tasks.task import Metric, Outcomes

DESCRIPTION = """
The correlation (-1 to 1) of predicted with gold similarities over a semantic textual similarity
task of several subsets, aggregated in the three ways that papers use, which differ by several
points: `all` (one correlation over the pairs of all subsets together), `mean` (the mean of the
subsets' correlations) and `wmean` (their mean, weighted by the subsets' numbers of pairs).
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
        # Return the texts about the metric, and the types of its three inputs
        columns = {"predictions": "float64", "references": "float64", "subsets": "string"}
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features(
                {name: datasets.Value(dtype) for name, dtype in columns.items()}
            ),
        )

    def _compute(
        self,
        predictions: Sequence[float],
        references: Sequence[float],
        subsets: Sequence[str],
        correlation: Metric = "spearman",
    ) -> dict[str, Any]:
        """Return the results that ``INPUTS`` lists; all inputs are (n,).

        Raises ValueError for an unknown correlation, and for a subset in which a side is constant
        or not finite.
        """
        if correlation not in ("spearman", "pearson"):
            raise ValueError(f"unknown correlation {correlation!r}; allowed: spearman, pearson")

        # Score every subset
        predicted = np.asarray(predictions)
        gold = np.asarray(references)
        subset_of_row = np.asarray(subsets)
        subset_scores = {}
        for name in dict.fromkeys(subsets):
            in_subset = subset_of_row == name
            bootstrap.require_correlation(predicted[in_subset], gold[in_subset], f"{name}: ")
            outcomes = Outcomes(gold[in_subset], predicted[in_subset])
            points = bootstrap.compute_score(outcomes, correlation)  # x 100
            subset_scores[name] = {"score": points / 100, "n": len(outcomes)}

        # Aggregate in three ways
        scores: dict[str, Any] = {"subsets": subset_scores}
        outcomes = Outcomes(gold, predicted, tuple(subsets))
        for aggregation in ("all", "mean", "wmean"):
            scores[aggregation] = bootstrap.compute_score(outcomes, correlation, aggregation) / 100
        return scores
