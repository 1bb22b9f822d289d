"""The sample rows a dataset card shows: the first few of every target, in the order of the shards."""

from pathlib import Path
from typing import Any

from hub.recipe import DatasetRecipe
from hub.run_dir import Manifest
from hub.schema import NLI_LABELS, STS
from hub.shards import read_shard
from model_cards.configs import form_of, ordered_shards
from model_cards.escape import Markdown, code, sample, table

PER_TARGET = 3
SAMPLED = "sampled"  # the target of a sampled negative
SHOWN = {"sts": ("postprocessed", "raw"), "nli": ("pair-class", "raw")}  # the first config that exists is shown
RAW_COLUMNS = ["text1", "text2"]


def sample_table(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> Markdown | None:
    """A table of sample rows, or None while there are none."""
    config = next((config for config in SHOWN[recipe.form] if manifest.shards(config)), None)
    if config is None:
        return None
    columns = RAW_COLUMNS if config == "raw" else list(form_of(config).columns)
    targets = [label.name for label in recipe.labels] + ([SAMPLED] if recipe.form == STS.name else [])
    found = first_rows(directory, manifest, config, targets)
    rows = [
        [code(target), *(_cell(column, row[column]) for column in columns)]
        for target in targets
        for row in found[target]
    ]
    return table(["asked for", *columns], rows) if rows else None


def first_rows(directory: Path, manifest: Manifest, config: str, targets: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The first ``PER_TARGET`` rows of every target; reads no more shards than it needs."""
    found: dict[str, list[dict[str, Any]]] = {target: [] for target in targets}
    for file in ordered_shards(manifest, config):
        for row in read_shard(directory / file.path):
            rows = found.get(row["target"])
            if rows is not None and len(rows) < PER_TARGET:
                rows.append(row)
        if all(len(rows) == PER_TARGET for rows in found.values()):
            break
    return found


def _cell(column: str, value: Any) -> Any:
    if column == "label":
        return NLI_LABELS[value]
    return sample(value) if isinstance(value, str) else value
