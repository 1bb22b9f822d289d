"""Sends every route of the local Hub what no client sends: hub_server/tests/hub_fuzz.py --requests 20000 --seed 7"""

import argparse
import contextlib
import http.client
import random
import re
import socket
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hub_fuzz_requests import Fuzzer, Request, Target
from hub_fuzz_words import OID
from local_hub import ask, commit_body, file_line

from hub_server.process import LocalHub

OPTIONS = ["--part-bytes", str(1 << 16), "--verbose"]


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


@dataclass
class Findings:
    """What came back: answers by class, what was not answered although it was whole, and how long others waited."""

    classes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    polls: int = 0
    longest_poll: float = 0.0

    def __str__(self) -> str:
        classes = ", ".join(f"{name}: {count}" for name, count in sorted(self.classes.items()))
        polls = f"{self.polls} polls of another client, the longest {self.longest_poll:.2f} s"
        return f"{self.classes.total()} requests ({classes}); the slowest {self.slowest:.2f} s; {polls}"


def send(target: Target, request: Request) -> str:
    """The class of the answer, "closed" for none."""
    host, port = target.hub.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        with contextlib.suppress(ConnectionError):  # it may be refused before all is sent
            connection.sendall(
                request.head.replace("HOST", f"{host}:{port}").encode("latin-1", "replace") + request.body
            )
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


def fuzz(hub: LocalHub, requests: int, seed: int, workers: int = 4) -> Findings:
    """Send ``requests`` drawn by ``seed``, while another client polls."""
    findings, lock, done = Findings(), threading.Lock(), threading.Event()
    target = prepare(hub)

    def work(number: int) -> None:
        fuzzer = Fuzzer(target, random.Random(seed * 1000 + number))
        for count in range(requests // workers):
            if count % 100 == 99:
                fuzzer.target = prepare(hub)
            request, started = fuzzer.request(), time.monotonic()
            try:
                found = send(target, request)
            except TimeoutError:
                found = "no answer in 30 s"
            with lock:
                findings.classes[found] += 1
                findings.slowest = max(findings.slowest, time.monotonic() - started)
                if found in ("5xx", "no answer in 30 s") or (found == "closed" and request.whole):
                    findings.wrong.append(f"{found}: {request}")

    def poll() -> None:
        while not done.wait(0.02):
            started, status = time.monotonic(), "nothing"
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = str(ask(hub, "GET", "/api/whoami-v2", token=hub.token).status)
            if status != "200":
                findings.wrong.append(f"a poll was answered {status}")
            findings.polls += 1
            findings.longest_poll = max(findings.longest_poll, time.monotonic() - started)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    poller = threading.Thread(target=poll)
    for thread in (poller, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    poller.join()
    return findings


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalHub(Path(folder) / "hub", orgs=["acme"], options=OPTIONS) as started,
    ):
        found = fuzz(started, asked.requests, asked.seed)
        print(found, *found.wrong, sep="\n")
        log = started.log_file.read_text(errors="replace")
        print(f"{log.count('Traceback')} tracebacks in the log")
        print("\n".join(re.findall(r"^\S*(?:Error|Exception).*", log, re.M)[:20]))
