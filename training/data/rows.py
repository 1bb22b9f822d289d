"""Rows that a trainer can learn from: checks, rows made from others, streams.

Checks look at a table of some rows at a time; a whole column is never in memory. Rows made from others (self-pairs,
graded pairs and triplets) are made once and stay in memory: texts as Arrow columns, rows as indices into them. A
stream's rows are checked as they come, the first of them before training starts.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset
from numpy.typing import NDArray

from hub.client.connection import reading
from hub.contract.recipe import Grades, Spans, TrainingData
from hub.contract.shards import reading_rows
from hub.errors import InputError, RunError
from hub.text_files import is_blank
from training.data.example_types import (
    DOCUMENTS,
    EXAMPLE_TYPES,
    GRADED_PAIR,
    GRADED_TRIPLET,
    SELF_PAIR,
    STS,
    ExampleType,
)

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
    one_target: bool = False  # whether all rows may have one and the same target
    rows: int = 0
    low: float = math.inf
    high: float = -math.inf
    sets: set[int] = field(default_factory=set)

    @property
    def columns(self) -> list[str]:
        """Columns the checks read: those that are trained on and, for one set alone, ``example_set``."""
        return [*self.examples.columns, *([SET] if self.example_set is not None else [])]

    def require_columns(self, schema: pa.Schema) -> None:
        """Raise InputError unless the columns are there and hold text and numbers."""
        target = self.examples.target
        for column in self.columns:
            if column not in schema.names:
                needs = SET if column == SET else f"example type {self.examples.name}"
                raise InputError(self.place, f"has no column {column!r}, which {needs} needs", allowed=schema.names)
            dtype = schema.field(column).type
            if column in self.examples.texts:
                allowed, fits = "text", pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
            else:
                real = column != SET and target is not None and not target.integers
                allowed, fits = "numbers", pa.types.is_integer(dtype) or (real and pa.types.is_floating(dtype))
            if not fits:
                raise InputError(self.place, f"column {column!r} holds {dtype}", allowed=allowed)

    def of_set(self, table: pa.Table) -> Indices:
        """Indices of the rows that are trained on; notes the example sets there are."""
        if self.example_set is None:
            return np.arange(table.num_rows)
        self.sets.update(number for number in pc.unique(table[SET]).to_pylist() if number is not None)
        return np.flatnonzero(pc.fill_null(pc.equal(table[SET], self.example_set), False).to_numpy())

    def require_cells(self, table: pa.Table, numbers: Indices) -> None:
        """Raise InputError for the first empty text, or target that is missing, NaN or out of range.

        ``numbers``: (rows,) from 0, the row numbers of the error.
        """
        for column in self.examples.columns:
            cells, target = table[column], self.examples.target
            allowed = None
            if target is not None and column == target.column:
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

        ``training.data.spans`` counts those it passes over, and raises InputError when none is left.
        """
        if self.examples == DOCUMENTS and self.high < spans.min_document:
            found = f"the longest of {self.rows:,} documents has {int(self.high):,} bytes, so fewer {spans.unit} than "
            hint = "lower spans.min_document and spans.max_length, or take longer documents"
            raise InputError(self.place, f"{found}spans.min_document {spans.min_document:,}", hint=hint)


SOURCE_COLUMNS = ("sentence1", "premise", "anchor", "text")  # of source sentences, by schema


def text_columns(named: tuple[str, ...] | None, there: list[str], place: str) -> tuple[str, ...]:
    """The columns whose texts are paired with themselves: those named, else that of the source sentences.

    Raises InputError when none is named and none of ``SOURCE_COLUMNS`` exists.
    """
    if named is not None:
        return named
    found = next((column for column in SOURCE_COLUMNS if column in there), None)
    if found is None:
        hint = "name the columns of the texts: datasets.N.columns"
        raise InputError(place, f"has none of the columns {', '.join(SOURCE_COLUMNS)}", allowed=there, hint=hint)
    return (found,)


def self_pairs(rows: Dataset, limit: int | None) -> Dataset:
    """Each distinct text of all columns as (anchor, positive), in the order of the rows; blank ones are passed over.

    The source of both sides is unsupervised SimCSE (Gao et al. 2021, section 3): dropout alone tells them apart.
    """
    table = rows.with_format("arrow")[:]
    columns = [table[name].cast(pa.string()).combine_chunks() for name in table.column_names]
    count = len(columns)
    interleaved = pa.concat_arrays(columns).take(pa.array(np.arange(count * len(rows)).reshape(count, -1).T.ravel()))
    texts = pc.unique(interleaved)
    texts = texts.filter(pa.array([text is not None and not is_blank(text) for text in texts.to_pylist()]))[:limit]
    return Dataset(pa.table({"anchor": texts, "positive": texts}).cast(SELF_PAIR.features.arrow_schema))


def graded_rows(rows: Dataset, grades: Grades, with_negatives: bool, limit: int | None) -> tuple[Dataset, int]:
    """(anchor, positive[, negative]) of scored pairs, one row for each positive; and the number of anchors without any.

    The i-th positive of a sentence takes its i-th negative, hardest (of the highest score) first, and begins again when
    they are used up. A negative with the text of a positive is left out. With ``with_negatives`` a sentence needs both.
    """
    table = rows.with_format("arrow")[:]
    first, second, scores = (table[name] for name in STS.columns)
    second_texts, values = second.to_pylist(), scores.to_numpy()
    bounds = (grades.positive_from, grades.negative_from, grades.negative_to)
    positive_from, negative_from, negative_to = np.asarray(bounds, dtype=np.float32)  # as published scores are
    by_anchor: dict[str, tuple[list[int], list[int]]] = {}  # in the order of the first rows
    for row, (text, score) in enumerate(zip(first.to_pylist(), values.astype(np.float32), strict=True)):
        own, others = by_anchor.setdefault(text, ([], []))
        if score >= positive_from:
            own.append(row)
        elif negative_from <= score <= negative_to:
            others.append(row)
    positives: list[int] = []
    negatives: list[int] = []
    without = 0
    for own, others in by_anchor.values():
        taken = {second_texts[row] for row in own}
        hard = sorted((row for row in others if second_texts[row] not in taken), key=lambda row: -values[row])
        if grades.positives == "itself":
            own = hard[:1]  # any row of the sentence: only its source sentence is read below
        if not own or (with_negatives and not hard):
            without += 1
            continue
        positives += own
        if with_negatives:
            negatives += [hard[index % len(hard)] for index in range(len(own))]
    chosen = pa.array(positives[:limit], pa.int64())
    positive = first if grades.positives == "itself" else second
    columns = {"anchor": first.take(chosen), "positive": positive.take(chosen)}
    if with_negatives:
        columns["negative"] = second.take(pa.array(negatives[:limit], pa.int64()))
    schema = (GRADED_TRIPLET if with_negatives else GRADED_PAIR).features.arrow_schema
    return Dataset(pa.table(columns).cast(schema)), without


def distinct_rows(rows: Dataset, numbers: Iterable[int] | None = None) -> int:
    """Count the rows that differ from one another, among those of these numbers (None: all)."""
    rows = rows if numbers is None else rows.select(sorted(numbers))
    tables = rows.with_format("arrow").iter(batch_size=ROWS)
    return len({hash(repr(row)) for table in tables for row in zip(*table.to_pydict().values(), strict=True)})


def all_equal(rows: Iterable[dict[str, Any]]) -> bool:
    """Whether no row differs from the first; reads up to the first that does."""
    rows = iter(rows)
    first = next(rows, None)
    return all(row == first for row in rows)


def checked_stream(
    rows: IterableDataset, spec: TrainingData, place: str, limit: int | None, seed: int
) -> tuple[IterableDataset, bool]:
    """The first ``limit`` rows (of one example set) of a stream with the example type's columns, shuffled by ``seed``.

    Beside them, whether all its rows are equal, as far as the first ``ROWS`` show.

    Files are shuffled, and rows are drawn from the example type's buffer. Raises InputError when the first ``ROWS``
    rows cannot be learned from. A later bad row raises it when it is read, with its number in the order of reading.
    """
    head = in_memory(rows.take(ROWS), place).data.table
    examples = EXAMPLE_TYPES[spec.example_type]
    checks = RowChecks(examples, spec.example_set, place)
    checks.require_columns(head.schema)
    part = _read(head, list(range(head.num_rows)), replace(checks, place=f"{place}, as read"))
    checks.add(part)
    checks.require_rows(f"{place} (the first {ROWS:,} rows)")
    if head.num_rows < ROWS:  # these are all there are
        checks.require_long_enough(spec.spans or Spans())
    stream = rows.with_format("arrow").map(
        _read,
        with_indices=True,
        batched=True,
        batch_size=ROWS,
        features=examples.features,
        remove_columns=[name for name in head.column_names if name not in examples.columns],
        fn_kwargs={"checks": RowChecks(examples, spec.example_set, f"{place}, as read")},
    )
    stream = stream.with_format(None)
    stream = stream if limit is None else stream.take(limit)
    # one file at a time: several are fed by threads that upstream waits five seconds for, and number their own rows
    stream = stream.shuffle(seed=seed, buffer_size=examples.buffer, max_buffer_input_shards=1)
    whole = head.num_rows < ROWS or (limit is not None and part.num_rows >= limit)
    return stream, whole and all_equal(part.slice(0, limit).to_pylist())


def _read(table: pa.Table, numbers: list[int], checks: RowChecks) -> pa.Table:
    """The rows of a stream that are trained on, checked, with the example type's features."""
    keep = checks.of_set(table)
    part = table.take(keep).select(list(checks.examples.columns))
    checks.require_cells(part, np.asarray(numbers, dtype=np.int64)[keep])
    return part.cast(checks.examples.features.arrow_schema)


@contextmanager
def stream_errors(spec: TrainingData) -> Iterator[None]:
    """Translate what ends a stream early: a Hub that is gone (RunError), or bytes that are not rows (InputError)."""
    if not spec.streaming:
        yield
        return
    hub = reading(spec.repo_id, spec.revision) if spec.repo_id is not None else nullcontext()
    with hub, reading_rows(f"datasets.0: {spec.repo_id or spec.path}"):
        yield


def in_memory(rows: IterableDataset, place: str) -> Dataset:
    """All rows of a short stream. Raises InputError when it has none or cannot be read."""
    with reading_rows(place):
        parts = list(rows.with_format("arrow").iter(batch_size=ROWS))
    if not parts:
        raise InputError(place, "has no rows", hint=NO_ROWS)
    return Dataset(pa.concat_tables(parts))


ReadEpoch = Callable[[IterableDataset, int], Iterable[dict[str, Any]]]  # a stream and an epoch → rows


def endless(
    rows: IterableDataset, place: str, features: Features | None = None, read: ReadEpoch = lambda rows, number: rows
) -> IterableDataset:
    """The rows that ``read`` makes of ``rows``, epoch after epoch without end, each shuffled by its epoch.

    A step is then a place in one sequence, to which a killed run can return. Raises RunError when a pass is empty.
    """
    arguments = {"rows": rows, "place": place, "read": read}
    return IterableDataset.from_generator(_passes, features=features or rows.features, gen_kwargs=arguments)


def _passes(rows: IterableDataset, place: str, read: ReadEpoch) -> Iterator[dict[str, Any]]:
    for number in itertools.count():
        rows.set_epoch(number)
        empty = True
        for row in read(rows, number):
            empty = False
            yield row
        if empty:
            raise RunError(place, "has no row to train on", hint="look at what its rows must hold, or take other data")
