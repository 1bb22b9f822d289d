"""Accuracy and F1 of a classifier with bootstrap intervals, for the ``evaluate`` library."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from sts_dino.eval.scoring import bootstrap
from sts_dino.eval.tasks.task import Metric

DESCRIPTION = """
Accuracy (0 to 1) of predicted classes and, where all classes are 0 or 1 and a 1 occurs, the F1 of
class 1, each with a percentile bootstrap interval over the examples: for probes trained on sentence
embeddings.
"""

INPUTS = """
Args:
    predictions (list of int): predicted classes.
    references (list of int): gold classes.
    resamples (int): number of bootstrap resamples, 1000 by default.
    level (float): share of the resamples inside the interval, 0.95 by default.
    seed (int): seed of the resampling, 0 by default.
Returns:
    accuracy, accuracy_low, accuracy_high and, where all classes are 0 or 1 and a 1 occurs, f1,
    f1_low, f1_high (float).
"""

CITATION = "Efron and Tibshirani (1993): An Introduction to the Bootstrap. Chapman and Hall."


class ProbeAccuracy(evaluate.Metric):
    """``compute(predictions=, references=)``: accuracy, F1 where defined, and their intervals."""

    def _info(self) -> evaluate.MetricInfo:
        # Return the texts about the metric, and the type of its two inputs
        value = datasets.Value("int64")
        return evaluate.MetricInfo(
            description=DESCRIPTION,
            citation=CITATION,
            inputs_description=INPUTS,
            features=datasets.Features({"predictions": value, "references": value}),
        )

    def _compute(
        self, predictions: Sequence[int], references: Sequence[int], **options: Any
    ) -> dict[str, float]:
        """Return the results that ``INPUTS`` lists; ``options`` are resamples, level and seed.

        Raises RunError when F1 is undefined in nearly all resamples.
        """
        # F1 of class 1 is undefined without a 1
        classes = {*predictions, *references}
        metrics: list[Metric] = ["accuracy"]
        if classes <= {0, 1} and 1 in classes:
            metrics.append("f1")
        return bootstrap.score_with_intervals(predictions, references, metrics, **options)
