"""Xet uploads: what ``hf_xet`` sends is turned into plain files at once; downloads stay plain HTTP.

A client cuts files into chunks, packs new chunks into *xorbs*, and sends a *shard* that says which chunks of which
xorbs make up which file, with the file's sha256 (https://huggingface.co/docs/xet). Here each repo is a Xet server of
its own (a random space in its address), so a client can refer to nothing but what was sent to this very repo, and what
it remembers about a repo or a Hub that is gone never meets another.
"""

import secrets
import sqlite3
import struct
import time
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pyarrow as pa
from starlette.responses import Response

from hub.local.blobs import Blob, BlobStore
from hub.local.call import Call
from hub.local.lfs import is_owned, note_owner
from hub.local.replies import HubError, json_reply

MAX_CHUNK, MAX_SHARD, TOKEN_SECONDS = 128 << 10, 64 << 20, 3600
MAX_XORB = 65 << 20  # clients fill 64 MiB with chunks; their headers and the footer come on top
_RECORD = 48  # every record of a shard has this many bytes
_SHARD_TAG, _SHARD_VERSION = b"HFRepoMetaData\0", 2
_HAS_VERIFICATION, _HAS_METADATA = 1 << 31, 1 << 30
_END = b"\xff" * 32
_LZ4 = pa.Codec("lz4")


class Term(NamedTuple):
    """A run of chunks [first, last) of one xorb, and the bytes they unpack to."""

    xorb: str
    size: int
    first: int
    last: int


class ShardFile(NamedTuple):
    """A file that a shard describes."""

    sha256: str
    terms: list[Term]


class Chunk(NamedTuple):
    """Where a chunk lies in its xorb, how it is compressed, and its size when unpacked."""

    start: int
    packed: int
    scheme: int
    size: int


def write_token(call: Call) -> Response:
    """The address of the repo's Xet server and a token for it."""
    repo = call.repo(write=True)
    with call.hub.database.writing() as db:
        db.execute("INSERT OR IGNORE INTO xet_spaces VALUES (?, ?)", (repo.id, secrets.token_hex(16)))
        space = db.execute("SELECT space FROM xet_spaces WHERE repo = ?", (repo.id,)).fetchone()["space"]
    expires = int(time.time()) + TOKEN_SECONDS
    token = f"{expires}-{call.hub.signer.signature('XET', space, str(expires))}"
    url = f"{call.endpoint}/xet/{space}"
    headers = {"X-Xet-Access-Token": token, "X-Xet-Cas-Url": url, "X-Xet-Token-Expiration": str(expires)}
    return json_reply({"accessToken": token, "casUrl": url, "exp": expires}, headers=headers)


def _authorised(call: Call) -> int:
    """The repo that the token and the address are for; 401 makes a client ask for a new token."""
    scheme, _, token = call.headers.get("authorization", "").partition(" ")
    expires, _, signature = token.partition("-")
    if scheme.lower() != "bearer" or not call.hub.signer.fits(signature, "XET", call.args["space"], expires):
        raise HubError(401, "This Xet token does not fit this address")
    with call.hub.database.reading() as db:
        row = db.execute("SELECT repo FROM xet_spaces WHERE space = ?", (call.args["space"],)).fetchone()
    if row is None:
        raise HubError(404, "The repo of this Xet address is gone: upload again")
    return row["repo"]


def put_xorb(call: Call) -> Response:
    """Keep a xorb unread: a shard's files are checked by their sha256, so nothing depends on a xorb's own name."""
    repo = _authorised(call)
    with call.hub.blobs.staging() as staging:
        blob = staging.add(call.limited(MAX_XORB))
        staging.settle()
    with call.hub.database.writing() as db:
        query = "INSERT INTO xorbs SELECT id, ?, ?, ? FROM repos WHERE id = ? ON CONFLICT DO UPDATE SET sha256 = ?"
        db.execute(query, (call.args["hash"], blob.sha256, int(time.time()), repo, blob.sha256))
    return json_reply({"was_inserted": True})


def put_shard(call: Call) -> Response:
    """Unpack the files of a shard and note that this repo has them."""
    repo = _authorised(call)
    described = read_shard(call.body(MAX_SHARD))
    with call.hub.database.reading() as db:
        missing = [file for file in described if not is_owned(db, repo, file.sha256, _size(file))]
        names = {term.xorb for file in missing for term in file.terms}
        found = {name: _xorb(db, repo, name) for name in names}
    xorbs = _Xorbs(call.hub.blobs, found)
    with call.hub.blobs.staging() as staging:
        for file in missing:
            blob = staging.add(chain.from_iterable(map(xorbs.unpack, file.terms)))
            if blob != Blob(file.sha256, _size(file)):
                raise HubError(400, f"The uploaded content is not {file.sha256}")
        staging.settle()
    with call.hub.database.writing() as db:
        for file in missing:
            note_owner(db, repo, Blob(file.sha256, _size(file)))
    return json_reply({"result": 1})


def _size(file: ShardFile) -> int:
    return sum(term.size for term in file.terms)


def _xorb(db: sqlite3.Connection, repo: int, name: str) -> str:
    row = db.execute("SELECT sha256 FROM xorbs WHERE repo = ? AND hash = ?", (repo, name)).fetchone()
    if row is None:
        raise HubError(400, f"The shard needs the xorb {name}, which was not uploaded to this repo")
    return row["sha256"]


def read_shard(content: bytes) -> list[ShardFile]:
    """The files that a shard describes, or 400."""
    if not content.startswith(_SHARD_TAG) or content[32:40] != struct.pack("<Q", _SHARD_VERSION):
        raise HubError(400, f"This is not a Xet shard of version {_SHARD_VERSION}")
    records = (content[at : at + _RECORD] for at in range(_RECORD, len(content), _RECORD))
    files = []
    try:
        while (header := next(records))[:32] != _END:
            flags, count = struct.unpack_from("<2I", header, 32)
            terms = [_term(next(records)) for _ in range(count)]
            for _ in range(count if flags & _HAS_VERIFICATION else 0):
                next(records)
            if not flags & _HAS_METADATA:
                raise HubError(400, "The shard has a file without its sha256")
            files.append(ShardFile(_hex(next(records)), terms))
    except (StopIteration, struct.error) as error:
        raise HubError(400, "The Xet shard ends too early") from error
    return files


def _term(record: bytes) -> Term:
    _flags, size, first, last = struct.unpack_from("<4I", record, 32)
    return Term(_hex(record), size, first, last)


def _hex(record: bytes) -> str:
    """The hash at the start of a record: four little-endian words, as clients spell it in addresses."""
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", record))


def _chunks(xorb: bytes) -> list[Chunk]:
    """Where the chunks of a xorb lie, or 400; a footer after them is not needed and not read."""
    found, at = [], 0
    while at < len(xorb) and xorb[at] == 0:  # the footer starts with a letter
        packed, size = int.from_bytes(xorb[at + 1 : at + 4], "little"), int.from_bytes(xorb[at + 5 : at + 8], "little")
        chunk = Chunk(at + 8, packed, xorb[at + 4] if at + 8 <= len(xorb) else -1, size)
        at = chunk.start + packed
        if at > len(xorb) or chunk.scheme not in (0, 1, 2) or size > MAX_CHUNK:
            raise HubError(400, "The xorb has a chunk that is cut off, too large or compressed in an unknown way")
        found.append(chunk)
    return found


class _Xorbs:
    """The xorbs that one shard needs; the one in use is held in memory (at most 65 MiB)."""

    def __init__(self, blobs: BlobStore, sha256s: dict[str, str]):
        self._blobs, self._sha256s, self._name = blobs, sha256s, ""
        self._content, self._chunks = b"", list[Chunk]()

    def unpack(self, term: Term) -> Iterator[bytes]:
        """The chunks of a term."""
        if term.xorb != self._name:
            self._content = self._blobs.path(self._sha256s[term.xorb]).read_bytes()
            self._chunks, self._name = _chunks(self._content), term.xorb
        chunks = self._chunks[term.first : term.last]
        if sum(chunk.size for chunk in chunks) != term.size:
            raise HubError(400, "The shard and its xorb do not agree about sizes")
        content = memoryview(self._content)
        return (_unpack(content[chunk.start : chunk.start + chunk.packed], chunk) for chunk in chunks)


def _unpack(packed: memoryview, chunk: Chunk) -> bytes:
    if chunk.scheme == 0:
        content = bytes(packed)
    else:
        try:
            content = _LZ4.decompress(packed, decompressed_size=chunk.size, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise HubError(400, "The xorb has a chunk that cannot be unpacked") from error
    if len(content) != chunk.size:
        raise HubError(400, "The xorb has a chunk that unpacks to another size")
    return content if chunk.scheme < 2 else _ungroup(content)


def _ungroup(content: bytes) -> bytes:
    """Undo byte grouping: all first bytes of four, all second bytes, and so on, were laid side by side."""
    out, at = bytearray(len(content)), 0
    for place in range(4):
        length = len(out[place::4])
        out[place::4] = content[at : at + length]
        at += length
    return bytes(out)
