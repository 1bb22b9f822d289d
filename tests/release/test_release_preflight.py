"""What a release would refuse is refused before any work is done: wrong place, version taken or behind, other runs."""

from pathlib import Path

import pytest
from published_run import finished_run

from hub.client.fetch import fetch
from hub.client.publish import NEXT, publish
from hub.client.repository import MAIN, Repository
from hub.client.retry import RetryPolicy
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, ModelRecipe, ValidationData
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError, RunError
from release.preflight import Target, check_dtype, check_pins, check_run, namespace, publication_target

pytest_plugins = ["local_hub"]


@pytest.fixture(scope="module")
def published(tmp_path_factory, hub_api) -> tuple[Repository, Path]:
    """A released version 0.2.0: its repository and its run directory."""
    directory = finished_run(tmp_path_factory.mktemp("runs") / "preflight-run", version="0.2.0")
    publish(hub_api, directory, "acme", yes=True)
    return Repository(hub_api, f"acme/{directory.name}", "dataset"), directory


def recipe_of(directory: Path, *changes: str) -> DatasetRecipe:
    return load_recipe(directory / "recipe.yaml", DatasetRecipe, list(changes))


def test_a_first_run_and_a_later_version_have_their_place(published, hub_api):
    repository, directory = published
    recipe = recipe_of(directory)
    assert publication_target(Repository(hub_api, "acme/not-there-yet", "dataset"), recipe, False) == Target(MAIN)
    found = publication_target(repository, recipe, False)
    assert found.branch == MAIN and found.manifest == run_dir.read_manifest(directory)
    assert publication_target(repository, recipe_of(directory, "version=0.10.0", "seed=7"), False) == Target(NEXT)


def test_a_later_version_of_the_same_rows_takes_them_from_main_and_grows_no_further(published, tmp_path):
    repository, directory = published
    recipe = recipe_of(directory, "version=0.2.1", "license=cc0-1.0")
    assert check_run(directory, recipe) is None
    place = publication_target(repository, recipe, False)
    assert (place.branch, place.remote) == (NEXT, repository.branch()) and place.manifest.version == "0.2.0"
    fetch(repository, place.remote, place.manifest, recipe, tmp_path / "elsewhere")
    fetched = run_dir.require_complete(tmp_path / "elsewhere")
    assert fetched.version == "0.2.1" and run_dir.holds_recipe(tmp_path / "elsewhere", fetched)
    assert fetched.files == place.manifest.files and fetched.fingerprint == place.manifest.fingerprint


BEHIND = r"branch main: holds v0\.2\.0, which is later than v0\.1\.9; .*--force to go back"


@pytest.mark.parametrize(
    ("changes", "said", "may_be_forced"),
    [
        (["pretty_name=Corrected"], r"tag v0\.2\.0: exists and marks this run under another recipe.yaml.*raise", False),
        (["seed=7"], r"tag v0\.2\.0: exists and marks the run of another recipe; raise `version`", False),
        (["version=0.1.9", "seed=7"], BEHIND, True),  # other rows
        (["version=0.1.9", "seed=20"], BEHIND, True),  # the same rows
    ],
)
def test_a_version_that_is_taken_or_behind_is_refused_and_a_tag_never_moves(published, changes, said, may_be_forced):
    repository, directory = published
    recipe = recipe_of(directory, *changes)
    for force in (False,) if may_be_forced else (False, True):
        with pytest.raises(RunError, match=said):
            publication_target(repository, recipe, force)
    if may_be_forced:
        assert publication_target(repository, recipe, True).branch == NEXT


def test_a_directory_with_another_run_is_not_published_under_this_recipe(tmp_path):
    directory = finished_run(tmp_path / "pairs")
    check_run(directory, recipe_of(directory))
    check_run(tmp_path / "absent", recipe_of(directory))
    with pytest.raises(
        InputError, match=r"pairs: holds a run of another recipe \(pairs v0\.1\.0\).*remove the directory"
    ):
        check_run(directory, recipe_of(directory, "source.limit=3"))


def test_a_namespace_that_the_token_does_not_have_is_named(hub_api, alice):
    patience = RetryPolicy(scale=0.001)
    assert namespace(hub_api, "acme", True, patience) == "acme" and namespace(hub_api, None, True, patience) == "demo"
    with pytest.raises(InputError, match=r"--org acme: is not the token's user .*allowed: alice"):
        namespace(alice, "acme", True, patience)
    assert namespace(alice, "acme", False, patience) == "acme"  # a plan needs no right


def test_a_release_names_revisions_that_cannot_move_and_its_dtype(tmp_path):
    recipe = load_recipe(Path("recipes/demo/demo-sts-dino.yaml"), ModelRecipe)
    check_pins(tmp_path, recipe)
    moving = recipe.datasets[0].model_copy(update={"revision": "main"})
    with pytest.raises(InputError, match=r"'main' can move.*allowed: a tag such as v1\.0\.0"):
        check_pins(tmp_path, recipe.model_copy(update={"datasets": (moving,)}))
    moving_pairs = ValidationData(repo_id="org/pairs", revision="main")
    with pytest.raises(InputError, match=r"validation\.0\.revision: 'main' can move"):
        check_pins(tmp_path, recipe.model_copy(update={"validation": (moving_pairs,)}))
    dataset = recipe_of(finished_run(tmp_path / "run"))
    check_dtype(tmp_path, dataset)
    auto = dataset.model_copy(update={"model": dataset.model.model_copy(update={"dtype": "auto"})})
    with pytest.raises(InputError, match=r"model.dtype: 'auto' names no dataset; allowed: .*model.dtype=bfloat16"):
        check_dtype(tmp_path, auto)
