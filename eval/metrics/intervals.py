"""Scores with bootstrap intervals for the metric modules of the ``evaluate`` library.

``evaluate.load`` copies a single script, so the modules' scripts import this file from the
installed project. The parser of ``evaluate`` needs each import of a script on its own line.
"""

from collections.abc import Mapping, Sequence

import datasets
import evaluate
import numpy as np
from numpy.typing import ArrayLike

from sts_dino.eval.scoring.outcomes import Outcomes
from sts_dino.eval.statistics.bootstrap import compute_interval, compute_score, resample
from sts_dino.eval.tasks.task import Aggregation, Metric

CORRELATIONS: tuple[Metric, ...] = ("spearman", "pearson")
ACCURACY: tuple[Metric, ...] = ("accuracy",)
ACCURACY_AND_F1: tuple[Metric, ...] = ("accuracy", "f1")


def make_info(
    description: str, inputs: str, citation: str, columns: Mapping[str, str]
) -> evaluate.MetricInfo:
    """Make the ``MetricInfo`` of a metric module of the ``evaluate`` library.

    Args:
        description: the text about the metric.
        inputs: the text about arguments and results.
        citation: the source of the metric.
        columns: name of an input → its dtype in the datasets library, e.g. "float64".
    """
    features = {name: datasets.Value(dtype) for name, dtype in columns.items()}
    return evaluate.MetricInfo(
        description=description,
        citation=citation,
        inputs_description=inputs,
        features=datasets.Features(features),
    )


def require_correlation(predictions: ArrayLike, references: ArrayLike, place: str = "") -> None:
    """Raise ValueError when the correlation of predictions and references is undefined.

    Both are (n,). ``place`` begins the message, e.g. "subset: ".
    """
    numbers = np.array([predictions, references], dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{place}a prediction or reference is not finite")
    if (np.ptp(numbers, axis=1) == 0).any():
        raise ValueError(f"{place}a correlation with a constant is undefined")


def score(
    predictions: ArrayLike,
    references: ArrayLike,
    metric: Metric,
    aggregation: Aggregation = "all",
    subsets: Sequence[str] = (),
) -> float:
    """Return the score of predictions against references.

    Correlations are -1 to 1, accuracy and F1 are 0 to 1. Raises RunError when the score is
    undefined.

    Args:
        predictions: (n,).
        references: (n,).
        metric: the metric.
        aggregation: how the scores of subsets make one score.
        subsets: the subset of each row, (n,); empty: all rows are one subset.
    """
    outcomes = Outcomes(np.asarray(references), np.asarray(predictions), tuple(subsets))
    points = compute_score(outcomes, metric, aggregation)  # x 100
    return points / 100


def score_with_intervals(
    predictions: ArrayLike,
    references: ArrayLike,
    metrics: Sequence[Metric],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Return METRIC, METRIC_low and METRIC_high of each metric: the score and its interval.

    Args:
        predictions: (n,).
        references: (n,).
        metrics: the metrics.
        resamples: number of bootstrap resamples.
        level: share of the resamples inside the interval.
        seed: seed of the resampling.

    Raises RunError when the score, or the score of nearly all resamples, is undefined.
    """
    outcomes = Outcomes(np.asarray(references), np.asarray(predictions))
    scores: dict[str, float] = {}
    for metric in metrics:
        samples = resample([outcomes], metric, samples=resamples, seed=seed)[0]
        interval = compute_interval(samples / 100, level)
        scores[metric] = score(predictions, references, metric)
        scores[f"{metric}_low"] = interval.low
        scores[f"{metric}_high"] = interval.high
    return scores
