"""Rows to zstd parquet with an explicit schema: temp file, fsync, rename. A shard is there whole or not at all."""

import hashlib
import io
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from hub.durable import fsync, make_folder
from hub.row_errors import reading_rows

if TYPE_CHECKING:
    from datasets import Features  # a second to import; its arrow schema keeps class names in a file's metadata

AGAIN = "run the stage that makes it again"
ROW_GROUP = 5_000
ROW_GROUP_BYTES = 64 << 20  # in memory; the Hub's viewer reads whole groups and wants them below 100 MB
ROWS_PER_FILE = 20_000  # of a config whose files are not shards of the work; whole row groups


def shard_path(config: str, split: str, index: int, total: int) -> str:
    """Path of a shard inside its repo, in the Hub's usual form (``index`` counts from 0)."""
    return f"data/{config}/{split}-{index:05d}-of-{total:05d}.parquet"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` to write to; on success fsynced and renamed, on failure removed."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # machines may share the folder
    try:
        with named_in_errors(path):
            yield temporary
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically and durably."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


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


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Make an OSError say which file: pyarrow and stream writes do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
