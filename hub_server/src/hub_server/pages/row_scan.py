"""A page of rows of untrusted parquet files, as texts; runs in a limited child process (``readers``).

A page without a filter is found by the files' footers, and only the row groups that hold it are read. A filter reads
batch after batch, and stops after ``MOST_ROWS`` rows or some seconds; the answer has the number of rows it read.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hub_server.pages.readers import (
    MOST_FILES,
    MOST_ROWS,
    ROWS,
    Facts,
    Group,
    Question,
    RowsQuestion,
    Second,
    Window,
    visible,
)

COLUMNS = 20
LABELS = ("reason", "label", "score", "target")  # the first that a file has is its label
MOST_LABELS = 50
GROUPED = {("sentence1", "sentence2"): "score", ("premise", "hypothesis"): "label"}  # pair of sentences: label
CELL = 3_000  # characters
_BATCH, _SCAN_SECONDS = 10_000, 2.5  # three scans at most fit a child's CPU time
Rows = list[dict[str, Any]]


class Unreadable(Exception):
    """A file that cannot be read as parquet: its place, and the error."""

    def __init__(self, place: int, error: Exception):
        super().__init__(place, error)
        self.place, self.error = place, error


@contextmanager
def parquet(place: int) -> Iterator[None]:
    """Raise Arrow's errors over an untrusted file as Unreadable."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Unreadable(place, error) from error


class Label(NamedTuple):
    """The column to filter by ("" for none) and its class names, which most columns lack."""

    column: str = ""
    names: list[str] = []  # noqa: RUF012

    def shown(self, value: object) -> str:
        """A value of the column as the page shows it."""
        return cell(named_value(value, self.names))


class Split:
    """The rows of some files, one after the other, with the columns of the first file."""

    def __init__(self, files: tuple[str, ...], rows: list[int] | None = None):
        self.files = files[:MOST_FILES]
        self.schema = self._open(0).schema_arrow
        self.rows = rows or [self._open(place).metadata.num_rows for place in range(len(self.files))]

    def _open(self, place: int) -> pq.ParquetFile:
        with parquet(place):
            return pq.ParquetFile(self.files[place], pre_buffer=False, buffer_size=1 << 20)

    def batches(self, columns: list[str], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Batches from row ``start`` on; row groups before it are not read."""
        for place, rows in enumerate(self.rows):
            if start < rows:
                with parquet(place):
                    yield from self._batches_of(place, columns, start)
            start = max(0, start - rows)

    def _batches_of(self, place: int, columns: list[str], start: int) -> Iterator[pa.RecordBatch]:
        file = self._open(place)
        groups = list(range(file.metadata.num_row_groups))
        while start >= (size := file.metadata.row_group(groups[0]).num_rows):
            start -= size
            del groups[0]
        known = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(_BATCH, row_groups=groups, columns=known, use_threads=False):
            yield batch.slice(min(start, batch.num_rows))
            start = max(0, start - batch.num_rows)


def answer(request: bytes) -> Window | Facts:
    """Return the page of rows that a ``RowsQuestion`` asks for, or the facts for it."""
    asked = RowsQuestion.model_validate_json(request)
    try:
        return find(asked.question, asked.facts) if asked.facts else facts_of(Split(asked.question.files))
    except Unreadable as error:
        problem = f"cannot be read as parquet ({type(error.error).__name__})"
        return (Window if asked.facts else Facts)(broken=error.place, problem=problem)


def facts_of(split: Split) -> Facts:
    """Return the number of rows of each file, and the labels. Raises Unreadable."""
    label = label_of(split)
    counts, counted = count_labels(split, label) if label.column else ({}, 0)
    return Facts(file_rows=split.rows, label_column=label.column, labels=list(counts.items()), counted=counted)


def label_of(split: Split) -> Label:
    """Return the column to filter by."""
    names, metadata = split.schema.names, split.schema.metadata
    flat = [name for name in LABELS if name in names and not pa.types.is_nested(split.schema.field(name).type)]
    return Label(flat[0], label_names(metadata, flat[0])) if flat else Label()


def find(question: Question, facts: Facts) -> Window:
    """Return the page of rows that a question asks for. Raises Unreadable."""
    split = Split(question.files, facts.file_rows)
    names = split.schema.names
    pair = next((pair for pair, label in GROUPED.items() if {*pair, label} <= set(names)), None)
    named = {name: label_names(split.schema.metadata, name) for name in names[:COLUMNS]}
    columns = names[:COLUMNS]
    if pair and question.grouped:
        columns = [*pair, GROUPED[pair], *(["target"] if "target" in names else [])]
    seen = Window(rows=sum(split.rows), can_group=pair is not None, **facts.model_dump())
    wanted = question if question.label in dict(facts.labels) else question.model_copy(update={"label": ""})
    filtered = bool(wanted.label or wanted.words)
    rows = search(split, columns, wanted, seen) if filtered else turn_to(split, columns, wanted, seen)
    if pair and question.grouped:
        seen.groups = grouped(rows, pair, Label(GROUPED[pair], named.get(GROUPED[pair], [])))
    else:
        seen.columns, seen.more_columns = [cell(name) for name in columns], len(names) - len(columns)
        seen.table = [[cell(named_value(row.get(name), named[name])) for name in columns] for row in rows]
    return seen


def turn_to(split: Split, columns: list[str], question: Question, seen: Window) -> Rows:
    """Return a page of all rows; ``seen`` gets the number of pages and of this one."""
    seen.found = seen.looked_at = seen.rows
    clamp(seen, question.page)
    rows: Rows = []
    for batch in split.batches(columns, (seen.page - 1) * ROWS):
        rows += batch.slice(0, ROWS - len(rows)).to_pylist()
        if len(rows) >= ROWS:
            break
    return rows


def search(split: Split, columns: list[str], question: Question, seen: Window) -> Rows:
    """Return a page of the rows that match, which are counted into ``seen``."""
    label = label_of(split)
    read = list(dict.fromkeys([*columns, label.column] if question.label else columns))
    rows: Rows = []
    began = time.process_time()
    for batch in split.batches(read):
        if seen.looked_at >= MOST_ROWS or time.process_time() - began > _SCAN_SECONDS:
            break
        seen.looked_at += batch.num_rows
        hits = batch.filter(matching(batch, question, label))
        edges = ((question.page - 1) * ROWS, question.page * ROWS)
        first, last = (min(max(0, edge - seen.found), hits.num_rows) for edge in edges)
        rows += hits.slice(first, last - first).to_pylist()
        seen.found += hits.num_rows
    clamp(seen, question.page)
    if seen.page == question.page:
        return rows
    seen.found = seen.looked_at = 0  # a page beyond the end: search again for the last one
    return search(split, columns, question.model_copy(update={"page": seen.page}), seen)


def clamp(seen: Window, page: int) -> None:
    """Set the number of pages, and of the page that is shown."""
    seen.pages = max(1, -(-seen.found // ROWS))
    seen.page = min(page, seen.pages)


def matching(batch: pa.RecordBatch, question: Question, label: Label) -> pa.Array:
    """Return which rows have the label and, in any of their text columns, the words."""
    everything, nothing = pa.repeat(True, batch.num_rows), pa.repeat(False, batch.num_rows)
    right, hits = everything, everything
    if question.label:
        column = plain(batch.column(label.column)) if label.column in batch.schema.names else pa.nulls(batch.num_rows)
        values = [value for value in pc.unique(column) if label.shown(value.as_py()) == question.label]
        right = reduce(pc.or_, [pc.equal(column, value) for value in values], nothing)
    if question.words:
        texts = [column for column in map(plain, batch.columns) if is_text(column.type)]
        found = [pc.match_substring(column, question.words, ignore_case=True) for column in texts]
        hits = reduce(pc.or_, [pc.fill_null(column, False) for column in found], nothing)
    return pc.and_(right, hits)


def plain(column: pa.Array) -> pa.Array:
    """Return a column with a dictionary's values in place."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def count_labels(split: Split, label: Label) -> tuple[dict[str, int], int]:
    """Return the rows of each label as shown ({} for too many labels), and the number of rows read."""
    counts: Counter[str] = Counter()
    values: dict[str, Any] = {}
    read, began = 0, time.process_time()
    for batch in split.batches([label.column]):
        if read >= MOST_ROWS or time.process_time() - began > _SCAN_SECONDS:
            break
        read += batch.num_rows
        for found in pc.value_counts(plain(batch.column(0))).to_pylist() if batch.num_columns else []:
            if found["values"] is not None:
                shown = label.shown(found["values"])
                counts[shown] += found["counts"]
                values[shown] = found["values"]
        if len(counts) > MOST_LABELS:
            return {}, read
    order = sorted(counts, key=lambda shown: sort_key(values[shown]))
    return {shown: counts[shown] for shown in order}, read


def sort_key(value: object) -> tuple[float, str]:
    """Sort numbers from high to low, then texts."""
    return (-float(value), "") if isinstance(value, int | float) and value == value else (0.0, str(value))


def grouped(rows: Rows, pair: tuple[str, str], label: Label) -> list[Group]:
    """Return one group for each source sentence, its second sentences by label."""
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(row.get(pair[0]), []).append(row)
    found = []
    for text, members in groups.items():
        seconds = [
            Second(
                label=cell(label_name(row.get(label.column), label.names)),
                text=cell(row.get(pair[1])),
                note="sampled" if row.get("target") == "sampled" else "",
            )
            for row in sorted(members, key=lambda row: sort_key(row.get(label.column)))
        ]
        found.append(Group(first=cell(text), seconds=seconds))
    return found


def label_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """Return the class names of a column, which ``datasets`` keeps in a file's metadata; [] without them."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError):
        return []


def label_name(value: object, names: list[str]) -> object:
    """Return a label's name, or the value of a label without one."""
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def named_value(value: object, names: list[str]) -> object:
    """Return a label's number with its name."""
    name = label_name(value, names)
    return value if name is value else f"{value} ({name})"


def cell(value: object) -> str:
    """Return a value as text: floats in six digits, hidden characters shown, at most ``CELL`` characters."""
    text = "" if value is None else str(rounded(value))
    return visible(text if len(text) <= CELL else f"{text[:CELL]}… (cut: {len(text):,} characters)")


def rounded(value: object) -> object:
    """Return floats in six digits, inside lists and mappings, too."""
    if isinstance(value, float):
        return Number(f"{value:.6g}")
    if isinstance(value, list):
        return [rounded(item) for item in value[:CELL]]
    return {key: rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


class Number(str):
    """A number's digits, which a list shows without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__
