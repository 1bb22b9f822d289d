"""Effects of all experiments in one plot: our difference with its interval, the paper's beside it."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from benchmarks.papers.result import Difference
from benchmarks.svg import drawn
from hub.plot_style import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPEN = "#767676"
MARKS = {"reproduced": ("^", COLOURS[0]), "contradicted": ("v", COLOURS[5]), "not separable": ("o", OPEN)}
LINEAR = 5.0  # points to either side of zero; beyond them the scale is logarithmic
LINE_INCHES = 0.3
WIDTH = 62  # characters of a line of a name


def effects_plot(effects: Sequence[tuple[str, Difference, float | None]]) -> str:
    """A line for each effect, (its name, what was found, the paper's difference or None), as SVG."""
    from matplotlib.lines import Line2D

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, (_, found, printed) in enumerate(effects):
            one = found.difference
            mark, colour = MARKS.get(found.verdict, MARKS["not separable"])
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
        handles = [
            Line2D(
                [],
                [],
                linestyle="",
                marker=mark,
                color=colour,
                label=name,
                markerfacecolor="white" if mark == "o" else colour,
            )
            for name, (mark, colour) in MARKS.items()
        ]
        handles.append(Line2D([], [], linestyle="", marker="x", color="black", label="the paper"))
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)

    return drawn(10, 1.4 + LINE_INCHES * len(effects), draw)
