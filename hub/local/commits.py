"""Commits: reading a request, staging its contents on disk, then moving the branch in one transaction."""

import base64
import binascii
import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hub.local.blobs import Blob, Staging
from hub.local.call import json_object
from hub.local.names import check_path, check_sha256
from hub.local.refs import Commit, create_ref, get_commit, list_refs, ref_target, resolve
from hub.local.replies import HubError, revision_not_found
from hub.local.repos import Repo
from hub.local.trees import TreeEdit, commit_id, is_lfs_pointer, lfs_pointer, object_id

MAX_OPERATIONS, MAX_BODY, MAX_REGULAR = 25_000, 256 << 20, 10_000_000
_MAX_LINE = MAX_REGULAR * 4 // 3 + (1 << 16)
_MOVED = "The branch was updated since you opened this page. Please refresh and try again."


class Operation(NamedTuple):
    """One line of a commit request; ``blob`` is a staged regular file, ``lfs`` an uploaded large one (sha256, size)."""

    path: str
    removes: str = ""
    blob: tuple[str, Blob] | None = None
    lfs: tuple[str, int | None] | None = None


@dataclass
class CommitRequest:
    """What a client asks for. ``digest`` tells a request sent twice from two alike."""

    title: str = ""
    message: str = ""
    parent: str = ""
    digest: str = ""
    operations: list[Operation] = field(default_factory=list)


def read_request(chunks: Iterable[bytes], staging: Staging) -> CommitRequest:
    """Parse an NDJSON commit while it arrives; its regular files go to ``staging``."""
    request, digest = CommitRequest(), hashlib.sha256()
    for line in filter(None, _lines(chunks)):
        digest.update(line + b"\n")
        item = json_object(line)
        key, value = item.get("key"), item.get("value")
        if not isinstance(value, dict):
            raise HubError(400, "Each line of a commit needs a key and a value")
        if key == "header":
            request.title, request.message = str(value.get("summary") or ""), str(value.get("description") or "")
            request.parent = str(value.get("parentCommit") or "").lower()
        else:
            request.operations.append(_operation(str(key), value, staging))
        if len(request.operations) > MAX_OPERATIONS:
            raise HubError(413, f"A commit can have {MAX_OPERATIONS} operations: split it")
    if not request.title:
        raise HubError(400, "The commit has no summary")
    request.digest = digest.hexdigest()
    return request


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            yield bytes(pending + piece)
            pending.clear()
        pending += rest
        if len(pending) > _MAX_LINE:
            raise HubError(400, f"Regular files are limited to {MAX_REGULAR} bytes: upload this one with LFS")
    if pending:
        yield bytes(pending)


def _operation(key: str, value: dict, staging: Staging) -> Operation:
    if key == "deletedFolder":
        return Operation(check_path(str(value.get("path", "")).rstrip("/")), removes="folder")
    path = check_path(value.get("path"))
    if key == "deletedFile":
        return Operation(path, removes="file")
    if key == "lfsFile":
        size = value.get("size")
        return Operation(path, lfs=(check_sha256(value.get("oid")), size if isinstance(size, int) else None))
    if key != "file":
        raise HubError(400, f"Unknown operation in commit: {key!r}")
    return Operation(path, blob=stage_regular(_content(value, path), path, staging))


def _content(value: dict, path: str) -> bytes:
    content = value.get("content")
    if not isinstance(content, str):
        raise HubError(400, f"{path}: the file has no content")
    if value.get("encoding") != "base64":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise HubError(400, f"{path}: the content is not valid base64") from error


def stage_regular(content: bytes, path: str, staging: Staging) -> tuple[str, Blob]:
    """Stage a regular file; returns its git id and address."""
    if len(content) > MAX_REGULAR:
        raise HubError(400, f"{path}: regular files are limited to {MAX_REGULAR} bytes: upload this one with LFS")
    if is_lfs_pointer(content):
        raise HubError(400, f"{path}: this is an LFS pointer; upload the large file itself")
    return object_id("blob", content), staging.add([content])


def apply(db: sqlite3.Connection, repo: Repo, branch: str, author: str, request: CommitRequest) -> str:
    """Move ``branch`` to a new commit and return its id; 412 when it is no longer at the parent asked for."""
    ref, commit = branch_head(db, repo, branch)
    head = commit.oid
    query = "SELECT oid FROM receipts WHERE repo = ? AND ref = ? AND digest = ?"
    answered = db.execute(query, (repo.id, ref, request.digest)).fetchone()
    # The same bytes with a parent can only be the same request; without one, only while nothing came after it.
    if answered and (request.parent or answered["oid"] == head):
        return answered["oid"]
    if request.parent and not (len(request.parent) >= 5 and head.startswith(request.parent)):
        raise HubError(412, _MOVED)
    edit = TreeEdit(db, commit.tree)
    for operation in request.operations:
        _apply_operation(db, repo, edit, operation)
    oid = write_commit(db, repo, ref, edit.save(), head, author, request.title, request.message)
    upsert = "INSERT INTO receipts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid"
    db.execute(upsert, (repo.id, ref, request.digest, oid))
    return oid


def branch_head(db: sqlite3.Connection, repo: Repo, branch: str) -> tuple[str, Commit]:
    """The full name of a branch and its newest commit; 404 when it is missing, 400 for a tag or a commit."""
    ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
    head = ref_target(db, repo.id, ref) if not ref.startswith("refs/tags/") else None
    if head is None:
        resolve(db, repo.id, branch)
        raise HubError(400, f"{branch} is not a branch: commits go to branches only")
    return ref, get_commit(db, repo.id, head)


def open_change(db: sqlite3.Connection, repo: int, branch: str) -> int:
    """Start ``refs/pr/<number>`` at a branch: what ``create_pr`` asks for, without a discussion and a merge."""
    head = ref_target(db, repo, f"refs/heads/{branch}")
    if head is None:
        raise revision_not_found(branch)
    refs = [ref for ref, _ in list_refs(db, repo) if ref.startswith("refs/pr/")]
    number = 1 + max((int(ref.rpartition("/")[2]) for ref in refs), default=0)
    create_ref(db, repo, f"refs/pr/{number}", head)
    return number


def _apply_operation(db: sqlite3.Connection, repo: Repo, edit: TreeEdit, operation: Operation) -> None:
    if operation.removes:
        edit.remove(operation.path, operation.removes)
    elif operation.lfs:
        blob = _owned_blob(db, repo, operation.path, *operation.lfs)
        oid = object_id("blob", lfs_pointer(blob.sha256, blob.size))
        _put_file(db, edit, operation.path, oid, blob, lfs=True)
    elif operation.blob:
        _put_file(db, edit, operation.path, *operation.blob, lfs=False)


def _owned_blob(db: sqlite3.Connection, repo: Repo, path: str, sha256: str, size: int | None) -> Blob:
    """A large file that was uploaded to this very repo, else 400: knowing a sha256 must not give its content."""
    query = "SELECT size FROM lfs_objects WHERE repo = ? AND sha256 = ?"
    row = db.execute(query, (repo.id, sha256)).fetchone()
    if row is None or size not in (None, row["size"]):
        raise HubError(400, f"{path}: the LFS object {sha256} was not uploaded to this repo")
    return Blob(sha256, row["size"])


def first_commit(db: sqlite3.Connection, repo: Repo, author: str, path: str, oid: str, blob: Blob) -> None:
    """Start ``main`` with a single regular file."""
    edit = TreeEdit(db, None)
    _put_file(db, edit, path, oid, blob, lfs=False)
    write_commit(db, repo, "refs/heads/main", edit.save(), None, author, "initial commit", "")


def _put_file(db: sqlite3.Connection, edit: TreeEdit, path: str, oid: str, blob: Blob, *, lfs: bool) -> None:
    db.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?)", (oid, blob.sha256, blob.size, int(lfs)))
    edit.put(path, oid)


def write_commit(
    db: sqlite3.Connection, repo: Repo, ref: str, tree: str, parent: str | None, author: str, title: str, message: str
) -> str:
    """Record a commit and point ``ref`` at it."""
    now = int(time.time())
    full_message = f"{title}\n\n{message}" if message else title
    oid = commit_id(tree, parent, author, now, full_message)
    values = (repo.id, oid, tree, parent, author, now, title, message)
    db.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    move = "INSERT INTO refs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid"
    db.execute(move, (repo.id, ref, oid))
    return oid
