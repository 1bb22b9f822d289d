"""Shards: rows written to zstd parquet files with an explicit schema, and read back.

A shard appears on disk whole or not at all (``sts_dino.hub.durable``).
"""

import csv
import io
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from sts_dino.hub.contract.schema import SPLITS, get_base_config
from sts_dino.hub.durable import (
    make_folder,
    name_in_errors,
    sync_to_disk,
    write_bytes,
    write_text,
)
from sts_dino.hub.errors import InputError, StsDinoError
from sts_dino.hub.untrusted import get_first_line

if TYPE_CHECKING:
    from datasets import (
        Features,  # a second to import; its arrow schema keeps class names in a file's metadata
    )

    from sts_dino.hub.contract.run_dir import Manifest

RERUN_HINT = "run the stage that makes it again"
ROW_GROUP_ROWS = 5_000
# in memory: the Hub's viewer reads whole groups, of at most 100 MB
ROW_GROUP_BYTES = 64 << 20
ROWS_PER_FILE = 20_000  # a multiple of ROW_GROUP_ROWS


# ``load_dataset(RUN_DIR)`` reads configs from this file and from the card; it is not published
LOADING_FILE = ".huggingface.yaml"


def write_loading_file(directory: Path, manifest: "Manifest", config_names: Sequence[str]) -> None:
    """Write ``LOADING_FILE``, by which ``load_dataset(RUN_DIR)`` works before the run has a card.

    Args:
        directory: the run directory.
        manifest: names the shards.
        config_names: the recipe's configs, in order.
    """
    tree = {"configs": describe_configs(manifest, config_names)}
    write_text(directory / LOADING_FILE, yaml.safe_dump(tree, sort_keys=False))


def describe_configs(manifest: "Manifest", config_names: Sequence[str]) -> list[dict[str, Any]]:
    """Describe the configs that have rows, in the form that ``datasets`` reads from a card.

    Each config has its name and the files of its splits; one has ``default: True``
    (``choose_default_config``). A split with empty shards lists the paths of its shards with rows
    instead of a pattern, because datasets 5.2 cannot read a parquet file without rows.

    Args:
        manifest: names the shards.
        config_names: the recipe's configs, in order.
    """
    configs: list[dict[str, Any]] = []
    for config in config_names:
        shards = manifest.shards(config)
        data_files: list[dict[str, Any]] = []
        for split in SPLITS:
            split_shards = [shard for shard in shards if shard.split == split]
            paths = [shard.path for shard in split_shards if shard.rows]
            pattern = f"data/{config}/{split}-*.parquet"
            if paths:
                path = pattern if len(paths) == len(split_shards) else paths
                data_files.append({"split": split, "path": path})
        if data_files:
            configs.append({"config_name": config, "data_files": data_files})
    default = choose_default_config([entry["config_name"] for entry in configs], config_names)
    for entry in configs:
        if entry["config_name"] == default:
            entry["default"] = True
    return configs


def choose_default_config(existing: Sequence[str], config_names: Sequence[str]) -> str | None:
    """Choose the default config: the recipe's first or, until that has rows, the first raw one.

    Where neither has rows, the first of ``existing`` is chosen; None when ``existing`` is empty.

    Args:
        existing: the configs that have rows, in the recipe's order.
        config_names: the recipe's configs, in order.
    """
    if not existing:
        return None
    if existing[0] != config_names[0]:
        for config in existing:
            if get_base_config(config) == "raw":
                return config
    return existing[0]


def format_shard_path(config: str, split: str, index: int, total: int) -> str:
    """Return the Hub's path of shard ``index`` (from 0) of ``total``, inside its repository."""
    return f"data/{config}/{split}-{index:05d}-of-{total:05d}.parquet"


def write_shard(path: Path, rows: Sequence[dict[str, Any]], features: "Features") -> None:
    """Write rows as one zstd parquet file, atomically.

    The bytes depend on the rows, the features and the library versions only.
    """
    write_bytes(path, encode_shard(rows, features))


def encode_shard(rows: Sequence[dict[str, Any]], features: "Features") -> bytes:
    """Return rows as the content of one zstd parquet file; ``features`` gives the columns."""
    table = pa.Table.from_pylist(list(rows), schema=features.arrow_schema)
    content = io.BytesIO()
    with pq.ParquetWriter(content, table.schema, compression="zstd") as writer:
        for group in split_row_groups(table):
            writer.write_table(group)
    return content.getvalue()


def split_row_groups(table: pa.Table) -> Iterator[pa.Table]:
    """Split a table into row groups of at most ``ROW_GROUP_ROWS`` rows.

    A group of more than ``ROW_GROUP_BYTES`` is halved until it fits or is a single row. No group
    crosses a multiple of ``ROW_GROUP_ROWS``. So ``Parts``, which splits one such multiple of rows
    at a time, writes the same groups as ``encode_shard``, which splits all of them.
    """
    start = 0
    while start < len(table):
        group = table.slice(start, ROW_GROUP_ROWS - start % ROW_GROUP_ROWS)
        while group.nbytes > ROW_GROUP_BYTES and len(group) > 1:
            group = group.slice(0, len(group) // 2)
        yield group
        start += len(group)


def read_shard(shard: Path | bytes, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a shard, in order.

    Raises InputError when the shard is damaged, OSError when it cannot be opened. ``shard``: a
    path, or the file's bytes. ``columns``: the names of the columns to read; None reads all.
    """
    return read_table(shard, columns).to_pylist()


def read_table(shard: Path | bytes, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a shard as a table: the named columns, or all.

    Raises InputError when the shard is damaged, OSError when it cannot be opened. ``shard``: a
    path, or the file's bytes.
    """
    name = "a shard" if isinstance(shard, bytes) else str(shard)
    source = pa.BufferReader(shard) if isinstance(shard, bytes) else shard
    with convert_reader_errors(name, RERUN_HINT), name_in_errors(Path(name)):
        return pq.ParquetFile(source).read(columns=None if columns is None else list(columns))


def iter_shard_tables(
    shard: Path, rows: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield a shard as tables of at most ``rows`` rows, in order.

    ``columns``: the names of the columns to read; None reads all. Raises InputError when the shard
    is damaged, OSError when it cannot be opened.
    """
    with (
        convert_reader_errors(shard, RERUN_HINT),
        name_in_errors(shard),
        pq.ParquetFile(shard) as file,
    ):
        for batch in file.iter_batches(rows, columns=None if columns is None else list(columns)):
            yield pa.Table.from_batches([batch])


def read_parquet_schema(path: Path) -> pa.Schema:
    """Read the names and types of a parquet file's columns, without its rows.

    Raises InputError when the file is damaged, OSError when it cannot be opened.
    """
    with convert_reader_errors(path, RERUN_HINT), name_in_errors(path):
        return pq.read_schema(path)


@dataclass
class PartFile:
    """An unfinished file under its hidden name, and the number of rows in it."""

    path: Path
    rows: int = 0


class Parts:
    """Writer of one config and split to parquet files below ``directory``/data.

    Rows wait until they fill a row group, so at most one group is in memory. A file's name holds
    the number of files, which is unknown before the end. So files are written under hidden names,
    ``finish`` renames them, and ``discard`` removes them instead.

    Args:
        directory: the run directory.
        config: the name of the config.
        split: the name of the split.
        features: the columns of the rows.
        rows_per_file: rows after which a new file begins; None writes one file.
        first: index of the first file, from 0: the number of earlier files of the config and split.
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
        self.config = config
        self.split = split
        self._folder = directory / "data" / config
        self._schema = features.arrow_schema
        self._rows_per_file = rows_per_file
        self._first = first
        self._waiting = list[dict[str, Any]]()
        self._writer: pq.ParquetWriter | None = None  # of the last file
        self._files = list[PartFile]()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows; write each full row group, to a hidden file."""
        self._waiting += rows
        while len(self._waiting) >= ROW_GROUP_ROWS:
            self._write_group()

    def finish(self) -> list[tuple[str, int]]:
        """Write the waiting rows, rename the files and return (path, rows) of each file.

        Paths are relative to the run directory, as ``format_shard_path`` makes them. The list is
        empty when no rows were added.
        """
        if self._waiting:
            self._write_group()
        self._close()
        total = self._first + len(self._files)
        finished = []
        for index, file in enumerate(self._files, start=self._first):
            path = format_shard_path(self.config, self.split, index, total)
            file.path.replace(self._folder / Path(path).name)
            finished.append((path, file.rows))
        if finished:
            sync_to_disk(self._folder)
        self._files = []
        return finished

    def discard(self) -> None:
        """Remove the files that ``finish`` has not renamed."""
        for file in self._files:
            file.path.unlink(missing_ok=True)

    def _write_group(self) -> None:
        """Write up to ``ROW_GROUP_ROWS`` waiting rows to the open file, or to a new file.

        The file is closed once it has ``rows_per_file`` rows or more.
        """
        group = pa.Table.from_pylist(self._waiting[:ROW_GROUP_ROWS], schema=self._schema)
        self._waiting = self._waiting[ROW_GROUP_ROWS:]
        if self._writer is None:
            # The hidden name has this process's id.
            make_folder(self._folder)
            index = self._first + len(self._files)
            path = self._folder / f".{self.split}-{index:05d}.{os.getpid()}.tmp"
            self._files.append(PartFile(path))
            self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        file = self._files[-1]
        with name_in_errors(file.path):
            for part in split_row_groups(group):
                self._writer.write_table(part)
        file.rows += len(group)
        if self._rows_per_file and file.rows >= self._rows_per_file:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            path = self._files[-1].path
            with name_in_errors(path):
                self._writer.close()
                sync_to_disk(path)
        self._writer = None


RESTORE_HINT = "restore the file, or take another"
# EOFError: a .gz was cut; zlib.error: its bytes changed; RecursionError: JSON is nested too deep
_READER_ERRORS = (
    pa.ArrowException,
    UnicodeDecodeError,
    csv.Error,
    EOFError,
    zlib.error,
    RecursionError,
)


def list_reader_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """List the exceptions that readers raise over damaged bytes, and those of ``more``.

    The exceptions of ``datasets`` are added when the library is already imported.
    """
    library = sys.modules.get("datasets.exceptions")
    if library is None:
        return (*_READER_ERRORS, *more)
    return (*_READER_ERRORS, library.DatasetsError, *more)


@contextmanager
def convert_reader_errors(place: object, hint: str | None = RESTORE_HINT) -> Iterator[None]:
    """Convert the errors of parquet, CSV and JSON readers over damaged bytes to InputError.

    Errors of a Hub, a disk or memory, and the project's own, pass unchanged. A reader's error with
    such a cause is replaced by the cause. ``place``: the data, for the InputError. ``hint``: its
    remedy; None: none.
    """
    import httpx2

    try:
        yield
    except list_reader_errors(OSError) as error:
        passing = ConnectionError | httpx2.HTTPError | MemoryError | StsDinoError
        for cause in (error, error.__cause__):
            # pyarrow's OSError has no number for pages it cannot unpack
            is_disk_failure = isinstance(cause, OSError) and cause.errno is not None
            if cause is not None and (is_disk_failure or isinstance(cause, passing)):
                raise cause from None
        raise make_reading_error(error, place, hint) from error


def make_reading_error(
    error: BaseException, place: object, hint: str | None = RESTORE_HINT
) -> InputError:
    """Make the error for data whose reader raised ``error``: its cause's message, in one line.

    Without a cause it is the message of ``error`` itself, and ``no such file`` for a
    FileNotFoundError. ``place``: the data. ``hint``: a remedy.
    """
    # Errors that the libraries derive from FileNotFoundError say more than that a file is absent.
    if type(error) is FileNotFoundError:
        return InputError(place, "no such file", hint=hint)
    return InputError(
        place, f"cannot be read: {get_first_line(error.__cause__ or error)}", hint=hint
    )
