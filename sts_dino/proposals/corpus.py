"""A corpus of first texts as it is: which column holds them, how long they are, in what language, what is unusable."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from generation.inputs.file_rows import READERS, file_rows, require_kind
from generation.inputs.sources import has_control_characters
from hub.contract.recipe import QUOTE
from hub.contract.sections.base import LANGUAGE
from hub.errors import InputError, did_you_mean
from hub.word_overlap import words

LOOKED_AT = 20_000  # rows: enough for a recipe's proposals, and read in seconds
LONGEST = 1_000  # characters of a text that could be a sentence
NAMES = ("text", "sentence", "sentence1", "content", "body", "title", "question", "review", "description")
MOST_WORDS_IN_NAME = 4  # of a column; a row of texts in the header's place has more


@dataclass(frozen=True)
class Profile:
    """What was seen in the first rows of a corpus.

    Counts are of rows; the unusable ones are counted once, by the first thing that is wrong with them. ``words`` are
    the 5th, 50th and 95th percentile of the usable texts' lengths, ``language`` the commonest one's code (ISO 639-1)
    and ``in_language`` the share of the usable texts in it.
    """

    column: str | None
    rows: int
    whole: bool
    usable: int
    empty: int
    broken: int
    overlong: int
    repeated: int
    quoted: int
    words: tuple[int, int, int]
    language: str
    in_language: float


@dataclass(frozen=True)
class Corpus:
    """A corpus that a recipe can be proposed for: what it is called, and the keys of ``source`` that say where it is.

    license: the one that it names itself, if it can be judged.
    """

    title: str
    source: Mapping[str, object]
    profile: Profile
    license: str | None = None


def profile(path: Path, column: str | None = None, language: str | None = None) -> Profile:
    """Read a .txt, .tsv, .csv, .jsonl or .parquet file and describe its texts.

    Raises InputError when there is no such file, it is of another kind or not UTF-8, the column is not there or not to
    be guessed, no text is usable, or ``language`` is no code.
    """
    if path.is_dir():
        raise InputError(path, "is a folder", allowed=f"a file of texts: {', '.join(READERS)}")
    if not path.is_file():
        raise InputError(path, "no such file", hint=f"looked in {Path.cwd()}; give a file of texts, one a row")
    require_kind(path, str(path))
    column = None if path.suffix == ".txt" else find_column(path, column)
    reader = file_rows(path, (column,) if column else (), str(path))
    return described(str(path), column, (cells[0] for cells in reader), language)


def described(place: str, column: str | None, cells: Iterator[str], language: str | None = None) -> Profile:
    """The profile of the first texts of a source. Raises InputError when none is usable or ``language`` is no code."""
    if language is not None and not re.fullmatch(LANGUAGE, language):
        raise InputError("--language", f"{language!r} is no code", allowed="ISO 639 in lower case, e.g. en, de, yue")
    reader = iter(cells)
    texts = [cell.strip() for cell in islice(reader, LOOKED_AT)]
    whole = next(reader, None) is None
    counts = dict.fromkeys(("empty", "broken", "overlong", "repeated"), 0)
    usable = list[str]()
    seen = set[str]()
    for text in texts:
        reason = _problem(text) or ("repeated" if text in seen else None)
        seen.add(text)
        if reason:
            counts[reason] += 1
        else:
            usable.append(text)
    if not usable:
        found = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
        raise InputError(
            place, f"has no usable text in its first {len(texts):,} rows ({found})", allowed="at least one"
        )
    lengths = sorted(len(words(text)) for text in usable)
    code, share = _language(usable, language)
    return Profile(
        column=column,
        rows=len(texts),
        whole=whole,
        usable=len(usable),
        **counts,
        quoted=sum(QUOTE in text for text in usable),
        words=tuple(lengths[int(part * (len(lengths) - 1))] for part in (0.05, 0.5, 0.95)),  # type: ignore[arg-type]
        language=code,
        in_language=share,
    )


def _problem(text: str) -> str | None:
    if not text:
        return "empty"
    if len(text) > LONGEST or len(text.splitlines()) > 1:
        return "overlong"
    return "broken" if has_control_characters(text) else None


def _language(texts: Sequence[str], given: str | None) -> tuple[str, float]:
    """The language of most texts, or the one that was given, and the share of texts that look like it."""
    import py3langid

    sample = texts[:: max(1, len(texts) // 300)]
    found = [str(py3langid.classify(text)[0]) for text in sample]
    code = given or max(sorted(set(found)), key=found.count)
    return code, found.count(code) / len(found)


def find_column(path: Path, asked: str | None) -> str:
    """The column of a file that holds its texts: ``column_of`` its first row."""
    first = _first_row(path)
    if asked is None and any(len(words(name)) > MOST_WORDS_IN_NAME for name in first):
        hint = "write the columns' names into a first row; or, where it is one, name the column of texts: --column NAME"
        raise InputError(path, f"has no header: its first row is {_shown(first)}", hint=hint)
    return column_of(str(path), first, asked)


def column_of(place: str, first: Mapping[str, object], asked: str | None) -> str:
    """The column that holds texts: the one asked for, one of a usual name, or the only one of texts.

    first: a row, by column. Raises InputError when the column is not there, or which it is is not clear.
    """
    if asked is not None:
        if asked not in first:
            hint = did_you_mean(asked, first)
            raise InputError(f"{place}: column {asked!r}", "not in the data", allowed=", ".join(first), hint=hint)
        return asked
    usual = [name for name in first if name.lower() in NAMES]
    usual.sort(key=lambda name: NAMES.index(name.lower()))
    of_texts = [name for name, value in first.items() if isinstance(value, str) and len(words(value)) > 2]
    candidates = usual[:1] or of_texts
    if len(candidates) != 1:
        problem = "which column holds the texts is not clear" if candidates else "no column seems to hold texts"
        raise InputError(place, problem, allowed=", ".join(first), hint="name it: --column NAME")
    return candidates[0]


def _shown(first: Mapping[str, object]) -> str:
    row = ", ".join(first)
    return row if len(row) <= 100 else f"{row[:100]}…"


def _first_row(path: Path) -> dict[str, object]:
    """The first row of a file by column. Raises InputError where there is none."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        from hub.row_errors import reading_rows

        with reading_rows(str(path)), pq.ParquetFile(path) as file:
            batch = next(file.iter_batches(batch_size=1), None)
            found = batch.to_pylist() if batch else []
            names = file.schema_arrow.names
    else:
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                names, found = _of_text(path, stream)
        except UnicodeDecodeError as error:
            raise InputError(path, f"is not UTF-8 ({error.reason})", hint="save it as UTF-8") from error
    if not found:
        raise InputError(path, "has no row", allowed="at least one text", hint=f"columns: {', '.join(names)}")
    return dict(found[0])


def _of_text(path: Path, stream: Iterator[str]) -> tuple[list[str], list[dict[str, object]]]:
    if path.suffix == ".jsonl":
        line = next(stream, "")
        try:
            row = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:1", f"is not JSON: {getattr(error, 'msg', None) or error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:1", "is not a JSON object")
        return list(row), [row] if row else []
    tabs = path.suffix == ".tsv"  # without quoting: a quotation mark is text
    rows = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.DictReader(stream)
    return list(rows.fieldnames or []), [dict(row) for row in islice(rows, 1)]
