"""The plots of cards and reports, as PNG: readable without colour vision, and the same bytes from the same numbers.

They are drawn without pyplot, independent of the user's display and style. The names of labels are plain text:
matplotlib's mathematics between dollar signs is off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from hub.contract.results import Results, TaskScore, by_task
from hub.plot_style import COLOURS, LINES, WIDTH, name, picture
from model_cards.manifest import Curve, TrainingFacts

Counted = Mapping[str, Mapping[str, int]]
BINS = 20
MARKERS = ("o", "D", "s")


def label_plot(outcomes: Counted, rows: Counted, config: str) -> bytes:
    """Two bar charts: label → outcome (kept, rejected) → texts; below, label → split → rows of ``config``."""

    def draw(_: Figure, upper: Axes, lower: Axes) -> None:
        _bars(upper, outcomes, "texts", "Texts requested")
        _bars(lower, rows, "rows", f"Rows in {config}")

    return picture(draw, (WIDTH, 2 * (1.4 + 0.4 * max(len(outcomes), len(rows)))), rows=2)


def length_plot(lengths: Mapping[str, Mapping[int, int]], unit: str) -> bytes:
    """The distribution of text lengths, one line for each label (label → length → texts)."""

    def draw(_: Figure, axes: Axes) -> None:
        for index, (label, counts) in enumerate(lengths.items()):
            total, sizes = sum(counts.values()), range(min(counts), max(counts) + 1)
            shares = [100 * counts.get(size, 0) / total for size in sizes]
            axes.plot(sizes, shares, LINES[index % len(LINES)], color=_colour(index), linewidth=2, label=name(label))
        axes.set(xlabel=f"length of a text, in {unit}", ylabel="texts of the label, %", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(title="label", frameon=False)

    return picture(draw, (WIDTH, 3.5))


def training_plot(training: TrainingFacts) -> bytes:
    """The training loss with its parts, and the validation score, by step; a line marks the selected step."""
    best_step, metric = training.best_step, training.validation_metric or "Score"
    panels: list[tuple[str, Mapping[str, Curve]]] = [
        ("Training loss", {"loss": training.loss_curve, **training.loss_parts})
    ]
    if training.validation_curve:
        panels.append((f"{metric[:1].upper()}{metric[1:]} on validation", {"": training.validation_curve}))
    last = max(step for _, curves in panels for curve in curves.values() for step, _ in curve)

    def draw(_: Figure, *drawn: Axes) -> None:
        for position, (axes, (title, curves)) in enumerate(zip(drawn, panels, strict=True)):
            _curves(axes, curves, first_colour=2 * position)
            axes.set(xlabel="step", title=title, xlim=(0, 1.02 * last or 1))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.xaxis.set_major_formatter(_THOUSANDS)
            if best_step is not None:
                axes.axvline(best_step, color=COLOURS[5], linestyle="--", label=f"step kept ({best_step:,})")
            if best_step is not None or len(curves) > 1:
                axes.legend(frameon=False)

    return picture(draw, (WIDTH, 3 * len(panels)), rows=len(panels))


def similarity_plot(cosines: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """The distribution of cosines, a panel for each label (encoder → label → cosines); the last encoder is filled."""
    labels = list(next(iter(cosines.values())))
    low = min([0.0, *(value for of in cosines.values() for values in of.values() for value in values)])

    def draw(_: Figure, *drawn: Axes) -> None:
        for axes, label in zip(drawn, labels, strict=True):
            for index, (encoder, of) in enumerate(cosines.items()):
                kind: Any = "stepfilled" if index == len(cosines) - 1 else "step"
                shares = np.full(len(of[label]), 100 / max(1, len(of[label])))
                bins = np.linspace(low, 1, BINS + 1).tolist()
                axes.hist(of[label], bins, weights=shares, histtype=kind, color=_colour(index), label=encoder, lw=2)
            axes.set(title=name(label), ylabel="pairs, %")
        drawn[-1].set(xlabel="cosine similarity")
        drawn[0].legend(frameon=False)

    return picture(draw, (WIDTH, 0.4 + 2.2 * len(labels)), rows=len(labels))


def score_plot(results: Results, sides: Mapping[str, Sequence[TaskScore]], most: int) -> bytes:
    """The scores of the first ``most`` tasks with their 95 % intervals; each side has a marker and a colour."""
    names = [name(f"{score.task} {score.split}", 40) for score in results.scores[:most]]

    def draw(figure: Figure, axes: Axes) -> None:
        for index, (side, scores) in enumerate(sides.items()):
            found, shift = by_task(scores), 0.2 * (index - (len(sides) - 1) / 2)
            for place, score in enumerate(results.scores[:most]):
                one = found.get((score.task, score.split))
                if one is not None:
                    axes.plot(
                        one.interval() or (), [place + shift] * (2 if one.interval() else 0), color=_colour(index)
                    )
                    axes.plot(one.main_score, place + shift, MARKERS[index % len(MARKERS)], color=_colour(index))
            axes.plot([], [], MARKERS[index % len(MARKERS)], color=_colour(index), label=side)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="score x 100, with its 95 % interval", ylim=(len(names) - 0.5, -0.5))
        figure.legend(loc="outside lower center", ncols=len(sides), frameon=False)

    return picture(draw, (WIDTH, 1.8 + 0.6 * len(names)))


def _curves(axes: Axes, curves: Mapping[str, Curve], first_colour: int) -> None:
    """The curves of one panel, each with its colour and line; several curves have a legend."""
    for index, (part, curve) in enumerate(curves.items()):
        marker = "o" if len(curve) < 30 else ""
        label = name(part) if len(curves) > 1 else None
        colour, line = _colour(first_colour + index), LINES[index % len(LINES)]
        axes.plot(*zip(*curve, strict=True), line, color=colour, linewidth=2, marker=marker, label=label)


_THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def _bars(axes: Axes, counts: Counted, unit: str, title: str) -> None:
    """Horizontal bars, stacked by part, with the larger numbers inside."""
    parts = list(dict.fromkeys(part for row in counts.values() for part in row))
    names, ends = [name(label) for label in counts], [0] * len(counts)
    largest = max((sum(row.values()) for row in counts.values()), default=0)
    for index, part in enumerate(parts):
        sizes = [row.get(part, 0) for row in counts.values()]
        bars = axes.barh(range(len(names)), sizes, left=ends, color=_colour(index), label=part)
        shown = [f"{size:,}" if size > 0.12 * largest else "" for size in sizes]
        axes.bar_label(bars, labels=shown, label_type="center", color="white" if index == 0 else "black")
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel=unit, title=title)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(_THOUSANDS)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=3.3, ncols=len(parts) or 1, frameon=False)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]
