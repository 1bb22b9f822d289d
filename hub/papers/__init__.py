"""The papers' result tables (``hub/papers/data/*.yaml``): every printed number, with its source and what it measures.

A column names the task of ours whose protocol is the column's, or says why there is none: only with a task may its
numbers stand beside ours. Scores are x 100 unless the metric is ``share``.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import Field

from hub.contract.results import Finite, Frozen
from hub.errors import InputError

FOLDER = Path(__file__).with_name("data")
Key = TypeVar("Key")
Item = TypeVar("Item")
Metric = Literal["spearman", "pearson", "accuracy", "f1", "recall", "mean", "share", "percentage"]


class Column(Frozen):
    """A column: its name in the paper, its metric, and our ``task`` of the same protocol or the ``reason`` for none.

    ``average``: a name of ``eval.tasks.registry``, for a mean over tasks. ``mean_of``: the columns whose mean it is;
    columns in brackets count as one, their own mean.
    """

    name: str
    metric: Metric
    task: str | None = None
    average: str | None = None
    reason: str | None = None
    mean_of: tuple[str | tuple[str, ...], ...] = ()


class Row(Frozen):
    """A printed row, one value a column (None: not printed). ``doubt`` says what is uncertain about it."""

    name: str
    group: str = ""
    values: tuple[Finite | None, ...]
    doubt: str | None = None


class Table(Frozen):
    """A table of a paper. ``note`` says under what conditions its numbers were measured."""

    number: int
    section: Annotated[str, Field(coerce_numbers_to_str=True)]
    caption: str
    note: str = ""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def row(self, name: str) -> Row:
        """The row called ``name``. Raises InputError with the names there are."""
        return _found(name, {row.name: row for row in self.rows}, f"table {self.number}", "row")

    def printed(self, row: Row) -> dict[str, float]:
        """Column → value, for every value the row has."""
        return {column.name: value for column, value in self._values(row)}

    def scores(self, row: Row) -> dict[tuple[str, str], float]:
        """(task of ours, metric) → value, for every column whose protocol is ours."""
        return {(column.task, column.metric): value for column, value in self._values(row) if column.task is not None}

    def _values(self, row: Row) -> list[tuple[Column, float]]:
        return [(column, value) for column, value in zip(self.columns, row.values, strict=True) if value is not None]


class Paper(Frozen):
    """A paper's result tables; ``cite`` is how a table names it, ``version`` which text was read."""

    key: str
    cite: str
    title: str
    version: str
    tables: tuple[Table, ...]

    def table(self, number: int) -> Table:
        """Table ``number``. Raises InputError with the numbers there are."""
        return _found(number, {table.number: table for table in self.tables}, self.key, "table")

    def source(self, table: Table) -> str:
        """Where a table stands: paper, section and number."""
        where = "appendix" if table.section.isalpha() else "section"
        return f"{self.cite}, {where} {table.section}, table {table.number}"


@cache
def papers() -> dict[str, Paper]:
    """Every paper, by key."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.yaml"))]
    return {paper.key: paper for paper in (Paper.model_validate(yaml.safe_load(text)) for text in texts)}


def find_paper(key: str) -> Paper:
    """The paper called ``key``. Raises InputError with the keys there are."""
    return _found(key, papers(), "reference", "paper")


def _found(name: Key, items: Mapping[Key, Item], place: str, what: str) -> Item:
    if name not in items:
        raise InputError(place, f"has no {what} {name!r}", allowed=list(items))
    return items[name]
