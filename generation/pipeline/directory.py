"""Run directory of a dataset while it is generated: shards first, the manifest after them.

A manifest names every file, so it takes longer to write the longer the run is. Therefore a new
shard gets one line in a journal, and the manifest is written when this costs little
(``_is_manifest_due``). docs/architecture.md lists what a restart reads.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sts_dino.generation.inputs.sources import SeenTexts, SourceSentence
from sts_dino.generation.pipeline import tasks
from sts_dino.generation.pipeline.tasks import Shard, TaskResult
from sts_dino.generation.rows.selection import Row
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe, build_config_features
from sts_dino.hub.contract.run_dir import APPENDED_INPUT, File, Manifest
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.contract.shards import ROWS_PER_FILE, Parts, iter_shard_tables, read_shard
from sts_dino.hub.durable import (
    hash_file,
    make_folder,
    name_in_errors,
    require_regular_file,
    sync_to_disk,
    write_bytes,
)
from sts_dino.hub.errors import InputError

MANIFEST_TIME_SHARE = 0.02  # share of a run's time that may go into writing manifests
# with this many new shards for each known file, a manifest is due, whatever it costs
NEW_SHARDS_PER_FILE = 1 / 64


@dataclass(frozen=True)
class BaseRun:
    """The finished run that rows are appended to."""

    directory: Path
    manifest: Manifest

    @property
    def inputs(self) -> dict[str, str]:
        """The entry for this run in the inputs of the new rows' run: its name → fingerprint."""
        return {f"{APPENDED_INPUT}{self.manifest.version}": self.manifest.fingerprint}

    @property
    def source_sentences(self) -> int:
        """Number of its source sentences."""
        return int(self.manifest.counts["sources"])

    @property
    def used_numbers(self) -> int:
        """Number of source sentences that were generated, rejected texts included."""
        rejected = self.manifest.counts.get("sources_rejected", {})
        return self.source_sentences + sum(rejected.values())

    def read_rows(self, config: str, columns: Sequence[str]) -> Iterator[Row]:
        """Yield the columns ``columns`` of every row of a config, file by file."""
        for file in self.manifest.shards(config):
            for table in iter_shard_tables(self.directory / file.path, ROWS_PER_FILE, columns):
                yield from table.to_pylist()

    def select_new(
        self, sentences: Iterable[SourceSentence], source: str | None
    ) -> Iterator[SourceSentence]:
        """Yield the source sentences that follow the source sentences of this run.

        Args:
            sentences: all sentences of the longer source.
            source: name of the source, for errors.

        Raises InputError when the source does not begin with the sentences of this run (same ids
        and texts), or when no other sentence follows them. Raises the errors of ``sentences``, too.
        """
        # skip the sentences of this run, which come first; ``add`` is true for any other sentence
        base_sentences = self._collect_sentences()
        total = self.source_sentences
        version = f"v{self.manifest.version}"
        number = 0
        for number, sentence in enumerate(sentences, start=1):
            if number > total:
                yield sentence
            elif base_sentences.add(f"{sentence.source_id}\n{sentence.text}"):
                raise InputError(
                    source,
                    f"row {sentence.source_id} is among the first {total:,} source sentences, "
                    f"which must be those of {version}, and is not one of them",
                    hint="leave the source sentences that are there as they are, "
                    "and add new ones after them",
                )

        # require that others follow
        if number <= total:
            raise InputError(
                source,
                f"has {number:,} source sentences, and {version} has {total:,} already: "
                "nothing to append",
                hint="raise source.limit, or add rows at the end of the source",
            )

    def _collect_sentences(self) -> SeenTexts:
        """Return the source sentences of this run, from its raw and rejected rows.

        An entry of the set is the source id, a line break and the text.
        """
        base_sentences = SeenTexts()
        for config in {file.config for file in self.manifest.files if file.config}:
            if get_base_config(config) in ("raw", "rejected"):
                for row in self.read_rows(config, ("source_id", "text1")):
                    base_sentences.add(f"{row['source_id']}\n{row['text1']}")
        return base_sentences


def append_line(journal: Path, result: TaskResult) -> None:
    """Append a result to a journal, and return when the line is on the disk.

    Raises OSError with the name of the journal, InputError for a journal that is a pipe or the
    like.
    """
    line = b"\n" + result.to_line()  # the line break ends a line that a kill or full disk tore
    make_folder(journal.parent)
    is_new = not journal.exists()
    with name_in_errors(journal), require_regular_file(journal).open("ab", buffering=0) as file:
        while line:
            written = file.write(line)
            line = line[written:]
        os.fsync(file.fileno())
        if is_new:
            sync_to_disk(journal.parent)  # the folder holds the file's name


class DatasetRun:
    """One dataset's directory, its recipe and its manifest.

    The manifest is the one on disk, plus the empty shards that the journal names.

    Args:
        directory: the run directory.
        recipe: the dataset's recipe.
        manifest: the manifest on disk.
        journal: the file for results that the manifest does not name yet, one a line; results of
            an earlier start are read. None: results are not journalled.
        base: the finished run that these rows will be added to, if any.
    """

    def __init__(
        self,
        directory: Path,
        recipe: DatasetRecipe,
        manifest: Manifest,
        journal: Path | None = None,
        base: BaseRun | None = None,
    ):
        self.directory = directory
        self.recipe = recipe
        self.manifest = manifest
        self.base = base
        # paths of files that would have no rows, so that they are not written
        self.empty: set[str] = set(manifest.counts.get("empty_shards", ()))
        self._journal = journal
        self._files = {file.path: file for file in manifest.files}
        self._shards_done: int | None = None  # None: not counted yet
        self._new_shards = 0  # since the last manifest
        # when the last manifest was written (time.monotonic), and how many seconds that took
        self._written_at = 0.0
        self._write_seconds = 0.0

        # add the shards in the journal; a result with ``raw`` is a finished group
        for result in self._read_journal():
            if not result.raw and self._has_files(result.files):
                self._enter_shard(result)
        # name the empty shards in memory only: the next manifest on disk holds them
        if self._new_shards:
            counts = {**self.manifest.counts, "empty_shards": sorted(self.empty)}
            self.manifest = self.manifest.model_copy(update={"counts": counts})

    def update_manifest(self, files: Iterable[File] = (), **changes: Any) -> None:
        """Add files to the manifest, change some of its values, and write it.

        A journal of shards is removed, because the manifest then names its files.

        Args:
            files: entries for the manifest; an entry replaces the earlier one of its path.
            changes: field of the manifest → its new value.
        """
        self._files |= {file.path: file for file in files}
        ordered = tuple(self._files[path] for path in sorted(self._files))
        started = time.monotonic()
        self.manifest = self.manifest.model_copy(update={"files": ordered, **changes})
        run_dir.write_manifest(self.directory, self.manifest)
        # with no new shard, the journal holds finished groups, which the manifest does not name
        if self._journal and self._new_shards:
            self._journal.unlink(missing_ok=True)
        self._new_shards = 0
        self._written_at = time.monotonic()
        self._write_seconds = self._written_at - started

    def set_counts(self, **counts: Any) -> None:
        """Set some of the manifest's counts; write the manifest only if this changes a count."""
        changed = {**self.manifest.counts, **counts}
        if changed != self.manifest.counts:
            self.update_manifest(counts=changed)

    def read_rows(self, config: str) -> Iterator[Row]:
        """Yield all rows of a config, one file in memory at a time."""
        for file in self.manifest.shards(config):
            yield from read_shard(self.directory / file.path)

    def has_sources(self) -> bool:
        """Return whether the config ``sources`` has every generated source sentence."""
        rows = sum(file.rows or 0 for file in self.manifest.shards("sources"))
        return rows > 0 and rows == self.manifest.counts.get("sources")

    def write_sources(self, rounds: Iterable[Sequence[Row]]) -> None:
        """Write the generated source sentences as the config ``sources``, and name its files in
        the manifest.

        ``rounds``: the rows, in parts of any size. After an error unfinished files are removed.
        """
        features = build_config_features("sources", self.recipe)
        rows_per_file = tasks.count_sources_per_file(self.recipe)
        parts = Parts(self.directory, "sources", "train", features, rows_per_file)
        try:
            for rows in rounds:
                parts.add(rows)
            self.update_manifest(self.name_parts(parts))
        finally:
            parts.discard()

    def name_parts(self, parts: Parts) -> list[File]:
        """Give finished files their final names, and return the manifest entries of these files."""
        files = []
        for path, rows in parts.finish():
            file = run_dir.describe_file(
                self.directory, path, config=parts.config, split=parts.split, rows=rows
            )
            files.append(file)
        return files

    def find_missing_shards(self, shards: Iterable[Shard]) -> list[Shard]:
        """Return the shards with a file that neither manifest nor journal names or calls empty."""
        return [shard for shard in shards if not self._is_done(shard)]

    def hash_raw_files(self) -> str:
        """Return one SHA-256 for all raw and rejected files, from which finished rows are made.

        It covers each path and the SHA-256 of its file, and the paths of files without rows.
        """
        hashes = dict.fromkeys(self.empty, "")  # a path without a file has no hash
        for path, file in self._files.items():
            if file.config and get_base_config(file.config) in ("raw", "rejected"):
                hashes.setdefault(path, file.sha256)
        lines = "".join(f"{path} {hashes[path]}\n" for path in sorted(hashes))
        return hashlib.sha256(lines.encode()).hexdigest()

    def find_finished_groups(self, raw: str) -> dict[str, TaskResult]:
        """Return task key → result of each group that an earlier start finished from raw files.

        The raw files had the digest ``raw`` (``hash_raw_files``), and all files of the group are
        intact.
        """
        return {
            result.key: result
            for result in self._read_journal()
            if result.raw == raw and self._has_files(result.files)
        }

    def add_shard(self, result: TaskResult, blocks: int) -> None:
        """Store a shard's result, and write the manifest if that is due.

        ``result``: with its ``task`` set. ``blocks``: number of blocks of source sentences.
        """
        self.store_result(result)
        # a shard that is generated again counts once
        if self._shards_done is not None and not self._is_done(result.task.shard):
            self._shards_done += 1
        self._enter_shard(result)
        if self._is_manifest_due():
            self.write_progress(blocks)

    def store_result(self, result: TaskResult) -> TaskResult:
        """Write the files of a result and append it to the journal, if there is one.

        Returns the result without the contents of its files.
        """
        stored = self.write_files(result)
        if self._journal:
            append_line(self._journal, stored)
        return stored

    def write_files(self, result: TaskResult) -> TaskResult:
        """Write the files that a result has in memory; return it without their contents."""
        for path, content in result.contents.items():
            write_bytes(self.directory / path, content)
        return result.model_copy(update={"contents": {}})

    def _read_journal(self) -> Iterator[TaskResult]:
        """Yield every result in the journal, the oldest first; other lines are skipped."""
        if self._journal and self._journal.is_file():
            with self._journal.open("rb") as file:
                for line in file:
                    result = TaskResult.from_line(line)
                    if result is not None:
                        yield result

    def write_progress(self, blocks: int) -> None:
        """Write the manifest with every shard that is done.

        ``blocks``: number of blocks of source sentences.
        """
        total = len(self.recipe.variants) * blocks
        # a run may have very many shards: look for them once, ``add_shard`` then counts them
        if self._shards_done is None:
            missing = self.find_missing_shards(tasks.list_shards(self.recipe, blocks))
            self._shards_done = total - len(missing)
        progress = {
            "shards_done": self._shards_done,
            "shards_total": total,
            "empty_shards": sorted(self.empty),
        }
        self.update_manifest(counts={**self.manifest.counts, **progress})

    def _is_manifest_due(self) -> bool:
        """Return whether to write the manifest.

        It is due with ``NEW_SHARDS_PER_FILE`` new shards for each known file. It is also due when
        writing the last manifest took at most ``MANIFEST_TIME_SHARE`` of the time since then.
        """
        if self._new_shards >= max(1.0, NEW_SHARDS_PER_FILE * len(self._files)):
            return True
        return time.monotonic() - self._written_at >= self._write_seconds / MANIFEST_TIME_SHARE

    def _is_done(self, shard: Shard) -> bool:
        """Return whether each file of a shard is known, or known to have no rows."""
        paths = tasks.make_shard_paths(self.recipe, shard)
        return all(path in self._files or path in self.empty for path in paths)

    def _enter_shard(self, result: TaskResult) -> None:
        """Note the shard of ``result`` in memory: its files, and its paths without a file.

        They replace those of an earlier result of the shard.
        """
        for path in result.empty:
            self._files.pop(path, None)
        self._files |= {file.path: file for file in result.files}
        self.empty -= {file.path for file in result.files}
        self.empty |= set(result.empty)
        self._new_shards += 1

    def _has_files(self, files: Iterable[File]) -> bool:
        """Return whether all files are in the directory, unchanged."""
        paths = {self.directory / file.path: file.sha256 for file in files}
        return all(path.is_file() and hash_file(path) == paths[path] for path in paths)
