"""Percentile bootstrap intervals of every metric, of several systems on the same resamples.

Rows are drawn with replacement (Efron & Tibshirani 1993, chapter 13). Where a score is a mean over
parts, rows are drawn within every part. A resample is stored as the number of times that each row
was drawn, so that many resamples are scored at once: by one matrix product for sums, by cumulative
sums for Spearman's ranks. 1,000 resamples of 10,000 rows for two systems take 0.9 s for Spearman.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, Field

from sts_dino.eval.tasks.rows import Vector
from sts_dino.eval.tasks.task import Aggregation, Measured, Metric, Outcomes, Task
from sts_dino.hub.contract.results import Limit, Method, Part, TaskScore
from sts_dino.hub.errors import RunError

Matrix = NDArray[np.float64]
# Function from how often each row was drawn (rows, resamples) to scores (systems, resamples)
Statistic = Callable[[Matrix], Matrix]


class _Ranking:
    """Values (rows,), sorted once to compute average ranks in any resample."""

    def __init__(self, values: Vector):
        """Sort values (rows,) into groups of ties.

        ``order`` sorts the rows, ``starts`` has the first position of each group in this order, and
        ``group`` the number of each row's group, (rows,).
        """
        self.order = np.argsort(values, kind="stable")
        _, self.starts, sorted_groups = np.unique(
            values[self.order], return_index=True, return_inverse=True
        )
        self.group = np.empty(len(values), dtype=np.intp)
        self.group[self.order] = sorted_groups

    def compute_centred_ranks(self, drawn: Matrix) -> Matrix:
        """Compute each row's average rank minus the mean rank in each resample.

        ``drawn`` and the result are (rows, resamples). With n rows, g draws from the row's group of
        ties and b draws from lower groups, the average rank is b + (g + 1) / 2, and the mean rank
        is (n + 1) / 2.
        """
        # Count the draws from each group of ties
        group_draws = np.add.reduceat(drawn[self.order], self.starts, axis=0)

        # b + g / 2 - n / 2, as the halves of both ranks cancel; the sum over groups is b + g
        rank = np.cumsum(group_draws, axis=0)
        rank -= group_draws / 2
        rank -= len(drawn) / 2
        return rank[self.group]


def _make_spearman(gold: Vector, predicted: Matrix) -> Statistic:
    """Make the statistic: Spearman's correlation of ``gold`` (rows,) with each system's values.

    ``predicted`` is (systems, rows). A resample in which either is constant has no correlation:
    NaN.
    """
    gold_ranking = _Ranking(gold)
    rankings = [_Ranking(system) for system in predicted]

    def compute_statistic(drawn: Matrix) -> Matrix:
        # Spearman's correlation is Pearson's correlation of the centred ranks x and y, in which a
        # row counts as often as it was drawn
        y = gold_ranking.compute_centred_ranks(drawn)
        drawn_y = drawn * y
        y_squares = np.einsum("ij,ij->j", drawn_y, y)
        scores = []
        for ranking in rankings:
            x = ranking.compute_centred_ranks(drawn)
            products = np.einsum("ij,ij->j", drawn_y, x)
            x_squares = np.einsum("ij,ij,ij->j", drawn, x, x)
            scores.append(_divide(products, np.sqrt(y_squares * x_squares)))
        # Rounding errors may leave the range of a correlation
        return np.clip(np.stack(scores), -1, 1)

    return compute_statistic


def _make_pearson(gold: Vector, predicted: Matrix) -> Statistic:
    """Make the statistic: Pearson's correlation of ``gold`` (rows,) with each system's values.

    ``predicted`` is (systems, rows). A resample in which either is constant has no correlation:
    NaN.
    """
    # Centred values lose less precision in the differences of means below
    y = (gold - gold.mean())[None]
    x = predicted - predicted.mean(axis=1, keepdims=True)
    columns = np.concatenate([y, y**2, x, x**2, x * y])

    def compute_statistic(drawn: Matrix) -> Matrix:
        # Means over the rows of a resample: y and y² (resamples,), x, x², xy (systems, resamples)
        means = columns @ drawn / len(gold)
        y1, y2 = means[0], means[1]
        x1, x2, xy = np.split(means[2:], 3)
        x_variance = x2 - x1**2
        y_variance = y2 - y1**2
        # A variance below 1e-12 of the mean square consists of rounding errors: it is 0
        x_variance = np.where(x_variance > 1e-12 * x2, x_variance, 0.0)
        y_variance = np.where(y_variance > 1e-12 * y2, y_variance, 0.0)
        # Rounding errors may leave the range of a correlation
        return np.clip(_divide(xy - x1 * y1, np.sqrt(x_variance * y_variance)), -1, 1)

    return compute_statistic


def _make_mean(_: Vector, values: Matrix) -> Statistic:
    """Make the statistic: the mean over drawn rows of each system's ``values`` (systems, rows).

    The gold values are unused: every function of ``STATISTIC_OF_METRIC`` takes them.
    """
    return lambda drawn: values @ drawn / len(drawn)


def _make_accuracy(gold: Vector, predicted: Matrix) -> Statistic:
    """Make the statistic: the share of drawn rows whose predicted class is the gold class.

    ``gold`` (rows,) and ``predicted`` (systems, rows) are indices of classes.
    """
    is_right = (predicted == gold).astype(np.float64)
    return _make_mean(gold, is_right)


def _make_f1(gold: Vector, predicted: Matrix) -> Statistic:
    """Make the statistic: F1 of class 1, twice the hits over gold plus predicted positives.

    ``gold`` (rows,) and ``predicted`` (systems, rows) are indices of classes. A resample without
    gold and predicted positives has no F1: NaN.
    """
    is_gold = (gold == 1).astype(np.float64)
    is_predicted = (predicted == 1).astype(np.float64)
    is_hit = is_predicted * is_gold

    def compute_statistic(drawn: Matrix) -> Matrix:
        positives = is_predicted @ drawn + is_gold @ drawn
        return _divide(2 * is_hit @ drawn, positives)

    return compute_statistic


def _divide(numerator: Matrix, denominator: Matrix) -> Matrix:
    """Return ``numerator / denominator``, NaN where the denominator is not positive."""
    undefined = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=undefined, where=denominator > 0)


# Metric → function that makes its statistic from gold (rows,) and predicted (systems, rows)
STATISTIC_OF_METRIC: dict[Metric, Callable[[Vector, Matrix], Statistic]] = {
    "spearman": _make_spearman,
    "pearson": _make_pearson,
    "accuracy": _make_accuracy,
    "f1": _make_f1,
    # Means over queries, whose scores are the predicted values
    "ndcg@10": _make_mean,
    "recall@10": _make_mean,
}


# Rows x resamples at once: an array has 8 MB, and Spearman holds about six arrays
MAX_DRAWN_CELLS = 1_000_000
MAX_DRAWN_RATIO = 100  # resamples drawn for each one that is needed, before RunError is raised


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval, in the unit of the resampled score."""

    low: float
    high: float


def resample(
    outcomes: Sequence[Outcomes],
    metric: Metric,
    aggregation: Aggregation = "all",
    samples: int = 1000,
    seed: int = 0,
) -> Matrix:
    """Score several systems on the same resamples of the rows: (systems, samples), x 100.

    A resample in which a system's score is undefined (constant gold or predicted values, no
    positive row) is drawn again; a RuntimeWarning reports the number of such resamples. Raises
    RunError when a value is not finite, and when the score of all rows, or of nearly all resamples,
    is undefined; ValueError when the systems were not scored on the same rows, and for fewer
    samples than one.

    Args:
        outcomes: the outcomes of each system, one or more.
        metric: the metric; ``accuracy`` is over rows, and SentEval's mean over folds differs
            slightly.
        aggregation: ``all`` draws from all rows and scores them together; ``mean`` and ``wmean``
            draw within each part and average the parts' scores, unweighted or by rows.
        samples: number of resamples.
        seed: seed of the draws.
    """
    if samples < 1:
        raise ValueError(f"the number of resamples is {samples}; allowed: 1 or more")
    strata = _make_strata(outcomes, metric, aggregation)
    _score_all_rows(strata)  # raises RunError for an undefined score

    # Every stratum has its own random stream, so the draws do not depend on the number of systems
    # or on the size of the chunks
    generators = [np.random.default_rng([seed, index]) for index in range(len(strata))]
    largest_stratum = max(len(stratum.rows) for stratum in strata)
    chunk_samples = max(1, min(samples, MAX_DRAWN_CELLS // largest_stratum))

    # Draw and score chunks until enough scores are defined
    chunks: list[Matrix] = []
    drawn = 0
    defined = 0
    while defined < samples:
        if drawn >= MAX_DRAWN_RATIO * samples:
            problem = f"{len(outcomes[0])} rows are too few (or too alike) to resample"
            raise RunError("evaluation", problem, hint="use more rows")
        scores = np.zeros((len(outcomes), chunk_samples))
        for stratum, generator in zip(strata, generators, strict=True):
            counts = _draw_counts(generator, len(stratum.rows), chunk_samples)
            scores += stratum.weight * stratum.statistic(counts)
        is_defined = np.isfinite(scores).all(axis=0)
        chunks.append(scores[:, is_defined])
        drawn += chunk_samples
        defined += int(is_defined.sum())
    if defined < drawn:
        message = (
            f"{drawn - defined} of {drawn} resamples had no defined score and were drawn again"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return 100 * np.concatenate(chunks, axis=1)[:, :samples]


def compute_score(outcomes: Outcomes, metric: Metric, aggregation: Aggregation = "all") -> float:
    """Compute the score x 100 of all rows, under ``aggregation`` as in ``resample``.

    Raises RunError when the score is undefined or a value is not finite.
    """
    strata = _make_strata([outcomes], metric, aggregation)
    return 100 * float(_score_all_rows(strata)[0])


def compute_interval(samples: Vector, level: float = 0.95) -> Interval:
    """Compute the central percentile interval of bootstrap ``samples``, (n,).

    level: the share of the samples inside the interval, 0 to 1.
    """
    tail = 100 * (1 - level) / 2  # percent of the samples outside, on each side
    low, high = np.percentile(samples, [tail, 100 - tail])
    return Interval(float(low), float(high))


def score_with_intervals(
    predictions: ArrayLike,
    references: ArrayLike,
    metrics: Sequence[Metric],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, float]:
    """Return METRIC, METRIC_low and METRIC_high of each metric, for the ``evaluate`` library.

    Correlations are -1 to 1, accuracy and F1 are 0 to 1.

    Args:
        predictions: the predicted scores or classes, (n,).
        references: the gold scores or classes, (n,).
        metrics: the metrics.
        resamples: number of bootstrap resamples.
        level: share of the resamples inside the interval.
        seed: seed of the resampling.

    Raises RunError when a value is not finite, and when the score of all rows, or of nearly all
    resamples, is undefined.
    """
    outcomes = Outcomes(np.asarray(references), np.asarray(predictions))
    scores: dict[str, float] = {}
    for metric in metrics:
        samples = resample([outcomes], metric, samples=resamples, seed=seed)[0]
        interval = compute_interval(samples / 100, level)
        scores[metric] = compute_score(outcomes, metric) / 100
        scores[f"{metric}_low"] = interval.low
        scores[f"{metric}_high"] = interval.high
    return scores


def require_correlation(predictions: ArrayLike, references: ArrayLike, place: str = "") -> None:
    """Raise ValueError when the correlation of predictions and references is undefined.

    Both are (n,); the correlation needs two rows. ``place`` begins the message, e.g. "subset: ".
    """
    numbers = np.array([predictions, references], dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{place}a prediction or reference is not finite")
    if numbers.shape[1] < 2:
        raise ValueError(f"{place}a correlation needs two or more rows")
    if (np.ptp(numbers, axis=1) == 0).any():
        raise ValueError(f"{place}a correlation with a constant is undefined")


class _Stratum(NamedTuple):
    """Indices of the rows that are drawn together, their statistic, and its weight in the score."""

    rows: NDArray[np.intp]
    weight: float
    statistic: Statistic


def _make_strata(
    outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation
) -> list[_Stratum]:
    """Return the strata of the systems' outcomes: one of all rows, or one for each part.

    ``outcomes``: those of each system. Raises ValueError when the systems were scored on different
    rows, RunError for numbers that are not finite.
    """
    # Require the same rows, and finite numbers
    first = outcomes[0]
    for other in outcomes[1:]:
        if not np.array_equal(first.gold, other.gold) or first.part != other.part:
            raise ValueError("systems were scored on different rows")
    predicted = np.stack([np.asarray(system.predicted, dtype=np.float64) for system in outcomes])
    gold = np.asarray(first.gold, dtype=np.float64)
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        raise RunError(
            "evaluation", "a score or prediction is not finite", hint="are all embeddings finite?"
        )

    # Make a stratum of every part
    make_statistic = STATISTIC_OF_METRIC[metric]
    strata = []
    for rows, weight in first.list_parts(aggregation):
        statistic = make_statistic(gold[rows], predicted[:, rows])
        strata.append(_Stratum(rows, weight, statistic))
    return strata


def _score_all_rows(strata: list[_Stratum]) -> Vector:
    """Compute each system's score of all rows, (systems,), not x 100.

    Raises RunError when the score of a system is undefined.
    """
    part_scores = []
    for stratum in strata:
        every_row_once = np.ones((len(stratum.rows), 1))
        part_scores.append(stratum.weight * stratum.statistic(every_row_once)[:, 0])
    scores = np.sum(part_scores, axis=0)
    if not np.isfinite(scores).all():
        raise RunError(
            "evaluation",
            "the score is undefined: one side is constant",
            hint="do all embeddings coincide?",
        )
    return scores


def _draw_counts(generator: np.random.Generator, rows: int, resamples: int) -> Matrix:
    """Draw how often each row occurs in each resample: (rows, resamples).

    Every column sums to ``rows``. The draws do not depend on the number of resamples of a call.
    """
    drawn_rows = generator.integers(0, rows, size=(resamples, rows))
    # Count the draws in the cells of the flattened (rows, resamples) matrix
    cells = drawn_rows * resamples + np.arange(resamples)[:, None]
    counts = np.bincount(cells.ravel(), minlength=rows * resamples)
    return counts.reshape(rows, resamples).astype(np.float64)


class EvaluationSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings that decide a score and its interval, together with the encoder and the data.

    Cards and comparisons use the default settings. ``bootstrap_samples`` is the number of
    resamples. ``seed`` is the seed of the bootstrap, and of the draw of ``limit`` rows from a split
    (None: all rows). ``probe_seeds`` are the seeds of the probes. ``interval`` is "bca" in records
    of earlier versions; their intervals are recomputed.
    """

    bootstrap_samples: Annotated[int, Field(ge=1)] = 1000
    interval: Method = "percentile"
    seed: Annotated[int, Field(ge=0)] = 42
    probe_seeds: tuple[int, ...] = (1111,)
    limit: int | None = None

    def describe_protocol(self, task: Task) -> str:
        """Return the protocol of a task in words, with the limit of the data if there is one."""
        if self.data_limit is None:
            return task.protocol
        return f"{task.protocol}; {self.data_limit}"

    @property
    def data_limit(self) -> Limit | None:
        """The limit of the scored data, with its seed; None: all data are scored."""
        if self.limit is None:
            return None
        return Limit(rows=self.limit, seed=self.seed)

    @property
    def rows(self) -> str:
        """The scored rows in words."""
        if self.limit is None:
            return "all rows"
        return f"{self.limit} rows of each split, drawn with seed {self.seed}"


@dataclass(frozen=True)
class NewScore:
    """A new score to write, its task, and the outcomes of its rows.

    ``outcomes`` is None where MTEB gives no outcomes of single rows: the score has no interval.
    """

    task: Task
    score: TaskScore
    outcomes: Outcomes | None


def make_task_score(
    task: Task, split: str, measured: Measured, data_sha256: str, settings: EvaluationSettings
) -> TaskScore:
    """Return the score of a task with its 95 % interval (see ``add_interval``).

    Args:
        task: the task, which must have a metric.
        split: the scored split.
        measured: what the task's function returned. The score of a probe is the mean over its
            seeds, and with several seeds ``other["sd_over_seeds"]`` is the standard deviation of
            the seeds' scores.
        data_sha256: hash of the rows.
        settings: the settings of the evaluation.

    Raises RunError when the rows cannot be resampled.
    """
    assert task.metric is not None, task.name
    score = TaskScore(
        task=task.name,
        protocol=settings.describe_protocol(task),
        split=split,
        main_metric=task.metric,
        main_score=measured.score,
        n=len(measured.outcomes),
        unit=task.unit,
        family=task.family,
        data_sha256=data_sha256,
        other=measured.other,
        parts={name: Part(score=value, n=n) for name, (value, n) in measured.parts.items()},
        seeds=measured.seeds,
        seconds={name: round(value, 6) for name, value in measured.seconds.items()},
        limit=settings.data_limit,
    )
    return add_interval(score, measured.outcomes, task.metric, task.aggregation, settings)


def add_interval(
    reported: TaskScore,
    outcomes: Outcomes,
    metric: Metric,
    aggregation: Aggregation,
    settings: EvaluationSettings,
) -> TaskScore:
    """Return the score ``reported`` with a 95 % interval, resampled from its rows.

    The interval of a mean over seeds is the first seed's interval, moved from the first seed's
    score to the mean. So it covers the choice of the rows, not the choice of the seeds.

    Args:
        reported: the score, whose own interval is replaced.
        outcomes: the outcomes of the rows under the first seed.
        metric: the metric of the score.
        aggregation: how the subsets of the rows make one score.
        settings: the settings of the evaluation.

    Raises RunError when the rows cannot be resampled.
    """
    scores = resample([outcomes], metric, aggregation, settings.bootstrap_samples, settings.seed)[0]
    if len(reported.seeds) > 1:
        first_score = compute_score(outcomes, metric, aggregation)
        scores = scores + (reported.main_score - first_score)
    interval = compute_interval(scores)
    return reported.model_copy(update={"low": interval.low, "high": interval.high})
