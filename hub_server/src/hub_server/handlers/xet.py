"""Xet uploads: shards and xorbs that ``hf_xet`` sends become plain files at once. Downloads are plain HTTP.

A client cuts files into chunks, packs new chunks into *xorbs*, and sends a *shard* that says which chunks of which
xorbs make up which file, with the file's sha256 (https://huggingface.co/docs/xet). Here each repo is a Xet server of
its own (a random space in its address), so a client can only refer to xorbs of this very repo, and its cache of a
deleted repo or Hub never meets another.
"""

import secrets
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from starlette.responses import JSONResponse, Response

from hub_server.handlers.call import Call
from hub_server.handlers.lfs import is_owned, record_uploads
from hub_server.storage.blobs import Blob
from hub_server.storage.errors import HubError

MAX_CHUNK, TOKEN_SECONDS = 128 << 10, 3600
MAX_BODY = 65 << 20  # clients fill 64 MiB with chunks; their headers and the footer come on top
_RECORD = 48  # every record of a shard has this many bytes
_SHARD_TAG, _SHARD_VERSION = b"HFRepoMetaData\0", 2
_HAS_VERIFICATION, _HAS_METADATA = 1 << 31, 1 << 30
_END = b"\xff" * 32


class Term(NamedTuple):
    """A run of chunks [first, last) of one xorb, and the bytes they unpack to."""

    xorb: str
    size: int
    first: int
    last: int


class ShardFile(NamedTuple):
    """A file that a shard describes."""

    blob: Blob
    terms: list[Term]


class Chunk(NamedTuple):
    """A chunk as it lies in its xorb, how it is compressed, and its size when unpacked."""

    packed: memoryview
    scheme: int
    size: int


def write_token(call: Call) -> Response:
    """The address of the repo's Xet server, created on first use, and a token for it."""
    repo = call.repo(write=True)
    with call.hub.database.writing() as db:
        db.execute("INSERT OR IGNORE INTO xet_spaces VALUES (?, ?)", (repo.id, secrets.token_hex(16)))
        space = db.execute("SELECT space FROM xet_spaces WHERE repo = ?", (repo.id,)).fetchone()["space"]
    expires = int(time.time()) + TOKEN_SECONDS
    token, url = call.hub.signer.sign("XET", space, expires), f"{call.endpoint}/xet/{space}"
    headers = {"X-Xet-Access-Token": token, "X-Xet-Cas-Url": url, "X-Xet-Token-Expiration": str(expires)}
    return JSONResponse({"accessToken": token, "casUrl": url, "exp": expires}, headers=headers)


def authorised(call: Call) -> int:
    """The repo that the token and the address are for; 401 makes a client ask for a new token."""
    scheme, _, token = call.headers.get("authorization", "").partition(" ")
    space = call.args["space"]
    if scheme.lower() != "bearer" or not call.hub.signer.accepts(token, "XET", space):
        raise HubError(401, "This Xet token does not fit this address")
    with call.hub.database.reading() as db:
        row = db.execute("SELECT repo FROM xet_spaces WHERE space = ?", (space,)).fetchone()
    if row is None:
        raise HubError(404, "The repo of this Xet address is gone: upload again")
    return row["repo"]


def body_limit(call: Call) -> int:
    """Body limit of a xorb or a shard."""
    authorised(call)
    return MAX_BODY


def put_xorb(call: Call) -> dict:
    """Store a xorb unread: a shard's files are checked by sha256, so nothing depends on a xorb's own name."""
    repo = authorised(call)
    with call.hub.blobs.staging() as staging:
        blob = staging.take(call.content)
    with call.hub.database.writing() as db:
        query = "REPLACE INTO xorbs SELECT id, ?, ? FROM repos WHERE id = ?"
        db.execute(query, (call.args["hash"], blob.sha256, repo))
    return {"was_inserted": True}


def put_shard(call: Call) -> dict:
    """Reconstruct the files of a shard from its xorbs and record them as uploaded to the repo."""
    repo = authorised(call)
    described = read_shard(call.body())
    with call.hub.database.reading() as db:
        missing = [file for file in described if not is_owned(db, repo, *file.blob)]
        rows = db.execute("SELECT hash, sha256 FROM xorbs WHERE repo = ?", (repo,))
        sent = {row["hash"]: row["sha256"] for row in rows}

    @lru_cache(maxsize=1)  # up to 65 MiB; neighbouring terms are mostly of one xorb
    def chunks(xorb: str) -> list[Chunk]:
        if xorb not in sent:
            raise HubError(400, f"The shard needs the xorb {xorb}, which was not uploaded to this repo")
        return read_xorb(call.hub.blobs.path(sent[xorb]).read_bytes())

    with call.hub.blobs.staging() as staging:
        for file in missing:
            content = (part for term in file.terms for part in unpack(chunks(term.xorb), term))
            if staging.add(content) != file.blob:
                raise HubError(400, f"The uploaded content is not {file.blob.sha256}")
    record_uploads(call.hub, repo, {file.blob for file in missing})
    return {"result": 1}


def read_shard(content: bytes) -> list[ShardFile]:
    """Parse a shard into the files that it describes; 400 when it is malformed."""
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
            files.append(ShardFile(Blob(_hex(next(records)), sum(term.size for term in terms)), terms))
    except (StopIteration, struct.error) as error:
        raise HubError(400, "The Xet shard ends too early") from error
    return files


def _term(record: bytes) -> Term:
    _flags, size, first, last = struct.unpack_from("<4I", record, 32)
    return Term(_hex(record), size, first, last)


def _hex(record: bytes) -> str:
    """The hash at the start of a record: four little-endian words, as clients spell it in addresses."""
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", record))


def read_xorb(content: bytes) -> list[Chunk]:
    """Parse a xorb into its chunks; 400 when it is malformed. A footer after them is not needed and not read."""
    found, at = [], 0
    while content[at : at + 1] == b"\0":  # version 0 of a chunk's header; the footer starts with a letter
        header = content[at : at + 8].ljust(8, b"\xff")
        packed, size = int.from_bytes(header[1:4], "little"), int.from_bytes(header[5:8], "little")
        at += 8 + packed
        if at > len(content) or header[4] > 2 or size > MAX_CHUNK:
            raise HubError(400, "The xorb has a chunk that is cut off, too large or compressed in an unknown way")
        found.append(Chunk(memoryview(content)[at - packed : at], header[4], size))
    return found


def unpack(chunks: list[Chunk], term: Term) -> Iterator[bytes]:
    """Decompress a term's chunks; 400 when they are malformed."""
    import pyarrow as pa

    lz4, run = pa.Codec("lz4"), chunks[term.first : term.last]
    if sum(chunk.size for chunk in run) != term.size:
        raise HubError(400, "The shard and its xorb do not agree about sizes")
    for chunk in run:
        try:
            content = bytes(chunk.packed)
            if chunk.scheme:
                content = lz4.decompress(chunk.packed, decompressed_size=chunk.size, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise HubError(400, "The xorb has a chunk that cannot be unpacked") from error
        if len(content) != chunk.size:
            raise HubError(400, "The xorb has a chunk that unpacks to another size")
        yield _ungroup(content) if chunk.scheme == 2 else content


def _ungroup(content: bytes) -> bytes:
    """Undo byte grouping: all first bytes of four, all second bytes, and so on, were laid side by side."""
    out, at = bytearray(len(content)), 0
    for place in range(4):
        length = len(out[place::4])
        out[place::4] = content[at : at + length]
        at += length
    return bytes(out)
