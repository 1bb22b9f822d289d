"""The published rows of a dataset's run directory: configs, splits, sizes, first rows.

Of a growing run only footers and a few shards are read, because each of its commits has a card.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.run_dir import File, Manifest
from sts_dino.hub.contract.schema import SAMPLED, SPLITS, get_base_config
from sts_dino.hub.contract.shards import (
    RERUN_HINT,
    convert_reader_errors,
    iter_shard_tables,
    read_table,
)
from sts_dino.hub.errors import InputError

BATCH_ROWS = 500  # rows of a shard that are read together
# shards from which the sample rows of a growing run are read: a label without accepted texts must
# not cost a full read at every commit
MOST_SAMPLED_SHARDS = 4


@dataclass
class Split:
    """The size of a split of a config.

    ``data_bytes``: of the uncompressed rows. ``file_bytes``: of the shards that have rows.
    """

    name: str
    rows: int = 0
    data_bytes: int = 0
    file_bytes: int = 0


def sort_shards(manifest: Manifest, config: str) -> list[File]:
    """Sort the shards of a config by split (train first, others than ``SPLITS`` last) and path."""
    ranks = {split: rank for rank, split in enumerate(SPLITS)}
    return sorted(
        manifest.shards(config),
        key=lambda file: (ranks.get(file.split or "", len(ranks)), file.path),
    )


def list_existing_configs(recipe: DatasetRecipe, manifest: Manifest) -> list[str]:
    """List the recipe's configs that have rows, in the recipe's order."""
    return [
        config for config in recipe.configs if any(file.rows for file in manifest.shards(config))
    ]


def measure_splits(directory: Path, manifest: Manifest, config: str) -> list[Split]:
    """Measure the splits of a config from its shards, train first; leave out splits without rows.

    The rows of a finished run are read, and ``data_bytes`` is the size of arrow's buffers in
    memory. Of a growing run only footers are read, and ``data_bytes`` is the size of the
    uncompressed parquet pages.

    Raises InputError for a damaged shard, and for one with another number of rows than the manifest
    says; OSError for a shard that cannot be opened.
    """
    splits: dict[str, Split] = {}
    for file in sort_shards(manifest, config):
        # rows and bytes of the shard
        path = directory / file.path
        if manifest.complete:
            table = read_table(path)
            rows = table.num_rows
            size = table.nbytes
        else:
            with convert_reader_errors(path, RERUN_HINT):
                footer = pq.read_metadata(path)
            groups = range(footer.num_row_groups)
            rows = footer.num_rows
            size = sum(footer.row_group(index).total_byte_size for index in groups)
        if rows != file.rows:
            raise InputError(path, f"has {rows} rows, but the manifest says {file.rows}")

        # add them to the split
        split = splits.setdefault(str(file.split), Split(str(file.split)))
        split.data_bytes += size
        split.rows += rows
        if rows:
            split.file_bytes += file.bytes
    return [split for split in splits.values() if split.rows]


def choose_sample_config(manifest: Manifest, recipe: DatasetRecipe) -> str | None:
    """Choose the config of the sample rows: the first labelled one, else the first raw one.

    Configs without shards are passed over. Returns None while all are without shards.
    """
    for base in (recipe.dataset_schema.labelled, "raw"):
        for config in recipe.configs:
            if get_base_config(config) == base and manifest.shards(config):
                return config
    return None


def list_targets(recipe: DatasetRecipe) -> list[str]:
    """List the values of the column ``target`` in finished rows, in the recipe's order.

    They are the generated labels and, for schemas with sampled negatives, ``SAMPLED``.
    """
    names = [label.name for label in recipe.written_labels]
    return [*names, SAMPLED] if recipe.dataset_schema.sampled_negatives else names


def read_first_rows(
    directory: Path, shards: list[File], column: str, values: list[str], count: int
) -> dict[str, list[dict[str, Any]]]:
    """Read the first rows of each value of a column; reading stops once all are found.

    Args:
        directory: the run directory.
        shards: the shards, in the order to read.
        column: a column of texts.
        values: the values whose rows are read.
        count: the most rows of each value.

    Returns value → rows, each as column → value; a value without rows has an empty list. Raises
    InputError for a damaged shard, OSError for one that cannot be opened.
    """
    rows: dict[str, list[dict[str, Any]]] = {value: [] for value in values}
    for file in shards:
        for batch in iter_shard_tables(directory / file.path, BATCH_ROWS):
            missing = [value for value in values if len(rows[value]) < count]
            if not missing:
                return rows
            matches = batch.filter(pc.is_in(batch.column(column), pa.array(missing)))
            for row in matches.to_pylist():
                if len(rows[row[column]]) < count:
                    rows[row[column]].append(row)
    return rows


def count_rows_by_label(
    directory: Path, manifest: Manifest, recipe: DatasetRecipe
) -> dict[str, dict[str, int]]:
    """Count the rows of the labelled configs: target → split → rows, all shot counts together.

    A target is a label or ``SAMPLED``; targets without rows are left out. Raises InputError for a
    damaged shard, OSError for one that cannot be opened.
    """
    counts: dict[str, Counter[str]] = {target: Counter() for target in list_targets(recipe)}
    for config in recipe.configs:
        if get_base_config(config) != recipe.dataset_schema.labelled:
            continue
        for file in sort_shards(manifest, config):
            targets = read_table(directory / file.path, ["target"]).column("target")
            for entry in targets.value_counts().to_pylist():
                counts.setdefault(entry["values"], Counter())[str(file.split)] += entry["counts"]
    return {target: dict(splits) for target, splits in counts.items() if splits}
