"""Released model recipes at tiny size, all the way: trained, published to the embedded Hub, loaded
elsewhere.

Of ``recipes/models``, one of those that differ in their data alone, with a random base of the same
architecture (its head or adapter included), a few rows and four steps. A process without this
project loads them by their Hub id.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from commit_history import contents
from tiny_bases import make_llama, make_mlm
from training_inputs import WORDS, sts_rows, triplet_rows, write_dataset

from sts_dino.hub.client.publish import Options, publish_run
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import compute_fingerprint, load_recipe
from sts_dino.hub.contract.run_dir import find_changed_files, require_complete
from sts_dino.hub.contract.schema import EXAMPLE_SET, TRIPLET, build_features
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.render import render, write
from sts_dino.training import merge

pytestmark = pytest.mark.slow("trains every model recipe at the size of a test and publishes it")

pytest_plugins = ["local_hub"]
RECIPES = {
    path.stem: load_recipe(path, ModelRecipe)
    for path in sorted(Path("recipes/models").glob("*.yaml"))
}
ALIKE = {  # encoder and losses → a recipe
    f"{recipe.base} {recipe.lora} {[one.loss for one in recipe.datasets]}": name
    for name, recipe in RECIPES.items()
    if not recipe.is_baseline
}
RELEASED = {name: RECIPES[name] for name in ALIKE.values()}
ADAPTERS = [name for name, recipe in RELEASED.items() if recipe.lora]
STEPS = 4
PROBES = ["a man plays the flute", 'two "old" dogs run.', "", "cat " * 300]
# its steps: killed behind each of them
MERGING = "save_encoder", "copytree", "move_into_place", "write_manifest"
TRAIN = """import json, os, shutil, sys
from pathlib import Path
from sts_dino.training import merge, run
from sts_dino.training.encoder import encoder
from sts_dino.training.loop import files
recipes, adapters, steps = json.loads(sys.argv[1])
for recipe in recipes:
    run.main(Path(recipe))
for adapter in (Path("artifacts/models", name) for name in adapters):
    merge.main(adapter, None)
    for step in steps:
        home = {"save_encoder": encoder, "copytree": shutil}.get(step, files)
        out = Path("killed", step)
        made = getattr(home, step)
        if os.fork() == 0:
            write = (lambda *_: None) if step == "write_manifest" else made
            setattr(home, step, lambda *arguments: (write(*arguments), os._exit(9)))
            merge.main(adapter, out)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 9, step
        assert '"complete": true' not in (out / "manifest.json").read_text(), step
        merge.main(adapter, out)"""
LOAD = """import json, sys
from sentence_transformers import SentenceTransformer
probes = json.loads(sys.argv[1])
vectors = {name: SentenceTransformer(name).encode(probes).tolist() for name in sys.argv[2:]}
print(json.dumps(vectors))"""


def tiny_data(spec: TrainingData, folder: Path) -> dict:
    """``spec`` with a few rows on this disk instead of its dataset."""
    path = {
        "sts": folder / "sts",
        "triplet": folder / spec.config,
        "documents": folder / "documents.txt",
    }[spec.example_type]
    small = spec.model_dump(mode="json", exclude_none=True, exclude={"repo_id", "revision"})
    small |= {"path": str(path), "license": "cc0-1.0"}
    if spec.example_type == "documents":
        spans = {"unit": "tokens", "min_length": 4, "max_length": 16, "min_document": 64}
        return small | {"config": "default", "split": "train", "spans": spans}
    if spec.example_type == "triplet" and not path.exists():
        rows = [{**row, "example_set": number % 2} for number, row in enumerate(triplet_rows(96))]
        columns = {**TRIPLET.columns, **TRIPLET.provenance, **EXAMPLE_SET}
        write_dataset(path, {"train": rows}, spec.config, TRIPLET, build_features(columns))
    return small


def tiny(recipe: ModelRecipe, folder: Path, bases: dict[str, str]) -> Path:
    """The recipe at tiny size, as a file. ``bases``: Hub id → commit."""
    values = yaml.safe_load(json.dumps(recipe.model_dump(mode="json", exclude_none=True)))
    repo = "acme/tiny-llama" if "Llama" in (recipe.base.repo_id or "") else "acme/tiny-mlm"
    values["base"] |= {
        "repo_id": repo,
        "revision": bases[repo],
        "max_seq_length": min(64, recipe.base.max_seq_length),
    }
    values["datasets"] = [tiny_data(spec, folder) for spec in recipe.datasets]
    values["base"]["dtype"] = "float32"  # in half precision a merged adapter is rounded
    if recipe.validation:
        values["validation"] = [{"path": str(folder / "dev.csv")}]
    steps = {"max_steps": STEPS, "eval_steps": 2, "save_steps": 2, "logging_steps": 1}
    values["arguments"] |= {key: str(value) for key, value in steps.items()}
    path = folder / f"{recipe.name}.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(values), parse_int=str, parse_float=str)))
    return path


@pytest.fixture(scope="module")
def released(local_hub, hub_api, tmp_path_factory) -> dict[str, Path]:
    """Run directories of every released recipe at tiny size, published, with their cards; name →
    directory.
    """
    folder = tmp_path_factory.mktemp("families")
    bases = {}
    for repo, make in (("acme/tiny-mlm", make_mlm), ("acme/tiny-llama", make_llama)):
        hub_api.create_repo(repo)
        bases[repo] = hub_api.upload_folder(
            repo_id=repo, folder_path=make(folder / Path(repo).name)
        ).oid
    write_dataset(folder / "sts", {"train": sts_rows(96), "validation": sts_rows(24, seed=1)})
    lines = Path("assets/stsb/sts-dev.csv").read_text().splitlines(keepends=True)[:40]
    (folder / "dev.csv").write_text("".join(lines))
    (folder / "documents.txt").write_text(
        "\n".join(" ".join((WORDS[i:] + WORDS[:i]) * 4) for i in range(len(WORDS)))
    )
    recipes = [tiny(recipe, folder, bases) for recipe in RELEASED.values()]
    own = {"PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1"}
    environment = local_hub.client_environment(folder / "home") | own
    call = [
        sys.executable,
        "-c",
        TRAIN,
        json.dumps([[str(recipe) for recipe in recipes], ADAPTERS, MERGING]),
    ]
    done = subprocess.run(
        call, env=environment, cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made = {
        path.parent.name: path.parent
        for path in (folder / "artifacts/models").glob("*/manifest.json")
    }
    for name, directory in made.items():
        write(directory, render(directory, f"acme/{name}"))
        publish_run(hub_api, directory, "acme", True, Options())
    return made


def test_a_clean_process_gets_the_run_directorys_embeddings_by_stock_modules(
    released, local_hub, tmp_path
) -> None:
    assert set(released) == set(RELEASED) | {f"{name}-merged" for name in ADAPTERS}
    names = [f"acme/{name}" for name in released] + [
        str(directory) for directory in released.values()
    ]
    call = [sys.executable, "-c", LOAD, json.dumps(PROBES), *names]
    environment = local_hub.client_environment(tmp_path / "home")
    done = subprocess.run(
        call, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    loaded = {
        name: np.array(rows) for name, rows in json.loads(done.stdout.splitlines()[-1]).items()
    }
    for name, directory in released.items():
        from_hub, from_disk = loaded[f"acme/{name}"], loaded[str(directory)]
        assert from_hub.shape == from_disk.shape and np.isfinite(from_hub).all(), name
        assert np.abs(from_hub - from_disk).max() <= 1e-5, name
        assert np.abs(from_hub[0] - from_hub[1]).max() > 1e-3, name  # two sentences, two vectors
        files = [path for path in directory.rglob("*") if path.is_file()]
        assert not [path for path in files if path.suffix in (".py", ".bin", ".pt", ".pkl")]
        assert not [
            path
            for path in files
            if path.suffix == ".json" and str(directory.parent) in path.read_text()
        ]
        modules = json.loads((directory / "modules.json").read_text())
        assert all(module["type"].startswith("sentence_transformers.") for module in modules)
    for name in ADAPTERS:
        assert np.abs(loaded[f"acme/{name}"] - loaded[f"acme/{name}-merged"]).max() <= 1e-5, name
        config = json.loads((released[name] / "adapter_config.json").read_text())
        assert (
            config["base_model_name_or_path"] == "acme/tiny-llama" and len(config["revision"]) == 40
        )


def test_a_merge_killed_at_any_step_ends_the_same_and_says_where_it_comes_from(released) -> None:
    (name,) = ADAPTERS
    adapter, merged = released[name], released[f"{name}-merged"]
    manifest, before = require_complete(merged), require_complete(adapter)
    recipe = load_recipe(merged / "recipe.yaml", ModelRecipe)
    assert (recipe.name, recipe.lora.release, manifest.name) == (merged.name, "merged", merged.name)
    assert (
        manifest.fingerprint == compute_fingerprint(recipe, manifest.inputs) != before.fingerprint
    )
    assert manifest.provenance["merged_from"]["fingerprint"] == before.fingerprint
    assert manifest.provenance["training"] == before.provenance["training"]
    assert manifest.provenance["command"].endswith(f"\nsts-dino merge artifacts/models/{name}")
    assert not find_changed_files(merged, manifest)
    folder, whole = adapter.parents[2] / "killed", contents(merged)
    for step in MERGING:
        again = contents(folder / step)
        assert again.keys() == {file.path for file in manifest.files} | {
            "manifest.json",
            "recipe.yaml",
        }, step
        assert again.items() <= whole.items(), step  # which has a card, too
        assert contents(folder / f"{step}.base") == contents(adapter.with_name(f"{name}.base")), (
            step
        )


def test_an_adapter_is_merged_from_inside_its_run_directory(released, monkeypatch, capsys) -> None:
    (name,) = ADAPTERS
    monkeypatch.chdir(released[name])
    merge.main(Path())
    assert f"{released[f'{name}-merged']}: " in capsys.readouterr().out


def test_what_cannot_be_merged_is_refused_and_nothing_is_overwritten(released, tmp_path) -> None:
    (name,) = ADAPTERS
    adapter, other = released[name], tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    before = contents(adapter)
    for directory, out, message in (
        (adapter, other, "other: is not empty and not a run directory"),
        (adapter, adapter, "holds a run of another recipe"),
        (released[f"{name}-merged"], None, "holds whole weights already"),
        (adapter.parents[2] / "sts", None, "holds a dataset"),
    ):
        with pytest.raises(InputError, match=message):
            merge.main(directory, out)
    assert contents(adapter) == before and (other / "notes.txt").read_text() == "mine"
