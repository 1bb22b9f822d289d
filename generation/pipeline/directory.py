"""Run directory of a dataset while it is generated: shards in, manifest after them, everything resumable.

A manifest names every file, so a shard gets one line in a journal, and the manifest follows when that costs little
(``_is_due``): the time of a shard does not grow with the run. docs/architecture.md lists what a restart reads.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generation.inputs.sources import SeenTexts, SourceSentence
from generation.pipeline import tasks
from generation.pipeline.tasks import Row, Shard, TaskResult
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.run_dir import APPENDED, File, Manifest
from hub.contract.schema import base_config
from hub.contract.shards import ROWS_PER_FILE, Parts, read_shard, shard_tables
from hub.durable import fsync, make_folder, named_in_errors, regular, sha256_file, write_bytes
from hub.errors import InputError

SHARE = 0.02  # of a run's time that may go into writing manifests
NEW = 1 / 64  # new shards for every file that the manifest names: worth a manifest whatever it costs


@dataclass(frozen=True)
class BaseRun:
    """The finished run that rows are appended to, as it lies in its directory."""

    directory: Path
    manifest: Manifest

    @property
    def inputs(self) -> dict[str, str]:
        """Its entry among the inputs of the new rows' run: those rows follow these."""
        return {f"{APPENDED}{self.manifest.version}": self.manifest.fingerprint}

    @property
    def source_sentences(self) -> int:
        """Number of its source sentences."""
        return int(self.manifest.counts["sources"])

    @property
    def asked(self) -> int:
        """The numbers that are used up where the model generates the source sentences."""
        return self.source_sentences + sum(self.manifest.counts.get("sources_rejected", {}).values())

    def rows(self, config: str, columns: Sequence[str]) -> Iterator[Row]:
        """The rows of a config, some columns of them."""
        for file in self.manifest.shards(config):
            for table in shard_tables(self.directory / file.path, ROWS_PER_FILE, columns):
                yield from table.to_pylist()

    def new_among(self, texts: Iterable[SourceSentence], place: str | None) -> Iterator[SourceSentence]:
        """The sentences of a source (``place``) after those of this run, which have to come first and unchanged.

        Raises InputError when they do not, or when no other comes after them.
        """
        known, hint = SeenTexts(), "leave the source sentences that are there as they are, and add new ones after them"
        for config in dict.fromkeys(file.config or "" for file in self.manifest.files):
            if base_config(config) in ("raw", "rejected"):  # each source sentence has a row in one of them
                for row in self.rows(config, ("source_id", "text1")):
                    known.add(f"{row['source_id']}\n{row['text1']}")
        total, version, number = self.source_sentences, f"v{self.manifest.version}", 0
        for number, first in enumerate(texts, start=1):
            if number > total:
                yield first
            elif known.add(f"{first.source_id}\n{first.text}"):
                problem = (
                    f"row {first.source_id} is not a source sentence of {version}, but is among its first {total:,}"
                )
                raise InputError(place, problem, hint=hint)
        if number <= total:
            problem = f"has {number:,} source sentences, and {version} has {total:,} already: nothing to append"
            raise InputError(place, problem, hint="raise source.limit, or add rows at the end of the source")


def append_line(journal: Path, result: TaskResult) -> None:
    """Add a result to a journal; it is on disk when this returns. Raises OSError with the file's name."""
    line = b"\n" + result.line()  # the line break first: it ends what a kill or full disk tore
    make_folder(journal.parent)
    begun = not journal.exists()
    with named_in_errors(journal), regular(journal).open("ab", buffering=0) as file:
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
        if begun:
            fsync(journal.parent)  # its name, too


class DatasetRun:
    """One dataset's directory, its recipe and the manifest as it is on disk.

    ``journal``: the file for results that the manifest does not name yet, one a line; an earlier start's are read.
    ``base``: the finished run that these rows will be added to, if any. ``empty``: files not written, for want of rows.
    """

    def __init__(
        self,
        directory: Path,
        recipe: DatasetRecipe,
        manifest: Manifest,
        journal: Path | None = None,
        base: BaseRun | None = None,
    ):
        self.directory, self.recipe, self.manifest, self.base = directory, recipe, manifest, base
        self._journal = journal
        self._files = {file.path: file for file in manifest.files}
        self.empty = set[str](manifest.counts.get("empty_shards", ()))
        self._done: int | None = None  # shards, once counted
        self._new, self._last, self._cost = 0, 0.0, 0.0  # shards since the manifest, when it was written, seconds
        for result in self._journalled():
            if not result.raw and self._holds(result.files):
                self._enter(result)
        if self._new:
            counts = {**self.manifest.counts, "empty_shards": sorted(self.empty)}
            self.manifest = self.manifest.model_copy(update={"counts": counts})

    def record(self, files: list[File], **changes: Any) -> None:
        """Add finished files to the manifest on disk."""
        self._files |= {file.path: file for file in files}
        ordered = tuple(self._files[path] for path in sorted(self._files))
        started = time.monotonic()
        self.manifest = self.manifest.model_copy(update={"files": ordered, **changes})
        run_dir.write_manifest(self.directory, self.manifest)
        if self._journal and self._new:  # without a new shard, the journal holds finished groups
            self._journal.unlink(missing_ok=True)
        self._new, self._last = 0, time.monotonic()
        self._cost = self._last - started

    def count(self, **counts: Any) -> None:
        """Set some of the manifest's counts; on disk only when that changes them."""
        changed = {**self.manifest.counts, **counts}
        if changed != self.manifest.counts:
            self.record([], counts=changed)

    def rows(self, config: str) -> Iterator[Row]:
        """All rows of a config, one file in memory at a time."""
        for file in self.manifest.shards(config):
            yield from read_shard(self.directory / file.path)

    def has_sources(self) -> bool:
        """Whether all generated source sentences were published."""
        rows = sum(file.rows or 0 for file in self.manifest.shards("sources"))
        return rows > 0 and rows == self.manifest.counts.get("sources")

    def write_sources(self, rounds: Iterable[Sequence[Row]]) -> None:
        """Publish the generated source sentences, as the config ``sources``."""
        size = tasks.sources_per_file(self.recipe)
        parts = Parts(self.directory, "sources", "train", config_features("sources", self.recipe), size)
        try:
            for rows in rounds:
                parts.add(rows)
            self.record(self.named(parts))
        finally:
            parts.discard()

    def named(self, parts: Parts) -> list[File]:
        """Give finished files their names; return their manifest entries."""
        return [
            run_dir.describe(self.directory, path, config=parts.config, split=parts.split, rows=rows)
            for path, rows in parts.finish()
        ]

    def shards(self, blocks: int) -> list[Shard]:
        """All shards in the order of work."""
        return tasks.shards(self.recipe, blocks)

    def missing(self, shards: Iterable[Shard]) -> list[Shard]:
        """The shards that no earlier start finished."""
        return [shard for shard in shards if not self._is_done(shard)]

    def raw_digest(self) -> str:
        """SHA-256 over the raw and rejected files, from which the finished configs are made."""
        digest = hashlib.sha256()
        for path in sorted(self._files.keys() | self.empty):
            if path in self.empty or (self._files[path].config or "").startswith(("raw", "rejected")):
                digest.update(f"{path} {'' if path in self.empty else self._files[path].sha256}\n".encode())
        return digest.hexdigest()

    def finished_groups(self, raw: str) -> dict[str, TaskResult]:
        """Task → result of the whole groups that an earlier start finished from the same raw files."""
        return {one.key: one for one in self._journalled() if one.raw == raw and self._holds(one.files)}

    def add_shard(self, result: TaskResult, blocks: int) -> None:
        """Put the files of a shard in their places, then enter it in the journal, and in the manifest when due."""
        self.journalled(result)
        if self._done is not None:
            self._done += not self._is_done(result.task.shard)
        self._enter(result)
        if self._is_due():
            self.show_progress(blocks)

    def journalled(self, result: TaskResult) -> TaskResult:
        """Put the files of a result in place, then append it to the journal."""
        placed = self.place(result)
        if self._journal:
            append_line(self._journal, placed)
        return placed

    def _journalled(self) -> Iterator[TaskResult]:
        """Every whole result in the journal, the oldest first; torn lines are skipped."""
        if self._journal and self._journal.is_file():
            with self._journal.open("rb") as file:
                yield from filter(None, map(TaskResult.read, file))

    def place(self, result: TaskResult) -> TaskResult:
        """Write the files of a result that are not in their places; the result without their contents."""
        for path, content in result.contents.items():
            write_bytes(self.directory / path, content)
        return result.with_(contents={})

    def show_progress(self, blocks: int) -> None:
        """Bring the manifest up to date with every shard that was entered."""
        total = len(self.recipe.variants) * blocks
        if self._done is None:  # looked up once, as shards may be very many, and counted from then on
            self._done = total - len(self.missing(self.shards(blocks)))
        progress = {"shards_done": self._done, "shards_total": total, "empty_shards": sorted(self.empty)}
        self.record([], counts={**self.manifest.counts, **progress})

    def _is_due(self) -> bool:
        """Whether many shards are new, or the last manifest's cost is a small share of the time since then."""
        many = self._new >= max(1.0, NEW * len(self._files))
        return many or time.monotonic() - self._last >= self._cost / SHARE

    def _is_done(self, shard: Shard) -> bool:
        return all(path in self._files or path in self.empty for path in tasks.paths(self.recipe, shard))

    def _enter(self, result: TaskResult) -> None:
        """Note a shard's files. A shard that is repeated may gain or lose the rows of a file."""
        for path in result.empty:
            self._files.pop(path, None)
        self._files |= {file.path: file for file in result.files}
        self.empty -= {file.path for file in result.files}
        self.empty |= set(result.empty)
        self._new += 1

    def _holds(self, files: Iterable[File]) -> bool:
        found = ((self.directory / file.path, file.sha256) for file in files)
        return all(path.is_file() and sha256_file(path) == digest for path, digest in found)
