"""Fuzzing: the local Hub answers every request to any route and stays up.

Half of the requests are nearly right; the rest has wrong words, types, sizes, encodings or framing.
"""

import contextlib
import http.client
import json
import os
import random
import re
import socket
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
import yaml
from huggingface_hub import HfApi, hf_hub_download
from local_hub import ask, commit_body, file_line

from hub_server import app
from hub_server.process import LocalHub
from hub_server.storage.errors import HubError

REQUESTS = int(os.environ.get("STS_DINO_FUZZ_REQUESTS", "1600"))  # thousands more find rarer things
SEED = int(os.environ.get("STS_DINO_FUZZ_SEED", "7"))
OPTIONS = ["--part-bytes", str(1 << 16), "--verbose", "--patience", "5"]
WORKERS = 4
DRAWN = yaml.safe_load(Path(__file__).with_name("fuzz_requests.yaml").read_text(encoding="utf-8"))
OID = DRAWN["places"]["oid"][0]
LONG = [
    "a" * 300,
    "a" * 5000,
    "x/" * 200,
    "9" * 400,
    "[" * 1000,
    "{a: " * 1000,
    "- " * 1000,
    "*a" * 17,
]
TEXTS = [*DRAWN["texts"], *LONG]
JSON: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 63,
    1 << 70,
    10**400,
    1.5,
    1e308,
    [],
    {},
    [[]],
    {"a": None},
    *TEXTS,
]
RANGES = [
    *DRAWN["ranges"],
    f"bytes={'9' * 5000}-",
    f"bytes=0-{'9' * 400}",
    f"bytes={','.join(['0-1'] * 500)}",
]
HEADERS = DRAWN["headers"] | {"Range": RANGES, "X-Request-Id": ["a" * 900, "\x80\xff", ""]}
GARBAGE = [
    *DRAWN["garbage"],
    f"GET / HTTP/1.1\r\nHost: HOST\r\nX: {'a' * 20_000}\r\n\r\n",
    "\r\n" * 50,
]


class Target(NamedTuple):
    """A Hub with content, and the tokens and addresses for it."""

    hub: LocalHub
    tokens: list[str]
    places: dict[str, list[str]]


class Request(NamedTuple):
    """A request, and whether it is complete: then there must be an answer."""

    head: str
    body: bytes
    whole: bool


def handler_of(method: str, address: str) -> str:
    """Module and name of the handler of a request; "" for none."""
    with contextlib.suppress(HubError, UnicodeError):
        return app.match_route(method, address.partition("?")[0])[0].name
    return ""


class Fuzzer:
    """Draws requests for ``target`` with ``rng``."""

    def __init__(self, target: Target, rng: random.Random):
        self.target, self.rng, self.one_of = target, rng, rng.choice

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def request(self) -> Request:
        if self.chance(0.04):  # bytes that are not HTTP, or an incomplete request
            return Request(
                self.one_of(["", *GARBAGE]),
                self.rng.randbytes(self.rng.randrange(400)),
                whole=False,
            )
        line = self.one_of(DRAWN["addresses"])
        # these start a process
        if line.endswith((" {web}", "/blob/{revision}/{path}")) and self.chance(0.9):
            line = self.one_of(DRAWN["addresses"])
        method, address = self.drawn(line, odd=0.07).split(" ", 1)
        method = self.one_of(DRAWN["methods"]) if self.chance(0.04) else method
        if self.chance(0.04):
            address = self.one_of([*DRAWN["unrouted"], "/" + "a" * 9000])
        elif self.chance(0.4):
            names = self.rng.choices(DRAWN["parameters"], k=self.rng.randrange(1, 4))
            address += f"?{'&'.join(f'{name}={self.piece()}' for name in names)}"
        body = (
            self.body(handler_of(method, address))
            if method not in ("GET", "HEAD") or self.chance(0.05)
            else b""
        )
        return self.framed(method, address, body)

    def piece(self) -> str:
        """A word of an address that fits nowhere."""
        return self.one_of(
            [*DRAWN["pieces"], quote(self.one_of(TEXTS).encode("utf-8", "replace"), safe="")]
        )

    def drawn(self, line: str, odd: float = 0.0) -> str:
        """Fill the places of an address, now and then with words that fit nowhere."""
        places = DRAWN["places"] | self.target.places
        while "{" in line:
            line = re.sub(
                r"{(\w+)}",
                lambda at: self.piece() if self.chance(odd) else self.one_of(places[at[1]]),
                line,
            )
        return line

    def framed(self, method: str, address: str, body: bytes) -> Request:
        """Add headers, some of them wrong; a request with a wrong length needs no answer."""
        headers = [
            "Host: HOST"
            if self.chance(0.97)
            else f"Host: {self.one_of(['', 'evil.example', 'a' * 300])}"
        ]
        xet = address.startswith("/xet/") and self.chance(0.8)
        token = self.target.tokens[-1] if xet else self.one_of(self.target.tokens)
        if self.chance(0.9):
            scheme = self.one_of(["Bearer"] * 12 + ["Basic", "", "bearer"])
            headers.append(f"Authorization: {scheme} {token}".rstrip())
        headers += [
            f"{name}: {self.one_of(values)}" for name, values in HEADERS.items() if self.chance(0.1)
        ]
        framing = self.rng.choices(
            ["length", "chunked", "short", "long", "broken", "none"], [80, 8, 3, 3, 3, 3]
        )[0]
        if framing == "chunked":
            body = (
                b"".join(
                    b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part
                )
                + b"0\r\n\r\n"
            )
        elif framing == "broken":
            body = self.one_of([b"zz\r\n", b"5\r\nab", b"-1\r\n\r\n", b"f" * 400]) + body
        if framing in ("chunked", "broken"):
            headers.append("Transfer-Encoding: chunked")
        elif framing != "none":
            wrong = {
                "short": max(0, len(body) - 5),
                "long": self.one_of([len(body) + 9, 10**9, 10**30]),
            }
            headers.append(f"Content-Length: {wrong.get(framing, len(body))}")
        head = "\r\n".join([f"{method} {address} HTTP/1.{self.one_of('1110')}", *headers, "\r\n"])
        whole = framing in ("length", "chunked") or (framing == "none" and not body)
        return Request(head, body, whole and bool(address))

    def body(self, handler: str) -> bytes:
        """Draw a body for the handler, right or nearly so."""
        if self.chance(0.08):
            deep = self.one_of(["[", '{"a":', '[{"a":']) * self.one_of([50, 900, 100_000])
            odd = [
                b"",
                deep.encode(),
                b'{"a": "\xff"}',
                b'"\\ud800"',
                b"nul",
                b"{}" * 9,
                bytes(3 << 20),
            ]
            return self.one_of([*odd, self.rng.randbytes(300), b"[" + b"9" * 5000 + b"]"])
        if handler.startswith("xet."):
            shard = b"HFRepoMetaData\0" + bytes(17) + struct.pack("<Q", 2) + bytes(200)
            return self.mutated(self.one_of([shard, b"\0\x2c\1\0\0\x2c\1\0" + b"x" * 300]))
        tree = self.damaged(
            DRAWN["bodies"].get(handler) or self.one_of([*DRAWN["bodies"].values()])
        )
        lines = tree if handler == "history.commit" and isinstance(tree, list) else [tree]
        with contextlib.suppress(ValueError):  # a number of too many digits
            body = b"\n".join(json.dumps(line).encode() for line in lines)
            return self.mutated(body) if self.chance(0.08) else body
        return b"9" * 5000

    def mutated(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(self.rng.randrange(1, 8) if changed else 0):
            changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return (
            bytes(changed[: self.rng.randrange(len(changed) + 1)])
            if self.chance(0.2)
            else bytes(changed)
        )

    def damaged(self, tree: Any) -> Any:
        """Copy a right body: change some values, drop some keys, repeat some items."""
        if self.chance(0.04):
            return self.one_of(JSON)
        if isinstance(tree, dict):
            return {key: self.damaged(value) for key, value in tree.items() if not self.chance(0.1)}
        if isinstance(tree, list):
            return [
                self.damaged(item) for item in tree for _ in range(self.one_of([0, 1, 1, 1, 2]))
            ]
        return self.one_of([tree, tree, 0, -1, 1 << 44, 1 << 65]) if type(tree) is int else tree


def prepare(hub: LocalHub) -> Target:
    """Create repos with a card, a large file, a tag and a branch where requests destroyed them."""
    token, url = hub.token, "/api/datasets/demo/fuzz"
    for name, kind in (("fuzz", "dataset"), ("other", "dataset"), ("fuzz", "model")):
        ask(hub, "POST", "/api/repos/create", {"name": name, "type": kind}, token=token)
    card = "---\nlicense: mit\nconfigs:\n- config_name: a\n  data_files: '*.parquet'\n---\n# Card\n"
    body = commit_body(
        file_line("README.md", card), file_line("data/x.bin", "x" * 100), file_line("a.txt", "a")
    )
    ask(hub, "POST", f"{url}/commit/main", body, token=token)
    ask(hub, "POST", f"{url}/tag/main", {"tag": "v1"}, token=token)
    ask(hub, "POST", f"{url}/branch/side", {}, token=token)
    objects = [{"oid": OID, "size": size} for size in (10, 1 << 17)]
    asked = {"operation": "upload", "transfers": ["multipart", "basic"], "objects": objects}
    answer = ask(hub, "POST", "/datasets/demo/fuzz.git/info/lfs/objects/batch", asked, token=token)
    xet = ask(hub, "GET", f"{url}/xet-write-token/main", token=token)
    if (answer.status, xet.status) != (200, 200):  # another worker has just deleted the repo
        return prepare(hub)
    uploads = [
        one["actions"]["upload"]["href"].removeprefix(hub.endpoint)
        for one in answer.json()["objects"]
    ]
    reader = (hub.root / "token_read").read_text().strip()
    tokens = [token] * 12 + [
        reader,
        "",
        "x",
        "a" * 5000,
        "\xff\xfe",
        "hf_",
        xet.json()["accessToken"],
    ]
    return Target(
        hub, tokens, {"space": [xet.json()["casUrl"].rpartition("/")[2]], "upload": uploads}
    )


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
        except TimeoutError:
            return "no answer in 30 s"
        return f"{answer.status // 100}xx" if answer.status != 507 else "507"


def fuzz(hub: LocalHub) -> tuple[Counter[str], list[str]]:
    """Send ``REQUESTS`` drawn by ``SEED``; return answers by class, and the wrong ones."""
    classes, wrong, target = Counter[str](), list[str](), prepare(hub)

    def work(number: int) -> None:
        fuzzer = Fuzzer(target, random.Random(SEED * 1000 + number))
        for count in range(REQUESTS // WORKERS):
            if count % 100 == 99:
                fuzzer.target = prepare(hub)
            request = fuzzer.request()
            found = send(target, request)
            classes[found] += 1
            if found in ("5xx", "no answer in 30 s") or (found == "closed" and request.whole):
                wrong.append(f"{found}: {request.head[:400]!r} {request.body[:300]!r}")

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, range(WORKERS)))
    return classes, wrong


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LocalHub(tmp_path_factory.mktemp("fuzzed"), orgs=["acme"], options=OPTIONS) as started:
        yield started


@pytest.mark.slow("sends 1,600 requests")
def test_every_request_is_answered_and_the_hub_still_works(hub, tmp_path):
    classes, wrong = fuzz(hub)
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"
    assert classes["2xx"] > REQUESTS / 20 and classes["4xx"] > REQUESTS / 3
    assert hub.process.poll() is None and "Traceback" not in hub.log_file.read_text(
        errors="replace"
    )
    api = HfApi(endpoint=hub.endpoint, token=hub.token)
    repo = api.create_repo("demo/afterwards", repo_type="dataset").repo_id
    content = os.urandom(200_000)
    api.upload_file(
        path_or_fileobj=content, path_in_repo="x.bin", repo_id=repo, repo_type="dataset"
    )
    path = hf_hub_download(
        repo, "x.bin", repo_type="dataset", endpoint=hub.endpoint, cache_dir=tmp_path
    )
    assert Path(path).read_bytes() == content


def test_addresses_reach_the_handlers_of_all_routes(hub):
    fuzzer = Fuzzer(prepare(hub), random.Random(1))
    drawn = [fuzzer.drawn(line) for line in DRAWN["addresses"] for _ in range(20)]
    assert {handler_of(*one.split(" ", 1)) for one in drawn} >= {route.name for route in app.ROUTES}
