"""The local Hub as a process: starts, stops, many writers, power cuts, a full disk."""

import contextlib
import errno
import hashlib
import http.client
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_injection import ALL_FAULTS, Fault, FaultyLocalHub
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from local_hub import Log, ask, file_line, post_commit, send_large

from hub_server.app import _convert_to_refusal
from hub_server.connections import make_connection_class
from hub_server.process import LocalHub
from hub_server.storage.database import Database
from hub_server.storage.errors import CommandError

pytest_plugins = ["local_hub"]
ROOT = Path(__file__).parents[2]
DATASET = {"repo_type": "dataset"}


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself."""
    command = [sys.executable, "-m", "hub_server.server", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)


@pytest.mark.slow("starts command after command")
def test_a_server_that_cannot_start_says_why_in_one_line(local_hub, tmp_path):
    port = local_hub.endpoint.rsplit(":", 1)[1]
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "hub.sqlite").write_bytes(b"not a database" * 100)
    for root, options, code, words in (
        (local_hub.root, [], 1, "another local Hub is serving this folder"),
        (tmp_path / "new", ["--port", port], 2, f"--port {port}: is in use; use --port 0"),
        (tmp_path / "new", ["--port", "99999"], 2, "--port 99999: cannot be opened"),
        (tmp_path / "file", [], 2, "cannot be written"),
        (tmp_path / "broken", [], 1, "hub.sqlite: cannot be used"),
        (tmp_path / "name", ["--user", "datasets"], 2, "cannot be a name"),
        (tmp_path / "both", ["--user", "demo", "--org", "demo"], 2, "the name is taken by a user"),
    ):
        refused = serve("--root", str(root), *options)
        assert (refused.returncode, refused.stdout) == (code, "") and words in refused.stderr, (
            refused.stderr
        )
        assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
    with pytest.raises(CommandError, match="another local Hub is serving this folder"):
        LocalHub(local_hub.root).start()


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_restart_keeps_everything(tmp_path):
    with LocalHub(tmp_path / "hub", user="somebody", orgs=["team"]) as hub:
        api, token = HfApi(endpoint=hub.endpoint, token=hub.token), hub.token
        assert (
            hub.token_file.stat().st_mode & 0o777 == 0o600
            and hub.root.stat().st_mode & 0o777 == 0o700
        )
        assert (hub.root / "blobs" / "sha256").stat().st_mode & 0o777 == 0o700
        assert (hub.root / "signing.key").stat().st_mode & 0o777 == 0o600
        repo = api.create_repo("team/kept").repo_id
        done = api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=repo)
        hub.process.send_signal(signal.SIGTERM)
        assert hub.process.wait(15) == 0
        hub.stop()
    (tmp_path / "hub" / "tmp" / "stray").write_bytes(b"left by a crash")
    with LocalHub(tmp_path / "hub", user="somebody") as hub:
        assert hub.token == token and not (tmp_path / "hub" / "tmp" / "stray").exists()
        assert HfApi(endpoint=hub.endpoint, token=token).model_info("team/kept").sha == done.oid
        (hub.root / "token").write_text("hf_forged")
    with LocalHub(tmp_path / "hub", user="somebody") as hub:
        assert (
            HfApi(endpoint=hub.endpoint, token=hub.token).whoami()["name"] == "somebody"
            and hub.token != "hf_forged"
        )


def test_server_does_not_outlive_its_parent(tmp_path):
    script = f"""
import os
from hub_server.process import LocalHub
hub = LocalHub({str(tmp_path / "hub")!r}).start()
print(hub.process.pid, flush=True)
os._exit(1)  # no clean-up of any kind
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    deadline = time.monotonic() + 15
    while Path(f"/proc/{int(child.stdout)}/cmdline").exists() and time.monotonic() < deadline:
        if b"hub_server" not in Path(f"/proc/{int(child.stdout)}/cmdline").read_bytes():
            break  # a zombie: ended, not yet collected
        time.sleep(0.05)
    else:
        assert time.monotonic() < deadline


def test_environment_for_clients(local_hub, tmp_path, monkeypatch):
    for name in (others := ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN")):
        monkeypatch.setenv(name, "x")
    env = local_hub.client_environment(tmp_path)
    assert (
        env["HF_ENDPOINT"] == local_hub.endpoint
        and env["HF_HOME"] == str(tmp_path)
        and not {*others} & set(env)
    )
    assert (
        Path(env["HF_TOKEN_PATH"]).read_text() == local_hub.token
        and local_hub.token not in env.values()
    )


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Iterator[tuple[LocalHub, Path]]:
    """A Hub with planned faults, and the file of the plan."""
    folder = tmp_path_factory.mktemp("faulty")
    plan = folder / "plan.json"
    plan.write_text(
        json.dumps({"share": 1.0, "once": True, "requests": ["repos.create"], "slow_seconds": 0.3})
    )
    with FaultyLocalHub(plan, folder / "hub", options=["--verbose"]) as hub:
        yield hub, plan


def test_a_fault_does_what_its_name_says(faulty):
    hub, plan = faulty
    api, log, drawn = HfApi(endpoint=hub.endpoint, token=hub.token), Log(hub), Counter()
    for number in range(len(ALL_FAULTS)):
        started = time.monotonic()
        try:
            answer = ask(hub, "POST", "/api/repos/create", {"name": f"r{number}"}, token=hub.token)
            got = str(answer.status)
        except (http.client.RemoteDisconnected, http.client.IncompleteRead) as error:
            got = "cut" if getattr(error, "partial", b"") else "dropped"
        kind, _, when = log.lines("fault")[-1].partition("repos.create ")[2].rpartition(" ")
        drawn[Fault(kind, when == "after")] += 1
        assert got == {"slow": "200"}.get(kind, kind.split()[0]), kind
        assert kind != "slow" or time.monotonic() - started >= 0.3
        assert kind != "429 retry-after" or answer.headers["Retry-After"] == "1"
        # the work is done all the same
        assert api.repo_exists(f"demo/r{number}") == (when == "after"), (kind, when)
    assert drawn == Counter(ALL_FAULTS)
    assert ask(hub, "POST", "/api/repos/create", {"name": "calm"}, token=hub.token).status == 200
    for kind, content in (
        ("html", b"<!doctype"),
        ("garbage", b"\0\1"),
        ("{}", b"{}"),
        ("deep", b"[[["),
    ):
        plan.write_text(json.dumps({"share": 1.0, "kinds": [kind]}))
        answer = ask(hub, "GET", "/api/whoami-v2", token=hub.token)
        assert answer.status == 200 and answer.body.startswith(content)
    plan.write_text(json.dumps({"share": 1.0, "kinds": ["elsewhere"]}))
    assert (
        ask(hub, "GET", "/api/whoami-v2").headers["Location"] == "http://127.0.0.1:9/api/whoami-v2"
    )


def test_create_race_has_one_winner(local_hub):
    call = ("POST", "/api/repos/create", {"name": "raced", "type": "dataset"})
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(local_hub, *call, token=local_hub.token), range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7
    assert {answer.json()["url"] for answer in answers} == {
        f"{local_hub.endpoint}/datasets/demo/raced"
    }


def commit_until_killed(
    hub: LocalHub, token: str, repo: str, writer: str, acknowledged: dict[str, str]
) -> None:
    """One commit after the other, each with a small and a large file, until the server is gone."""
    for number in range(10_000):
        name = f"{writer}-{number}"
        try:
            large = send_large(hub, repo, name.encode() * 1000, token)
            answer = post_commit(
                hub, repo, file_line(f"{name}.txt", name * 100), large, token=token, summary=name
            )
        except (OSError, http.client.HTTPException):
            return
        acknowledged[name] = answer.json()["commitOid"]


def check_commits(hub: LocalHub, repo: str, acknowledged: dict[str, str]) -> None:
    """Every commit that was acknowledged is there, with both of its files."""
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    history = {commit.title: commit.commit_id for commit in api.list_repo_commits(repo, **DATASET)}
    assert {name: history.get(name) for name in acknowledged} == acknowledged
    for name in acknowledged:
        large = name.encode() * 1000
        oid = hashlib.sha256(large).hexdigest()
        for path, content in (
            (f"{name}.txt", large[: len(name) * 100]),
            (f"{oid[:10]}.bin", large),
        ):
            assert ask(hub, "GET", f"/datasets/{repo}/resolve/main/{path}").body == content


@pytest.mark.slow("kills a run again and again, to the same bytes")
def test_kill_under_load_loses_no_acknowledged_commit(tmp_path):
    repos, rounds, before = ("demo/load-a", "demo/load-b"), 3, 0
    acknowledged: dict[str, dict[str, str]] = {repo: {} for repo in repos}
    hub = LocalHub(tmp_path / "hub").start()
    for repo in repos:
        HfApi(endpoint=hub.endpoint, token=hub.token).create_repo(repo, **DATASET)
    for number in range(rounds):
        jobs = [
            (hub, hub.token, repo, f"{number}.{n}", acknowledged[repo])
            for repo in repos
            for n in range(3)
        ]
        writers = [threading.Thread(target=commit_until_killed, args=job) for job in jobs]
        for writer in writers:
            writer.start()
        while sum(map(len, acknowledged.values())) < before + 30:
            time.sleep(0.01)
        hub.kill()
        for writer in writers:
            writer.join()
        before = sum(map(len, acknowledged.values()))
        hub = LocalHub(tmp_path / "hub").start()
        for repo in repos:
            check_commits(hub, repo, acknowledged[repo])
    hub.stop()
    assert before >= 30 * rounds
    database = sqlite3.connect(tmp_path / "hub" / "hub.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    for blob in (tmp_path / "hub" / "blobs").rglob("?" * 64):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    for (name,) in database.execute(
        "SELECT sha256 FROM files UNION SELECT sha256 FROM lfs_objects"
    ):
        assert (tmp_path / "hub" / "blobs" / "sha256" / name[:2] / name).exists()
    database.close()


def test_full_disk_is_507_and_leaves_nothing(tmp_path):
    with LocalHub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        repo = api.create_repo("demo/full", **DATASET).repo_id
        before = api.dataset_info(repo).sha
        # The process may write no file beyond this size: the nearest thing to a full disk without
        # being root.
        resource.prlimit(hub.process.pid, resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        for name in ("large.bin", "regular.txt"):
            upload = {"path_or_fileobj": os.urandom(600_000), "path_in_repo": name, "repo_id": repo}
            with pytest.raises((HfHubHTTPError, RuntimeError)) as refused:
                api.upload_file(**upload, **DATASET)
            error = (
                refused.value
                if isinstance(refused.value, HfHubHTTPError)
                else refused.value.__cause__
            )
            assert error.response.status_code == 507 and "ulimit -f" in str(error)
        assert not list((hub.root / "tmp").iterdir()) and api.dataset_info(repo).sha == before
        resource.prlimit(
            hub.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
        done = api.upload_file(**upload, **DATASET)
        assert api.dataset_info(repo).sha == done.oid != before


def test_no_token_outside_token_files(local_hub, hub_api, repo):
    """Runs after requests of all kinds when the whole file runs."""
    hub_api.upload_file(path_or_fileobj=b"x", path_in_repo="x.bin", repo_id=repo, **DATASET)
    allowed = {
        local_hub.root / "token",
        local_hub.root / "token_read",
        *(local_hub.root / "tokens").glob("*"),
    }
    searched = [
        path for path in local_hub.root.rglob("*") if path.is_file() and path not in allowed
    ]
    assert {"hub.sqlite", "server.log", "hub.sqlite-wal"} <= {path.name for path in searched}
    for path in searched:
        content = path.read_bytes()
        assert not re.search(rb"hf_[A-Za-z0-9]{30}", content), path
        assert b"signature=" not in content, path
    assert local_hub.log_file.stat().st_size > 0 and re.fullmatch(
        r"hf_[A-Za-z0-9]{34}", local_hub.token
    )


def test_the_files_of_a_gated_repo_of_an_earlier_version_stay_hidden(tmp_path):
    hub = LocalHub(tmp_path / "hub")
    with hub:
        HfApi(endpoint=hub.endpoint, token=hub.token).create_repo("demo/gated", **DATASET)
    with contextlib.closing(sqlite3.connect(hub.root / "hub.sqlite")) as database:
        database.executescript(
            "CREATE TABLE gates(repo INTEGER, mode TEXT);"
            "INSERT INTO gates SELECT id, 'auto' FROM repos;"
            "INSERT INTO refs SELECT id, 'refs/pr/1', 'x' FROM repos; PRAGMA user_version=2;"
        )
    with hub:
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        assert (
            api.dataset_info("demo/gated").private
            and ask(hub, "GET", "/api/datasets/demo/gated").status == 401
        )
        assert [ref.name for ref in api.list_repo_refs("demo/gated", **DATASET).branches] == [
            "main"
        ]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk is full"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EACCES, "no permission to write"),
        (errno.EROFS, "read-only"),
        (errno.EMFILE, "too many open files"),
    ],
)
def test_a_store_that_cannot_be_written_says_why(number, words):
    refusal = _convert_to_refusal(OSError(number, "x"))
    assert refusal.status == 507 and words in refusal.message
    with pytest.raises(OSError, match="Input/output"):
        _convert_to_refusal(OSError(errno.EIO, "Input/output error"))


def test_an_index_that_cannot_be_opened_is_not_called_broken(tmp_path):
    (tmp_path / "hub.sqlite").mkdir()
    with pytest.raises(CommandError, match=r"cannot be opened or written .*; free some space"):
        Database(tmp_path / "hub.sqlite")
    (tmp_path / "broken.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(CommandError, match=r"cannot be used .* restore it"):
        Database(tmp_path / "broken.sqlite")


def test_a_start_that_takes_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("hub_server.process._START_SECONDS", 0.01)
    with pytest.raises(CommandError, match="did not start: no answer within"):
        LocalHub(tmp_path / "hub").start()


def test_an_error_of_the_command_line_shows_no_control_character(tmp_path):
    root = tmp_path / "a\u202eb\x1b[2J"
    root.write_text("a file in the folder's place")
    command = [sys.executable, "-m", "hub_server.server", "serve", "--root", root]
    refused = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert refused.returncode and refused.stderr.startswith("error: ")
    assert not set(refused.stderr) & {"\u202e", "\x1b"}


def test_an_unlimited_number_of_open_files_is_not_lowered(monkeypatch):
    lowered = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: lowered.append(limit))
    assert make_connection_class(patience=1).most == 1000
    assert not lowered
