"""Plots of experiments as SVG: the same numbers always give the same bytes."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING

from eval.compare.seeds import split_of
from experiments.plan import OwnColumn
from experiments.result import Difference
from hub.contract.results import read_results
from hub.plot_style import COLOURS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = "#767676"
MARKS = {"reproduced": ("^", COLOURS[0]), "contradicted": ("v", COLOURS[5]), "not significant": ("o", OPEN)}
LINEAR = 5.0  # points to either side of zero; beyond them the scale is logarithmic
LINE_INCHES = 0.3
WIDTH = 62  # characters of a line of a name


def drawn(width: float, height: float, draw: Callable[["Figure"], None]) -> str:
    """A figure of this size in inches as SVG."""
    import matplotlib  # imports for a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none", "svg.hashsalt": "sts-dino"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue().decode()


def effects_plot(effects: Sequence[tuple[str, Difference, float | None]]) -> str:
    """A line for each effect (name, our difference, the paper's or None) with its interval."""
    from matplotlib.lines import Line2D

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, (_, found, printed) in enumerate(effects):
            one = found.difference
            mark, colour = MARKS.get(found.verdict, MARKS["not significant"])
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
            filled = "white" if mark == "o" else colour
            axes.plot(one.score, place, marker=mark, color=colour, markerfacecolor=filled, markersize=7)
            if printed is not None:
                axes.plot(printed, place, marker="x", color="black", markersize=6)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_xscale("symlog", linthresh=LINEAR)
        ticks = [-20, -5, -2, 0, 2, 5, 20, 50]
        axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axes.set_yticks(range(len(effects)), ["\n".join(wrap(name, WIDTH)) for name, *_ in effects], fontsize=8)
        axes.set(xlabel="points; logarithmic beyond 5", ylim=(len(effects) - 0.5, -0.5))
        shapes = {name: (*found, "white" if found[0] == "o" else found[1]) for name, found in MARKS.items()}
        shapes["the paper"] = ("x", "black", "black")
        handles = [
            Line2D([], [], linestyle="", label=name, marker=mark, color=colour, markerfacecolor=filled)
            for name, (mark, colour, filled) in shapes.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)

    return drawn(10, 1.4 + LINE_INCHES * len(effects), draw)


def scores_of(column: OwnColumn, folders: Sequence[Path]) -> list[float]:
    """The mean over a column's tasks in each evaluation."""
    found = []
    for place in folders:
        scores = {(one.task, one.split): one.main_score for one in read_results(place / "results.json").scores}
        found.append(fmean(scores[task, split_of(task, column.split)] for task in column.tasks))
    return found


def over_sets(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """A sentence with mean and standard deviation of the last column over trainings, each on an example set."""
    name, column = list(columns.items())[-1]
    scores = {encoder: scores_of(column, places) for encoder, places in folders.items()}
    parts = [f"{encoder} {fmean(found):.1f} ± {stdev(found):.1f}" for encoder, found in scores.items()]
    return f"Mean ± standard deviation of {name} over example sets: {'; '.join(parts)}."
