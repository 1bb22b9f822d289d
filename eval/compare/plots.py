"""A comparison as pictures, PNG and SVG: scores as bars with intervals, the differences of each pair with theirs.

Colours are Okabe and Ito's, which people of any colour vision can tell apart; hatches and marks say the same once more.
Drawn without pyplot, so that no display and no style of the user's plays a part.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from eval.compare.model import Comparison
from eval.compare.tables import plotted
from eval.statistics.paired import Measurement, Verdict
from hub.contract.results import TaskScore, Word
from hub.plot_style import COLOURS

HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo")
MARKS: dict[Word, tuple[str, str]] = {
    "better": ("^", "#0072B2"),
    "worse": ("v", "#D55E00"),
    "not separable": ("o", "#767676"),
}
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sts-dino",
}
BAR = 0.2  # inches a bar
ROW = 0.34  # inches a difference


def plots(comparison: Comparison) -> dict[str, tuple[str, bytes]]:
    """File name → (description, content): ``scores`` and ``differences-1`` … for every pair, each as PNG and SVG."""
    drawings = {"scores": ("Scores of all models with their 95 % intervals", _scores(comparison))}
    pairs = list(dict.fromkeys((one.first, one.second) for one in comparison.verdicts))
    for number, pair in enumerate(pairs, start=1):
        verdicts = [one for one in comparison.verdicts if (one.first, one.second) == pair]
        words = f"Differences {pair[0]} minus {pair[1]} with paired 95 % intervals"
        drawings[f"differences-{number}"] = (words, _differences(verdicts))
    return {
        f"{name}.{kind}": (words, _drawn(draw, size, kind))
        for name, (words, (draw, size)) in drawings.items()
        for kind in ("png", "svg")
    }


Drawing = tuple[Callable[[Figure, Axes], None], tuple[float, float]]


def _scores(comparison: Comparison) -> Drawing:
    models, lines = comparison.models, comparison.lines

    def draw(figure: Figure, axes: Axes) -> None:
        for place, line in enumerate(lines):
            there = [index for index, model in enumerate(models) if model in line.scores]
            for position, index in enumerate(there):
                middle = place + (position - (len(there) - 1) / 2) * 0.8 / len(models)
                _bar(axes, middle, 0.74 / len(models), index, line.scores[models[index]])
        axes.set_yticks(range(len(lines)), _names([line.measurement for line in lines]))
        lowest = min((score.interval() or (score.main_score,))[0] for line in lines for score in line.scores.values())
        axes.set(
            xlabel="score x 100, 95 % interval", xlim=(min(0.0, lowest * 1.05), 110), ylim=(len(lines) - 0.5, -0.5)
        )
        names = [plotted(model) for model in models]
        handles = [Patch(**_look(index), label=name) for index, name in enumerate(names)]
        columns = max(1, min(len(models), 90 // (max(map(len, names)) + 8)))
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)

    return draw, (8.5, 1.5 + 0.3 * -(-len(models) // 2) + BAR * (len(models) + 0.5) * len(lines))


def _bar(axes: Axes, middle: float, thickness: float, index: int, score: TaskScore) -> None:
    axes.barh(middle, score.main_score, thickness, **_look(index))
    low, high = score.interval() or (score.main_score, score.main_score)
    axes.plot([low, high], [middle, middle], color="black", linewidth=1.2, solid_capstyle="butt")
    axes.text(max(high, 0) + 0.8, middle, f"{score.main_score:.2f}", va="center", fontsize=8)


def _look(index: int) -> dict[str, Any]:
    colour, hatch = COLOURS[index % len(COLOURS)], HATCHES[index % len(HATCHES)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def _differences(verdicts: Sequence[Verdict]) -> Drawing:
    first, second = plotted(verdicts[0].first), plotted(verdicts[0].second)

    def draw(figure: Figure, axes: Axes) -> None:
        axes.axvline(0, color="black", linewidth=0.8)
        for place, one in enumerate(verdicts):
            mark = _mark(one.word)
            around = one.difference.around
            axes.plot([around.low, around.high], [place, place], color=mark.get_color(), linewidth=1.6)
            mark.set_data([one.difference.points], [place])
            axes.add_line(mark)
        axes.set_yticks(range(len(verdicts)), _names([one.measurement for one in verdicts]))
        axes.set(xlabel=f"{first}\nminus {second}: points, paired 95 % interval", ylim=(len(verdicts) - 0.5, -0.5))
        shown = [word for word in MARKS if any(one.word == word for one in verdicts)]
        handles = [_mark(word) for word in shown]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(shown), frameon=False)

    return draw, (8.5, 1.7 + ROW * len(verdicts))


def _mark(word: Word) -> Line2D:
    """The mark of a verdict: filled where there is one, hollow where the models are not separable."""
    shape, colour = MARKS[word]
    inside = "white" if word == "not separable" else colour
    return Line2D([], [], color=colour, marker=shape, label=word, linewidth=1.6, markersize=7, markerfacecolor=inside)


def _names(measurements: Sequence[Measurement]) -> list[str]:
    """Task and, where it is not the test part, split; rows that would have one name get their number of rows."""
    names = [one.task if one.split in ("test", "all") else f"{one.task} {one.split}" for one in measurements]
    told = [
        f"{name} ({one.n} rows{' drawn' if one.limit else ''})" if names.count(name) > 1 or one.limit else name
        for name, one in zip(names, measurements, strict=True)
    ]
    return [plotted(name) for name in told]


def _drawn(draw: Callable[[Figure, Axes], None], size: tuple[float, float], kind: str) -> bytes:
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **STYLE}):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, figure.subplots())
        out = io.BytesIO()
        undated: Mapping[str, None] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(out, format=kind, metadata=dict(undated))
        return out.getvalue()
