"""Agreement of human labels with a dataset's labels, with each other, and of encoders with human scores.

κ = 1 - Σ w·observed / Σ w·expected over the cells of the confusion table (Cohen 1960; weighted: Cohen 1968). Weights w
are 1 off the diagonal, the distance of two labels in the scale's order (linear), or its square (quadratic).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.audit.command import fill
from eval.audit.survey import Scale, Survey
from hub.contract.measured import Interval
from hub.contract.results import Frozen
from hub.errors import InputError
from hub.untrusted import Markdown, code, table

WEIGHTS = ("linear", "quadratic")
KAPPAS = {"kappa": "Cohen's κ", **{f"kappa_{kind}": f"κ, {kind} weights" for kind in WEIGHTS}}
SAMPLES = 2_000
FEWEST = 10  # pairs that a correlation needs
DRAWS = 2000  # resamples of source sentences
Counts = NDArray[np.int64]
Rows = NDArray[np.int64]
Statistic = Callable[[Rows], float]


class Agreement(Frozen):
    """Two raters on the same ``n`` items. A κ is None where it is undefined: both gave one and the same label only.

    ``counts``: a row for each label of the first rater, a column for each of the second. ``same``: percent, with
    Wilson's interval. ``kappas``: those of ``KAPPAS``, weighted on an ordered scale only, with bootstrap intervals over
    items.
    """

    n: int
    counts: list[list[int]]
    same: Interval
    kappas: dict[str, Interval | None]

    @property
    def kappa(self) -> Interval | None:
        """Cohen's κ without weights."""
        return self.kappas["kappa"]


def rounded(value: float, low: float, high: float) -> Interval:
    """A value and its interval, with four decimals."""
    return Interval(value=round(float(value), 4), low=round(float(low), 4), high=round(float(high), 4))


def wilson(count: int, n: int, unit: float = 1.0) -> Interval:
    """``count`` of ``n`` in ``unit`` (100: percent) with Wilson's 95 % interval; of nothing, 0 in [0, 1]."""
    from scipy.stats import binomtest  # costs most of a second

    if n == 0:
        return rounded(0, 0, unit)
    around = binomtest(count, n).proportion_ci(0.95, method="wilson")
    return rounded(unit * count / n, unit * around.low, unit * around.high)


def agreement(first: Sequence[str], second: Sequence[str], scale: Scale, seed: int = 0) -> Agreement:
    """Agreement of two raters' labels, item by item; at least one item.

    κ depends on the table alone, so the bootstrap draws whole tables: from the multinomial of the observed cells.
    """
    from sklearn.metrics import confusion_matrix

    n, counts = len(first), confusion_matrix(first, second, labels=list(scale.labels))
    drawn = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=SAMPLES).reshape(-1, *counts.shape)

    def kappa(weights: str | None) -> Interval | None:
        (value,) = kappas(counts[None], weights)
        return rounded(value, *np.nanpercentile(kappas(drawn, weights), [2.5, 97.5])) if np.isfinite(value) else None

    return Agreement(
        n=n,
        counts=counts.tolist(),
        same=wilson(int(np.trace(counts)), n, 100),
        kappas={"kappa": kappa(None), **{f"kappa_{kind}": kappa(kind) for kind in WEIGHTS if scale.ordered}},
    )


def kappas(tables: Counts, weights: str | None = None) -> NDArray[np.float64]:
    """Cohen's κ of many confusion tables (tables, labels, labels) → (tables,); NaN where it is undefined."""
    places = np.arange(tables.shape[-1])
    distance = np.abs(places[:, None] - places).astype(float)
    cost = {None: distance > 0, "linear": distance, "quadratic": distance**2}[weights]
    expected = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :] / tables.sum(axis=(1, 2))[:, None, None]
    observed_cost, expected_cost = (cost * tables).sum(axis=(1, 2)), (cost * expected).sum(axis=(1, 2))
    ratio = np.full(len(tables), np.nan)
    return 1 - np.divide(observed_cost, expected_cost, out=ratio, where=expected_cost > 0)


class Report(Frozen):
    """Agreement of every annotator with the generator (first rater: the annotator), and of every two with each other.

    Annotators without an answer in the sample, and pairs of annotators without a common one, are left out.
    ``pooled``: all answers of all annotators beside the generator's labels. ``answers``: annotator → row → label.
    """

    dataset: dict[str, str]
    language: str
    seed: int
    rows: tuple[int, ...]
    meanings: dict[str, str]  # label → its words
    annotators: dict[str, Agreement]
    between: dict[str, Agreement]
    pooled: Agreement | None
    answers: dict[str, dict[int, str]]
    generated: dict[int, str]

    def markdown(self) -> str:
        """The report as Markdown; confusion tables in percent of each column, as in DINO's Table 3."""
        return fill("agreement.md.jinja", report=self, percents=self._percents, values=_values)

    def _percents(self, found: Agreement) -> Markdown:
        sums = [sum(column) for column in zip(*found.counts, strict=True)]
        rows = [
            [code(label), *(f"{100 * n / of:.0f} %" if of else "–" for n, of in zip(row, sums, strict=True))]
            for label, row in zip(self.meanings, found.counts, strict=True)
        ]
        return table(["human ↓ generator →", *map(code, self.meanings)], [*rows, ["rows", *sums]])


def compared(scale: Scale, *both: tuple[Mapping[int, str], Mapping[int, str]]) -> Agreement | None:
    """Agreement on the rows that two raters (row → label) have in common, of all pairs of raters; None without one."""
    common = [(one[row], other[row]) for one, other in both for row in one if row in other]
    return agreement([one for one, _ in common], [other for _, other in common], scale) if common else None


def make_report(survey: Survey) -> Report:
    """Compare a survey's answers with the generator's labels."""
    examples, scale = survey.examples, survey.examples.scale
    generated = {row: examples.labels[row] for row in survey.rows}
    given = {name: rows for name, rows in survey.answers().items() if rows}
    between = {f"{a}, {b}": compared(scale, (given[a], given[b])) for a, b in combinations(given, 2)}
    return Report(
        dataset={key: getattr(examples, key) for key in ("name", "config", "split", "sha256")},
        language=examples.language,
        seed=survey.seed,
        rows=survey.rows,
        meanings=dict(zip(scale.labels, scale.meanings, strict=True)),
        annotators={name: found for name, rows in given.items() if (found := compared(scale, (rows, generated)))},
        between={names: found for names, found in between.items() if found},
        pooled=compared(scale, *((rows, generated) for rows in given.values())),
        answers=given,
        generated=generated,
    )


def _values(found: Agreement, heading: str) -> Markdown:
    same = f"{found.same.value:.0f} % [{found.same.low:.0f}, {found.same.high:.0f}]"
    shown = [[KAPPAS[name], Markdown(one or "undefined (one label only)")] for name, one in found.kappas.items()]
    return table(["", heading], [["rows", str(found.n)], ["equal labels", Markdown(same)], *shown])


def correlation_interval(scores: ArrayLike, values: ArrayLike, resamples: Sequence[Rows]) -> Interval | None:
    """Spearman's correlation of scores and values, from -1 to 1, with its interval.

    None where it is undefined: scores or values that are all the same.
    """
    from scipy.stats import spearmanr

    both = np.asarray(scores), np.asarray(values)

    def correlation(rows: Rows) -> float:
        first, second = (one[rows] for one in both)
        return float("nan") if 0 in (np.ptp(first), np.ptp(second)) else float(spearmanr(first, second).statistic)

    whole = np.arange(len(both[0]))
    return None if np.isnan(correlation(whole)) else bootstrap_interval(correlation, resamples, len(whole))


def resampled(first: Sequence[str]) -> list[Rows]:
    """The rows of as many source sentences as there are, drawn with replacement, ``DRAWS`` times."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(first))}
    of_rows = np.array([numbers[text] for text in first])
    order, counts = np.argsort(of_rows, kind="stable"), np.bincount(of_rows)
    members = np.split(order.astype(np.int32), np.cumsum(counts)[:-1])
    draws = np.random.default_rng(0).integers(0, len(members), (DRAWS, len(members)))
    return [np.concatenate([members[number] for number in drawn]) for drawn in draws]


def bootstrap_interval(value: Statistic, resamples: Sequence[Rows], rows: int) -> Interval:
    """A statistic of all rows, and its 95 % percentile interval; resamples that leave it undefined are passed over."""
    whole = value(np.arange(rows))
    with np.errstate(invalid="ignore"):
        low, high = np.nanpercentile([value(drawn) for drawn in resamples], [2.5, 97.5])
    low, high = (end if np.isfinite(end) else whole for end in (low, high))
    return rounded(whole, low, high)


def agreements(
    scores: Sequence[float], first: Sequence[str], cosines: Mapping[str, Sequence[float]]
) -> dict[str, Interval]:
    """Encoder → Spearman's correlation of its cosines with human scores, all on the same resamples.

    scores, first: human score and source sentence of each pair. Intervals are 95 % percentile bootstrap intervals over
    source sentences. Raises InputError for too few pairs, and for scores or cosines that are all the same.
    """
    if len(scores) < FEWEST:
        raise InputError("judgements", f"{len(scores)} pairs are answered", allowed=f"at least {FEWEST}")
    resamples = resampled(first)
    found = {name: correlation_interval(scores, values, resamples) for name, values in cosines.items()}
    for name, interval in found.items():
        if interval is None:
            raise InputError(name, "has no correlation with answers that are all the same, or cosines that are")
    return {name: interval for name, interval in found.items() if interval}
