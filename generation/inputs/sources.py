"""Source sentences: (source id, text) from a file or a pinned Hub dataset, streamed in order, each text once."""

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generation.inputs.row_seeds import fraction
from hub.client.connection import is_wrong, reading
from hub.client.offline import commit_of, prepared
from hub.contract.recipe import QUOTE, DatasetRecipe, Source
from hub.contract.schema import (
    CONTROL_CHARACTERS,
    CONTROL_TOKEN,
    DUPLICATE,
    EMPTY,
    LENGTH,
    LINE_BREAK,
    NOT_UNICODE,
    QUOTATION_MARK,
    TOO_LONG,
)
from hub.contract.shards import reading_rows
from hub.errors import InputError, RunError, did_you_mean
from hub.text_files import MARK, as_text, is_blank, open_rows, require_kind
from hub.untrusted import check_dataset_card, first_line, one_line

Columns = tuple[str, ...]
Cells = tuple[str, ...]


def file_rows(path: Path, columns: Columns, place: str) -> Iterator[Cells]:
    """The cells of ``columns`` in every row of a file (``hub.text_files``), as texts; a .txt file has no columns.

    Raises InputError naming ``place`` for what ``open_rows`` refuses, and for a cell that holds no text.
    """
    is_plain = require_kind(path, place) == ".txt"
    if is_plain and columns:
        raise InputError(f"{place}: columns {columns}", "a .txt file has no columns", hint="remove source.columns")
    names, rows = open_rows(path, place, columns)
    wanted = ("text",) if is_plain else require_columns(place, columns, names)
    for number, row in rows:
        if not row.keys() >= {*wanted}:  # of JSON
            require_columns(f"{place}:{number}", wanted, list(row))
        yield tuple(as_text(row[name], f"{place}:{number}", name) for name in wanted)


def require_columns(place: object, wanted: Columns, columns: list[str]) -> Columns:
    """``wanted``, if all are there. Raises InputError naming the columns that are."""
    if not wanted:
        raise InputError(place, "source.columns is needed for this kind of source", allowed=", ".join(columns))
    for column in wanted:
        if column not in columns:
            allowed, hint = ", ".join(columns), did_you_mean(column, columns)
            raise InputError(f"{place}: column {column!r}", "not in the source", allowed=allowed, hint=hint)
    return wanted


CountTokens = Callable[[str], int]
IsControl = Callable[[str], bool]  # prompts.TokenCounter.is_control
Lack = Callable[[str], int]  # tokens of a source sentence beyond the context: prompts.ContextRoom.lack
MANY, SHOWN = 0.2, 100  # share of passed-over rows that is a warning; characters of a text that is shown
LENGTH_HINT = "the recipe's premise_tokens bound the length in the model's tokens"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters but the tab; half a surrogate pair; embeddings, overrides and isolates of writing direction, with
# which a text reads other than it is stored; the replacement character, which stands where something could not be read.
_UNWANTED = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffd]")


@dataclass(frozen=True)
class SourceSentence:
    """A source sentence and its row number in the source, from 0.

    With several splits the split stands before it, with several columns the column after: ``test-000012-sentence2``.
    """

    source_id: str
    text: str


class SeenTexts:
    """A set of texts in a private temporary file, as BLAKE2 digests of 16 bytes: 23 MB of disk for a million texts."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("")  # SQLite's name for a temporary database on disk
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-8192"):
            self._table.execute(f"PRAGMA {setting}")
        self._table.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, text: str) -> bool:
        """Whether ``text`` is new. Raises RunError when the disk of temporary files is full."""
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        try:
            return self._table.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,)).rowcount == 1
        except sqlite3.OperationalError as error:
            hint = "free some space there, or set TMPDIR to a larger disk, and run the same command again"
            raise RunError("the folder of temporary files", str(error), hint=hint) from error


class GivenTexts:
    """The usable source sentences of a recipe, streamed; ``skipped`` counts the other rows by reason.

    At most ``source.limit`` texts are given. A hash of (seed, source id) chooses ``source.share`` of all. ``lack``: how
    much too long a text is for the model; without it, no text is. ``is_control``: whether a text holds a control token.
    """

    def __init__(
        self,
        recipe: DatasetRecipe,
        count_tokens: CountTokens,
        lack: Lack = lambda _: 0,
        is_control: IsControl = lambda _: False,
    ):
        self._is_control = is_control
        self.source, self.seed, self.skipped = recipe.source, recipe.seed, Counter[str]()
        self._length, self._count_tokens, self._lack = recipe.premise_tokens, count_tokens, lack
        self._chosen = frozenset(recipe.postprocess.reject)

    def __iter__(self) -> Iterator[SourceSentence]:
        """One pass over the source.

        Raises InputError when the source is missing, empty, not UTF-8, lacks a named column, or has no usable text; or
        when one is too long for the model, and the recipe does not pass such texts over.
        """
        seen, given = SeenTexts(), 0
        for source_id, value in _numbered_texts(self.source):
            if self.source.share < 1 and fraction(self.seed, "source", source_id) >= self.source.share:
                continue
            text = value.strip().removeprefix(MARK).strip()
            reason = self._problem(text) or (None if seen.add(text) else DUPLICATE)
            reason = reason or self._too_long(source_id, text)
            if reason:
                self.skipped[reason] += 1
                continue
            given += 1
            yield SourceSentence(source_id, text)
            if given == self.source.limit:
                return
        if not given:
            place, hint = self.source.path or self.source.repo_id, f"passed over: {dict(self.skipped)}"
            raise InputError(place, "has no usable source sentence", allowed="at least one", hint=hint)

    def reason(self, text: str) -> str | None:
        """Why a stripped text is passed over, or None; repeated texts apart."""
        return self._problem(text) or self._too_long("", text)

    def _problem(self, text: str) -> str | None:
        if self.source.quotation_marks == "skip" and QUOTE in text:
            return QUOTATION_MARK
        found = text_problem(text, self._length, self._count_tokens)
        if found is None and self._is_control(text):
            return CONTROL_TOKEN
        if found is None and CONTROL_CHARACTERS in self._chosen and has_control_characters(text):
            return CONTROL_CHARACTERS
        return found

    def _too_long(self, source_id: str, text: str) -> str | None:
        lack = self._lack(text)
        if not lack or TOO_LONG in self._chosen:
            return TOO_LONG if lack else None
        place = f"{self.source.path or self.source.repo_id}: row {source_id} (rows count from 0)"
        problem = (
            f"a text of {len(text):,} characters; its prompt and the text to write are {lack:,} tokens longer than"
        )
        hint = f"pass such texts over: add {TOO_LONG} to postprocess.reject, or set premise_tokens"
        raise InputError(place, f"{problem} the model's context", hint=hint)


def what_was_read(place: object, columns: Columns, given: int, skipped: Mapping[str, int], first: Columns) -> list[str]:
    """What was read of a source, as lines: place, columns, rows, passed-over rows by reason, the first three texts.

    A warning follows where more than ``MANY`` of the rows are passed over.
    """
    rows = given + sum(skipped.values())
    lines = [f"read {place}{', column ' * bool(columns)}{', '.join(columns)}: {rows:,} rows, {given:,} usable"]
    lines[0] += f"; passed over: {passed_over(given, skipped)}"
    lines += [f'  "{one_line(text, SHOWN)}"' for text in first[:3]]
    if rows - given > MANY * rows:
        hint = f"; {LENGTH_HINT}" if LENGTH in skipped else ""
        lines.append(f"warning: {place}: rows are passed over: {passed_over(given, skipped)}{hint}")
    return lines


def passed_over(given: int, skipped: Mapping[str, int]) -> str:
    """Passed-over rows by reason, and their share of all."""
    listed = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count)
    over = sum(skipped.values())
    return f"{listed} ({over / (given + over):.0%} of the rows)" if listed else "none"


def text_problem(text: str, length: tuple[int, int] | None, count_tokens: CountTokens) -> str | None:
    """Why a text cannot be a source sentence, or None."""
    if is_blank(text):
        return EMPTY
    if len(text.splitlines()) > 1:
        return LINE_BREAK
    if _SURROGATE.search(text):
        return NOT_UNICODE
    if length and not length[0] <= count_tokens(text) <= length[1]:
        return LENGTH
    return None


def has_control_characters(text: str) -> bool:
    """Whether a text has a control character other than a tab, a directional override, or U+FFFD."""
    return _UNWANTED.search(text) is not None


def _numbered_texts(source: Source) -> Iterator[tuple[str, str]]:
    """(source id, text) of every cell, row by row, the columns of a row side by side."""
    for split, rows in source_rows(source):
        for number, cells in enumerate(rows):
            place = f"{split}-{number:06d}" if split else f"{number:06d}"
            columns = [f"-{column}" for column in source.columns] if len(cells) > 1 else [""]
            yield from ((place + column, cell) for column, cell in zip(columns, cells, strict=True))


def source_rows(source: Source) -> Iterator[tuple[str | None, Iterator[Cells]]]:
    """(split, rows) of a source, one split after the other; the name is None where there is only one."""
    return SOURCES[source.kind](source)


def local_files(source: Source) -> list[Path]:
    """The local file of a source, if it is one."""
    return [Path(source.path or "")] if "path" in source.facts.needs else []


def require_file(source: Source) -> None:
    """Raise InputError when the file that a source names is missing, or of a kind that no reader takes."""
    for path in local_files(source):
        require_kind(path, str(path))
        if not path.is_file():
            raise InputError(path, "no such file", hint="check source.path in the recipe")


def _local_rows(source: Source) -> Iterator[tuple[str | None, Iterator[Cells]]]:
    require_file(source)
    yield None, file_rows(path := Path(source.path or ""), source.columns, str(path))


def _hub_rows(source: Source) -> Iterator[tuple[str | None, Iterator[Cells]]]:
    """The splits of a Hub dataset, or one file of its repository."""
    if source.path is None:
        for split in source.splits:
            yield (split if len(source.splits) > 1 else None), _split_rows(source, split)
        return
    from huggingface_hub import hf_hub_download

    with _reading(source):
        pin = commit_of(source.repo_id or "", source.revision)
        found = hf_hub_download(source.repo_id or "", source.path, repo_type="dataset", revision=pin)
    yield None, file_rows(Path(found), source.columns, f"{source.repo_id}/{source.path}")


@contextmanager
def _reading(source: Source) -> Iterator[None]:
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with reading(f"dataset {source.repo_id}", source.revision):
        try:
            yield
        except RemoteEntryNotFoundError:
            place = f"dataset {source.repo_id}: {source.path}"
            raise InputError(place, "no such file at this revision", hint="check source.path in the recipe") from None


def _split_rows(source: Source, split: str) -> Iterator[Cells]:
    from datasets import load_dataset  # which takes seconds to import
    from huggingface_hub import constants

    place = f"source {source.repo_id}"
    with _reading(source), reading_rows(place, hint=None):
        pin = commit_of(source.repo_id or "", source.revision)
        check_dataset_card(source.repo_id or "", pin)
        try:
            options: dict[str, Any] = {"split": split, "streaming": True}
            if constants.HF_HUB_OFFLINE:
                rows = prepared(source.repo_id or "", pin, source.config, **options)
            else:
                rows = load_dataset(source.repo_id, source.config, revision=pin, **options)
        except ValueError as error:  # unknown config or split: the message lists those that are there
            if is_wrong(error):
                raise
            raise InputError(place, first_line(error)) from error
        except RuntimeError as error:  # it is made by a script, which nobody runs any more
            raise InputError(place, f"cannot be read: {first_line(error)}") from error
        names = require_columns(source.repo_id, source.columns, list(rows.column_names or []))
        for row in rows:
            yield tuple(as_text(row[name], place, name) for name in names)


SOURCES: dict[str, Callable[[Source], Iterator[tuple[str | None, Iterator[Cells]]]]] = {
    "file": _local_rows,
    "hub": _hub_rows,
    "model": lambda _: iter(()),  # the model writes the sentences
}
