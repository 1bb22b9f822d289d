"""The run directory of a dataset while it is written: shards in, manifest after them, everything resumable.

Raw and rejected rows are written shard by shard, as the model writes them. When the last shard is there,
``generation.finish`` reads them back, so the finished rows are a function of the raw files alone.

A manifest names every file, so writing it takes longer the more there are. A shard is therefore entered in a journal,
one line, and the manifest follows when that costs little (``_is_due``): the time of a shard does not grow with the run.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from generation import layout
from generation.layout import Shard
from generation.tasks import Made, Row, WriteShard
from generation.worker import shard_files
from hub import run_dir
from hub.recipe import DatasetRecipe
from hub.run_dir import File, Manifest
from hub.schema import config_features
from hub.shards import ROWS_PER_FILE, Parts, read_shard, sha256_file, write_bytes

SHARE = 0.02  # of a run's time that may go into writing manifests
NEW = 1 / 64  # of the shards: so many new ones are worth a manifest whatever it costs


class DatasetRun:
    """One dataset's directory, its recipe and the manifest as it is on disk.

    ``journal``: the file for shards that the manifest does not name yet; what an earlier start left there is taken up.
    """

    def __init__(self, directory: Path, recipe: DatasetRecipe, manifest: Manifest, journal: Path | None = None):
        self.directory, self.recipe, self.manifest = directory, recipe, manifest
        self._journal = journal
        self._files = {file.path: file for file in manifest.files}
        self._empty = set[str](manifest.counts.get("empty_shards", ()))
        self._new, self._last, self._cost = 0, 0.0, 0.0
        self._take_up()

    def record(self, files: list[File], **changes: Any) -> None:
        """Add finished files to the manifest on disk."""
        self._files |= {file.path: file for file in files}
        ordered = tuple(self._files[path] for path in sorted(self._files))
        started = time.monotonic()
        self.manifest = self.manifest.model_copy(update={"files": ordered, **changes})
        run_dir.write_manifest(self.directory, self.manifest)
        if self._journal and self._journal.exists():
            self._journal.write_bytes(b"")
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
        size = max(ROWS_PER_FILE, (self.recipe.source.limit or 0) // 1_000)
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
        done = self._files.keys() | self._empty
        return [shard for shard in shards if not done >= set(layout.paths(self.recipe, shard))]

    def empty_among(self, paths: set[str]) -> frozenset[str]:
        """Those of ``paths`` that were not written, for want of rows."""
        return frozenset(paths & self._empty)

    def write_shard(self, shard: Shard, raw: list[Row], failed: list[Row]) -> None:
        """Write the rows of one shard and enter it: ``generation.worker.shard_files``."""
        self.add_shard(shard_files(self.recipe, WriteShard(shard, ()), raw, failed), shard.blocks)
        self.show_progress(shard.blocks)

    def add_shard(self, made: Made, blocks: int) -> None:
        """Put the files of a shard in their places, then say so in the journal; in the manifest when that is due."""
        files = self.place(made)
        self._enter(files, made.empty)
        if self._is_due():
            self.show_progress(blocks)

    def place(self, made: Made) -> list[File]:
        """Write the files that a task made, those that are not in their places; their manifest entries."""
        for piece in made.pieces:
            if piece.content is not None:
                write_bytes(self.directory / piece.file.path, piece.content)
        return [piece.file for piece in made.pieces]

    def show_progress(self, blocks: int) -> None:
        """Bring the manifest up to date with every shard that was entered."""
        total = len(self.recipe.variants) * blocks
        done = total - len(self.missing(self.shards(blocks)))
        progress = {"shards_done": done, "shards_total": total, "empty_shards": sorted(self._empty)}
        self.record([], counts={**self.manifest.counts, **progress})

    def _is_due(self) -> bool:
        """Whether many shards are new, or the last manifest's cost is a small share of the time since then."""
        many = self._new >= max(1.0, NEW * len(self._files))
        return many or time.monotonic() - self._last >= self._cost / SHARE

    def _enter(self, files: list[File], empty: Iterable[str]) -> None:
        if self._journal:
            line = {"files": [file.model_dump() for file in files], "empty": list(empty)}
            with self._journal.open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(line) + "\n")
                journal.flush()
                os.fsync(journal.fileno())
        self._files |= {file.path: file for file in files}
        self._empty |= set(empty)
        self._new += 1

    def _take_up(self) -> None:
        """Enter what the journal of an earlier start names and the directory holds; a torn last line names nothing."""
        if not self._journal or not self._journal.is_file():
            return
        for line in self._journal.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
                files = [File.model_validate(file) for file in entry["files"]]
            except (json.JSONDecodeError, ValidationError):
                continue
            if all(self._is_whole(file) for file in files):
                self._files |= {file.path: file for file in files}
                self._empty |= set(entry["empty"])
        counts = {**self.manifest.counts, "empty_shards": sorted(self._empty)}
        self.manifest = self.manifest.model_copy(update={"counts": counts})

    def _is_whole(self, file: File) -> bool:
        path = self.directory / file.path
        return path.is_file() and sha256_file(path) == file.sha256
