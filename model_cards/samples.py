"""The sample rows a dataset card shows: the first few of every target, in the order of the shards."""

from pathlib import Path
from typing import Any

from hub.recipe import DatasetRecipe
from hub.run_dir import Manifest
from hub.schema import STS, base_config, finished_form
from hub.shards import read_shard
from model_cards.configs import ordered_shards
from model_cards.escape import Markdown, code, sample, table

PER_TARGET = 3
SAMPLED = "sampled"  # the target of a sampled negative
SHOWN = {"sts": "postprocessed", "nli": "pair-class", "text": "postprocessed"}  # raw while it is missing
RAW_COLUMNS = ["text1", "text2"]


def sample_config(manifest: Manifest, recipe: DatasetRecipe) -> str | None:
    """The config that samples are taken from, the first that has rows; None while there is none."""
    for base in (SHOWN[recipe.form], "raw"):
        for config in recipe.configs:
            if base_config(config) == base and manifest.shards(config):
                return config
    return None


def sample_table(directory: Path, manifest: Manifest, recipe: DatasetRecipe, config: str) -> Markdown | None:
    """A table of sample rows of ``config``, or None while there are none."""
    raw = base_config(config) == "raw"
    features = {} if raw else finished_form(config, recipe).columns
    columns = RAW_COLUMNS if raw else list(features)
    targets = [label.name for label in recipe.labels] + ([SAMPLED] if recipe.form == STS.name else [])
    found = first_rows(directory, manifest, config, targets)
    rows = [
        [code(target), *(_cell(features.get(column), row[column]) for column in columns)]
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


def _cell(feature: object, value: Any) -> Any:
    names = getattr(feature, "names", None)
    if names:
        return names[value]
    return sample(value) if isinstance(value, str) else value
