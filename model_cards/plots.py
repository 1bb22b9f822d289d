"""The plots of cards and reports, as PNG: readable without colour vision, and reproducible.

They are drawn without pyplot, independent of the user's display and style. The names of labels are
plain text: matplotlib's mathematics between dollar signs is off.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sts_dino.hub.contract.results import Results, TaskScore, map_by_task
from sts_dino.hub.plot_style import COLOURS, LINES, WIDTH, draw_picture, shorten_name
from sts_dino.model_cards.facts import Curve, TrainingFacts

NestedCounts = Mapping[str, Mapping[str, int]]
HISTOGRAM_BINS = 20
SIDE_MARKERS = ("o", "D", "s")  # matplotlib's markers of the encoders, in their order
# a number fits into a bar of more than this share of the longest bar
LEAST_LABELLED_SHARE = 0.12
MOST_MARKED_POINTS = 29  # a longer curve has no markers, which would overlap
_WITH_THOUSANDS_COMMAS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def draw_label_plot(outcomes: NestedCounts, rows: NestedCounts, config: str) -> bytes:
    """Draw two bar charts as a PNG: texts by label and outcome; below, rows by label and split.

    Args:
        outcomes: label → outcome (kept, rejected) → texts.
        rows: label → split → rows of ``config``.
        config: the name of the config.
    """
    bars = max(len(outcomes), len(rows))

    def draw_bars(_: Figure, upper: Axes, lower: Axes) -> None:
        _draw_bars(upper, outcomes, "texts", "Texts requested")
        _draw_bars(lower, rows, "rows", f"Rows in {config}")

    return draw_picture(draw_bars, (WIDTH, 2 * (1.4 + 0.4 * bars)), rows=2)


def draw_length_plot(lengths: Mapping[str, Mapping[int, int]], unit: str) -> bytes:
    """Draw the distribution of text lengths as a PNG, a line for each label.

    Args:
        lengths: label → length → number of texts; at least one label, and every label has texts.
        unit: the name of the unit of length, e.g. words.
    """

    def draw_lines(_: Figure, axes: Axes) -> None:
        # a line has, at each length, the percentage of the label's texts
        for index, (label, counts) in enumerate(lengths.items()):
            text_count = sum(counts.values())
            sizes = range(min(counts), max(counts) + 1)
            percentages = [100 * counts.get(size, 0) / text_count for size in sizes]
            axes.plot(
                sizes,
                percentages,
                LINES[index % len(LINES)],
                color=_choose_colour(index),
                linewidth=2,
                label=shorten_name(label),
            )
        axes.set(
            xlabel=f"length of a text, in {unit}", ylabel="texts of the label, %", ylim=(0, None)
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(title="label", frameon=False)

    return draw_picture(draw_lines, (WIDTH, 3.5))


def draw_training_plot(training: TrainingFacts) -> bytes:
    """Draw a PNG of the training loss with its parts and, below, the validation score, by step.

    Without validation scores there is no lower panel. A vertical line marks the step of the chosen
    checkpoint, if validation chose it.
    """
    best_step = training.best_step

    # the panels: (title, name → curve)
    panels: list[tuple[str, Mapping[str, Curve]]] = [
        ("Training loss", {"loss": training.loss_curve, **training.loss_parts})
    ]
    if training.validation_curve:
        metric = training.validation_metric or "Score"
        title = f"{metric[:1].upper()}{metric[1:]} on validation"
        panels.append((title, {"": training.validation_curve}))
    last_step = 0
    for _, curves in panels:
        for curve in curves.values():
            last_step = max([last_step, *(step for step, _ in curve)])

    def draw_panels(_: Figure, *panel_axes: Axes) -> None:
        # each panel on its axes, from top to bottom
        for index, (axes, (title, curves)) in enumerate(zip(panel_axes, panels, strict=True)):
            # the validation score has another colour than the loss
            _draw_curves(axes, curves, first_colour=2 * index)
            # a margin behind the last step; without a step, any axis that is not empty
            axes.set(xlabel="step", title=title, xlim=(0, 1.02 * last_step or 1))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.xaxis.set_major_formatter(_WITH_THOUSANDS_COMMAS)
            if best_step is not None:
                axes.axvline(
                    best_step, color=COLOURS[5], linestyle="--", label=f"step kept ({best_step:,})"
                )
            if best_step is not None or len(curves) > 1:
                axes.legend(frameon=False)

    return draw_picture(draw_panels, (WIDTH, 3 * len(panels)), rows=len(panels))


def draw_similarity_plot(cosines: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """Draw histograms of cosines as a PNG, a panel for each label.

    ``cosines``: encoder → label → cosines of pairs, -1 to 1. There is at least one encoder, and all
    have the same labels, at least one. The bars of the last encoder are filled.
    """
    labels = list(next(iter(cosines.values())))
    lowest = 0.0
    for by_label in cosines.values():
        for values in by_label.values():
            lowest = min([lowest, *values])
    bins = np.linspace(lowest, 1, HISTOGRAM_BINS + 1).tolist()

    def draw_histograms(_: Figure, *panel_axes: Axes) -> None:
        # the histograms of each label on its axes, from top to bottom
        last_index = len(cosines) - 1  # the last encoder's bars are filled
        for axes, label in zip(panel_axes, labels, strict=True):
            for index, (encoder, by_label) in enumerate(cosines.items()):
                values = by_label[label]
                percentage_of_one = 100 / max(1, len(values))  # what one pair adds to a bar
                axes.hist(
                    values,
                    bins,
                    weights=np.full(len(values), percentage_of_one),
                    histtype="stepfilled" if index == last_index else "step",
                    color=_choose_colour(index),
                    label=encoder,
                    lw=2,
                )
            axes.set(title=shorten_name(label), ylabel="pairs, %")
        panel_axes[-1].set(xlabel="cosine similarity")
        panel_axes[0].legend(frameon=False)

    return draw_picture(draw_histograms, (WIDTH, 0.4 + 2.2 * len(labels)), rows=len(labels))


def draw_score_plot(
    results: Results, sides: Mapping[str, Sequence[TaskScore]], limit: int
) -> bytes:
    """Draw a PNG of encoders' scores with their 95 % intervals, a row for each task and split.

    A score that an encoder lacks is left out; a score without an interval has only a marker.

    Args:
        results: its scores name the tasks and their order.
        sides: encoder → scores; each encoder has a marker and a colour.
        limit: the number of tasks to draw at most; the first ones are drawn.
    """
    tasks = [(score.task, score.split) for score in results.scores[:limit]]
    names = [shorten_name(f"{task} {split}", 40) for task, split in tasks]

    def draw_scores(figure: Figure, axes: Axes) -> None:
        # one encoder after the other, a marker and an interval in each task's row
        for index, (side, scores) in enumerate(sides.items()):
            scores_by_task = map_by_task(scores)
            # The encoders' markers lie one below the other, centred on the task's row.
            offset = 0.2 * (index - (len(sides) - 1) / 2)
            colour = _choose_colour(index)
            marker = SIDE_MARKERS[index % len(SIDE_MARKERS)]
            for row, key in enumerate(tasks):
                score = scores_by_task.get(key)
                if score is None:
                    continue
                height = row + offset
                interval = score.interval() or ()  # (): a score without an interval
                axes.plot(interval, [height] * len(interval), color=colour)
                axes.plot(score.main_score, height, marker, color=colour)
            axes.plot([], [], marker, color=colour, label=side)  # the entry of the legend
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="score x 100, with its 95 % interval", ylim=(len(names) - 0.5, -0.5))
        figure.legend(loc="outside lower center", ncols=len(sides), frameon=False)

    return draw_picture(draw_scores, (WIDTH, 1.8 + 0.6 * len(names)))


def _draw_curves(axes: Axes, curves: Mapping[str, Curve], first_colour: int) -> None:
    """Draw the curves of a panel on ``axes``, each in another colour.

    ``curves``: name → points (step, value); a single curve gets no name in the legend.
    ``first_colour``: the index of the first curve's colour.
    """
    for index, (part, curve) in enumerate(curves.items()):
        axes.plot(
            [step for step, _ in curve],
            [value for _, value in curve],
            LINES[index % len(LINES)],
            color=_choose_colour(first_colour + index),
            linewidth=2,
            marker="o" if len(curve) <= MOST_MARKED_POINTS else "",
            label=shorten_name(part) if len(curves) > 1 else None,
        )


def _draw_bars(axes: Axes, counts: NestedCounts, unit: str, title: str) -> None:
    """Draw horizontal bars, stacked by part; a part that is long enough has its number inside.

    Args:
        axes: the axes to draw on.
        counts: bar → part → number; a part that a bar lacks is 0.
        unit: the unit of the numbers, which labels the x axis.
        title: the title of the panel.
    """
    names = [shorten_name(label) for label in counts]
    longest = max((sum(row.values()) for row in counts.values()), default=0)
    # the distinct parts in their order: a dict is an ordered set here
    parts: dict[str, None] = {}
    for row in counts.values():
        parts |= dict.fromkeys(row)

    # the bars of each part, beginning where those of the part before end
    ends = [0] * len(counts)
    for index, part in enumerate(parts):
        sizes = [row.get(part, 0) for row in counts.values()]
        bars = axes.barh(
            range(len(names)), sizes, left=ends, color=_choose_colour(index), label=part
        )
        shortest_labelled = LEAST_LABELLED_SHARE * longest
        axes.bar_label(
            bars,
            labels=[f"{size:,}" if size > shortest_labelled else "" for size in sizes],
            label_type="center",
            color="white" if index == 0 else "black",  # the first colour is dark
        )
        ends = [end + size for end, size in zip(ends, sizes, strict=True)]

    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel=unit, title=title)
    axes.grid(visible=False, axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(_WITH_THOUSANDS_COMMAS)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=3.3,
        ncols=len(parts) or 1,
        frameon=False,
    )


def _choose_colour(index: int) -> str:
    """Return the colour of the series ``index``; colours repeat after the last."""
    return COLOURS[index % len(COLOURS)]
