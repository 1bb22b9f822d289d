"""Auto-NLI's figure 2 and tables 3 and 4 of runs at hand: lengths as a plot, hypotheses side by side as Markdown."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.papers.auto_nli.judge import Hypothesis, Told
from benchmarks.svg import drawn
from eval.audit.text_forms import words
from hub.plot_style import COLOURS, LINES
from hub.untrusted import Markdown, sample, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 30  # words: longer hypotheses are counted there


def side_by_side(
    texts: Mapping[str, Sequence[Hypothesis]], told: Mapping[str, Sequence[Told]], first: str, second: str, shown: int
) -> list[str]:
    """A table of the first premises that both runs wrote all hypotheses for, those of the first example set."""
    cells = {name: _cells(texts[name], told[name]) for name in (first, second)}
    labels = list(dict.fromkeys(one.label for one in texts[first]))
    premises = {one.source: one.premise for one in texts[first]}
    whole = [
        source
        for source in sorted(premises)
        if all((source, label) in found for found in cells.values() for label in labels)
    ]
    rows = [
        [
            sample(premises[source]) if place == 0 else Markdown(""),
            label,
            *(cells[name][source, label] for name in (first, second)),
        ]
        for source in whole[:shown]
        for place, label in enumerate(labels)
    ]
    said = (
        f"The first {len(whole[:shown])} premises, {first} beside {second}; in brackets what the classifier calls it:"
    )
    return [f"{said}\n\n{table(['premise', 'asked for', first, second], rows)}"]


def _cells(texts: Sequence[Hypothesis], told: Sequence[Told]) -> dict[tuple[str, str], Markdown]:
    found = dict[tuple[str, str], Markdown]()
    for one, verdict in zip(texts, told, strict=True):
        if one.example_set == 0:
            found.setdefault((one.source, one.label), Markdown(f"{sample(one.text)} [{verdict.name}]"))
    return found


def length_plot(texts: Mapping[str, Sequence[str]]) -> str:
    """How many words hypotheses have, one line a run, as SVG: the same bytes from the same texts."""

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for place, (name, found) in enumerate(texts.items()):
            counted = np.bincount([min(len(words(text)), LONGEST) for text in found], minlength=LONGEST + 1)
            colour, line = COLOURS[place % len(COLOURS)], LINES[place % len(LINES)]
            axes.plot(100 * counted / len(found), label=name, color=colour, linestyle=line, linewidth=2)
        axes.set(xlabel=f"words of a hypothesis ({LONGEST}: and more)", ylabel="hypotheses, %", ylim=(0, None))
        axes.legend(frameon=False)

    return drawn(8, 4, draw)
