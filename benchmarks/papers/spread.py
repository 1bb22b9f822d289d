"""How scores spread over trainings: over example sets as a sentence, over the cells of a grid as a plot."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from benchmarks.papers.plan import OwnColumn
from benchmarks.svg import drawn
from eval.compare.seeds import split_of
from hub.contract.results import read_results
from hub.plot_style import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def scores_of(column: OwnColumn, folders: Sequence[Path]) -> list[float]:
    """The mean over a column's tasks in each evaluation."""
    found = []
    for place in folders:
        scores = {(one.task, one.split): one.main_score for one in read_results(place / "results.json").scores}
        found.append(fmean(scores[task, split_of(task, column.split)] for task in column.tasks))
    return found


def over_sets(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """Mean and standard deviation over the trainings of encoders, each on an example set, of the last column."""
    name, column = list(columns.items())[-1]
    scores = {encoder: scores_of(column, places) for encoder, places in folders.items()}
    parts = [f"{encoder} {fmean(found):.1f} ± {stdev(found):.1f}" for encoder, found in scores.items()]
    return f"Mean ± standard deviation of {name} over example sets: {'; '.join(parts)}."


def over_cells(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """A box for the cells of each row of a grid and every cell's own score, as SVG: always the same bytes."""

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, (name, column) in zip(panels, columns.items(), strict=True):
            found = [scores_of(column, places) for places in folders.values()]
            axes.boxplot(
                found, orientation="horizontal", showfliers=False, widths=0.6, medianprops={"color": COLOURS[5]}
            )
            for place, values in enumerate(found, start=1):
                axes.scatter(values, [place] * len(values), color=COLOURS[0], alpha=0.6, s=18, zorder=3)
            axes.set(xlabel=f"{name}, x 100")
        panels[0].set_yticks(range(1, len(folders) + 1), labels=list(folders))
        panels[0].invert_yaxis()  # of all, they share it

    return drawn(4.5 * len(columns), 1.2 + 0.7 * len(folders), draw)
