"""Source sentences from a file or a pinned Hub dataset: streamed, in order, without repetition."""

import hashlib
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sts_dino.generation.inputs.row_seeds import draw_fraction
from sts_dino.hub.client.connection import convert_read_errors, is_wrong_answer
from sts_dino.hub.client.fetch import load_prepared, resolve_commit
from sts_dino.hub.contract.recipe import QUOTE, DatasetRecipe, Source
from sts_dino.hub.contract.schema import (
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
from sts_dino.hub.contract.shards import convert_reader_errors
from sts_dino.hub.errors import InputError, RunError, suggest_choice
from sts_dino.hub.text_files import (
    MARK,
    as_text,
    is_blank,
    join_names,
    open_rows,
    require_kind,
)
from sts_dino.hub.untrusted import check_dataset_card, get_first_line, join_lines

Columns = tuple[str, ...]
Cells = tuple[str, ...]


def read_file_rows(
    path: Path, columns: Columns, location: str, encoding: str | None = None
) -> Iterator[Cells]:
    """Yield the cells of ``columns`` in every row of a file, as texts.

    A row of a .txt file is a line and has one cell. A row that lacks a column has an empty text
    there.

    Args:
        path: the file.
        columns: names of columns; empty for a .txt file.
        location: the name of the file in errors.
        encoding: the encoding of a file that is not UTF-8; None: it is recognised.

    Raises InputError for columns of a .txt file, for another file without ``columns``, for a column
    that the file lacks, and for a cell that is no text or number (``as_text``). Raises InputError
    and OSError as ``sts_dino.hub.text_files.open_rows``.
    """
    is_plain = require_kind(path, location) == ".txt"
    if is_plain and columns:
        raise InputError(
            f"{location}: columns {columns}",
            "a .txt file has no columns",
            hint="leave the columns out, or give a file that has them, e.g. .tsv or .jsonl",
        )
    table = open_rows(path, location, columns, encoding)
    selected = ("text",) if is_plain else require_columns(location, columns, table.columns)
    for number, row in table.rows:
        row_location = f"{location}:{number}"
        yield tuple(as_text(row.get(column), row_location, column) for column in selected)


def require_columns(location: object, selected: Columns, columns: Sequence[str]) -> Columns:
    """Return the columns ``selected``, if all of them are among ``columns``.

    Raises InputError for a missing column and for an empty selection. The error names ``location``
    (the source) and ``columns`` (all columns of the source).
    """
    if not selected:
        raise InputError(
            location,
            "source.columns is needed for this kind of source",
            allowed=join_names(columns),
        )
    for column in selected:
        if column not in columns:
            raise InputError(
                f"{location}: column {column!r}",
                "not in the source",
                allowed=join_names(columns),
                hint=suggest_choice(column, columns),
            )
    return selected


CountTokens = Callable[[str], int]  # a text → its tokens
IsControl = Callable[[str], bool]  # a text → whether it holds a control token of the model
CountExcess = Callable[[str], int]  # a text → tokens beyond the model's context
WARNING_SHARE = 0.2  # of skipped rows: a larger share is a warning
SHOWN_CHARACTERS = 100  # of each sample text in the log
LENGTH_HINT = "the recipe's premise_tokens bound the length in the model's tokens"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters except the tab; half a surrogate pair; embeddings, overrides and isolates of
# writing direction, which show a text in another order than it is stored; U+FFFD, which replaces
# an undecodable byte.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffd]")


@dataclass(frozen=True)
class SourceSentence:
    """A source sentence and its id: the row number in the source, from 0.

    The id begins with the split where the source has several, and ends with the column where it has
    several: ``test-000012-sentence2``.
    """

    source_id: str
    text: str


class SeenTexts:
    """A set of texts on disk: their BLAKE2 digests of 16 bytes in a private temporary file.

    A million texts take 23 MB of disk, and hardly any memory.
    """

    def __init__(self) -> None:
        self._table = sqlite3.connect("")  # SQLite's name for a temporary database on disk
        # it need not survive a crash; a negative cache size is in KiB
        for setting in ("journal_mode=OFF", "synchronous=OFF", "cache_size=-8192"):
            self._table.execute(f"PRAGMA {setting}")
        self._table.execute("CREATE TABLE seen_texts (digest BLOB PRIMARY KEY) WITHOUT ROWID")

    def add(self, text: str) -> bool:
        """Add a text, and return whether it was not in the set before.

        Raises RunError when the temporary disk is full.
        """
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        try:
            cursor = self._table.execute("INSERT OR IGNORE INTO seen_texts VALUES (?)", (digest,))
        except sqlite3.OperationalError as error:
            raise RunError(
                "the folder of temporary files",
                str(error),
                hint="free some space there, or set TMPDIR to a larger disk, "
                "and run the same command again",
            ) from error
        return cursor.rowcount == 1


class SourceStream:
    """The usable source sentences of a recipe's source, at most ``source.limit``, as a stream.

    A hash of (seed, source id) chooses the share ``source.share`` of all texts. ``skipped`` counts
    the unusable texts among the chosen ones by reason, up to where the stream was read.

    Args:
        recipe: the dataset's recipe.
        count_tokens: counts the model's tokens of a text.
        count_excess: counts the tokens by which a text is too long for the model; without it, no
            text is too long.
        is_control: whether a text holds a control token.
    """

    def __init__(
        self,
        recipe: DatasetRecipe,
        count_tokens: CountTokens,
        count_excess: CountExcess = lambda _: 0,
        is_control: IsControl = lambda _: False,
    ):
        self.source = recipe.source
        self.skipped = Counter[str]()
        self._recipe = recipe
        self._count_tokens = count_tokens
        self._count_excess = count_excess
        self._is_control = is_control

    def __iter__(self) -> Iterator[SourceSentence]:
        """Yield the source sentences, in one pass over the source.

        Raises InputError when the source is missing, empty, cannot be decoded, lacks a named
        column, or has no usable text. Raises it, too, for a text that is too long for the model,
        unless the recipe rejects ``too_long``. Raises RunError when the Hub does not answer, or
        when the disk of temporary files is full.
        """
        seen_texts = SeenTexts()
        usable = 0
        for source_id, cell in _read_numbered_texts(self.source):
            # leave out the texts beyond the share
            share = self.source.share
            if share < 1 and draw_fraction(self._recipe.seed, "source", source_id) >= share:
                continue

            # check the text, without white space around it and a byte-order mark before it
            text = cell.strip().removeprefix(MARK).strip()
            reason = self._find_problem(text)
            if reason is None and not seen_texts.add(text):
                reason = DUPLICATE
            if reason is None:
                reason = self._check_excess(source_id, text)

            # skip it, or yield it and stop at the limit
            if reason is not None:
                self.skipped[reason] += 1
                continue
            usable += 1
            yield SourceSentence(source_id, text)
            if usable == self.source.limit:
                return
        if not usable:
            raise InputError(
                self.source.path or self.source.repo_id,
                "has no usable source sentence",
                allowed="at least one",
                hint=f"passed over: {describe_skipped(0, self.skipped)}",
            )

    def find_reason(self, text: str) -> str | None:
        """Return the reason why a stripped text is skipped, or None; repetition is not checked.

        Raises InputError for a text that is too long, unless the recipe rejects ``too_long``.
        """
        return self._find_problem(text) or self._check_excess("", text)

    def _find_problem(self, text: str) -> str | None:
        """Return the reason why a stripped text is skipped, or None.

        Repetition and the model's context are not checked.
        """
        if self.source.quotation_marks == "skip" and QUOTE in text:
            return QUOTATION_MARK
        problem = find_text_problem(text, self._recipe.premise_tokens, self._count_tokens)
        if problem is not None:
            return problem
        if self._is_control(text):
            return CONTROL_TOKEN
        rejects_controls = CONTROL_CHARACTERS in self._recipe.postprocess.reject
        if rejects_controls and has_control_characters(text):
            return CONTROL_CHARACTERS
        return None

    def _check_excess(self, source_id: str, text: str) -> str | None:
        """Return ``TOO_LONG`` for a text that is too long for the model's context, else None.

        Raises InputError for such a text when the recipe does not reject ``too_long``. The error
        names ``source_id``.
        """
        excess = self._count_excess(text)
        if not excess:
            return None
        if TOO_LONG in self._recipe.postprocess.reject:
            return TOO_LONG
        location = self.source.path or self.source.repo_id
        raise InputError(
            f"{location}: row {source_id} (rows count from 0)",
            f"a text of {len(text):,} characters; its prompt and the text to write are "
            f"{excess:,} tokens longer than the model's context",
            hint=f"pass such texts over: add {TOO_LONG} to postprocess.reject, or set "
            "premise_tokens",
        )


def describe_source(
    location: object,
    columns: Columns,
    usable: int,
    skipped: Mapping[str, int],
    first: Sequence[str],
) -> list[str]:
    """Return the summary of a source as lines: its counts, then its first three texts.

    The last line is a warning when more than ``WARNING_SHARE`` of the rows are skipped.

    Args:
        location: the source's path or repository.
        columns: the columns that were read; empty for a .txt file.
        usable: the number of usable rows.
        skipped: reason → number of skipped rows.
        first: the first usable sentences; three of them are shown.
    """
    rows = usable + sum(skipped.values())
    of_columns = f", column {', '.join(columns)}" if columns else ""
    counts = f"{rows:,} rows, {usable:,} usable; passed over: {describe_skipped(usable, skipped)}"
    lines = [f"read {location}{of_columns}: {counts}"]
    lines += [f'  "{join_lines(text, SHOWN_CHARACTERS)}"' for text in first[:3]]
    if rows - usable > WARNING_SHARE * rows:
        hint = f"; {LENGTH_HINT}" if LENGTH in skipped else ""
        skipped_rows = describe_skipped(usable, skipped)
        lines.append(f"warning: {location}: rows are passed over: {skipped_rows}{hint}")
    return lines


def describe_skipped(usable: int, skipped: Mapping[str, int]) -> str:
    """Return the skipped rows by reason, and their share of all rows; "none" without any."""
    total = sum(skipped.values())
    if not total:
        return "none"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items() if count)
    return f"{reasons} ({total / (usable + total):.0%} of the rows)"


def find_text_problem(
    text: str, length: tuple[int, int] | None, count_tokens: CountTokens
) -> str | None:
    """Return the reason why a stripped text cannot be a source sentence, or None.

    ``length``: the least and most tokens of a source sentence, as ``count_tokens`` counts; None
    allows any length.
    """
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
    """Return whether a text has a control character, a directional override, or U+FFFD.

    A tab does not count.
    """
    return _CONTROL.search(text) is not None


def _read_numbered_texts(source: Source) -> Iterator[tuple[str, str]]:
    """Yield (source id, text) of every cell, row by row, and within a row column by column.

    For the form of the id see ``SourceSentence``. Raises the errors of the readers in ``SOURCES``.
    """
    for split, rows in SOURCES[source.kind](source):
        for number, cells in enumerate(rows):
            row_id = f"{split}-{number:06d}" if split else f"{number:06d}"
            if len(cells) == 1:
                yield row_id, cells[0]
                continue
            for column, cell in zip(source.columns, cells, strict=True):
                yield f"{row_id}-{column}", cell


def list_source_files(source: Source) -> list[Path]:
    """Return the local file of a source of kind ``file``; an empty list for other kinds."""
    return [Path(source.path or "")] if source.kind == "file" else []


def require_file(source: Source) -> None:
    """Raise InputError when a source's local file is missing, or of a kind without a reader."""
    for path in list_source_files(source):
        require_kind(path, str(path))
        if not path.is_file():
            raise InputError(path, "no such file", hint="check source.path in the recipe")


def _read_local_rows(source: Source) -> Iterator[tuple[str | None, Iterator[Cells]]]:
    require_file(source)
    path = Path(source.path or "")
    yield None, read_file_rows(path, source.columns, str(path), source.encoding)


def _read_hub_rows(source: Source) -> Iterator[tuple[str | None, Iterator[Cells]]]:
    """Yield (split, rows) of a Hub dataset, or of one file in its repository.

    The split is None where the recipe names one split only, and for a file.

    Raises InputError for an unknown repository, revision, split, file or column, RunError when the
    Hub does not answer.
    """
    if source.path is None:
        for split in source.splits:
            name = split if len(source.splits) > 1 else None
            yield name, _read_split_rows(source, split)
        return
    from huggingface_hub import hf_hub_download

    repo_id = source.repo_id or ""
    with _convert_hub_errors(source):
        commit = resolve_commit(repo_id, source.revision)
        file = hf_hub_download(repo_id, source.path, repo_type="dataset", revision=commit)
    location = f"{repo_id}/{source.path}"
    yield None, read_file_rows(Path(file), source.columns, location, source.encoding)


@contextmanager
def _convert_hub_errors(source: Source) -> Iterator[None]:
    """Raise a Hub's errors in a block as InputError or RunError.

    InputError for a missing repository, revision or file, RunError when the Hub refuses access or
    does not answer.
    """
    from huggingface_hub.errors import RemoteEntryNotFoundError

    with convert_read_errors(f"dataset {source.repo_id}", source.revision):
        try:
            yield
        except RemoteEntryNotFoundError:
            raise InputError(
                f"dataset {source.repo_id}: {source.path}",
                "no such file at this revision",
                hint="check source.path in the recipe",
            ) from None


def _read_split_rows(source: Source, split: str) -> Iterator[Cells]:
    """Yield the cells of ``source.columns`` in every row of a Hub dataset's split, streamed.

    Raises InputError for an unknown repository, revision, config, split or column, for damaged
    data, and for a dataset made by a script; RunError when the Hub does not answer.
    """
    from datasets import load_dataset  # which takes seconds to import
    from huggingface_hub import constants

    location = f"source {source.repo_id}"
    repo_id = source.repo_id or ""
    with _convert_hub_errors(source), convert_reader_errors(location, hint=None):
        commit = resolve_commit(repo_id, source.revision)
        check_dataset_card(repo_id, commit)

        # open the split
        try:
            if constants.HF_HUB_OFFLINE:
                rows = load_prepared(repo_id, commit, source.config, split=split, streaming=True)
            else:
                rows = load_dataset(
                    repo_id, source.config, revision=commit, split=split, streaming=True
                )
        except ValueError as error:  # unknown config or split: the message lists the existing ones
            if is_wrong_answer(error):  # ``convert_read_errors`` handles a broken answer of the Hub
                raise
            raise InputError(location, get_first_line(error)) from error
        except RuntimeError as error:  # a script makes the dataset; datasets no longer runs it
            raise InputError(location, f"cannot be read: {get_first_line(error)}") from error

        # read its columns
        columns = require_columns(repo_id, source.columns, list(rows.column_names or []))
        for row in rows:
            yield tuple(as_text(row[column], location, column) for column in columns)


# kind → function that yields (split, rows) of a source, split after split; the name of a single
# split is None
SOURCES: dict[str, Callable[[Source], Iterator[tuple[str | None, Iterator[Cells]]]]] = {
    "file": _read_local_rows,
    "hub": _read_hub_rows,
    "model": lambda _: iter(()),  # the language model generates the sentences
}
