"""The results of an annotation: who answered how much, confusion tables as DINO's Table 3, κ, as Markdown and JSON."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from eval.annotation_agreement import WEIGHTS, Agreement, Counts, Estimate, agreement, column_percent
from eval.annotation_reference import Published, published
from eval.annotation_sample import Sample

UNDEFINED = "undefined (one label only)"


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
    ]
    for name, found in report.annotators.items():
        parts += [f"## {plain(name)}", f"{found.n} of {total} answered.", _confusion(found.counts, labels)]
        parts.append(_lines(["", "agreement with the generator"], [[kind, text] for kind, text in _values(found)]))
    if len(report.annotators) > 1:
        parts += ["## All annotators together", _confusion(report.pooled, labels)]
    if report.between:
        parts += ["## Between annotators"]
    for (first, second), found in report.between.items():
        rows = [["common rows", str(found.n)], *([kind, text] for kind, text in _values(found))]
        parts.append(_lines(["", f"{plain(first)}, {plain(second)}"], rows))
    if found_in_paper := published(examples.scale):
        parts += ["## Beside the paper", _beside(found_in_paper), _both(report.pooled, labels, found_in_paper)]
    return "\n\n".join(parts) + "\n"


def _confusion(counts: Counts, labels: Sequence[str]) -> str:
    rows = [
        [f"**{plain(label)}**", *map(_percent, percents)]
        for label, percents in zip(labels, column_percent(counts), strict=True)
    ]
    rows.append(["rows", *(str(n) for n in counts.sum(axis=0))])
    return _lines(["people ↓ generator →", *map(plain, labels)], rows)


def _beside(paper: Published) -> str:
    return (
        f"Each cell: these answers, then {paper.source}. The paper's: {paper.caption}. Its generator is another; "
        "its authors labelled the pairs themselves and give no κ."
    )


def _both(counts: Counts, labels: Sequence[str], paper: Published) -> str:
    rows = [
        [
            f"**{plain(label)}**",
            *(f"{_percent(ours)} / {theirs:.0f}\u00a0%" for ours, theirs in zip(*cells, strict=True)),
        ]
        for label, *cells in zip(labels, column_percent(counts), paper.percent, strict=True)
    ]
    return _lines(["people ↓ generator →", *map(plain, labels)], rows)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0f}\u00a0%"


def _values(found: Agreement) -> list[tuple[str, str]]:
    same = f"{found.same.value:.0f}\u00a0% [{found.same.low:.0f}, {found.same.high:.0f}]"
    kinds = [("Cohen's κ", found.kappa), *((f"κ, {kind} weights", found.weighted[kind]) for kind in found.weighted)]
    return [("equal labels", same), *((kind, _kappa(estimate)) for kind, estimate in kinds)]


def _kappa(estimate: Estimate | None) -> str:
    return UNDEFINED if estimate is None else f"{estimate.value:z.2f} [{estimate.low:z.2f}, {estimate.high:z.2f}]"


def _lines(head: list[str], rows: list[list[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def document(report: Report) -> dict[str, Any]:
    """The report for programs (JSON), with every counted answer beside the generator's label."""
    sample, examples = report.sample, report.sample.examples
    paper = published(examples.scale)
    return {
        "dataset": {key: getattr(examples, key) for key in ("name", "config", "split", "sha256")},
        "seed": sample.seed,
        "rows": list(sample.rows),
        "labels": list(examples.scale.labels),
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
