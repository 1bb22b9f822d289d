"""The results file of the search as tables and as plots: from its rows alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchmarks.better_pairs.figures import Interval, Row
from benchmarks.svg import drawn
from benchmarks.trials import table
from hub.contract.measured import Estimate
from hub.errors import InputError
from hub.plot_style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
NOTHING = "No arm has been measured yet."
ROW_INCHES = 0.32
GAINS = ("copies", "shuffled", "untrained", "people")  # what the dataset is compared with
BETTER, WORSE, OPEN = COLOURS[0], COLOURS[5], "#767676"
MARKS = {"better": ("^", BETTER), "worse": ("v", WORSE), "not separable": ("o", OPEN)}


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file; none when there is no such file. Raises InputError when it is another file."""
    try:
        return [Row.model_validate(row) for row in json.loads(path.read_bytes())["rows"]]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise InputError(path, "is no results file of the search", hint="choose another --out") from error


def with_row(rows: Sequence[Row], new: Row) -> list[Row]:
    """The rows with ``new`` in the place of an earlier one of its arm and stage, else at their end."""
    same = [number for number, row in enumerate(rows) if (row.stage, row.arm) == (new.stage, new.arm)]
    return [*rows[: same[0]], new, *rows[same[0] + 1 :]] if same else [*rows, new]


def by_group(rows: Sequence[Row], stage: str) -> list[Row]:
    """The rows of a stage, those of a group together, groups in the order of their first rows."""
    mine = [row for row in rows if row.stage == stage]
    groups = list(dict.fromkeys(row.group for row in mine))
    return sorted(mine, key=lambda row: groups.index(row.group))


def tables(rows: Sequence[Row]) -> str:
    """Two Markdown tables of every stage: what the texts are and cost, and what an encoder gains from them."""
    return "\n\n".join(_of_stage(rows, stage) for stage in dict.fromkeys(row.stage for row in rows)) or NOTHING


def _of_stage(rows: Sequence[Row], stage: str) -> str:
    mine = by_group(rows, stage)
    setting = sorted({_setting(row) for row in mine})
    labels = list(mine[0].fidelity.cosine)
    texts, values = [], []
    for row in mine:
        near = " / ".join(f"{row.fidelity.near_copies[label]:.0%}" for label in labels)
        cosines = [str(row.fidelity.cosine[label]) for label in labels]
        cost = [f"{row.cost.pairs_per_second:.2f}", _number(row.cost.points_per_hour)]
        fits = [f"{row.fidelity.keep_rate:.0%}", near, *cosines, str(row.fidelity.spearman)]
        texts.append([row.group, row.arm, row.varies, *fits, *cost])
        scores = [str(row.scores["dataset"]), *(_estimate(row.gains.get(name)) for name in GAINS)]
        other = f"{row.against.difference} ({row.against.arm})" if row.against else ""
        values.append([row.group, row.arm, *scores, other])
    of_labels = [f"cosine of {label}" for label in labels]
    head = ["group", "arm", "what varies", "kept", f"near-copies {' / '.join(labels)}", *of_labels]
    head += ["Spearman(label, cosine)", "pairs a CPU second", "points over copies a CPU hour"]
    return "\n".join(
        [
            f"### {stage.capitalize()}: what an encoder gains",
            "",
            f"Spearman x 100, paired differences. {' '.join(setting)}",
            "",
            table(["group", "arm", "score", *(f"over {name}" for name in GAINS), "over another arm"], values, names=2),
            "",
            f"### {stage.capitalize()}: what the texts are, and what they cost",
            "",
            table(head, texts, names=3),
        ]
    )


def _setting(row: Row) -> str:
    seeds, tasks = _counted(len(row.data_seeds), "data seed"), _counted(len(row.tasks["dataset"]), "task")
    return (
        f"{row.texts:,} first texts, {row.pairs:,} pairs, student {row.student}, {seeds}, "
        f"{_counted(row.training_seeds, 'training seed')} each, {row.split} ({tasks})."
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _estimate(found: Estimate | None) -> str:
    return str(found) if found else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def with_tables(page: str, rows: Sequence[Row], place: Path) -> str:
    """The page with the tables between its two marks. Raises InputError when it lacks them."""
    if BEGIN not in page or END not in page:
        raise InputError(place, "has no place for the tables", hint=f"put {BEGIN} and {END} into it")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n{tables(rows)}\n{END}{after}"


def plot(rows: Sequence[Row], stage: str) -> bytes:
    """A forest plot as SVG, a line for each arm: gain over the copies control, and Spearman(label, cosine).

    Marks say what colours do: better is a triangle, worse one upside down, not separable an open circle.
    """
    mine = by_group(rows, stage)
    lines: list[Row | str] = []
    for row in mine:
        if row.group not in lines:
            lines.append(row.group)
        lines.append(row)

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for height, line in enumerate(reversed(lines)):
            if isinstance(line, Row):
                _gain(left, height, line.gains["copies"])
                _fidelity(right, height, line.fidelity.spearman)
        names = [f"{line.arm}" if isinstance(line, Row) else line.upper() for line in reversed(lines)]
        left.set_yticks(range(len(lines)), names)
        for label, line in zip(left.get_yticklabels(), reversed(lines), strict=True):
            label.set_fontweight("normal" if isinstance(line, Row) else "bold")
        left.axvline(0, color="black", linewidth=1)
        left.set(
            xlabel="points over the copies control (Spearman x 100)",
            title="Training value",
            ylim=(-0.7, len(lines) - 0.3),
        )
        right.set(xlabel="Spearman of label and judge's cosine", title="Label fidelity")
        right.tick_params(left=False)
        marks = [_legend(name, *found) for name, found in MARKS.items()]
        figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False)

    return drawn(11, 1.6 + ROW_INCHES * len(lines), draw).encode()


def _legend(name: str, mark: str, colour: str) -> Line2D:
    from matplotlib.lines import Line2D

    filled = "white" if mark == "o" else colour
    return Line2D([], [], linestyle="", marker=mark, color=colour, markerfacecolor=filled, label=name)


def _gain(axes: Axes, height: int, found: Estimate) -> None:
    word = "better" if found.low > 0 else "worse" if found.high < 0 else "not separable"
    mark, colour = MARKS[word]
    axes.plot([found.low, found.high], [height, height], color=colour, linewidth=2)
    filled = "white" if mark == "o" else colour
    axes.plot([found.score], [height], mark, color=colour, markersize=7, markerfacecolor=filled)


def _fidelity(axes: Axes, height: int, found: Interval) -> None:
    axes.plot([found.low, found.high], [height, height], color="black", linewidth=2)
    axes.plot([found.value], [height], "s", color="black", markersize=5)
