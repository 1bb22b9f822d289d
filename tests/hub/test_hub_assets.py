"""What an installation brings: every file that the code looks for outside of its packages stands
among them.
"""

import tomllib
from pathlib import Path

import pytest

from sts_dino.hub.assets import (
    find_asset,
    find_dataset_scripts,
    find_student_recipe,
    resolve_shipped_path,
)
from sts_dino.release.value import read_student

DATA = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
ASSETS = ("recipe.schema.json", "demo-data/x1.tsv", "examples/sts.de.tsv", "stsb/LICENSE.txt")


@pytest.fixture
def installation(monkeypatch, tmp_path):
    """The shipped files as an installation has them, seen from a folder that is not a clone."""
    share = tmp_path / "share/sts-dino"
    for folder, patterns in DATA.items():
        for file in (
            file for pattern in patterns for file in Path().glob(pattern) if file.is_file()
        ):
            place = tmp_path / folder / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(file.resolve())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr("sts_dino.hub.assets._INSTALLED_FOLDER", share)
    monkeypatch.setattr("sts_dino.hub.assets._CLONE_FOLDER", share / "no clone")
    return share


def test_the_files_that_the_code_looks_for_are_found_in_an_installation(installation):
    assert (
        all(find_asset(name).is_file() for name in ASSETS)
        and (find_dataset_scripts() / "loading_script.py").is_file()
    )
    recipe = read_student(find_student_recipe("value-student.yaml")).recipe
    assert (
        recipe.base.path == str(installation / "demo-lm")
        and Path(recipe.base.path, "model.safetensors").is_file()
    )
    assert (
        resolve_shipped_path("/some/model") == "/some/model"
        and resolve_shipped_path("mine/model") == "mine/model"
    )
    Path("assets/demo-lm").mkdir(parents=True)  # one's own comes first
    assert resolve_shipped_path("assets/demo-lm") == "assets/demo-lm"
