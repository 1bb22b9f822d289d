"""What of a finished dataset an experiment's encoder is trained on."""

from pathlib import Path

from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from hub.contract.schema import base_config, is_finished
from hub.contract.shards import parquet_schema, read_table
from hub.errors import InputError


def finished_config(directory: Path) -> str:
    """The config of a dataset that is trained on: its form's default. Raises InputError for several shot counts."""
    configs = [*filter(is_finished, load_recipe(directory / RECIPE, DatasetRecipe).configs)]
    alike = [config for config in configs if base_config(config) == base_config(configs[0])]
    if len(alike) != 1:
        raise InputError(directory, "which config is trained on?", allowed=alike, hint="give each shot count an arm")
    return configs[0]


def first_texts(directory: Path) -> list[str]:
    """The first texts of a dataset's rows to train on, each once."""
    config = finished_config(directory)
    files = [file for file in require_complete(directory).files if file.config == config and file.split == "train"]
    column = parquet_schema(directory / files[0].path).names[0]
    texts = (text for file in files for text in read_table(directory / file.path, [column])[column].to_pylist())
    return list(dict.fromkeys(texts))
