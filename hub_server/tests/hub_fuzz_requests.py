"""Random requests for the local Hub, drawn from its code, so that they cover a new route at once.

Addresses come from the patterns of the route table, bodies from the pydantic model that a handler reads, and query
parameters from the handlers. Half are nearly right; the rest has wrong types, sizes, encodings or framing.
"""

import contextlib
import importlib
import inspect
import json
import pkgutil
import random
import re
import string
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from hub_fuzz_words import GARBAGE, JSON, METHODS, ODD_HEADERS, PIECES, RIGHT, TEXTS, UNROUTED
from pydantic import BaseModel

import hub_server
from hub_server.handlers import routes
from hub_server.process import LocalHub
from hub_server.storage.commits import _VALUES as OPERATIONS

_OPS = re._parser  # the only parser of patterns that there is


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


class Fuzzer:
    """Draws requests for ``target`` with ``rng``."""

    def __init__(self, target: Target, rng: random.Random):
        self.target, self.rng = target, rng
        self.right = RIGHT | {"space": [target.space]}
        found = pkgutil.walk_packages(hub_server.__path__, "hub_server.")
        modules = [importlib.import_module(item.name) for item in found if not item.name.endswith("__main__")]
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
        if route[2] in (routes.pages.repo, routes.pages.blob) and self.chance(0.9):  # these start a process
            route = self.rng.choice(routes._ROUTES)
        method, pattern, handler = route
        method = self.rng.choice(METHODS) if method == "*" or self.chance(0.04) else method
        address = self.address(pattern)
        if handler.__module__.endswith(".lfs") and self.chance(0.6):
            address = self.rng.choice(self.target.uploads)
        elif self.chance(0.04):
            address = self.rng.choice(UNROUTED)
        elif self.chance(0.4):
            address += f"?{self.query()}"
        body = self.body(handler) if method not in ("GET", "HEAD") or self.chance(0.05) else b""
        return self.framed(method, address, body)

    def garbage(self) -> Request:
        """Draw bytes that are not HTTP, or an incomplete request."""
        noise = bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(1, 400)))
        return Request(self.rng.choice(["", *GARBAGE]), noise if self.chance(0.5) else b"", whole=False)

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

    def address(self, pattern: re.Pattern[str]) -> str:
        """Draw an address that fits the pattern of a route, or nearly."""
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
            return self.rng.choice([c for c in string.ascii_letters + string.digits + "-_." if fits.match(c)])
        return "a" if kind in ("ANY", "NOT_LITERAL") else ""

    def _group(self, name: str, drawn: Callable[[], str]) -> str:
        if not name:
            return drawn()
        if self.chance(0.07):
            return self.rng.choice(PIECES)
        return self.rng.choice(self.right[name]) if name in self.right and self.chance(0.95) else drawn()

    def query(self) -> str:
        names = [self.rng.choice([*self.parameters, "x"]) for _ in range(self.rng.randrange(1, 4))]
        values = ["1", "true", "5", *PIECES, "a" * 7000]
        return "&".join(f"{name}{self.rng.choice(['', '', '[]'])}={self.rng.choice(values)}" for name in names)

    def body(self, handler: Callable) -> bytes:
        """Draw a body for the handler, right or nearly so."""
        if self.chance(0.08):
            deep = self.rng.choice(["[", '{"a":', '[{"a":']) * self.rng.choice([50, 900, 100_000])
            raw = bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(300)))
            odd = [b"", raw, deep.encode(), b'{"a": "\xff"}', b'"\\ud800"', b"nul", b"{}" * 9, bytes(3 << 20)]
            return self.rng.choice(odd)
        if handler.__module__.endswith("xet"):
            shard = b"HFRepoMetaData\0" + bytes(17) + struct.pack("<Q", 2) + bytes(200)
            return self.mutated(self.rng.choice([shard, b"\0\x2c\1\0\0\x2c\1\0" + b"x" * 300]))
        if handler.__name__ == "commit":
            keys = ["header"] * self.chance(0.95) + self.rng.choices(list(OPERATIONS), k=self.rng.randrange(5))
            return b"\n".join(self._json({"key": key, "value": self.value(OPERATIONS[key])}) for key in keys)
        read = re.findall(r"read\((\w+)\)", inspect.getsource(handler))
        known = [vars(sys.modules[handler.__module__])[name] for name in read]
        body = self._json(self.value(self.rng.choice(known if known and self.chance(0.9) else self.models)))
        return self.mutated(body) if self.chance(0.08) else body

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
        """Draw a value of this type, rarely of another."""
        if self.chance(0.04):
            return self.rng.choice(JSON)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = kind.model_fields.items()
            chosen = [(key, one.annotation) for key, one in fields if one.is_required() or self.chance(0.5)]
            return {key: self.value(annotation, key) for key, annotation in chosen}
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
            return self.rng.choice(self.right[name] if name in self.right and self.chance(0.9) else [*TEXTS, "words"])
        return {}


def _class(items: list) -> str:
    """A parsed class of characters as a pattern."""
    parts = {"NEGATE": lambda _: "^", "LITERAL": lambda code: re.escape(chr(code)), "CATEGORY": lambda _: r"\d",
             "RANGE": lambda ends: f"{re.escape(chr(ends[0]))}-{re.escape(chr(ends[1]))}"}  # fmt: skip
    return "[" + "".join(parts[str(kind)](value) for kind, value in items) + "]"
