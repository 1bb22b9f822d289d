"""Reads a user's file of rows: .txt, .tsv, .csv, .jsonl, .json, .parquet or .xlsx, each also as
.gz.

Every command and the Python API read through ``open_rows`` or ``open_lines``. The delimiter of a
table gives all sampled rows as many cells as the header; where that does not decide, clevercsv
chooses. chardet guesses the encoding of a file that is not UTF-8; a guess that is not certain is
refused. The log names an unusual delimiter and a guessed encoding. A row that does not fit the
header is refused with its line.
"""

import codecs
import csv
import errno
import gzip
import io
import json
import logging
import re
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, time
from functools import cache, lru_cache, partial
from itertools import chain, islice, zip_longest
from math import isfinite
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sts_dino.hub.contract.shards import convert_reader_errors
from sts_dino.hub.durable import require_regular_file
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.untrusted import get_first_line, join_lines

logger = logging.getLogger(__name__)

MARK = "\ufeff"  # the byte-order mark, which editors put at the start of a file
LONGEST_LINE = 10_000_000  # characters: a longer line is not a row; a small .gz may hold gigabytes
LARGEST = 1 << 30  # bytes of a file that is read into memory: a JSON array, the parts of an .xlsx
BATCH_ROWS = 1000  # of parquet, read at once
BATCH_BYTES = 64 << 20  # of parquet's texts, unpacked at once
GZ = ".gz"
DELIMITERS = ",;\t|"
# for a header without any of DELIMITERS, if all sampled rows have as many cells
RARE_DELIMITERS = ":~^¦\x01\x1f"
SAMPLE_LINES = 100  # in which the delimiter is looked for
SAMPLE_CHARACTERS = 100_000  # half a second for clevercsv
SAMPLE_BYTES = 8192  # in which the encoding is looked for
KEY_ROWS = 1_000  # JSON objects whose keys are the columns
MOST_KEY_ROWS = 100_000  # JSON objects in which a named column is looked for
SHOWN_TEXT = 40  # characters of a sample in an error
# encodings that are tried for a file that is not UTF-8, by chardet's names, the commonest first
ENCODINGS = (
    *("Windows-1252", "Windows-1250", "Windows-1251", "Windows-1253", "Windows-1254"),
    *("Windows-1255", "Windows-1256", "Windows-1257", "Windows-1258", "ISO-8859-1", "ISO-8859-2"),
    *("ISO-8859-5", "ISO-8859-7", "ISO-8859-9", "ISO8859-15", "MacRoman", "CP437", "CP850"),
    *("CP852", "IBM866", "KOI8-R", "KOI8-U", "GB18030", "Big5", "CP932", "EUC-JP", "CP949"),
    *("CP874", "ISO-2022-JP"),
)
WIDEST_CHARACTER_BYTES = 4
MOST_LINE_BYTES = WIDEST_CHARACTER_BYTES * LONGEST_LINE + 1
WIDE_ENCODINGS = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
SIGNATURES = {  # the first bytes of files that are not texts
    b"PK\x03\x04": "a zip archive or Excel workbook: rename it .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save it as .xlsx or .csv",
    b"PAR1": "a parquet file: rename it .parquet",
    b"\x1f\x8b": "packed by gzip: add .gz to its name",
    b"%PDF": "a PDF: save its texts as .txt, one a line",
}
BYTE_ORDER_MARKS = {  # the longer marks first: UTF-16's begins UTF-32's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# (least score, least ratio): a guess is certain when its score is so high, and so many times the
# score of any other reading. Of 159 samples in 18 languages and 20 encodings, of 1 to 30 lines, 117
# are read rightly and 40 are refused; 2 are read wrongly, Romanian in ISO-8859-16.
CERTAIN_GUESSES = ((0.05, 1.1), (0.03, 3.0))
SHOWN_GUESSES = 3
_CELL_TYPES = (str, int, float, date, time, type(None))  # str() writes these as people do
_INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # Unicode's categories
_VARIATIONS = {*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), *range(0x180B, 0x180E)}
# letters and signs that are drawn as nothing: Hangul fillers, an empty Braille cell and others
_BLANK_LETTERS = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
# what spreadsheets write into a cell without a value, in English and in German
SPREADSHEET_ERRORS = {
    *("#N/A", "#NV", "#REF!", "#BEZUG!", "#VALUE!", "#WERT!", "#DIV/0!", "#NAME?", "#NUM!"),
    *("#ZAHL!", "#NULL!", "#SPILL!", "#CALC!", "#GETTING_DATA"),
}
_UNWRITTEN = {"Cc", "Co", "Cn"}  # control, private and unassigned characters
_ALPHABETS = {"LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC"}  # a word has letters of one
_WORD_SIGNS = set("’‘–—…«»“”„·•€£°§©®™")  # signs that stand beside letters
csv.field_size_limit(LONGEST_LINE)

Row = dict[str, Any]
NumberedRows = Iterator[tuple[int, Row]]  # with the line, or the number from 1
# The decimal mark of a file's numbers: a point where commas separate cells; a comma or a point
# where semicolons do; else either, and 1,234 may be a thousand.
DecimalMark = Literal["point", "comma", "either"]


@dataclass(frozen=True)
class UserFile:
    """A user's file, as a command names it.

    ``location``: the name of the file in errors. ``columns``: the columns that the caller reads;
    none means all. ``encoding``: the user's choice for a file that is not UTF-8.
    """

    path: Path
    location: object
    columns: Sequence[str] = ()
    encoding: str | None = None


class Header(NamedTuple):
    """The columns of a file, and the decimal mark of its numbers."""

    columns: list[str]
    decimal_mark: DecimalMark = "either"


class UserTable(NamedTuple):
    """An open file: its columns, its numbered rows by column, the decimal mark of its numbers."""

    columns: list[str]
    rows: NumberedRows
    decimal_mark: DecimalMark


def _open_bytes(path: Path) -> IO[bytes]:
    """Open the bytes of a file, unpacked."""
    if path.name.lower().endswith(GZ):
        return gzip.open(path)  # type: ignore[return-value]
    return path.open("rb")


def kind_of(path: Path) -> str:
    """Return the kind of a file by its name: ``.csv`` for ``Rows.CSV.gz``; "" without a suffix."""
    name = path.name.lower().removesuffix(GZ)
    return Path(name).suffix


def require_kind(path: Path, location: object) -> str:
    """Return the kind of a file (``kind_of``).

    Raises InputError naming ``location`` for a kind without a reader.
    """
    kind = kind_of(path)
    if kind not in READERS:
        hint = "save its texts as .txt, one a line"
        problem = f"unknown kind of file {kind or path.suffix!r}"
        raise InputError(location, problem, allowed=", ".join(READERS), hint=hint)
    return kind


def open_rows(
    path: Path, location: object, columns: Sequence[str] = (), encoding: str | None = None
) -> UserTable:
    """Open a file: its columns, and a stream of its rows in the order of the file.

    The number of a row is its line or its row in the sheet; in .parquet and a .json array it is the
    row's place, from 1.
    A .txt file has the column ``text``. The columns of JSON are the keys of the first ``KEY_ROWS``
    objects, of more while one of ``columns`` is missing. A row lacks the keys that its object
    lacks. A table may have columns alone, and no rows.

    Raises InputError that names ``location``, and the line where there is one, when the file is of
    an unknown kind, empty, damaged, of an uncertain encoding or not what its name says. Raises
    InputError, too, for a pipe, a socket or a device, and for an ``encoding`` that Python does not
    know, or with .parquet and .xlsx; OSError when the file cannot be opened or read. Problems below
    the first rows are raised while the rows are read.

    Args:
        path: the file.
        location: the name of the file in errors.
        columns: the columns that the caller reads; a reader may leave others out. Empty: all.
        encoding: the encoding of a file that is not UTF-8; None: it is recognised.
    """
    rows = _iter_header_and_rows(UserFile(path, location, columns, encoding))
    header: Header = next(rows)
    return UserTable(header.columns, rows, header.decimal_mark)


def open_lines(
    path: Path, location: object, encoding: str | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line without its line break) of a text file.

    Of the file's name only the end ``.gz`` matters, and an empty file has no lines. ``encoding``:
    as in ``open_rows``. Raises InputError that names ``location`` for a file that is not a text,
    for a damaged .gz, for an uncertain encoding, for bytes that the encoding lacks and for a line
    of more than ``LONGEST_LINE`` characters; InputError for an unknown ``encoding``, and for a
    pipe, a socket or a device; OSError when the file cannot be opened or read.
    """
    file = UserFile(require_regular_file(path), location, encoding=encoding)
    with convert_reader_errors(location), _open_bytes(path) as stream:
        for number, line in enumerate(_iter_lines(stream, file), start=1):
            yield number, line.rstrip("\r\n")


def split_columns(names: str) -> list[str]:
    """Split the value of ``--columns`` at commas; a name with a comma stands in quotation marks.

    A line break counts as a blank, as in the header of a .csv, .tsv or .xlsx file. Blanks around a
    name are left out. Raises InputError for an empty name, and for a name that occurs twice.
    """
    reader = csv.reader([" ".join(names.splitlines())], skipinitialspace=True)
    columns = [name.strip() for cells in reader for name in cells]
    if not columns or "" in columns:
        raise InputError("--columns", f"{names!r} has an empty name", allowed="NAME or NAME,NAME")
    repeated = find_repeated(columns)
    if repeated is not None:
        problem = f"names the column {repeated!r} twice"
        raise InputError("--columns", problem, allowed="distinct columns")
    return columns


def find_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs more than once; None when all names are distinct."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def join_names(names: Iterable[str]) -> str:
    """Return the names of columns for an error: in one line, each cut to ``SHOWN_TEXT``."""
    return ", ".join(join_lines(name, SHOWN_TEXT) for name in names)


def require_column(name: str, columns: Sequence[str], location: object) -> None:
    """Raise InputError naming ``location`` unless ``name`` is one of ``columns``."""
    if name not in columns:
        raise InputError(
            f"{location}: column {name!r}",
            "not in the data",
            allowed=join_names(columns),
            hint=suggest_choice(name, columns),
        )


def as_text(cell: object, location: object, column: str) -> str:
    """Return a cell as text: the number 0 as "0", a missing value or ``SPREADSHEET_ERRORS`` as "".

    Raises InputError naming ``location`` and ``column`` for NaN, for infinity, and for any type but
    text, int, float, date and time: Python would write such values as texts like ``b'...'``.
    """
    is_infinite = type(cell) is float and not isfinite(cell)
    if is_infinite or isinstance(cell, bool) or not isinstance(cell, _CELL_TYPES):
        value = repr(cell) if isinstance(cell, float) else type(cell).__name__
        problem = f"its column {column!r} holds {value}"
        raise InputError(location, problem, allowed="text", hint="name a column of texts")
    text = "" if cell is None else str(cell)
    return "" if text.strip() in SPREADSHEET_ERRORS else text


def _strip_marks(text: str) -> str:
    """Return a text without marks of direction and of zero width, and without blanks around it.

    A soft hyphen (U+00AD) stays: it may stand for a minus sign.
    """
    if text.isascii():  # of a million cells nearly all are
        return text.strip()
    return "".join(c for c in text if c == "\xad" or unicodedata.category(c) != "Cf").strip()


def as_number(
    cell: object,
    location: object,
    column: str,
    decimal_mark: DecimalMark,
    hint: str | None = None,
) -> float | None:
    """Return a cell as a finite number; None for a missing value or ``SPREADSHEET_ERRORS``.

    ``4,5`` is a number unless ``decimal_mark`` is ``point``. Blanks around a number do not count,
    nor do marks of direction and of zero width anywhere in it. ``hint``: what to do about a cell
    that is not a number, for the error. Raises InputError naming ``location`` and ``column`` for
    any other value, and for ``1,234`` where ``decimal_mark`` is ``either``.
    """
    text = "" if cell is None else _strip_marks(str(cell))
    if is_blank(text) or text in SPREADSHEET_ERRORS:
        return None
    has_decimal_comma = re.fullmatch(r"[+-]?\d+,\d+", text) is not None
    may_be_thousands = re.fullmatch(r"[+-]?[1-9]\d{0,2},\d{3}", text) is not None
    if decimal_mark == "either" and may_be_thousands:
        problem = f"its {column} is {text!r}: the comma may be a decimal mark or separate thousands"
        hint = f"write {text.replace(',', '.')} or {text.replace(',', '')}"
        raise InputError(location, problem, allowed="a number, e.g. 4.2", hint=hint)
    if has_decimal_comma and decimal_mark != "point":
        text = text.replace(",", ".")
    try:
        # Python reads 1_000 as a number; people do not write it.
        number = float(text) if "_" not in text else None
    except ValueError:
        number = None
    if number is None or not isfinite(number):
        problem = f"its {column} is {join_lines(str(cell), SHOWN_TEXT)!r}"
        if has_decimal_comma:
            hint = "write a point, or separate the cells of the file by semicolons"
        raise InputError(location, problem, allowed="a number, e.g. 4.2", hint=hint)
    return number


def is_blank(text: str) -> bool:
    """Return whether a text has no visible character.

    These are invisible: separators, control and format characters, variation selectors, and letters
    that are drawn as nothing. An empty text is blank.
    """
    return all(
        unicodedata.category(character) in _INVISIBLE
        or ord(character) in _VARIATIONS
        or ord(character) in _BLANK_LETTERS
        for character in text
    )


def _iter_header_and_rows(file: UserFile) -> Iterator[Any]:
    """Yield the ``Header``, then each row with its number. Raises what ``open_rows`` raises.

    Every reader of ``READERS`` yields its file in this form.
    """
    kind = require_kind(file.path, file.location)
    if require_regular_file(file.path).stat().st_size == 0:
        raise InputError(file.location, "is empty", allowed="at least one text")
    if file.encoding is not None and kind in (".parquet", ".xlsx"):
        problem = f"has texts in Unicode, whatever --encoding {file.encoding} says"
        raise InputError(file.location, problem, hint="leave --encoding out")
    with convert_reader_errors(file.location), _open_bytes(file.path) as stream:
        yield from READERS[kind](stream, file)


@cache
def _log_once(message: str) -> None:
    """Log a message the first time. ``cache`` answers later calls with the same message."""
    logger.info(message)


# Encodings


@dataclass(frozen=True)
class EncodingScan:
    """What the bytes of a file say about its encoding.

    ``encoding``: the encoding that the bytes make certain: all of the file is UTF-8, or it begins
    as UTF-16 or UTF-32. None otherwise. ``is_ascii``: whether all bytes are ASCII. ``evidence``:
    lines that are not ASCII, to guess from. ``line``: the number of the first line that is not
    UTF-8. ``utf8_lines``: the number of scanned lines that are UTF-8 beyond ASCII, where they
    outnumber the scanned lines that are not UTF-8; else 0.
    """

    encoding: str | None
    is_ascii: bool = False
    evidence: bytes = b""
    line: int = 1
    utf8_lines: int = 0


class Guess(NamedTuple):
    """A possible encoding, the evidence decoded by it, and its score: 0 to 1."""

    encoding: str
    text: str
    score: float


def find_encoding(path: Path, location: object, encoding: str | None = None) -> str | None:
    """Return the encoding of a text file that is not UTF-8; None for UTF-8, .parquet and .xlsx.

    ``encoding``: the user's choice, returned unless the bytes show another; None: none was made.
    Raises InputError for an unknown kind of file, for an uncertain encoding and for a choice that
    Python does not know; OSError when the file cannot be read. A damaged .gz raises OSError,
    EOFError or zlib.error: call ``open_rows`` first, which converts them.
    """
    if require_kind(path, location) in (".parquet", ".xlsx"):
        return None
    chosen = _choose_encoding(UserFile(path, location, encoding=encoding))
    is_utf8 = codecs.lookup(chosen).name in ("utf-8", "utf-8-sig")
    return None if is_utf8 else chosen


def _choose_encoding(file: UserFile) -> str:
    """Return the encoding of a file: the one its bytes show, else the user's choice, else a guess.

    A file of UTF-8 with characters beyond ASCII is read as UTF-8 whatever the user chose. For a
    file of ASCII alone the user's choice holds. Raises InputError for an uncertain encoding, and
    for a choice that Python does not know.
    """
    if file.encoding is not None:
        _require_codec(file.encoding)
    status = file.path.stat()
    scan = _scan_encoding(file.path, status.st_size, status.st_mtime_ns)

    # The user's choice holds unless the bytes show another encoding.
    if file.encoding is not None:
        if scan.encoding is None or scan.is_ascii:
            return file.encoding
        name = scan.encoding.removesuffix("-sig")
        chosen = codecs.lookup(file.encoding).name.removesuffix("-sig")
        if chosen != codecs.lookup(name).name:
            _log_once(f"{file.location}: is {name}; --encoding {file.encoding} is not used")
    if scan.encoding is not None:
        if scan.encoding != "utf-8-sig":
            _log_once(f"{file.location}: is read as {scan.encoding}")
        return scan.encoding

    # Most lines are UTF-8, so the others are mistakes and no evidence of an encoding.
    if scan.utf8_lines:
        problem = f"is not UTF-8, and {scan.utf8_lines} other lines are"
        hint = "write this line anew in UTF-8: a file has one encoding"
        raise InputError(f"{file.location}:{scan.line}", problem, hint=hint)
    return _guess_encoding(file, scan)


def _require_codec(encoding: str) -> None:
    """Raise InputError unless Python knows ``encoding`` as an encoding of texts."""
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):  # ValueError: a name with NUL, or beyond ASCII
        names = [codecs.lookup(name).name for name in ENCODINGS]
        raise InputError(
            "--encoding",
            f"unknown encoding {encoding!r}",
            allowed="a name that Python knows, e.g. cp1252, iso8859-2, gb18030, cp932",
            hint=suggest_choice(encoding, names),
        ) from None


@lru_cache(maxsize=64)
def _scan_encoding(path: Path, _size: int, _changed_ns: int) -> EncodingScan:
    """Find the encoding of a file by its bytes, or collect evidence about it.

    ``_size`` (bytes) and ``_changed_ns`` (time of the last change) are keys of the cache alone: a
    changed file is scanned anew.
    """
    # a byte-order mark, or NUL, which UTF-16 and UTF-32 have and a text in UTF-8 has not
    with _open_bytes(path) as stream:
        start = stream.read(SAMPLE_BYTES)
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return EncodingScan(encoding)
    if 0 in start:
        for encoding in WIDE_ENCODINGS:
            if _is_readable(start, encoding):
                return EncodingScan(encoding)

    # The bytes of ISO-2022-JP are all ASCII, with this escape.
    return _scan_lines(path, has_japanese_escape=b"\x1b$" in start)


def _scan_lines(path: Path, *, has_japanese_escape: bool) -> EncodingScan:
    """Return whether a file is UTF-8, else evidence about its encoding.

    The evidence has at most 2 * ``SAMPLE_BYTES`` bytes, of a line at most ``SAMPLE_BYTES``. It
    holds the last lines that were read and are not ASCII. The first line that is not UTF-8 is among
    these lines. ``has_japanese_escape``: whether lines with an escape character count as not ASCII.
    """
    is_ascii = not has_japanese_escape
    evidence = bytearray()
    utf8_lines = 0
    other_lines: list[int] = []
    with _open_bytes(path) as stream:
        lines = iter(partial(stream.readline, MOST_LINE_BYTES), b"")
        for number, line in enumerate(lines, start=1):
            if len(line) == MOST_LINE_BYTES:  # the reader will refuse it, in any encoding
                break
            if line.isascii() and not (has_japanese_escape and b"\x1b" in line):
                continue
            is_ascii = False
            evidence += line[:SAMPLE_BYTES]
            try:
                line.decode()
                utf8_lines += 1
            except UnicodeDecodeError:
                other_lines.append(number)
            if len(evidence) >= SAMPLE_BYTES and other_lines:
                break
            del evidence[:-SAMPLE_BYTES]
    if not other_lines and not has_japanese_escape:
        return EncodingScan("utf-8-sig", is_ascii)
    # Lines of ISO-2022-JP are ASCII with escapes, so all of them are UTF-8, too: no evidence.
    if has_japanese_escape or utf8_lines <= len(other_lines):
        utf8_lines = 0
    first_other = other_lines[0] if other_lines else 1
    return EncodingScan(None, evidence=bytes(evidence), line=first_other, utf8_lines=utf8_lines)


def _is_readable(start: bytes, encoding: str) -> bool:
    """Return whether the start of a file, read in a wide encoding, is lines of printable text."""
    # Bytes that the encoding lacks are left out; only the last character may be cut.
    text = start.decode(encoding, errors="ignore")
    is_whole = len(text.encode(encoding)) >= len(start) - WIDEST_CHARACTER_BYTES
    is_printable = all(character.isprintable() or character in "\r\n\t" for character in text)
    return is_whole and is_printable and "\n" in text


def _guess_encoding(file: UserFile, scan: EncodingScan) -> str:
    """Return the encoding that the evidence makes certain, and log it.

    Raises InputError with the likeliest encodings, and a sample of each, when none is certain.
    """
    guesses = _rank_encodings(scan.evidence)
    # A missing guess has the score 0.
    best, second = [*(guess.score for guess in guesses), 0.0, 0.0][:2]
    if any(best >= score and best >= ratio * second for score, ratio in CERTAIN_GUESSES):
        encoding = guesses[0].encoding
        sample = _show_sample(guesses[0], guesses)
        _log_once(f"{file.location}: is read as {encoding} ({sample!r}); another: --encoding NAME")
        return encoding
    place = f"{file.location}:{scan.line}"
    if not guesses:
        problem = "is not UTF-8, and no usual encoding fits"
        raise InputError(place, problem, hint="is it a text file? name it: --encoding NAME")
    samples = [
        f"{guess.encoding} reads {_show_sample(guess, guesses)!r}"
        for guess in guesses[:SHOWN_GUESSES]
    ]
    raise InputError(
        place,
        f"is not UTF-8, and its encoding is not certain: {', '.join(samples)}",
        hint=f"name the right one: --encoding {guesses[0].encoding} "
        f"(in a recipe encoding: {guesses[0].encoding})",
    )


def _rank_encodings(evidence: bytes) -> list[Guess]:
    """Return the encodings that decode the evidence with a score above 0, the likeliest first.

    Of encodings that give the same text, only the first of ``ENCODINGS`` is returned, with the
    highest score of them. The score is chardet's confidence times (1 - share of unlikely
    characters) squared.
    """
    import chardet

    names = [codecs.lookup(name).name for name in ENCODINGS]
    guesses: dict[str, Guess] = {}
    for detection in chardet.detect_all(
        evidence, ignore_threshold=True, include_encodings=ENCODINGS, max_bytes=SAMPLE_BYTES
    ):
        try:
            encoding = codecs.lookup(str(detection["encoding"])).name
            text = evidence.decode(encoding)
        except (LookupError, UnicodeDecodeError):
            continue
        score = float(detection["confidence"]) * (1 - _measure_unlikely_share(text)) ** 2
        guess = guesses.get(text)
        if guess is not None and names.index(encoding) < names.index(guess.encoding):
            guesses[text] = guess._replace(encoding=encoding)
        elif guess is None and score > 0:
            guesses[text] = Guess(encoding, text, score)
    return sorted(guesses.values(), key=lambda guess: -guess.score)


def _measure_unlikely_share(text: str) -> float:
    """Return the share of unlikely characters among those beyond ASCII: 0 to 1; 0 without any.

    A wrong encoding shows control and unassigned characters, letters of another alphabet inside a
    word, capitals behind small letters, symbols, and punctuation between two letters. The signs of
    ``_WORD_SIGNS`` are likely anywhere.
    """
    characters = 0
    unlikely = 0
    for previous, character, following in zip(f" {text}", text, f"{text[1:]} ", strict=False):
        if character.isascii():
            continue
        characters += 1
        category = unicodedata.category(character)
        neighbours = [letter for letter in (previous, following) if letter.isalpha()]
        if category in _UNWRITTEN:
            unlikely += 1
        elif character.isalpha():
            # the first word of a letter's Unicode name, e.g. LATIN
            names = [unicodedata.name(letter, "?") for letter in (character, *neighbours)]
            scripts = {name.partition(" ")[0] for name in names}
            is_mixed = len(scripts) > 1 and bool(scripts & _ALPHABETS)
            is_capital_inside = character.isupper() and previous.islower()
            unlikely += is_mixed or is_capital_inside
        # symbols, punctuation and separators, by the first letter of the category
        elif category[0] in "SPZ" and character not in _WORD_SIGNS:
            unlikely += len(neighbours) == 2 or category[0] == "S"
    return unlikely / max(1, characters)


def _show_sample(guess: Guess, guesses: Sequence[Guess]) -> str:
    """Return the first line that ``guess`` reads differently from a rival, else its first line.

    The rivals are the first ``SHOWN_GUESSES`` of ``guesses``; the line is cut to ``SHOWN_TEXT``.
    """
    rivals = [rival.text.splitlines() for rival in guesses[:SHOWN_GUESSES] if rival != guess]
    lines = guess.text.splitlines()
    for number, line in enumerate(lines):
        # The slice is empty where a rival's text has fewer lines.
        if any(rival[number : number + 1] != [line] for rival in rivals):
            return join_lines(line, SHOWN_TEXT)
    return join_lines("".join(lines[:1]), SHOWN_TEXT)


def _iter_lines(stream: IO[bytes], file: UserFile) -> Iterator[str]:
    """Yield the lines of a text file, each with its line break, without a byte-order mark.

    ``stream``: the file's unpacked bytes. Raises InputError for a file that is not a text, for an
    uncertain or unknown encoding, for a byte that the encoding lacks, and for a line of more than
    ``LONGEST_LINE`` characters.
    """
    start = stream.peek(4)  # type: ignore[attr-defined]
    for signature, hint in SIGNATURES.items():
        if start.startswith(signature):
            raise InputError(file.location, "is not a text file", hint=f"it is {hint}")
    encoding = _choose_encoding(file)
    lines = io.TextIOWrapper(stream, encoding=encoding, newline="")
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(LONGEST_LINE + 1)
        except UnicodeError:
            problem = f"from this line on some bytes are not {encoding}"
            hint = "name the encoding of the whole file: --encoding NAME"
            raise InputError(f"{file.location}:{number}", problem, hint=hint) from None
        if len(line) > LONGEST_LINE:
            allowed = f"at most {LONGEST_LINE:,} characters"
            raise InputError(f"{file.location}:{number}", "is too long a line", allowed=allowed)
        if not line:
            return
        yield line.removeprefix(MARK) if number == 1 else line


# Readers


def _read_txt(stream: IO[bytes], file: UserFile) -> Iterator[Any]:
    """Yield the header, then one text for each line of a .txt file.

    Raises InputError for a file without lines, and for a table: all lines of the sample but blank
    ones have the same number of tabs, at least one. A file of one line is no table.
    """
    lines = _iter_lines(stream, file)
    sample = list(islice(lines, SAMPLE_LINES))
    if not sample:
        raise InputError(file.location, "is empty", allowed="at least one text")
    tabs = {line.count("\t") for line in sample if line.strip()}
    if len(sample) > 1 and len(tabs) == 1 and min(tabs) > 0:
        problem = f"has {min(tabs) + 1} columns, separated by tabs, in every line"
        hint = "rename it .tsv, with the columns' names in its first line"
        raise InputError(file.location, problem, allowed="a text a line", hint=hint)
    yield Header(["text"])
    for number, line in enumerate(chain(sample, lines), start=1):
        yield number, {"text": line.rstrip("\r\n")}


@dataclass(frozen=True)
class Dialect:
    """The form of a table: delimiter, whether cells may be quoted, number of lines above header."""

    delimiter: str
    is_quoted: bool
    skipped_lines: int

    def make_reader(self, lines: Iterator[str]) -> Any:
        """Return csv's reader of the lines."""
        options: dict[str, Any] = {} if self.is_quoted else {"quoting": csv.QUOTE_NONE}
        return csv.reader(lines, delimiter=self.delimiter, strict=True, **options)


def _read_table(stream: IO[bytes], file: UserFile, expected: str) -> Iterator[Any]:
    """Yield the header and the rows of a .csv or .tsv file.

    A row has the line where it begins as number. In a .tsv file with tabs a quotation mark is text.
    Blank lines are skipped, but in a .tsv file of one column each is an empty text. Raises
    InputError for a file without lines or with blank lines alone, for a column name that occurs
    twice, for a row with another number of cells than the header, and for quotation marks that do
    not close.

    expected: the delimiter that belongs to the suffix of the file's name.
    """
    lines = _iter_lines(stream, file)
    sample = list(islice(lines, SAMPLE_LINES))
    dialect = _detect_dialect(sample, expected, file.location)
    skipped = dialect.skipped_lines
    reader = dialect.make_reader(chain(sample[skipped:], lines))

    # ``start``: the line where the next row begins
    start = skipped + 1
    try:
        names = _name_columns(next(reader, []), f"{file.location}:{start}")
        if not names:
            raise InputError(file.location, "holds no text", allowed="at least one text")
        decimal_marks: dict[str, DecimalMark] = {",": "point", ";": "comma"}
        yield Header(names, decimal_marks.get(dialect.delimiter, "either"))
        start = skipped + reader.line_num + 1
        for cells in reader:
            # csv gives no cells for a blank line.
            if not cells and not dialect.is_quoted and len(names) == 1:
                cells = [""]
            if cells:
                if len(cells) != len(names):
                    raise _make_row_error(f"{file.location}:{start}", cells, names, dialect)
                yield start, dict(zip(names, cells, strict=True))
            start = skipped + reader.line_num + 1
    except csv.Error as error:
        problem = f"its quotation marks do not close ({error})"
        hint = 'double a quotation mark inside a text: ""'
        raise InputError(f"{file.location}:{start}", problem, hint=hint) from None


def _make_row_error(
    place: str, cells: Sequence[str], names: Sequence[str], dialect: Dialect
) -> InputError:
    """Make the error for a row with more or fewer cells than the header. ``place``: FILE:LINE."""
    delimiter = dialect.delimiter
    hint = None
    if dialect.is_quoted:
        hint = f"a text with {delimiter!r} stands between quotation marks"
    if len(cells) < len(names):
        hint = f"write {delimiter!r} for each empty cell, or remove the row"
    return InputError(place, f"has {len(cells)} columns", allowed=str(len(names)), hint=hint)


def _detect_dialect(sample: Sequence[str], expected: str, location: object) -> Dialect:
    """Detect the form of a table by its first lines; log skipped lines and another delimiter.

    A first line ``sep=;`` names the delimiter. Lines above the header that are blank or begin with
    ``#`` are skipped. ``expected``: the usual delimiter of the file's kind.
    """
    # the lines above the header; Excel writes sep=; into the first line
    first_line = "".join(sample[:1])
    separator = re.fullmatch(r'"?sep=([^"\r\n])"?\s*', first_line)
    first = 1 if separator else 0
    skipped = first
    while skipped < len(sample) - 1 and _is_above_header(sample[skipped], sample[skipped + 1]):
        skipped += 1
    if skipped > first:
        _log_once(f"{location}: {skipped} first lines are skipped: blank, or beginning with #")

    # the delimiter
    delimiter = separator[1] if separator else _detect_delimiter(sample[skipped:], expected)
    if delimiter != expected:
        _log_once(f"{location}: columns are separated by {delimiter!r}")
    return Dialect(delimiter, _can_be_quoted(delimiter, expected), skipped)


def _can_be_quoted(delimiter: str, expected: str) -> bool:
    """Whether cells may stand in quotation marks: not in a .tsv file with tabs."""
    return delimiter != "\t" or expected != "\t"


def _is_above_header(line: str, next_line: str) -> bool:
    """Return whether a line is blank, or a comment.

    A comment begins with ``#``. A line that has one of ``DELIMITERS`` as often as the next line is
    a header, even if it begins with ``#``.
    """
    if not line.strip():
        return True
    counts = [(line.count(mark), next_line.count(mark)) for mark in DELIMITERS]
    # A header may begin with #, too: it has as many cells as its first row.
    is_header = any(count == next_count > 0 for count, next_count in counts)
    return line.startswith("#") and not is_header


def _detect_delimiter(sample: Sequence[str], expected: str) -> str:
    """Return the delimiter by which all sampled rows have as many cells as the header.

    Where several of the header's ``DELIMITERS`` fit, or none does, clevercsv chooses one of them.
    Where the header has none, one of ``RARE_DELIMITERS`` is taken only if it alone fits. Otherwise,
    and where the header has no delimiter but ``expected``, the result is ``expected``.

    ``sample``: the lines from the header on. ``expected``: the usual delimiter of the file's kind.
    """
    header = "".join(sample[:1])
    usual = [delimiter for delimiter in DELIMITERS if delimiter in header]
    candidates = usual or [delimiter for delimiter in RARE_DELIMITERS if delimiter in header]
    if not candidates or candidates == [expected]:
        return expected
    fitting = [delimiter for delimiter in candidates if _is_fitting(sample, delimiter, expected)]
    if len(fitting) == 1:
        return fitting[0]
    if not usual:
        return expected
    return _sniff_delimiter(sample, fitting or candidates, expected)


def _sniff_delimiter(sample: Sequence[str], choices: Sequence[str], expected: str) -> str:
    """Return the delimiter that clevercsv chooses among ``choices``.

    Where it finds none: ``expected`` if it is among ``choices``, else the first of them.
    """
    import clevercsv  # a third of a second, which most files do not need

    text = "".join(sample)[:SAMPLE_CHARACTERS]
    try:
        dialect = clevercsv.Sniffer().sniff(text, delimiters=choices)
    except clevercsv.Error:  # no table
        dialect = None
    if dialect is not None and dialect.delimiter:
        return str(dialect.delimiter)
    return expected if expected in choices else choices[0]


def _is_fitting(sample: Sequence[str], delimiter: str, expected: str) -> bool:
    """Return whether a delimiter gives all sampled rows as many cells as the header.

    False for a header alone, and for a whole file with quotation marks that do not close. A last
    row that the end of the sample cuts inside its quotation marks does not count.
    """
    dialect = Dialect(delimiter, _can_be_quoted(delimiter, expected), 0)
    rows: list[list[str]] = []
    try:
        for cells in dialect.make_reader(iter(sample)):
            if cells:
                rows.append(cells)
    # The sample cuts a quoted cell. If it is the whole file, the marks do not close.
    except csv.Error:
        if len(sample) < SAMPLE_LINES:
            return False
    return len(rows) > 1 and len({len(cells) for cells in rows}) == 1


def _name_columns(cells: Sequence[Any], location: object) -> list[str]:
    """Return the names of columns from a header's cells, each on one line.

    An unnamed column is called ``column 3`` by its number from 1. Raises InputError for a name that
    occurs twice.
    """
    names = []
    for number, cell in enumerate(cells, start=1):
        name = "" if cell is None else " ".join(str(cell).splitlines()).strip()
        names.append(name or f"column {number}")
    return _require_distinct(names, location)


def _require_distinct(names: list[str], location: object) -> list[str]:
    """Return ``names`` unchanged. Raises InputError for a name that occurs twice."""
    repeated = find_repeated(names)
    if repeated is not None:
        problem = f"the column {repeated!r} stands twice"
        raise InputError(location, problem, hint="rename or remove one of them")
    return names


def _iter_objects(values: Iterator[tuple[int, Any]], file: UserFile) -> Iterator[Any]:
    """Yield the header (all keys of the first JSON objects), then number and object of each row.

    The first ``KEY_ROWS`` objects are read for the header. While a column of the caller is missing,
    more are read, up to ``MOST_KEY_ROWS``. ``values``: number and JSON value of each row. Raises
    InputError for a value that is not an object, and when ``values`` is empty.
    """
    head: list[tuple[int, Row]] = []
    keys: dict[str, None] = {}
    for number, value in values:
        head.append((number, _require_object(value, f"{file.location}:{number}")))
        keys.update(dict.fromkeys(value))
        has_columns = keys.keys() >= set(file.columns)
        if len(head) >= (KEY_ROWS if has_columns else MOST_KEY_ROWS):
            break
    if not head:
        raise InputError(file.location, "holds no object", allowed="at least one text")
    yield Header(list(keys))
    yield from head
    for number, value in values:
        yield number, _require_object(value, f"{file.location}:{number}")


def _require_object(value: Any, place: str) -> Row:
    """Return a JSON object. Raises InputError naming ``place`` for any other value."""
    if not isinstance(value, dict):
        hint = "save texts without columns as .txt, one a line" if isinstance(value, str) else None
        raise InputError(place, "is not a JSON object", hint=hint)
    return value


def _parse_json(text: str, location: str, hint: str | None = None) -> Any:
    """Parse one JSON value.

    Raises InputError with ``hint`` for a text that is not JSON or nested too deep, and InputError
    for an object with a key that occurs twice. The error names ``location``. For a text that is
    not JSON, the number of the faulty line follows, except for line 1.
    """

    def make_object(pairs: list[tuple[str, Any]]) -> Row:
        """Make an object of distinct keys."""
        _require_distinct([name for name, _ in pairs], location)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=make_object)
    # ValueError: no JSON, or a number of thousands of digits
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        if line > 1:
            location = f"{location}:{line}"
        problem = f"is not JSON: {getattr(error, 'msg', None) or error}"
        raise InputError(location, problem, hint=hint) from None


def _iter_json_lines(lines: Iterator[str], location: object) -> Iterator[tuple[int, Any]]:
    # Yields (number from 1, JSON value) of every line that is not blank. Raises InputError for a
    # line that is not one JSON value.
    for number, line in enumerate(lines, start=1):
        if line.strip():
            hint = "write an object a line; an array or an indented object is a .json file"
            yield number, _parse_json(line.rstrip("\r\n"), f"{location}:{number}", hint)


def _read_jsonl(stream: IO[bytes], file: UserFile) -> Iterator[Any]:
    lines = _iter_lines(stream, file)
    yield from _iter_objects(_iter_json_lines(lines, file.location), file)


def _read_json(stream: IO[bytes], file: UserFile) -> Iterator[Any]:
    """Yield the header and the rows of a JSON array of objects (``_find_json_rows``).

    A file whose first line is a whole object, with more lines below, is read as JSON Lines. Raises
    InputError for other content, and for an array of more than ``LARGEST`` characters.
    """
    lines = _iter_lines(stream, file)
    head = list(islice(lines, 2))
    lines = chain(head, lines)
    if len(head) == 2 and _is_json_object(head[0]):
        yield from _iter_objects(_iter_json_lines(lines, file.location), file)
        return

    # An array is read into memory, and a small .gz may hold gigabytes
    text = io.StringIO()
    for line in lines:
        text.write(line)
        if text.tell() > LARGEST:
            hint = "save it as .jsonl, an object a line"
            raise InputError(file.location, "is too large a JSON array", hint=hint)
    value = _parse_json(text.getvalue(), str(file.location))
    yield from _iter_objects(enumerate(_find_json_rows(value, file.location), start=1), file)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _find_json_rows(value: Any, location: object) -> list[Any]:
    """Return the rows of a JSON value.

    The rows are the items of an array, or of the only array of objects in an object. An object
    without such an array is one row. Raises InputError for an object with several arrays of
    objects, for an object whose values are all lists or objects (columns, as pandas writes them),
    and for any other value.
    """
    if isinstance(value, list):
        return value
    hint = "save an array of objects, or .jsonl with an object a line"
    if not isinstance(value, dict):
        raise InputError(location, "is not a JSON array of objects", hint=hint)
    arrays = [
        key
        for key, item in value.items()
        if isinstance(item, list) and item and all(isinstance(entry, dict) for entry in item)
    ]
    if len(arrays) == 1:
        _log_once(f"{location}: the rows under {arrays[0]!r} are read")
        return list(value[arrays[0]])
    if arrays:
        problem = f"holds several arrays of objects: {join_names(arrays)}"
        raise InputError(location, problem, hint=f"{hint}, of one of them")
    if value and all(isinstance(item, list | dict) for item in value.values()):
        problem = f"holds columns ({join_names(value)}), not rows"
        hint += "; pandas: df.to_json(FILE, orient='records')"
        raise InputError(location, problem, hint=hint)
    return [value]


def _read_parquet(stream: IO[bytes], file: UserFile) -> Iterator[Any]:
    """Yield the header of all columns, then each row with its number, from 1.

    The rows have the caller's columns alone. They have all columns when the caller names none or
    the file has none of the named columns. Raises InputError for a column name that occurs twice,
    and for a text of more than ``LONGEST_LINE`` bytes.
    """
    with pq.ParquetFile(stream) as table:
        schema = table.schema_arrow
    names = _require_distinct(schema.names, file.location)
    yield Header(names)
    columns = [name for name in names if name in file.columns] or names

    # Texts stay in dictionaries: two kilobytes of parquet can repeat a text to gigabytes.
    texts = [name for name in columns if _is_text(schema.field(name).type)]
    with pq.ParquetFile(stream, read_dictionary=texts) as table:
        number = 0
        for batch in table.iter_batches(batch_size=BATCH_ROWS, columns=columns):
            for rows in _unpack_batch(batch, file.location, number):
                yield from enumerate(rows, start=number + 1)
                number += len(rows)


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _unpack_batch(batch: pa.RecordBatch, location: object, first: int) -> Iterator[list[Row]]:
    """Yield the rows of a batch, in order, in lists of at least one row.

    Each column has at most ``BATCH_BYTES`` of text in a list. Raises InputError for a text of more
    than ``LONGEST_LINE`` bytes. ``first``: the number of rows before the batch.
    """
    import pyarrow.compute as pc

    # the longest text in bytes, at least 1
    longest = 1
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and _is_text(column.type):
            longest = max(longest, pc.max(pc.binary_length(column.dictionary)).as_py() or 1)
    if longest > LONGEST_LINE:
        place = f"{location}: rows {first + 1:,} to {first + batch.num_rows:,}"
        problem = f"hold a text of {longest:,} bytes"
        raise InputError(place, problem, allowed=f"at most {LONGEST_LINE:,}")

    # as many rows at once as fit when all have the longest text
    step = max(1, BATCH_BYTES // longest)
    for start in range(0, batch.num_rows, step):
        part = batch.slice(start, step)
        columns = []
        for column in part.columns:
            is_packed = pa.types.is_dictionary(column.type)
            columns.append(column.dictionary_decode() if is_packed else column)
        yield pa.RecordBatch.from_arrays(columns, names=part.schema.names).to_pylist()


NumberedCells = Iterator[tuple[int, tuple[Any, ...]]]


def _read_xlsx(stream: IO[bytes], file: UserFile) -> Iterator[Any]:
    """Yield the header and the rows of the first sheet that holds cells.

    The header is the sheet's first row with cells. Raises what ``_open_sheet`` and ``_iter_sheet``
    raise, openpyxl's errors as InputError.
    """
    with _convert_workbook_errors(file.location):
        yield from _iter_sheet(_open_sheet(stream, file.location), file.location)


# what zipfile and openpyxl raise over damaged or encrypted workbooks; SyntaxError: of XML
_WORKBOOK_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, SyntaxError),
    *(KeyError, ValueError, IndexError, TypeError, OverflowError),
)


@contextmanager
def _convert_workbook_errors(location: object) -> Iterator[None]:
    """Convert the errors of openpyxl over a damaged workbook to InputError.

    An OSError of the disk passes unchanged.
    """
    try:
        yield
    except AttributeError as error:  # openpyxl's, of a chart sheet without a chart
        problem = "has a sheet that cannot be read, e.g. an empty chart"
        hint = "remove that sheet, or save the sheet of texts as .csv"
        raise InputError(location, problem, hint=hint) from error
    except (*_WORKBOOK_ERRORS, OSError) as error:
        # EINVAL: a damaged directory of the archive names a place before the file's start
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        problem = f"is not an Excel workbook, or damaged: {get_first_line(error)}"
        raise InputError(location, problem, hint="save it as .csv") from error


def _iter_sheet(rows: NumberedCells, location: object) -> Iterator[Any]:
    """Yield the header of a sheet, then each row with its number: column → value, None if empty.

    ``rows``: rows with cells by number from 1. Raises InputError for a column name that occurs
    twice, and for a cell beyond the named columns. The header is yielded after the first row is
    checked: where a title stands above the table, the row of names is wider than the title.
    """
    start, header = next(rows, (1, ()))
    while header and header[-1] is None:
        header = header[:-1]
    names = _name_columns(header, f"{location}:{start}")
    has_header = False
    for number, cells in rows:
        if any(cell is not None for cell in cells[len(names) :]):
            problem = "has a cell without a column name"
            hint = f"name every column in row {start}; rows above the header have to go"
            raise InputError(f"{location}:{number}", problem, allowed=join_names(names), hint=hint)
        if not has_header:
            yield Header(names)
        has_header = True
        yield number, dict(zip_longest(names, cells[: len(names)]))
    if not has_header:
        yield Header(names)


def _open_sheet(stream: IO[bytes], location: object) -> NumberedCells:
    """Open the first sheet with cells, and return its rows that hold a cell, by number from 1.

    Raises InputError for a workbook that is too large or has no cells; openpyxl's errors for a
    damaged workbook. The rows raise InputError for a formula whose value is not stored.
    """
    # openpyxl gives either the stored values or the formulas, so a workbook may be loaded twice.
    has_formulas = _has_formulas(stream, location)
    sheets = _load_sheets(stream, with_values=True)
    formula_sheets = _load_sheets(stream, with_values=False) if has_formulas else []

    # indices of the sheets with cells, of which the first is read
    filled = [number for number, sheet in enumerate(sheets) if any(_iter_cells(sheet))]
    if not filled:
        raise InputError(location, "has no sheet with cells", allowed="at least one text")
    sheet = sheets[filled[0]]
    titles = [sheets[number].title for number in filled[1:]]
    note = "".join(f", not {title}" for title in titles)
    _log_once(f"{location}: the sheet {sheet.title!r} is read{note}")
    if formula_sheets:
        return _iter_stored_cells(sheet, formula_sheets[filled[0]], location)
    return _iter_cells(sheet)


def _has_formulas(stream: IO[bytes], location: object) -> bool:
    """Return whether a sheet of a workbook may have formulas.

    Raises InputError for a workbook of more than ``LARGEST`` bytes, unpacked.
    """
    with zipfile.ZipFile(stream) as parts:
        if sum(part.file_size for part in parts.infolist()) > LARGEST:
            raise InputError(location, "is too large a workbook", hint="save the sheet as .csv")
        names = [name for name in parts.namelist() if name.startswith("xl/worksheets/sheet")]
        return any(b"<f" in parts.read(name) for name in names)


def _load_sheets(stream: IO[bytes], with_values: bool) -> list[Any]:
    """Load the sheets of a workbook. ``with_values``: stored values in place of formulas."""
    from openpyxl import load_workbook

    sheets = list(load_workbook(stream, read_only=True, data_only=with_values).worksheets)
    for sheet in sheets:
        sheet.reset_dimensions()  # some programs store a wrong size, which would cut rows
    return sheets


def _iter_cells(sheet: Any) -> NumberedCells:
    """Yield the rows of a sheet that hold a cell, with their number."""
    for number, cells in enumerate(sheet.iter_rows(values_only=True), start=1):
        if any(cell is not None for cell in cells):
            yield number, cells


def _iter_stored_cells(sheet: Any, formula_sheet: Any, location: object) -> NumberedCells:
    """Yield the rows of a sheet that hold a value, with their number from 1.

    ``sheet`` has the stored values, ``formula_sheet`` the same sheet's formulas. Raises InputError
    for a formula whose value is not stored: a program wrote it, and no spreadsheet has computed it.
    """
    values = enumerate(sheet.iter_rows(values_only=True), start=1)
    formulas = formula_sheet.iter_rows(values_only=True)
    for (number, cells), formula_cells in zip(values, formulas, strict=True):
        for cell, formula in zip_longest(cells, formula_cells):
            if cell is None and isinstance(formula, str) and formula.startswith("="):
                problem = (
                    f"the value of the formula {join_lines(formula, SHOWN_TEXT)} is not stored"
                )
                hint = "open the file in a spreadsheet program and save it, or save it as .csv"
                raise InputError(f"{location}:{number}", problem, hint=hint)
        if any(cell is not None for cell in cells):
            yield number, cells


READERS: dict[str, Callable[[IO[bytes], UserFile], Iterator[Any]]] = {
    ".txt": _read_txt,
    ".tsv": partial(_read_table, expected="\t"),
    ".csv": partial(_read_table, expected=","),
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".xlsx": _read_xlsx,
}
