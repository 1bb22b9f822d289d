"""The store between workers and driver: what was kept is found and fetched whole, or not at all;
errors say where.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import fsspec
import pytest
import requests
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.memory import MemoryFileSystem
from huggingface_hub import HfFileSystem

from sts_dino.generation.executors.store import LostResult, ResultStore, StoreRetry
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline.tasks import (
    FinishGroup,
    Group,
    Shard,
    TaskResult,
    WriteShard,
    WriteSourceSentences,
)
from sts_dino.hub.contract.recipe import Variant
from sts_dino.hub.contract.run_dir import describe_content
from sts_dino.hub.errors import InputError, RunError

pytest_plugins = ["local_hub"]
RAW, REJECTED = (
    "data/raw/train-00000-of-00002.parquet",
    "data/rejected/train-00000-of-00002.parquet",
)
SHARD = Shard(Variant(None, 0), 0, 2)
TASK = WriteShard(
    SHARD, (SourceSentence("000000", "One text."), SourceSentence("000001", "Zwei – 二."))
)
FILES = {RAW: b"raw rows" * 1000, REJECTED: b"rejected rows"}


def made(task=TASK, files=FILES, **changes) -> TaskResult:
    named = tuple(
        describe_content(path, content, config="raw", rows=3) for path, content in files.items()
    )
    facts = {"empty": ("data/raw/none.parquet",), "facts": {"a": 1}, "rows": 3, "seconds": 0.25}
    return TaskResult(
        **{"key": task.key, "task": task, "files": named, "contents": files, **facts, **changes}
    )


@pytest.fixture(params=["path", "memory"])
def url(request, tmp_path):
    if request.param == "memory":
        yield "memory://bucket/folder"
        MemoryFileSystem.store.clear()
    else:
        yield str(tmp_path / "sto re")


def kept_files(store: ResultStore) -> list[str]:
    files, root = fsspec.url_to_fs(store.url)
    return sorted(files.find(root)) if files.exists(root) else []


def damage(store: ResultStore, part: str, content: bytes) -> None:
    """Replace the stored files whose path holds ``part``."""
    found = [path for path in kept_files(store) if part in path]
    assert found
    for path in found:
        fsspec.url_to_fs(store.url)[0].pipe_file(path, content)


def test_what_is_kept_is_found_by_another_store_and_fetched_whole(url, tmp_path):
    store, run = ResultStore(url, "run"), tmp_path / "artifacts" / "run"
    assert store.find(TASK) is None
    kept = store.put(made())
    assert kept == ResultStore(store.url + "/", "run").find(TASK)
    assert kept == made().model_copy(update={"contents": {}})
    for _ in range(2):  # the second time nothing is left to do
        store.fetch(kept, run)
        assert {path: (run / path).read_bytes() for path in FILES} == FILES
    assert sorted(path for path in run.rglob("*") if path.is_file()) == sorted(
        run / path for path in FILES
    )


def test_facts_come_back_equal_and_only_for_the_same_work_of_the_same_run(url):
    rows = [
        {"text": "“half \ud800 – ", "log_prob": -1.2345678901234567e-5, "reason": None},
        {"log_prob": -float("inf")},
    ]
    task, store = WriteSourceSentences(range(64, 66)), ResultStore(url, "run")
    store.put(made(task, {}, facts=rows))
    assert store.find(task).facts == rows
    assert store.find(WriteSourceSentences(range(64, 67))) is None
    group = FinishGroup(Group(None, 0, 1, (SHARD,)), frozenset())  # its rows follow from raw files
    store.put(made(group))
    assert store.find(group) is None
    store.put(made())
    assert (
        store.find(
            replace(TASK, sentences=(TASK.sentences[0], SourceSentence("000001", "Changed.")))
        )
        is None
    )
    assert store.find(replace(TASK, shard=Shard(Variant(None, 0), 0, 3))) is None
    assert ResultStore(url, "another").find(TASK) is None
    ResultStore(url, "run-2").put(made())
    for _ in range(2):
        store.clear()
    assert store.find(TASK) is None and ResultStore(url, "run-2").find(TASK)
    assert all("/run-2/" in path for path in kept_files(store))


def test_a_worker_killed_between_two_writes_leaves_nothing_to_find(tmp_path, monkeypatch):
    store, put, done = ResultStore(str(tmp_path / "store"), "run"), ResultStore._put, []

    def dying(files, name, content):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(name)
        put(files, name, content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ResultStore, "_put", dying)
        store.put(made())
    assert len(kept_files(store)) == 2 and store.find(TASK) is None
    store.put(made())
    assert store.find(TASK)


def test_damaged_contents_are_not_found_not_fetched_and_made_anew(url, tmp_path):
    store, run = ResultStore(url, "run"), tmp_path / "run"
    for content in (b"", b"raw rowz" * 1000):
        kept = store.put(made())
        damage(store, made().files[0].sha256, content)
        assert store.find(TASK) is None
        with pytest.raises(LostResult, match=re.escape(RAW)):
            store.fetch(kept, run)
        assert not [path for path in run.rglob("*") if path.is_file()]
    store.put(made())
    store.fetch(store.find(TASK), run)
    assert (run / RAW).read_bytes() == FILES[RAW]


@pytest.mark.parametrize(
    "record",
    [
        b"[" * 100_000,
        b'{"key": "shard-0-0-000000-of-000002"}',
        b'{"key": "shard-0-0-000000-of-000002", "files": [{"path": "../x", "bytes": 1, '
        b'"sha256": "0"}], "empty": [], "facts": null, "rows": 0, "seconds": 0}',
    ],
)
def test_a_record_that_is_none_is_not_found(record, tmp_path):
    store = ResultStore(str(tmp_path), "run")
    for path in ("manifest.json", "data-2/raw.parquet"):  # other files of the run directory
        store.put(made(files={RAW: b"rows", path: b"rows"}))
        assert store.find(TASK) is None
    store.put(made())
    assert store.find(TASK)
    damage(store, "/records/", record)
    assert store.find(TASK) is None


def test_on_one_file_system_a_file_is_a_hard_link_that_the_run_may_replace(tmp_path, monkeypatch):
    store, run = ResultStore(str(tmp_path / "store"), "run"), tmp_path / "run"
    kept = store.put(made())
    for content in (None, b"damaged in the run directory"):
        if content:
            (run / RAW).unlink()
            (run / RAW).write_bytes(content)
        store.fetch(kept, run)
        assert (run / RAW).read_bytes() == FILES[RAW] and (run / RAW).stat().st_nlink == 2
    (run / REJECTED).unlink()
    monkeypatch.setattr(
        os, "link", Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link"))
    )
    store.fetch(kept, run)
    assert (run / REJECTED).read_bytes() == FILES[REJECTED] and (
        run / REJECTED
    ).stat().st_nlink == 1


def test_a_node_that_sees_another_place_is_refused(url, tmp_path):
    mark = ResultStore(url, "run").leave_mark()
    ResultStore(url, "run").require_mark(mark)
    for other in (str(tmp_path / "other"), "memory://other"):
        with pytest.raises(
            InputError, match=re.escape(other) + ".*not there on this node.*every node mounts"
        ):
            ResultStore(other, "run").require_mark(mark)


def test_a_full_disk_keeps_its_number_and_names_the_place(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    for url in (str(tmp_path / "store"), "memory://full"):
        with pytest.raises(OSError) as caught:
            ResultStore(url, "run").put(made())
        assert caught.value.errno == errno.ENOSPC and url in str(caught.value.filename)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied"),
            ".*Permission denied; can this node reach it, may this user",
        ),
        (FSTimeoutError(), "FSTimeoutError; can this node reach it"),
        (OSError("denied\nbody"), "denied; can this node reach it"),
        (
            RuntimeError("no key\nbody"),
            "RuntimeError: no key; check the address, and the protocol's own login",
        ),
        (FileNotFoundError("no such bucket"), "is not there; make the bucket or folder first"),
    ],
)
def test_failures_name_the_store_and_what_to_do(error, words, monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", Mock(side_effect=error))
    with pytest.raises((RunError, InputError), match=f"^store memory://gone: {words}"):
        ResultStore("memory://gone", "run").leave_mark()


class Answer(Exception):
    """What gcsfs and others raise for an HTTP status."""

    def __init__(self, code: int):
        self.code = code


BLIPS = [
    OSError(errno.ESTALE, "Stale file handle"),
    ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    FSTimeoutError(),
    aiohttp.ServerDisconnectedError(),
    requests.exceptions.ConnectionError("aborted"),
    Answer(503),
]
FOR_GOOD = [
    *(PermissionError(errno.EACCES, "no"), FileNotFoundError(2, "no"), OSError(errno.EROFS, "no")),
    # blobs under a policy or a lease, say: our requests have no condition
    *(Answer(403), Answer(409), Answer(412)),
]


@contextmanager
def failing(
    monkeypatch, where: object, name: str, error: Exception, times: int = 99
) -> Iterator[list[object]]:
    """Have a function fail so many times; what it was called with."""
    usual, calls = getattr(where, name), []

    def fails(*arguments, **options):
        calls.append(arguments)
        if len(calls) <= times:
            raise error
        return usual(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, fails)
        yield calls


@pytest.mark.parametrize(
    "error", BLIPS, ids=lambda error: f"{type(error).__name__}-{getattr(error, 'errno', '')}"
)
def test_a_store_that_fails_for_a_moment_is_asked_again(error, tmp_path, monkeypatch, capsys):
    steps = [
        (MemoryFileSystem, "pipe_file", "memory://b/f"),
        (Path, "write_bytes", str(tmp_path / "store")),
    ]
    for where, name, url in steps:
        worker = ResultStore(url, "run", proven=True, retry=StoreRetry(scale=0.01))
        with failing(monkeypatch, where, name, error, 3) as calls:
            worker.put(made())
        assert len(calls) == 3 + 3, "two contents and a record"
    driver = ResultStore("memory://b/f", "run", retry=StoreRetry(scale=0.01))
    driver.leave_mark()
    with failing(monkeypatch, MemoryFileSystem, "get_file", error, 3):
        driver.fetch(driver.find(TASK), tmp_path / "run")
    assert (tmp_path / "run" / RAW).read_bytes() == FILES[RAW]
    with failing(monkeypatch, MemoryFileSystem, "rm", error, 2):
        driver.clear()
    assert not kept_files(driver)


def test_the_log_names_the_stores_failure_and_no_hub(monkeypatch):
    reasons = []
    monkeypatch.setattr(
        "sts_dino.hub.client.retry.wait", lambda reason, seconds: reasons.append(reason)
    )
    store = ResultStore("memory://b/f", "run", proven=True)
    error = OSError(errno.ESTALE, "Stale file handle")
    with failing(monkeypatch, MemoryFileSystem, "pipe_file", error, 1):
        store.put(made())
    assert reasons == [f"store memory://b/f: it fails ({error})"]


@pytest.mark.parametrize("error", FOR_GOOD, ids=repr)
def test_what_does_not_pass_ends_the_step_at_once(error, monkeypatch):
    store = ResultStore("memory://b/f", "run", proven=True)
    with (
        failing(monkeypatch, MemoryFileSystem, "cat_file", error) as calls,
        pytest.raises(Exception) as raised,
    ):
        store._get("contents/x")
    assert len(calls) == 1 and (isinstance(raised.value, RunError) or raised.value is error)


def test_a_store_that_never_answered_is_a_wrong_address_and_one_that_stays_away_ends_the_run(
    monkeypatch,
):
    for error in BLIPS[:-1]:
        with (
            failing(monkeypatch, MemoryFileSystem, "pipe_file", error) as calls,
            pytest.raises(RunError),
        ):
            ResultStore("memory://wrong", "run").leave_mark()
        assert len(calls) == 1
    away = ResultStore("memory://away", "run", proven=True, retry=StoreRetry(longest=5, scale=0.01))
    words = r"^store memory://away: .*Stale file handle.*; can this node reach it"
    with (
        failing(monkeypatch, MemoryFileSystem, "pipe_file", BLIPS[0]) as calls,
        pytest.raises(RunError, match=words),
    ):
        away.leave_mark()
    assert 2 <= len(calls) <= 5


@pytest.mark.parametrize(
    "url",
    [
        "sftp://me:ge/he@im@host/geheim",
        "abfs://c/x?sig=geheim",
        "simplecache::abfs://c/x?sig=geheim",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url):
    with pytest.raises(InputError, match="must not hold users, passwords or keys") as caught:
        ResultStore(url, "run")
    assert "heim" not in str(caught.value) and "ge/he" not in str(caught.value)


def test_a_path_is_absolute_for_workers_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert ResultStore("a/../b", "run").url == str(tmp_path / "b")
    assert ResultStore("~/b", "run").url == str(tmp_path / "home" / "b")
    assert ResultStore("memory://b/", "run").url == "memory://b"


def test_two_nodes_through_huggingface_hubs_file_system(local_hub, repo, tmp_path):
    """The calls that ``hf://`` gets, on a repository, for the embedded Hub has no buckets: what one
    node has just written, the other one sees, although it listed the folder before.
    """

    def node() -> ResultStore:
        files = HfFileSystem(
            endpoint=local_hub.endpoint, token=local_hub.token, skip_instance_cache=True
        )
        store = ResultStore(str(tmp_path), "run")
        store._fs, store._root, store._folder = files, f"datasets/{repo}", f"datasets/{repo}/run"
        return store

    driver, worker = node(), node()
    assert driver.find(TASK) is None
    worker.require_mark(driver.leave_mark())
    kept = worker.put(made())
    assert driver.find(TASK) == kept
    driver.fetch(kept, tmp_path / "run")
    assert (tmp_path / "run" / RAW).read_bytes() == FILES[RAW]
    driver.clear()
    assert worker.find(TASK) is None
    with pytest.raises(LostResult):
        worker.fetch(kept, tmp_path / "elsewhere")
