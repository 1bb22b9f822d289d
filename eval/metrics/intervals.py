"""Scores with bootstrap intervals for the modules of the ``evaluate`` library.

``evaluate.load`` copies a single script, so the scripts of the modules import this file from the
installed project. The parser of ``evaluate`` needs one import a line in the scripts.
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


def make_info(
    description: str, inputs: str, citation: str, columns: Mapping[str, str]
) -> evaluate.MetricInfo:
    """Return the description of a module of the ``evaluate`` library.

    Args:
        description: the text about the metric.
        inputs: the text about arguments and results.
        citation: the source of the metric.
        columns: name of an input → its type in the datasets library.
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
    """Return the score of predictions against references: -1 to 1, or 0 to 1 for shares.

    Args:
        predictions: (n,).
        references: (n,).
        metric: the metric.
        aggregation: how the scores of subsets make one score.
        subsets: the subset of each row, (n,); empty: all rows are one subset.
    """
    outcomes = Outcomes(np.asarray(references), np.asarray(predictions), tuple(subsets))
    return compute_score(outcomes, metric, aggregation) / 100


def score_with_intervals(
    predictions: ArrayLike,
    references: ArrayLike,
    metrics: Sequence[Metric],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Return METRIC, METRIC_low and METRIC_high of each metric: score and ends of the interval.

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
