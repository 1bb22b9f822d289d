"""The generic loading script and its table of configs, against the recipes, the published rows and
the cards.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pytest
from small_runs import FORMS, small_recipe, small_run

from sts_dino.hub.contract.recipe import DatasetRecipe, build_config_features
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.contract.schema import SPLITS
from sts_dino.hub.contract.shards import read_table
from sts_dino.release.publish import build_loading_script, format_script_files

RECIPES = [
    path
    for folder in ("datasets", "demo")
    for path in sorted(Path(f"recipes/{folder}").glob("*.yaml"))
    if read_yaml(path).get("kind") == "dataset"
]


def imported(recipe: DatasetRecipe, folder: Path) -> ModuleType:
    """The files of a recipe's branch ``script``, imported as ``datasets`` imports them: in a
    package of their own.
    """
    for name, text in format_script_files(recipe).items():
        (folder / name).write_text(text, encoding="utf-8")
    package = ModuleType("script_package")
    package.__path__ = [str(folder)]
    for name in [name for name in sys.modules if name.startswith("script_package")]:
        del sys.modules[name]
    sys.modules["script_package"] = package
    spec = importlib.util.spec_from_file_location(
        "script_package.script", folder / f"{recipe.name}.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def features_of(module: ModuleType) -> dict[str, datasets.Features]:
    """Config → features, as the builder states them."""
    builder = module.PublishedDataset
    configs = [config.name for config in builder.BUILDER_CONFIGS]
    return {
        name: builder._info(SimpleNamespace(config=SimpleNamespace(name=name))).features
        for name in configs
    }


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_script_and_schema_agree(tmp_path, path):
    recipe = load_recipe(path, DatasetRecipe)
    module = imported(recipe, tmp_path)
    found = features_of(module)
    assert (
        list(found) == list(recipe.configs)
        and recipe.configs[0] == module.PublishedDataset.DEFAULT_CONFIG_NAME
    )
    for config, features in found.items():
        wanted = build_config_features(config, recipe)
        assert (list(features), features) == (list(wanted), wanted)


@pytest.mark.parametrize("form", FORMS)
def test_the_builder_gives_the_rows_that_the_manifest_names(tmp_path, form):
    recipe, run = small_recipe(form), tmp_path / "run"
    small_run(run, recipe)
    manifest, module = require_complete(run), imported(recipe, tmp_path)
    stray = next((run / "data").glob("raw*/*.parquet"))
    # named by no manifest
    (stray.parent / "train-00099-of-00099.parquet").write_bytes(stray.read_bytes())
    for config in recipe.configs:
        found = loaded(module, config, run)
        shards = sorted(manifest.shards(config), key=lambda file: file.path)
        splits = {name: [file.path for file in shards if file.split == name] for name in SPLITS}
        wanted = {
            name: pa.concat_tables([read_table(run / one) for one in paths])
            for name, paths in splits.items()
            if paths
        }
        assert found == wanted


def loaded(module: ModuleType, config: str, directory: Path) -> dict[str, pa.Table]:
    """Split → rows, by the builder's own steps; files are taken from ``directory`` in place of a
    download.
    """

    def place(paths: Any) -> Any:
        return (
            [place(path) for path in paths] if isinstance(paths, list) else str(directory / paths)
        )

    builder = module.PublishedDataset
    splits = builder._split_generators(
        SimpleNamespace(config=SimpleNamespace(name=config)), SimpleNamespace(download=place)
    )
    tables = {
        one.name: [table for _, table in builder._generate_tables(None, **one.gen_kwargs)]
        for one in splits
    }
    return {str(split): pa.concat_tables(parts) for split, parts in tables.items()}


def test_texts_of_a_recipe_cannot_leave_their_string(tmp_path):
    name = 'x"\n\\"; raise SystemExit #{{ 7 * 7 }}\u2028😀'
    labels = [
        {**label, "name": name} if label["name"] == "gut" else label
        for label in FORMS["text"]["labels"]
    ]
    labels = [{**label, "counter_labels": []} for label in labels]
    module = imported(small_recipe("text", labels=labels), tmp_path)
    assert [name, 'bö"se'] == features_of(module)["postprocessed"]["label"].names
    small_run(tmp_path / "run", small_recipe("sts", name="sts.dino"))
    assert (
        build_loading_script(tmp_path / "run") == {}
    )  # Python imports no module with a dot in its name
