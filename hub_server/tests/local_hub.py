"""A running local Hub for tests; use it with ``pytest_plugins = ["local_hub"]``.

PYTEST_DONT_REWRITE: the tests import its functions before pytest loads it as a plugin. The client
library reads its environment when it is first imported, so ``conftest.py`` sets it. In this process
clients upload by LFS, which older clients and ``BytesIO`` objects use everywhere; default settings,
and so Xet, are tested in processes of their own: the threads of ``hf_xet`` and a test process that
forks do not go together.
"""

import hashlib
import http.client
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from hub_server.process import LocalHub

PART_BYTES = 1 << 20


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self):
        return json.loads(self.body)


def ask(
    hub: LocalHub, method: str, path: str, body=None, *, token: str | None = None, **headers: str
) -> Answer:
    """Send a plain HTTP request with this very path; ``headers`` are spelt with underscores."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    if isinstance(body, (dict, list)):
        body, sent["Content-Type"] = json.dumps(body), "application/json"
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path, body=body, headers=sent)
        response = connection.getresponse()
        return Answer(response.status, response.msg, response.read())
    finally:
        connection.close()


def commit_body(*items: tuple[str, dict], summary: str = "a commit", **header: str) -> bytes:
    lines = [("header", {"summary": summary, "description": "", **header}), *items]
    return b"".join(
        json.dumps({"key": key, "value": value}).encode() + b"\n" for key, value in lines
    )


def file_line(path: str, content: str) -> tuple[str, dict]:
    return "file", {"path": path, "content": content, "encoding": "utf-8"}


def status_of(call: Callable, *arguments, **options) -> int:
    """The status of a call of the client that the Hub refuses."""
    with pytest.raises(HfHubHTTPError) as refused:
        call(*arguments, **options)
    return refused.value.response.status_code


def send_large(hub: LocalHub, repo: str, content: bytes, token: str = "") -> tuple[str, dict]:
    """Send a large file as LFS clients do; return its line of a commit."""
    oid = hashlib.sha256(content).hexdigest()
    href = upload_address(hub, repo, oid, len(content), token)
    if href:
        assert ask(hub, "PUT", href, content).status == 200
    return "lfsFile", {
        "path": f"{oid[:10]}.bin",
        "algo": "sha256",
        "oid": oid,
        "size": len(content),
    }


def upload_address(hub: LocalHub, repo: str, oid: str, size: int, token: str = "") -> str:
    """Return the signed upload address of a large file; empty when the repo has the file."""
    asked = {"operation": "upload", "transfers": ["basic"], "objects": [{"oid": oid, "size": size}]}
    answer = ask(
        hub, "POST", f"/datasets/{repo}.git/info/lfs/objects/batch", asked, token=token or hub.token
    )
    assert answer.status == 200, answer.body
    (found,) = answer.json()["objects"]
    return (
        found["actions"]["upload"]["href"].removeprefix(hub.endpoint) if "actions" in found else ""
    )


def post_commit(
    hub: LocalHub, repo: str, *items: tuple[str, dict], token: str = "", **header: str
) -> Answer:
    """Commit to the branch main of a dataset, without the checks of the client."""
    body = commit_body(*items, **header)
    return ask(hub, "POST", f"/api/datasets/{repo}/commit/main", body, token=token or hub.token)


def run_client(hub: LocalHub, home: Path, script: str, *words: str) -> object:
    """Run a script with the clients' default settings and ``home`` as cache; return its JSON."""
    home.mkdir(exist_ok=True)
    environment = hub.client_environment(home)
    assert not any("XET" in key for key in environment)
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=home, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def mint(hub: LocalHub, user: str, role: str) -> str:
    """A token of another user, made while the Hub runs."""
    command = [
        sys.executable,
        "-m",
        "hub_server.server",
        "token",
        "--root",
        str(hub.root),
        "--role",
        role,
        "--user",
        user,
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(printed).stat().st_mode & 0o777 == 0o600
    return Path(printed).read_text()


class Log:
    """The requests that the Hub served since this object was made."""

    def __init__(self, hub: LocalHub):
        self._file, self._start = hub.log_file, hub.log_file.stat().st_size

    def lines(self, word: str) -> list[str]:
        text = self._file.read_bytes()[self._start :].decode()
        return [line for line in text.splitlines() if f" {word} " in line]


@pytest.fixture(scope="session")
def local_hub(tmp_path_factory) -> Iterator[LocalHub]:
    """One server for the whole run: user ``demo``, organisation ``acme``, small upload parts."""
    options = ["--verbose", "--part-bytes", str(PART_BYTES)]
    with LocalHub(tmp_path_factory.mktemp("hub"), orgs=["acme"], options=options) as hub:
        yield hub


@pytest.fixture(scope="session")
def hub_api(local_hub: LocalHub) -> HfApi:
    """The official client, allowed to write."""
    return HfApi(endpoint=local_hub.endpoint, token=local_hub.token)


@pytest.fixture(scope="session")
def alice(local_hub: LocalHub) -> HfApi:
    """The official client of another user."""
    return HfApi(endpoint=local_hub.endpoint, token=mint(local_hub, "alice", "write"))


@pytest.fixture
def repo(hub_api: HfApi, request) -> str:
    """An empty dataset repo of the test's own."""
    name = "".join(char if char.isalnum() else "_" for char in request.node.name)[:80].strip("_")
    return hub_api.create_repo(f"demo/{name}", repo_type="dataset").repo_id
