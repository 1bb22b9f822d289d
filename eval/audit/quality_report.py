"""A dataset's quality as Markdown and plots. No text of the dataset is shown; untrusted names are escaped."""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eval.audit.quality import Column, Measure, NliAgreement, Quality, Share
from eval.audit.text_forms import code, table
from hub.contract.schema import NLI_LABELS
from hub.papers import find_paper
from hub.plot_style import COLOURS, LINES, name, picture

CLASSIFIER = "deberta-v2-xxlarge-mnli"  # of Auto-NLI's Table 1
BESIDE: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
LONGEST = 0.995  # share of the texts that the length plot's axis reaches


def report(quality: Quality, pictures: Iterable[str]) -> str:
    """The whole report; ``pictures`` are the file names of its plots."""
    parts = [f"# Quality of {code(quality.dataset)} ({code(quality.config)})", _head(quality)]
    if quality.nli is not None:
        parts += ["## Agreement with an NLI model", *_nli(quality.nli), *_paper(quality.nli)]
    for measure in quality.measures:
        encoder = f"Embeddings of {code(measure.source)} ({code(measure.revision or '')})." if measure.source else ""
        parts += [f"## Pairs by label: {measure.name}", encoder, *_measure(measure)]
    parts += [
        "## Texts",
        f"Lengths in {quality.length_unit}; *normal* compares letters and digits alone, without case.",
    ]
    parts += [_texts(quality.columns), _distinct(quality.columns)]
    parts += ["## Repeats", _repeats(quality), *(f"![{file}]({file})" for file in pictures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown_share(share: Share | None) -> str:
    """A share with its interval, e.g. ``0.900 [0.874, 0.922]``."""
    return "–" if share is None else f"{share.share:.3f} [{share.low:.3f}, {share.high:.3f}]"


def _head(quality: Quality) -> str:
    total = sum(quality.splits.values())
    read = "all" if quality.rows == total else f"{quality.rows:,} drawn at random (seed {quality.seed}) of the"
    splits = ", ".join(f"{code(split)} {rows:,}" for split, rows in quality.splits.items())
    return f"{read} {total:,} rows ({splits}) of the schema {code(quality.form)}; revision {code(quality.revision)}."


def _nli(nli: NliAgreement) -> list[str]:
    words = (
        f"Share of pairs that {code(nli.model)} (revision {code(nli.revision)}) puts into each class, by label, with "
        "95 % Wilson intervals. The pairs of one source sentence are dependent, so these are somewhat too narrow. "
        "*agreement* is the share of the class that the label stands for (Auto-NLI, Table 1)."
    )
    rows = [
        [code(row.label), f"{row.predicted[NLI_LABELS[0]].n:,}"]
        + [shown_share(found) for found in (*(row.predicted[label] for label in NLI_LABELS), row.agreement)]
        for row in nli.labels
    ]
    if nli.agreement is not None:
        rows.append(["all", f"{nli.agreement.n:,}", "", "", "", shown_share(nli.agreement)])
    return [words, table(["label", "pairs", *NLI_LABELS, "agreement"], rows)]


def _paper(nli: NliAgreement) -> list[str]:
    """The paper's Table 1; with the dataset's own row where the classifier is the paper's."""
    paper = find_paper("auto-nli")
    table1 = paper.table(1)
    labels = [column.name.lower() for column in table1.columns]
    rows = [[row.name, *("–" if value is None else f"{value:.3f}" for value in row.values)] for row in table1.rows]
    words = f"In {paper.source(table1)} the classifier is {code(CLASSIFIER)}"
    if nli.model.rpartition("/")[2].lower() == CLASSIFIER:
        words += ", as here."
        ours = {row.intended: shown_share(row.agreement) for row in nli.labels if row.intended}
        rows.append(["**this dataset**", *(ours.get(label, "–") for label in labels)])
    else:
        words += ": another than here, so these shares are of another scale and stand apart."
    return [words, table(["agreement", *labels], rows)]


def _measure(measure: Measure) -> list[str]:
    quantiles = list(measure.labels[0].quantiles)
    rows = [
        [
            code(one.label),
            f"{one.n:,}",
            *(f"{v:.3f}" for v in (one.mean, one.sd, *(one.quantiles[q] for q in quantiles))),
        ]
        for one in measure.labels
    ]
    found = [table(["label", "pairs", "mean", "sd", *(f"{100 * float(q):g} %" for q in quantiles)], rows)]
    if measure.separations:
        shown = [f"{code(one.lower)} < {code(one.higher)}: {one.auc:.3f}" for one in measure.separations]
        found.append(f"Probability that a pair of the next label has the larger value (AUC): {', '.join(shown)}.")
    return found


def _texts(columns: Iterable[Column]) -> str:
    header = ["column", "texts", "empty", "under 3", "4 to 32", "mean length", "different", "different, normal"]
    rows = [
        [code(one.name), *(f"{count:,}" for count in (one.texts, one.empty, one.short))]
        + [shown_share(one.between_4_and_32), f"{one.mean_length:.1f}"]
        + [f"{count:,}" for count in (one.different, one.different_normal)]
        for one in columns
    ]
    return table(header, rows)


def _distinct(columns: Iterable[Column]) -> str:
    rows = [
        [code(one.name), f"{one.distinct[0].texts:,}", *(f"{d.ratio:.3f}" for d in one.distinct)] for one in columns
    ]
    return table(["column", "texts drawn", "distinct-1", "distinct-2", "distinct-3"], rows)


def _repeats(quality: Quality) -> str:
    found = quality.repeats
    rows = [["rows that repeat an earlier one", f"{found.exact:,}", f"{found.normal:,}"]]
    if len(quality.columns) > 1:
        same = [f"{found.same_sides:,}", f"{found.same_sides_normal:,}"]
        rows.append(["rows whose first two texts are the same", *same])
    return table(["", "exact", "normal"], rows)


def pictures(quality: Quality) -> dict[str, bytes]:
    """File name → plot of everything that was measured, as PNG."""
    drawn = {"lengths.png": _lengths_picture(quality.columns, quality.length_unit)}
    drawn |= {f"{one.name.replace(' ', '-')}.png": _measure_picture(one) for one in quality.measures}
    return drawn | ({"nli.png": _nli_picture(quality.nli)} if quality.nli is not None else {})


def _lengths_picture(columns: tuple[Column, ...], unit: str) -> bytes:
    """The distribution of text lengths, one line for each column (Auto-NLI, Figure 2); the band is 4 to 32 tokens."""

    def draw(_: Figure, axes: Axes) -> None:
        longest = max(_reached(column) for column in columns)
        axes.axvspan(4, 32, color="#DDDDDD", alpha=0.5, label="4 to 32")
        for index, column in enumerate(columns):
            shares = [100 * column.lengths.get(size, 0) / max(column.texts, 1) for size in range(longest + 1)]
            axes.plot(shares, LINES[index % len(LINES)], color=_colour(index), linewidth=2, label=name(column.name))
        axes.set(xlabel=f"length of a text, in {unit}", ylabel="texts, %", xlim=(0, max(longest, 34)), ylim=(0, None))
        axes.legend(**BESIDE)

    return picture(draw, (9, 4))


def _reached(column: Column) -> int:
    """The length that ``LONGEST`` of the column's texts do not exceed."""
    sums = zip(column.lengths, accumulate(column.lengths.values()), strict=True)
    return next((length for length, seen in sums if seen >= LONGEST * column.texts), 0)


def _measure_picture(measure: Measure) -> bytes:
    """How a measure is distributed over the pairs of each label: one line for each label, with its mean."""

    def draw(_: Figure, axes: Axes) -> None:
        for index, one in enumerate(measure.labels):
            shares = [100 * count / one.n for count in one.histogram]
            look: Any = {"color": _colour(index), "linestyle": LINES[index % len(LINES)], "linewidth": 2}
            axes.stairs(shares, measure.edges, label=f"{name(one.label)} (mean {one.mean:.2f})", **look)
        low = min(edge for one in measure.labels for edge, n in zip(measure.edges, one.histogram, strict=False) if n)
        axes.set(xlabel=measure.name, ylabel="pairs of the label, %", xlim=(low, 1), ylim=(0, None))
        axes.legend(title="label", **BESIDE)

    return picture(draw, (9, 4))


def _nli_picture(nli: NliAgreement) -> bytes:
    """The NLI model's classes by label, stacked; the hatched part is the class that the label stands for."""

    def draw(_: Figure, axes: Axes) -> None:
        ends = [0.0] * len(nli.labels)
        for index, label in enumerate(NLI_LABELS):
            shares = [100 * row.predicted[label].share for row in nli.labels]
            bars = axes.barh(range(len(nli.labels)), shares, left=ends, color=_colour(index))
            for bar, row in zip(bars, nli.labels, strict=True):
                bar.set_hatch("//" if row.intended == label else "")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            shown = [f"{share:.1f}" if share > 8 else "" for share in shares]
            axes.bar_label(bars, labels=shown, label_type="center", bbox=box)
            ends = [end + share for end, share in zip(ends, shares, strict=True)]
        axes.set_yticks(range(len(nli.labels)), [name(row.label) for row in nli.labels])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="pairs of the label, % (hatched: what the label stands for)", xlim=(0, 100))
        classes = [Patch(color=_colour(index), label=label) for index, label in enumerate(NLI_LABELS)]
        axes.legend(handles=classes, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)

    return picture(draw, (8, 1.8 + 0.5 * len(nli.labels)))


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
