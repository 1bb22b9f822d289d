"""The generation command as a user runs it: a process, its exit code, what it leaves on disk."""

import errno
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_lm import make_lm

from generation import job, run
from hub import cli, run_dir, shards
from hub.errors import InputError, RunError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import read_shard

X2, X1X2, NLI = (Path(f"recipes/demo/{name}.yaml") for name in ("sts-dino-x2", "sts-dino-x1x2", "auto-nli"))
SMALL = ["decoding.max_new_tokens=6", "shard_size=4", "decoding.max_attempts=3"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("lm"), "llama")


def small(lm: Path, *more: str) -> list[str]:
    return [f"model.path={lm}", "source.limit=12", *SMALL, *more]


def command(lm: Path, out: Path, *more: str, recipe: Path = X2) -> list[str]:
    settings = [word for setting in small(lm, *more) for word in ("--set", setting)]
    return [sys.executable, "-m", "generation.run", str(recipe), "--out", str(out), *settings]


def digests(directory: Path) -> dict[str, str]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def generate(lm: Path, directory: Path, *more: str, recipe: Path = X2) -> run_dir.Manifest:
    with run_dir.locked(directory):
        return job.generate(load_recipe(recipe, DatasetRecipe, small(lm, *more)), directory, "test")


@pytest.fixture(scope="module")
def whole(lm, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "whole"
    generate(lm, directory)
    return directory


def test_counts_add_up_and_agree_with_the_files(whole):
    manifest = run_dir.require_complete(whole)
    counts = manifest.counts
    assert counts["requested"] == counts["kept"] + sum(counts["rejected"].values())
    assert counts["requested"] == sum(label["requested"] for label in counts["by_label"].values())
    assert run_dir.changed_files(whole, manifest) == []
    for config, splits in counts["splits"].items():
        for split, rows in splits.items():
            named = [file for file in manifest.shards(config) if file.split == split]
            assert rows == sum(len(read_shard(whole / file.path)) for file in named)
    finished = sum(counts["splits"]["postprocessed"].values())
    assert finished == counts["kept"] + counts["sampled_negatives"]
    assert set(digests(whole)) == {file.path for file in manifest.files} | {"manifest.json", "recipe.yaml"}


def test_no_more_than_the_attempts_and_samples_of_the_recipe(whole):
    manifest = run_dir.require_complete(whole)
    raw = [row for file in manifest.shards("raw") for row in read_shard(whole / file.path)]
    rejected = [row for file in manifest.shards("rejected") for row in read_shard(whole / file.path)]
    asked: dict[tuple[str, str], list[int]] = {}
    for row in raw + [row for row in rejected if row["reason"] in ("not_closed", "line_break", "empty")]:
        asked.setdefault((row["source_id"], row["target"]), []).append(row["attempt"])
    assert len(asked) == 12 * 3
    for attempts in asked.values():
        assert sorted(attempts) == list(range(len(attempts))) and len(attempts) <= 3


def test_running_again_does_nothing(whole, lm, capsys):
    before = digests(whole)
    generate(lm, whole)
    assert digests(whole) == before and "already complete" in capsys.readouterr().err


def test_two_runs_and_another_shard_history_give_the_same_bytes(whole, lm, tmp_path):
    generate(lm, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(whole)
    damaged = tmp_path / "again" / "data/raw/train-00001-of-00003.parquet"
    damaged.write_bytes(b"rubbish")
    generate(lm, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(whole)


def test_killed_anywhere_it_goes_on_to_the_same_bytes(whole, lm, tmp_path):
    """kill -9 after the first, then after the second shard; the third start ends the run."""
    out = tmp_path / "killed"
    for shard in (0, 1):
        process = subprocess.Popen(command(lm, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = out / f"data/rejected/train-{shard:05d}-of-00004.parquet"
        deadline = time.monotonic() + 90
        while not wanted.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert wanted.exists()
    (out / "data/raw/.train-00002-of-00003.parquet.1.tmp").write_bytes(b"half")
    generate(lm, out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["provenance"]["command"] = "test"  # the command line differs on purpose
    ours, theirs = digests(out), digests(whole)
    assert ours.pop("manifest.json") and theirs.pop("manifest.json")
    assert ours == theirs and manifest == json.loads((whole / "manifest.json").read_text())


def test_a_second_process_stops_with_a_clear_error(lm, tmp_path):
    with run_dir.locked(tmp_path / "run"):
        done = subprocess.run(command(lm, tmp_path / "run"), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "another process is working on this run" in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_full_disk_is_one_error_and_leaves_nothing_half_written(whole, lm, tmp_path, monkeypatch, capsys):
    calls = []

    def full(path: Path) -> None:
        calls.append(path)
        if len(calls) == 12:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards, "_fsync", full)
    with pytest.raises(SystemExit) as caught:
        cli.run(lambda: generate(lm, tmp_path / "full"))
    said = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == 1 and re.match(f"error: {tmp_path}/full/.*: no space left on the disk", said), said
    assert not list((tmp_path / "full").rglob("*.tmp"))
    manifest = run_dir.read_manifest(tmp_path / "full")
    assert manifest is not None and not manifest.complete and not run_dir.changed_files(tmp_path / "full", manifest)
    monkeypatch.undo()
    generate(lm, tmp_path / "full")
    assert digests(tmp_path / "full") == digests(whole)


def test_another_recipe_in_the_same_directory_is_refused(whole, lm):
    with pytest.raises(InputError, match="holds a run of another recipe"):
        generate(lm, whole, "seed=43")


def test_first_texts_from_the_model_are_kept_and_survive_a_restart(lm, tmp_path):
    more = ("decoding.max_new_tokens=30", "decoding.max_attempts=9")
    first = generate(lm, tmp_path / "a", *more, recipe=X1X2)
    sources = [row for file in first.shards("sources") for row in read_shard(tmp_path / "a" / file.path)]
    assert 0 < len({row["text"] for row in sources}) == len(sources) == first.counts["sources"] <= 12
    path = tmp_path / "a" / first.shards("raw")[0].path
    path.unlink()
    before = digests(tmp_path / "a")
    generate(lm, tmp_path / "a", *more, recipe=X1X2)
    assert {k: v for k, v in digests(tmp_path / "a").items() if k in before} == before and path.exists()


def test_nli_run(lm, tmp_path):
    more = ("premise_tokens=[4, 200]", "decoding.max_new_tokens=30", "decoding.max_attempts=9")
    manifest = generate(lm, tmp_path / "nli", *more, recipe=NLI)
    assert set(manifest.counts["splits"]) <= {"triplet", "pair-class", "raw", "rejected"}
    assert manifest.counts["kept"] == sum(manifest.counts["splits"]["pair-class"].values())


def test_dry_run_prints_prompts_and_writes_nothing(lm, tmp_path):
    done = subprocess.run([*command(lm, tmp_path / "dry"), "--dry-run"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Write two sentences that are somewhat similar." in done.stdout and not list(tmp_path.iterdir())


def test_a_label_without_rows_is_a_failed_run(lm, tmp_path):
    with pytest.raises(RunError, match=r"label '1': no row is left of it \(rejected: .*not_closed"):
        generate(lm, tmp_path / "none", "decoding.max_new_tokens=1", "source.limit=1", "decoding.top_k=1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("decoding:", "decodin:"), "decodin: unknown key; .*did you mean 'decoding'"),
        (("top_k: 5", "top_kk: 5"), "decoding.top_kk: unknown key; .*did you mean 'top_k'"),
        (("<X1>", "X1"), "labels.0.instruction: the instruction must contain the placeholder <X1>"),
        (('Sentence 2: \\""', 'Sentence 2: "'), "must end with the opening quotation mark"),
        (('counter_labels: ["1"]', "counter_labels: [one]"), "unknown counter-label 'one'"),
        (("top_p: 0.9", "top_p: 1.5"), "decoding.top_p: .*less than or equal to 1 .*1.5"),
        (("decay_constant: 100", "decay_constant: -1"), "decoding.decay_constant"),
        (("assets/demo-data/x1.tsv", "assets/nothing.tsv"), "assets/nothing.tsv: no such file"),
        (("column: text", "column: txt"), "column 'txt'.*did you mean 'text'"),
        (("path: assets/demo-lm", "path: assets/no-lm"), "model.path assets/no-lm: no such folder"),
        (("kind: dataset", "kind: [dataset"), "not valid YAML"),
        (("seed: 42", "seed: 42\nseed: 43"), "key 'seed' stands twice"),
    ],
)
def test_bad_recipes_exit_with_2_one_line_and_no_traceback(change, message, lm, tmp_path, capsys):
    text = X2.read_text()
    assert change[0] in text
    text = text.replace("assets/demo-lm", str(lm)) if "demo-lm" not in change[0] else text
    bad = tmp_path / "bad.yaml"
    bad.write_text(text.replace(*change, 1))
    with pytest.raises(SystemExit) as caught:
        cli.run(lambda: run.app([str(bad), "--out", str(tmp_path / "out")]))
    lines = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and len(lines) == 1 and re.search("^error: .*" + message, lines[0]), lines
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").rglob("*.parquet"))
