"""Freeing disk space: what is needed stays, what is young stays, and clients that remember what is gone still work."""

import hashlib
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import RevisionNotFoundError
from local_hub import ask, commit_body, file_line

from hub.errors import RunError
from hub_server.process import LocalHub
from hub_server.server import locked
from hub_server.storage.gc import KEPT_SECONDS, collect

DATASET = {"repo_type": "dataset"}
LATER = KEPT_SECONDS + 3600


def put(api: HfApi, repo: str, path: str, content: bytes) -> str:
    operations = [CommitOperationAdd(path, content)]
    return api.create_commit(repo, operations, commit_message=path, **DATASET).oid


def stored(hub: LocalHub) -> set[str]:
    return {path.name for path in (hub.root / "blobs").rglob("?" * 64)}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file(hub: LocalHub, repo: str, path: str, revision: str = "main") -> bytes:
    answer = ask(hub, "GET", f"/datasets/{repo}/resolve/{revision}/{path}")
    assert answer.status == 200
    return answer.body


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_what_a_ref_or_a_young_upload_needs_stays(tmp_path):
    hub = LocalHub(tmp_path / "hub").start()
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    repo, gone = (api.create_repo(f"demo/{name}", **DATASET).repo_id for name in ("kept", "gone"))
    old, shared = b"replaced" * 100, b"in both repos" * 100
    first = put(api, repo, "x.bin", old)
    put(api, repo, "shared.bin", shared)
    put(api, repo, "x.bin", b"present" * 100)
    api.create_branch(repo, branch="side", **DATASET)
    api.upload_file(path_or_fileobj=b"side", path_in_repo="s/s.bin", repo_id=repo, revision="side", **DATASET)
    put(api, gone, "shared.bin", shared)
    put(api, gone, "lost.bin", b"lost" * 100)
    waiting = [CommitOperationAdd("later.bin", b"waits for its commit")]
    api.preupload_lfs_files(repo, waiting, free_memory=False, **DATASET)
    hub.stop()
    assert collect(hub.root) == (0, 0, 0)  # nothing is needless yet: all commits are reached
    with hub.start():
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        api.super_squash_history(repo, **DATASET)
        api.delete_repo(gone, **DATASET)
        api.delete_branch(repo, branch="side", **DATASET)
        assert file(hub, repo, "x.bin", first) == old
    assert collect(hub.root) == (0, 0, 0)  # all of it is younger than a day
    freed = collect(hub.root, time.time() + LATER)
    assert freed.commits == 5 and freed.files >= 4 and freed.bytes > 1000
    assert sha(shared) in stored(hub) and not {sha(old), sha(b"lost" * 100), sha(b"side")} & stored(hub)
    assert collect(hub.root, time.time() + LATER) == (0, 0, 0)
    with hub.start():
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        assert file(hub, repo, "x.bin") == b"present" * 100 and file(hub, repo, "shared.bin") == shared
        with pytest.raises(RevisionNotFoundError):
            api.dataset_info(repo, revision=first)
        assert put(api, repo, "x.bin", old) and file(hub, repo, "x.bin") == old  # what went can come again
        assert put(api, repo, "shared.bin", shared)


def test_a_preuploaded_file_waits_a_day(tmp_path):
    hub = LocalHub(tmp_path / "hub").start()
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    repo = api.create_repo("demo/waits", **DATASET).repo_id
    waiting = CommitOperationAdd("later.bin", b"waits for its commit")
    api.preupload_lfs_files(repo, [waiting], free_memory=False, **DATASET)
    hub.stop()
    assert collect(hub.root).files == 0
    with hub.start():
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        api.create_commit(repo, [waiting], commit_message="now", **DATASET)
        assert file(hub, repo, "later.bin") == b"waits for its commit"


XET = """
import sys
from huggingface_hub import HfApi
content = bytes(range(256)) * 2000 + sys.argv[1].encode()
HfApi().upload_file(path_or_fileobj=content, path_in_repo="x.bin", repo_id="demo/xet", repo_type="dataset")
"""


def test_xet_clients_survive_a_collection(tmp_path):
    hub = LocalHub(tmp_path / "hub")
    for word in ("one", "two"):
        with hub.start():
            HfApi(endpoint=hub.endpoint, token=hub.token).create_repo("demo/xet", exist_ok=True, **DATASET)
            environment = hub.client_environment(tmp_path / "home")  # the second time with the cache of the first
            subprocess.run([sys.executable, "-c", XET, word], env=environment, check=True, capture_output=True)
            assert file(hub, "demo/xet", "x.bin").endswith(word.encode())
        before = len(stored(hub))
        assert collect(hub.root) == (0, 0, 0) and len(stored(hub)) == before
        assert collect(hub.root, time.time() + LATER).files == 1  # the xorb


def test_never_while_the_hub_runs(tmp_path):
    command = [sys.executable, "-m", "hub_server", "gc", "--root", str(tmp_path / "hub")]
    with LocalHub(tmp_path / "hub") as hub:
        refused = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert refused.returncode == 1 and "another local Hub is serving this folder" in refused.stderr
        with pytest.raises(RunError), locked(hub.root):
            pass
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert done.stdout == "removed 0 commits, 0 contents, 0 bytes\n"


def fill(hub: LocalHub) -> tuple[str, str]:
    """A repo that is deleted and one that is squashed; their contents, which nothing needs after a day."""
    with hub.start():
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        gone, squashed = (api.create_repo(f"demo/{name}", **DATASET).repo_id for name in ("gone", "squashed"))
        many = [file_line(f"{n % 40}/{n}.txt", f"{n}") for n in range(2000)]  # rows of the index
        address = f"/api/datasets/{gone}/commit/main"
        assert ask(hub, "POST", address, commit_body(*many), token=hub.token).status == 200
        lost, replaced = b"lost" * 100_000, b"replaced" * 50_000
        put(api, gone, "lost.bin", lost)
        put(api, squashed, "x.bin", replaced)
        put(api, squashed, "x.bin", b"present")
        api.super_squash_history(squashed, **DATASET)
        api.delete_repo(gone, **DATASET)
    return sha(lost), sha(replaced)


COLLECT = (
    "import sys, time; from pathlib import Path; from hub.cli import run; from hub_server.storage.gc import collect; "
)
COLLECT += f"run(lambda: print(collect(Path(sys.argv[1]), time.time() + {LATER})))"


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_contents_go_before_the_index_needs_room(tmp_path):
    hub = LocalHub(tmp_path / "hub")
    lost, replaced = fill(hub)
    command = [sys.executable, "-c", COLLECT, str(hub.root)]

    def little_room() -> None:  # no file may grow beyond this: the index can forget a few rows, not thousands
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17))

    stopped = subprocess.run(command, capture_output=True, text=True, preexec_fn=little_room)
    assert stopped.returncode == 1 and stopped.stderr.count("\n") == 1, stopped.stderr
    assert "contents of" in stopped.stderr and "the index could not be changed" in stopped.stderr
    assert not {lost, replaced} & stored(hub)
    with hub.start():
        assert file(hub, "demo/squashed", "x.bin") == b"present"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Freed(") and collect(hub.root, time.time() + LATER) == (0, 0, 0)


ON_A_FULL_DISK = """
set -e
mount -t tmpfs -o size=24m none "$2"
cp -r "$1/." "$2"
cat /dev/zero > "$2/filler" 2>/dev/null || true
"$3" -c "$4" "$2"
ls "$2" && find "$2/blobs" -type f
"""


def test_a_full_disk_can_be_freed(tmp_path):
    (tmp_path / "disk").mkdir()
    mount = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs none "$1"', "sh", str(tmp_path / "disk")]
    if shutil.which("unshare") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    hub = LocalHub(tmp_path / "hub")
    lost, replaced = fill(hub)
    words = [str(hub.root), str(tmp_path / "disk"), sys.executable, COLLECT]
    command = ["unshare", "-Urm", "sh", "-c", ON_A_FULL_DISK, "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "Freed(commits=" in done.stdout, done.stderr
    assert lost not in done.stdout and replaced not in done.stdout and "reserve\n" in done.stdout
