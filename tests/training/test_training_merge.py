"""training.merge: from a trained adapter's run directory to a whole model's, which is published like any other."""

import subprocess
import sys
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from tiny_bases import make_llama
from training_inputs import sts_rows, triplet_data, write_dataset, write_recipe

from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.run_dir import changed_files, read_manifest
from hub.errors import InputError
from training.merge import main

pytest_plugins = ["local_hub"]
MAKE = """
import os, shutil, sys
from pathlib import Path
from training import merge, run
from training.loop import finish
from training.encoder import encoder

def merged(adapter, out, step):
    home = {"save_encoder": encoder, "copytree": shutil}.get(step, finish)
    made = getattr(home, step)
    setattr(home, step, lambda *given: ((step == "write_manifest") or made(*given), os._exit(9)))
    merge.main(adapter, out)

recipe, folder = map(Path, sys.argv[1:])
run.main(recipe, out=folder / "eol")
merge.main(folder / "eol", None)
for step in ("save_encoder", "copytree", "move_into_place", "write_manifest"):
    out = folder / "killed" / step
    if os.fork() == 0:
        merged(folder / "eol", out, step)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 9, step
    assert '"complete": true' not in (out / "manifest.json").read_text(), step
    merge.main(folder / "eol", out)
"""


@pytest.fixture(scope="module")
def adapter_run(tmp_path_factory, local_hub, hub_api):
    """The run directory of an adapter on a base of the Hub, trained for a few steps on triplets.

    Beside it ``eol-merged`` and, in ``killed``, mergings that were killed at each of their steps and begun again.
    """
    folder = tmp_path_factory.mktemp("adapter")
    base = hub_api.create_repo("acme/merge-base").repo_id
    commit = hub_api.upload_folder(repo_id=base, folder_path=make_llama(folder / "base")).oid
    data = triplet_data(folder, 32)
    write_dataset(folder / "pairs", {"train": sts_rows(3)})
    dataset = load_recipe(Path("recipes/demo/sts-dino-x1x2.yaml"), DatasetRecipe)
    (folder / "triplets" / "recipe.yaml").write_text(resolved(dataset))  # for its licence
    encoder = {"repo_id": base, "revision": commit, "license": "mit", "pooling": "lasttoken"}
    recipe = write_recipe(
        folder,
        name="eol",
        license=dataset.license,
        base={**encoder, "prompt": 'This sentence : "[X]" means in one word:"'},
        lora={"r": "4", "alpha": "8"},
        datasets=[data],
        arguments={"learning_rate": "1e-2", "max_steps": "4", "report_to": "none"},
    )
    environment = local_hub.client_environment() | {"OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-c", MAKE, str(recipe), str(folder)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "eol"


@pytest.fixture(scope="module")
def merged_run(adapter_run):
    return adapter_run.with_name("eol-merged")


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow("trains an adapter, publishes and merges it")
def test_the_merged_run_is_whole_and_says_where_it_comes_from(adapter_run, merged_run):
    manifest, adapter = read_manifest(merged_run), read_manifest(adapter_run)
    recipe = load_recipe(merged_run / "recipe.yaml", ModelRecipe)
    assert (recipe.name, recipe.lora.release, manifest.name) == ("eol-merged", "merged", "eol-merged")
    assert manifest.complete and manifest.fingerprint == fingerprint(recipe, manifest.inputs) != adapter.fingerprint
    assert not changed_files(merged_run, manifest)
    named = {file.path for file in manifest.files}
    assert set(contents(merged_run)) == named | {"manifest.json", "recipe.yaml"}
    assert "model.safetensors" in named and "adapter_config.json" not in named
    assert manifest.provenance["training"] == adapter.provenance["training"]
    assert manifest.provenance["merged_from"]["fingerprint"] == adapter.fingerprint
    assert manifest.provenance["command"].endswith("\nsts-dino merge artifacts/models/eol")
    assert manifest.counts["parameters"] == sum(p.numel() for p in SentenceTransformer(str(merged_run)).parameters())


@pytest.mark.slow("trains an adapter, publishes and merges it")
def test_killed_at_any_step_it_ends_the_same(adapter_run, merged_run):
    runs = {path.name: path for path in adapter_run.with_name("killed").iterdir() if path.is_dir()}
    steps = {"save_encoder", "copytree", "move_into_place", "write_manifest"}
    assert set(runs) == steps | {f"{step}.base" for step in steps}
    for step in steps:
        assert contents(runs[step]) == contents(merged_run), step
        assert contents(runs[f"{step}.base"]) == contents(adapter_run.with_name("eol.base")), step


@pytest.mark.slow("trains an adapter, publishes and merges it")
def test_what_cannot_be_merged_is_refused_and_nothing_is_overwritten(adapter_run, merged_run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"other: is not empty and not a run directory"):
        main(adapter_run, tmp_path / "other")
    assert contents(tmp_path / "other") == {"notes.txt": b"mine"}
    before = contents(adapter_run)
    with pytest.raises(InputError, match=r"holds a run of another recipe"):
        main(adapter_run, adapter_run)
    assert contents(adapter_run) == before
    with pytest.raises(InputError, match=r"holds whole weights already"):
        main(merged_run)
    with pytest.raises(InputError, match=r"holds a dataset"):
        main(adapter_run.with_name("triplets"))
