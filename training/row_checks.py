"""What rows must be to be trained on, checked a table of some rows at a time: a whole column is never in memory.

The columns of a form are the schema's (``hub.schema``); documents have one, ``text``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from numpy.typing import NDArray

from hub.errors import InputError
from hub.recipe import Spans
from hub.schema import EXAMPLE_SET, FORMS

NO_ROWS = "generate more, or take another config"
ROWS = 1_000  # looked at together; of a stream, the first so many are checked before training starts
SET = next(iter(EXAMPLE_SET))
DOCUMENTS = "documents"
COLUMNS = {name: Features(form.columns) for name, form in FORMS.items()}
COLUMNS[DOCUMENTS] = Features({"text": Value("string")})
TARGET = {"sts": "score", "pair-class": "label"}  # what is learned, by form; the other forms have text alone
LIMITS = {"score": (0, 1, "0 to 1 (cosine similarities)"), "label": (0, 2, "0 to 2 (hub.schema's label order)")}

Indices = NDArray[np.int64]


def check_columns(schema: pa.Schema, form: str, example_set: int | None, place: str) -> None:
    """Raise InputError unless the columns that ``form`` needs are there and hold text and numbers."""
    for column in (*COLUMNS[form], *((SET,) if example_set is not None else ())):
        if column not in schema.names:
            needs = f"the {form} form" if column != SET else "example_set"
            raise InputError(place, f"has no column {column!r}, which {needs} needs", allowed=schema.names)
        dtype = schema.field(column).type
        if column in TARGET.values():
            whole = pa.types.is_integer(dtype)
            fits, allowed = whole or (column == "score" and pa.types.is_floating(dtype)), "numbers"
        elif column == SET:
            fits, allowed = pa.types.is_integer(dtype), "numbers"
        else:
            fits, allowed = pa.types.is_string(dtype) or pa.types.is_large_string(dtype), "text"
        if not fits:
            raise InputError(place, f"column {column!r} holds {dtype}", allowed=allowed)


def check_cells(table: pa.Table, form: str, place: str, numbers: Indices) -> None:
    """Raise InputError for the first empty text, or number that is missing, NaN or out of range.

    ``numbers``: (rows,) from 0, what the error calls the rows. Documents may be blank, as lines of a text file are:
    such a one is shorter than any span.
    """
    for column in COLUMNS[form]:
        cells = table[column]
        allowed = None
        if column in LIMITS:
            low, high, allowed = LIMITS[column]
            fits = pc.and_(pc.greater_equal(cells, low), pc.less_equal(cells, high))  # false for a NaN
        elif form == DOCUMENTS:
            fits = pc.is_valid(cells)
        else:
            fits = pc.not_equal(pc.utf8_trim_whitespace(cells), "")
        bad = pc.index(pc.fill_null(fits, False), False).as_py()
        if bad >= 0:
            value = cells[bad].as_py()
            found = f"{value:g}" if isinstance(value, int | float) else "empty"
            raise InputError(place, f"row {numbers[bad]} of column {column!r} is {found}", allowed=allowed)


def of_example_set(table: pa.Table, example_set: int | None) -> Indices:
    """Indices of the rows of one set of few-shot examples, all when None."""
    if example_set is None:
        return np.arange(table.num_rows)
    return np.flatnonzero(pc.fill_null(pc.equal(table[SET], example_set), False).to_numpy())


def example_sets(table: pa.Table) -> list[int]:
    """The example sets that rows of ``table`` are of."""
    return sorted(number for number in pc.unique(table[SET]).to_pylist() if number is not None)


@dataclass
class Spread:
    """How many rows were seen, and the range of what is learned from them (of a document: its length in bytes)."""

    rows: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, table: pa.Table, form: str) -> None:
        """Count checked rows."""
        self.rows += table.num_rows
        if form == DOCUMENTS:
            values = pc.binary_length(table["text"])
        elif form in TARGET:
            values = table[TARGET[form]]
        else:
            return
        if len(values):
            ends = pc.min_max(values).as_py()
            self.low, self.high = min(self.low, ends["min"]), max(self.high, ends["max"])

    def require_two_classes(self, form: str, place: str) -> None:
        """Raise InputError when every row has the same score or label: there is nothing to learn from."""
        if form in TARGET and self.rows and self.low == self.high:
            problem = f"every {TARGET[form]} is {self.low:g}: there is nothing to learn from"
            raise InputError(place, problem, hint="mix the labels")


def require_rows(spread: Spread, form: str, place: str, example_set: int | None, found: list[int]) -> None:
    """Raise InputError when there are no rows (of an example set: ``found`` are those there are) or one class alone."""
    if spread.rows == 0 and found:
        raise InputError(place, f"has no rows of example_set {example_set}", allowed=f"the sets it has: {found}")
    if spread.rows == 0:
        raise InputError(place, "has no rows", hint=NO_ROWS)
    spread.require_two_classes(form, place)


def require_long_enough(spread: Spread, spans: Spans, place: str) -> None:
    """Raise InputError when every document is certainly too short, for a word or a token is at least one byte.

    Whether they are long enough is known when they have been read: ``training.span_rows`` counts those it passes over,
    and raises InputError when none is left.
    """
    if spread.high < spans.min_document:
        found = f"the longest of {spread.rows:,} documents has {int(spread.high):,} bytes, so fewer {spans.unit} than "
        hint = "lower spans.min_document and spans.max_length, or take longer documents"
        raise InputError(place, f"{found}spans.min_document {spans.min_document:,}", hint=hint)


def tables(rows: Dataset, columns: list[str]) -> Iterator[pa.Table]:
    """The rows in order, at most ``ROWS`` at a time, with these columns."""
    yield from rows.select_columns(columns).with_format("arrow").iter(batch_size=ROWS)
