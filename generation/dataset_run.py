"""The run directory of a dataset while it is written: shards in, manifest after them, everything resumable.

Raw and rejected rows are written shard by shard, as the model writes them. When the last shard is there,
``generation.finish`` reads them back, so the finished rows are a function of the raw files alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generation import pairs
from hub import run_dir
from hub.recipe import DatasetRecipe, Variant, config_name
from hub.run_dir import File, Manifest
from hub.schema import config_features
from hub.shards import Parts, read_shard, shard_path, write_shard

Row = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """The unit of work: the first texts of one of ``blocks`` blocks, asked for in one variant."""

    variant: Variant
    block: int
    blocks: int


class DatasetRun:
    """One dataset's directory, its recipe and the manifest as it is on disk."""

    def __init__(self, directory: Path, recipe: DatasetRecipe, manifest: Manifest):
        self.directory, self.recipe, self.manifest = directory, recipe, manifest

    def record(self, files: list[File], **changes: Any) -> None:
        """Add finished files to the manifest on disk."""
        self.manifest = self.manifest.with_files(files, **changes)
        run_dir.write_manifest(self.directory, self.manifest)

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
        parts = Parts(self.directory, "sources", "train", config_features("sources", self.recipe))
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
        """All shards in the order of work: every block of a variant, then the next variant."""
        return [Shard(variant, block, blocks) for variant in self.recipe.variants for block in range(blocks)]

    def paths(self, shard: Shard) -> tuple[str, str]:
        """Where a shard's raw and rejected rows stand. The shards of a shot count's example sets follow each other."""
        sets = sum(variant.shots == shard.variant.shots for variant in self.recipe.variants)
        index, total = shard.variant.example_set * shard.blocks + shard.block, sets * shard.blocks
        raw, rejected = (config_name(base, shard.variant.shots) for base in ("raw", "rejected"))
        late = int(self.recipe.form == "text")  # one more file: texts that another shard holds already
        return shard_path(raw, "train", index, total), shard_path(rejected, "train", index, total + late)

    def missing(self, shards: Iterable[Shard]) -> list[Shard]:
        """The shards that no earlier start finished."""
        named = {file.path for file in self.manifest.files} | set(self.manifest.counts.get("empty_shards", ()))
        return [shard for shard in shards if not named.issuperset(self.paths(shard))]

    def write_shard(self, shard: Shard, raw: list[Row], failed: list[Row]) -> None:
        """Write the rows of one shard, then say so in the manifest. No file is written without rows: it cannot load.

        ``failed`` rows were no usable text; those that sifting drops join them, in the order of work.
        """
        _, dropped = pairs.sift(raw, self.recipe.postprocess.max_per_label)
        parts = dict(zip(self.paths(shard), (raw, [*failed, *dropped]), strict=True))
        files = [self._written(path, rows) for path, rows in parts.items() if rows]
        empty = {path for path, rows in parts.items() if not rows} | set(self.manifest.counts.get("empty_shards", ()))
        done, total = self.manifest.counts.get("shards_done", 0) + 1, len(self.recipe.variants) * shard.blocks
        progress = {"shards_done": done, "shards_total": total}
        counts = {**self.manifest.counts, **progress, "empty_shards": sorted(empty)}
        self.record(files, counts=counts)

    def _written(self, path: str, rows: list[Row]) -> File:
        config = path.split("/")[1]
        write_shard(self.directory / path, rows, config_features(config, self.recipe))
        return run_dir.describe(self.directory, path, config=config, split="train", rows=len(rows))

    def kept(self, shard: Shard, columns: Sequence[str] | None = None) -> list[Row]:
        """The rows of a finished shard that sifting keeps; ``columns`` must hold text1, text2 and target."""
        raw, _ = self.paths(shard)
        if raw in self.manifest.counts.get("empty_shards", ()):
            return []
        return pairs.sift(read_shard(self.directory / raw, columns), self.recipe.postprocess.max_per_label)[0]

    def rejects(self, shard: Shard) -> list[Row]:
        """Target and reason of a finished shard's rejected rows."""
        _, rejected = self.paths(shard)
        if rejected in self.manifest.counts.get("empty_shards", ()):
            return []
        return read_shard(self.directory / rejected, ("target", "reason"))
