"""Run directory of a dataset while it is written: shards in, manifest after them, everything resumable.

Raw and rejected rows are written shard by shard, as the model writes them. When the last shard is there,
``generation.pipeline.finish`` reads them back, so the finished rows are a function of the raw files alone.

A manifest names every file, so writing it takes longer the more there are. A shard is therefore entered in a journal,
one line, and the manifest follows when that costs little (``_is_due``): the time of a shard does not grow with the run.
docs/resuming.md tells what is read at a restart.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from generation.run_state import layout
from generation.run_state.base_run import BaseRun
from generation.run_state.journal import Journal, TaskRecord
from generation.run_state.layout import Shard
from generation.run_state.tasks import Row, TaskResult
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.run_dir import File, Manifest
from hub.contract.shards import Parts, read_shard
from hub.durable import sha256_file, write_bytes

SHARE = 0.02  # of a run's time that may go into writing manifests
NEW = 1 / 64  # new shards for every file that is named: worth a manifest whatever it costs


class DatasetRun:
    """One dataset's directory, its recipe and the manifest as it is on disk.

    ``journal``: the file for results that the manifest does not name yet; an earlier start's are taken up.
    ``base``: the finished run that these rows will be added to, if any.
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
        self._journal = Journal(journal) if journal else None
        self._files = {file.path: file for file in manifest.files}
        self._empty = set[str](manifest.counts.get("empty_shards", ()))
        self._done: int | None = None  # shards, once somebody asked
        self._new, self._last, self._cost = 0, 0.0, 0.0  # shards since the manifest, when it was written, seconds
        self._take_up_shards()

    def record(self, files: list[File], **changes: Any) -> None:
        """Add finished files to the manifest on disk."""
        self._files |= {file.path: file for file in files}
        ordered = tuple(self._files[path] for path in sorted(self._files))
        started = time.monotonic()
        self.manifest = self.manifest.model_copy(update={"files": ordered, **changes})
        run_dir.write_manifest(self.directory, self.manifest)
        if self._journal and self._new:  # without a new shard, the journal holds finished groups
            self._journal.clear()
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
        """Whether the first texts that the model wrote were published whole."""
        rows = sum(file.rows or 0 for file in self.manifest.shards("sources"))
        return rows > 0 and rows == self.manifest.counts.get("sources")

    def write_sources(self, rounds: Iterable[Sequence[Row]]) -> None:
        """Publish the first texts that the model wrote, as the config ``sources``."""
        size = layout.sources_per_file(self.recipe)
        parts = Parts(self.directory, "sources", "train", config_features("sources", self.recipe), size)
        try:
            for rows in rounds:
                parts.add(rows)
            self.record(self.named(parts))
        finally:
            parts.discard()

    def named(self, parts: Parts) -> list[File]:
        """Give finished files their names; their manifest entries."""
        return [
            run_dir.describe(self.directory, path, config=parts.config, split=parts.split, rows=rows)
            for path, rows in parts.finish()
        ]

    def shards(self, blocks: int) -> list[Shard]:
        """All shards in the order of work."""
        return layout.shards(self.recipe, blocks)

    def missing(self, shards: Iterable[Shard]) -> list[Shard]:
        """The shards that no earlier start finished."""
        return [shard for shard in shards if not self._is_done(shard)]

    def empty_among(self, paths: Callable[[], set[str]]) -> frozenset[str]:
        """Those of ``paths`` that were not written, for want of rows; asked for only when there are such files."""
        return frozenset(paths() & self._empty) if self._empty else frozenset()

    def raw_digest(self) -> str:
        """What the finished configs are made from: SHA-256 over the raw and rejected files."""
        digest = hashlib.sha256()
        for path in sorted(self._files.keys() | self._empty):
            if path in self._empty or (self._files[path].config or "").startswith(("raw", "rejected")):
                digest.update(f"{path} {'' if path in self._empty else self._files[path].sha256}\n".encode())
        return digest.hexdigest()

    def add_shard(self, result: TaskResult, blocks: int) -> None:
        """Put the files of a shard in their places, then say so in the journal; in the manifest when that is due."""
        record = self.journalled(result)
        if self._done is not None:
            self._done += not self._is_done(result.task.shard)  # type: ignore[union-attr]  # a shard's task
        self._enter(record)
        if self._is_due():
            self.show_progress(blocks)

    def finished_groups(self, raw: str) -> dict[str, TaskRecord]:
        """Task → record of the groups that an earlier start finished from the same raw files and that are whole."""
        records = self._journal.records() if self._journal else ()
        return {one.task: one for one in records if one.raw == raw and self._holds(one.files)}

    def place(self, result: TaskResult) -> None:
        """Write the files of a result, those that are not in their places."""
        for output in result.outputs:
            if output.content is not None:
                write_bytes(self.directory / output.file.path, output.content)

    def show_progress(self, blocks: int) -> None:
        """Bring the manifest up to date with every shard that was entered."""
        total = len(self.recipe.variants) * blocks
        if self._done is None:  # looked up once and counted from then on: all shards may be very many
            self._done = total - len(self.missing(self.shards(blocks)))
        progress = {"shards_done": self._done, "shards_total": total, "empty_shards": sorted(self._empty)}
        self.record([], counts={**self.manifest.counts, **progress})

    def journalled(self, result: TaskResult, raw: str = "") -> TaskRecord:
        """Put the files of a result in place, then say so in the journal. ``raw``: of a group, ``raw_digest``."""
        self.place(result)
        record = TaskRecord.of(result, raw)
        if self._journal:
            self._journal.append(record)
        return record

    def _is_due(self) -> bool:
        """Whether many shards are new, or the last manifest's cost is a small share of the time since then."""
        many = self._new >= max(1.0, NEW * len(self._files))
        return many or time.monotonic() - self._last >= self._cost / SHARE

    def _is_done(self, shard: Shard) -> bool:
        return all(path in self._files or path in self._empty for path in layout.paths(self.recipe, shard))

    def _enter(self, record: TaskRecord) -> None:
        """Take note of a shard's files. One that was made again may have rows where it had none, or none any more."""
        for path in record.empty:
            self._files.pop(path, None)
        self._files |= {file.path: file for file in record.files}
        self._empty -= {file.path for file in record.files}
        self._empty |= set(record.empty)
        self._new += 1

    def _take_up_shards(self) -> None:
        """Enter the shards in the journal of an earlier start, as far as the directory holds them whole."""
        shards = (record for record in (self._journal.records() if self._journal else ()) if not record.raw)
        for record in (record for record in shards if self._holds(record.files)):
            self._enter(record)
        if self._new:
            counts = {**self.manifest.counts, "empty_shards": sorted(self._empty)}
            self.manifest = self.manifest.model_copy(update={"counts": counts})

    def _holds(self, files: Iterable[File]) -> bool:
        paths = ((self.directory / file.path, file.sha256) for file in files)
        return all(path.is_file() and sha256_file(path) == digest for path, digest in paths)
