"""recipes/small: complete, and planned offline with what stands in for the Hub."""

import inspect
from pathlib import Path

import pytest
import yaml
from tiny_lm import make_lm

from generation import fetch_lm
from generation.dry_run import plan
from hub.contract.licences import check
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from model_cards.shared.changes import read_changes
from model_cards.shared.templates import section

OFFLINE = Path("assets/offline.yaml")
PATHS = sorted(Path("recipes/small").glob("*.yaml"))


@pytest.fixture(scope="module")
def offline(tmp_path_factory) -> Path:
    """The shipped stand-ins, with a random model in place of the one that make lm brings."""
    folder = tmp_path_factory.mktemp("small")
    stand_ins = yaml.safe_load(OFFLINE.read_text())
    stand_ins["google/gemma-3-270m"]["path"] = str(make_lm(folder / "lm", max_position_embeddings=4096))
    (folder / "offline.yaml").write_text(yaml.safe_dump(stand_ins))
    return folder / "offline.yaml"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_is_planned_offline_by_one_switch(path, offline, tmp_path):
    recipe = load_recipe(path, DatasetRecipe, [f"@{offline}", "premise_tokens=null"])
    assert recipe.source.kind == "file" and Path(recipe.source.path or "").is_file() and recipe.model.repo_id is None
    check(recipe)
    told = plan(recipe, tmp_path / "run")
    assert "first texts: 300 " in told and not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_recipe_names_the_hub_and_has_prose_changes_and_a_licence(path):
    recipe = load_recipe(path, DatasetRecipe)
    assert recipe.model.repo_id and recipe.source.repo_id
    assert section(recipe.name) and recipe.version in read_changes(recipe.name)
    assert check(recipe).licence.id == recipe.license


def test_the_stand_in_for_the_model_is_where_make_lm_leaves_it():
    default = inspect.signature(fetch_lm.main).parameters["out"].default
    assert Path(yaml.safe_load(OFFLINE.read_text())["google/gemma-3-270m"]["path"]) == default
