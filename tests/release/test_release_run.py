"""One command from recipe to Hub: interrupted, corrected without new rows, and refused before any
work.
"""

import subprocess
import time
from pathlib import Path

import pytest
from command_outcomes import outcome_of
from forked_python import python_in
from huggingface_hub import HfApi
from published_run import hub_file
from small_runs import small_recipe, small_run
from tiny_lm import make_lm

import sts_dino.release.publish
import sts_dino.release.run
from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.hub.client.publish import publish_run
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import format_recipe, load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.model_cards import renderer
from sts_dino.model_cards.render import require_card
from sts_dino.release.options import ClusterWorkers, format_options, list_recipes

pytest_plugins = ["local_hub"]


@pytest.fixture(scope="module")
def environment(local_hub, tmp_path_factory) -> dict[str, str]:
    """Of a machine with an empty cache; commands fork from one process that has imported the
    libraries.
    """
    return local_hub.client_environment(tmp_path_factory.mktemp("machine") / "home")


@pytest.mark.slow("interrupts a release")
def test_a_signal_leaves_no_generator_behind_and_it_is_reported_how_to_resume(
    environment, tmp_path
):
    settings = [
        "name=interrupted",
        f"model.path={make_lm(tmp_path / 'lm')}",
        "source.limit=9000",
        "shard_size=4",
    ]
    words = [
        python_in(environment),
        "-m",
        "sts_dino",
        "release",
        "recipes/demo/sts-dino-x2.yaml",
        "--org",
        "acme",
    ]
    words += [
        "--yes",
        "--artifacts",
        str(tmp_path),
        *(word for one in settings for word in ("--set", one)),
    ]
    process = subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    directory = tmp_path / "datasets" / "interrupted"
    deadline = time.monotonic() + 120
    while run_dir.read_manifest(directory) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()  # this process alone: a terminal and Slurm signal the generator, too
    out, err = process.communicate(timeout=240)
    last = "ended by SIGTERM; run the same command again to go on"
    assert (process.returncode, out, err.splitlines()[-1]) == (143, "", last)
    with run_dir.lock_run(directory):
        assert not run_dir.read_manifest(directory).complete


BASELINE = """kind: model
name: some-baseline
version: 1.0.0
pretty_name: Words
license: cc-by-nc-sa-4.0
base: {path: assets/demo-lm, modules: static, license: cc-by-nc-sa-4.0}
threads: 1
evaluation: [{task: stsb/cosine, split: validation, path: assets/stsb/sts-dev.csv}]
bootstrap_samples: 100
"""


@pytest.mark.slow("scores a baseline in a process of its own")
def test_a_baseline_in_a_folder_is_scored_and_not_published_and_alone_it_is_refused(
    hub_api, environment, tmp_path
):
    recipe, artifacts = tmp_path / "recipes" / "some-baseline.yaml", tmp_path / "artifacts"
    recipe.parent.mkdir()
    recipe.write_text(BASELINE)
    options = ["--org", "acme", "--artifacts", str(artifacts), "--yes"]
    assert outcome_of(sts_dino.release.run, recipe, *options).error.startswith(
        f"error: {recipe}: is a baseline, which is not"
    )
    assert not artifacts.exists()

    words = [python_in(environment), "-m", "sts_dino", "release", *options, str(recipe.parent)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "some-baseline: is a baseline, which is not published" in done.stderr.splitlines()[-1]
    directory = artifacts / "models" / "some-baseline"
    assert "baseline of the evaluation" in (directory / "README.md").read_text()
    assert (directory / "results.json").is_file() and not hub_api.repo_exists("acme/some-baseline")
    refused = outcome_of(sts_dino.release.publish, directory, "--org", "acme", "--yes")
    assert "is a baseline, which is not published" in refused.error


def test_options_are_handed_on_and_workers_are_no_use_to_models():
    tasks = EvaluationOptions(["papers", "mteb/STS17"], ["snli/senteval"])
    assert format_options(tasks) == [
        "--tasks",
        "papers",
        "--tasks",
        "mteb/STS17",
        "--skip",
        "snli/senteval",
    ]
    words = "--workers 8 --gpus-per-worker 2 --ray 10.0.0.1:6379 --store s3://bucket/runs"
    assert (
        format_options(ClusterWorkers(8, None, 2, "10.0.0.1:6379", "s3://bucket/runs"))
        == words.split()
    )
    ClusterWorkers(workers=8).require_datasets(1)
    ClusterWorkers().require_datasets(0)


def test_folders_stand_for_their_recipes_datasets_first():
    assert list_recipes([Path("recipes/demo")]) == [
        Path(f"recipes/demo/{name}.yaml")
        for name in ("auto-nli", "sts-dino-x1x2", "sts-dino-x2", "demo-sts-dino")
    ]


def test_copies_that_an_editor_hides_in_a_folder_are_no_recipes(tmp_path):
    for name in (".hidden", "recipes/.ipynb_checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    # the folder itself may be below a hidden one
    shown = tmp_path / ".hidden/some.yaml"
    for path in (shown, tmp_path / "recipes/.ipynb_checkpoints/some-checkpoint.yaml"):
        path.write_text("kind: dataset\n")
    assert list_recipes([tmp_path / ".hidden"]) == [shown]
    with pytest.raises(InputError, match="no recipe"):
        list_recipes([tmp_path / "recipes"])


X2 = Path("recipes/demo/sts-dino-x2.yaml")


def test_a_corrected_recipe_is_published_again_and_nothing_is_made(hub_api, tmp_path, monkeypatch):
    directory, recipe = tmp_path / "datasets" / "small-sts", small_recipe("sts")
    small_run(directory, recipe)
    repo = publish_run(hub_api, directory, "acme", yes=True).repo_id
    before = run_dir.require_complete(directory)

    changes = {"pretty_name": "Corrected", "license": "cc-by-4.0", "version": "1.2.1"}
    source = recipe.source.model_copy(update={"description": "other words"})
    path = tmp_path / "small-sts.yaml"
    path.write_text(
        format_recipe(recipe.model_copy(update={**changes, "source": source})), encoding="utf-8"
    )
    words = [path, "--org", "acme", "--artifacts", tmp_path, "--again"]
    monkeypatch.setattr("sts_dino.release.run.HfApi", lambda: HfApi("http://127.0.0.1:9"))
    nowhere = outcome_of(sts_dino.release.run, *words, "--patience", "0")
    # all but the plan is made
    assert nowhere.code == 0 and "is finished, but its publication is not planned" in nowhere.stderr
    monkeypatch.setattr("sts_dino.release.run.HfApi", lambda: hub_api)
    done = outcome_of(sts_dino.release.run, *words, "--yes")
    assert done.code == 0, done
    assert "+ " not in done.printed.replace("+ small-sts.py", "") and "tag v1.2.1" in done.printed

    now = run_dir.require_complete(directory)
    assert (now.fingerprint, now.files) == (
        before.fingerprint,
        before.files,
    ) and now.version == "1.2.1"
    card = hub_file(hub_api, repo, "README.md").decode()
    assert (
        "# Corrected\n" in card
        and "license: cc-by-4.0" in card
        and "Source sentences: other words" in card
    )
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
