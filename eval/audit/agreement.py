"""How well two label the same things: the confusion table, the share of equal labels, Cohen's κ and its interval.

κ = 1 - Σ w·observed / Σ w·expected over the cells of the table (Cohen 1960; weighted: Cohen 1968), with weights w of 1
off the diagonal, or the distance of the two labels in the scale's order (linear) or its square (quadratic).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.audit.fidelity import correlation_interval, resampled
from eval.audit.survey import Sample, Scale
from eval.audit.text_forms import table
from eval.encoders.embeddings import cosine
from eval.encoders.load import Encoder
from hub.errors import InputError
from hub.papers.tables import find_paper

WEIGHTS = ("linear", "quadratic")
SAMPLES = 2_000
Counts = NDArray[np.int64]


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

    The bootstrap draws items with replacement. κ depends on the table alone, so its resamples are drawn as tables: from
    the multinomial of the observed cells, which is the same distribution.
    """
    from scipy.stats import binomtest
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(first, second, labels=list(scale.labels))
    n = len(first)
    hits = binomtest(int(np.trace(counts)), n)
    around = hits.proportion_ci(method="wilson")
    same = Estimate(100 * hits.statistic, 100 * around.low, 100 * around.high)
    tables = np.random.default_rng(seed).multinomial(n, counts.ravel() / n, size=SAMPLES).reshape(-1, *counts.shape)
    weighted = {kind: _kappa(first, second, scale, tables, kind) for kind in WEIGHTS if scale.ordered}
    return Agreement(counts, n, same, _kappa(first, second, scale, tables, None), weighted)


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


def _kappa(
    first: Sequence[str], second: Sequence[str], scale: Scale, tables: Counts, weights: str | None
) -> Estimate | None:
    from sklearn.metrics import cohen_kappa_score

    if len({*first, *second}) == 1:
        return None
    value = cohen_kappa_score(first, second, labels=list(scale.labels), weights=weights)
    resampled = kappas(tables, weights)
    low, high = np.percentile(resampled[~np.isnan(resampled)], [2.5, 97.5])
    return Estimate(float(value), float(low), float(high))


@dataclass(frozen=True)
class Published:
    """A paper's confusion table: ``percent[row][column]``, row = people's label, column = the generator's."""

    source: str
    caption: str
    percent: tuple[tuple[float, ...], ...]


def published(scale: Scale) -> Published | None:
    """DINO's Table 3, whose annotators chose from these very labels; None for any other scale."""
    paper = find_paper("dino")
    table = paper.table(3)
    if not scale.ordered or [float(label) for label in scale.labels] != [float(one.name) for one in table.columns]:
        return None
    percent = tuple(tuple(float(value or 0) for value in row.values) for row in table.rows)
    return Published(paper.source(table), table.caption, percent)


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
    generated, scale = sample.examples.labels, sample.examples.scale
    given = {name: dict(rows) for name, rows in answers.items() if rows}
    annotators = {
        name: agreement(list(rows.values()), [generated[row] for row in rows], scale) for name, rows in given.items()
    }
    between = {}
    for first, second in combinations(given, 2):
        common = [row for row in given[first] if row in given[second]]
        if common:
            labels, others = [given[first][row] for row in common], [given[second][row] for row in common]
            between[first, second] = agreement(labels, others, scale)
    return Report(sample, given, annotators, between)


_MARK = re.compile(r"(?<=\d)\.(?=\d)|(?<=\w)-(?=\w)|([^\w ]|_)")  # points in numbers and hyphens in words may stay


def plain(text: str) -> str:
    """Untrusted text as it reads in Markdown and HTML: every mark that could mean something there as an entity."""
    return _MARK.sub(lambda mark: f"&#{ord(mark[1])};" if mark[1] else mark[0], " ".join(text.split()))


def markdown(report: Report) -> str:
    """The report for people."""
    sample, examples = report.sample, report.sample.examples
    total, labels = len(sample), examples.scale.labels
    parts = [
        "# People's labels beside the generator's",
        f"{total} rows of {plain(examples.name)} ({plain(examples.config)}, {plain(examples.split)}), drawn with seed "
        f"{sample.seed} and labelled blind. In the tables a column is the generator's label, a row people's; a cell is "
        "the percentage of its column. Intervals are 95 %.",
        *_legend(examples.scale),
    ]
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
    if found_in_paper := published(examples.scale):
        parts += ["## Beside the paper", *_beside(report.pooled, labels, found_in_paper)]
    return "\n\n".join(parts) + "\n"


def _legend(scale: Scale) -> list[str]:
    """What the labels mean, as a list; nothing where they say it all."""
    told = [
        f"- {plain(label)}: {plain(words)}" for label, words in zip(scale.labels, scale.meanings, strict=True) if words
    ]
    return ["The labels, as people were told:", "\n".join(told)] if told else []


def _confusion(labels: Sequence[str], cells: Iterable[Iterable[str]], *below: list[str]) -> str:
    rows = [[f"**{plain(label)}**", *row] for label, row in zip(labels, cells, strict=True)]
    return table(["people ↓ generator →", *map(plain, labels)], [*rows, *below])


def _percents(counts: Counts, labels: Sequence[str]) -> str:
    cells = [map(_percent, row) for row in column_percent(counts)]
    return _confusion(labels, cells, ["rows", *(str(n) for n in counts.sum(axis=0))])


def _beside(counts: Counts, labels: Sequence[str], paper: Published) -> list[str]:
    told = (
        f"Each cell: these answers, then {paper.source}. The paper's: {paper.caption}. Its generator is another; "
        "its authors labelled the pairs themselves and give no κ."
    )
    rows = zip(column_percent(counts), paper.percent, strict=True)
    cells = [
        [f"{_percent(our)} / {their:.0f}\u00a0%" for our, their in zip(ours, theirs, strict=True)]
        for ours, theirs in rows
    ]
    return [told, _confusion(labels, cells)]


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}\u00a0%"


def _values(found: Agreement) -> list[list[str]]:
    same = f"{found.same.value:.0f}\u00a0% [{found.same.low:.0f}, {found.same.high:.0f}]"
    kappas = {"Cohen's κ": found.kappa, **{f"κ, {kind} weights": one for kind, one in found.weighted.items()}}
    return [["equal labels", same], *([name, _kappa_cell(one)] for name, one in kappas.items())]


def _kappa_cell(estimate: Estimate | None) -> str:
    if estimate is None:
        return "undefined (one label only)"
    return f"{estimate.value:z.2f} [{estimate.low:z.2f}, {estimate.high:z.2f}]"


def document(report: Report) -> dict[str, Any]:
    """The report for programs (JSON), with every counted answer beside the generator's label."""
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
        "paper": None if paper is None else {"source": paper.source, "column_percent": paper.percent},
        "answers": [
            {"annotator": name, "row": row, "label": label, "generated": examples.labels[row]}
            for name, rows in report.answers.items()
            for row, label in rows.items()
        ],
    }


def _agreement(found: Agreement) -> dict[str, Any]:
    kinds = {"kappa": found.kappa, **{f"kappa_{kind}": found.weighted[kind] for kind in WEIGHTS if found.weighted}}
    estimates = {name: None if estimate is None else vars(estimate) for name, estimate in kinds.items()}
    percent = [[None if math.isnan(value) else value for value in row] for row in column_percent(found.counts).tolist()]
    return {
        "n": found.n,
        "counts": found.counts.tolist(),
        "column_percent": percent,
        "same": vars(found.same),
        **estimates,
    }


FEWEST = 10  # pairs: an interval of fewer tells nothing


@dataclass(frozen=True)
class EncoderAgreement:
    """Spearman's correlation, from -1 to 1, of an encoder's cosines and people's mean scores of ``pairs`` pairs.

    over: the difference to another encoder's on the same pairs, by its name; None where there is none to compare with.
    """

    encoder: str
    pairs: int
    spearman: Estimate
    over: tuple[str, Estimate] | None = None


def mean_scores(answers: Mapping[str, Mapping[int, str]]) -> dict[int, float]:
    """Row → the mean of the scores that people gave it; ``answers``: person → row → score, as a label."""
    given: dict[int, list[float]] = {}
    for rows in answers.values():
        for row, label in rows.items():
            given.setdefault(row, []).append(float(label))
    return {row: mean(found) for row, found in sorted(given.items())}


def agreements(
    scores: Sequence[float],
    first: Sequence[str],
    cosines: Mapping[str, Sequence[float]],
    bases: Mapping[str, str] = MappingProxyType({}),
) -> list[EncoderAgreement]:
    """The agreement of each encoder with people, all on the same resamples.

    scores, first: people's score and the first text of each pair; cosines: encoder → its cosine of each pair; bases:
    encoder → its untrained base, where that is among them. Raises InputError for too few pairs, and for scores or
    cosines that are all the same.
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
    """``agreements`` on the pairs that people answered. Raises InputError for labels without an order, too."""
    if not report.sample.examples.scale.ordered:
        raise InputError("--encoder", "is for pairs with scores", hint="leave it out: these labels have no order")
    people = mean_scores(report.answers)
    texts = [report.sample.examples.texts[row] for row in people]
    first, second = [one[0] for one in texts], [one[1] for one in texts]
    cosines = {one.name: cosine(one)(first, second) for one in encoders} if len(people) >= FEWEST else {}
    return agreements(list(people.values()), first, cosines, bases)


def encoders_markdown(agreements: Sequence[EncoderAgreement]) -> str:
    """The agreements as a section of the report; correlations x 100, as all scores are told."""
    rows = []
    for one in agreements:
        over = f"{_points(one.over[1])} over {one.over[0]}" if one.over else ""
        rows.append([one.encoder, _points(one.spearman), over])
    told = (
        f"Spearman x 100 of an encoder's cosine and people's mean score, {agreements[0].pairs} pairs; 95 % intervals."
    )
    return f"## Encoders beside people\n\n{told}\n\n{table(['encoder', 'Spearman', 'difference'], rows)}\n"


def encoder_facts(agreements: Sequence[EncoderAgreement]) -> list[dict[str, object]]:
    """The agreements for programs (JSON)."""
    return [
        {
            "encoder": one.encoder,
            "pairs": one.pairs,
            "spearman": vars(one.spearman),
            "over": {"encoder": one.over[0], **vars(one.over[1])} if one.over else None,
        }
        for one in agreements
    ]


def _points(estimate: Estimate) -> str:
    value, low, high = (100 * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"
