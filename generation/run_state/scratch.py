"""Scratch folder beside a run directory until the run is complete: first texts, as row groups that match its shards.

Sources are streamed once into a scratch file, so neither a large source nor a resumed run needs memory or a second
pass. The folder ``<name>.scratch`` obeys the run directory's rule: a file counts when ``notes.json`` names it with its
SHA-256, and the notes are replaced after the file. Whatever is damaged or of another run is made again.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from generation.inputs.sources import FirstText
from hub.contract.schema import SOURCES, features
from hub.contract.shards import read_shard, write_shard
from hub.durable import atomic_path, make_folder, named_in_errors, sha256_file, write_text
from hub.errors import InputError

_FIRST_TEXTS = pa.schema([("source_id", pa.string()), ("text", pa.string())])


class FirstTextBatch(BaseModel):
    """A round of first texts that the model wrote: its file (None: no text was accepted) and its counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None
    sha256: str | None
    asked: int
    accepted: int
    rejected: dict[str, int]


class FirstTextFile(BaseModel):
    """The file of first texts, and counts of source rows that were skipped, by reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    sha256: str
    skipped: dict[str, int]


class ScratchIndex(BaseModel):
    """Index of the scratch folder: its run (``key``), rounds and first texts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    rounds: tuple[FirstTextBatch, ...] = ()
    first_texts: FirstTextFile | None = None


class FirstTexts:
    """The first texts of a run on disk, read block by block: block k holds those of shard k."""

    def __init__(self, path: Path, kept: FirstTextFile):
        self._file = pq.ParquetFile(path)
        self.skipped, self.sha256 = kept.skipped, kept.sha256
        self.total, self.blocks = self._file.metadata.num_rows, self._file.num_row_groups

    def size(self, index: int) -> int:
        """How many first texts a block holds."""
        return int(self._file.metadata.row_group(index).num_rows)

    def block(self, index: int) -> list[FirstText]:
        """The first texts of one shard."""
        return [FirstText(**row) for row in self._file.read_row_group(index).to_pylist()]


class Scratch:
    """The scratch folder of a run. ``key`` names the run and the code that writes it: another key starts anew."""

    def __init__(self, run_directory: Path, key: str):
        self.directory = run_directory.parent / f"{run_directory.name}.scratch"
        self.journal = self.directory / "journal.jsonl"  # of ``generation.run_state.directory``
        self.notes = self._read_notes(key)

    def _read_notes(self, key: str) -> ScratchIndex:
        for leftover in self.directory.glob(".*.tmp"):  # of a killed process; the caller holds the run's lock
            leftover.unlink()
        try:
            notes = ScratchIndex.model_validate_json((self.directory / "notes.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            notes = ScratchIndex(key="")
        if notes.key == key:
            return notes
        if self.directory.is_dir():  # nobody knows whose the journal is
            shutil.rmtree(self.directory)
        return ScratchIndex(key=key)

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.notes = ScratchIndex(key=self.notes.key)

    def _note(self, **changes: Any) -> None:
        self.notes = self.notes.model_copy(update=changes)
        write_text(self.directory / "notes.json", self.notes.model_dump_json(indent=1) + "\n")

    def _whole(self, path: str | None, sha256: str | None) -> bool:
        if path is None:
            return True
        full = self.directory / path
        return full.is_file() and sha256_file(full) == sha256

    def first_texts(self) -> FirstTexts | None:
        """The first texts, if they were kept before and are whole."""
        kept = self.notes.first_texts
        if kept is None or not self._whole(kept.path, kept.sha256):
            return None
        return FirstTexts(self.directory / kept.path, kept)

    def keep(self, texts: Iterable[FirstText], block: int, skipped: dict[str, int]) -> FirstTexts:
        """Write first texts, ``block`` to a row group. ``skipped`` is read when the last text was taken."""
        path, texts = self.directory / "first-texts.parquet", iter(texts)
        try:
            with atomic_path(path) as temporary, pq.ParquetWriter(temporary, _FIRST_TEXTS, compression="zstd") as file:
                while part := [{"source_id": first.source_id, "text": first.text} for first in islice(texts, block)]:
                    file.write_table(pa.Table.from_pylist(part, schema=_FIRST_TEXTS), row_group_size=block)
        except InputError:  # of the source: without a folder, the run begins again with what was corrected
            with suppress(OSError):  # it holds something
                self.directory.rmdir()
            raise
        kept = FirstTextFile(path=path.name, sha256=sha256_file(path), skipped=dict(sorted(skipped.items())))
        self._note(first_texts=kept)
        return FirstTexts(path, kept)

    def drop_damaged_rounds(self) -> None:
        """Forget the first round whose file is not whole, and all after it: they depend on it."""
        rounds = self.notes.rounds
        whole = next((i for i, one in enumerate(rounds) if not self._whole(one.path, one.sha256)), len(rounds))
        if whole < len(rounds):
            self._note(rounds=rounds[:whole])

    def add_round(self, rows: list[dict[str, Any]], asked: int, rejected: dict[str, int]) -> None:
        """Keep one round of rows of the config ``sources``."""
        path = self.directory / f"round-{len(self.notes.rounds):05d}.parquet"
        if rows:
            write_shard(path, rows, features(SOURCES))
        name, digest = (path.name, sha256_file(path)) if rows else (None, None)
        one = FirstTextBatch(
            path=name, sha256=digest, asked=asked, accepted=len(rows), rejected=dict(sorted(rejected.items()))
        )
        self._note(rounds=(*self.notes.rounds, one))

    def rounds(self) -> Iterator[tuple[FirstTextBatch, list[dict[str, Any]]]]:
        """Every round and its rows, one at a time."""
        for one in self.notes.rounds:
            yield one, (read_shard(self.directory / one.path) if one.path else [])

    def set_aside(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Keep rows out of memory until ``take_back``; for this process alone, not across a restart."""
        path = self._aside(number)
        make_folder(path.parent)
        with named_in_errors(path):
            path.write_text(json.dumps(rows), encoding="utf-8")

    def take_back(self, number: int) -> list[dict[str, Any]] | None:
        """The rows that were set aside under this number, once."""
        try:
            rows: list[dict[str, Any]] = json.loads(self._aside(number).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        self._aside(number).unlink()
        return rows

    def drop_set_aside(self) -> None:
        """Remove what nobody took back."""
        for path in self.directory.glob(".aside-*.tmp"):
            path.unlink()

    def _aside(self, number: int) -> Path:
        return self.directory / f".aside-{number}.tmp"
