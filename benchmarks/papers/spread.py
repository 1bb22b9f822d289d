"""How scores spread over trainings: over example sets as a sentence, over the cells of a grid as a plot."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.papers.plan import OwnColumn
from hub.contract.results import read_results
from hub.plot_style import COLOURS, STYLE


def scores_of(column: OwnColumn, folders: Sequence[Path]) -> list[float]:
    """The mean over a column's tasks in each evaluation."""
    found = []
    for place in folders:
        scores = {(one.task, one.split): one.main_score for one in read_results(place / "results.json").scores}
        found.append(fmean(scores[task, column.split] for task in column.tasks))
    return found


def over_sets(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """Mean and standard deviation over the trainings of encoders, each on an example set, of the last column."""
    name, column = list(columns.items())[-1]
    scores = {encoder: scores_of(column, places) for encoder, places in folders.items()}
    parts = [f"{encoder} {fmean(found):.1f} ± {stdev(found):.1f}" for encoder, found in scores.items()]
    return f"Mean ± standard deviation of {name} over example sets: {'; '.join(parts)}."


def over_cells(columns: Mapping[str, OwnColumn], folders: Mapping[str, Sequence[Path]]) -> str:
    """A box for the cells of each row of a grid and every cell's own score, as SVG: always the same bytes."""
    import matplotlib  # which takes a second
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"svg.fonttype": "none", "svg.hashsalt": "sts-dino"}):
        figure = Figure(figsize=(4.5 * len(columns), 1.2 + 0.7 * len(folders)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
        for axes, (name, column) in zip(panels, columns.items(), strict=True):
            found = [scores_of(column, places) for places in folders.values()]
            axes.boxplot(
                found, orientation="horizontal", showfliers=False, widths=0.6, medianprops={"color": COLOURS[5]}
            )
            for place, values in enumerate(found, start=1):
                axes.scatter(values, [place] * len(values), color=COLOURS[0], alpha=0.6, s=18, zorder=3)
            axes.set(xlabel=f"{name}, x 100")
            axes.set_yticks(range(1, len(folders) + 1), labels=list(folders))
            axes.invert_yaxis()
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue().decode()
