"""Row checks: whether rows can be trained on, a table of some rows at a time; a whole column is never in memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hub.contract.recipe import Spans
from hub.errors import InputError
from training.data.example_types import DOCUMENTS, ExampleType

if TYPE_CHECKING:
    from datasets import Dataset

NO_ROWS = "generate more, or take another config"
ROWS = 1_000  # looked at together; of a stream, the first so many are checked before training starts
SET = "example_set"  # which set of few-shot examples a row was written after

Indices = NDArray[np.int64]


@dataclass
class RowChecks:
    """The checks of one dataset's rows, and what they saw: rows, the range of the target, example sets.

    ``example_set``: only its rows are trained on (None: all). ``low`` and ``high`` are of the target; of documents, of
    their lengths in bytes.
    """

    examples: ExampleType
    example_set: int | None
    place: str
    weights: str | None = None  # the column of row weights
    one_target: bool = False  # whether all rows may have one and the same target
    rows: int = 0
    low: float = math.inf
    high: float = -math.inf
    sets: set[int] = field(default_factory=set)

    @property
    def columns(self) -> list[str]:
        """Columns the checks read: those that are trained on and, for one set alone, ``example_set``."""
        return [*self.kept, *([SET] if self.example_set is not None else [])]

    @property
    def kept(self) -> list[str]:
        """Columns that are trained on: those of the example type, and the weights."""
        return [*self.examples.columns, *([self.weights] if self.weights is not None else [])]

    def require_columns(self, schema: pa.Schema) -> None:
        """Raise InputError unless the columns are there and hold text and numbers."""
        target = self.examples.target
        if self.weights in (*self.examples.columns, SET):
            raise InputError(self.place, f"weights: column {self.weights!r} is no column of weights")
        for column in self.columns:
            if column not in schema.names:
                needs = {SET: SET, self.weights: "weights"}.get(column, f"example type {self.examples.name}")
                raise InputError(self.place, f"has no column {column!r}, which {needs} needs", allowed=schema.names)
            dtype = schema.field(column).type
            number = column not in self.examples.texts
            if number:
                fits = pa.types.is_integer(dtype)
                real = column == self.weights or (column != SET and target is not None and not target.integers)
                fits |= real and pa.types.is_floating(dtype)
            else:
                fits = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
            if not fits:
                allowed = "numbers" if number else "text"
                raise InputError(self.place, f"column {column!r} holds {dtype}", allowed=allowed)

    def of_set(self, table: pa.Table) -> Indices:
        """Indices of the rows that are trained on; notes the example sets there are."""
        if self.example_set is None:
            return np.arange(table.num_rows)
        self.sets.update(number for number in pc.unique(table[SET]).to_pylist() if number is not None)
        return np.flatnonzero(pc.fill_null(pc.equal(table[SET], self.example_set), False).to_numpy())

    def require_cells(self, table: pa.Table, numbers: Indices) -> None:
        """Raise InputError for the first empty text, or target or weight that is missing, NaN or out of range.

        ``numbers``: (rows,) from 0, what the error calls the rows. Documents may be blank, as lines of a text file are:
        such a one is shorter than any span.
        """
        for column in self.kept:
            cells, target = table[column], self.examples.target
            allowed = None
            if column == self.weights:
                allowed = "0 or a positive number"
                fits = pc.and_(pc.greater_equal(cells, 0), pc.is_finite(cells))
            elif target is not None and column == target.column:
                allowed = target.allowed
                fits = pc.and_(pc.greater_equal(cells, target.low), pc.less_equal(cells, target.high))  # false for NaN
            elif self.examples.blank:
                fits = pc.is_valid(cells)
            else:
                fits = pc.not_equal(pc.utf8_trim_whitespace(cells), "")
            bad = pc.index(pc.fill_null(fits, False), False).as_py()
            if bad >= 0:
                value = cells[bad].as_py()
                found = f"{value:g}" if isinstance(value, int | float) else "empty"
                raise InputError(self.place, f"row {numbers[bad]} of column {column!r} is {found}", allowed=allowed)

    def add(self, table: pa.Table) -> None:
        """Count checked rows and widen the range of their target."""
        self.rows += table.num_rows
        if self.examples == DOCUMENTS:
            values = pc.binary_length(table["text"])
        elif self.examples.target is not None:
            values = table[self.examples.target.column]
        else:
            return
        if len(values):
            ends = pc.min_max(values).as_py()
            self.low, self.high = min(self.low, ends["min"]), max(self.high, ends["max"])

    def require_rows(self, place: str) -> None:
        """Raise InputError when there are no rows, or all have one and the same target."""
        if self.rows == 0 and self.sets:
            found = f"the sets it has: {sorted(self.sets)}"
            raise InputError(place, f"has no rows of example_set {self.example_set}", allowed=found)
        if self.rows == 0:
            raise InputError(place, "has no rows", hint=NO_ROWS)
        if self.examples.target is not None and self.low == self.high and not self.one_target:
            problem = f"every {self.examples.target.column} is {self.low:g}: there is nothing to learn from"
            raise InputError(place, problem, hint="mix the labels")

    def require_long_enough(self, spans: Spans) -> None:
        """Raise InputError when every document is certainly too short, for a word or a token is at least one byte.

        ``training.data.span_rows`` counts those it passes over, and raises InputError when none is left.
        """
        if self.examples == DOCUMENTS and self.high < spans.min_document:
            found = f"the longest of {self.rows:,} documents has {int(self.high):,} bytes, so fewer {spans.unit} than "
            hint = "lower spans.min_document and spans.max_length, or take longer documents"
            raise InputError(self.place, f"{found}spans.min_document {spans.min_document:,}", hint=hint)


def tables(rows: "Dataset", columns: list[str]) -> Iterator[pa.Table]:
    """The rows in order, at most ``ROWS`` at a time, with these columns."""
    yield from rows.select_columns(columns).with_format("arrow").iter(batch_size=ROWS)
