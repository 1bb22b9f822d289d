"""What an installation brings: every file that the code looks for outside of its packages stands among them."""

import tomllib
from pathlib import Path

import pytest

from hub.assets import asset, dataset_scripts, shipped, student_recipe
from release.scripts import SHARED, TEMPLATE

DATA = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
WANTED = [
    *(dataset_scripts() / name for name in (*SHARED, TEMPLATE)),
    *(asset(name) for name in ("recipe.schema.json", "demo-lm/config.json", "demo-lm/model.safetensors")),
    *(asset(name) for name in ("examples/sts.tsv", "examples/sts.de.tsv", "stsb/sts-dev.csv", "stsb/LICENSE.txt")),
    student_recipe("value-student.yaml"),
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda path: path.name)
def test_a_file_that_the_code_looks_for_is_installed_where_it_looks(wanted):
    inside = wanted.relative_to(Path.cwd())
    folder = {"assets": "assets", "recipes": "recipes"}.get(inside.parts[0], ".")
    place = Path("share/sts-dino") / inside.relative_to(folder)
    assert wanted.is_file() and any(inside in Path().glob(one) for one in DATA[str(place.parent)])


def test_a_shipped_recipe_finds_its_files_in_an_installation(monkeypatch):
    assert shipped("assets/demo-lm") == "assets/demo-lm" and shipped("/some/model") == "/some/model"
    monkeypatch.setattr("hub.assets._is_clone", lambda: False)
    assert shipped("assets/demo-lm") == str(asset("demo-lm")) and shipped("mine/model") == "mine/model"
    assert student_recipe("value-student.yaml").parts[-4:] == ("share", "sts-dino", "value", "value-student.yaml")
