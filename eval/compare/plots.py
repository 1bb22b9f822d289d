"""Plots of a comparison, PNG and SVG: scores as bars, and differences of each pair of models.

Scores and differences have 95 % intervals. Hatches and marks say the same as the colours.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sts_dino.eval.compare.tables import Comparison
from sts_dino.eval.scoring.paired import Measurement, Verdict
from sts_dino.hub.contract.results import VerdictWord
from sts_dino.hub.durable import write_bytes
from sts_dino.hub.plot_style import COLOURS, WIDTH, draw_picture, shorten_name

HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
VERDICT_MARKS: dict[VerdictWord, tuple[str, str]] = {
    "better": ("^", "#0072B2"),
    "worse": ("v", "#D55E00"),
    "not significant": ("o", "#767676"),
}
BAR_INCHES = 0.2  # height of one bar
DIFFERENCE_INCHES = 0.34  # height of the line of one difference
GROUP_SHARE = 0.8  # share of a measurement's height that its bars take
BAR_SHARE = 0.74  # the same, less the gaps between bars
MAX_NAME_CHARACTERS = 40
LEGEND_CHARACTERS = 68  # characters of one line of the legend
LEGEND_MARK_CHARACTERS = 8  # width of a legend's mark, in characters


class Plot(NamedTuple):
    """A plot to draw: description in words, drawing function, and (width, height) in inches."""

    description: str
    draw: Callable[[Figure, Axes], None]
    size: tuple[float, float]


def write_plots(comparison: Comparison, folder: Path) -> list[tuple[str, str]]:
    """Write the plots of a comparison to ``folder``, each as PNG and as SVG.

    The plot ``scores`` has all scores. The plots ``differences-1``, ``differences-2`` ... have the
    tested differences of one pair of models each; a pair without a tested difference has none.
    Returns (description, name of the PNG file in ``folder``) of each plot.
    """
    # Plan the plot of all scores. Height in inches: margins, legend (a line for two models), bars
    models = len(comparison.models)
    height = 1.5 + 0.3 * ceil(models / 2) + BAR_INCHES * (models + 0.5) * len(comparison.rows)
    plots = {
        "scores": Plot(
            "Scores of all models with their 95 % intervals",
            partial(_draw_scores, comparison),
            (WIDTH, height),
        )
    }

    # Plan a plot of the tested differences of each pair
    pairs: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in comparison.verdicts:
        if verdict.difference.tested is not None:
            pairs.setdefault((verdict.first, verdict.second), []).append(verdict)
    for number, ((first, second), verdicts) in enumerate(pairs.items(), start=1):
        plots[f"differences-{number}"] = Plot(
            f"Differences {first} minus {second} with paired 95 % intervals",
            partial(_draw_differences, verdicts),
            (WIDTH, 1.9 + DIFFERENCE_INCHES * len(verdicts)),
        )

    # Draw each plot as two files
    for name, plot in plots.items():
        for kind in ("png", "svg"):
            write_bytes(folder / f"{name}.{kind}", draw_picture(plot.draw, plot.size, kind))
    return [(plot.description, f"{name}.png") for name, plot in plots.items()]


def _draw_scores(comparison: Comparison, figure: Figure, axes: Axes) -> None:
    """Draw a group of bars for each measurement: a bar and an interval for each scored model.

    A score without an interval has only a bar. The legend is drawn on ``figure``, the rest on
    ``axes``.
    """
    # Draw the groups from top to bottom; the middle of a group is at the height of its index
    models = comparison.models
    rows = comparison.rows
    lowest = 0.0
    for group, row in enumerate(rows):
        scored = [index for index, model in enumerate(models) if model in row.scores]
        for position, index in enumerate(scored):
            # The bars of the models with a score stand evenly around the group's middle
            bars_from_middle = position - (len(scored) - 1) / 2
            height = group + bars_from_middle * GROUP_SHARE / len(models)
            score = row.scores[models[index]]
            low, high = score.interval() or (score.main_score, score.main_score)
            lowest = min(lowest, low * 1.05)  # a margin for negative scores
            axes.barh(height, score.main_score, BAR_SHARE / len(models), **_choose_look(index))
            axes.plot(
                [low, high], [height, height], color="black", linewidth=1.2, solid_capstyle="butt"
            )
            axes.text(
                max(high, 0) + 0.8, height, f"{score.main_score:.2f}", va="center", fontsize=8
            )

    # Label the axes; scores end at 100, and their numbers need room to the right
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(rows)), _name_measurements([row.measurement for row in rows]))
    axes.set(xlabel="score x 100, 95 % interval", xlim=(lowest, 110), ylim=(len(rows) - 0.5, -0.5))

    # Name the models in as many columns as fit
    names = [shorten_name(model, MAX_NAME_CHARACTERS) for model in models]
    handles = [Patch(**_choose_look(index), label=name) for index, name in enumerate(names)]
    entry_characters = max(map(len, names)) + LEGEND_MARK_CHARACTERS
    columns = max(1, min(len(models), LEGEND_CHARACTERS // entry_characters))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)


def _choose_look(index: int) -> dict[str, Any]:
    """Return matplotlib's options for the bars of the model at ``index``; looks repeat."""
    return {
        "facecolor": COLOURS[index % len(COLOURS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0,
    }


def _draw_differences(verdicts: Sequence[Verdict], figure: Figure, axes: Axes) -> None:
    """Draw each difference of a pair of models: its interval as a line, its points as a mark.

    ``verdicts``: the tested verdicts of the pair, at least one. The legend is drawn on ``figure``,
    the rest on ``axes``.
    """
    # Draw the differences from top to bottom, one unit of height each
    first = shorten_name(verdicts[0].first, MAX_NAME_CHARACTERS)
    second = shorten_name(verdicts[0].second, MAX_NAME_CHARACTERS)
    axes.axvline(0, color="black", linewidth=0.8)
    for height, verdict in enumerate(verdicts):
        mark = _make_mark(verdict.word)
        assert verdict.difference.tested is not None
        ends, _ = verdict.difference.tested
        axes.plot([ends.low, ends.high], [height, height], color=mark.get_color(), linewidth=1.6)
        mark.set_data([verdict.difference.points], [height])
        axes.add_line(mark)

    # Label the axes, and name the marks
    axes.grid(visible=False, axis="y")
    names = _name_measurements([verdict.measurement for verdict in verdicts])
    axes.set_yticks(range(len(verdicts)), names)
    axes.set(
        xlabel=f"{first}\nminus {second}\npoints, paired 95 % interval",
        ylim=(len(verdicts) - 0.5, -0.5),
    )
    used = {verdict.word for verdict in verdicts}
    handles = [_make_mark(word) for word in VERDICT_MARKS if word in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)


def _make_mark(word: VerdictWord) -> Line2D:
    """Return the mark of a verdict: filled for a significant difference, else hollow."""
    shape, colour = VERDICT_MARKS[word]
    return Line2D(
        [],
        [],
        color=colour,
        marker=shape,
        label=word,
        linewidth=1.6,
        markersize=7,
        markerfacecolor="white" if word == "not significant" else colour,
    )


def _name_measurements(measurements: Sequence[Measurement]) -> list[str]:
    """Return the name of each measurement: its task, and its split unless that is test or all.

    The number of rows follows where rows were drawn, and where two measurements would have one
    name. A name has at most ``MAX_NAME_CHARACTERS`` characters.
    """
    plain_names = []
    for measurement in measurements:
        name = measurement.task
        if measurement.split not in ("test", "all"):
            name += f" {measurement.split}"
        plain_names.append(name)
    names = []
    for name, measurement in zip(plain_names, measurements, strict=True):
        suffix = ""
        if measurement.limit:
            suffix = f" ({measurement.n} rows drawn)"
        elif plain_names.count(name) > 1:
            suffix = f" ({measurement.n} rows)"
        names.append(shorten_name(name, MAX_NAME_CHARACTERS - len(suffix)) + suffix)
    return names
