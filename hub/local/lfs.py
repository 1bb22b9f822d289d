"""Large files: the LFS batch call, signed uploads in one piece or in parts, and their verification.

An upload address is a path that says everything (repo, sha256, size, part size, upload, part) plus a signature over it.
"""

import sqlite3
import uuid
from collections.abc import Iterator

from starlette.responses import Response

from hub.local.blobs import Blob
from hub.local.call import Call
from hub.local.names import check_sha256
from hub.local.replies import HubError, json_reply

_MAX_OBJECTS, _MAX_PARTS, _MAX_SIZE = 1000, 1000, 1 << 44


def batch(call: Call) -> Response:
    """Say for each large file whether and where to upload it."""
    repo = call.repo(write=True)
    asked = call.json()
    objects = asked.get("objects")
    if asked.get("operation") != "upload" or asked.get("hash_algo", "sha256") != "sha256":
        raise HubError(422, "Only operation 'upload' with hash_algo 'sha256' is served here")
    if not isinstance(objects, list) or len(objects) > _MAX_OBJECTS:
        raise HubError(422, f"objects must be a list of at most {_MAX_OBJECTS}")
    transfers = asked.get("transfers")
    in_parts = isinstance(transfers, list) and "multipart" in transfers
    with call.hub.database.reading() as db:
        answers = [_answer(call, db, repo.id, repo.url_path, item, in_parts) for item in objects]
    multipart = any("chunk_size" in a.get("actions", {}).get("upload", {}).get("header", {}) for a in answers)
    return json_reply({"transfer": "multipart" if multipart else "basic", "objects": answers, "hash_algo": "sha256"})


def _answer(call: Call, db: sqlite3.Connection, repo: int, url_path: str, item: object, in_parts: bool) -> dict:
    if not isinstance(item, dict):
        raise HubError(422, "Each object needs an oid and a size")
    oid, size = check_sha256(item.get("oid")), _check_size(item.get("size"))
    if is_owned(db, repo, oid, size):
        return {"oid": oid, "size": size}
    part = max(call.hub.part_bytes, -(-size // _MAX_PARTS))
    part = part if in_parts and part < size else size
    base = f"/lfs-upload/{repo}/{oid}/{size}/{part}/{uuid.uuid4().hex}"
    verify = {"href": f"{call.endpoint}/{url_path}.git/info/lfs/objects/verify"}
    return {"oid": oid, "size": size, "actions": {"upload": _upload_action(call, base, size, part), "verify": verify}}


def _check_size(size: object) -> int:
    if not isinstance(size, int) or not 0 <= size <= _MAX_SIZE:
        raise HubError(422, f"The size must be a number of bytes, at most {_MAX_SIZE}")
    return size


def _upload_action(call: Call, base: str, size: int, part: int) -> dict:
    signed = call.hub.signer.sign
    if part == size:
        return {"href": call.endpoint + signed("PUT", f"{base}/1")}
    numbers = range(1, -(-size // part) + 1)
    header = {f"{number:05d}": call.endpoint + signed("PUT", f"{base}/{number}") for number in numbers}
    return {"href": call.endpoint + signed("POST", base), "header": {"chunk_size": str(part), **header}}


def is_owned(db: sqlite3.Connection, repo: int, oid: str, size: int) -> bool:
    """Whether this large file was uploaded to this repo."""
    query = "SELECT 1 FROM lfs_objects WHERE repo = ? AND sha256 = ? AND size = ?"
    return db.execute(query, (repo, oid, size)).fetchone() is not None


def put(call: Call) -> Response:
    """Receive a whole large file, or one part of it."""
    _check_signature(call)
    size, part, number = (int(call.args[name]) for name in ("size", "part_bytes", "number"))
    if part == size:
        blob = _store(call, _exactly(call, size))
    else:
        length = min(part, size - (number - 1) * part)
        blob = call.hub.blobs.add_part(call.args["upload"], number, _exactly(call, length))
    return Response(status_code=200, headers={"ETag": f'"{blob.sha256}"'})


def complete(call: Call) -> Response:
    """Join the parts of a large file."""
    _check_signature(call)
    size, part, upload = int(call.args["size"]), int(call.args["part_bytes"]), call.args["upload"]
    call.body()
    with call.hub.database.reading() as db:
        done = is_owned(db, int(call.args["repo"]), call.args["oid"], size)
    if not done:  # else this completion is sent again after a lost answer
        try:
            _store(call, call.hub.blobs.part_chunks(upload, -(-size // part)))
        except FileNotFoundError as error:
            raise HubError(400, "Some parts of this upload are missing") from error
    call.hub.blobs.drop_parts(upload)
    return json_reply({"success": True})


def verify(call: Call) -> Response:
    """Confirm that a large file has arrived."""
    repo = call.repo(write=True)
    asked = call.json()
    with call.hub.database.reading() as db:
        if not is_owned(db, repo.id, check_sha256(asked.get("oid")), _check_size(asked.get("size"))):
            raise HubError(404, "This LFS object was not uploaded to this repo")
    return json_reply({})


def _check_signature(call: Call) -> None:
    call.hub.signer.check(call.method, call.path, call.query.get("expires", ""), call.query.get("signature", ""))


def _exactly(call: Call, length: int) -> Iterator[bytes]:
    """The body, refused as soon as it cannot have the signed length."""
    problem = HubError(400, f"This upload must have exactly {length} bytes")
    if call.headers.get("content-length", str(length)) != str(length):
        raise problem
    received = 0
    for chunk in call.chunks:
        received += len(chunk)
        if received > length:
            raise problem
        yield chunk
    if received != length:
        raise problem


def _store(call: Call, chunks: Iterator[bytes]) -> Blob:
    """Keep a large file and note that this repo has it; 400 when the bytes are not those announced."""
    oid = call.args["oid"]
    with call.hub.blobs.staging() as staging:
        blob = staging.add(chunks)
        if blob != Blob(oid, int(call.args["size"])):
            raise HubError(400, f"The uploaded content is not {oid}")
        staging.settle()
    with call.hub.database.writing() as db:
        note_owner(db, int(call.args["repo"]), blob)
    return blob


def note_owner(db: sqlite3.Connection, repo: int, blob: Blob) -> None:
    """Remember that a large file was uploaded to a repo, unless that was deleted since the upload was allowed."""
    query = "INSERT OR IGNORE INTO lfs_objects SELECT id, ?, ? FROM repos WHERE id = ?"
    db.execute(query, (blob.sha256, blob.size, repo))
