"""DINO's Table 3 beside ours, where people chose from the same labels."""

from dataclasses import dataclass

from eval.annotation_sample import Scale
from hub.reference import Table, find_paper

PAPER, NUMBER = "dino", 3


@dataclass(frozen=True)
class Published:
    """A paper's confusion table: ``percent[row][column]``, row = people's label, column = the generator's."""

    source: str
    caption: str
    percent: tuple[tuple[float, ...], ...]


def published(scale: Scale) -> Published | None:
    """The paper's table on this very scale, in its order; None for any other scale."""
    paper = find_paper(PAPER)
    table = paper.table(NUMBER)
    if not scale.ordered or [float(label) for label in scale.labels] != _scores(table):
        return None
    percent = tuple(tuple(float(value or 0) for value in row.values) for row in table.rows)
    return Published(paper.source(table), table.caption, percent)


def _scores(table: Table) -> list[float]:
    return [float(column.name) for column in table.columns]
