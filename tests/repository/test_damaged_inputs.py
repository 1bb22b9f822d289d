"""Damaged and unfit inputs, and places that cannot be written: one line, its exit code, no traceback, no silence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_outcomes import outcome_of
from published_run import finished_run
from small_runs import small_recipe, small_run
from training_inputs import data_spec, write_recipe

import generation.explain
import generation.run
import model_cards.render
import training.run
from eval import annotate, quality
from eval.audit import decontaminate
from generation.import_task import read_spec
from hub.contract import run_dir
from hub.errors import InputError
from training.data.training_sets import load_all

STS_RECIPE, NLI_RECIPE = "recipes/demo/sts-dino-x2.yaml", "recipes/demo/auto-nli.yaml"
SENTENCES = [f"Sentence number {number} is about a man and a dog." for number in range(3000)]
FEW_SHOT = (
    "few_shot={{shots: [2], sets: 1, examples: {{kind: file, path: {}, premise: text, hypothesis: text, label: text, "
    "labels: {{entailment: a, contradiction: b}}, description: d, license: mit}}}}"
)
LABELS = 'labels=[{name: entailment, instruction: "<X1> \\""}, {name: contradiction, instruction: "<X1> \\""}]'


def flip(path: Path, start: int, count: int) -> None:
    """Change bytes in the middle of a file: pages that are no longer what their headers say."""
    content = bytearray(path.read_bytes())
    for place in range(start, start + count):
        content[place] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in ("pages", "cut"):
        pq.write_table(pa.table({"text": SENTENCES}), folder / f"{name}.parquet", compression="zstd")
    flip(folder / "pages.parquet", 2000, 200)
    whole = (folder / "cut.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "deep.jsonl").write_text('{"text": "fine"}\n{"text": ' + "[" * 100_000 + "\n")
    (folder / "digits.jsonl").write_text('{"text": ' + "9" * 5_000 + "}\n")
    (folder / "object.jsonl").write_text('{"text": {"a": 1}}\n')
    pq.write_table(pa.table({"text": pa.array([b"\xff\x00 bytes"] * 5, pa.binary())}), folder / "binary.parquet")
    pq.write_table(pa.table({"text": pa.array([["a", "b"]] * 5)}), folder / "list.parquet")
    return folder


KINDS = {
    "pages.parquet": "cannot be read: ",
    "cut.parquet": "cannot be read: ",
    "deep.jsonl": ":2: is not JSON: maximum recursion depth",
    "digits.jsonl": ":1: is not JSON: Exceeds the limit",
    "object.jsonl": ":1: its column 'text' holds dict; allowed: text",
    "binary.parquet": "its column 'text' holds bytes; allowed: text",
    "list.parquet": "its column 'text' holds list; allowed: text",
}


def refused(module, *words) -> str:
    outcome = outcome_of(module, *words)
    assert outcome.code == 2, outcome
    return outcome.error


@pytest.mark.parametrize("name", KINDS)
def test_source_sentences(name, files):
    settings = [f"source.path={files / name}", "source.columns=[text]", "source.limit=5000"]
    options = [word for setting in settings for word in ("--set", setting)]
    said = refused(generation.run, STS_RECIPE, *options, "--dry-run")
    assert str(files / name) in said and KINDS[name] in said


def test_few_shot_examples(files):
    options = ["--set", FEW_SHOT.format(files / "binary.parquet"), "--set", LABELS]
    said = refused(generation.run, NLI_RECIPE, *options, "--dry-run")
    assert str(files / "binary.parquet") in said and KINDS["binary.parquet"] in said


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["pages.parquet", "deep.jsonl", "binary.parquet"])
def test_documents(name, streaming, files):
    spec = data_spec(files / name, config="default", example_type="documents", loss="DeclutrLoss", streaming=streaming)
    with pytest.raises(InputError, match=r"documents|cannot be read: |holds binary"):
        load_all((spec,), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    small_run(folder, small_recipe("sts"))
    return folder


def test_pages_that_nobody_can_unpack_in_a_run_whose_checksums_fit(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    directory, out = tmp_path / "run", tmp_path / "out"
    shard = min(directory.glob("data/postprocessed/train-*.parquet"))
    flip(shard, 60, 100)
    manifest = run_dir.read_manifest(directory)
    again = [run_dir.describe(directory, f.path, config=f.config, split=f.split, rows=f.rows) for f in manifest.files]
    run_dir.write_manifest(directory, manifest.model_copy(update={"files": tuple(again)}))
    data = f"datasets=[{{path: {directory}, config: postprocessed, example_type: sts, loss: CosineSimilarityLoss}}]"
    said = [
        refused(model_cards.render, directory),
        refused(quality, directory, "--out", out),
        refused(decontaminate, directory, "--out", out),
        refused(annotate, directory, "--out", out),
        refused(training.run, write_recipe(tmp_path), "--set", data, "--dry-run"),
    ]
    assert all(str(directory) in one and "cannot be read: " in one for one in said), said


@pytest.mark.parametrize("content", [b"[" * 200_000, b"\xff\xfe\x00", b"null"], ids=["deep", "no-utf8", "null"])
def test_a_manifest_or_a_task_that_is_none(content, tmp_path):
    directory = finished_run(tmp_path / "run")
    (directory / "manifest.json").write_bytes(content)
    for module, *words in ((model_cards.render, directory), (quality, directory, "--out", tmp_path / "out")):
        assert "manifest.json: not a manifest" in refused(module, *words)
    (tmp_path / "task.json").write_bytes(content)
    with pytest.raises(InputError, match=r"task\.json"):
        read_spec(tmp_path / "task.json")


@pytest.mark.parametrize("out", ["/proc/none", "{}/" + "x" * 300])
def test_a_place_that_cannot_be_written_is_not_called_another_process(out, tmp_path):
    outcome = outcome_of(generation.run, STS_RECIPE, "--set", "source.limit=2", "--out", out.format(tmp_path))
    assert outcome.code == 1
    assert "choose another folder" in outcome.error


LIMITED = """
import resource, sys
import training.run
from command_outcomes import outcome_of
from pathlib import Path
from training_inputs import write_recipe

folder = Path(sys.argv[1])
recipe = write_recipe(folder)
resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))
outcome = outcome_of(training.run, recipe, "--out", folder / "model")
print(outcome.code, outcome.error)
"""


@pytest.mark.slow("trains in a process of its own")
def test_a_training_that_may_write_no_large_file_says_so_in_a_line(tmp_path):
    places = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": f".{os.pathsep}tests"}
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, **places}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("1 ") and "ulimit -f" in last
