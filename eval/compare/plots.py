"""A comparison as plots, PNG and SVG: scores as bars with intervals, the differences of each pair with theirs.

Hatches and marks say the same as the colours.
"""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eval.compare.tables import Comparison
from eval.statistics.paired import Measurement, Verdict
from hub.contract.results import Word
from hub.plot_style import COLOURS, WIDTH, name, picture

HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
MARKS: dict[Word, tuple[str, str]] = {
    "better": ("^", "#0072B2"),
    "worse": ("v", "#D55E00"),
    "not significant": ("o", "#767676"),
}
BAR = 0.2  # inches of one bar
ROW = 0.34  # inches of one difference
LONGEST = 40  # characters of a name
Drawing = tuple[Callable[[Figure, Axes], None], tuple[float, float]]


def plots(comparison: Comparison) -> dict[str, tuple[str, bytes]]:
    """File name → (description, content): ``scores`` and ``differences-1`` … for every pair, each as PNG and SVG."""
    drawings = {"scores": ("Scores of all models with their 95 % intervals", _scores(comparison))}
    tested = [one for one in comparison.verdicts if one.difference.tested]
    pairs = list(dict.fromkeys((one.first, one.second) for one in tested))
    for number, pair in enumerate(pairs, start=1):
        verdicts = [one for one in tested if (one.first, one.second) == pair]
        words = f"Differences {pair[0]} minus {pair[1]} with paired 95 % intervals"
        drawings[f"differences-{number}"] = (words, _differences(verdicts))
    return {
        f"{file}.{kind}": (words, picture(draw, size, kind))
        for file, (words, (draw, size)) in drawings.items()
        for kind in ("png", "svg")
    }


def _scores(comparison: Comparison) -> Drawing:
    models, lines = comparison.models, comparison.lines

    def draw(figure: Figure, axes: Axes) -> None:
        for place, line in enumerate(lines):
            there = [index for index, model in enumerate(models) if model in line.scores]
            for position, index in enumerate(there):
                middle = place + (position - (len(there) - 1) / 2) * 0.8 / len(models)
                score = line.scores[models[index]]
                low, high = score.interval() or (score.main_score, score.main_score)
                axes.barh(middle, score.main_score, 0.74 / len(models), **_look(index))
                axes.plot([low, high], [middle, middle], color="black", linewidth=1.2, solid_capstyle="butt")
                axes.text(max(high, 0) + 0.8, middle, f"{score.main_score:.2f}", va="center", fontsize=8)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(lines)), _names([line.measurement for line in lines]))
        lowest = min((score.interval() or (score.main_score,))[0] for line in lines for score in line.scores.values())
        ends = {"xlim": (min(0.0, lowest * 1.05), 110), "ylim": (len(lines) - 0.5, -0.5)}
        axes.set(xlabel="score x 100, 95 % interval", **ends)
        shown = [name(model, LONGEST) for model in models]
        handles = [Patch(**_look(index), label=label) for index, label in enumerate(shown)]
        columns = max(1, min(len(models), 68 // (max(map(len, shown)) + 8)))
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)

    return draw, (WIDTH, 1.5 + 0.3 * -(-len(models) // 2) + BAR * (len(models) + 0.5) * len(lines))


def _look(index: int) -> dict[str, Any]:
    colour, hatch = COLOURS[index % len(COLOURS)], HATCHES[index % len(HATCHES)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def _differences(verdicts: Sequence[Verdict]) -> Drawing:
    first, second = name(verdicts[0].first, LONGEST), name(verdicts[0].second, LONGEST)

    def draw(figure: Figure, axes: Axes) -> None:
        axes.axvline(0, color="black", linewidth=0.8)
        for place, one in enumerate(verdicts):
            mark = _mark(one.word)
            assert one.difference.tested is not None
            around, _ = one.difference.tested
            axes.plot([around.low, around.high], [place, place], color=mark.get_color(), linewidth=1.6)
            mark.set_data([one.difference.points], [place])
            axes.add_line(mark)
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(verdicts)), _names([one.measurement for one in verdicts]))
        axes.set(xlabel=f"{first}\nminus {second}\npoints, paired 95 % interval", ylim=(len(verdicts) - 0.5, -0.5))
        shown = [word for word in MARKS if any(one.word == word for one in verdicts)]
        handles = [_mark(word) for word in shown]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(shown), frameon=False)

    return draw, (WIDTH, 1.9 + ROW * len(verdicts))


def _mark(word: Word) -> Line2D:
    """The mark of a verdict: filled where there is a significant difference, else hollow."""
    shape, colour = MARKS[word]
    inside = "white" if word == "not significant" else colour
    return Line2D([], [], color=colour, marker=shape, label=word, linewidth=1.6, markersize=7, markerfacecolor=inside)


def _names(measurements: Sequence[Measurement]) -> list[str]:
    """Task and, where it is not the test part, split; rows that would have one name get their number of rows."""
    names = [one.task if one.split in ("test", "all") else f"{one.task} {one.split}" for one in measurements]
    shown = [
        f"{label} ({one.n} rows{' drawn' if one.limit else ''})" if names.count(label) > 1 or one.limit else label
        for label, one in zip(names, measurements, strict=True)
    ]
    return [name(label, LONGEST) for label in shown]
