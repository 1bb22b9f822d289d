"""Evaluation data from pinned dataset repositories: the same rows as from a directory, or an error."""

import io
import random
import tarfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from measured_pins import row_order, rows_pin
from senteval_layout import write_originals, write_senteval

from eval.tasks.hub import Archive, HubPin, bounds, in_order, key, mteb_pins, published_order
from eval.tasks.rows import Pins
from eval.tasks.sources import Source
from hub.errors import InputError, StsDinoError

pytest_plugins = ["local_hub", "hub_here"]
ASKED = {"mr": "all", "sts13": "test", "snli": "train", "tense": "validation"}
MTEB_LIKE = {"sts15": "test", "sick-r-full": "test"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("planted") / "senteval", rows=6)


@pytest.fixture(scope="module")
def planted(folder) -> Source:
    return Source(folder, write_originals(folder.with_name("originals"), rows=6), pins=Pins())


def test_a_pin_needs_a_revision():
    assert HubPin.parse("org/name@v1") == HubPin("org/name", "v1") and HubPin.parse("mteb") == HubPin("mteb")
    for text in ("org/name", "org/name@", "name@v1", "mteb@v1", "a/b/c@v1", ""):
        with pytest.raises(InputError, match=r"is not pinned; allowed: ORG/NAME@REVISION or mteb"):
            HubPin.parse(text)


def test_mtebs_repositories_are_those_of_the_installed_mteb():
    """Read from its files: importing it takes seconds."""
    tasks = Path(find_spec("mteb").origin).parent.glob("tasks/sts/eng/*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in tasks)
    assert set(published_order()) == {
        "sts12/test", "sts13/test", "sts14/test", "sts15/test", "sts16/test",
        "stsb/validation", "stsb/test", "sick-r-full/test",
    }  # fmt: skip
    for pin in mteb_pins().values():
        assert f'"path": "{pin.repo_id}",\n            "revision": "{pin.revision}"' in source, pin


def test_rows_in_any_order_come_back_in_the_published_one(planted):
    rows = list(planted.load("sts15", ["test"])["test"].canonical())
    rows[3] = rows[7]  # published data have equal rows
    order = np.array([key(row) for row in rows], dtype=np.uint32)
    assert in_order("x", random.Random(0).sample(rows, len(rows)), order) == rows
    with pytest.raises(InputError, match="has 29 rows, expected 30"):
        in_order("x", rows[:-1], order)
    with pytest.raises(InputError, match=r"1 rows are not among the published ones, e.g. .'other'"):
        in_order("x", [*rows[:-1], ("other", "row", 1.0)], order)
    with pytest.raises(InputError, match="repeats some rows and lacks others"):
        in_order("x", [*rows[:-1], rows[0]], order)
    assert bounds({"a": 2, "b": 3}) == [("a", 0, 2), ("b", 2, 5)]


def tar_of(folder: Path, path: Path, prefix: str = "") -> Path:
    with tarfile.open(path, "w") as tar:
        tar.add(folder, arcname=prefix or ".")
    return path


@pytest.mark.parametrize(("prefix", "root"), [("", ""), ("senteval", "downstream"), ("SentEval/data", "")])
def test_an_archive_is_read_wherever_the_layout_begins(folder, tmp_path, prefix, root):
    archive = Archive(tar_of(folder / root, tmp_path / "senteval.tar", prefix), "the archive")
    name = "downstream/STS/STS12-en-test/STS.input.MSRpar.txt"
    assert archive.read(name).content == (folder / name).read_bytes()
    with pytest.raises(InputError, match=r"the archive: downstream/STS/none.txt: no such data file in the archive"):
        archive.read("downstream/STS/none.txt")


def plant(path: Path, *members: tuple[str, bytes | str]) -> Archive:
    """A tar with these members; a text is the target of a link."""
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, None if isinstance(content, str) else io.BytesIO(content))
    return Archive(path, "the archive")


def test_an_archives_tricks_are_refused(tmp_path):
    path, good = tmp_path / "senteval.tar", ("downstream/MR/rt-polarity.pos", b"good\n")
    assert plant(path, good).read(good[0]).content == b"good\n"
    for bad in ("../outside", "/etc/cron.d/x", "downstream/../../x"):
        with pytest.raises(InputError, match="has a member outside of it"):
            plant(path, good, (bad, b"x")).read(good[0])
    for link in ("/etc/passwd", "other"):
        with pytest.raises(InputError, match="is not a plain file"):
            plant(path, (good[0], link)).read(good[0])
    with pytest.raises(InputError, match=r"is there 2 times: downstream/MR/rt-polarity.pos, old/MR/rt-polarity.pos"):
        plant(path, ("downstream/MR/rt-polarity.pos", b"a"), ("old/MR/rt-polarity.pos", b"b")).read(
            "MR/rt-polarity.pos"
        )
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(InputError, match="the archive"):
        Archive(path, "the archive").read(good[0])
    path.write_bytes(b"not a tar" * 100)
    with pytest.raises(InputError, match="is not a tar archive"):
        Archive(path, "the archive").read(good[0])
    assert [entry.name for entry in tmp_path.iterdir()] == ["senteval.tar"]


def rows_of(hub: str, name: str, split: str, pins: Pins) -> list[str]:
    """The hash of the rows and the names of the subsets."""
    return named(Source(hub=HubPin.parse(hub), pins=pins).load(name, [split])[split])


def named(rows) -> list[str]:
    return [rows.sha256, *(name for name, _, _ in rows.subsets)]


def mteb_like(hub_api, rows, name: str, folder: Path) -> tuple[str, str]:
    """A repository like MTEB's, with the rows in another order; its id and commit."""
    shuffled = random.Random(1).sample(rows, len(rows))
    folder.mkdir()
    table = pa.table(
        dict(zip(("sentence1", "sentence2", "score"), map(list, zip(*shuffled, strict=True)), strict=True))
    )
    pq.write_table(table, folder / "test-00000-of-00001.parquet")
    repo = hub_api.create_repo(f"demo/{name}", repo_type="dataset").repo_id
    return repo, hub_api.upload_folder(repo_id=repo, folder_path=folder, path_in_repo="data", repo_type="dataset").oid


def test_a_repository_gives_the_same_rows_as_a_directory(hub_here, hub_api, folder, planted, tmp_path, monkeypatch):
    files = hub_api.create_repo("demo/senteval-files", repo_type="dataset").repo_id
    hub_api.upload_folder(repo_id=files, folder_path=folder, repo_type="dataset")
    hub_api.create_tag(files, tag="v1", repo_type="dataset")
    (altered := tmp_path / "rt-polarity.pos").write_text("altered\n" * 6)
    later = hub_api.upload_file(
        repo_id=files, path_or_fileobj=altered, path_in_repo="downstream/MR/rt-polarity.pos", repo_type="dataset"
    ).oid
    archive = hub_api.create_repo("demo/senteval-archive", repo_type="dataset").repo_id
    path = tar_of(folder, tmp_path / "senteval.tar")
    commit = hub_api.upload_file(
        repo_id=archive, path_or_fileobj=path, path_in_repo="senteval.tar", repo_type="dataset"
    ).oid
    expected = {name: planted.load(name, [split])[split] for name, split in ASKED.items()}
    pins = Pins(rows={name: {ASKED[name]: rows_pin(rows)} for name, rows in expected.items()})
    for hub in (f"{files}@v1", f"{archive}@{commit}"):
        for name, rows in expected.items():
            assert rows_of(hub, name, ASKED[name], pins) == named(rows), (hub, name)

    scored = {name: planted.load(name, [split])[split] for name, split in MTEB_LIKE.items()}
    repositories = {
        name: HubPin(*mteb_like(hub_api, list(rows.canonical()), f"mteb-{name}", tmp_path / name))
        for name, rows in scored.items()
    }
    orders = {f"{name}/test": row_order(name, rows) for name, rows in scored.items()}
    monkeypatch.setattr("eval.tasks.hub.mteb_pins", lambda: repositories)
    monkeypatch.setattr("eval.tasks.hub.published_order", lambda: orders)
    scored_pins = Pins(rows={name: {"test": rows_pin(rows)} for name, rows in scored.items()})
    for name, rows in scored.items():
        assert rows_of("mteb", name, "test", scored_pins) == named(rows)

    for hub, name, split, problem in (
        (f"{files}@{later}", "mr", "all", "mr all: has other rows"),
        (f"{files}@v9", "mr", "all", "has no revision 'v9'"),
        ("demo/nothing@v1", "mr", "all", "no such repository"),
        (f"{files}@v1", "sts12-original", "test", "no such data file at this"),
        ("mteb", "mr", "all", "mr/all: is not among the data of --hub-data mteb; allowed: sts15"),
    ):
        with pytest.raises(StsDinoError, match=problem):
            rows_of(hub, name, split, pins)

    hub_here()
    for name, rows in expected.items():
        assert rows_of(f"{archive}@{commit}", name, ASKED[name], pins) == named(rows)
