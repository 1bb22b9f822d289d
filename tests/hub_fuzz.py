"""Requests that nobody should send, to every route of the local Hub: python tests/hub_fuzz.py --requests 20000 --seed 7

Everything is drawn from the Hub itself: addresses from the patterns of the route table, bodies from the pydantic model
that a handler reads, query parameters from what handlers ask for. So a route that is added is attacked the same day.
Half of all is nearly right, for only that gets far; the rest is wrong in type, size, encoding or framing.
"""

import argparse
import contextlib
import http.client
import importlib
import inspect
import json
import pkgutil
import random
import re
import socket
import string
import struct
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from local_hub import ask, commit_body, file_line
from pydantic import BaseModel

import hub.local
from hub.local import routes
from hub.local.commits import _VALUES as OPERATIONS
from hub.local.process import LocalHub

OPTIONS = ["--part-bytes", str(1 << 16), "--verbose"]
_OID = "ab" * 32
# What lies in the fuzzed repos, by the name of the part of an address or the key of a body; else drawn by type.
_RIGHT: dict[str, list[str]] = {
    "kind": ["models", "datasets", "datasets", "datasets"],
    "type": ["model", "dataset", "dataset"],
    "namespace": ["demo"] * 8 + ["acme"],
    "organization": ["demo", "acme"],
    "name": ["fuzz"] * 8 + ["other"],
    "revision": ["main", "main", "v1", "refs%2Fpr%2F1"],
    "ref": ["main", "v1", "side"],
    "path": ["README.md", "data/x.bin", "data", "a.txt"],
    "paths": ["README.md", "data/x.bin", "data"],
    "tag": ["v1", "v2"],
    "num": ["1", "1", "2"],
    "oid": [_OID],
    "content": ["# Title\n", "---\nlicense: mit\n---\n", "eA=="],
    "encoding": ["utf-8", "base64"],
    "parentCommit": [""] * 5 + ["0" * 40],
    "startingPoint": ["main"],
    "gitIgnore": ["*.tmp\n!a/**/b\n", "*a" * 30, "[[:alpha:]]"],
    "fromRepo": ["demo/other", "demo/moved"],
    "toRepo": ["demo/moved", "demo/other"],
    "transfers": ["basic", "multipart"],
    "visibility": ["public"],  # a private repo would answer most requests with 404
}
_TEXTS = [
    "", "\0", "a\0b", "\x1b[2J", "\r\nX-Evil: 1", "\x85", "\u202e", "é", "\U0001f600", "..", "../../token", ".git ",
    "git~1", "/", "//", "\\", "C:x", "a" * 300, "a" * 5000, "x/" * 200, "%00", "%2e%2e", "*a" * 17, "[" * 1000,
    "{a: " * 1000, "- " * 1000, "---\n&a [*a]\n---\n", "---\na: &a {x: 1}\nb: {<<: [*a, *a]}\n---\n", "9" * 400, "-1",
    "1e999", "null", "refs/heads/main", "0" * 40, "' OR 1=1 --", "<script>", "nan", "hf_" + "a" * 34,
]  # fmt: skip
_JSON: list[Any] = [
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
    [None] * 100,
    *_TEXTS,
]
_PIECES = [
    "", "%00", "a%00b", "%0d%0aX-Evil:1", "%1b[2J", "..", "%2e%2e", "%2e%2e%2f%2e%2e%2ftoken", "%2F", "%5c", "%ff",
    "%", "%zz", "%c3%a9", "%e2%80%8b", "%ed%a0%80", "a" * 300, "x/" * 300, "-1", "0", "9" * 30, "9" * 5000, "main%20",
    ".git", "git~1", "*", "~", "%2a" * 40, "refs%2Fheads%2Fmain", "refs%2Ftags%2Fv1", "refs%2Fpr%2F1", "0" * 40,
    "deadbeef", "'%20OR%201=1", "%3Cscript%3E",
]  # fmt: skip
_RANGES = [
    "bytes=0-0", "bytes=-1", "bytes=5-", "bytes=9-1", "bytes=" + "9" * 5000 + "-", "bytes=0-" + "9" * 400,
    "bytes=a-b", "bytes", "bytes=" + ",".join(["0-1"] * 500), "lines=0-1", "bytes=-0", "bytes=0-0,-1", "bytes=٣-٤",
    "", "=", "bytes=--1",
]  # fmt: skip
_METHODS = [
    "OPTIONS",
    "TRACE",
    "PATCH",
    "PROPFIND",
    "CONNECT",
    "get",
    "X" * 500,
    "HEAD",
    "GET",
    "POST",
    "PUT",
    "DELETE",
]
_UNROUTED = [
    "/demo/fuzz.git/info/refs?service=git-upload-pack", "/datasets/demo/fuzz.git/git-receive-pack",
    "/datasets/demo/fuzz.git/HEAD", "/datasets/demo/fuzz/raw/main/README.md", "/api/datasets/demo/fuzz/parquet",
    "/xet/" + "0" * 32, "/xet/" + "0" * 32 + "/v1/chunks/a/b", "/api", "/api/", "//", "/.",
    "/%2e%2e/%2e%2e/etc/passwd", "*", "http://evil.example/", "/?", "/#", "/" + "a" * 9000, "/" + "a/" * 4000,
]  # fmt: skip
_ODD_HEADERS = {
    "Range": _RANGES,
    "If-Range": ['"x"', "", "Thu, 01 Jan 1970 00:00:00 GMT", "\xff"],
    "Content-Type": [
        "application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "\xff",
    ],
    "Accept": ["text/plain", "*/*", "a" * 500],
    "X-Request-Id": ["a" * 900, "\x80\xff", ""],
    "Expect": ["100-continue", "x"],
    "Connection": ["close", "upgrade", "keep-alive"],
    "Upgrade": ["websocket", "h2c"],
}
_GARBAGE = [
    "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n" * 50, "GET / HTTP/1.1\r\nHost\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: HOST\r\nX: " + "a" * 20_000 + "\r\n\r\n",
    "GET / HTTP/1.1\r\n" + "A: b\r\n" * 500, "GET / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
]  # fmt: skip
_OPS = re._parser  # the only parser of patterns that there is


class Target(NamedTuple):
    """A Hub with something in it, and the keys to it."""

    hub: LocalHub
    reader: str
    uploads: list[str]  # signed addresses
    space: str
    xet_token: str


def prepare(hub: LocalHub) -> Target:
    """Repos with a card, a large file, a tag, a branch and a change, made again when requests have destroyed them."""
    token, url = hub.token, "/api/datasets/demo/fuzz"
    for name, kind in (("fuzz", "dataset"), ("other", "dataset"), ("fuzz", "model")):
        ask(hub, "POST", "/api/repos/create", {"name": name, "type": kind}, token=token)
    card = "---\nlicense: mit\nconfigs:\n- config_name: a\n  data_files: '*.parquet'\n---\n# Card\n"
    body = commit_body(file_line("README.md", card), file_line("data/x.bin", "x" * 100), file_line("a.txt", "a"))
    for flag in ("", "?create_pr=1"):
        ask(hub, "POST", f"{url}/commit/main{flag}", body, token=token)
    ask(hub, "POST", f"{url}/tag/main", {"tag": "v1"}, token=token)
    ask(hub, "POST", f"{url}/branch/side", {}, token=token)
    objects = [{"oid": _OID, "size": size} for size in (10, 1 << 17)]
    asked = {"operation": "upload", "transfers": ["multipart", "basic"], "objects": objects}
    answer = ask(hub, "POST", "/datasets/demo/fuzz.git/info/lfs/objects/batch", asked, token=token)
    xet = ask(hub, "GET", f"{url}/xet-write-token/main", token=token)
    if (answer.status, xet.status) != (200, 200):  # another worker has just deleted the repo
        return prepare(hub)
    actions = [item["actions"]["upload"] for item in answer.json()["objects"]]
    uploads = [action["href"].removeprefix(hub.endpoint) for action in actions]
    reader = (hub.root / "token_read").read_text().strip()
    return Target(hub, reader, uploads, xet.json()["casUrl"].rpartition("/")[2], xet.json()["accessToken"])


class Request(NamedTuple):
    """What goes over the wire, and whether it is whole: then there must be an answer."""

    head: str
    body: bytes
    whole: bool

    def __str__(self) -> str:
        return f"{self.head[:400]!r} {self.body[:300]!r}"


class Fuzzer:
    """Draws requests for ``target`` with ``rng``."""

    def __init__(self, target: Target, rng: random.Random):
        self.target, self.rng = target, rng
        self.right = _RIGHT | {"space": [target.space]}
        names = [found.name for found in pkgutil.iter_modules(hub.local.__path__) if found.name != "__main__"]
        modules = [importlib.import_module(f"hub.local.{name}") for name in names]
        sources = "".join(inspect.getsource(module) for module in modules)
        self.parameters = sorted(set(re.findall(r"(?:flag|number|options|query\.get\w*)\(\"(\w+)\"", sources)))
        models = {kind for module in modules for kind in vars(module).values()
                  if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel}  # fmt: skip
        self.models = sorted(models, key=lambda kind: (kind.__module__, kind.__name__))

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def request(self) -> Request:
        if self.chance(0.04):
            return self.garbage()
        route = self.rng.choice(routes._ROUTES)
        if route[2] is routes.pages.repo and self.chance(0.9):  # each look at a new commit starts a process
            route = self.rng.choice(routes._ROUTES)
        method, pattern, handler = route
        method = self.rng.choice(_METHODS) if method == "*" or self.chance(0.04) else method
        address = self.address(pattern)
        if handler.__module__.endswith(".lfs") and self.chance(0.6):
            address = self.rng.choice(self.target.uploads)
        elif self.chance(0.04):
            address = self.rng.choice(_UNROUTED)
        elif self.chance(0.4):
            address += f"?{self.query()}"
        body = self.body(handler) if method not in ("GET", "HEAD") or self.chance(0.05) else b""
        return self.framed(method, address, body)

    def garbage(self) -> Request:
        """What is not HTTP at all, or breaks off."""
        noise = bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(1, 400)))
        return Request(self.rng.choice(["", *_GARBAGE]), noise if self.chance(0.5) else b"", whole=False)

    def framed(self, method: str, address: str, body: bytes) -> Request:
        """The request with headers, some of them lies; what lies about its length need not be answered."""
        headers, whole = self.headers(address), True
        framing = self.rng.choices(["length", "chunked", "short", "long", "broken", "none"], [80, 8, 3, 3, 3, 3])[0]
        if framing == "chunked":
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
        elif framing == "broken":
            body, whole = self.rng.choice([b"zz\r\n", b"5\r\nab", b"-1\r\n\r\n", b"f" * 400]) + body, False
        if framing in ("chunked", "broken"):
            headers.append("Transfer-Encoding: chunked")
        elif framing != "none":
            whole = framing == "length"
            wrong = {"short": max(0, len(body) - 5), "long": self.rng.choice([len(body) + 9, 10**9, 10**30])}
            headers.append(f"Content-Length: {wrong.get(framing, len(body))}")
        elif body:
            whole = False
        return Request(
            f"{method} {address} HTTP/1.{self.rng.choice('1110')}\r\n" + "\r\n".join(headers) + "\r\n\r\n", body, whole
        )

    def headers(self, address: str) -> list[str]:
        tokens = [self.target.hub.token] * 12 + [self.target.reader, "", "x", "a" * 5000, "\xff\xfe", "hf_"]
        token = self.target.xet_token if address.startswith("/xet/") and self.chance(0.8) else self.rng.choice(tokens)
        found = ["Host: HOST" if self.chance(0.97) else f"Host: {self.rng.choice(['', 'evil.example', 'a' * 300])}"]
        if self.chance(0.9):
            found.append(
                f"Authorization: {self.rng.choice(['Bearer'] * 12 + ['Basic', '', 'bearer'])} {token}".rstrip()
            )
        for name, values in _ODD_HEADERS.items():
            if self.chance(0.15 if name != "Upgrade" else 0.02):
                found.append(f"{name}: {self.rng.choice(values)}")
        return found

    def address(self, pattern: re.Pattern[str]) -> str:
        """A text that the pattern of a route fits, or nearly."""
        names = {number: name for name, number in pattern.groupindex.items()}
        return self._text(_OPS.parse(pattern.pattern), names)

    def _text(self, tree: Any, names: dict[int, str]) -> str:
        return "".join(self._part(str(kind), value, names) for kind, value in tree)

    def _part(self, kind: str, value: Any, names: dict[int, str]) -> str:
        if kind == "LITERAL":
            return chr(value)
        if kind == "SUBPATTERN":
            return self._group(names.get(value[0], ""), lambda: self._text(value[3], names))
        if kind == "BRANCH":
            return self._text(self.rng.choice(value[1]), names)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            times = self.rng.randint(least, min(int(most), least + 8)) if most != 1 else self.rng.randint(least, 1)
            return "".join(self._text(inner, names) for _ in range(times))
        if kind == "IN":
            fits = re.compile(_class(value))
            return self.rng.choice(
                [character for character in string.ascii_letters + string.digits + "-_." if fits.match(character)]
            )
        return "a" if kind in ("ANY", "NOT_LITERAL") else ""

    def _group(self, name: str, drawn: Callable[[], str]) -> str:
        if not name:
            return drawn()
        if self.chance(0.07):
            return self.rng.choice(_PIECES)
        return self.rng.choice(self.right[name]) if name in self.right and self.chance(0.95) else drawn()

    def query(self) -> str:
        names = [self.rng.choice([*self.parameters, "x"]) for _ in range(self.rng.randrange(1, 4))]
        values = ["1", "true", "5", *_PIECES, "a" * 7000]
        return "&".join(f"{name}{self.rng.choice(['', '', '[]'])}={self.rng.choice(values)}" for name in names)

    def body(self, handler: Callable) -> bytes:
        """What the handler reads, more or less."""
        if self.chance(0.08):
            deep = self.rng.choice(["[", '{"a":', '[{"a":']) * self.rng.choice([50, 900, 100_000])
            raw = bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(300)))
            return self.rng.choice(
                [b"", raw, deep.encode(), b'{"a": "\xff"}', b'"\\ud800"', b"nul", b"{}" * 9, bytes(3 << 20)]
            )
        if handler.__module__.endswith("xet"):
            return self.mutated(
                self.rng.choice([b"HFRepoMetaData\0" + bytes(17) + struct.pack("<Q", 2) + bytes(200), _xorb()])
            )
        if handler.__name__ == "commit":
            return b"\n".join(self._json({"key": key, "value": self.value(OPERATIONS[key])}) for key in self._keys())
        read = re.findall(r"read\((\w+)\)", inspect.getsource(handler))
        known = [vars(sys.modules[handler.__module__])[name] for name in read]
        body = self._json(self.value(self.rng.choice(known if known and self.chance(0.9) else self.models)))
        return self.mutated(body) if self.chance(0.08) else body

    def _keys(self) -> list[str]:
        return [
            *(["header"] if self.chance(0.95) else []),
            *self.rng.choices(list(OPERATIONS), k=self.rng.randrange(5)),
        ]

    def _json(self, value: Any) -> bytes:
        with contextlib.suppress(ValueError):
            return json.dumps(value).encode()
        return b"[" + b"9" * 5000 + b"]"

    def mutated(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(self.rng.randrange(1, 8)):
            if changed:
                changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return bytes(changed[: self.rng.randrange(len(changed) + 1)]) if self.chance(0.2) else bytes(changed)

    def value(self, kind: Any, name: str = "") -> Any:
        """A value of this type, or of quite another."""
        if self.chance(0.04):
            return self.rng.choice(_JSON)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = kind.model_fields.items()
            return {
                key: self.value(found.annotation, key)
                for key, found in fields
                if found.is_required() or self.chance(0.5)
            }
        origin, inner = get_origin(kind), get_args(kind)
        if origin is Literal:
            return self.rng.choice(inner)
        if origin in (Union, types.UnionType):
            return self.value(self.rng.choice(inner), name)
        if origin is list:
            return [self.value(inner[0], name) for _ in range(self.rng.choice([0, 1, 1, 2, 5]))]
        if kind in (int, float):
            return self.rng.choice([0, 1, 10, 1 << 17, -1, 1 << 44, 1 << 65])
        if kind in (bool, types.NoneType):
            return self.chance(0.5) if kind is bool else None
        if kind is str:
            return self.rng.choice(self.right[name] if name in self.right and self.chance(0.9) else [*_TEXTS, "words"])
        return {}


def _class(items: list) -> str:
    """A parsed class of characters as a pattern."""
    parts = {"NEGATE": lambda _: "^", "LITERAL": lambda code: re.escape(chr(code)), "CATEGORY": lambda _: r"\d",
             "RANGE": lambda ends: f"{re.escape(chr(ends[0]))}-{re.escape(chr(ends[1]))}"}  # fmt: skip
    return "[" + "".join(parts[str(kind)](value) for kind, value in items) + "]"


def _xorb() -> bytes:
    content = b"x" * 300
    return b"\0" + len(content).to_bytes(3, "little") + b"\0" + len(content).to_bytes(3, "little") + content


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
            started = time.monotonic()
            status = ask(hub, "GET", "/api/whoami-v2", token=hub.token).status
            if status != 200:
                findings.wrong.append(f"a poll was answered {status}")
            findings.polls, findings.longest_poll = (
                findings.polls + 1,
                max(findings.longest_poll, time.monotonic() - started),
            )

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
