"""Large files: the LFS batch call, and signed uploads in one piece or in parts.

An upload address is a signed path: it names the repo, the file's SHA-256 and size, the size of a
part, the upload and the part. The signature covers the method and the path, and expires.
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

_MAX_PARTS = 1000  # of one file
_MAX_PARTS_IN_ALL = 10_000  # of one batch; a part's address has some 260 bytes
_MAX_OBJECT_BYTES = 1 << 44  # 16 TiB
_MAX_OBJECTS = 1000  # of one batch
VALID_SECONDS = 6 * 3600  # of an upload address


class LargeObject(BaseModel):
    """A large file: its SHA-256 and its bytes."""

    oid: Sha256
    size: Annotated[int, Field(ge=0, le=_MAX_OBJECT_BYTES)]


class Batch(BaseModel):
    """A request of the LFS batch API: the large files to upload, and the client's protocols."""

    operation: Literal["upload"]
    hash_algo: Literal["sha256"] = "sha256"
    transfers: list[str] = []
    objects: Annotated[list[LargeObject], Field(max_length=_MAX_OBJECTS)]


def plan_transfers(call: Call) -> dict:
    """Answer an LFS batch: signed upload URLs for each large file that the repo lacks.

    A file above the Hub's ``part_bytes`` is uploaded in parts, if the client can (``multipart``).
    Raises the errors of ``Call.get_repo`` for a write, and ValidationError for a bad body.
    """
    repo = call.get_repo(write=True)
    request = call.parse_body(Batch)
    # Larger files get larger parts, so that neither a file nor the batch has too many parts.
    total_bytes = sum(large.size for large in request.objects)
    least_part_bytes = max(call.hub.part_bytes, _compute_ceiling(total_bytes, _MAX_PARTS_IN_ALL))
    transfer = "basic"
    answers = []
    with call.hub.database.begin_read() as db:
        for large in request.objects:
            answer: dict = large.model_dump()
            if not is_owned(db, repo.id, large.oid, large.size):
                part_bytes = max(least_part_bytes, _compute_ceiling(large.size, _MAX_PARTS))
                if part_bytes >= large.size or "multipart" not in request.transfers:
                    part_bytes = large.size  # one piece
                else:
                    transfer = "multipart"
                action = _make_upload_action(call, repo.id, large, part_bytes)
                answer["actions"] = {"upload": action}
            answers.append(answer)
    return {"transfer": transfer, "objects": answers, "hash_algo": "sha256"}


def _make_upload_action(call: Call, repo: int, large: LargeObject, part_bytes: int) -> dict:
    """Return the LFS upload action of an object: signed addresses of one piece or of all parts.

    For parts, ``href`` is the address that completes the upload, and ``header`` has an address for
    each part, by its number in five digits. ``part_bytes``: the file's size for one piece.
    """
    base = f"/lfs-upload/{repo}/{large.oid}/{large.size}/{part_bytes}/{uuid.uuid4().hex}"
    expires = int(time.time()) + VALID_SECONDS

    def sign_url(method: str, path: str) -> str:
        return f"{call.endpoint}{path}?signature={call.hub.signer.sign(method, path, expires)}"

    if part_bytes == large.size:
        return {"href": sign_url("PUT", f"{base}/1")}
    numbers = range(1, _compute_ceiling(large.size, part_bytes) + 1)
    parts = {f"{number:05d}": sign_url("PUT", f"{base}/{number}") for number in numbers}
    return {"href": sign_url("POST", base), "header": {"chunk_size": str(part_bytes), **parts}}


def _compute_ceiling(number: int, divisor: int) -> int:
    """Return ``number`` (0 or more) / ``divisor`` (1 or more), rounded up; exact for any size."""
    return (number + divisor - 1) // divisor


def is_owned(db: sqlite3.Connection, repo: int, oid: str, size: int) -> bool:
    """Return whether a large file was uploaded to a repo.

    ``repo``: the repo's id. ``oid``, ``size``: the file's SHA-256 and its size in bytes.
    """
    query = "SELECT 1 FROM lfs_objects WHERE repo = ? AND sha256 = ? AND size = ?"
    return db.execute(query, (repo, oid, size)).fetchone() is not None


def register_uploads(hub: Hub, repo: int, blobs: Collection[Blob]) -> None:
    """Record stored files as uploaded to a repo; do nothing if the repo was deleted.

    ``repo``: the repo's id.
    """
    with hub.database.begin_write() as db:
        for blob in blobs:
            query = "INSERT OR IGNORE INTO lfs_objects SELECT id, ?, ? FROM repos WHERE id = ?"
            db.execute(query, (blob.sha256, blob.size, repo))


def get_upload_body_limit(call: Call) -> int:
    """Return the length in bytes of the file or the part that an upload address names.

    Raises HubError 403 for a bad signature, 400 for another Content-Length.
    """
    check_signature(call)
    size = int(call.args["size"])
    part_bytes = int(call.args["part_bytes"])
    number = int(call.args["number"])  # from 1
    length = min(part_bytes, size - (number - 1) * part_bytes)  # the last part may be shorter
    if call.headers.get("content-length", str(length)) != str(length):
        raise _make_length_error(length)
    return length


def store_upload(call: Call) -> Response:
    """Store a large file and record its upload, or store one part of a large file.

    ``get_upload_body_limit`` has checked the signature. Raises HubError 400 for another length, and
    for a whole file with another SHA-256; ``finish_upload`` checks the parts.
    """
    if call.content.size != call.body_limit:
        raise _make_length_error(call.body_limit)
    if call.args["part_bytes"] == call.args["size"]:
        _store_object(call, lambda staging: staging.take(call.content))
        return Response()
    number = int(call.args["number"])
    blob = call.hub.blobs.add_part(call.args["upload"], number, call.content)
    return Response(headers={"ETag": f'"{blob.sha256}"'})


def finish_upload(call: Call) -> dict:
    """Join the parts of a multipart upload.

    The request's body is ignored: the signed address holds the number of parts. Raises HubError 403
    for a bad signature, 400 for a missing part or content that does not match the address.
    """
    check_signature(call)
    parts = _compute_ceiling(int(call.args["size"]), int(call.args["part_bytes"]))
    upload = call.args["upload"]
    # A client sends this request again after a lost answer. The parts may be gone by then, or may
    # go while this request joins them.
    if not _is_finished(call):
        chunks = call.hub.blobs.iter_part_chunks(upload, parts)
        try:
            _store_object(call, lambda staging: staging.add(chunks))
        except FileNotFoundError as error:
            if not _is_finished(call):
                raise HubError(400, "Some parts of this upload are missing") from error
    call.hub.blobs.drop_parts(upload)
    return {"success": True}


def _is_finished(call: Call) -> bool:
    """Return whether the repo has the file that the upload address names."""
    with call.hub.database.begin_read() as db:
        return is_owned(db, int(call.args["repo"]), call.args["oid"], int(call.args["size"]))


def check_signature(call: Call) -> None:
    """Raise HubError 403 unless the address has this Hub's signature for the method and path.

    A signature that has expired does not count.
    """
    signature = call.query.get("signature", "")
    if not call.hub.signer.verify(signature, call.method, call.path):
        raise HubError(
            403, "The signature does not fit this upload address, or has expired: ask for a new one"
        )


def _make_length_error(length: int) -> HubError:
    return HubError(400, f"This upload must have exactly {length} bytes")


def _store_object(call: Call, add: Callable[[Staging], Blob]) -> None:
    """Store the file of an upload address, and record the upload.

    add: stages the content and returns its hash and size; its errors pass. Raises HubError 400 when
    hash or size differ from the address.
    """
    announced = Blob(call.args["oid"], int(call.args["size"]))
    with call.hub.blobs.open_staging() as staging:
        if add(staging) != announced:
            raise HubError(400, f"The uploaded content is not {announced.sha256}")
    register_uploads(call.hub, int(call.args["repo"]), [announced])
