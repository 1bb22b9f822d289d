"""What is published tells no folder, user or home of the machine that made it, and still says what
belongs where.
"""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from command_outcomes import outcome_of
from tiny_lm import make_lm

import sts_dino.generation.explain
import sts_dino.generation.run
import sts_dino.model_cards.render
import sts_dino.training.run
from sts_dino.eval import run as evaluation
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.pipeline.job import hash_inputs
from sts_dino.hub.client.publish import collect_snapshot
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.published_paths import (
    format_command,
    hide_folders,
    hide_setting,
    read_path_settings,
    store_input_paths,
)
from sts_dino.hub.contract.recipe import PUBLISHED, DatasetRecipe
from sts_dino.hub.contract.recipe_file import (
    apply_overrides,
    compute_fingerprint,
    format_recipe,
    load_recipe,
)
from sts_dino.hub.errors import InputError

NLI_RECIPE, MODEL_RECIPE = "recipes/demo/auto-nli.yaml", "recipes/demo/demo-sts-dino.yaml"
SECRET = "sallys-secret"  # the folder that holds everything, the home and the user
OVERRIDES = ("source.limit=6", "decoding.batch_size=8", "postprocess.validation_fraction=0.4")


@pytest.mark.parametrize(
    "path, shown",
    [
        ("assets/demo-lm", "assets/demo-lm"),
        ("texts.txt", "texts.txt"),
        ("/home/sally/texts.txt", "texts.txt"),
        ("../../home/sally/texts.txt", "texts.txt"),
        ("~/texts.txt", "texts.txt"),
        ("C:\\Users\\sally\\texts.txt", "texts.txt"),
        ("/home/sally/model/", "model"),
    ],
)
def test_a_path_is_published_as_it_is_only_inside_the_folder_of_the_command(path, shown):
    assert hide_folders(path) == shown
    assert hide_folders(shown) == shown


@pytest.mark.parametrize(
    "setting, shown",
    [
        ("source.path=/home/sally/a.txt", "source.path=a.txt"),
        ("source.limit=3", "source.limit=3"),
        ('datasets.0.path="/home/sally/d"', "datasets.0.path=d"),
        ("base.vocabulary.path='/home/sally/d'", "base.vocabulary.path=d"),
        (
            'model.server.base_url="http://gpu-7:1/v1"',
            "model.server.base_url=http://server.invalid/v1",
        ),
        (
            "datasets=[{path: /home/sally/d, example_type: sts}]",
            "datasets=[{example_type: sts, path: d}]",
        ),
        ("few_shot.end=/", "few_shot.end=/"),
        ("arguments.logging_dir=/home/sally/logs", "arguments.logging_dir=logs"),
        ("arguments={run: 'C:\\Users\\sally\\d', lr: 1e-5}", "arguments={lr: 1e-5, run: d}"),
        ("@/home/sally/offline.yaml", "@offline.yaml"),
        ("@assets/offline.yaml", "@assets/offline.yaml"),
    ],
)
def test_settings_in_the_command_that_a_manifest_keeps(setting, shown):
    assert hide_setting(setting) == shown


def test_a_path_with_any_character_is_put_back_into_the_recipe(tmp_path):
    path = str(tmp_path / "😀 é: #" / "texts.txt")
    store_input_paths(tmp_path / "run", {"source.path": path})
    tree = apply_overrides({}, read_path_settings(tmp_path / "run"))
    assert tree == {"source": {"path": path}}


def test_the_note_of_a_link_has_the_path_of_the_link(tmp_path):
    link = tmp_path / "texts.txt"
    link.symlink_to("blob")
    store_input_paths(tmp_path / "run", {"source.path": str(link)})
    assert read_path_settings(tmp_path / "run") == [f'source.path="{link}"']


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder of somebody's own: a model, source sentences, examples, scored pairs."""
    folder = tmp_path_factory.mktemp("machine") / SECRET
    shutil.copytree("assets/demo-lm", folder / "home" / "lm")
    shutil.copy("assets/demo-data/premises.txt", folder / "premises.txt")
    lines = [
        f"{word} man runs.\t{word} man {verb}.\t{label}"
        for word in ["A", "The", "One", "Some", "This", "That", "No", "Any"]
        for verb, label in (("moves", "yes"), ("sits", "no"))
    ]
    (folder / "examples.tsv").write_text("\n".join(["premise\thypothesis\tlabel", *lines]) + "\n")
    shutil.copy("assets/stsb/sts-dev.csv", folder / "sts-dev.csv")
    scored = (folder / "sts-dev.csv").read_text().splitlines()[:40]
    (folder / "scored.csv").write_text("\n".join(scored) + "\n")
    make_lm(folder / "home" / "tiny")
    return folder


@pytest.fixture(scope="module")
def dataset(folder) -> Path:
    """A dataset that was made from absolute paths, on the command line and in the recipe file."""
    tree = yaml.safe_load(Path(NLI_RECIPE).read_text())
    labels = {"entailment": "yes", "contradiction": "no"}
    examples = {"kind": "file", "path": str(folder / "examples.tsv"), "labels": labels}
    few_shot = {
        "shots": [1],
        "sets": 1,
        "examples": {**examples, "description": "a few pairs", "license": "cc0-1.0"},
    }
    tree |= {"model": {**tree["model"], "path": str(folder / "home" / "lm")}, "few_shot": few_shot}
    (folder / "my.yaml").write_text(yaml.safe_dump(tree))
    settings = [f"source.path={folder / 'premises.txt'}", *OVERRIDES]
    options = [word for setting in settings for word in ("--set", setting)]
    done = outcome_of(
        sts_dino.generation.run, folder / "my.yaml", *options, "--out", folder / "runs" / "auto-nli"
    )
    assert done.code == 0, done.stderr
    return folder / "runs" / "auto-nli"


@pytest.fixture(scope="module")
def model(folder, dataset) -> Path:
    """An encoder that was trained and scored with absolute paths."""
    data = {"path": str(dataset), "config": "triplet-1shot", "example_type": "triplet"}
    data["loss"] = "MultipleNegativesRankingLoss"
    tree = yaml.safe_load(Path(MODEL_RECIPE).read_text())
    tree |= {
        "base": {**tree["base"], "path": str(folder / "home" / "tiny"), "modules": "transformer"},
        "datasets": [data],
        "lora": {"r": 2, "alpha": 4, "release": "merged"},
        "validation": [{"path": str(folder / "scored.csv")}],
        "evaluation": [
            {"task": "stsb/cosine", "split": "validation", "path": str(folder / "sts-dev.csv")}
        ],
        "arguments": {"max_steps": "1"},
        "batch_size": 2,
        "bootstrap_samples": 10,
    }
    (folder / "my-model.yaml").write_text(yaml.safe_dump(tree))
    out = folder / "runs" / "demo-sts-dino"
    for module, *words in (
        (sts_dino.training.run, "--out", out),
        (evaluation, "--model", out, "--no-cache"),
    ):
        done = outcome_of(module, folder / "my-model.yaml", *words)
        assert done.code == 0, done.stderr
    return out


def publishable(directory: Path) -> dict[str, bytes]:
    """Everything that a publication sends, tables unpacked."""
    manifest = run_dir.require_complete(directory)
    contents = {
        path: content.data.read_bytes()
        for path, content in collect_snapshot(directory, manifest).items()
    }
    for path in [path for path in contents if path.endswith(".parquet")]:
        table = pq.read_table(directory / path, partitioning=None)
        contents[f"{path}, unpacked"] = repr((table.schema, table.to_pylist())).encode()
    return contents


@pytest.mark.parametrize("kind", ["dataset", "model"])
def test_no_published_byte_tells_of_the_machine(kind, dataset, model, folder):
    directory = {"dataset": dataset, "model": model}[kind]
    assert outcome_of(sts_dino.model_cards.render, directory).code == 0
    contents = publishable(directory)
    assert {"README.md", "manifest.json", "recipe.yaml"} <= contents.keys()
    encoder = {"results.json", "config.json", "tokenizer_config.json", "modules.json"}
    assert kind == "dataset" or encoder <= contents.keys()
    for path, content in contents.items():
        for word in (SECRET, str(folder.parent), f"{Path.cwd()}/", f"{Path.home()}/"):
            assert word.encode() not in content, f"{path} tells {word}"
            assert word not in path


def test_the_names_and_checksums_of_inputs_are_published(dataset, model, folder, tmp_path):
    inputs = run_dir.read_manifest(dataset).inputs
    assert inputs["premises.txt"] == run_dir.hash_file(folder / "premises.txt")
    assert inputs["lm/model.safetensors"] == run_dir.hash_file(
        folder / "home" / "lm" / "model.safetensors"
    )
    assert (
        "examples.tsv" in inputs
        and run_dir.read_manifest(dataset).provenance["model"]["id"] == "lm"
    )
    assert {"base:tiny", "dataset:auto-nli:triplet-1shot"} <= run_dir.read_manifest(
        model
    ).inputs.keys()
    paths = {
        "source.path": "premises.txt",
        "model.path": "lm",
        "few_shot.examples.path": "examples.tsv",
    }
    assert load_recipe(dataset / "recipe.yaml", DatasetRecipe).collect_local_paths() == paths
    for directory, stage, key, name in (
        (dataset, sts_dino.generation.run, "source.path", "premises.txt"),
        (model, sts_dino.training.run, "base.path", "base:tiny"),
    ):  # who runs the published recipe learns what belongs there
        shutil.copytree(directory, tmp_path / directory.name)
        done = outcome_of(
            stage, tmp_path / directory.name / "recipe.yaml", "--out", tmp_path / "out"
        )
        digest = run_dir.read_manifest(directory).inputs[name]
        wanted = [key, f"{name} with SHA-256 {digest}", f"--set {key}=PLACE"]
        assert done.code == 2 and all(words in done.error for words in wanted)


def test_a_run_goes_on_and_is_explained_where_its_inputs_lie_or_have_moved(
    dataset, folder, tmp_path
):
    shutil.copytree(dataset, tmp_path / "auto-nli")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    shutil.copy(folder / "premises.txt", moved / "premises.txt")
    settings = [f"source.path={moved / 'premises.txt'}", *OVERRIDES]
    options = [word for setting in settings for word in ("--set", setting)]
    again = outcome_of(
        sts_dino.generation.run, folder / "my.yaml", *options, "--out", tmp_path / "auto-nli"
    )
    assert again.code == 0 and "already complete" in again.stderr
    row = pq.read_table(
        min(dataset.glob("data/raw-1shot/*.parquet")), partitioning=None
    ).to_pylist()[0]
    row_id = f"{row['source_id']}/{row['target']}/{row['attempt']}/1shot-0"
    assert outcome_of(sts_dino.generation.explain, dataset, row_id).code == 0
    # its note says where things lie, too
    done = outcome_of(sts_dino.generation.explain, tmp_path / "auto-nli", row_id)
    assert done.code == 0
    (tmp_path / "auto-nli.places.json").unlink()
    assert (
        "--set model.path=PLACE"
        in outcome_of(sts_dino.generation.explain, tmp_path / "auto-nli", row_id).error
    )
    places = {"model.path": "home/lm", "few_shot.examples.path": "examples.tsv"}
    given = [word for key, path in places.items() for word in ("--set", f"{key}={folder / path}")]
    assert outcome_of(sts_dino.generation.explain, tmp_path / "auto-nli", row_id, *given).code == 0
    noted = json.loads((dataset.parent / "auto-nli.places.json").read_text())
    assert noted["model.path"] == str(folder / "home" / "lm")


def test_where_a_server_is_stays_here_and_the_same_model_elsewhere_is_the_same_run():
    section = {"base_url": "http://gpu-7.corp.example:8000/v1", "model": "lm"}
    path, given = Path(NLI_RECIPE), ["model.backend=openai", f"model.server={json.dumps(section)}"]
    recipe = load_recipe(path, DatasetRecipe, given)
    elsewhere = load_recipe(
        path, DatasetRecipe, [*given, "model.server.base_url=http://localhost:1/v1"]
    )
    assert compute_fingerprint(recipe, {}) == compute_fingerprint(elsewhere, {})
    known = recipe.model_dump(context=PUBLISHED)
    assert "corp.example" not in format_recipe(recipe) and known["model"]["server"]["model"] == "lm"
    done = format_command(
        "write", path, None, [given[1], f"model.server.base_url={section['base_url']}"]
    )
    assert "corp.example" not in done and "model.server.base_url=http://server.invalid/v1" in done
    with pytest.raises(
        InputError,
        match=r"base_url: is not published; serve lm, and say where: --set model\.server",
    ):
        load_writer(DatasetRecipe.model_validate(known).model)


def test_two_inputs_of_one_name_are_refused(folder, tmp_path):
    (tmp_path / "examples.tsv").write_text("A text.\n")
    recipe = load_recipe(
        folder / "my.yaml", DatasetRecipe, [f"source.path={tmp_path / 'examples.tsv'}"]
    )
    with pytest.raises(
        InputError, match=r"has the name of another input, examples\.tsv; rename one"
    ):
        hash_inputs(recipe)


@pytest.mark.parametrize("written", ["texts.txt", "data/texts.txt", "../texts.txt"])
def test_a_relative_path_means_beside_the_recipe_from_every_folder(written, tmp_path, monkeypatch):
    recipe = tmp_path / "recipes" / "mine.yaml"
    (tmp_path / "recipes" / "data").mkdir(parents=True)
    (recipe.parent / written).write_text("A man plays a flute.\n")
    tree = yaml.safe_load(Path("recipes/demo/sts-dino-x2.yaml").read_text())
    tree["source"] |= {"path": written}
    recipe.write_text(yaml.safe_dump(tree))
    clone, found = Path.cwd(), set()
    for folder in (clone, recipe.parent, tmp_path):
        monkeypatch.chdir(folder)
        loaded = load_recipe(
            Path("mine.yaml") if folder == recipe.parent else recipe, DatasetRecipe
        )
        assert Path(loaded.source.path) == (recipe.parent / written).resolve()
        found.add(
            (
                loaded.model_dump(context=PUBLISHED)["source"]["path"],
                compute_fingerprint(loaded, {}),
            )
        )
        overridden = load_recipe(recipe, DatasetRecipe, [f"source.path={written}"])
        # what is typed in a shell is of the shell's folder
        assert overridden.source.path == written
    assert [path for path, _ in found] == ["texts.txt"]
    monkeypatch.chdir(clone)
    assert loaded.model.path == "assets/demo-lm"  # not beside the recipe: of the current folder
