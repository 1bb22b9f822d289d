"""The pictures of a quality report, as PNG: readable without colour vision, the same bytes from the same numbers."""

import io
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from eval.audit.quality.measures import Column, Measure, NliAgreement, Quality
from hub.contract.recipe import NLI_LABELS
from hub.plot_style import COLOURS, LINES, NAME_LIMIT, STYLE

BESIDE: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False}
LONGEST = 0.995  # share of the texts that the length plot's axis reaches


def pictures(quality: Quality) -> dict[str, bytes]:
    """File name → picture of everything that was measured."""
    drawn = {"lengths.png": length_picture(quality.columns, quality.length_unit)}
    for measure in quality.measures:
        drawn[f"{measure.name.replace(' ', '-')}.png"] = measure_picture(measure)
    if quality.nli is not None:
        drawn["nli.png"] = nli_picture(quality.nli)
    return drawn


def length_picture(columns: tuple[Column, ...], unit: str) -> bytes:
    """The distribution of text lengths, one line a column (Auto-NLI, Figure 2); the band is 4 to 32 tokens."""

    def draw(axes: Axes) -> None:
        longest = max(_reached(column) for column in columns)
        axes.axvspan(4, 32, color="#DDDDDD", alpha=0.5, label="4 to 32")
        for index, column in enumerate(columns):
            shares = [100 * column.lengths.get(size, 0) / max(column.texts, 1) for size in range(longest + 1)]
            axes.plot(shares, LINES[index % len(LINES)], color=_colour(index), linewidth=2, label=_name(column.name))
        axes.set(xlabel=f"length of a text, in {unit}", ylabel="texts, %", xlim=(0, max(longest, 34)), ylim=(0, None))
        axes.legend(**BESIDE)

    return _png(draw, (9, 4))


def _reached(column: Column) -> int:
    """The length that ``LONGEST`` of the column's texts do not exceed."""
    sums = zip(column.lengths, accumulate(column.lengths.values()), strict=True)
    return next((length for length, seen in sums if seen >= LONGEST * column.texts), 0)


def measure_picture(measure: Measure) -> bytes:
    """How a measure is distributed over the pairs of each label: one line a label, with its mean."""

    def draw(axes: Axes) -> None:
        for index, one in enumerate(measure.labels):
            shares = [100 * count / one.n for count in one.histogram]
            told = f"{_name(one.label)} (mean {one.mean:.2f})"
            axes.stairs(
                shares, measure.edges, color=_colour(index), linestyle=LINES[index % 4], linewidth=2, label=told
            )
        low = min(edge for one in measure.labels for edge, n in zip(measure.edges, one.histogram, strict=False) if n)
        axes.set(xlabel=measure.name, ylabel="pairs of the label, %", xlim=(low, 1), ylim=(0, None))
        axes.legend(title="label", **BESIDE)

    return _png(draw, (9, 4))


def nli_picture(nli: NliAgreement) -> bytes:
    """The NLI model's classes by label, stacked; the hatched part is the class that the label stands for."""

    def draw(axes: Axes) -> None:
        ends = [0.0] * len(nli.labels)
        for index, name in enumerate(NLI_LABELS):
            shares = [100 * row.predicted[name].share for row in nli.labels]
            bars = axes.barh(range(len(nli.labels)), shares, left=ends, color=_colour(index))
            for bar, row in zip(bars, nli.labels, strict=True):
                bar.set_hatch("//" if row.intended == name else "")
            told = [f"{share:.1f}" if share > 8 else "" for share in shares]
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.bar_label(bars, labels=told, label_type="center", bbox=box)
            ends = [end + share for end, share in zip(ends, shares, strict=True)]
        axes.set_yticks(range(len(nli.labels)), [_name(row.label) for row in nli.labels])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set(xlabel="pairs of the label, % (hatched: what the label stands for)", xlim=(0, 100))
        classes = [Patch(color=_colour(index), label=name) for index, name in enumerate(NLI_LABELS)]
        axes.legend(handles=classes, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)

    return _png(draw, (8, 1.8 + 0.5 * len(nli.labels)))


def _png(draw: Callable[[Axes], None], size: tuple[float, float]) -> bytes:
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure.subplots())
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    return picture.getvalue()


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _name(label: str) -> str:
    shown = " ".join("".join(char if char.isprintable() else "�" for char in label).split())
    return shown if len(shown) <= NAME_LIMIT else shown[: NAME_LIMIT - 1] + "…"
