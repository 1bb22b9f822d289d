"""The loading scripts against the recipes, ``hub.contract.schema`` and the cards: one contract, said three times."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import yaml
from small_runs import FORMS, small_recipe, small_run
from typer.testing import CliRunner

from generation.pipeline import group_rows
from hub.contract import schema, shards
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe, read_yaml
from hub.contract.schema import PROVENANCE, SPLITS, config_features
from hub.errors import InputError, RunError
from release import scripts

DATASETS = sorted(Path("recipes/datasets").glob("*.yaml"))
RECIPES = [
    path
    for path in (*DATASETS, *sorted(Path("recipes/demo").glob("*.yaml")))
    if read_yaml(path).get("kind") == "dataset"
]


def written(recipe: DatasetRecipe, folder: Path) -> Path:
    """A recipe's script in a folder, with the modules it imports."""
    for name, text in scripts.script_files(recipe).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / scripts.script_name(recipe)


def imported(recipe: DatasetRecipe, folder: Path) -> ModuleType:
    """A recipe's script as a module, in a package of its own as ``datasets`` imports it."""
    path, package = written(recipe, folder), ModuleType("script_package")
    package.__path__ = [str(folder)]
    for name in [name for name in sys.modules if name.startswith("script_package")]:
        del sys.modules[name]
    sys.modules["script_package"] = package
    spec = importlib.util.spec_from_file_location("script_package.script", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beside(module: ModuleType, name: str) -> ModuleType:
    """A module that an imported script brought with it."""
    return sys.modules[f"{module.__package__}.{name}"]


def test_the_committed_scripts_are_those_of_the_recipes():
    wanted = scripts.committed()
    assert {path.stem for path in wanted} == {path.stem for path in DATASETS}
    assert {path.name for path in Path("dataset_scripts").glob("*.py")} == {*scripts.SHARED, *(p.name for p in wanted)}
    for path, text in wanted.items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run sts-dino loading-scripts"


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_script_and_schema_agree(tmp_path, path):
    recipe = load_recipe(path, DatasetRecipe)
    module = imported(recipe, tmp_path)
    assert list(module.SPEC.features) == list(recipe.configs)
    for config, features in module.SPEC.features.items():
        wanted = config_features(config, recipe)
        assert (list(features), features) == (list(wanted), wanted)
    builder = module.PublishedDataset
    assert [config.name for config in builder.BUILDER_CONFIGS] == list(recipe.configs)
    assert recipe.configs[0] == builder.DEFAULT_CONFIG_NAME
    columns, rows, _, command = (beside(module, name.removesuffix(".py")) for name in scripts.SHARED)
    assert columns.SPLITS == SPLITS and schema.features(PROVENANCE) == columns.PROVENANCE
    assert (command.ROW_GROUP, command.ROW_GROUP_BYTES) == (shards.ROW_GROUP, shards.ROW_GROUP_BYTES)
    assert sum(module.SPEC.sets.values()) == len(recipe.variants)
    assert (rows.POOL, rows.PARTNERS) == (group_rows.POOL, group_rows.PARTNERS)
    if recipe.form == "sts":
        assert list(module.SPEC.scores.items()) == [(label.name, label.score) for label in recipe.labels]


@pytest.mark.parametrize("form", FORMS)
def test_script_and_card_agree(tmp_path, form):
    recipe = small_recipe(form)
    small_run(tmp_path / "run", recipe)
    card = yaml.safe_load((tmp_path / "run" / "README.md").read_text().split("---\n")[1])
    module = imported(recipe, tmp_path)
    assert [entry["config_name"] for entry in card["configs"]] == list(module.SPEC.features)
    default = [entry["config_name"] for entry in card["configs"] if entry.get("default")]
    assert default == [module.PublishedDataset.DEFAULT_CONFIG_NAME]
    infos = {entry["config_name"]: entry for entry in card["dataset_info"]}
    for entry in card["configs"]:
        assert from_card(infos[entry["config_name"]]) == module.SPEC.features[entry["config_name"]]
        splits = [files["split"] for files in entry["data_files"]]
        assert splits == [name for name in SPLITS if name in splits]
        assert splits == [split["name"] for split in infos[entry["config_name"]]["splits"]]


def from_card(info: dict[str, Any]) -> datasets.Features:
    return datasets.Features._from_yaml_list(info["features"])


def test_a_demo_recipe_has_the_script_of_its_stem_unless_it_says_otherwise(tmp_path):
    """Few-shot configs are named after shot counts, so the demo's auto-nli (no examples) has a script of its own."""
    differ = set()
    for path in set(RECIPES) - set(DATASETS):
        recipe = load_recipe(path, DatasetRecipe)
        committed = scripts.SCRIPTS / scripts.script_name(recipe)
        if committed.read_text(encoding="utf-8") != scripts.script_text(recipe):
            differ.add(path.stem)
    assert differ == {"auto-nli"}


@pytest.mark.parametrize("path", sorted(Path("dataset_scripts").glob("*.py")), ids=str)
def test_a_script_needs_what_stands_beside_it_and_nothing_else(path):
    """Imports one a line: the old loader takes everything after ``import`` for one name, and comments for addresses."""
    modules = {name.removesuffix(".py") for name in scripts.SHARED}
    imports = [line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"(from|import)\s", line)]
    assert not [line for line in imports if "#" in line]
    brought = {line.split()[1].removeprefix(".") for line in imports if line.startswith("from .")}
    assert brought == modules if path.name not in scripts.SHARED else brought <= modules
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    allowed = sys.stdlib_module_names | {"datasets", "pyarrow"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert len(node.names) == 1 and node.names[0].name.split(".")[0] in allowed
        if isinstance(node, ast.ImportFrom):
            assert str(node.module).split(".")[0] in (modules if node.level else allowed)


def test_texts_of_a_recipe_cannot_leave_their_string(tmp_path):
    name = 'x"\n\\"; raise SystemExit #{{ 7 * 7 }}'
    labels = [{**label, "name": name} if label["name"] == "gut" else label for label in FORMS["text"]["labels"]]
    labels = [{**label, "counter_labels": []} for label in labels]
    module = imported(small_recipe("text", labels=labels), tmp_path)
    assert [name, 'bö"se'] == module.SPEC.labels
    scores = [{**label, "score": 0.25, "counter_labels": []} for label in labels]
    module = imported(small_recipe("sts", labels=scores), tmp_path)
    assert {name: 0.25, 'bö"se': 0.25} == module.SPEC.scores


def test_a_name_with_a_dot_can_have_no_script():
    with pytest.raises(InputError, match=r"recipe:name 'sts\.dino': a loading script cannot have a dot in its name"):
        scripts.script_name(small_recipe("sts", name="sts.dino"))


def test_the_command_writes_checks_and_removes(tmp_path, monkeypatch):
    (tmp_path / "recipes").symlink_to(Path("recipes").resolve())
    (tmp_path / "dataset_scripts").mkdir()
    monkeypatch.chdir(tmp_path)
    command = CliRunner()
    failed = command.invoke(scripts.app, ["--check"]).exception
    assert isinstance(failed, RunError) and "run: sts-dino loading-scripts" in str(failed)
    (tmp_path / "dataset_scripts" / scripts.SHARED[0]).write_text("")
    (tmp_path / "dataset_scripts" / "old.py").write_text("")
    written = command.invoke(scripts.app, []).output
    assert "written dataset_scripts/sts-dino-x2.py" in written and "removed dataset_scripts/old.py" in written
    assert (tmp_path / "dataset_scripts" / scripts.SHARED[0]).is_file()
    assert command.invoke(scripts.app, ["--check"]).exit_code == 0
    assert command.invoke(scripts.app, []).output == ""
    (tmp_path / "dataset_scripts" / "auto-nli.py").write_text("edited")
    failed = command.invoke(scripts.app, ["--check"]).exception
    assert isinstance(failed, RunError) and str(failed).startswith("dataset_scripts/auto-nli.py: not as the recipes")
