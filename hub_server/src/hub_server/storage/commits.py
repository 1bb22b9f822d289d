"""Commits: reading a request, staging its contents on disk, then moving the branch in one transaction."""

import base64
import binascii
import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, Field

from hub_server.storage.blobs import Staging
from hub_server.storage.credentials import Actor
from hub_server.storage.errors import HubError
from hub_server.storage.repos import Commit, Repo, get_commit, ref_target, resolve
from hub_server.storage.rules import Message, RepoPath, Sha256, check_path
from hub_server.storage.trees import File, TreeEdit, commit_id, is_lfs_pointer, lfs_pointer, object_id

MAX_OPERATIONS, MAX_BODY, MAX_REGULAR = 25_000, 256 << 20, 10_000_000
_MAX_LINE = MAX_REGULAR * 4 // 3 + (1 << 16)
_TOO_LARGE = f"Regular files are limited to {MAX_REGULAR} bytes: upload this one with LFS"
_MOVED = "The branch was updated since you opened this page. Please refresh and try again."


class Header(BaseModel):
    """What a commit says of itself, and the commit it was planned on."""

    summary: Annotated[Message, Field(min_length=1)]
    description: Message = ""
    parentCommit: str | None = None


class RegularFile(BaseModel):
    """A small file, sent with the commit."""

    path: RepoPath
    content: str
    encoding: str = "utf-8"


class LargeFile(BaseModel):
    """A large file, uploaded before. Copies within a repo come without a size."""

    path: RepoPath
    oid: Sha256
    size: int | None = None


class Deletion(BaseModel):
    """A file or folder that goes; a folder's path may end in a slash."""

    path: Annotated[str, AfterValidator(lambda path: check_path(path.rstrip("/")))]


_VALUES: dict[str, type[Header | RegularFile | LargeFile | Deletion]] = {
    "header": Header,
    "file": RegularFile,
    "lfsFile": LargeFile,
    "deletedFile": Deletion,
    "deletedFolder": Deletion,
}


class _Line(BaseModel):
    key: Literal["header", "file", "lfsFile", "deletedFile", "deletedFolder"]
    value: dict


class CommitRequest(NamedTuple):
    """A parsed commit request: paths with a staged file, an uploaded one, or None to delete.

    ``digest`` tells a request sent twice from two alike.
    """

    header: Header
    operations: list[tuple[str, File | LargeFile | None]]
    digest: str


def read_request(chunks: Iterable[bytes], staging: Staging) -> CommitRequest:
    """Parse an NDJSON commit while it arrives; its regular files go to ``staging``."""
    header: Header | None = None
    operations, digest = list[tuple[str, File | LargeFile | None]](), hashlib.sha256()
    for text in filter(None, _lines(chunks)):
        digest.update(text + b"\n")
        line = _Line.model_validate_json(text)
        match _VALUES[line.key].model_validate(line.value):
            case Header() as value:
                header = value
            case RegularFile(path=path) as file:
                operations.append((path, stage_regular(_content(file), path, staging)))
            case LargeFile(path=path) as file:
                operations.append((path, file))
            case Deletion(path=path):
                operations.append((path, None))
        if len(operations) > MAX_OPERATIONS:
            raise HubError(413, f"A commit can have {MAX_OPERATIONS} operations: split it")
    if header is None:
        raise HubError(400, "The commit has no header")
    return CommitRequest(header, operations, digest.hexdigest())


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    pending = bytearray()
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            yield bytes(pending + piece)
            pending.clear()
        pending += rest
        if len(pending) > _MAX_LINE:
            raise HubError(400, _TOO_LARGE)
    yield bytes(pending)


def _content(file: RegularFile) -> bytes:
    if file.encoding != "base64":
        return file.content.encode()
    try:
        return base64.b64decode(file.content, validate=True)
    except binascii.Error as error:
        raise HubError(400, f"{file.path}: the content is not valid base64") from error


def stage_regular(content: bytes, path: str, staging: Staging) -> File:
    """Stage a regular file."""
    if len(content) > MAX_REGULAR:
        raise HubError(400, f"{path}: {_TOO_LARGE}")
    if is_lfs_pointer(content):
        raise HubError(400, f"{path}: this is an LFS pointer; upload the large file itself")
    return File(object_id("blob", content), *staging.add([content]), lfs=False)


def apply(db: sqlite3.Connection, repo: Repo, branch: str, author: Actor, request: CommitRequest) -> str:
    """Move ``branch`` to a new commit and return its id; 412 when its head is not the requested parent."""
    ref, head = branch_head(db, repo, branch)
    parent = (request.header.parentCommit or "").lower()
    query = "SELECT oid FROM receipts WHERE repo = ? AND ref = ? AND digest = ?"
    answered = db.execute(query, (repo.id, ref, request.digest)).fetchone()
    # The same bytes are the same request only while nothing came after it.
    if answered and answered["oid"] == head.oid:
        return head.oid
    if parent and not (len(parent) >= 5 and head.oid.startswith(parent)):
        raise HubError(412, _MOVED)
    edit = TreeEdit(db, head.tree)
    for path, file in request.operations:
        if file is None:
            edit.remove(path)
        else:
            put_file(db, edit, path, _owned(db, repo, file) if isinstance(file, LargeFile) else file)
    title, message = request.header.summary, request.header.description
    oid = write_commit(db, repo, ref, edit.save(), head.oid, author.name, title, message)
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


def put_file(db: sqlite3.Connection, edit: TreeEdit, path: str, file: File) -> None:
    """Add a stored file to a tree."""
    db.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?)", file)
    edit.put(path, file.oid)


def _owned(db: sqlite3.Connection, repo: Repo, file: LargeFile) -> File:
    """The file of an LFS operation; 400 unless it was uploaded to this repo: a known sha256 gives no right to it."""
    query = "SELECT size FROM lfs_objects WHERE repo = ? AND sha256 = ?"
    row = db.execute(query, (repo.id, file.oid)).fetchone()
    if row is None or file.size not in (None, row["size"]):
        raise HubError(400, f"{file.path}: the LFS object {file.oid} was not uploaded to this repo")
    return File(object_id("blob", lfs_pointer(file.oid, row["size"])), file.oid, row["size"], lfs=True)


def write_commit(
    db: sqlite3.Connection, repo: Repo, ref: str, tree: str, parent: str | None, author: str, title: str, message: str
) -> str:
    """Record a commit under its git id and point ``ref`` at it."""
    date = int(time.time())
    oid = commit_id(tree, parent, author, date, f"{title}\n\n{message}" if message else title)
    values = (repo.id, oid, tree, parent, author, date, title, message)
    db.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    move = "INSERT INTO refs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid"
    db.execute(move, (repo.id, ref, oid))
    return oid
