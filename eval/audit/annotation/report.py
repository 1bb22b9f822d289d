"""The results of an annotation: who answered how much, confusion tables as DINO's Table 3, κ, as Markdown and JSON."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from eval.audit.annotation.agreement import WEIGHTS, Agreement, Counts, Estimate, agreement, column_percent
from eval.audit.annotation.sample import Sample, Scale
from eval.audit.tables import table
from hub.papers.tables import find_paper


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
    return [["equal labels", same], *([name, _kappa(one)] for name, one in kappas.items())]


def _kappa(estimate: Estimate | None) -> str:
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
