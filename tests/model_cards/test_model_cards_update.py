"""sts-dino card RUN --update RECIPE: words and licences change, rows and weights do not."""

from pathlib import Path

import pytest
import yaml
from command_outcomes import outcome_of
from small_runs import small_recipe, small_run

from hub.contract.recipe_file import resolved
from hub.contract.run_dir import MANIFEST, RECIPE, holds_recipe, read_manifest
from model_cards import render


@pytest.fixture
def run(tmp_path: Path) -> Path:
    small_run(tmp_path / "run", small_recipe("sts"))
    return tmp_path / "run"


def changed(tmp_path: Path, **keys: object) -> Path:
    """The run's recipe with other values, e.g. ``labels.0.meaning``, as a file."""
    tree = yaml.safe_load(resolved(small_recipe("sts")))
    for place, value in keys.items():
        node = tree
        *parents, last = place.split(".")
        for key in parents:
            node = node[int(key) if key.isdigit() else key]
        node[last] = value
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return path


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_words_and_licences_change_and_nothing_else(run, tmp_path):
    before = content(run)
    words = {"pretty_name": "Better words", "labels.0.meaning": "says *the same*", "source.description": "newer words"}
    recipe = changed(tmp_path, **words, license="cc-by-4.0", version="1.2.1")
    asked = outcome_of(render, run, "--update", recipe, "--dry-run")
    assert asked.code == 0 and "would change pretty_name 'Small STS' there, 'Better words' now" in asked.printed
    assert content(run) == before
    done = outcome_of(render, run, "--update", recipe)
    assert done.code == 0 and "changed license 'cc-by-sa-4.0' there, 'cc-by-4.0' now" in done.printed
    after = content(run)
    assert {path for path in after if after[path] != before.get(path)} == {MANIFEST, RECIPE, "README.md"}
    manifest = read_manifest(run)
    assert manifest.complete and manifest.version == "1.2.1" and holds_recipe(run, manifest)
    card = after["README.md"].decode()
    assert "license: cc-by-4.0" in card and "Better words" in card and "in words: says &#42;the same&#42;" in card
    again = outcome_of(render, run, "--update", recipe)
    assert again.code == 0 and "changed" not in again.printed and content(run) == after


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"seed": 7}, "seed 42 there, 7 now"),
        ({"labels.0.instruction": 'Say <X1> again: "'}, "labels.0.instruction"),
        ({"license": "gemma"}, "'gemma' does not cover its parts"),
        ({"version": "1.2"}, "version"),
    ],
)
def test_what_decides_rows_and_licences_that_do_not_follow_are_refused(run, tmp_path, keys, message):
    before = content(run)
    refused = outcome_of(render, run, "--update", changed(tmp_path, **keys))
    assert refused.code == 2 and message in refused.error
    assert content(run) == before


def test_settings_are_of_the_recipe_that_is_given(run, tmp_path):
    recipe = changed(tmp_path, seed=7)
    assert outcome_of(render, run, "--update", recipe, "--set", "seed=42", "--set", "pretty_name=Set").code == 0
    assert "pretty_name: Set" in (run / RECIPE).read_text(encoding="utf-8")
    assert "give one: --update RECIPE" in outcome_of(render, run, "--set", "seed=42").error
