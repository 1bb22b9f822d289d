"""A recipe is corrected without new rows; what no card can state is refused at once."""

from pathlib import Path

import pytest
from command_outcomes import outcome_of
from huggingface_hub import HfApi
from published_run import hub_file
from small_runs import small_recipe, small_run
from training_inputs import write_recipe
from typer.testing import CliRunner

import release.run
from generation import run as generation
from hub.client.publish import publish
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe, resolved
from hub.errors import InputError
from model_cards import renderer
from model_cards.render import require_card
from release import artefact
from training.run import main as train

pytest_plugins = ["local_hub"]
X2 = Path("recipes/demo/sts-dino-x2.yaml")


def test_a_corrected_recipe_is_published_again_and_nothing_is_made(hub_api, tmp_path, monkeypatch):
    directory, recipe = tmp_path / "datasets" / "small-sts", small_recipe("sts")
    small_run(directory, recipe)
    repo = publish(hub_api, directory, "acme", yes=True).repo_id
    before = run_dir.require_complete(directory)

    changes = {"pretty_name": "Corrected", "license": "cc-by-4.0", "version": "1.2.1"}
    source = recipe.source.model_copy(update={"description": "other words"})
    path = tmp_path / "small-sts.yaml"
    path.write_text(resolved(recipe.model_copy(update={**changes, "source": source})), encoding="utf-8")
    words = [path, "--org", "acme", "--artifacts", tmp_path, "--again"]
    monkeypatch.setattr(artefact, "HfApi", lambda: HfApi("http://127.0.0.1:9"))
    nowhere = outcome_of(release.run, *words, "--patience", "0")
    assert nowhere.code == 0 and "is made, but no Hub says" in nowhere.stderr  # all but the plan is made
    monkeypatch.setattr(artefact, "HfApi", lambda: hub_api)
    done = outcome_of(release.run, *words, "--yes")
    assert done.code == 0, done
    assert "+ " not in done.printed.replace("+ small-sts.py", "") and "tag v1.2.1" in done.printed

    now = run_dir.require_complete(directory)
    assert (now.fingerprint, now.files) == (before.fingerprint, before.files) and now.version == "1.2.1"
    card = hub_file(hub_api, repo, "README.md").decode()
    assert "# Corrected\n" in card and "license: cc-by-4.0" in card and "Source sentences: other words" in card
    assert b"# Corrected" not in hub_file(hub_api, repo, "README.md", "v1.2.0")
    assert hub_file(hub_api, repo, "recipe.yaml").decode() == path.read_text(encoding="utf-8")


def test_what_no_card_could_say_is_refused_before_a_release_makes_anything(tmp_path, monkeypatch):
    recipe = load_recipe(X2, DatasetRecipe)
    require_card(recipe, "acme/name")
    with pytest.raises(InputError, match=r"acme/a\.git"):
        require_card(recipe, "acme/a.git")
    monkeypatch.setattr(renderer, "DATA", tmp_path)
    (tmp_path / "changes.yaml").write_text(f"{recipe.name}:\n  0.0.1: the first\n")
    with pytest.raises(InputError, match=r"has no entry for version 0\.1\.0; add one line on top"):
        require_card(recipe, "acme/name")


@pytest.mark.parametrize("option", ["--dry-run", "--estimate", None])
def test_a_licence_that_its_parts_do_not_allow_stops_every_start(option, tmp_path):
    words = [str(X2), "--out", str(tmp_path / "run"), *([option] if option else []), "--set"]
    for setting, said in (("my-own", "not a licence that can be judged"), ("mit", "does not cover its parts")):
        done = CliRunner().invoke(generation.app, [*words, f"license={setting}"])
        assert isinstance(done.exception, InputError) and said in str(done.exception)
    assert not list(tmp_path.iterdir())
    data = {"path": str(tmp_path / "pairs"), "config": "postprocessed", "example_type": "sts"}
    data |= {"loss": "CosineSimilarityLoss"}
    for said, changes in (
        ("'apache-2.0' does not cover its parts", {"datasets": [{**data, "license": "cc-by-nc-4.0"}]}),
        ("does not say its licence; write it to datasets.0.license", {"datasets": [{**data, "license": None}]}),
    ):
        with pytest.raises(InputError, match=said):
            train(write_recipe(tmp_path, **changes), out=tmp_path / "out", dry_run=option == "--dry-run")
    assert not (tmp_path / "out").exists()
