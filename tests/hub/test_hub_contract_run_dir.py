import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from pydantic import ValidationError

from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.shards import Parts, read_shard
from sts_dino.hub.durable import write_atomically, write_text
from sts_dino.hub.errors import InputError


def manifest(fingerprint: str = "f") -> Manifest:
    return Manifest(kind="dataset", name="x", version="0.1.0", fingerprint=fingerprint)


def test_begin_starts_resumes_and_drops_damaged_files(tmp_path):
    directory = tmp_path / "run"
    started = run_dir.begin(directory, manifest(), "recipe")
    write_text(directory / "a.txt", "one")
    write_text(directory / "b.txt", "two")
    files = [run_dir.describe_file(directory, name) for name in ("a.txt", "b.txt")]
    run_dir.write_manifest(directory, started.with_files(files, complete=True))
    assert run_dir.begin(directory, manifest(), "recipe").complete
    (directory / "a.txt").write_text("changed")
    (directory / ".b.txt.77.tmp").write_text("left by a killed process")
    resumed = run_dir.begin(directory, manifest(), "recipe")
    assert [file.path for file in resumed.files] == ["b.txt"] and not resumed.complete
    assert not list(directory.glob(".*.tmp"))


def test_begin_keeps_hidden_files_of_a_folder_that_is_no_run(tmp_path):
    hidden = [tmp_path / ".notes.tmp", tmp_path / "deeper" / ".recipe.yaml.1.tmp"]
    for path in hidden:
        write_text(path, "a user's")
    with pytest.raises(InputError, match="is not empty and not a run directory"):
        run_dir.begin(tmp_path, manifest(), "recipe")
    assert all(path.is_file() for path in hidden)
    # a start killed during its first write left only the temporary file of its manifest
    write_text(tmp_path / "run" / ".manifest.json.0.tmp", "left by a killed process")
    assert run_dir.begin(tmp_path / "run", manifest(), "recipe") == run_dir.read_manifest(
        tmp_path / "run"
    )


def test_begin_refuses_what_is_not_its_run(tmp_path):
    run_dir.begin(
        tmp_path / "run", manifest().model_copy(update={"inputs": {"b.tsv": "1"}}), "recipe"
    )
    write_text(tmp_path / "run" / "a.txt", "work, though no manifest names it yet")
    other = manifest("other").model_copy(update={"inputs": {"b.tsv": "2"}})
    with pytest.raises(
        InputError, match=r"of another recipe or of other inputs \(x v0.1.0; b.tsv has changed\)"
    ):
        run_dir.begin(tmp_path / "run", other, "recipe")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty and not a run directory"):
        run_dir.begin(tmp_path / "mine", manifest(), "recipe")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_run_that_bad_input_stopped_before_anything_was_made_begins_again(tmp_path):
    run_dir.begin(tmp_path / "run", manifest(), "recipe")
    (tmp_path / "run.lock").touch()
    (tmp_path / "run.of-another-name").mkdir()
    again = run_dir.begin(tmp_path / "run", manifest("corrected"), "other recipe")
    assert run_dir.read_manifest(tmp_path / "run") == again and again.fingerprint == "corrected"
    assert (tmp_path / "run" / run_dir.RECIPE).read_text() == "other recipe"
    run_dir.write_manifest(tmp_path / "run", again.model_copy(update={"complete": True}))
    with pytest.raises(InputError, match=r"another recipe.*--append adds rows"):
        run_dir.begin(tmp_path / "run", manifest(), "recipe")
    with pytest.raises(InputError, match=r"to start again$"):  # sts-dino train has no --append
        model = manifest("model's").model_copy(update={"kind": "model"})
        run_dir.begin(tmp_path / "run", model, "recipe")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": None}, "not a manifest: name: Input should be"),
        ({"files": [{"path": "a", "bytes": 1, "sha256": "0", "parts": 2}]}, "'files.0.parts'"),
    ],
)
def test_a_manifest_that_cannot_be_read_names_the_key(tmp_path, change, problem):
    values = manifest().model_dump(mode="json") | change
    (tmp_path / run_dir.MANIFEST).write_text(json.dumps(values))
    with pytest.raises(InputError, match=problem):
        run_dir.read_manifest(tmp_path)


@pytest.mark.parametrize(
    "facts",
    [
        {"path": "../a"},
        {"path": "..\\a"},
        {"path": "/a"},
        {"path": "C:\\a"},
        {"path": "C:a"},
        {"path": "a", "config": "..\\raw"},
        {"path": "a", "split": "a/b"},
    ],
)
def test_a_manifest_names_no_file_outside_its_directory_on_any_system(facts):
    with pytest.raises(ValidationError, match="leads out of the run directory"):
        run_dir.File(bytes=0, sha256="0", **facts)
    assert run_dir.File(path="data/raw/train-0.parquet", bytes=0, sha256="0", config="raw")


def test_a_lock_file_that_windows_does_not_remove_is_left_behind_unlocked(tmp_path, monkeypatch):
    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "used by another process", str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    for _ in range(2):
        with run_dir.lock_run(tmp_path / "run"):
            pass


def test_a_file_beside_a_run_is_found_by_the_name_of_the_run_or_of_a_links_target(
    tmp_path, monkeypatch
):
    runs = tmp_path / "runs"
    (runs / "sts").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(runs / "sts", target_is_directory=True)
    assert run_dir.find_beside(link, "timing.json") is None
    beside_target = runs / "sts.timing.json"
    beside_target.write_text("{}")
    monkeypatch.chdir(runs / "sts")
    for directory in (link, Path(), runs / "sts"):
        assert run_dir.find_beside(directory, "timing.json") == beside_target
    beside_link = tmp_path / "link.timing.json"
    beside_link.write_text("{}")
    assert run_dir.find_beside(link, "timing.json") == beside_link


def test_an_unfinished_run_goes_on_under_its_own_versions_only(tmp_path):
    begun = manifest().model_copy(update={"versions": {"torch": "2.13.0", "code": "a"}})
    later = manifest().model_copy(update={"versions": {"torch": "2.14.0", "code": "a"}})
    started = run_dir.begin(tmp_path / "run", begun, "recipe")
    run_dir.begin(tmp_path / "run", begun, "recipe")
    with pytest.raises(
        InputError, match=r"begun by other versions \(torch 2.13.0, now 2.14.0\); go back"
    ):
        run_dir.begin(tmp_path / "run", later, "recipe")
    write_text(tmp_path / "run" / "a.txt", "one")
    files = [run_dir.describe_file(tmp_path / "run", "a.txt")]
    run_dir.write_manifest(tmp_path / "run", started.with_files(files, complete=True))
    assert run_dir.begin(tmp_path / "run", later, "recipe").versions == begun.versions
    (tmp_path / "run" / "a.txt").unlink()
    with pytest.raises(
        InputError, match=r"missing or damaged files, 1 in all \(a\.txt\), begun by other versions"
    ):
        run_dir.begin(tmp_path / "run", later, "recipe")


CONTENDER = """
import sys
from pathlib import Path
from sts_dino.hub.contract import run_dir
from sts_dino.hub.errors import RunError

folder, held = Path(sys.argv[1]), 0
while held < 60:
    try:
        with run_dir.lock_run(folder / "run"):
            (folder / "alone").touch(exist_ok=False)  # fails when another process is in here, too
            (folder / "alone").unlink()
            held += 1
    except RunError:
        pass
"""


@pytest.mark.slow("kills a run again and again, to the same bytes")
def test_a_lock_whose_file_goes_is_never_held_twice(tmp_path):
    command = [sys.executable, "-c", CONTENDER, str(tmp_path)]
    contenders = [
        subprocess.Popen(command, env={**os.environ, "PYTHONPATH": "."}) for _ in range(3)
    ]
    assert [one.wait(300) for one in contenders] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_atomic_path_leaves_the_old_file_when_writing_fails(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), write_atomically(path) as temporary:
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_parts_are_named_when_their_number_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr("sts_dino.hub.contract.shards.ROW_GROUP_ROWS", 3)
    features = datasets.Features({"text": datasets.Value("string")})
    for directory, steps in ((tmp_path / "a", (1, 8, 5)), (tmp_path / "b", (14,))):
        parts, rows = Parts(directory, "c", "train", features, rows_per_file=6), iter(range(14))
        for step in steps:
            parts.add([{"text": str(next(rows))} for _ in range(step)])
        assert not list(directory.rglob("*.parquet"))
        names = [f"data/c/train-0000{i}-of-00003.parquet" for i in range(3)]
        assert parts.finish() == list(zip(names, (6, 6, 2), strict=True))
        assert [row["text"] for name in names for row in read_shard(directory / name)] == [
            str(i) for i in range(14)
        ]
    assert all(
        (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        for name in names
    )
