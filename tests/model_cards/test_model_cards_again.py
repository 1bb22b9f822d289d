"""How a dataset or an encoder is made again, as its card tells it: the code, the commands, what is not published."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from small_runs import small_recipe, small_run
from test_model_cards_runs import card_of, model_run

from hub.assets import asset
from hub.contract.published_paths import clone_of
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.run_dir import read_manifest, write_manifest
from hub.untrusted import upstream_of
from model_cards.render import render

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UPSTREAM = {"model": "org/lm", "made_by": "sts-dino lm", "packages": {"lm-gguf": "1.0.0"}}


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *settings, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_clone_tells_its_commit_and_a_public_address_alone(tmp_path):
    folder = tmp_path / "clone"
    (folder / "site-packages").mkdir(parents=True)
    assert clone_of(folder) == {}
    git(folder, "init")
    (folder / "a.txt").write_text("a")
    git(folder, "add", "a.txt")
    git(folder, "commit", "-m", "begin")
    commit = git(folder, "rev-parse", "HEAD")
    assert clone_of(folder) == {"commit": commit} and clone_of(folder / "site-packages") == {}
    git(folder, "remote", "add", "origin", str(tmp_path / "elsewhere"))
    assert clone_of(folder) == {"commit": commit}, "a place of this disk is nobody's address"
    for origin in ("https://me:secret@host.org/me/sts-dino.git", "git@host.org:me/sts-dino.git"):
        git(folder, "remote", "set-url", "origin", origin)
        assert clone_of(folder) == {"commit": commit, "url": "https://host.org/me/sts-dino.git"}
    (folder / "a.txt").write_text("b")
    assert clone_of(folder)["commit"] == f"{commit}-dirty"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    small_run(tmp_path / "run", small_recipe("sts"))
    return tmp_path / "run"


def told(run: Path, code: dict[str, str] | None = None, **model: object) -> str:
    """What the card says under Make it again, of a run with these facts in its manifest."""
    manifest = read_manifest(run)
    provenance = {**manifest.provenance, "model": {**manifest.provenance["model"], **model}}
    inputs = {"texts.txt": "a" * 64, "artifacts/models/lm/model.safetensors": "b" * 64}
    known = {**provenance, **({"code": code} if code else {})}
    write_manifest(run, manifest.model_copy(update={"provenance": known, "inputs": inputs}))
    return render(run, "acme/small")["README.md"].decode().partition("## Make it again")[2]


def test_the_commands_lead_from_nothing_to_the_run(run):
    card = told(run, {"commit": COMMIT, "url": "https://host.org/me/sts-dino.git"}, upstream=UPSTREAM)
    lines = card.split("Anywhere else:")[1].split("```")[1].splitlines()[1:]
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


def test_a_clone_without_an_address_is_told_by_its_commit(run):
    card = told(run, {"commit": f"{COMMIT}-dirty"})
    assert f"at commit `{COMMIT}`, with changes that are not in it" in card and "git clone" not in card
    assert "Anywhere else, in a clone of sts-dino:" in card and "whoever published the dataset knows" in card


def test_a_folder_says_what_it_was_made_from_or_nothing(tmp_path):
    place = tmp_path / "provenance.yaml"
    assert upstream_of(str(tmp_path)) == upstream_of(None) == {}
    place.write_text(json.dumps({**UPSTREAM, "more": 1}))
    assert upstream_of(str(tmp_path)) == {"upstream": UPSTREAM}
    for foreign in ("- a list", "model: x", "[", "packages: {a: 1}"):
        place.write_text(foreign)
        assert upstream_of(str(tmp_path)) == {}


def test_inputs_beside_a_published_recipe_are_found_there(tmp_path):
    recipe = tmp_path / "published" / "recipe.yaml"
    recipe.parent.mkdir()
    recipe.write_text(resolved(small_recipe("sts")), encoding="utf-8")
    assert load_recipe(recipe, DatasetRecipe).source.path == "texts.txt"
    (recipe.parent / "texts.txt").write_text("A dog runs.\n")
    found = load_recipe(recipe, DatasetRecipe)
    assert found.source.path == str(recipe.parent / "texts.txt")
    assert fingerprint(found, {}) == fingerprint(small_recipe("sts"), {})


@pytest.mark.parametrize("path", ["artifacts/datasets/tiny", "/home/me/artifacts/tiny"])
def test_an_encoder_is_made_again_from_its_published_recipe(tmp_path, path):
    directory = model_run(tmp_path / "run", base={"path": "assets/base", "license": "mit"})
    recipe = yaml.safe_load((directory / "recipe.yaml").read_text())
    recipe["datasets"][0] |= {"repo_id": None, "revision": None, "path": path}
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    manifest = read_manifest(directory)
    known = {**manifest.provenance, "code": {"commit": f"{COMMIT}-dirty", "url": "https://host.org/me/sts-dino.git"}}
    inputs = {"base:assets/base": "b" * 64, f"dataset:{path}:sts": "d" * 64}
    write_manifest(directory, manifest.model_copy(update={"provenance": known, "inputs": inputs}))
    card = card_of(directory).partition("## Make it again")[2]
    assert f"in a clone of sts-dino at commit `{COMMIT}`, with changes that are not in it" in card
    lines = card.split("Anywhere else:")[1].split("```")[1].splitlines()[1:]
    assert lines[:2] == ["git clone https://host.org/me/sts-dino.git sts-dino && cd sts-dino", f"git checkout {COMMIT}"]
    assert lines[3].startswith("hf download ") and lines[3].endswith(" --local-dir published")
    assert "--repo-type" not in lines[3] and lines[4] == "sts-dino train published/recipe.yaml"
    assert f"| `base.path` | `assets/base` | `{'b' * 64}` | in the clone |" in card
    shown = path if path.startswith("artifacts") else "tiny"
    had = "a dataset; if it was published with the encoder, `sts-dino/tiny` |"
    assert f"| `datasets.0.path` | `{shown}` | `{'d' * 64}` | {had}" in card and "/home/me" not in card


@pytest.mark.parametrize(
    ("upstream", "had"),
    [
        (None, "whoever published the encoder knows where from"),
        (UPSTREAM, "`org/lm`, made from `lm-gguf 1.0.0` by `sts-dino lm`"),
        ({**UPSTREAM, "packages": {}}, "`org/lm`, made by `sts-dino lm`"),
    ],
)
def test_an_encoders_card_says_where_its_base_is_had(tmp_path, upstream, had):
    directory = model_run(tmp_path / "run", base={"path": "lm", "license": "mit"})
    manifest = read_manifest(directory)
    base = {**manifest.provenance["base"], **({"upstream": upstream} if upstream else {})}
    known = {**manifest.provenance, "base": base}
    write_manifest(directory, manifest.model_copy(update={"provenance": known, "inputs": {"base:lm": "b" * 64}}))
    assert f"| `base.path` | `lm` | `{'b' * 64}` | {had} |" in card_of(directory)


def test_the_built_in_language_model_says_what_it_is():
    found = upstream_of(asset("demo-lm"))["upstream"]
    assert found == {"model": "assets/demo-lm of sts-dino", "made_by": "python -m demo.lm.train", "packages": {}}
