"""Commits: read a request, stage its contents on the disk, move the branch in one transaction."""

import base64
import binascii
import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel

from hub_server.storage.blobs import Staging
from hub_server.storage.credentials import Actor
from hub_server.storage.errors import HubError
from hub_server.storage.repos import Commit, Repo, get_commit, get_ref_target, resolve_revision
from hub_server.storage.rules import Message, RepoPath, Sha256, Title, check_path
from hub_server.storage.trees import (
    File,
    TreeEdit,
    compute_commit_id,
    compute_object_id,
    is_lfs_pointer,
    make_lfs_pointer,
)

MAX_OPERATIONS = 25_000  # files to add, replace and delete
MAX_BODY = 256 << 20  # bytes of a request
MAX_REGULAR = 10_000_000  # bytes of a file that is sent inside a commit request
_LEAST_PARENT_CHARACTERS = 5  # of an abbreviated commit id
# A line holds a regular file in base64 (four characters for three bytes), or less.
_MAX_LINE = MAX_REGULAR * 4 // 3 + (1 << 16)
_TOO_LARGE = f"Regular files are limited to {MAX_REGULAR} bytes: upload this one with LFS"
_LINE_TOO_LONG = (
    f"A line of this commit has more than {_MAX_LINE} bytes. If the line is a file: "
    f"regular files are limited to {MAX_REGULAR} bytes, upload larger ones with LFS"
)
_BRANCH_MOVED = "The branch was updated since you opened this page. Please refresh and try again."


class Header(BaseModel):
    """The message of a commit, and the commit that it was planned on."""

    summary: Title
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
    """A file or a folder to delete; the path of a folder may end in a slash."""

    path: Annotated[str, AfterValidator(lambda path: check_path(path.rstrip("/")))]


_VALUE_TYPES: dict[str, type[Header | RegularFile | LargeFile | Deletion]] = {
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
    """A parsed commit request.

    Attributes:
        header: the message and the parent.
        operations: (path, file) pairs: a staged file, an uploaded large file, or None to delete.
        digest: the SHA-256 over the request's lines, which identifies a request that is sent again.
    """

    header: Header
    operations: list[tuple[str, File | LargeFile | None]]
    digest: str


def read_request(chunks: Iterable[bytes], staging: Staging) -> CommitRequest:
    """Parse a commit request in NDJSON, and write its regular files to ``staging``.

    Raises HubError: 413 for more than ``MAX_OPERATIONS``; 400 for a line that is too long, for bad
    base64, for a file that ``stage_regular`` refuses, and without a header; 422 for a bad path.
    Raises ValidationError for a line of another form.
    """
    header: Header | None = None
    operations: list[tuple[str, File | LargeFile | None]] = []
    digest = hashlib.sha256()
    for text in _split_lines(chunks):
        if not text:
            continue
        digest.update(text + b"\n")
        line = _Line.model_validate_json(text)
        match _VALUE_TYPES[line.key].model_validate(line.value):
            case Header() as value:
                header = value
            case RegularFile(path=path) as file:
                operations.append((path, stage_regular(_decode_content(file), path, staging)))
            case LargeFile(path=path) as file:
                operations.append((path, file))
            case Deletion(path=path):
                operations.append((path, None))
        if len(operations) > MAX_OPERATIONS:
            raise HubError(413, f"A commit can have at most {MAX_OPERATIONS} operations: split it")
    if header is None:
        raise HubError(400, "The commit has no header")
    return CommitRequest(header, operations, digest.hexdigest())


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a request without their line breaks; the last line may be empty.

    Raises HubError 400 once a line has more than ``_MAX_LINE`` bytes and no line break yet. This
    bounds the memory; ``stage_regular`` checks the exact size of a file.
    """
    pending = bytearray()
    for chunk in chunks:
        *complete, unfinished = chunk.split(b"\n")
        for piece in complete:
            yield bytes(pending + piece)
            pending.clear()
        pending += unfinished
        if len(pending) > _MAX_LINE:
            raise HubError(400, _LINE_TOO_LONG)
    yield bytes(pending)


def _decode_content(file: RegularFile) -> bytes:
    """Return a regular file's bytes. Raises HubError 400 for bad base64.

    With another encoding than ``base64``, the content is the file's text.
    """
    if file.encoding != "base64":
        return file.content.encode()
    try:
        return base64.b64decode(file.content, validate=True)
    except binascii.Error as error:
        raise HubError(400, f"{file.path}: the content is not valid base64") from error


def stage_regular(content: bytes, path: str, staging: Staging) -> File:
    """Write a regular file to ``staging``; return its git id, SHA-256 and size.

    ``path``: the file's path in the repo, for errors. Raises HubError 400 for an LFS pointer, and
    for a file of more than ``MAX_REGULAR`` bytes.
    """
    if len(content) > MAX_REGULAR:
        raise HubError(400, f"{path}: {_TOO_LARGE}")
    if is_lfs_pointer(content):
        raise HubError(400, f"{path}: this is an LFS pointer; upload the large file itself")
    return File(compute_object_id("blob", content), *staging.add([content]), lfs=False)


def apply_commit(
    db: sqlite3.Connection, repo: Repo, branch: str, author: Actor, request: CommitRequest
) -> str:
    """Move ``branch`` to a new commit and return the commit's id.

    A request that is sent again before a later commit changes nothing, and returns the id of its
    first commit.

    Args:
        db: a connection in a write transaction.
        repo: the repo.
        branch: the branch's name, or its full ref name.
        author: the author of the commit.
        request: the message and the operations.

    Raises:
        HubError: 412 when the branch's newest commit is not the requested parent; 404 for a missing
            branch, and for a missing path to delete; 422 where a file and a folder would share a
            name; 400 for a tag or a commit id as branch, and for a large file that was not
            uploaded.
    """
    # A client sends a request again when it has lost the answer.
    ref, head = find_branch_head(db, repo, branch)
    query = "SELECT oid FROM receipts WHERE repo = ? AND ref = ? AND digest = ?"
    receipt = db.execute(query, (repo.id, ref, request.digest)).fetchone()
    # After a later commit, equal bytes are a new request.
    if receipt and receipt["oid"] == head.oid:
        return head.oid

    # Refuse a request that was planned on another commit than the newest one.
    parent = (request.header.parentCommit or "").lower()
    is_head = len(parent) >= _LEAST_PARENT_CHARACTERS and head.oid.startswith(parent)
    if parent and not is_head:
        raise HubError(412, _BRANCH_MOVED)

    # Apply the operations.
    edit = TreeEdit(db, head.tree)
    for path, file in request.operations:
        if file is None:
            edit.remove(path)
        elif isinstance(file, LargeFile):
            put_file(db, edit, path, _require_owned_file(db, repo, file))
        else:
            put_file(db, edit, path, file)

    # Record the commit and the request.
    title = request.header.summary
    message = request.header.description
    oid = write_commit(db, repo, ref, edit.save(), head.oid, author.name, title, message)
    upsert = "INSERT INTO receipts VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid"
    db.execute(upsert, (repo.id, ref, request.digest, oid))
    return oid


def find_branch_head(db: sqlite3.Connection, repo: Repo, branch: str) -> tuple[str, Commit]:
    """Return the full name of a branch and its newest commit.

    ``branch``: its name, or its full ref name. Raises HubError: 404 for an unknown name, 400 for a
    tag or a commit id.
    """
    ref = branch if branch.startswith("refs/") else f"refs/heads/{branch}"
    head = get_ref_target(db, repo.id, ref)
    if head is None or ref.startswith("refs/tags/"):
        resolve_revision(db, repo.id, branch)  # raises 404 for an unknown name
        raise HubError(400, f"{branch} is not a branch: commits go to branches only")
    return ref, get_commit(db, repo.id, head)


def put_file(db: sqlite3.Connection, edit: TreeEdit, path: str, file: File) -> None:
    """Record a stored file in the index, and add it to a tree.

    Raises HubError 422 where a file and a folder would share a name.
    """
    db.execute("INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?)", file)
    edit.put(path, file.oid)


def _require_owned_file(db: sqlite3.Connection, repo: Repo, file: LargeFile) -> File:
    """Return the file of an LFS operation.

    Raises HubError 400 unless a file of this SHA-256 and size was uploaded to this repo: to know a
    SHA-256 gives no right to read the file.
    """
    query = "SELECT size FROM lfs_objects WHERE repo = ? AND sha256 = ?"
    row = db.execute(query, (repo.id, file.oid)).fetchone()
    if row is None or file.size not in (None, row["size"]):
        raise HubError(400, f"{file.path}: the LFS object {file.oid} was not uploaded to this repo")
    oid = compute_object_id("blob", make_lfs_pointer(file.oid, row["size"]))
    return File(oid, file.oid, row["size"], lfs=True)


def write_commit(
    db: sqlite3.Connection,
    repo: Repo,
    ref: str,
    tree: str,
    parent: str | None,
    author: str,
    title: str,
    message: str,
) -> str:
    """Record a commit with the current time, move a branch to it, and return its git id.

    Args:
        db: a connection in a write transaction.
        repo: the repo.
        ref: the full name of the branch, which is created if missing.
        tree: the git id of the root folder.
        parent: the id of the commit before; None for the first commit.
        author: the name of the author.
        title: the first line of the message.
        message: the text below the title, or "".
    """
    date = int(time.time())
    text = f"{title}\n\n{message}" if message else title
    oid = compute_commit_id(tree, parent, author, date, text)
    values = (repo.id, oid, tree, parent, author, date, title, message)
    db.execute("INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    move = "INSERT INTO refs VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid"
    db.execute(move, (repo.id, ref, oid))
    return oid
