"""The references of recipes and of the Python API say what the code says; the schema takes every
recipe here.
"""

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from sts_dino import reference
from sts_dino.reference import make_schema

RECIPES = sorted(Path("recipes").rglob("*.yaml"))
VALIDATOR = Draft202012Validator(yaml.safe_load(make_schema()))


class Yaml12(yaml.SafeLoader):
    """Scalars as an editor's YAML 1.2 reads them: 1e-3 is a number."""


Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def test_the_files_are_as_the_code_is_now():
    for path, text in reference.make_files().items():
        assert path.read_text(encoding="utf-8") == text, "run sts-dino reference"


@pytest.mark.parametrize("path", RECIPES, ids=str)
def test_every_recipe_here_fits_the_schema(path):
    tree = yaml.load(path.read_text(encoding="utf-8"), Yaml12)
    assert not [error.message for error in VALIDATOR.iter_errors(tree)]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "data"},
        {"nmae": "x"},
        {"seed": "one"},
        {"schema": None},
        {"source": {}},
        {"labels": []},
    ],
)
def test_what_a_recipe_may_not_say_does_not_fit(change):
    tree = yaml.load(Path("recipes/demo/sts-dino-x2.yaml").read_text(encoding="utf-8"), Yaml12)
    assert VALIDATOR.is_valid(tree) and not VALIDATOR.is_valid(tree | change)
