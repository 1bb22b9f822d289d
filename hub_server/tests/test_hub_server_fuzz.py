"""Fuzzing: the local Hub answers every request to any route and stays up."""

import contextlib
import http.client
import os
import random
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hub_fuzz_requests import ADDRESSES, OID, Fuzzer, Request, Target, handler_of
from huggingface_hub import HfApi, hf_hub_download
from local_hub import ask, commit_body, file_line

from hub_server.handlers import routes
from hub_server.process import LocalHub

REQUESTS = int(os.environ.get("STS_DINO_FUZZ_REQUESTS", "1600"))  # thousands more find rarer things
SEED = int(os.environ.get("STS_DINO_FUZZ_SEED", "7"))
OPTIONS = ["--part-bytes", str(1 << 16), "--verbose", "--patience", "5"]
WORKERS = 4


def prepare(hub: LocalHub) -> Target:
    """Repos with a card, a large file, a tag and a branch; created again when requests have destroyed them."""
    token, url = hub.token, "/api/datasets/demo/fuzz"
    for name, kind in (("fuzz", "dataset"), ("other", "dataset"), ("fuzz", "model")):
        ask(hub, "POST", "/api/repos/create", {"name": name, "type": kind}, token=token)
    card = "---\nlicense: mit\nconfigs:\n- config_name: a\n  data_files: '*.parquet'\n---\n# Card\n"
    body = commit_body(file_line("README.md", card), file_line("data/x.bin", "x" * 100), file_line("a.txt", "a"))
    ask(hub, "POST", f"{url}/commit/main", body, token=token)
    ask(hub, "POST", f"{url}/tag/main", {"tag": "v1"}, token=token)
    ask(hub, "POST", f"{url}/branch/side", {}, token=token)
    objects = [{"oid": OID, "size": size} for size in (10, 1 << 17)]
    asked = {"operation": "upload", "transfers": ["multipart", "basic"], "objects": objects}
    answer = ask(hub, "POST", "/datasets/demo/fuzz.git/info/lfs/objects/batch", asked, token=token)
    xet = ask(hub, "GET", f"{url}/xet-write-token/main", token=token)
    if (answer.status, xet.status) != (200, 200):  # another worker has just deleted the repo
        return prepare(hub)
    actions = [item["actions"]["upload"] for item in answer.json()["objects"]]
    uploads = [action["href"].removeprefix(hub.endpoint) for action in actions]
    reader = (hub.root / "token_read").read_text().strip()
    return Target(hub, reader, uploads, xet.json()["casUrl"].rpartition("/")[2], xet.json()["accessToken"])


def send(target: Target, request: Request) -> str:
    """The class of the answer, "closed" for none."""
    host, port = target.hub.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):  # it may be refused before all is sent
            head = request.head.replace("HOST", f"{host}:{port}").encode("latin-1", "replace")
            connection.sendall(head + request.body)
        if not request.whole:
            with contextlib.suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_WR)
        answer = http.client.HTTPResponse(connection, method=request.head.partition(" ")[0])
        try:
            answer.begin()
            answer.read()
        except (http.client.HTTPException, ConnectionError):
            return "closed"
        return f"{answer.status // 100}xx" if answer.status != 507 else "507"


def fuzz(hub: LocalHub) -> tuple[Counter[str], list[str]]:
    """Send ``REQUESTS`` drawn by ``SEED``; answers by class, and those that are wrong or missing."""
    classes, wrong, target = Counter[str](), list[str](), prepare(hub)

    def work(number: int) -> None:
        fuzzer = Fuzzer(target, random.Random(SEED * 1000 + number))
        for count in range(REQUESTS // WORKERS):
            if count % 100 == 99:
                fuzzer.target = prepare(hub)
            request = fuzzer.request()
            try:
                found = send(target, request)
            except TimeoutError:
                found = "no answer in 30 s"
            classes[found] += 1
            if found in ("5xx", "no answer in 30 s") or (found == "closed" and request.whole):
                wrong.append(f"{found}: {request}")

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    return classes, wrong


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(tmp_path_factory.mktemp("fuzzed"), orgs=["acme"], options=OPTIONS) as started:
        yield started


@pytest.mark.slow("sends 1,600 requests")
def test_every_request_is_answered_and_the_hub_still_works(hub, tmp_path):
    process = hub.process.pid
    classes, wrong = fuzz(hub)
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"
    assert classes["2xx"] > REQUESTS / 20 and classes["4xx"] > REQUESTS / 3
    assert hub.process.poll() is None and hub.process.pid == process
    assert "Traceback" not in hub.log_file.read_text(errors="replace")
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    repo = api.create_repo("demo/afterwards", repo_type="dataset").repo_id
    content = os.urandom(200_000)
    api.upload_file(path_or_fileobj=content, path_in_repo="x.bin", repo_id=repo, repo_type="dataset")
    path = hf_hub_download(repo, "x.bin", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path)
    assert Path(path).read_bytes() == content


def test_addresses_reach_the_handlers_of_all_routes(hub):
    fuzzer = Fuzzer(prepare(hub), random.Random(1))
    drawn = [fuzzer.drawn(line) for line in ADDRESSES for _ in range(20)]
    assert {handler_of(*one.split(" ", 1)) for one in drawn} >= set(routes.REQUESTS)
