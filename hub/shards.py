"""Rows to zstd parquet with an explicit schema: temp file, fsync, rename. A shard is there whole or not at all."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from hub.schema import arrow_schema


def shard_path(config: str, split: str, index: int, total: int) -> str:
    """Path of a shard inside its repo, in the Hub's usual form (``index`` counts from 0)."""
    return f"data/{config}/{split}-{index:05d}-of-{total:05d}.parquet"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` to write to; on success fsynced and renamed, on failure removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _fsync(temporary)
        temporary.replace(path)
        _fsync(path.parent)
    except OSError as error:
        if error.filename is None:  # pyarrow and stream writes do not say which file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically and durably."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_shard(path: Path, rows: Sequence[dict[str, Any]], features: datasets.Features) -> None:
    """Write rows as one zstd parquet file. The bytes depend on the rows and the library versions only."""
    schema = arrow_schema(features)
    table = pa.Table.from_pylist(list(rows), schema=schema)
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=10_000)


def read_shard(path: Path) -> list[dict[str, Any]]:
    """The rows of one shard, in order."""
    return pq.ParquetFile(path).read().to_pylist()


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
