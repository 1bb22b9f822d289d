"""The published rows of a dataset's run directory: configs, splits, sizes, and the first rows of each label.

Of a growing run only footers and a few shards are read, because each of its commits has a card.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import File, Manifest
from hub.contract.schema import SAMPLED, SPLITS, base_config
from hub.contract.shards import AGAIN, read_table, reading_rows, shard_tables
from hub.errors import InputError

BATCH = 500  # rows
GROWING_SHARDS = 4  # read for a growing run: a label whose texts are all rejected must not cost a full read


@dataclass
class Split:
    """A split of a config: ``data_bytes`` uncompressed, ``file_bytes`` of the ``paths`` with rows; ``gaps``: others."""

    name: str
    rows: int = 0
    data_bytes: int = 0
    file_bytes: int = 0
    paths: list[str] = field(default_factory=list)
    gaps: bool = False


def ordered_shards(manifest: Manifest, config: str) -> list[File]:
    """The shards of a config in the order of splits (train first), then of paths."""
    order = {split: index for index, split in enumerate(SPLITS)}
    return sorted(manifest.shards(config), key=lambda file: (order.get(file.split or "", len(order)), file.path))


def existing_configs(recipe: DatasetRecipe, manifest: Manifest) -> list[str]:
    """The recipe's configs that have rows, in the recipe's order."""
    return [config for config in recipe.configs if any(file.rows for file in manifest.shards(config))]


def measure(directory: Path, manifest: Manifest, config: str) -> list[Split]:
    """The splits of a config in the usual order, measured from its shards; of a growing run, from their footers.

    Footers give the size of the uncompressed parquet pages instead of arrow's buffers in memory.

    Raises InputError when a shard has another number of rows than the manifest says.
    """
    splits: dict[str, Split] = {}
    for file in ordered_shards(manifest, config):
        path, split = directory / file.path, splits.setdefault(str(file.split), Split(str(file.split)))
        if manifest.complete:
            table = read_table(path)
            rows, size = table.num_rows, table.nbytes
        else:
            with reading_rows(path, AGAIN):
                footer = pq.read_metadata(path)
            rows, size = footer.num_rows, sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
        if rows != file.rows:
            raise InputError(path, f"has {rows} rows, but the manifest says {file.rows}")
        split.data_bytes += size
        if rows:
            split.rows, split.file_bytes = split.rows + rows, split.file_bytes + file.bytes
            split.paths.append(file.path)
        else:
            split.gaps = True
    return [split for split in splits.values() if split.rows]


def default_config(configs: Iterable[str], recipe: DatasetRecipe) -> str:
    """The default of the existing ``configs``: the recipe's first or, until that exists, a raw one."""
    existing = sorted(configs, key=recipe.configs.index)
    raw = [config for config in existing if base_config(config) == "raw"]
    return existing[0] if existing[0] == recipe.configs[0] else [*raw, *existing][0]


def sample_config(manifest: Manifest, recipe: DatasetRecipe) -> str | None:
    """The config of the sample rows: the labelled one, or a raw one until it has shards; None without either."""
    for base in (recipe.dataset_schema.labelled, "raw"):
        for config in recipe.configs:
            if base_config(config) == base and manifest.shards(config):
                return config
    return None


def targets_of(recipe: DatasetRecipe) -> list[str]:
    """The targets of finished rows: the labels, and for scored pairs the sampled negatives."""
    names = [label.name for label in recipe.written_labels]
    return [*names, SAMPLED] if recipe.dataset_schema.sampled_negatives else names


def first_rows(
    directory: Path, shards: list[File], column: str, values: list[str], wanted: int
) -> dict[str, list[dict[str, Any]]]:
    """The first ``wanted`` rows of each value of a column; reads no further than necessary."""
    found: dict[str, list[dict[str, Any]]] = {value: [] for value in values}
    for file in shards:
        for batch in shard_tables(directory / file.path, BATCH):
            missing = [value for value, rows in found.items() if len(rows) < wanted]
            if not missing:
                return found
            for row in batch.filter(pc.is_in(batch.column(column), pa.array(missing))).to_pylist():
                if len(found[row[column]]) < wanted:
                    found[row[column]].append(row)
    return found


def rows_by_label(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> dict[str, dict[str, int]]:
    """Label → split → rows of the labelled config, all shot counts together."""
    found: dict[str, Counter[str]] = {target: Counter() for target in targets_of(recipe)}
    for config in recipe.configs:
        if base_config(config) == recipe.dataset_schema.labelled:
            for file in ordered_shards(manifest, config):
                targets = read_table(directory / file.path, ["target"]).column("target")
                for entry in targets.value_counts().to_pylist():
                    found.setdefault(entry["values"], Counter())[str(file.split)] += entry["counts"]
    return {target: dict(splits) for target, splits in found.items() if splits}
