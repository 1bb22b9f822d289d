"""Reads a user's file of rows: .txt, .tsv, .csv, .jsonl, .json, .parquet or .xlsx, each also as .gz.

Every command and the Python API read through ``open_rows``. Nothing is guessed silently: what a file's name does not
say (another delimiter, the sheet) is printed, and a row that could be read in two ways is refused with its line.
"""

import codecs
import csv
import gzip
import io
import json
import shlex
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time
from functools import cache, partial
from itertools import chain, count, islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq

from hub.cli import say
from hub.contract.shards import reading_rows
from hub.errors import InputError
from hub.untrusted import first_line

MARK = "\ufeff"  # which editors put at the start of a file
LONGEST_LINE = 10_000_000  # characters: a longer line is no row, and a small .gz may hold gigabytes
LARGEST = 1 << 30  # bytes of a file that is read whole: a JSON array, the parts of an .xlsx
_START = 4096  # bytes by which UTF-16 is recognised
LOOKED_AT = 20  # lines in which a delimiter is looked for
GZ, TABLES = ".gz", {".tsv": "\t", ".csv": ","}
Row = dict[str, Any]
_SCALARS = (str, int, float, date, time, type(None))  # whose form as text is what one would write
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # Unicode's categories
_VARIATIONS = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E)}
csv.field_size_limit(LONGEST_LINE)


def kind_of(path: Path) -> str:
    """The kind of a file by the end of its name: ``.csv`` of ``Rows.CSV.gz``."""
    name = path.name.lower().removesuffix(GZ)
    return Path(name).suffix


def require_kind(path: Path, place: object) -> str:
    """The kind of a file. Raises InputError when nothing here reads it."""
    kind = kind_of(path)
    if kind not in READERS:
        hint = "save its texts as .txt, one a line"
        raise InputError(place, f"unknown kind of file {path.suffix!r}", allowed=", ".join(READERS), hint=hint)
    return kind


def open_rows(path: Path, place: object, columns: Sequence[str] = ()) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    """The columns' names, and every row by column with its line (or number, from 1), streamed.

    A .txt file has the column ``text``. ``columns``: the only ones that are wanted; a reader may leave others out.
    Raises InputError that names ``place`` and the line when the file is of another kind, empty, damaged, not UTF-8 or
    not what its name says.
    """
    rows = _rows(path, place, columns)
    return next(rows), rows


def as_text(cell: object, where: object, column: str) -> str:
    """A cell as text; the number 0 is "0", a missing value is empty.

    Raises InputError for truth values, bytes, lists and the like: written out by Python they would be texts such as
    ``b'...'``.
    """
    if isinstance(cell, bool) or not isinstance(cell, _SCALARS) or (type(cell) is float and not isfinite(cell)):
        found = repr(cell) if isinstance(cell, float) else type(cell).__name__
        raise InputError(where, f"its column {column!r} holds {found}", allowed="text", hint="name a column of texts")
    return "" if cell is None else str(cell)


def is_blank(text: str) -> bool:
    """Whether a text has no visible character: separators, control and format characters, variation selectors."""
    return all(unicodedata.category(sign) in _INVISIBLE or ord(sign) in _VARIATIONS for sign in text)


def _rows(path: Path, place: object, columns: Sequence[str]) -> Iterator[Any]:
    kind = require_kind(path, place)
    if path.stat().st_size == 0:
        raise InputError(place, "is empty", allowed="at least one text")
    with reading_rows(place), _opened(path) as stream:
        if kind == ".parquet":
            yield from _parquet(stream, place, columns)
        elif kind == ".xlsx":
            yield from _xlsx(stream, place)
        else:
            start = stream.peek(_START)[:_START]  # type: ignore[attr-defined]
            if encoding := _of_two_bytes(start):
                raise _not_utf8(place, encoding, path)
            try:
                text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
                yield from READERS[kind](_lines(text, place), place)
            except UnicodeDecodeError:
                raise _not_utf8(f"{place}:{_undecoded(path)}", "WINDOWS-1252", path) from None


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.name.lower().endswith(GZ) else path.open("rb")  # type: ignore[return-value]


def _of_two_bytes(start: bytes) -> str | None:
    """UTF-16LE or UTF-16BE, if a file begins like one; without its mark it would be read as UTF-8 with NULs."""
    forms = (("UTF-16LE", codecs.BOM_UTF16_LE, start[1::2]), ("UTF-16BE", codecs.BOM_UTF16_BE, start[::2]))
    for encoding, mark, half in forms:
        if start.startswith(mark) or half.count(0) > len(start) // 4:
            return encoding
    return None


def _undecoded(path: Path) -> int:
    """The first line of a file that is not UTF-8."""
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return number
    return 1


def _not_utf8(place: object, encoding: str, path: Path) -> InputError:
    hint = f"convert it: iconv -f {encoding} -t UTF-8 {shlex.quote(path.name)} > NEW{path.suffix}"
    return InputError(place, f"is not UTF-8; it may be {encoding}", hint=hint)


def _lines(stream: io.TextIOWrapper, place: object) -> Iterator[str]:
    for number in count(1):
        line = stream.readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            raise InputError(f"{place}:{number}", "is too long a line", allowed=f"at most {LONGEST_LINE:,} characters")
        if not line:
            return
        yield line


def _txt(lines: Iterator[str], place: object) -> Iterator[Any]:
    yield ["text"]
    yield from ((number, {"text": line.rstrip("\r\n")}) for number, line in enumerate(lines, start=1))


def _table(lines: Iterator[str], place: object, kind: str) -> Iterator[Any]:
    """Rows under a header line. In a .tsv file a quotation mark is text."""
    head = list(islice(lines, LOOKED_AT))
    delimiter = _delimiter(head, TABLES[kind], place)
    quoting = csv.QUOTE_NONE if kind == ".tsv" and delimiter == "\t" else csv.QUOTE_MINIMAL  # which is 0
    reader = csv.reader(chain(head, lines), delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
    start = 1
    try:
        names = _distinct(next(reader, []), f"{place}:1")
        yield names
        start = reader.line_num + 1
        for cells in reader:
            if not cells and quoting:  # a .tsv line without a text
                cells = [""]
            if cells and len(cells) != len(names):
                hint = (
                    f"a text with {delimiter!r} stands between quotation marks"
                    if quoting == csv.QUOTE_MINIMAL
                    else None
                )
                raise InputError(f"{place}:{start}", f"has {len(cells)} columns", allowed=str(len(names)), hint=hint)
            if cells:
                yield start, dict(zip(names, cells, strict=True))
            start = reader.line_num + 1
    except csv.Error as error:
        hint = 'double a quotation mark inside a text: ""'
        raise InputError(f"{place}:{start}", f"its quotation marks do not close ({error})", hint=hint) from None


def _delimiter(head: list[str], expected: str, place: object) -> str:
    """The delimiter that a file's name says, unless the header has another one, as often as the lines after it."""
    first = head[0] if head else ""
    if expected not in first:
        for other in "\t;,|":
            if 0 < first.count(other) == min((line.count(other) for line in head if line.strip()), default=0):
                _say_once(f"{place}: columns are separated by {other!r}")
                return other
    return expected


@cache
def _say_once(message: str) -> None:
    say(message)


def _distinct(names: Sequence[Any], where: object) -> list[str]:
    """Names of columns. Raises InputError for a name that stands twice."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(where, f"the column {name!r} stands twice", hint="rename or remove one of them")
    return [str(name) for name in names]


def _objects(rows: Iterator[tuple[int, Any]], place: object) -> Iterator[Any]:
    """The names of the first JSON object, then all of them as rows."""

    def checked() -> Iterator[tuple[int, Row]]:
        for number, row in rows:
            if not isinstance(row, dict):
                raise InputError(f"{place}:{number}", "is not a JSON object")
            yield number, row

    every = checked()
    first = next(every, None)
    yield list(first[1]) if first else []
    yield from chain([first] if first else (), every)


def _loads(text: str, where: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> Row:
        _distinct([name for name, _ in pairs], where)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, or a number of thousands of digits
        raise InputError(where, f"is not JSON: {getattr(error, 'msg', None) or error}") from None


def _jsonl(lines: Iterator[str], place: object) -> Iterator[Any]:
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    yield from _objects(((number, _loads(line, f"{place}:{number}")) for number, line in numbered), place)


def _json(lines: Iterator[str], place: object) -> Iterator[Any]:
    """A JSON array of objects; or JSON Lines, which often have that ending."""
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        yield from _jsonl(chain([first], lines), place)
        return
    whole, size = [first], len(first)
    for line in lines:
        whole.append(line)
        size += len(line)
        if size > LARGEST:
            raise InputError(place, "is too large a JSON array", hint="save it as .jsonl, an object a line")
    rows = _loads("".join(whole), str(place))
    if not isinstance(rows, list):
        raise InputError(place, "is not a JSON array of objects", hint="save it as .jsonl, an object a line")
    yield from _objects(iter(enumerate(rows, start=1)), place)


def _parquet(stream: IO[bytes], place: object, columns: Sequence[str]) -> Iterator[Any]:
    with pq.ParquetFile(stream) as file:
        names = _distinct(file.schema_arrow.names, place)
        yield names
        wanted = [name for name in names if name in columns] or names
        batches = file.iter_batches(batch_size=1000, columns=wanted)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


def _xlsx(stream: IO[bytes], place: object) -> Iterator[Any]:
    """The first sheet of a workbook, under a header row."""
    from openpyxl import load_workbook

    try:
        with zipfile.ZipFile(stream) as parts:
            if sum(part.file_size for part in parts.infolist()) > LARGEST:
                raise InputError(place, "is too large a workbook", hint="save the sheet as .csv")
        sheet = load_workbook(stream, read_only=True, data_only=True).worksheets[0]
        rows = enumerate(sheet.iter_rows(values_only=True), start=1)
        header = [cell for cell in next(rows, (1, ()))[1] if cell is not None]
    except (zipfile.BadZipFile, KeyError, ValueError, IndexError) as error:
        raise InputError(place, f"is not an Excel workbook: {first_line(error)}", hint="save it as .csv") from error
    _say_once(f"{place}: the sheet {sheet.title!r} is read")
    names = _distinct(header, f"{place}:1")
    yield names
    for number, cells in rows:
        if any(cell is not None for cell in cells[len(names) :]):
            raise InputError(f"{place}:{number}", "has a cell without a column name", allowed=", ".join(names))
        if any(cell is not None for cell in cells):
            yield number, dict(zip_longest(names, cells[: len(names)]))


READERS: dict[str, Callable[[Iterator[str], object], Iterator[Any]]] = {
    ".txt": _txt,
    ".tsv": partial(_table, kind=".tsv"),
    ".csv": partial(_table, kind=".csv"),
    ".jsonl": _jsonl,
    ".json": _json,
    ".parquet": _parquet,  # type: ignore[dict-item] # these two read bytes
    ".xlsx": _xlsx,  # type: ignore[dict-item]
}
