"""Anchors with the spans they are compared with: python -m benchmarks.papers.declutr.spans DOCUMENTS.txt RECIPE

After DeCLUTR's table 5: for each view of a positive (adjacent to its anchor, overlapping with it, subsumed by it) an
anchor, a positive, a hard negative (another anchor of the document) and an easy one (of another document), cut as the
recipe's training cuts them; and how often each view is sampled.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.papers.result import Measured
from hub import cli
from hub.contract.measured import Estimate, write_json
from hub.contract.model_sections import Spans
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from hub.untrusted import sample, table
from training.data.spans import Span, document_generator, sample_spans

VIEWS = ("adjacent", "overlapping", "subsumed")
SEED, SAMPLES = 42, 1000

app = cli.new_app(__doc__)


@dataclass(frozen=True)
class Cut:
    """The spans of a document, in its words; ``positives`` of each anchor."""

    words: tuple[str, ...]
    anchors: tuple[Span, ...]
    positives: tuple[tuple[Span, ...], ...]

    def text(self, span: Span) -> str:
        """The words of a span."""
        return " ".join(self.words[span.start : span.end])


@app.command()
def main(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Documents, one a line")],
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A model recipe whose first dataset has spans")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
    limit: Annotated[int, typer.Option("--limit", min=2, help="Documents that are cut")] = 5000,
    shown: Annotated[int, typer.Option("--shown", min=1, help="Examples of each view")] = 2,
) -> None:
    """Cut documents into spans, count the views of positives and show some.

    Examples:

      python -m benchmarks.papers.declutr.spans documents.txt recipes/models/declutr-small.yaml --out /tmp/spans.json
    """
    spans = load_recipe(recipe, ModelRecipe).datasets[0].spans or Spans()
    lines = file.read_text(encoding="utf-8").splitlines()
    found = cuts(lines, spans, limit)
    if not found:
        raise InputError(file, f"no document has {spans.min_document} words")
    write_json(out, measured(found, shown))
    cli.say(f"written: {out}, {len(found):,} documents")


def cuts(lines: Sequence[str], spans: Spans, limit: int) -> list[Cut]:
    """The spans of the first documents that are long enough, as the first pass of a training samples them."""
    found = []
    for line in lines:
        text = line.lower() if spans.lowercase else line
        words = tuple(text.split())
        if len(words) < spans.min_document:
            continue
        generator = document_generator(SEED, 0, " ".join(words).encode())
        anchors, positives = sample_spans(generator, len(words), spans)
        each = spans.positives
        of_anchor = tuple(tuple(positives[place * each : (place + 1) * each]) for place in range(len(anchors)))
        found.append(Cut(words, tuple(anchors), of_anchor))
        if len(found) == limit:
            break
    return found


def view(anchor: Span, positive: Span) -> str:
    """How a positive lies to its anchor."""
    if positive.start == anchor.end or positive.end == anchor.start:
        return "adjacent"
    inside = anchor.start <= positive.start and positive.end <= anchor.end
    return "subsumed" if inside else "overlapping"


def measured(found: Sequence[Cut], shown: int) -> Measured:
    """The share of each view with its interval over documents, and a page of examples."""
    counts = [Counter(view(a, p) for a, ps in zip(c.anchors, c.positives, strict=True) for p in ps) for c in found]
    matrix = np.array([[count[name] for name in VIEWS] for count in counts], dtype=float)
    drawn = np.random.default_rng(SEED).integers(len(matrix), size=(SAMPLES, len(matrix)))
    low, high = np.percentile(shares(matrix[drawn]), [2.5, 97.5], axis=0)
    rows = {
        name: {"% of positives": Estimate(score=float(value), low=float(low[at]), high=float(high[at]))}
        for at, (name, value) in enumerate(zip(VIEWS, shares(matrix), strict=True))
    }
    lengths = {"anchors": lengths_of(found, anchors=True), "positives": lengths_of(found, anchors=False)}
    note = "; ".join(f"{name}: {np.mean(values):.1f} words on average" for name, values in lengths.items())
    return Measured(rows=rows, notes=(f"{len(found):,} documents. {note}.",), pages=(page(found, shown),))


def shares(counts: np.ndarray) -> np.ndarray:
    """Counts by document and view → percent of all positives, by view."""
    total = counts.sum(axis=-2)
    return 100 * total / total.sum(axis=-1, keepdims=True)


def lengths_of(found: Sequence[Cut], anchors: bool) -> list[int]:
    """The words of every anchor, or of every positive."""
    spans = (span for cut in found for span in (cut.anchors if anchors else sum(cut.positives, ())))
    return [span.end - span.start for span in spans]


def page(found: Sequence[Cut], shown: int) -> str:
    """A table of examples, each view's from documents of their own; the text is escaped."""
    rows, left = [], dict.fromkeys(VIEWS, shown)
    for one, other in pairwise(found):
        pairs = [(place, positive) for place, of_anchor in enumerate(one.positives) for positive in of_anchor]
        for place, positive in pairs:
            name = view(one.anchors[place], positive)
            if left[name] and len(one.anchors) > 1:
                left[name] -= 1
                hard = one.anchors[(place + 1) % len(one.anchors)]
                texts = [one.text(one.anchors[place]), one.text(positive), one.text(hard), other.text(other.anchors[0])]
                rows.append([name, *map(sample, texts)])
                break
    rows.sort(key=lambda row: VIEWS.index(str(row[0])))
    head = ["view", "anchor", "positive", "hard negative: the same document", "easy negative: another document"]
    return table(head, rows)


if __name__ == "__main__":
    cli.run(app)
