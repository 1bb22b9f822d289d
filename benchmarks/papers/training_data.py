"""What experiments read of a finished dataset: the config and first texts to train on, rows to judge."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def finished_rows(
    directory: Path, columns: Sequence[str], hint: str, wanted: Callable[[str], bool] = is_finished
) -> list[tuple[Any, ...]]:
    """These columns of every row of a dataset's finished configs, or of those ``wanted``.

    Raises InputError, with the hint what brings them, for a dataset without such rows or columns.
    """
    rows = list[tuple[Any, ...]]()
    for file in require_complete(directory).files:
        if file.config and wanted(file.config):
            try:
                found = read_table(directory / file.path, list(columns)).to_pylist()
            except KeyError as error:
                raise InputError(directory, f"has no column {error}", hint=hint) from error
            rows += [tuple(row[column] for column in columns) for row in found]
    if not rows:
        raise InputError(directory, "has no rows of the form that is read", hint=hint)
    return rows
