"""Xet downloads: reconstructions and xorbs for ``hf_xet``, made from the stored file while it is read.

A Xet server tells a client of which chunks of which *xorbs* a file consists, and where to fetch their bytes
(https://huggingface.co/docs/xet/download-protocol). It may lay a file out as it likes. Here each file has xorbs of its
own, whose chunks are the plain bytes, uncompressed: so all large files can be read this way, however they were uploaded
and whatever ``gc`` has removed of what clients sent, and an address opens no bytes but those of its file.
"""

import re
import time
from typing import NamedTuple

from starlette.responses import Response

from hub_server.handlers.lfs import check_signature
from hub_server.handlers.xet import MAX_CHUNK, TOKEN_SECONDS, authorised, issue_token, repo_of
from hub_server.http.call import Call
from hub_server.storage.refusals import HubError
from hub_server.storage.repos import resolve
from hub_server.storage.trees import is_committed

_HEADER, _CHUNKS = 8, 64  # bytes before each chunk; chunks of a xorb: 8 MiB, which one answer holds in memory
_XORB, _PLACE = _CHUNKS * MAX_CHUNK, _HEADER + MAX_CHUNK


class ChunkRange(NamedTuple):
    """A run of chunks [first, last) of the file's xorb with this number, and the bytes they unpack to."""

    xorb: int
    first: int
    last: int
    size: int

    @property
    def chunks(self) -> dict[str, int]:
        """The run as clients write it."""
        return {"start": self.first, "end": self.last}

    @property
    def place(self) -> dict[str, int]:
        """The first and the last byte of the run in its xorb."""
        start = self.first * _PLACE
        return {"start": start, "end": start + self.size + _HEADER * (self.last - self.first) - 1}


def read_token(call: Call) -> Response:
    """The address of the repo's Xet server and a token that allows reading."""
    repo = call.readable()
    with call.hub.database.reading() as db:
        resolve(db, repo.id, call.args["revision"])
    return issue_token(call, repo, "XET-READ")


def reconstruction(call: Call) -> dict:
    """The terms of a file, or of the range of it that is asked for, and where to fetch their bytes."""
    repo = authorised(call, "XET", "XET-READ")
    with call.hub.database.reading() as db:
        query = "SELECT sha256, size FROM lfs_objects JOIN xet_hashes USING (sha256) WHERE repo = ? AND hash = ?"
        file = db.execute(query, (repo, call.args["hash"])).fetchone()
        found = file is not None and is_committed(db, repo, file["sha256"], file["size"])
    if not found:
        raise HubError(404, f"This repo has no file with the Xet hash {call.args['hash']}")
    first, last = asked_range(call, file["size"])
    terms, places, newer = [], {}, call.args["version"] == "2"
    for run in layout(file["size"], first, last):
        name = f"{file['sha256'][:48]}{run.xorb:016x}"
        terms.append({"hash": name, "unpacked_length": run.size, "range": run.chunks})
        ranges = {"chunks": run.chunks, "bytes": run.place}, {"range": run.chunks, "url_range": run.place}
        url = {"url": _address(call, file["sha256"], run.xorb)}
        places[name] = [url | ({"ranges": [ranges[0]]} if newer else ranges[1])]
    return {
        "offset_into_first_range": first % MAX_CHUNK,
        "terms": terms,
        "xorbs" if newer else "fetch_info": places,
    }


def asked_range(call: Call, size: int) -> tuple[int, int]:
    """The first and the last byte that a ``Range`` header asks for, else all; 416 when they are not in ``size``."""
    asked = re.fullmatch(r"bytes=(\d{1,18})-(\d{0,18})", call.headers.get("range", "bytes=0-"), re.ASCII)
    first, last = (int(asked[1]), min(int(asked[2] or size), size - 1)) if asked else (size, 0)
    if first > last:
        raise HubError(416, f"This has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return first, last


def layout(size: int, first: int, last: int) -> list[ChunkRange]:
    """The chunks of a file of ``size`` bytes that hold its bytes from ``first`` to ``last``, xorb by xorb."""
    runs = []
    for number in range(first // _XORB, last // _XORB + 1):
        start = number * _XORB
        begin = max(first - start, 0) // MAX_CHUNK
        end = min(last - start, _XORB - 1) // MAX_CHUNK + 1
        stop = min(start + end * MAX_CHUNK, size)
        runs.append(ChunkRange(number, begin, end, stop - start - begin * MAX_CHUNK))
    return runs


def _address(call: Call, sha256: str, xorb: int) -> str:
    path = f"/xet/{call.args['space']}/v1/xorbs/{sha256}/{xorb}"
    return f"{call.endpoint}{path}?signature={call.hub.signer.sign('GET', path, int(time.time()) + TOKEN_SECONDS)}"


def xorb(call: Call) -> Response:
    """The bytes of a file's xorb, or a range of them; the address is the permission."""
    check_signature(call)
    start, repo = int(call.args["number"]) * _XORB, repo_of(call)
    with call.hub.database.reading() as db:
        query = "SELECT size FROM lfs_objects WHERE repo = ? AND sha256 = ?"
        file = db.execute(query, (repo, call.args["sha256"])).fetchone()
    if file is None or start >= file["size"]:
        raise HubError(404, "The file of this address is gone")
    held = min(file["size"] - start, _XORB)
    length = held + _HEADER * -(-held // MAX_CHUNK)
    first, last = asked_range(call, length)
    begin, end = first // _PLACE, last // _PLACE + 1
    with call.hub.blobs.path(call.args["sha256"]).open("rb") as stored:
        stored.seek(start + begin * MAX_CHUNK)
        chunks = (stored.read(MAX_CHUNK) for _ in range(begin, end))
        content = b"".join(_header(chunk) + chunk for chunk in chunks)
    content = content[first - begin * _PLACE : last + 1 - begin * _PLACE]
    headers = {"Content-Range": f"bytes {first}-{last}/{length}", "Cache-Control": "no-transform"}
    return Response(content, 206, headers, "application/octet-stream")


def _header(chunk: bytes) -> bytes:
    """Header of an uncompressed chunk: version 0, packed size, no compression, size."""
    size = len(chunk).to_bytes(3, "little")
    return b"\0" + size + b"\0" + size
