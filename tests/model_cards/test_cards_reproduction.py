"""Reproduction from a card, and ``sts-dino card --update``: other words and licences, the same rows
and weights.
"""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from card_runs import card_of, edit, model_run
from command_outcomes import outcome_of
from commit_history import contents
from small_runs import small_recipe, small_run

from sts_dino.hub.contract.published_paths import describe_clone
from sts_dino.hub.contract.recipe_file import format_recipe
from sts_dino.hub.contract.run_dir import MANIFEST, RECIPE, has_current_recipe, read_manifest
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import read_upstream
from sts_dino.model_cards import render as card_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UPSTREAM = {"model": "org/lm", "made_by": "sts-dino lm", "packages": {"lm-gguf": "1.0.0"}}


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_clone_tells_its_commit_and_a_public_address_alone(tmp_path):
    folder = tmp_path / "clone"
    (folder / "site-packages").mkdir(parents=True)
    assert describe_clone(folder) == {}
    git(folder, "init")
    (folder / "a.txt").write_text("a")
    git(folder, "add", "a.txt")
    git(folder, "commit", "-m", "begin")
    commit = git(folder, "rev-parse", "HEAD")
    assert (
        describe_clone(folder) == {"commit": commit}
        and describe_clone(folder / "site-packages") == {}
    )
    git(folder, "remote", "add", "origin", str(tmp_path / "elsewhere"))
    assert describe_clone(folder) == {"commit": commit}, "a place of this disk is nobody's address"
    for origin in (
        "https://git.corp.internal/me/sts-dino.git",
        "git@10.0.0.7:me/sts-dino.git",
        "ssh://git@host.org:2222/me/sts-dino.git",
    ):
        git(folder, "remote", "set-url", "origin", origin)
        assert describe_clone(folder) == {"commit": commit}, "a private host, or a port of ssh"
    for origin in (
        "https://me:secret@host.org/me/sts-dino.git",
        "git@host.org:me/sts-dino.git",
        "ssh://git@host.org/me/sts-dino.git",
    ):
        git(folder, "remote", "set-url", "origin", origin)
        assert describe_clone(folder) == {
            "commit": commit,
            "url": "https://host.org/me/sts-dino.git",
        }
    (folder / "a.txt").write_text("b")
    assert describe_clone(folder)["commit"] == f"{commit}-dirty"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    small_run(tmp_path / "run", small_recipe("sts"))
    return tmp_path / "run"


def reproduction_of(run: Path, code: dict[str, str] | None = None, **model: object) -> str:
    """What the card says under Reproduce it, of a run with these facts in its manifest."""
    manifest = read_manifest(run)
    known = {"model": {**manifest.provenance["model"], **model}, **({"code": code} if code else {})}
    inputs = {"texts.txt": "a" * 64, "artifacts/models/lm/model.safetensors": "b" * 64}
    edit(run, provenance=known, inputs=inputs)
    return card_of(run, repo_id="acme/small").partition("## Reproduce it")[2]


def test_the_commands_lead_from_nothing_to_the_run(run):
    card = reproduction_of(
        run, {"commit": COMMIT, "url": "https://host.org/me/sts-dino.git"}, upstream=UPSTREAM
    )
    lines = card.split("On another machine:")[1].split("```")[1].splitlines()[1:]
    assert lines == [
        "git clone https://host.org/me/sts-dino.git sts-dino && cd sts-dino",
        f"git checkout {COMMIT}",
        "pip install -e . -c constraints.txt",
        "hf download acme/small recipe.yaml manifest.json --repo-type dataset --revision v1.2.0 --local-dir published",
        "sts-dino write published/recipe.yaml",
    ]
    assert f"| `source.path` | `texts.txt` | `{'a' * 64}` | sentences |" in card
    weights = f"| `model.path` | `artifacts/models/lm` | `{'b' * 64}` |"
    assert f"{weights} `org/lm`, made from `lm-gguf 1.0.0` by `sts-dino lm` |" in card
    parts = {f"lm-part{part}": "1.0.0" for part in range(1, 23)}
    facts = {"packages": parts, "license": "apache-2.0", "sha256": "cc32", "revision": "main"}
    card = reproduction_of(run, {"commit": COMMIT}, upstream={**UPSTREAM, **facts})
    made = "made from 22 packages such as `lm-part1 1.0.0` by `sts-dino lm`"
    assert f"`org/lm` (licence `apache-2.0`, SHA-256 `cc32`, revision `main`), {made} |" in card


def test_unknown_origins_and_clones_without_an_address_are_named(run):
    card = reproduction_of(run, {"commit": f"{COMMIT}-dirty"})
    assert f"at commit `{COMMIT}`, with uncommitted changes" in card and "git clone" not in card
    assert "not recorded; ask the publisher" in card


def test_a_folder_says_what_it_was_made_from_or_nothing(tmp_path):
    place = tmp_path / "provenance.yaml"
    assert read_upstream(str(tmp_path)) == read_upstream(None) == {}
    place.write_text(json.dumps({**UPSTREAM, "more": 1}))
    assert read_upstream(str(tmp_path)) == {"upstream": UPSTREAM}
    for foreign in ("- a list", "model: x", "[", "packages: {a: 1}"):
        place.write_text(foreign)
        assert read_upstream(str(tmp_path)) == {}


@pytest.mark.parametrize(
    "path",
    ["artifacts/datasets/tiny", "/home/me/artifacts/tiny", "artifacts/datasets/tiny2.5-x2"],
)
def test_an_encoder_is_reproduced_from_its_published_recipe(tmp_path, path):
    directory = model_run(tmp_path / "run", base={"path": "assets/base", "license": "mit"})
    recipe = yaml.safe_load((directory / "recipe.yaml").read_text())
    recipe["datasets"][0] |= {"repo_id": None, "revision": None, "path": path}
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    edit(directory, inputs={"base:assets/base": "b" * 64, f"dataset:{path}:sts": "d" * 64})
    card = card_of(directory).partition("## Reproduce it")[2]
    assert "--repo-type" not in card and "sts-dino train published/recipe.yaml" in card
    assert f"| `base.path` | `assets/base` | `{'b' * 64}` | in the clone |" in card
    shown = path if path.startswith("artifacts") else "tiny"
    name = path.rpartition("/")[2]
    had = f"a dataset; if it was published with the encoder, `sts-dino/{name}` |"
    assert (
        f"| `datasets.0.path` | `{shown}` | `{'d' * 64}` | {had}" in card and "/home/me" not in card
    )


def test_a_recipe_with_another_number_of_datasets_than_the_manifest_is_refused(tmp_path):
    directory = model_run(tmp_path / "run")
    recipe = yaml.safe_load((directory / "recipe.yaml").read_text())
    recipe["datasets"] *= 2
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(InputError, match="datasets: has 2 datasets, and the run's manifest 1"):
        card_of(directory)


def changed(tmp_path: Path, **keys: object) -> Path:
    """The run's recipe with other values, e.g. ``labels.0.meaning``, as a file."""
    tree = yaml.safe_load(format_recipe(small_recipe("sts")))
    for place, value in keys.items():
        node = tree
        *parents, last = place.split(".")
        for key in parents:
            node = node[int(key) if key.isdigit() else key]
        node[last] = value
    path = tmp_path / "other.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    return path


def test_words_and_licences_change_and_nothing_else(run, tmp_path):
    before = contents(run)
    words = {
        "pretty_name": "Better words",
        "labels.0.meaning": "says *the same*",
        "source.description": "newer words",
    }
    recipe = changed(tmp_path, **words, license="cc-by-4.0", version="1.2.1")
    asked = outcome_of(card_command, run, "--update", recipe, "--dry-run")
    assert (
        asked.code == 0
        and "would change pretty_name 'Small STS' there, 'Better words' now" in asked.printed
    )
    assert outcome_of(card_command, run, "--update", recipe, "--set", "seed=7").code == 2
    assert outcome_of(card_command, run, "--update", recipe, "--repo-id", "no id").code == 2
    assert contents(run) == before
    done = outcome_of(card_command, run, "--update", recipe)
    assert (
        done.code == 0 and "changed license 'cc-by-sa-4.0' there, 'cc-by-4.0' now" in done.printed
    )
    after = contents(run)
    assert {path for path in after if after[path] != before.get(path)} == {
        MANIFEST,
        RECIPE,
        "README.md",
        "DETAILS.md",
    }
    manifest = read_manifest(run)
    assert manifest.complete and manifest.version == "1.2.1" and has_current_recipe(run, manifest)
    card = (run / "README.md").read_text() + (run / "DETAILS.md").read_text()
    assert (
        "license: cc-by-4.0" in card
        and "Better words" in card
        and "in words: says &#42;the same&#42;" in card
    )
    again = outcome_of(card_command, run, "--update", recipe)
    assert again.code == 0 and "changed" not in again.printed and contents(run) == after
    assert outcome_of(card_command, run, "--update", recipe, "--set", "pretty_name=Set").code == 0
    assert "pretty_name: Set" in (run / RECIPE).read_text(encoding="utf-8")
    assert "give one: --update RECIPE" in outcome_of(card_command, run, "--set", "seed=42").error
