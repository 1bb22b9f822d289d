"""Recipes of version 0.1: the old keys are read with one warning each, and their runs keep their fingerprints."""

import shutil
from pathlib import Path

import pytest

from hub.contract import recipe_file
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import fingerprint, load_recipe, resolved

OLD = Path(__file__).parent / "published"  # recipes as version 0.1 read them
DATASET, MODEL = OLD / "dataset_0_1.yaml", OLD / "model_0_1.yaml"
FINGERPRINTS = {  # as version 0.1 computed them
    DATASET: "c8c58f1ffe8dba352263e22c019b01d1eae471bd8bb1814566cf7864abd11292",
    MODEL: "1ad1c8ce848906371b8063c4b60f19fe3e8c09a8c65c06a472405ecf3fbc144b",
}
WARNINGS = {
    DATASET: [("form", "schema"), ("decoding.floor", "epsilon")],
    MODEL: [
        ("datasets.0.form", "example_type"),
        ("datasets.1.form", "example_type"),
        ("control: copies", "control: simcse"),
    ],
}


@pytest.fixture(autouse=True)
def _first_time() -> None:
    recipe_file._warn.cache_clear()


@pytest.mark.parametrize(("path", "kind"), [(DATASET, DatasetRecipe), (MODEL, ModelRecipe)])
def test_an_old_recipe_is_read_with_one_warning_per_key_and_keeps_its_fingerprint(path, kind, tmp_path, capsys):
    recipe = load_recipe(path, kind)
    assert load_recipe(path, kind) == recipe
    wanted = [f"warning: {path}: {old} is the old name of {new};" for old, new in WARNINGS[path]]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(wanted) and all(map(str.startswith, sorted(lines), sorted(wanted)))
    assert fingerprint(recipe, {"x1.txt": "0"}) == FINGERPRINTS[path]
    today = tmp_path / "today.yaml"
    today.write_text(resolved(recipe))
    assert load_recipe(today, kind) == recipe and not capsys.readouterr().err
    shutil.copy(path, tmp_path / "recipe.yaml")  # of a published run, which nobody can edit
    assert load_recipe(tmp_path / "recipe.yaml", kind) == recipe and not capsys.readouterr().err


def test_old_keys_override_today_s(capsys):
    assert load_recipe(DATASET, DatasetRecipe, ["decoding.floor=0.5"]).decoding.epsilon == 0.5
    data = "datasets=[{path: d, config: c, form: triplet, loss: MultipleNegativesRankingLoss}]"
    found = load_recipe(MODEL, ModelRecipe, [data, "datasets.0.form=sts"])
    assert found.datasets[0].example_type == "sts" and "--set: datasets.0.form" in capsys.readouterr().err
