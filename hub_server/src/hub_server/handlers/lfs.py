"""Large files: the LFS batch call, and signed uploads in one piece or in parts.

An upload address is a path that says everything (repo, sha256, size, part size, upload, part) plus a signature over it.
"""

import sqlite3
import time
import uuid
from collections.abc import Callable, Collection
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from hub_server.handlers.call import Call, Hub
from hub_server.storage.blobs import Blob, Staging
from hub_server.storage.errors import HubError
from hub_server.storage.rules import Sha256

_MAX_PARTS, _MAX_PARTS_IN_ALL, VALID_SECONDS = 1000, 10_000, 6 * 3600  # a part's address has some 260 bytes


class LargeObject(BaseModel):
    """A large file by its content."""

    oid: Sha256
    size: Annotated[int, Field(ge=0, le=1 << 44)]


class Batch(BaseModel):
    """Which large files a client wants to upload, and how it can."""

    operation: Literal["upload"]
    hash_algo: Literal["sha256"] = "sha256"
    transfers: list[str] = []
    objects: Annotated[list[LargeObject], Field(max_length=1000)]


def batch(call: Call) -> dict:
    """LFS batch: signed upload URLs for each large file that the repo does not have."""
    repo, asked = call.repo(write=True), call.read(Batch)
    in_parts, answers = False, []
    least = max(call.hub.part_bytes, -(-sum(wanted.size for wanted in asked.objects) // _MAX_PARTS_IN_ALL))
    with call.hub.database.reading() as db:
        for wanted in asked.objects:
            answer: dict = wanted.model_dump()
            if not is_owned(db, repo.id, wanted.oid, wanted.size):
                part = max(least, -(-wanted.size // _MAX_PARTS))
                whole = part >= wanted.size or "multipart" not in asked.transfers
                in_parts = in_parts or not whole
                answer["actions"] = {"upload": _upload(call, repo.id, wanted, wanted.size if whole else part)}
            answers.append(answer)
    return {"transfer": "multipart" if in_parts else "basic", "objects": answers, "hash_algo": "sha256"}


def _upload(call: Call, repo: int, wanted: LargeObject, part: int) -> dict:
    """The LFS upload action of an object in parts of ``part`` bytes."""
    base = f"/lfs-upload/{repo}/{wanted.oid}/{wanted.size}/{part}/{uuid.uuid4().hex}"
    expires = int(time.time()) + VALID_SECONDS

    def signed(method: str, path: str) -> str:
        return f"{call.endpoint}{path}?signature={call.hub.signer.sign(method, path, expires)}"

    if part == wanted.size:
        return {"href": signed("PUT", f"{base}/1")}
    numbers = range(1, -(-wanted.size // part) + 1)
    parts = {f"{number:05d}": signed("PUT", f"{base}/{number}") for number in numbers}
    return {"href": signed("POST", base), "header": {"chunk_size": str(part), **parts}}


def is_owned(db: sqlite3.Connection, repo: int, oid: str, size: int) -> bool:
    """Whether this LFS object was uploaded to this repo."""
    query = "SELECT 1 FROM lfs_objects WHERE repo = ? AND sha256 = ? AND size = ?"
    return db.execute(query, (repo, oid, size)).fetchone() is not None


def record_uploads(hub: Hub, repo: int, blobs: Collection[Blob]) -> None:
    """Record stored files as uploaded to a repo, unless it was deleted since."""
    with hub.database.writing() as db:
        for blob in blobs:
            query = "INSERT OR IGNORE INTO lfs_objects SELECT id, ?, ? FROM repos WHERE id = ?"
            db.execute(query, (blob.sha256, blob.size, repo))


def body_limit_of_upload(call: Call) -> int:
    """Body limit of an upload: the signed length of the file or part; 400 for another Content-Length."""
    check_signature(call)
    size, part, number = (int(call.args[name]) for name in ("size", "part_bytes", "number"))
    length = min(part, size - (number - 1) * part)
    if call.headers.get("content-length", str(length)) != str(length):
        raise _not_of(length)
    return length


def put(call: Call) -> Response:
    """Store a large file, or one part of it."""
    length = body_limit_of_upload(call)
    if call.content.size != length:
        raise _not_of(length)
    if call.args["part_bytes"] == call.args["size"]:
        _store(call, lambda staging: staging.take(call.content))
        return Response()
    blob = call.hub.blobs.add_part(call.args["upload"], int(call.args["number"]), call.content)
    return Response(headers={"ETag": f'"{blob.sha256}"'})


def complete(call: Call) -> dict:
    """Complete a multipart upload; its body lists the parts, which the signed URL tells already."""
    check_signature(call)
    size, part, upload = int(call.args["size"]), int(call.args["part_bytes"]), call.args["upload"]
    with call.hub.database.reading() as db:
        done = is_owned(db, int(call.args["repo"]), call.args["oid"], size)
    if not done:  # else this completion is sent again after a lost answer
        try:
            _store(call, lambda staging: staging.add(call.hub.blobs.part_chunks(upload, -(-size // part))))
        except FileNotFoundError as error:
            raise HubError(400, "Some parts of this upload are missing") from error
    call.hub.blobs.drop_parts(upload)
    return {"success": True}


def check_signature(call: Call) -> None:
    """403 unless the address was signed here for this method, and not too long ago."""
    if not call.hub.signer.accepts(call.query.get("signature", ""), call.method, call.path):
        raise HubError(403, "The signature does not fit this upload address, or has expired: ask for a new one")


def _not_of(length: int) -> HubError:
    return HubError(400, f"This upload must have exactly {length} bytes")


def _store(call: Call, add: Callable[[Staging], Blob]) -> None:
    """Store the file of an upload address and record it; 400 for other bytes than announced."""
    announced = Blob(call.args["oid"], int(call.args["size"]))
    with call.hub.blobs.staging() as staging:
        if add(staging) != announced:
            raise HubError(400, f"The uploaded content is not {announced.sha256}")
    record_uploads(call.hub, int(call.args["repo"]), [announced])
