"""Random requests for the local Hub: one line of ``ADDRESSES`` and one of ``BODIES`` for each of its handlers.

Half are nearly right; the rest has wrong words, types, sizes, encodings or framing.
"""

import contextlib
import json
import random
import re
import struct
from typing import Any, NamedTuple

from hub_server.handlers import routes
from hub_server.process import LocalHub
from hub_server.storage.errors import HubError

OID = "ab" * 32
ADDRESSES = """
GET /
GET /api/whoami-v2
POST /api/repos/create
DELETE /api/repos/delete
POST /api/validate-yaml
GET /api/{kind}
GET {api}
GET {api}/revision/{revision}
PUT {api}/settings
GET {api}/tree/{revision}/{path}
POST {api}/paths-info/{revision}
POST {api}/preupload/{revision}
POST {api}/commit/{revision}
GET {api}/commits/{revision}
GET {api}/refs
POST {api}/branch/{ref}
DELETE {api}/branch/{ref}
POST {api}/tag/{ref}
DELETE {api}/tag/{ref}
GET {api}/xet-write-token/{revision}
POST /xet/{space}/v1/xorbs/default/{oid}
POST /xet/{space}/v1/shards
POST {web}.git/info/lfs/objects/batch
PUT {upload}
POST {upload}
GET {web}/resolve/{revision}/{path}
GET /{namespace}
GET {web}
GET {web}/tree/{revision}/{path}
GET {web}/blob/{revision}/{path}
GET {web}/report/{revision}
GET {api}/none
GET /api/models/none
GET /api/papers/{path}
""".splitlines()[1:]
PLACES = {
    "api": ["/api/{kind}/{namespace}/{name}"],
    "web": ["/datasets/{namespace}/{name}", "/{namespace}/{name}"],
    "kind": ["models", "datasets", "datasets", "datasets"],
    "namespace": ["demo"] * 8 + ["acme"],
    "name": ["fuzz"] * 8 + ["other"],
    "revision": ["main", "main", "v1"],
    "ref": ["main", "v1", "side"],
    "path": ["README.md", "data/x.bin", "data", "a.txt"],
    "oid": [OID],
}
_COMMIT = [
    {"key": "header", "value": {"summary": "words", "description": "", "parentCommit": ""}},
    {"key": "file", "value": {"path": "a.txt", "content": "eA==", "encoding": "base64"}},
    {"key": "lfsFile", "value": {"path": "data/x.bin", "algo": "sha256", "oid": OID, "size": 10}},
    {"key": "deletedFile", "value": {"path": "data/y.bin"}},
    {"key": "deletedFolder", "value": {"path": "data/"}},
]
BODIES: dict[str, Any] = {
    "repos.create": {"type": "dataset", "organization": "demo", "name": "fuzz", "visibility": "public"},
    "repos.delete": {"type": "dataset", "organization": "demo", "name": "other"},
    "repos.settings": {"visibility": "public", "private": False, "gated": False},
    "repos.validate_yaml": {"repoType": "dataset", "content": "---\nlicense: mit\n---\n"},
    "files.paths_info": {"paths": ["README.md", "data"], "expand": True},
    "files.preupload": {"files": [{"path": "a.txt", "size": 10, "sample": "eA=="}], "gitIgnore": "*.tmp\n!a/**/b\n"},
    "history.commit": _COMMIT,
    "history.create_branch": {"startingPoint": "main"},
    "history.create_tag": {"tag": "v2", "message": "words"},
    "lfs.batch": {"operation": "upload", "transfers": ["multipart"], "objects": [{"oid": OID, "size": 1 << 17}]},
    "lfs.complete": {"oid": OID, "parts": [{"partNumber": 1, "etag": OID}]},
}
PARAMETERS = (
    "limit",
    "cursor",
    "expand",
    "full",
    "search",
    "author",
    "filter",
    "p",
    "page",
    "config",
    "split",
    "q",
    "x",
)
TEXTS = [
    "", "\0", "a\0b", "\x1b[2J", "\r\nX-Evil: 1", "\x85", "\u202e", "é", "\U0001f600", "..", "../../token", ".git ",
    "git~1", "/", "//", "\\", "C:x", "a" * 300, "a" * 5000, "x/" * 200, "%00", "%2e%2e", "*a" * 17, "[" * 1000,
    "{a: " * 1000, "- " * 1000, "---\n&a [*a]\n---\n", "---\na: &a {x: 1}\nb: {<<: [*a, *a]}\n---\n", "9" * 400, "-1",
    "1e999", "null", "refs/heads/main", "0" * 40, "' OR 1=1 --", "<script>", "nan", "hf_" + "a" * 34,
]  # fmt: skip
JSON: list[Any] = [None, True, 0, -1, 1 << 63, 1 << 70, 10**400, 1.5, 1e308, [], {}, [[]], {"a": None}, *TEXTS]
PIECES = [
    "", "%00", "a%00b", "%0d%0aX-Evil:1", "%1b[2J", "..", "%2e%2e", "%2e%2e%2f%2e%2e%2ftoken", "%2F", "%5c", "%ff",
    "%", "%zz", "%c3%a9", "%e2%80%8b", "%ed%a0%80", "a" * 300, "x/" * 300, "-1", "0", "9" * 30, "9" * 5000, "main%20",
    ".git", "git~1", "*", "~", "%2a" * 40, "refs%2Fheads%2Fmain", "refs%2Ftags%2Fv1", "refs%2Fpr%2F1", "0" * 40,
    "deadbeef", "'%20OR%201=1", "%3Cscript%3E",
]  # fmt: skip
RANGES = [
    "bytes=0-0", "bytes=-1", "bytes=5-", "bytes=9-1", "bytes=" + "9" * 5000 + "-", "bytes=0-" + "9" * 400,
    "bytes=a-b", "bytes", "bytes=" + ",".join(["0-1"] * 500), "lines=0-1", "bytes=-0", "bytes=0-0,-1", "bytes=٣-٤",
    "", "=", "bytes=--1",
]  # fmt: skip
METHODS = ["OPTIONS", "TRACE", "PATCH", "CONNECT", "get", "X" * 500, "HEAD", "GET", "POST", "PUT", "DELETE"]
UNROUTED = [
    "/demo/fuzz.git/info/refs?service=git-upload-pack", "/datasets/demo/fuzz.git/git-receive-pack",
    "/datasets/demo/fuzz.git/HEAD", "/datasets/demo/fuzz/raw/main/README.md", "/api/datasets/demo/fuzz/parquet",
    "/xet/" + "0" * 32, "/xet/" + "0" * 32 + "/v1/chunks/a/b", "/api", "/api/", "//", "/.",
    "/%2e%2e/%2e%2e/etc/passwd", "*", "http://evil.example/", "/?", "/#", "/" + "a" * 9000, "/" + "a/" * 4000,
]  # fmt: skip
ODD_HEADERS = {
    "Range": RANGES,
    "If-Range": ['"x"', "", "Thu, 01 Jan 1970 00:00:00 GMT", "\xff"],
    "Content-Type": ["application/json", "application/x-www-form-urlencoded", "multipart/form-data", "\xff"],
    "Accept": ["text/plain", "*/*", "a" * 500],
    "X-Request-Id": ["a" * 900, "\x80\xff", ""],
    "Expect": ["100-continue", "x"],
    "Connection": ["close", "upgrade", "keep-alive"],
    "Upgrade": ["websocket", "h2c"],
}
GARBAGE = [
    "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "\r\n" * 50, "GET / HTTP/1.1\r\nHost\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET / HTTP/1.1\r\nHost: HOST\r\nX: " + "a" * 20_000 + "\r\n\r\n",
    "GET / HTTP/1.1\r\n" + "A: b\r\n" * 500, "GET / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
]  # fmt: skip


class Target(NamedTuple):
    """A Hub with content, and the tokens and addresses for it."""

    hub: LocalHub
    reader: str
    uploads: list[str]  # signed addresses
    space: str
    xet_token: str


class Request(NamedTuple):
    """A request, and whether it is complete: then there must be an answer."""

    head: str
    body: bytes
    whole: bool

    def __str__(self) -> str:
        return f"{self.head[:400]!r} {self.body[:300]!r}"


def handler_of(method: str, address: str) -> str:
    """Module and name of the handler of a request; "" for none."""
    with contextlib.suppress(HubError, UnicodeError):
        return routes.name_of(routes.match(method, address.partition("?")[0])[0])
    return ""


class Fuzzer:
    """Draws requests for ``target`` with ``rng``."""

    def __init__(self, target: Target, rng: random.Random):
        self.target, self.rng = target, rng

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def request(self) -> Request:
        if self.chance(0.04):  # bytes that are not HTTP, or an incomplete request
            noise = self.rng.randbytes(self.rng.randrange(1, 400))
            return Request(self.rng.choice(["", *GARBAGE]), noise if self.chance(0.5) else b"", whole=False)
        line = self.rng.choice(ADDRESSES)
        if line in ("GET {web}", "GET {web}/blob/{revision}/{path}") and self.chance(0.9):  # these start a process
            line = self.rng.choice(ADDRESSES)
        method, address = self.drawn(line, odd=0.07).split(" ", 1)
        method = self.rng.choice(METHODS) if self.chance(0.04) else method
        if self.chance(0.04):
            address = self.rng.choice(UNROUTED)
        elif self.chance(0.4):
            address += f"?{self.query()}"
        body = self.body(handler_of(method, address)) if method not in ("GET", "HEAD") or self.chance(0.05) else b""
        return self.framed(method, address, body)

    def drawn(self, line: str, odd: float = 0.0) -> str:
        """Fill the places of an address, now and then with words that fit nowhere."""
        places = PLACES | {"space": [self.target.space], "upload": self.target.uploads}

        def filled(place: re.Match[str]) -> str:
            return self.rng.choice(PIECES if self.chance(odd) else places[place[1]])

        while "{" in line:
            line = re.sub(r"{(\w+)}", filled, line)
        return line

    def framed(self, method: str, address: str, body: bytes) -> Request:
        """Add headers, some of them wrong; a request with a wrong length needs no answer."""
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
        head = f"{method} {address} HTTP/1.{self.rng.choice('1110')}"
        return Request("\r\n".join([head, *headers, "\r\n"]), body, whole)

    def headers(self, address: str) -> list[str]:
        tokens = [self.target.hub.token] * 12 + [self.target.reader, "", "x", "a" * 5000, "\xff\xfe", "hf_"]
        token = self.target.xet_token if address.startswith("/xet/") and self.chance(0.8) else self.rng.choice(tokens)
        found = ["Host: HOST" if self.chance(0.97) else f"Host: {self.rng.choice(['', 'evil.example', 'a' * 300])}"]
        if self.chance(0.9):
            scheme = self.rng.choice(["Bearer"] * 12 + ["Basic", "", "bearer"])
            found.append(f"Authorization: {scheme} {token}".rstrip())
        for name, values in ODD_HEADERS.items():
            if self.chance(0.15 if name != "Upgrade" else 0.02):
                found.append(f"{name}: {self.rng.choice(values)}")
        return found

    def query(self) -> str:
        values = ["1", "true", "5", *PIECES, "a" * 7000]
        names = self.rng.choices(PARAMETERS, k=self.rng.randrange(1, 4))
        return "&".join(f"{name}{self.rng.choice(['', '', '[]'])}={self.rng.choice(values)}" for name in names)

    def body(self, handler: str) -> bytes:
        """Draw a body for the handler, right or nearly so."""
        if self.chance(0.08):
            deep = self.rng.choice(["[", '{"a":', '[{"a":']) * self.rng.choice([50, 900, 100_000])
            odd = [b"", deep.encode(), b'{"a": "\xff"}', b'"\\ud800"', b"nul", b"{}" * 9, bytes(3 << 20)]
            return self.rng.choice([*odd, self.rng.randbytes(300)])
        if handler.startswith("xet."):
            shard = b"HFRepoMetaData\0" + bytes(17) + struct.pack("<Q", 2) + bytes(200)
            return self.mutated(self.rng.choice([shard, b"\0\x2c\1\0\0\x2c\1\0" + b"x" * 300]))
        tree = self.damaged(BODIES.get(handler) or self.rng.choice([*BODIES.values()]))
        with contextlib.suppress(ValueError):  # a number of too many digits
            lines = tree if handler == "history.commit" and isinstance(tree, list) else [tree]
            body = b"\n".join(json.dumps(line).encode() for line in lines)
            return self.mutated(body) if self.chance(0.08) else body
        return b"[" + b"9" * 5000 + b"]"

    def mutated(self, content: bytes) -> bytes:
        changed = bytearray(content)
        for _ in range(self.rng.randrange(1, 8)):
            if changed:
                changed[self.rng.randrange(len(changed))] = self.rng.randrange(256)
        return bytes(changed[: self.rng.randrange(len(changed) + 1)]) if self.chance(0.2) else bytes(changed)

    def damaged(self, tree: Any) -> Any:
        """A copy of a right body: some values are others, some keys are missing, some items stand twice."""
        if self.chance(0.04):
            return self.rng.choice(JSON)
        if isinstance(tree, dict):
            return {key: self.damaged(value) for key, value in tree.items() if not self.chance(0.1)}
        if isinstance(tree, list):
            return [self.damaged(item) for item in tree for _ in range(self.rng.choice([0, 1, 1, 1, 2]))]
        if isinstance(tree, int) and not isinstance(tree, bool):
            return self.rng.choice([tree, tree, 0, 1, -1, 1 << 44, 1 << 65])
        return tree
