"""Rows to zstd parquet with an explicit schema and back; a shard is there whole or not at all (``hub.durable``)."""

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hub.durable import fsync, make_folder, named_in_errors, write_bytes
from hub.errors import InputError, StsDinoError
from hub.untrusted import first_line

if TYPE_CHECKING:
    from datasets import Features  # a second to import; its arrow schema keeps class names in a file's metadata

AGAIN = "run the stage that makes it again"
ROW_GROUP = 5_000
ROW_GROUP_BYTES = 64 << 20  # in memory; the Hub's viewer reads whole groups and wants them below 100 MB
ROWS_PER_FILE = 20_000  # of a config whose files are not shards of the work; whole row groups


def shard_path(config: str, split: str, index: int, total: int) -> str:
    """Path of a shard inside its repo, in the Hub's usual form (``index`` counts from 0)."""
    return f"data/{config}/{split}-{index:05d}-of-{total:05d}.parquet"


def write_shard(path: Path, rows: Sequence[dict[str, Any]], features: "Features") -> None:
    """Write rows as one zstd parquet file. The bytes depend on the rows and the library versions only."""
    write_bytes(path, shard_bytes(rows, features))


def shard_bytes(rows: Sequence[dict[str, Any]], features: "Features") -> bytes:
    """Rows as the content of one zstd parquet file."""
    table, content = pa.Table.from_pylist(list(rows), schema=features.arrow_schema), io.BytesIO()
    with pq.ParquetWriter(content, table.schema, compression="zstd") as writer:
        for group in row_groups(table):
            writer.write_table(group)
    return content.getvalue()


def row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """The row groups of a table: each ``ROW_GROUP`` rows, or a part of them where their texts are so long.

    A part is half the rows, again and again until it has ``ROW_GROUP_BYTES`` or is a single row.
    """
    start = 0
    while start < len(table):
        group = table.slice(start, ROW_GROUP - start % ROW_GROUP)
        while group.nbytes > ROW_GROUP_BYTES and len(group) > 1:
            group = group.slice(0, len(group) // 2)
        yield group
        start += len(group)


def read_shard(shard: Path | bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of one shard (a path, or the file's content), in order; all columns or those named."""
    return read_table(shard, columns).to_pylist()


def read_table(shard: Path | bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """One shard as a table. Raises InputError when it is damaged."""
    place, source = ("a shard", pa.BufferReader(shard)) if isinstance(shard, bytes) else (str(shard), shard)
    with reading_rows(place, AGAIN):
        return pq.ParquetFile(source).read(columns=None if columns is None else list(columns))


def shard_tables(shard: Path, rows: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """A shard as tables of at most ``rows`` rows, in order. Raises InputError when it is missing or damaged."""
    with reading_rows(shard, AGAIN), pq.ParquetFile(shard) as file:
        for batch in file.iter_batches(rows, columns=None if columns is None else list(columns)):
            yield pa.Table.from_batches([batch])


def parquet_schema(path: Path) -> pa.Schema:
    """The columns of a parquet file; its rows are not read."""
    with reading_rows(path, AGAIN):
        return pq.read_schema(path)


class Parts:
    """Rows of one config and split on their way to files of ``rows_per_file`` rows (None: one file).

    Rows wait for a row group to be full, and never more. A file's name says how many there are, which is known at the
    end: files are written under hidden names, and ``finish`` gives them theirs, counting from ``first``. ``discard``
    removes what was not finished.
    """

    def __init__(
        self,
        directory: Path,
        config: str,
        split: str,
        features: "Features",
        rows_per_file: int | None = ROWS_PER_FILE,
        first: int = 0,
    ):
        self.config, self.split = config, split
        self._folder, self._schema = directory / "data" / config, features.arrow_schema
        self._rows_per_file, self._first = rows_per_file, first
        self._waiting = list[dict[str, Any]]()
        self._open: pq.ParquetWriter | None = None
        self._files = list[tuple[Path, int]]()  # hidden path, rows so far

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows."""
        self._waiting += rows
        while len(self._waiting) >= ROW_GROUP:
            self._write_group()

    def finish(self) -> list[tuple[str, int]]:
        """Write the rest and name the files: (path inside the repo, rows) of each. No rows, no file."""
        if self._waiting:
            self._write_group()
        self._close()
        total, done = self._first + len(self._files), []
        for index, (hidden, rows) in enumerate(self._files, start=self._first):
            path = shard_path(self.config, self.split, index, total)
            hidden.replace(self._folder / Path(path).name)
            done.append((path, rows))
        if done:
            fsync(self._folder)
        self._files = []
        return done

    def discard(self) -> None:
        """Remove the files that have no name yet."""
        for hidden, _ in self._files:
            hidden.unlink(missing_ok=True)

    def _write_group(self) -> None:
        group = pa.Table.from_pylist(self._waiting[:ROW_GROUP], schema=self._schema)
        self._waiting = self._waiting[ROW_GROUP:]
        if self._open is None:
            make_folder(self._folder)
            hidden = self._folder / f".{self.split}-{self._first + len(self._files):05d}.{os.getpid()}.tmp"
            self._files.append((hidden, 0))
            self._open = pq.ParquetWriter(hidden, self._schema, compression="zstd")
        hidden, rows = self._files[-1]
        with named_in_errors(hidden):
            for part in row_groups(group):
                self._open.write_table(part)
        self._files[-1] = hidden, rows + len(group)
        if self._rows_per_file and rows + len(group) >= self._rows_per_file:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            with named_in_errors(self._files[-1][0]):
                self._open.close()
                fsync(self._files[-1][0])
        self._open = None


RESTORE = "restore the file, or take another"
_OF_READERS = (pa.ArrowException, UnicodeDecodeError, csv.Error, EOFError, RecursionError)  # cut; nested too deep


def unreadable_kinds(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """The errors that readers raise over damaged bytes, ``datasets``' where anything has imported it, and ``more``."""
    library = sys.modules.get("datasets.exceptions")
    return (*_OF_READERS, *((library.DatasetsError,) if library else ()), *more)


@contextmanager
def reading_rows(place: object, hint: str | None = RESTORE) -> Iterator[None]:
    """Turn what parquet, CSV and JSON readers raise over damaged bytes into InputError that names ``place``.

    A failing Hub, disk or memory is another matter and passes.
    """
    import httpx2

    try:
        yield
    except unreadable_kinds(OSError) as error:
        passing = ConnectionError | httpx2.HTTPError | MemoryError | StsDinoError
        for cause in (error, error.__cause__):  # pyarrow's OSError has no number for pages it cannot unpack
            if isinstance(cause, passing) or (isinstance(cause, OSError) and cause.errno is not None):
                raise cause from None
        raise unreadable(error, place, hint) from error


def unreadable(error: BaseException, place: object, hint: str | None = RESTORE) -> InputError:
    """The one-line error for rows whose reader failed."""
    if type(error) is FileNotFoundError:  # the libraries derive errors of their own from it
        return InputError(place, "no such file", hint=hint)
    return InputError(place, f"cannot be read: {first_line(error.__cause__ or error)}", hint=hint)
