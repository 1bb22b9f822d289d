"""Given first texts: (source id, text) from a file or a pinned Hub dataset, in order, each text once."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import load_dataset
from huggingface_hub import HfApi

from hub.errors import InputError, nearest
from hub.recipe import QUOTE, DatasetRecipe, Source
from hub.remote import reading

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class FirstText:
    """A first text and where it came from (``source_id``: its row number in the source, from 0)."""

    source_id: str
    text: str


def given_texts(recipe: DatasetRecipe, count_tokens: CountTokens) -> tuple[list[FirstText], dict[str, int]]:
    """The usable first texts of a recipe and, by reason, how many rows were passed over.

    Reasons: empty, duplicate, quotation_mark (it would close the prompt's own), line_break, length
    (outside ``premise_tokens``).

    Raises:
        InputError: the source is missing, empty, not UTF-8, lacks the named column, or has no usable text.
    """
    source, kept, skipped = recipe.source, list[FirstText](), Counter[str]()
    seen: set[str] = set()
    for row, value in enumerate(_rows(source)):
        text = value.strip()
        reason = _problem(text, seen, recipe.premise_tokens, count_tokens)
        if reason:
            skipped[reason] += 1
            continue
        seen.add(text)
        kept.append(FirstText(f"{row:06d}", text))
        if len(kept) == source.limit:
            break
    if not kept:
        hint = f"passed over: {dict(skipped)}"
        raise InputError(source.path or source.repo_id, "has no usable first text", allowed="at least one", hint=hint)
    return kept, dict(sorted(skipped.items()))


def _problem(text: str, seen: set[str], length: tuple[int, int] | None, count_tokens: CountTokens) -> str | None:
    if not text:
        return "empty"
    if text in seen:
        return "duplicate"
    if QUOTE in text:
        return "quotation_mark"
    if len(text.splitlines()) > 1:
        return "line_break"
    if length and not length[0] <= count_tokens(text) <= length[1]:
        return "length"
    return None


def _rows(source: Source) -> Iterator[str]:
    if source.kind == "hub":
        return _hub_rows(source)
    path = Path(source.path or "")
    if path.suffix not in _READERS:
        raise InputError(path, f"unknown kind of file {path.suffix!r}", allowed=", ".join(_READERS))
    if not path.is_file():
        raise InputError(path, "no such file", hint="check source.path in the recipe")
    if path.stat().st_size == 0:
        raise InputError(path, "is empty", allowed="at least one text")
    return _checked_encoding(path, _READERS[path.suffix](path, (source.columns[0] if source.columns else None)))


def _checked_encoding(path: Path, rows: Iterator[str]) -> Iterator[str]:
    try:
        yield from rows
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 ({error.reason})", hint="save it as UTF-8") from error


def _require(path: object, column: str | None, columns: list[str]) -> str:
    """``column``, if it is there. Raises InputError naming the columns that are."""
    if column in columns:
        return str(column)
    guess = nearest(column or "", columns)
    raise InputError(
        f"{path}: column {column!r}",
        "not in the file" if column else "source.columns is needed for this kind of file",
        allowed=", ".join(columns),
        hint=f"did you mean {guess!r}?" if guess else None,
    )


def _txt_rows(path: Path, column: str | None) -> Iterator[str]:
    if column is not None:
        raise InputError(
            f"{path}: column {column!r}",
            "a .txt file has no columns",
            hint="remove source.columns",
        )
    with path.open(encoding="utf-8") as stream:
        yield from (line.rstrip("\n") for line in stream)


def _tsv_rows(path: Path, column: str | None) -> Iterator[str]:
    """Tab-separated with a header line, no quoting: a quotation mark is text."""
    with path.open(encoding="utf-8", newline="") as stream:
        header = stream.readline().rstrip("\r\n").split("\t")
        place = header.index(_require(path, column, header))
        for number, line in enumerate(stream, start=2):
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) != len(header):
                raise InputError(f"{path}:{number}", f"has {len(cells)} columns", allowed=str(len(header)))
            yield cells[place]


def _csv_rows(path: Path, column: str | None) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        name = _require(path, column, list(reader.fieldnames or []))
        for row in reader:
            yield row[name] or ""


def _jsonl_rows(path: Path, column: str | None) -> Iterator[str]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}:{number}", f"is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}:{number}", "is not a JSON object")
            yield str(row[_require(f"{path}:{number}", column, list(row))] or "")


def _parquet_rows(path: Path, column: str | None) -> Iterator[str]:
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(path, f"is not a parquet file: {error}") from error
    name = _require(path, column, file.schema_arrow.names)
    for batch in file.iter_batches(columns=[name]):
        yield from (str(value or "") for value in batch.column(0).to_pylist())


def _hub_rows(source: Source) -> Iterator[str]:
    with reading(f"dataset {source.repo_id}", source.revision):
        commit = HfApi().dataset_info(source.repo_id or "", revision=source.revision).sha
        try:
            rows = load_dataset(source.repo_id, source.config, revision=commit, split=source.splits[0], streaming=True)
        except ValueError as error:  # unknown config or split: the message lists those that are there
            raise InputError(f"source {source.repo_id}", str(error).splitlines()[0]) from error
        name = _require(source.repo_id, (source.columns[0] if source.columns else None), list(rows.column_names or []))
        for row in rows:
            yield str(row[name] or "")


_READERS = {
    ".txt": _txt_rows,
    ".tsv": _tsv_rows,
    ".csv": _csv_rows,
    ".jsonl": _jsonl_rows,
    ".parquet": _parquet_rows,
}
