"""The sample rows a dataset card shows: the first of every target and of every reason, in the order of the shards."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hub.contract.recipe import DatasetRecipe, finished_schema
from hub.contract.run_dir import File, Manifest
from hub.contract.schema import SAMPLED, ColumnType, base_config
from hub.contract.shards import shard_tables
from hub.untrusted import Markdown, code, sample, table
from model_cards.shared.configs import ordered_shards

PER_TARGET = 3
PER_REASON = 2
BATCH = 500  # rows
GROWING_SHARDS = 4  # read for a growing card: a label whose texts are all rejected must not cost a full read
RAW_COLUMNS = ["text1", "text2"]


def sample_config(manifest: Manifest, recipe: DatasetRecipe) -> str | None:
    """The config that samples are taken from, the first that has rows; None while there is none."""
    for base in (recipe.dataset_schema.labelled, "raw"):
        for config in recipe.configs:
            if base_config(config) == base and manifest.shards(config):
                return config
    return None


def sample_table(directory: Path, manifest: Manifest, recipe: DatasetRecipe, config: str) -> Markdown | None:
    """A table of sample rows of ``config``, or None while there are none."""
    raw = base_config(config) == "raw"
    types = {} if raw else finished_schema(config, recipe).columns
    columns = RAW_COLUMNS if raw else list(types)
    targets = [label.name for label in recipe.written_labels] if raw else targets_of(recipe)
    shards = ordered_shards(manifest, config)[: None if manifest.complete else GROWING_SHARDS]
    found = first_rows(directory, shards, "target", targets, PER_TARGET)
    rows = [
        [code(target), *(_cell(types.get(column), row[column]) for column in columns)]
        for target in targets
        for row in found[target]
    ]
    return table(["asked for", *columns], rows) if rows else None


def targets_of(recipe: DatasetRecipe) -> list[str]:
    """The targets of finished rows: the labels, and for scored pairs the sampled negatives."""
    return [label.name for label in recipe.written_labels] + (
        [SAMPLED] if recipe.dataset_schema.sampled_negatives else []
    )


def rejected_samples(directory: Path, manifest: Manifest, recipe: DatasetRecipe, reasons: list[str]) -> Markdown | None:
    """A table of a few rejected rows for every reason, or None without any."""
    configs = [config for config in recipe.configs if base_config(config) == "rejected"]
    shards = [file for config in configs for file in ordered_shards(manifest, config)]
    found = first_rows(directory, shards, "reason", reasons, PER_REASON)
    rows = [
        [code(reason), code(row["target"]), *(sample(row[column]) for column in RAW_COLUMNS)]
        for reason in reasons
        for row in found[reason]
    ]
    return table(["reason", "asked for", *RAW_COLUMNS], rows) if rows else None


def first_rows(
    directory: Path, shards: list[File], column: str, values: list[str], wanted: int
) -> dict[str, list[dict[str, Any]]]:
    """The first ``wanted`` rows of each of the values of a column; reads no further than it needs to."""
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


def _cell(type_of: ColumnType | None, value: Any) -> Any:
    if isinstance(type_of, tuple):
        return type_of[value]
    return sample(value) if isinstance(value, str) else value
