"""The papers' result tables (``hub/papers/data/*.yaml``): every printed number and its source.

A column names the task of ours whose protocol is the column's, or says why there is none: only with
a task may its numbers stand beside ours. Scores are x 100 unless the metric is ``share``.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field

from sts_dino.hub.contract.results import Finite, Frozen
from sts_dino.hub.errors import InputError

FOLDER = Path(__file__).with_name("data")
Key = TypeVar("Key")
Item = TypeVar("Item")
Metric = Literal["spearman", "pearson", "accuracy", "f1", "recall", "mean", "share", "percentage"]


class Column(Frozen):
    """A column: its name in the paper, its metric, and our task of the same protocol.

    ``task``: None where there is none, for a ``reason``. ``average``: a name of
    ``sts_dino.eval.tasks.registry``, for a mean over tasks. ``mean_of``: the columns whose mean it
    is; columns in a nested tuple count as one column, their mean.
    """

    name: str
    metric: Metric
    task: str | None = None
    average: str | None = None
    reason: str | None = None
    mean_of: tuple[str | tuple[str, ...], ...] = ()


class Row(Frozen):
    """A printed row: one value a column, None where nothing is printed.

    ``doubt`` says what is uncertain about it.
    """

    name: str
    group: str = ""
    values: tuple[Finite | None, ...]
    doubt: str | None = None


class Table(Frozen):
    """A table of a paper. ``note``: the conditions under which its numbers were measured."""

    number: int
    section: Annotated[str, Field(coerce_numbers_to_str=True)]
    caption: str
    note: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def find_row(self, name: str) -> Row:
        """Return the row called ``name``. Raises InputError with the names there are."""
        rows = {row.name: row for row in self.rows}
        return _find_item(name, rows, f"table {self.number}", "row")

    def get_values(self, row: Row) -> dict[str, float]:
        """Return column → value, for every value the row has."""
        return {column.name: value for column, value in self._list_values(row)}

    def get_task_scores(self, row: Row) -> dict[tuple[str, str], float]:
        """Return (task of ours, metric) → value, for every printed value with a task of ours."""
        return {
            (column.task, column.metric): value
            for column, value in self._list_values(row)
            if column.task is not None
        }

    def _list_values(self, row: Row) -> list[tuple[Column, float]]:
        """Return each column that has a value in the row, with this value."""
        columns = zip(self.columns, row.values, strict=True)
        return [(column, value) for column, value in columns if value is not None]


class Paper(Frozen):
    """A paper's result tables; ``cite`` is its name in tables, ``version`` the text read."""

    key: str
    cite: str
    title: str
    version: str
    tables: tuple[Table, ...]

    def find_table(self, number: int) -> Table:
        """Return table ``number``. Raises InputError with the numbers there are."""
        tables = {table.number: table for table in self.tables}
        return _find_item(number, tables, self.key, "table")

    def name_source(self, table: Table) -> str:
        """Return where a table stands: paper, section or appendix, and number of the table.

        A section whose number is a letter is an appendix.
        """
        part = "appendix" if table.section.isalpha() else "section"
        return f"{self.cite}, {part} {table.section}, table {table.number}"


@cache
def load_papers() -> dict[str, Paper]:
    """Load every paper, by key."""
    papers = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        paper = Paper.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        papers[paper.key] = paper
    return papers


def find_paper(key: str) -> Paper:
    """Return the paper called ``key``. Raises InputError with the keys there are."""
    return _find_item(key, load_papers(), "reference", "paper")


def _find_item(name: Key, items: Mapping[Key, Item], source: str, kind: str) -> Item:
    if name not in items:
        raise InputError(source, f"has no {kind} {name!r}", allowed=list(items))
    return items[name]
