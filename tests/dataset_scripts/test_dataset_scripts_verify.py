"""``--verify`` and ``--rebuild``: what the pipeline wrote is found good by code of its own, and damage is found."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import FORMS, small_recipe, small_run
from test_dataset_scripts_contract import imported, written
from tiny_lm import make_lm

from generation.pipeline import job
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest

Told = Callable[..., tuple[int, str, str]]
RAW, REJECTED, FINISHED = "data/raw/train-00001-of-00003", "data/rejected/train-00001-of-00003", "data/postprocessed"


@pytest.fixture
def told(tmp_path, monkeypatch, capsys) -> Told:
    """The command of a recipe's script: exit code, stdout, stderr."""

    def run(recipe: DatasetRecipe, *arguments: object) -> tuple[int, str, str]:
        module = imported(recipe, tmp_path)
        monkeypatch.setattr(sys, "argv", ["script.py", *(str(argument) for argument in arguments)])
        code = 0
        capsys.readouterr()
        try:
            module.main(module.SPEC, tmp_path)
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A finished run of every form."""
    root = tmp_path_factory.mktemp("runs")
    for form in FORMS:
        small_run(root / form, small_recipe(form))
    return {form: root / form for form in FORMS}


def as_published(manifest: Manifest) -> dict[str, str]:
    """Path → SHA-256 of the files of the finished configs."""
    bases = ("postprocessed", "triplet", "pair-class")
    return {file.path: file.sha256 for file in manifest.files if str(file.config).startswith(bases)}


def rebuilt(out: Path) -> dict[str, str]:
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize(("form", "blocks"), [("sts", 3), ("sts", 1), ("sts", 2), ("sts", 40), ("nli", 3), ("text", 3)])
def test_a_finished_run_is_found_good_and_made_again(tmp_path, told, form, blocks):
    recipe, directory = small_recipe(form), tmp_path / "run"
    done = max(1, blocks - 1)  # the last block has no row, unless it is the only one
    manifest = small_run(directory, recipe, blocks=done + 1)
    code, said, problem = told(recipe, "--verify", directory)
    assert (code, problem) == (0, "")
    assert f"{len(manifest.files)} files: SHA-256, rows and columns are as manifest.json says" in said
    for config, splits in manifest.counts["splits"].items():
        for split, rows in splits.items():
            if not config.startswith(("raw", "rejected", "sources")):
                assert f"{config}/{split}: {rows} rows are as the raw rows make them\n" in said
    for folder in directory.glob("data/*"):
        if not folder.name.startswith("raw"):
            shutil.rmtree(folder)
    code, said, problem = told(recipe, "--rebuild", tmp_path / "out", directory)
    assert (code, problem) == (0, "") and said.count("the published bytes") == len(as_published(manifest))
    assert rebuilt(tmp_path / "out") == as_published(manifest)


@pytest.mark.parametrize("name", ["sts-dino-x2", "sts-dino-x1x2", "auto-nli"])
def test_what_a_language_model_wrote(tmp_path, told, name):
    """A real run of the demo's recipes, at the size of a test."""
    lm = make_lm(tmp_path / "lm")
    settings = [f"model.path={lm}", "source.limit=12", "decoding.max_new_tokens=6", "shard_size=4"]
    recipe = load_recipe(Path(f"recipes/demo/{name}.yaml"), DatasetRecipe, [*settings, "decoding.max_attempts=20"])
    manifest = job.generate(recipe, tmp_path / "run", "test")
    code, said, problem = told(recipe, "--verify", tmp_path / "run")
    assert (code, problem) == (
        0,
        "",
    ) and f"/train: {manifest.counts['splits'][recipe.configs[0]]['train']} rows" in said
    assert told(recipe, "--rebuild", tmp_path / "out", tmp_path / "run")[0] == 0
    assert rebuilt(tmp_path / "out") == as_published(manifest)


def test_rotating_examples_and_texts_outside_their_band(tmp_path, told):
    """A first text has one example set, and texts rejected for their words stand in ``rejected`` alone."""
    examples = "{kind: hand, path: assets/examples/sts.tsv, description: d, license: cc0-1.0}"
    more = [f"few_shot={{shots: [1], sets: 3, rotate: true, examples: {examples}}}", "labels.0.overlap=[0, 0.01]"]
    lm = make_lm(tmp_path / "lm", max_position_embeddings=2048)
    settings = [f"model.path={lm}", "source.limit=12", "decoding.max_new_tokens=6", "shard_size=4", *more]
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, [*settings, "decoding.max_attempts=20"])
    manifest = job.generate(recipe, tmp_path / "run", "test")
    assert len(manifest.shards("raw-1shot")) == 3
    code, said, problem = told(recipe, "--verify", tmp_path / "run")
    assert (code, problem) == (0, "") and "postprocessed-1shot/train: " in said
    assert told(recipe, "--rebuild", tmp_path / "out", tmp_path / "run")[0] == 0
    assert rebuilt(tmp_path / "out") == as_published(manifest)


def test_as_a_user_runs_it(tmp_path, runs):
    """Beside the files it checks, without an argument, in a process that knows nothing of ours."""
    copy = shutil.copytree(runs["text"], tmp_path / "copy")
    written(small_recipe("text"), copy)
    command = [sys.executable, "small-text.py", "--verify"]
    good = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert good.returncode == 0 and "rejected/late: " in good.stdout, good.stderr
    next(copy.glob("data/sources/*")).unlink()
    bad = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert bad.returncode == 1 and bad.stdout == ""
    assert bad.stderr.splitlines() == [
        f"error: {copy}/data/sources/train-00000-of-00001.parquet: is missing; download again"
    ]


def shard(directory: Path, beginning: str) -> Path:
    return next(directory.glob(f"{beginning}*.parquet"))


def change_a_byte(directory: Path) -> None:
    path = shard(directory, RAW)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_shards(directory: Path) -> None:
    shutil.rmtree(directory / "data" / "raw")


def swap_shards(directory: Path) -> None:
    one, other = sorted((directory / "data" / "raw").iterdir())
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def add_a_shard(directory: Path) -> None:
    shutil.copy(shard(directory, RAW), directory / "data/raw/train-00002-of-00003.parquet")


def claim_rows(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"][0]["rows"] += 1
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_a_byte, r"data/raw/train-00001-of-00003.parquet: SHA-256 is [0-9a-f]{64}, manifest.json says"),
        (remove_shards, r"data/raw/train-00000-of-00003.parquet: is missing \(and 1 more such files\); download again"),
        (swap_shards, r"data/raw/train-00000-of-00003.parquet: SHA-256 is"),
        (add_a_shard, r"data/raw/train-00002-of-00003.parquet: is not named in manifest.json; remove it"),
        (claim_rows, r"data/postprocessed/train-00000-of-00001.parquet: has \d+ rows, manifest.json says \d+"),
    ],
)
def test_damaged_files_are_named(tmp_path, runs, told, damage, said):
    copy = shutil.copytree(runs["sts"], tmp_path / "copy")
    damage(copy)
    code, out, error = told(small_recipe("sts"), "--verify", copy)
    assert (code, out) == (1, "") and error.count("\n") == 1
    assert re.search(f"^error: {copy}/{said}", error)


def edited(directory: Path, beginning: str, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Rows of a file changed, and manifest.json with them."""
    path = shard(directory, beginning)
    schema = pq.read_schema(path)
    rows = pq.ParquetFile(path).read().to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, compression="zstd")
    covered(directory)


def covered(directory: Path) -> None:
    place = directory / "manifest.json"
    manifest = json.loads(place.read_text())
    for file in manifest["files"]:
        content = (directory / file["path"]).read_bytes()
        rows = pq.ParquetFile(directory / file["path"]).metadata.num_rows
        file |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "rows": rows}
    place.write_text(json.dumps(manifest))


def swap_and_cover(directory: Path) -> None:
    swap_shards(directory)
    covered(directory)


def forget_a_shard(directory: Path) -> None:
    shard(directory, RAW).unlink()
    place = directory / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["files"] = [file for file in manifest["files"] if not file["path"].startswith(RAW)]
    place.write_text(json.dumps(manifest))


def row(beginning: str, number: int, **values: Any) -> Callable[[Path], None]:
    """The damage of one row that has other values."""
    return lambda directory: edited(directory, beginning, lambda rows: rows[number].update(values))


def rows(beginning: str, change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    """The damage of a file whose rows are others."""
    return lambda directory: edited(directory, beginning, change)


TRAIN, VALIDATION = f"{FINISHED}/train", f"{FINISHED}/validation"
HIDDEN = [
    (row(TRAIN, 7, score=0.25), "postprocessed/train: row 7: score is 0.25, the raw rows make 0."),
    (row(VALIDATION, 0, sentence2="x"), "postprocessed/validation: row 0: sentence2 is 'x', the raw rows make 'Text"),
    (row(TRAIN, 2, margin=-9.0), "postprocessed/train: row 2: margin is -9.0, the raw rows make "),
    (rows(TRAIN, lambda r: r.append(r[0])), r"postprocessed/train: has more than the \d+ rows that the raw rows make"),
    (rows(TRAIN, lambda r: r.pop()), r"postprocessed/train: has \d+ rows, the raw rows make more"),
    (rows(TRAIN, lambda r: r.reverse()), "postprocessed/train: row 0: sentence1 is "),
    (row(RAW, 0, text2="x"), r"postprocessed/train: row \d+: sentence2 is '.*', the raw rows make 'x'"),
    (row(RAW, 5, log_prob=0.0), r"rejected/sifted: row \d+: log_prob is -5.3857.*, the raw rows make 0.0"),
    (row(RAW, 4, target="0.7"), "train-00001-of-00003.parquet: has rows for the unknown label '0.7'"),
    (row(REJECTED, -1, reason="identical"), "rejected/sifted: row "),
    (swap_and_cover, "rejected/sifted: row 0: text1 is"),
    (forget_a_shard, "data/raw/train-00001-of-00003.parquet: is missing in manifest.json"),
]


@pytest.mark.parametrize(("damage", "said"), HIDDEN, ids=range(len(HIDDEN)))
def test_a_manifest_that_agrees_with_the_damage_does_not_hide_it(tmp_path, runs, told, damage, said):
    copy = shutil.copytree(runs["sts"], tmp_path / "copy")
    damage(copy)
    code, _, error = told(small_recipe("sts"), "--verify", copy)
    assert code == 1 and re.search(said, error) and error.count("\n") == 1, error


def test_an_edited_class_and_an_edited_triplet_are_found(tmp_path, runs, told):
    copy, other = (shutil.copytree(runs["nli"], tmp_path / name) for name in ("copy", "other"))
    row("data/pair-class-5shot/train", 3, label=1)(copy)
    code, _, error = told(small_recipe("nli"), "--verify", copy)
    assert code == 1 and "pair-class-5shot/train: row 3: label is 1, the raw rows make" in error
    row("data/triplet-0shot/validation", 0, positive="x")(other)
    code, _, error = told(small_recipe("nli"), "--verify", other)
    assert code == 1 and "triplet-0shot/validation: row 0: positive is" in error


def test_other_columns_are_found(tmp_path, runs, told):
    copy = shutil.copytree(runs["text"], tmp_path / "copy")
    path = shard(copy, f"{FINISHED}/train")
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["attempt"]), path)
    covered(copy)
    code, _, error = told(small_recipe("text"), "--verify", copy)
    assert code == 1 and "has other columns than the config 'postprocessed'; download again" in error


def test_another_recipe_s_constants_are_found(runs, told):
    other = small_recipe("sts", postprocess={"smoothing": 0.1})
    code, _, error = told(other, "--verify", runs["sts"])
    assert code == 1 and "postprocessed/train: row 1: score is 0.10000000149011612, the raw rows make 0.05" in error


def test_what_it_cannot_work_on(tmp_path, runs, told):
    recipe = small_recipe("sts")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text('{"name": "small-sts"}')
    assert told(recipe, "--verify", tmp_path / "empty")[0] == 2
    assert told(recipe, "--verify", tmp_path / "broken")[::2] == (
        2,
        f"error: {tmp_path}/broken/manifest.json: is no manifest of a dataset (KeyError('complete'))\n",
    )
    for manifest in ('{"complete": 1, "counts": null, "files": []}', "[]", '"x"', "\x00"):
        (tmp_path / "broken" / "manifest.json").write_text(manifest)
        code, _, error = told(recipe, "--verify", tmp_path / "broken")
        assert code == 2 and "is no manifest of a dataset" in error and error.count("\n") == 1
    code, _, error = told(recipe, "--verify", runs["nli"])
    assert code == 2 and "belongs to 'small-nli', this script to 'small-sts'" in error
    code, _, error = told(recipe, "--rebuild", runs["sts"], runs["sts"])
    assert code == 2 and "is not empty; name a new folder" in error
    assert told(recipe, runs["sts"])[0] == 2


@pytest.mark.parametrize("edit", [{"path": "data/postprocessed/../../../train-0-of-1.parquet"}, {"config": None}])
@pytest.mark.parametrize("split", [{}, {"split": "../../../train"}, {"split": ".*"}])
def test_a_manifest_cannot_name_files_elsewhere(tmp_path, runs, told, edit, split):
    copy = shutil.copytree(runs["sts"], tmp_path / "copy")
    place = copy / "manifest.json"
    manifest = json.loads(place.read_text())
    manifest["files"][0] |= edit | split
    place.write_text(json.dumps(manifest))
    code, _, error = told(small_recipe("sts"), "--rebuild", tmp_path / "out", copy)
    assert code == 2 and "which is no file of a config of this dataset" in error and not (tmp_path / "out").exists()


def test_a_growing_copy_is_checked_as_far_as_it_goes(tmp_path, told):
    recipe = small_recipe("sts")
    small_run(tmp_path / "run", recipe, blocks_done=1)
    code, said, _ = told(recipe, "--verify", tmp_path / "run")
    assert code == 0 and said.startswith("2 files: ") and "not finished" in said
    code, _, error = told(recipe, "--rebuild", tmp_path / "out", tmp_path / "run")
    assert code == 2 and "the run is not finished" in error
