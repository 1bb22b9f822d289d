"""A power cut leaves each new file: its name is in a folder that was synced after it."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sts_dino.generation.backends.dialects import Answer
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline.directory import append_line
from sts_dino.generation.pipeline.source_sentences import Scratch
from sts_dino.generation.pipeline.tasks import TaskResult
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.published_paths import read_path_settings
from sts_dino.hub.contract.recipe_file import read_yaml
from sts_dino.hub.contract.results import read_json
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.durable import (
    UNFINISHED_SUFFIXES,
    hash_file,
    make_folder,
    rename_folder,
    write_text,
)
from sts_dino.hub.errors import InputError
from sts_dino.training.loop.files import move_into_place

MANIFEST = Manifest(kind="dataset", name="x", version="1.0.0", fingerprint="f")


@pytest.fixture
def lost(tmp_path, monkeypatch) -> Iterator[Callable[[], set[str]]]:
    """The names below the folder that a power cut would take: those that were not there at their
    folder's last sync.
    """
    kept, fsync = dict[int, set[str]](), os.fsync  # by inode: a file keeps it when it is renamed

    def noted(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}")
        kept[os.fstat(handle).st_ino] = (
            {entry.name for entry in path.iterdir()} if path.is_dir() else set()
        )
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)

    def named() -> set[str]:
        found = [path for path in tmp_path.rglob("*") if path.suffix not in (".lock", ".sqlite")]
        return {
            str(path.relative_to(tmp_path))
            for path in found
            if path.name not in kept.get(path.parent.stat().st_ino, ())
            or (path.is_file() and path.stat().st_ino not in kept)
        }

    yield named


def built(folder: Path) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


def test_a_run_directory_and_its_journal_are_there_with_their_first_entries(lost, tmp_path):
    record, run = TaskResult(key="source-sentences-0-4"), tmp_path / "artifacts" / "datasets" / "x"
    journal = tmp_path / "a" / "run.scratch" / "journal.jsonl"
    append_line(journal, record)
    assert not lost()
    journal.unlink()
    append_line(journal, record)
    assert not lost() and TaskResult.from_line(journal.read_bytes()) == record
    with run_dir.lock_run(run):
        run_dir.begin(run, MANIFEST, "recipe")
    write_text(run / "data" / "raw" / "file", "rows")
    Scratch(run, "key").store_sentences([SourceSentence(source_id="0", text="a")], 1, {})
    assert not lost()


def test_an_answer_that_was_paid_for_is_there(lost, tmp_path):
    pytest.importorskip("openai", reason="the extra openai is not installed")
    from sts_dino.generation.backends.openai_server import AnswerCache

    AnswerCache(tmp_path / "runs" / "x.answers.sqlite").add(
        [b"key"], [Answer("text", "stop", 1, 1, None)]
    )
    assert not lost()


def test_a_folder_that_others_filled_is_there_with_its_files(lost, tmp_path):
    rename_folder(built(tmp_path / "x.fetching"), tmp_path / "x")
    assert not lost()
    run_dir.begin(tmp_path / "run", MANIFEST, "recipe")
    move_into_place(built(tmp_path / "built"), tmp_path / "run")
    assert not lost()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("run/manifest.json", lambda path: run_dir.read_manifest(path.parent)),
        (
            "run/results.json",
            lambda path: read_json(Manifest, path, "not results", "make them again"),
        ),
        ("recipe.yaml", read_yaml),
        ("run.places.json", lambda path: read_path_settings(path.with_name("run"))),
        ("run.scratch/notes.json", lambda path: Scratch(path.parents[1] / "run", "key")),
        ("journal.jsonl", lambda path: append_line(path, TaskResult(key="a"))),
        ("input.tsv", hash_file),
    ],
)
def test_a_pipe_in_a_files_place_is_refused_before_it_is_waited_for(tmp_path, name, read):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name}: is a pipe, a socket or a device"):
        read(path)


def test_a_socket_in_the_place_of_a_recipe_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path has 108 bytes at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("recipe.yaml")
        with pytest.raises(InputError, match=r"recipe\.yaml: is a pipe, a socket or a device"):
            read_yaml(Path("recipe.yaml"))


@pytest.mark.parametrize("name", ["folder", "n" * 250])
def test_an_error_of_an_atomic_write_names_the_file_and_not_its_temporary_one(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=f"{name[:9]}") as caught:
        write_text(tmp_path / name, "text")
    assert caught.value.filename == str(tmp_path / name)


def test_a_folder_on_an_absent_drive_is_refused(monkeypatch):
    """The drive Z: has no parent but itself, as / has."""
    looks = iter(range(10))
    monkeypatch.setattr(Path, "is_dir", lambda path: next(looks) < 0)
    with pytest.raises(OSError, match="/"):
        make_folder(Path("/absent"))


@pytest.mark.parametrize("text", ["[]", "null", "{"])
def test_a_damaged_note_of_paths_counts_as_missing(tmp_path, text):
    (tmp_path / "run.places.json").write_text(text, encoding="utf-8")
    assert read_path_settings(tmp_path / "run") == []


@pytest.mark.parametrize("ending", UNFINISHED_SUFFIXES)
def test_a_work_folder_that_is_a_link_is_refused_before_work_begins(tmp_path, ending):
    (tmp_path / "others").mkdir()
    (tmp_path / f"run.{ending}").symlink_to("others")
    with (
        pytest.raises(InputError, match=f"run.{ending}: is a symbolic link"),
        run_dir.lock_run(tmp_path / "run"),
    ):
        pass
