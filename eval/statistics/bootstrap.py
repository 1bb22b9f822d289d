"""Every metric's score of many resamples at once, from how often each of them drew each row.

A metric that is a function of sums is one matrix product; the ranks of Spearman come from cumulative sums over values
sorted once.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.scoring.outcomes import Outcomes
from eval.tasks.rows import Vector
from eval.tasks.task import Aggregation, Metric
from hub.contract.results import Method, Results
from hub.errors import RunError

Matrix = NDArray[np.float64]
Statistic = Callable[[Matrix], Matrix]  # how often each row was drawn (rows, resamples) → scores (systems, resamples)
RECALL_AT = (1, 5, 10)


class _Ranking:
    """Values (rows,) sorted once; gives the average ranks of any resample of them."""

    def __init__(self, values: Vector):
        self.order = np.argsort(values, kind="stable")
        _, self.starts, inverse = np.unique(values[self.order], return_index=True, return_inverse=True)
        self.group = np.empty(len(values), dtype=np.intp)
        self.group[self.order] = inverse

    def centred(self, drawn: Matrix) -> Matrix:
        """Average rank of every row in every resample minus the mean rank, (rows, resamples)."""
        weight = np.add.reduceat(drawn[self.order], self.starts, axis=0)  # members of each group of ties drawn
        rank = np.cumsum(weight, axis=0)
        rank -= weight / 2
        rank -= len(drawn) / 2  # the halves of + 1 / 2 and of the mean rank (n + 1) / 2 cancel
        return rank[self.group]


def _spearman(gold: Vector, predicted: Matrix) -> Statistic:
    ranking, rankings = _Ranking(gold), [_Ranking(system) for system in predicted]

    def statistic(drawn: Matrix) -> Matrix:
        y = ranking.centred(drawn)
        weighted = drawn * y
        spread = np.einsum("ij,ij->j", weighted, y)
        scores = []
        for other in rankings:
            x = other.centred(drawn)
            product = np.einsum("ij,ij->j", weighted, x)
            scores.append(ratio(product, np.sqrt(spread * np.einsum("ij,ij,ij->j", drawn, x, x))))
        return np.stack(scores)

    return statistic


def _pearson(gold: Vector, predicted: Matrix) -> Statistic:
    y, x = gold - gold.mean(), predicted - predicted.mean(axis=1, keepdims=True)
    n, systems = len(gold), len(predicted)
    columns = np.concatenate([y[None], y[None] ** 2, x, x**2, x * y])

    def statistic(drawn: Matrix) -> Matrix:
        means = columns @ drawn / n
        y1, y2 = means[0], means[1]
        x1, x2, xy = (means[2 + k * systems : 2 + (k + 1) * systems] for k in range(3))
        spread = _positive(x2 - x1**2, x2) * _positive(y2 - y1**2, y2)
        return ratio(xy - x1 * y1, np.sqrt(spread))

    return statistic


def _positive(variance: Matrix, square: Matrix) -> Matrix:
    """``variance``, or 0 where it is rounding: a constant side."""
    return np.where(variance > 1e-12 * square, variance, 0.0)


def recall_of(ranks: Matrix) -> Matrix:
    """Per row, the mean over k = 1, 5, 10 of whether the first right answer is among the first k; ranks from 0."""
    return np.mean([ranks < k for k in RECALL_AT], axis=0)


def _mean(values: Matrix) -> Statistic:
    return lambda drawn: values @ drawn / len(drawn)


def _f1(gold: Vector, predicted: Matrix) -> Statistic:
    """F1 of class 1: twice the hits over gold plus predicted positives."""
    positive, chosen = (gold == 1).astype(np.float64), (predicted == 1).astype(np.float64)
    return lambda drawn: ratio(2 * (chosen * positive) @ drawn, chosen @ drawn + positive @ drawn)


def ratio(above: Matrix, below: Matrix) -> Matrix:
    """``above / below``, NaN where ``below`` is not positive."""
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


STATISTICS: dict[Metric, Callable[[Vector, Matrix], Statistic]] = {  # gold (rows,), predicted (systems, rows)
    "spearman": _spearman,
    "pearson": _pearson,
    "accuracy": lambda gold, predicted: _mean((predicted == gold).astype(np.float64)),
    "f1": _f1,
    "recall": lambda gold, predicted: _mean(recall_of(predicted)),
}


CELLS = 1_000_000  # rows x resamples at once: 8 MB an array, of which Spearman holds about six


@dataclass(frozen=True)
class Resampling:
    """How intervals are made. The defaults are those of every card and comparison."""

    samples: int = 1000
    method: Method = "percentile"
    seed: int = 42

    @classmethod
    def of(cls, results: Results) -> "Resampling":
        """How the intervals of a results file were made."""
        return cls(results.bootstrap_samples, results.interval, results.seed)


@dataclass(frozen=True)
class Interval:
    """A 95 % bootstrap interval, in the unit of what was resampled."""

    low: float
    high: float


def resample(
    outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation = "all", samples: int = 1000, seed: int = 0
) -> Matrix:
    """Scores x 100 of several systems over the same ``samples`` resamples of the rows: (systems, samples).

    ``all`` draws from all rows and scores them as one; ``mean`` and ``wmean`` draw within each part and average the
    parts' scores, unweighted or by rows. ``recall`` is always the mean over the parts of recall at 1, 5 and 10.
    ``accuracy`` is over rows; SentEval's mean over folds differs from it as folds differ in size, by one row at most.

    A resample in which a score is undefined (a constant side, no positive anywhere) is drawn again, with a warning that
    says how many were; the others are then conditional on being defined. Raises RunError when the score of all rows is
    undefined, or nearly all resamples are; ValueError when systems were not scored on the same rows.
    """
    strata = _strata(outcomes, metric, aggregation)
    _check_defined(strata)
    generators = [np.random.default_rng([seed, index]) for index in range(len(strata))]
    size = max(1, min(samples, CELLS // max(len(stratum.rows) for stratum in strata)))
    kept: list[Matrix] = []
    drawn = found = 0
    while found < samples:
        if drawn >= 100 * (samples + size):
            rows = len(outcomes[0])
            raise RunError("evaluation", f"{rows} rows are too few (or too alike) to resample", hint="use more rows")
        scores = np.zeros((len(outcomes), size))
        for stratum, generator in zip(strata, generators, strict=True):
            scores += stratum.weight * stratum.statistic(_draw(generator, len(stratum.rows), size))
        defined = np.isfinite(scores).all(axis=0)
        kept.append(scores[:, defined])
        drawn, found = drawn + size, found + int(defined.sum())
    if found < drawn:
        message = f"{drawn - found} of {drawn} resamples had no defined score and were drawn again"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return 100 * np.concatenate(kept, axis=1)[:, :samples]


def score(outcomes: Outcomes, metric: Metric, aggregation: Aggregation = "all") -> float:
    """The score x 100 of all rows: what ``resample`` resamples. Raises RunError when it is undefined."""
    strata = _strata([outcomes], metric, aggregation)
    return 100 * float(_check_defined(strata)[0])


def interval(
    samples: Vector,
    method: Method = "percentile",
    *,
    level: float = 0.95,
    point: float | None = None,
    influence: Vector | None = None,
) -> Interval:
    """The central ``level`` interval of bootstrap ``samples`` (n,).

    ``bca`` corrects the percentiles for bias and skewness (Efron 1987; Efron & Tibshirani 1993, section 14.3). It needs
    the ``point`` estimate and the rows' ``influence`` on it (``eval.statistics.paired.influence``), both in the
    samples' unit; for a paired difference, the differences of two systems' points and influences. A point beyond all
    samples counts as if half a sample lay beyond it. Samples that are all one value have that value as their interval.
    """
    tail = (1 - level) / 2
    shares = np.array([tail, 1 - tail])
    if method == "bca":
        if point is None or influence is None:
            raise ValueError("a BCa interval needs the point estimate and the influence of every row")
        shares = _corrected(shares, samples, point, influence)
    low, high = np.percentile(samples, 100 * shares)
    return Interval(float(low), float(high))


def _corrected(shares: Vector, samples: Vector, point: float, influence: Vector) -> Vector:
    """Where a BCa interval ends, as shares of the samples (Efron & Tibshirani 1993, equations 14.10, 14.14, 14.15)."""
    from scipy.special import ndtr, ndtri

    if np.ptp(samples) == 0:
        return shares
    below = (np.mean(samples < point) + np.mean(samples <= point)) / 2
    bias = ndtri(np.clip(below, 0.5 / len(samples), 1 - 0.5 / len(samples)))
    spread = float(np.sum(influence**2)) ** 1.5
    acceleration = float(np.sum(influence**3)) / (6 * spread) if spread > 0 else 0.0
    shifted = bias + ndtri(shares)
    return ndtr(bias + shifted / (1 - acceleration * shifted))


@dataclass(frozen=True)
class Stratum:
    """The rows that are drawn together, what is computed on them, and the weight of that in the score."""

    rows: NDArray[np.intp]
    weight: float
    statistic: Statistic


def stratify(outcomes: Outcomes, metric: Metric, aggregation: Aggregation) -> list[tuple[NDArray[np.intp], float]]:
    """(rows, weight) of every part that is drawn and scored by itself; one part for ``all``."""
    total = len(outcomes)
    if metric != "recall" and (aggregation == "all" or not outcomes.part):
        return [(np.arange(total), 1.0)]
    names = np.asarray(outcomes.part or ("",) * total)
    parts = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]
    weighted = metric != "recall" and aggregation == "wmean"
    return [(rows, len(rows) / total if weighted else 1 / len(parts)) for rows in parts]


def _strata(outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation) -> list[Stratum]:
    first = outcomes[0]
    for other in outcomes[1:]:
        if not np.array_equal(first.gold, other.gold) or first.part != other.part:
            raise ValueError("systems were scored on different rows")
    predicted = np.stack([np.asarray(system.predicted, dtype=np.float64) for system in outcomes])
    gold = np.asarray(first.gold, dtype=np.float64)
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        raise RunError("evaluation", "a score or prediction is not finite", hint="are all embeddings finite?")
    make = STATISTICS[metric]
    return [
        Stratum(rows, weight, make(gold[rows], predicted[:, rows]))
        for rows, weight in stratify(first, metric, aggregation)
    ]


def _check_defined(strata: list[Stratum]) -> Vector:
    """The scores of all rows, (systems,). Raises RunError when one is undefined."""
    scores = np.sum([s.weight * s.statistic(np.ones((len(s.rows), 1)))[:, 0] for s in strata], axis=0)
    if not np.isfinite(scores).all():
        raise RunError("evaluation", "the score is undefined: one side is constant", hint="do all embeddings coincide?")
    return scores


def _draw(generator: np.random.Generator, rows: int, resamples: int) -> Matrix:
    """How often each row was drawn, (rows, resamples), every column summing to ``rows``; the same in any chunking."""
    chosen = generator.integers(0, rows, size=(resamples, rows))
    cells = (chosen * resamples + np.arange(resamples)[:, None]).ravel()
    return np.bincount(cells, minlength=rows * resamples).reshape(rows, resamples).astype(np.float64)
