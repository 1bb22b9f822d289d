"""The run directory of a dataset while it is written: shards in, manifest after them, everything resumable.

Raw and rejected rows are written shard by shard, as the model writes them. When the last shard is there, ``finish``
reads them back and writes the finished configs, so the finished rows are a function of the raw files alone.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generation import pairs
from generation.sources import FirstText
from hub import run_dir
from hub.errors import RunError
from hub.recipe import DatasetRecipe
from hub.run_dir import File, Manifest
from hub.schema import config_features
from hub.shards import read_shard, shard_path, write_shard

Row = dict[str, Any]
ROWS_PER_FILE = 100_000  # of a finished config


class DatasetRun:
    """One dataset's directory, its recipe and the manifest as it is on disk."""

    def __init__(self, directory: Path, recipe: DatasetRecipe, manifest: Manifest):
        self.directory, self.recipe, self.manifest = directory, recipe, manifest

    def record(self, files: list[File], **changes: Any) -> None:
        """Add finished files to the manifest on disk."""
        self.manifest = self.manifest.with_files(files, **changes)
        run_dir.write_manifest(self.directory, self.manifest)

    def first_texts(self) -> list[FirstText] | None:
        """First texts that the model wrote in an earlier, interrupted run; None when there are none."""
        rows = list(self._rows("sources"))
        return [FirstText(row["source_id"], row["text"]) for row in rows] or None

    def write_first_texts(self, rows: list[Row], rejected: dict[str, int]) -> None:
        """Keep the first texts that the model wrote, as the config ``sources``."""
        files = self._write("sources", "train", rows, 0, 1)
        self.record(files, counts={**self.manifest.counts, "sources_rejected": rejected})

    def shards(self, firsts: list[FirstText]) -> list[list[FirstText]]:
        """The first texts of each shard."""
        size = self.recipe.shard_size
        return [firsts[start : start + size] for start in range(0, len(firsts), size)]

    def has_shard(self, index: int, total: int) -> bool:
        """Whether shard ``index`` was finished by an earlier run."""
        named = {file.path for file in self.manifest.files} | set(self.manifest.counts.get("empty_shards", ()))
        return {shard_path("raw", "train", index, total), shard_path("rejected", "train", index, total + 1)} <= named

    def write_shard(self, index: int, total: int, raw: list[Row], rejected: list[Row]) -> None:
        """Write the rows of one shard, then say so in the manifest. No file is written without rows: it cannot load."""
        files = self._write("raw", "train", raw, index, total)
        files += self._write("rejected", "train", rejected, index, total + 1)
        counts = {**self.manifest.counts, "shards_done": index + 1, "shards_total": total}
        parts = {
            shard_path("raw", "train", index, total): raw,
            shard_path("rejected", "train", index, total + 1): rejected,
        }
        empty = [path for path, rows in parts.items() if not rows]
        self.record(files, counts={**counts, "empty_shards": [*counts.get("empty_shards", []), *empty]})

    def finish(self, total: int, sources: int) -> None:
        """Sift the raw rows, write the finished configs, count everything, mark the run complete.

        Raises RunError when a label has no row left.
        """
        kept, dropped = pairs.sift(self._rows("raw"), self.recipe.postprocess.max_per_label)
        self._check_labels(kept, dropped)
        files = self._write("rejected", "train", dropped, total, total + 1)
        for config, splits in self._finished(kept).items():
            for split, rows in splits.items():
                parts = [rows[start : start + ROWS_PER_FILE] for start in range(0, len(rows), ROWS_PER_FILE)]
                for index, part in enumerate(parts):
                    files += self._write(config, split, part, index, len(parts))
        self.manifest = self.manifest.with_files(files)
        counts = self._counts(kept, sources)
        self.record([], counts=counts, complete=True)

    def _finished(self, kept: list[Row]) -> dict[str, dict[str, list[Row]]]:
        if self.recipe.form == "sts":
            return {"postprocessed": pairs.scored_pairs(kept, self.recipe)}
        return {
            "triplet": pairs.triplets(kept, self.recipe),
            "pair-class": pairs.classified_pairs(kept, self.recipe),
        }

    def _write(self, config: str, split: str, rows: list[Row], index: int, total: int) -> list[File]:
        if not rows:
            return []
        path = shard_path(config, split, index, total)
        write_shard(self.directory / path, rows, config_features(config, self.recipe))
        return [run_dir.describe(self.directory, path, config=config, split=split, rows=len(rows))]

    def _rows(self, config: str) -> Iterator[Row]:
        for file in self.manifest.shards(config):
            yield from read_shard(self.directory / file.path)

    def _check_labels(self, kept: list[Row], dropped: list[Row]) -> None:
        left = {row["target"] for row in kept}
        for label in self.recipe.labels:
            if label.name not in left:
                rejected = [row for row in (*self._rows("rejected"), *dropped) if row["target"] == label.name]
                reasons = dict(Counter(row["reason"] for row in rejected))
                raise RunError(
                    f"{self.directory}: label {label.name!r}",
                    f"no row is left of it (rejected: {reasons})",
                    hint="use a stronger model, other instructions or more first texts",
                )

    def _counts(self, kept: list[Row], sources: int) -> dict[str, Any]:
        rejected = list(self._rows("rejected"))
        by_label = {
            label.name: {
                "kept": sum(row["target"] == label.name for row in kept),
                "rejected": sum(row["target"] == label.name for row in rejected),
            }
            for label in self.recipe.labels
        }
        splits: dict[str, dict[str, int]] = {}
        for file in self.manifest.files:
            if file.config and file.split and file.rows is not None:
                config = splits.setdefault(file.config, {})
                config[file.split] = config.get(file.split, 0) + file.rows
        before = self.manifest.counts
        earlier = {str(key): before[key] for key in ("sources_skipped", "sources_rejected") if key in before}
        finished = sum(splits.get("postprocessed", {}).values())
        return {
            **earlier,
            "sources": sources,
            "requested": len(kept) + len(rejected),
            "kept": len(kept),
            "rejected": dict(sorted(Counter(row["reason"] for row in rejected).items())),
            "sampled_negatives": finished - len(kept) if self.recipe.form == "sts" else 0,
            "by_label": {name: {"requested": sum(count.values()), **count} for name, count in by_label.items()},
            "splits": splits,
        }
