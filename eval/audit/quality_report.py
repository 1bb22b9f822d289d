"""A dataset's quality as Markdown and plots. No text of the dataset is shown; untrusted names are escaped."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas

from eval.audit.quality import NEEDED, Quality
from eval.audit.render import fill
from hub.contract.measured import Interval
from hub.papers import find_paper
from hub.plot_style import COLOURS, LINES, name, picture
from hub.untrusted import Markdown, code, table

CLASSIFIER = "deberta-v2-xxlarge-mnli"  # of Auto-NLI's Table 1
LONGEST = 0.995  # share of the texts that the length plot's axis reaches
BINS = np.linspace(-1.0, 1.0, 41)


def report(quality: Quality, pictures: Iterable[str]) -> str:
    """The whole report; ``pictures`` are the file names of its plots."""
    paper = find_paper("auto-nli")
    table1 = paper.table(1)
    values = [
        {column.name: value for column, value in zip(table1.columns, row.values, strict=True)} for row in table1.rows
    ]
    printed = pandas.DataFrame(values, index=[row.name for row in table1.rows])
    context = {"source": paper.source(table1), "classifier": CLASSIFIER, "printed": printed}
    return fill("quality.md.jinja", quality=quality, pictures=list(pictures), shown=shown, **quality.facts, **context)


def shown(frame: pandas.DataFrame, first: str) -> Markdown:
    """A table as Markdown; ``first`` heads the column of names."""
    rows = [[code(str(label)), *map(_cell, row)] for label, *row in frame.itertuples()]
    return table([first, *frame.columns], rows)


def _cell(value: Any) -> Any:
    if isinstance(value, Interval):  # three decimals, as in the paper
        return Markdown(f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]")
    return "–" if value is None or pandas.isna(value) else round(value, 3)


def pictures(quality: Quality) -> dict[str, bytes]:
    """File name → plot, as PNG: lengths of the texts, and each measure by label."""
    drawn = {"lengths.png": _lengths(quality.lengths)}
    return drawn | {f"{one.replace(' ', '-')}.png": _measure(quality, one) for one in quality.measures}


def _look(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index % len(LINES)], "linewidth": 2}


def _lengths(lengths: pandas.DataFrame) -> bytes:
    """The distribution of text lengths, one line for each column (Auto-NLI, Figure 2)."""

    def draw(_: object, axes: Any) -> None:
        longest = int(lengths.quantile(LONGEST).max())
        axes.axvspan(*NEEDED, color="#DDDDDD", alpha=0.5, label="4 to 32")
        for index, column in enumerate(lengths):
            shares = 100 * lengths[column].value_counts(normalize=True).reindex(range(longest + 1), fill_value=0)
            axes.plot(shares, label=name(str(column)), **_look(index))
        axes.set(
            xlabel="length of a text, in tokens between blanks",
            ylabel="texts, %",
            xlim=(0, max(longest, 34)),
            ylim=(0, None),
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)

    return picture(draw, (9, 4))


def _measure(quality: Quality, measure: str) -> bytes:
    """The distribution of a measure over the pairs of each label, one line for each label."""

    def draw(_: object, axes: Any) -> None:
        for index, (label, row) in enumerate(quality.measures[measure].iterrows()):
            values = quality.pairs.loc[quality.pairs["label"] == label, measure].clip(-1, 1)
            shares = np.histogram(values, BINS)[0] * 100 / len(values)
            axes.stairs(shares, BINS, label=f"{name(str(label))} (mean {row['mean']:.2f})", **_look(index))
        low = min(0.0, quality.pairs[measure].min())
        axes.set(xlabel=measure, ylabel="pairs of the label, %", xlim=(low, 1), ylim=(0, None))
        axes.legend(title="label", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)

    return picture(draw, (9, 4))
