"""Agreement of human labels with a dataset's labels, with each other, and of encoders with human scores.

κ = 1 - Σ w·observed / Σ w·expected over the cells of the confusion table (Cohen 1960; weighted: Cohen 1968). Weights w
are 1 off the diagonal, the distance of two labels in the scale's order (linear), or its square (quadratic).
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.audit.survey import Sample, Scale
from eval.audit.text_forms import table
from eval.encoders.embeddings import cosine
from eval.encoders.load import Encoder
from hub.contract.measured import Interval
from hub.errors import InputError
from hub.papers import find_paper

WEIGHTS = ("linear", "quadratic")
SAMPLES = 2_000
FEWEST = 10  # pairs that a correlation needs
DRAWS = 2000  # resamples of source sentences
Counts = NDArray[np.int64]
Rows = NDArray[np.int64]
Statistic = Callable[[Rows], float]
_MARK = re.compile(r"(?<=\d)\.(?=\d)|(?<=\w)-(?=\w)|([^\w ]|_)")  # points in numbers and hyphens in words may stay


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """Two raters on the same ``n`` items. A κ is None where it is undefined: both gave one and the same label only.

    ``counts``: (labels, labels), row = the first rater's label, column = the second's. ``same``: percent, with Wilson's
    interval; the κ have percentile bootstrap intervals over the items.
    """

    counts: Counts
    n: int
    same: Estimate
    kappa: Estimate | None
    weighted: dict[str, Estimate | None]  # weights → κ; empty when the scale has no order


def agreement(first: Sequence[str], second: Sequence[str], scale: Scale, seed: int = 0) -> Agreement:
    """Agreement of two raters' labels, item by item; at least one item.

    κ depends on the table alone, so the bootstrap draws whole tables: from the multinomial of the observed cells.
    """
    from scipy.stats import binomtest
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(first, second, labels=list(scale.labels))
    n = len(first)
    hits = binomtest(int(np.trace(counts)), n)
    around = hits.proportion_ci(method="wilson")
    drawn = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=SAMPLES).reshape(-1, *counts.shape)

    def kappa(weights: str | None) -> Estimate | None:
        (value,) = kappas(counts[None], weights)
        low, high = np.nanpercentile(kappas(drawn, weights), [2.5, 97.5]) if np.isfinite(value) else (value, value)
        return Estimate(float(value), float(low), float(high)) if np.isfinite(value) else None

    weighted = {kind: kappa(kind) for kind in WEIGHTS if scale.ordered}
    same = Estimate(100 * hits.statistic, 100 * around.low, 100 * around.high)
    return Agreement(counts, n, same, kappa(None), weighted)


def column_percent(counts: Counts) -> NDArray[np.float64]:
    """Each column in percent of its sum, as in DINO's Table 3; NaN where the column is empty."""
    sums = counts.sum(axis=0)
    return 100 * np.divide(counts, sums, out=np.full(counts.shape, np.nan), where=sums > 0)


def kappas(tables: Counts, weights: str | None = None) -> NDArray[np.float64]:
    """Cohen's κ of many confusion tables (tables, labels, labels) → (tables,); NaN where it is undefined."""
    places = np.arange(tables.shape[-1])
    distance = np.abs(places[:, None] - places).astype(float)
    cost = {None: distance > 0, "linear": distance, "quadratic": distance**2}[weights]
    expected = tables.sum(axis=2)[:, :, None] * tables.sum(axis=1)[:, None, :] / tables.sum(axis=(1, 2))[:, None, None]
    observed_cost, expected_cost = (cost * tables).sum(axis=(1, 2)), (cost * expected).sum(axis=(1, 2))
    ratio = np.full(len(tables), np.nan)
    return 1 - np.divide(observed_cost, expected_cost, out=ratio, where=expected_cost > 0)


@dataclass(frozen=True)
class Report:
    """Agreement of every annotator with the generator (first rater: the annotator), and of every two with each other.

    Annotators without an answer in the sample, and pairs of annotators without a common one, are left out.
    """

    sample: Sample
    answers: dict[str, dict[int, str]]  # annotator → row → label
    annotators: dict[str, Agreement]
    between: dict[tuple[str, str], Agreement]

    @property
    def pooled(self) -> Counts:
        """The confusion table over all answers of all annotators."""
        return sum(found.counts for found in self.annotators.values())  # type: ignore[return-value]


def make_report(sample: Sample, answers: Mapping[str, Mapping[int, str]]) -> Report:
    """Compare the answers (annotator → row → label; rows of the sample) with the generator's labels."""
    generated, scale = dict(enumerate(sample.examples.labels)), sample.examples.scale
    given = {name: dict(rows) for name, rows in answers.items() if rows}

    def compared(one: Mapping[int, str], other: Mapping[int, str]) -> Agreement | None:
        common = [row for row in one if row in other]
        return agreement([one[row] for row in common], [other[row] for row in common], scale) if common else None

    annotators = {name: found for name, rows in given.items() if (found := compared(rows, generated))}
    between = {
        (first, second): found
        for first, second in combinations(given, 2)
        if (found := compared(given[first], given[second]))
    }
    return Report(sample, given, annotators, between)


def published(scale: Scale) -> tuple[str, str, tuple[tuple[float, ...], ...]] | None:
    """DINO's Table 3 (source, caption, percent by human label and generator's label); None for any other scale."""
    paper = find_paper("dino")
    table3 = paper.table(3)
    if not scale.ordered or [float(label) for label in scale.labels] != [float(one.name) for one in table3.columns]:
        return None
    percent = tuple(tuple(float(value or 0) for value in row.values) for row in table3.rows)
    return paper.source(table3), table3.caption, percent


def plain(text: str) -> str:
    """Untrusted text as it reads in Markdown and HTML: every mark that could mean something there as an entity."""
    return _MARK.sub(lambda mark: f"&#{ord(mark[1])};" if mark[1] else mark[0], " ".join(text.split()))


def markdown(report: Report) -> str:
    """The report as Markdown."""
    sample, examples = report.sample, report.sample.examples
    total, scale, labels = len(sample), examples.scale, examples.scale.labels
    parts = [
        "# Human labels beside the generator's",
        f"{total} rows of {plain(examples.name)} ({plain(examples.config)}, {plain(examples.split)}), drawn with seed "
        f"{sample.seed} and labelled blind. In the tables a column is the generator's label, a row the annotator's; a "
        "cell is the percentage of its column. Intervals are 95 %.",
    ]
    meanings = [(label, words) for label, words in zip(labels, scale.meanings, strict=True) if words]
    if meanings:
        parts += ["The labels, as annotators read them:"]
        parts += ["\n".join(f"- {plain(label)}: {plain(words)}" for label, words in meanings)]
    for name, found in report.annotators.items():
        parts += [f"## {plain(name)}", f"{found.n} of {total} answered.", _percents(found.counts, labels)]
        parts.append(table(["", "agreement with the generator"], _values(found)))
    if len(report.annotators) > 1:
        parts += ["## All annotators together", _percents(report.pooled, labels)]
    if report.between:
        parts += ["## Between annotators"]
    for (first, second), found in report.between.items():
        rows = [["common rows", str(found.n)], *_values(found)]
        parts.append(table(["", f"{plain(first)}, {plain(second)}"], rows))
    if paper := published(scale):
        source, caption, percent = paper
        parts += ["## Beside the paper", f"Each cell: these answers, then {source}. The paper's: {caption}."]
        parts[-1] += " Its generator is another; its authors labelled the pairs themselves and give no κ."
        cells = [
            [f"{_percent(our)} / {their:.0f}\u00a0%" for our, their in zip(ours, theirs, strict=True)]
            for ours, theirs in zip(column_percent(report.pooled), percent, strict=True)
        ]
        parts.append(_confusion(labels, cells))
    return "\n\n".join(parts) + "\n"


def _confusion(labels: Sequence[str], cells: Iterable[Iterable[str]], *below: list[str]) -> str:
    rows = [[f"**{plain(label)}**", *row] for label, row in zip(labels, cells, strict=True)]
    return table(["human ↓ generator →", *map(plain, labels)], [*rows, *below])


def _percents(counts: Counts, labels: Sequence[str]) -> str:
    cells = [map(_percent, row) for row in column_percent(counts)]
    return _confusion(labels, cells, ["rows", *(str(n) for n in counts.sum(axis=0))])


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}\u00a0%"


def _values(found: Agreement) -> list[list[str]]:
    same = f"{found.same.value:.0f}\u00a0% [{found.same.low:.0f}, {found.same.high:.0f}]"
    rows = [["equal labels", same]]
    named = {"Cohen's κ": found.kappa, **{f"κ, {kind} weights": one for kind, one in found.weighted.items()}}
    for name, one in named.items():
        shown = f"{one.value:z.2f} [{one.low:z.2f}, {one.high:z.2f}]" if one else "undefined (one label only)"
        rows.append([name, shown])
    return rows


def document(report: Report) -> dict[str, Any]:
    """The report as JSON, with every counted answer beside the generator's label."""
    sample, examples = report.sample, report.sample.examples
    paper = published(examples.scale)
    return {
        "dataset": {key: getattr(examples, key) for key in ("name", "config", "split", "sha256")},
        "seed": sample.seed,
        "rows": list(sample.rows),
        "labels": list(examples.scale.labels),
        "meanings": list(examples.scale.meanings),
        "counts": "row: the first rater's label, column: the second's (for annotators: the generator's)",
        "annotators": [{"name": name, **_agreement(found)} for name, found in report.annotators.items()],
        "between": [{"names": list(names), **_agreement(found)} for names, found in report.between.items()],
        "paper": {"source": paper[0], "column_percent": paper[2]} if paper else None,
        "answers": [
            {"annotator": name, "row": row, "label": label, "generated": examples.labels[row]}
            for name, rows in report.answers.items()
            for row, label in rows.items()
        ],
    }


def _agreement(found: Agreement) -> dict[str, Any]:
    kinds = {"kappa": found.kappa, **{f"kappa_{kind}": one for kind, one in found.weighted.items()}}
    percent = [[None if math.isnan(value) else value for value in row] for row in column_percent(found.counts).tolist()]
    facts = {"n": found.n, "counts": found.counts.tolist(), "column_percent": percent, "same": vars(found.same)}
    return facts | {name: one and vars(one) for name, one in kinds.items()}


def correlation_interval(
    graded: ArrayLike, values: ArrayLike, resamples: Sequence[Rows], less: ArrayLike | None = None
) -> Interval | None:
    """Spearman's correlation of scores and values, with its interval; with ``less``, minus that of scores and those.

    None where it is undefined: scores or values that are all the same.
    """
    from scipy.stats import spearmanr

    scores, others = np.asarray(graded), [np.asarray(one) for one in (values, less) if one is not None]

    def correlation(rows: Rows) -> float:
        both = [(scores[rows], other[rows]) for other in others]
        if any(np.ptp(one) == 0 for pair in both for one in pair):
            return float("nan")
        found = [float(spearmanr(*pair).statistic) for pair in both]
        return found[0] - (found[1] if less is not None else 0.0)

    whole = np.arange(len(scores))
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
    return Interval(value=round(whole, 4), low=round(float(low), 4), high=round(float(high), 4))


@dataclass(frozen=True)
class EncoderAgreement:
    """Spearman's correlation, from -1 to 1, of an encoder's cosines and mean human scores of ``pairs`` pairs.

    over: the difference to another encoder's on the same pairs, by its name; None where there is none to compare with.
    """

    encoder: str
    pairs: int
    spearman: Estimate
    over: tuple[str, Estimate] | None = None


def mean_scores(answers: Mapping[str, Mapping[int, str]]) -> dict[int, float]:
    """Row → the mean of its human scores; ``answers``: annotator → row → score, as a label."""
    rows = sorted({row for given in answers.values() for row in given})
    return {row: float(np.mean([float(given[row]) for given in answers.values() if row in given])) for row in rows}


def agreements(
    scores: Sequence[float],
    first: Sequence[str],
    cosines: Mapping[str, Sequence[float]],
    bases: Mapping[str, str] = MappingProxyType({}),
) -> list[EncoderAgreement]:
    """The agreement of each encoder with human scores, all on the same resamples of source sentences.

    scores, first: human score and source sentence of each pair; cosines: encoder → its cosine of each pair; bases:
    encoder → its untrained base, where that is among them. Intervals are 95 % percentile bootstrap intervals. Raises
    InputError for too few pairs, and for scores or cosines that are all the same.
    """
    if len(scores) < FEWEST:
        raise InputError("judgements", f"{len(scores)} pairs are answered", allowed=f"at least {FEWEST}")
    resamples = resampled(first)

    def correlation(name: str, less: str | None = None) -> Estimate:
        interval = correlation_interval(scores, cosines[name], resamples, cosines[less] if less else None)
        if interval is None:
            raise InputError(name, "has no correlation with answers that are all the same, or cosines that are")
        return Estimate(interval.value, interval.low, interval.high)

    found = []
    for name in cosines:
        base = bases.get(name)
        over = (base, correlation(name, base)) if base is not None and base in cosines else None
        found.append(EncoderAgreement(name, len(scores), correlation(name), over))
    return found


def encoder_agreements(report: Report, encoders: Sequence[Encoder], bases: Mapping[str, str]) -> list[EncoderAgreement]:
    """``agreements`` on the pairs that were answered. Raises InputError for labels without an order, too."""
    if not report.sample.examples.scale.ordered:
        raise InputError("--encoder", "is for pairs with scores", hint="leave it out: these labels have no order")
    human = mean_scores(report.answers)
    first, second = ([report.sample.examples.texts[row][side] for row in human] for side in (0, 1))
    cosines = {one.name: cosine(one)(first, second) for one in encoders} if len(human) >= FEWEST else {}
    return agreements(list(human.values()), first, cosines, bases)


def encoders_markdown(agreements: Sequence[EncoderAgreement]) -> str:
    """The agreements as a section of the report; correlations x 100."""

    def points(estimate: Estimate) -> str:
        return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"

    rows = [
        [one.encoder, points(one.spearman), f"{points(one.over[1])} over {one.over[0]}" if one.over else ""]
        for one in agreements
    ]
    words = (
        f"Spearman x 100 of an encoder's cosine and the mean human score, {agreements[0].pairs} pairs; 95 % intervals."
    )
    return f"## Encoders and human scores\n\n{words}\n\n{table(['encoder', 'Spearman', 'difference'], rows)}\n"


def encoder_facts(agreements: Sequence[EncoderAgreement]) -> list[dict[str, object]]:
    """The agreements as JSON."""
    return [
        vars(one) | {"spearman": vars(one.spearman), "over": one.over and {"encoder": one.over[0], **vars(one.over[1])}}
        for one in agreements
    ]
