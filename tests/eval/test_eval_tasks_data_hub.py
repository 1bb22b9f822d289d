"""Evaluation data from pinned dataset repositories: rows as from a directory, or an error."""

import io
import tarfile
from pathlib import Path

import pytest
from measured_pins import rows_pin
from senteval_layout import write_senteval

from sts_dino.eval.tasks.sources import Repository, Source, read_from_archive
from sts_dino.hub.errors import InputError, StsDinoError

pytest_plugins = ["local_hub", "hub_here"]
ASKED = {"mr": "all", "sts13": "test", "snli": "train", "tense": "validation"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("planted") / "senteval", rows=6)


@pytest.fixture(scope="module")
def planted(folder) -> Source:
    return Source(folder, pins={})


def tar_of(folder: Path, path: Path, prefix: str = "") -> Path:
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname=prefix or ".")
    return path


@pytest.mark.parametrize(
    ("prefix", "root"), [("", ""), ("senteval", "downstream"), ("SentEval/data", "")]
)
def test_an_archive_is_read_wherever_the_layout_begins(folder, tmp_path, prefix, root):
    archive = tar_of(folder / root, tmp_path / "senteval.tar", prefix)
    name = "downstream/STS/STS12-en-test/STS.input.MSRpar.txt"
    assert read_from_archive(archive, "it", name).content == (folder / name).read_bytes()
    with pytest.raises(
        InputError, match=r"it: downstream/STS/none.txt: is there 0 times in the archive"
    ):
        read_from_archive(archive, "it", "downstream/STS/none.txt")


def plant(path: Path, *members: tuple[str, bytes | str]) -> bytes:
    """The first member's content, read from a tar with these members; a text is the target of a
    link.
    """
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, None if isinstance(content, str) else io.BytesIO(content))
    return read_from_archive(path, "the archive", members[0][0]).content


def test_an_archives_tricks_are_refused_and_nothing_is_unpacked(tmp_path):
    path, good = tmp_path / "senteval.tar", ("MR/rt-polarity.pos", b"good\n")
    for outside in ("../outside", "/etc/cron.d/x", "downstream/../../x"):
        assert plant(path, good, (outside, b"x")) == b"good\n"
    for link in ("/etc/passwd", "other"):
        with pytest.raises(InputError, match="is not a plain file"):
            plant(path, (good[0], link))
    with pytest.raises(
        InputError, match=r"is there 2 times in the archive: MR/rt-polarity.pos, old/MR/rt-polarity"
    ):
        plant(path, good, ("old/MR/rt-polarity.pos", b"b"))
    for damaged in (path.read_bytes()[:700], b"not a tar" * 100):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="the archive: cannot be read as a tar archive"):
            read_from_archive(path, "the archive", good[0])
    assert [entry.name for entry in tmp_path.iterdir()] == ["senteval.tar"]


def rows_of(hub: str, name: str, split: str, pins) -> list[str]:
    """The hash of the rows and the names of the subsets."""
    return named(Source(hub=Repository.parse(hub), pins=pins).load(name, [split])[split])


def named(rows) -> list[str]:
    return [rows.sha256, *(name for name, _, _ in rows.subsets)]


def test_a_repository_gives_the_same_rows_as_a_directory(
    hub_here, hub_api, folder, planted, tmp_path
):
    files = hub_api.create_repo("demo/senteval-files", repo_type="dataset").repo_id
    hub_api.upload_folder(repo_id=files, folder_path=folder, repo_type="dataset")
    hub_api.create_tag(files, tag="v1", repo_type="dataset")
    (altered := tmp_path / "rt-polarity.pos").write_text("altered\n" * 6)
    later = hub_api.upload_file(
        repo_id=files,
        path_or_fileobj=altered,
        path_in_repo="downstream/MR/rt-polarity.pos",
        repo_type="dataset",
    ).oid
    archive = hub_api.create_repo("demo/senteval-archive", repo_type="dataset").repo_id
    path = tar_of(folder, tmp_path / "senteval.tar")
    commit = hub_api.upload_file(
        repo_id=archive, path_or_fileobj=path, path_in_repo="senteval.tar", repo_type="dataset"
    ).oid
    expected = {name: planted.load(name, [split])[split] for name, split in ASKED.items()}
    pins = {name: {ASKED[name]: rows_pin(rows)} for name, rows in expected.items()}
    for hub in (f"{files}@v1", f"{archive}@{commit}"):
        for name, rows in expected.items():
            assert rows_of(hub, name, ASKED[name], pins) == named(rows), (hub, name)

    for hub, name, split, problem in (
        (f"{files}@{later}", "mr", "all", "mr all, .*: has other rows"),
        (f"{files}@v9", "mr", "all", "has no revision 'v9'"),
        ("demo/nothing@v1", "mr", "all", "no such repository"),
        (f"{files}@v1", "sts12-original", "test", "no such data file at this"),
    ):
        with pytest.raises(StsDinoError, match=problem):
            rows_of(hub, name, split, pins)

    hub_here()
    for name, rows in expected.items():
        assert rows_of(f"{archive}@{commit}", name, ASKED[name], pins) == named(rows)
