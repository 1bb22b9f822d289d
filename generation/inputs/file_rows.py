"""Rows of a text, TSV, CSV, JSON Lines or parquet file as texts, streamed; what cannot be read is one line."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time
from pathlib import Path

import pyarrow.parquet as pq

from hub.contract.shards import reading_rows
from hub.errors import InputError, did_you_mean

Columns = tuple[str, ...]
Cells = tuple[str, ...]
_SCALARS = (str, int, float, date, time)  # whose form as text is what one would write


def file_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    """The cells of ``columns`` in every row of a .txt, .tsv, .csv, .jsonl or .parquet file, streamed.

    Raises InputError naming ``place`` when the file is of another kind, empty, damaged, not UTF-8 or not what its name
    says, or when a cell holds no text.
    """
    require_kind(path, place)
    if path.stat().st_size == 0:
        raise InputError(place, "is empty", allowed="at least one text")
    with reading_rows(place):
        try:
            yield from READERS[path.suffix](path, columns, place)
        except UnicodeDecodeError as error:
            raise InputError(place, f"is not UTF-8 ({error.reason})", hint="save it as UTF-8") from error


def require_kind(path: Path, place: str) -> None:
    """Raise InputError when nothing here reads files with this suffix."""
    if path.suffix not in READERS:
        hint = "save its texts as .txt, one a line"
        raise InputError(place, f"unknown kind of file {path.suffix!r}", allowed=", ".join(READERS), hint=hint)


def as_texts(cells: Sequence[object], columns: Columns, place: str) -> Cells:
    """The cells of a row as texts; the number 0 is "0", a missing value is empty.

    Raises InputError for bytes, lists and the like: written out by Python they would be texts such as ``b'...'``.
    """
    for cell, column in zip(cells, columns, strict=True):
        if cell is not None and not isinstance(cell, _SCALARS):
            found = f"its column {column!r} holds {type(cell).__name__}"
            raise InputError(place, found, allowed="text", hint="name a column of texts")
    return tuple("" if cell is None else str(cell) for cell in cells)


def require_columns(place: object, wanted: Columns, columns: list[str]) -> Columns:
    """``wanted``, if all are there. Raises InputError naming the columns that are."""
    if not wanted:
        raise InputError(place, "source.columns is needed for this kind of source", allowed=", ".join(columns))
    for column in wanted:
        if column not in columns:
            hint = did_you_mean(column, columns)
            problem = "not in the source"
            raise InputError(f"{place}: column {column!r}", problem, allowed=", ".join(columns), hint=hint)
    return wanted


def _txt_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    if columns:
        raise InputError(f"{place}: columns {columns}", "a .txt file has no columns", hint="remove source.columns")
    with path.open(encoding="utf-8") as stream:
        yield from ((line.rstrip("\n"),) for line in stream)


def _tsv_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    """Tab-separated with a header line, no quoting: a quotation mark is text."""
    with path.open(encoding="utf-8", newline="") as stream:
        header = stream.readline().rstrip("\r\n").split("\t")
        places = [header.index(name) for name in require_columns(place, columns, header)]
        for number, line in enumerate(stream, start=2):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) != len(header):
                raise InputError(f"{place}:{number}", f"has {len(cells)} columns", allowed=str(len(header)))
            yield tuple(cells[i] for i in places)


def _csv_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        names = require_columns(place, columns, list(reader.fieldnames or []))
        for row in reader:
            yield tuple(row[name] or "" for name in names)


def _jsonl_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            where = f"{place}:{number}"
            row = _object(line, where)
            yield as_texts([row[name] for name in require_columns(where, columns, list(row))], columns, where)


def _object(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        raise InputError(where, f"is not JSON: {getattr(error, 'msg', None) or error}") from None
    if not isinstance(row, dict):
        raise InputError(where, "is not a JSON object")
    return row


def _parquet_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    with pq.ParquetFile(path) as file:
        names = require_columns(place, columns, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=1000, columns=list(names)):
            cells = [batch.column(name).to_pylist() for name in names]
            yield from (as_texts(row, names, place) for row in zip(*cells, strict=True))


READERS: dict[str, Callable[[Path, Columns, str], Iterator[Cells]]] = {
    ".txt": _txt_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
