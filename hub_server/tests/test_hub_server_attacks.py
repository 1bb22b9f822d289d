"""Attacks on the local Hub: YAML and pattern bombs, half-sent requests, huge batches."""

import contextlib
import hashlib
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from huggingface_hub import HfApi
from local_hub import ask, file_line, post_commit, send_large, upload_address
from starlette.responses import PlainTextResponse

from hub_server.connections import TimedConnection
from hub_server.handlers import repos
from hub_server.process import LocalHub
from hub_server.storage import repos as stored_repos
from hub_server.storage.errors import HubError
from hub_server.storage.trees import Entry, File

SOURCE = Path(__file__).parents[1] / "src"

DATASET = {"repo_type": "dataset"}
PATIENCE = 2.0
ALIASES = "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
MERGES = "".join(f"a{n + 1}: &a{n + 1}\n  <<: [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(9))
BOMBS = [
    "[" * 30_000,
    "{a: " * 30_000,
    "- " * 30_000,
    f"a0: &a0 [x]\n{ALIASES}",
    f"a0: &a0 {{x: 1}}\n{MERGES}",
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(
        tmp_path_factory.mktemp("attacked"), options=["--patience", str(PATIENCE)]
    ) as started:
        yield started


@pytest.fixture(scope="module")
def repo(hub) -> str:
    return (
        HfApi(endpoint=hub.endpoint, token=hub.token)
        .create_repo("demo/attacked", **DATASET)
        .repo_id
    )


def seconds(hub: LocalHub, *request, status: int, **words) -> float:
    """How long an answer takes."""
    started = time.monotonic()
    assert ask(hub, *request, **words).status == status
    return time.monotonic() - started


def connect(hub: LocalHub, text: str, body: bytes = b"") -> socket.socket:
    host, port = hub.endpoint.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.sendall(text.replace("\n", "\r\n").replace("HOST", f"{host}:{port}").encode() + body)
    return connection


def rest(connection: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    with contextlib.suppress(ConnectionResetError), connection:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


@pytest.mark.parametrize("bomb", BOMBS, ids=["[", "{", "-", "aliases", "merges"])
def test_a_yaml_bomb_is_refused_and_a_stored_one_is_text(hub, bomb, request):
    content = f"---\n{bomb}\n---\n# Title\n"
    assert seconds(hub, "POST", "/api/validate-yaml", {"content": content}, status=400) < 5
    name = f"bomb{BOMBS.index(bomb)}"
    HfApi(endpoint=hub.endpoint, token=hub.token).create_repo(f"demo/{name}", **DATASET)
    assert post_commit(hub, f"demo/{name}", file_line("README.md", content)).status == 200
    listed = {item["id"]: item for item in ask(hub, "GET", "/api/datasets").json()}
    assert "cardData" not in listed[f"demo/{name}"]
    page = ask(hub, "GET", f"/datasets/demo/{name}").body.decode()
    assert "<h3>Title</h3>" in page and "no README.md with metadata that can be read" in page


@pytest.mark.slow("waits for slow clients, large stores or old uploads")
def test_half_sent_requests_and_unread_answers_stop_nobody(hub, repo):
    content = bytes(24_000_000)  # more than the system keeps for a client that does not read
    line = send_large(hub, repo, content)
    assert post_commit(hub, repo, line).status == 200
    missing = upload_address(hub, repo, hashlib.sha256(b"?").hexdigest(), 10_000_000)
    commit = (
        f"POST /api/datasets/{repo}/commit/main HTTP/1.1\nHost: HOST\n"
        f"Authorization: Bearer {hub.token}\n"
    )
    half = [
        *(
            ("POST /api/validate-yaml HTTP/1.1\nHost: HOST\nContent-Length: 1000\n\n", b'{"')
            for _ in range(80)
        ),
        *((f"{commit}Content-Length: 1000\n\n", b'{"') for _ in range(40)),
        *(
            (f"PUT {missing} HTTP/1.1\nHost: HOST\nContent-Length: 10000000\n\n", bytes(400_000))
            for _ in range(10)
        ),
    ]
    heads = [
        "",
        "GET / HTT",
        "GET / HTTP/1.1\nHost: HOST\n",
        f"{commit}Transfer-Encoding: chunked\n",
    ] * 10
    unread = f"GET /datasets/{repo}/resolve/main/{line[1]['path']} HTTP/1.1\nHost: HOST\n\n"
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        bodies = [stack.enter_context(connect(hub, text, body)) for text, body in half]
        silent = [stack.enter_context(connect(hub, text)) for text in heads]
        readers = [stack.enter_context(connect(hub, unread)) for _ in range(20)]
        waits = []
        while time.monotonic() < started + PATIENCE:
            waits.append(seconds(hub, "GET", "/api/datasets", status=200))
            time.sleep(0.02)
        assert max(waits) < 2
        for connection in bodies:
            assert rest(connection).startswith(b"HTTP/1.1 408 ")
        assert [rest(connection) for connection in silent] == [b""] * len(silent)
        time.sleep(2 * PATIENCE)  # an answer has to stand still from one look to the next
        assert all(len(rest(connection)) < len(content) for connection in readers)
    assert not list((hub.root / "tmp").iterdir())


def test_a_half_sent_request_that_is_refused_gets_its_refusal(hub, repo):
    head = f"POST /api/datasets/{repo}/commit/main HTTP/1.1\nHost: HOST\nContent-Length: 1000\n\n"
    with connect(hub, head, b"{") as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")
    assert "Traceback" not in hub.log_file.read_text()


@pytest.mark.slow("waits for slow clients")
def test_a_slow_upload_and_a_slow_download_that_go_on_are_served(hub, repo):
    content, pause = b"slow" * 500_000, 1.5 * PATIENCE / 20

    def slowly():
        for start in range(0, len(content), 100_000):
            time.sleep(pause)
            yield content[start : start + 100_000]

    oid = hashlib.sha256(content).hexdigest()
    assert (
        seconds(hub, "PUT", upload_address(hub, repo, oid, len(content)), slowly(), status=200)
        > PATIENCE
    )
    assert (
        post_commit(
            hub, repo, ("lfsFile", {"path": "slow.bin", "oid": oid, "size": len(content)})
        ).status
        == 200
    )
    received = b""
    with connect(
        hub,
        f"GET /datasets/{repo}/resolve/main/slow.bin HTTP/1.1\nHost: HOST\nConnection: close\n\n",
    ) as one:
        while piece := one.recv(100_000):
            received += piece
            time.sleep(pause)
    assert received.endswith(content)


def test_a_body_in_bursts_is_received_with_pauses_longer_than_the_patience(hub):
    head = (
        "POST /api/validate-yaml HTTP/1.1\nHost: HOST\n"
        "Content-Length: 100000\nConnection: close\n\n"
    )
    with connect(hub, head, b" " * 50_000) as connection:
        time.sleep(1.5 * PATIENCE)
        connection.sendall(b" " * 50_000)
        assert rest(connection).startswith(b"HTTP/1.1 400 ")  # read whole: no JSON


def test_a_request_with_two_ends_is_refused_and_none_is_read_behind_it(hub):
    """Content-Length beside Transfer-Encoding: a proxy may see another end of the body."""
    head = (
        "POST /api/validate-yaml HTTP/1.1\nHost: HOST\n"
        "Content-Length: 4\nTransfer-Encoding: chunked\n\n"
    )
    answer = rest(connect(hub, f"{head}0\n\nGET /api/datasets HTTP/1.1\nHost: HOST\n\n"))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


def test_a_crawling_body_is_refused(hub):
    """A body that is slower than 1,000 bytes a second on the whole makes no progress."""
    with connect(
        hub, "POST /api/validate-yaml HTTP/1.1\nHost: HOST\nContent-Length: 100000\n\n"
    ) as connection:
        connection.settimeout(PATIENCE / 4)
        started, answer = time.monotonic(), b""
        while not answer:
            assert time.monotonic() - started < 10 * PATIENCE
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(1000)
            with contextlib.suppress(OSError):
                connection.send(b" ")
        assert answer.startswith(b"HTTP/1.1 408 ") and time.monotonic() - started >= PATIENCE


@contextlib.contextmanager
def serving_few(listener: socket.socket):
    """A server with at most 4 connections."""
    kind = type("Few", (TimedConnection,), {"most": 4})
    config = uvicorn.Config(
        PlainTextResponse("here"), port=0, http=kind, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server
    finally:
        server.should_exit = True
        thread.join()


def test_clients_that_come_at_once_keep_to_the_limit():
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0), backlog=40)
        burst = [socket.create_connection(listener.getsockname()) for _ in range(40)]
        for client in burst:
            stack.enter_context(client)
        server = stack.enter_context(serving_few(listener))
        last = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=10))
        last.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last.recv(100).startswith(b"HTTP/1.1 200 ")
        assert len(server.server_state.connections) <= 4


def test_new_clients_take_the_place_of_the_most_silent_ones():
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        stack.enter_context(serving_few(listener))

        def connection() -> socket.socket:
            return stack.enter_context(socket.create_connection(listener.getsockname(), timeout=10))

        silent = [connection() for _ in range(4)]
        time.sleep(0.2)
        silent[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        time.sleep(0.2)
        fresh = connection()
        fresh.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert fresh.recv(100).startswith(b"HTTP/1.1 200 ")
        assert rest(silent[1]) == b""  # it was the most silent one
        silent[0].sendall(b"\r\n")
        assert silent[0].recv(100).startswith(b"HTTP/1.1 200 ")


PATTERN = "*a" * 17


def test_patterns_take_no_time(hub, repo):
    path = f"/api/datasets/{repo}/preupload/main"
    asked = {"files": [{"path": "a" * 60, "size": 1}]}
    assert (
        seconds(
            hub, "POST", path, asked | {"gitIgnore": f"{PATTERN}b"}, token=hub.token, status=200
        )
        < 2
    )
    assert (
        post_commit(hub, repo, file_line(".gitattributes", f"{PATTERN}b filter=lfs\n")).status
        == 200
    )
    assert seconds(hub, "POST", path, asked, token=hub.token, status=200) < 2
    many = "".join(f"*{number}*{number}\n" for number in range(5000))
    refused = ask(hub, "POST", path, asked | {"gitIgnore": many}, token=hub.token)
    assert refused.status == 400 and "too many or too complicated" in refused.json()["error"]


def test_a_batch_of_huge_objects_has_a_small_answer(hub, repo):
    objects = [
        {"oid": hashlib.sha256(bytes([n % 256, n // 256])).hexdigest(), "size": 1 << 44}
        for n in range(1000)
    ]
    asked = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": objects}
    answer = ask(
        hub, "POST", f"/datasets/{repo}.git/info/lfs/objects/batch", asked, token=hub.token
    )
    assert answer.status == 200 and len(answer.body) < 5_000_000
    header = answer.json()["objects"][0]["actions"]["upload"]["header"]
    parts = [address for number, address in header.items() if number.isdigit()]
    assert int(header["chunk_size"]) * len(parts) >= 1 << 44


# Texts that answers repeat


def test_texts_that_answers_repeat_have_limits(hub, repo):
    line = file_line("a.txt", "a")
    for fields in ({"summary": "t" * 501}, {"description": "d" * 20_001}, {"summary": ""}):
        refused = post_commit(hub, repo, line, **fields)
        assert refused.status == 400 and len(refused.body) < 3_000, fields.keys()
    assert post_commit(hub, repo, line, summary="t" * 500, description="d" * 20_000).status == 200
    for path in ("x" * 1_000_000, "\x9b" * 500_000):
        refused = post_commit(hub, repo, file_line(path, "a"))
        assert refused.status == 422
        assert len(refused.body) < 10_000
        assert len(refused.headers["X-Error-Message"]) <= 500
    answer = ask(hub, "GET", "/api/datasets", X_Request_Id="i" * 30_000)
    assert len(answer.headers["X-Request-Id"]) == 200


def test_a_long_line_of_a_commit_is_not_called_a_large_file(hub, repo):
    refused = post_commit(hub, repo, file_line("a.txt", "a"), description="d" * 14_000_000)
    assert refused.status == 400
    assert "A line of this commit has more than" in refused.json()["error"]


@pytest.mark.parametrize(
    "name", ["a\u202eb", "a\u2066b", "a\x85b", "a\x9bb", "a\u2028b", "\u202afolder/b", "a\x1bb"]
)
def test_a_file_name_has_no_control_and_no_mark_of_direction(hub, repo, name):
    refused = post_commit(hub, repo, file_line(name, "a"))
    assert refused.status == 422
    assert "Invalid path" in refused.json()["error"]


def test_a_list_of_commits_has_pages_of_bounded_bytes(hub):
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    api.create_repo("demo/wordy", **DATASET)
    for number in range(250):
        line = file_line("a.txt", str(number))
        assert post_commit(hub, "demo/wordy", line, description="d" * 20_000).status == 200
    first = ask(hub, "GET", "/api/datasets/demo/wordy/commits/main?limit=1000")
    assert len(first.body) < 4_300_000
    assert int(first.headers["X-Total-Count"]) == 251 > len(first.json())
    shown = first.json()
    while 'rel="next"' in (first.headers["Link"] or ""):
        address = first.headers["Link"].partition(">")[0].removeprefix(f"<{hub.endpoint}")
        first = ask(hub, "GET", address)
        shown += first.json()
    assert len(shown) == len({commit["id"] for commit in shown}) == 251
    assert len(api.list_repo_commits("demo/wordy", **DATASET)) == 251
    third = ask(hub, "GET", "/api/datasets/demo/wordy/commits/main?limit=50&p=2").json()
    assert [commit["id"] for commit in third] == [commit["id"] for commit in shown[100:150]]


def test_a_list_of_repos_has_pages_of_bounded_bytes(hub):
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    card = "---\nlicense: mit\nnote: " + "n" * 1_000_000 + "\n---\n"
    for number in range(6):
        api.create_repo(f"demo/large-card-{number}", **DATASET)
        line = file_line("README.md", card)
        assert post_commit(hub, f"demo/large-card-{number}", line).status == 200
    first = ask(hub, "GET", "/api/datasets?search=large-card")
    assert len(first.body) < 4_300_000
    names = {item.id for item in api.list_datasets(search="large-card")}
    assert names == {f"demo/large-card-{number}" for number in range(6)}


def test_an_info_with_too_many_files_leaves_them_to_the_tree(monkeypatch):
    monkeypatch.setattr(repos, "_MAX_SIBLINGS_BYTES", 1_000)
    files = [Entry(f"{number}.txt", "0" * 40, File("0", "0", 1, False)) for number in range(9)]
    monkeypatch.setattr(repos, "walk", lambda *_: iter(files))
    assert repos._list_files(None, SimpleNamespace(tree=""), blobs=True) is None
    monkeypatch.setattr(repos, "_MAX_SIBLINGS_BYTES", 10_000)
    assert len(repos._list_files(None, SimpleNamespace(tree=""), blobs=True)) == 9


def test_a_repo_has_a_bounded_number_of_branches_and_tags(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_repos, "MAX_REFS", 3)
    monkeypatch.setattr(stored_repos, "list_refs", lambda *_: [("refs/heads/main", "0")] * 3)
    with pytest.raises(HubError, match="can have at most 3 branches and tags: delete some"):
        stored_repos.create_ref(None, 1, "refs/tags/v1", "0")


def test_a_card_of_references_that_unfold_is_not_shown(hub):
    """Each reference repeats an address of 100,000 characters: 200 kB stand for gigabytes."""
    card = f"[a]: http://x/{'y' * 100_000}\n\n" + "[a] " * 20_000
    HfApi(endpoint=hub.endpoint, token=hub.token).create_repo("demo/unfolds", **DATASET)
    assert post_commit(hub, "demo/unfolds", file_line("README.md", card)).status == 200
    page = ask(hub, "GET", "/datasets/demo/unfolds", Accept="text/html")
    assert page.status == 200 and len(page.body) < 100_000
    assert b"The card took more than 10 s, 16 MiB of HTML or too much memory" in page.body


# SIGTERM

STUCK_HUB = """
import time
from hub_server.handlers import repos
repos.describe_user = lambda call: time.sleep(120)
from hub_server.server import main
main()
"""


def start_stuck_hub(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STUCK_HUB, "serve", "--root", root, "--port", "0"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([*command, "--stop-with-stdin"], text=True, cwd=SOURCE, **pipes)


def test_a_stop_takes_five_seconds_whatever_a_handler_and_clients_do(tmp_path):
    with contextlib.ExitStack() as stack:
        processes = [start_stuck_hub(tmp_path / str(number)) for number in range(2)]
        for process, root in zip(processes, (tmp_path / "0", tmp_path / "1"), strict=True):
            stack.callback(process.kill)
            hub = SimpleNamespace(endpoint=process.stdout.readline().split()[1])
            token = (root / "token").read_text()
            stuck = f"GET /api/whoami-v2 HTTP/1.1\nHost: HOST\nAuthorization: Bearer {token}\n\n"
            slow = "POST /api/validate-yaml HTTP/1.1\nHost: HOST\nContent-Length: 9000\n\n"
            for text in (stuck, slow, "GET / HTTP"):
                stack.enter_context(connect(hub, text))
        time.sleep(0.5)
        started = time.monotonic()
        processes[0].send_signal(signal.SIGTERM)
        processes[1].stdin.close()
        assert [process.wait(20) for process in processes] == [0, 0]
        assert time.monotonic() - started < 10  # the handler sleeps for two minutes
        for process in processes:
            assert "stopped with a request unfinished" in process.stderr.read()
