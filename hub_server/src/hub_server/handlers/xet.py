"""Xet uploads: the shards and xorbs that ``hf_xet`` sends become plain files at once.

A client cuts files into chunks, packs new chunks into *xorbs*, and sends a *shard*: the sha256 of
each file, and the xorbs and chunks that make up the file (https://huggingface.co/docs/xet).
Downloads are plain HTTP. Each repo has a Xet address of its own, with a random part. A client
therefore refers only to xorbs of the same repo, and its cache of a deleted repo is never used for
another repo.
"""

import secrets
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from starlette.responses import JSONResponse, Response

from hub_server.handlers.call import Call
from hub_server.handlers.lfs import is_owned, register_uploads
from hub_server.storage.blobs import Blob
from hub_server.storage.errors import HubError

MAX_CHUNK_BYTES = 128 << 10  # of a chunk, unpacked
MAX_XORB_BYTES = 64 << 20  # of all chunks of a xorb, unpacked; clients' own limit
MAX_XORB_CHUNKS = 8192  # clients' own limit
MAX_FILE_BYTES = 50_000_000_000  # of one file; huggingface.co advises the same limit
MAX_SHARD_BYTES = 200_000_000_000  # of all files that one shard describes
TOKEN_SECONDS = 3600
MAX_BODY = 65 << 20  # bytes of a request: a full xorb, its chunks' headers and its footer
_RECORD_BYTES = 48  # bytes of every record of a shard
_SHARD_TAG = b"HFRepoMetaData\0"
_SHARD_VERSION = 2
_HAS_VERIFICATION = 1 << 31
_HAS_METADATA = 1 << 30
_END = b"\xff" * 32  # in place of the hash of a file's header: no file follows
_LAST_SCHEME = 2  # chunks: 0 as they are, 1 LZ4, 2 LZ4 of grouped bytes
_BYTE_GROUPING = 2


class Term(NamedTuple):
    """A run of chunks of one xorb, which is a piece of a file.

    ``xorb``: its hash. ``size``: the number of bytes that the chunks unpack to. ``first``, ``end``:
    indices of the chunks from 0, ``end`` exclusive.
    """

    xorb: str
    size: int
    first: int
    end: int


class ShardFile(NamedTuple):
    """A file that a shard describes: its SHA-256 and size, and its pieces in order."""

    blob: Blob
    terms: list[Term]


class Chunk(NamedTuple):
    """A chunk as it lies in its xorb, how it is compressed, and its size when unpacked."""

    packed: memoryview
    scheme: int
    size: int


def create_write_token(call: Call) -> Response:
    """Return the repo's Xet address, created on first use, and a write token for this address.

    Raises the errors of ``Call.get_repo`` for a write.
    """
    repo = call.get_repo(write=True)
    with call.hub.database.begin_write() as db:
        insert = "INSERT OR IGNORE INTO xet_spaces VALUES (?, ?)"
        db.execute(insert, (repo.id, secrets.token_hex(16)))
        row = db.execute("SELECT space FROM xet_spaces WHERE repo = ?", (repo.id,)).fetchone()
    space = row["space"]
    expires = int(time.time()) + TOKEN_SECONDS
    token = call.hub.signer.sign("XET", space, expires)
    url = f"{call.endpoint}/xet/{space}"
    headers = {
        "X-Xet-Access-Token": token,
        "X-Xet-Cas-Url": url,
        "X-Xet-Token-Expiration": str(expires),
    }
    return JSONResponse({"accessToken": token, "casUrl": url, "exp": expires}, headers=headers)


def require_repo(call: Call) -> int:
    """Return the id of the repo that a Xet address belongs to.

    Raises HubError 401 for a token that does not fit or has expired, after which a client asks for
    a new token; 404 when the repo was deleted.
    """
    scheme, _, token = call.headers.get("authorization", "").partition(" ")
    space = call.args["space"]
    if scheme.lower() != "bearer" or not call.hub.signer.verify(token, "XET", space):
        raise HubError(401, "This Xet token does not fit this address, or has expired")
    with call.hub.database.begin_read() as db:
        row = db.execute("SELECT repo FROM xet_spaces WHERE space = ?", (space,)).fetchone()
    if row is None:
        raise HubError(404, "The repo of this Xet address is gone: upload again")
    return row["repo"]


def get_body_limit(call: Call) -> int:
    """Return the limit in bytes of a xorb's or a shard's body.

    It is called before the body is read, so that a call without access is refused early. Raises
    HubError 401 or 404 as ``require_repo``.
    """
    require_repo(call)
    return MAX_BODY


def store_xorb(call: Call) -> dict:
    """Store a xorb without parsing it, under the hash in the address, which is not checked.

    No file depends on this hash, because every file of a shard is checked by its SHA-256. Raises
    HubError 401 or 404 as ``require_repo``.
    """
    repo = require_repo(call)
    with call.hub.blobs.open_staging() as staging:
        blob = staging.take(call.content)
    with call.hub.database.begin_write() as db:
        # Selecting from ``repos`` writes nothing for a repo that was deleted meanwhile.
        query = "REPLACE INTO xorbs SELECT id, ?, ? FROM repos WHERE id = ?"
        db.execute(query, (call.args["hash"], blob.sha256, repo))
    return {"was_inserted": True}


def store_shard(call: Call) -> dict:
    """Build the files that a shard describes from the repo's xorbs, and record their upload.

    Raises HubError: 400 for a malformed shard or xorb, and for a file of another sha256; 413 for
    files that are too large; 401 or 404 as ``require_repo``. Raises OSError for a full disk.
    """
    repo = require_repo(call)
    files = read_shard(call.read_body())
    with call.hub.database.begin_read() as db:
        new_files = [file for file in files if not is_owned(db, repo, *file.blob)]
        _require_room(call, new_files)
        rows = db.execute("SELECT hash, sha256 FROM xorbs WHERE repo = ?", (repo,))
        sha256_by_xorb = {row["hash"]: row["sha256"] for row in rows}

    # Neighbouring terms mostly use one xorb; a second one would take another 65 MiB of memory.
    @lru_cache(maxsize=1)
    def read_chunks(xorb: str) -> list[Chunk]:
        if xorb not in sha256_by_xorb:
            raise HubError(
                400, f"The shard needs the xorb {xorb}, which was not uploaded to this repo"
            )
        stored = call.hub.blobs.get_path(sha256_by_xorb[xorb])
        return read_xorb(stored.read_bytes())

    def iter_content(terms: list[Term]) -> Iterator[bytes]:
        for term in terms:
            yield from unpack(read_chunks(term.xorb), term)

    with call.hub.blobs.open_staging() as staging:
        for file in new_files:
            if staging.add(iter_content(file.terms)) != file.blob:
                raise HubError(400, f"The uploaded content is not {file.blob.sha256}")
    register_uploads(call.hub, repo, {file.blob for file in new_files})
    return {"result": 1}


def _require_room(call: Call, files: list[ShardFile]) -> None:
    """Raise HubError 413 for files that are too large, OSError when the disk lacks the room.

    The shard claims these sizes; ``unpack`` refuses content of another size.
    """
    sizes = [file.blob.size for file in files]
    if max(sizes, default=0) > MAX_FILE_BYTES:
        raise HubError(413, f"A file can have at most {MAX_FILE_BYTES} bytes: split it")
    if sum(sizes) > MAX_SHARD_BYTES:
        raise HubError(
            413, f"The files of one Xet shard can have at most {MAX_SHARD_BYTES} bytes in all"
        )
    call.hub.blobs.require_free_space(sum(sizes))


def read_shard(content: bytes) -> list[ShardFile]:
    """Return the files that a shard describes. Raises HubError 400 for a malformed shard."""
    # A shard begins with a tag of 32 bytes and its version, a 64-bit number.
    if not content.startswith(_SHARD_TAG) or content[32:40] != struct.pack("<Q", _SHARD_VERSION):
        raise HubError(400, f"This is not a Xet shard of version {_SHARD_VERSION}")
    records = (
        content[start : start + _RECORD_BYTES]
        for start in range(_RECORD_BYTES, len(content), _RECORD_BYTES)
    )
    files = []
    try:
        # A file has a header, its terms, one verification record a term, and its sha256.
        while (header := next(records))[:32] != _END:
            flags, count = struct.unpack_from("<2I", header, 32)
            terms = [_parse_term(next(records)) for _ in range(count)]
            if flags & _HAS_VERIFICATION:
                for _ in range(count):
                    next(records)
            if not flags & _HAS_METADATA:
                raise HubError(400, "The shard has a file without its sha256")
            sha256 = _format_hash(next(records))
            size = sum(term.size for term in terms)
            files.append(ShardFile(Blob(sha256, size), terms))
    except (StopIteration, struct.error) as error:
        raise HubError(400, "The Xet shard ends too early") from error
    return files


def _parse_term(record: bytes) -> Term:
    """Parse a record of a term: the xorb's hash (32 bytes), and four 32-bit numbers.

    Raises struct.error for a record that is cut off.
    """
    _flags, size, first, end = struct.unpack_from("<4I", record, 32)
    return Term(_format_hash(record), size, first, end)


def _format_hash(record: bytes) -> str:
    """Return the hash in a record as clients write it in addresses.

    A record starts with four little-endian words of 64 bits, which the address has in hexadecimal.
    Raises struct.error for a record that is cut off.
    """
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", record))


def read_xorb(content: bytes) -> list[Chunk]:
    """Parse a xorb into its chunks, still compressed. The footer is not read.

    Raises HubError 400 for a malformed xorb, and for one beyond ``MAX_XORB_BYTES`` unpacked or
    ``MAX_XORB_CHUNKS``.
    """
    chunks: list[Chunk] = []
    unpacked_bytes = 0
    position = 0
    # A chunk's header has 8 bytes and begins with version 0; the footer begins with a letter.
    while content[position : position + 1] == b"\0":
        # A header that is cut off gets an impossible size, and is refused below.
        header = content[position : position + 8].ljust(8, b"\xff")
        packed_size = int.from_bytes(header[1:4], "little")
        scheme = header[4]
        size = int.from_bytes(header[5:8], "little")
        position += 8 + packed_size
        if position > len(content) or scheme > _LAST_SCHEME or size > MAX_CHUNK_BYTES:
            raise HubError(
                400,
                "The xorb has a chunk that is cut off, too large or compressed in an unknown way",
            )
        unpacked_bytes += size
        if unpacked_bytes > MAX_XORB_BYTES or len(chunks) == MAX_XORB_CHUNKS:
            most = f"{MAX_XORB_CHUNKS} chunks of {MAX_XORB_BYTES} bytes in all, unpacked"
            raise HubError(400, f"The xorb is too large: at most {most}")
        packed = memoryview(content)[position - packed_size : position]
        chunks.append(Chunk(packed, scheme, size))
    return chunks


def unpack(chunks: list[Chunk], term: Term) -> Iterator[bytes]:
    """Yield the decompressed chunks of a term. Raises HubError 400 for malformed chunks.

    The bytes are bounded by ``MAX_CHUNK_BYTES`` for each chunk and by the term's size in all.
    """
    import pyarrow as pa

    lz4 = pa.Codec("lz4")
    run = chunks[term.first : term.end]
    if sum(chunk.size for chunk in run) != term.size:
        raise HubError(400, "The shard and its xorb do not agree about sizes")
    for chunk in run:
        try:
            if chunk.scheme == 0:
                content = bytes(chunk.packed)
            else:
                content = lz4.decompress(chunk.packed, decompressed_size=chunk.size, asbytes=True)
        except (OSError, pa.ArrowException) as error:
            raise HubError(400, "The xorb has a chunk that cannot be unpacked") from error
        if len(content) != chunk.size:
            raise HubError(400, "The xorb has a chunk that unpacks to another size")
        if chunk.scheme == _BYTE_GROUPING:
            content = _join_byte_groups(content)
        yield content


def _join_byte_groups(content: bytes) -> bytes:
    """Undo byte grouping, which puts the bytes 0, 4, 8 … first, then 1, 5, 9 …, and so on."""
    joined = bytearray(len(content))
    start = 0
    for offset in range(4):
        end = start + len(joined[offset::4])
        joined[offset::4] = content[start:end]
        start = end
    return bytes(joined)
