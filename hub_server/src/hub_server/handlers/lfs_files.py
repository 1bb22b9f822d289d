"""Handlers for the LFS files of a repo: list, delete from all history, duplicate into another repo."""

import sqlite3
from typing import Annotated, Literal

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from hub_server.http.call import Call
from hub_server.storage.refusals import HubError, repo_not_found
from hub_server.storage.repos import Commit, Repo, find_repo, history, list_refs, resolve, timestamp
from hub_server.storage.rewrite import forget_files
from hub_server.storage.rules import Sha256
from hub_server.storage.trees import is_committed, walk

_MOST = 1000


class Deletions(BaseModel):
    """Files by their sha256. Without a new history the old one would name files that are gone."""

    sha: Annotated[list[Sha256], Field(max_length=_MOST)]
    rewriteHistory: bool = True


class _DeletionBody(BaseModel):
    deletions: Deletions


class _Target(BaseModel):
    type: Literal["model", "dataset"]
    name: Annotated[str, Field(pattern="^[^/]+/[^/]+$")]


class SourceFile(BaseModel):
    """A file of the repo in the path; it goes by its sha256, the rest is for people."""

    sha256: Sha256
    xetHash: str = ""
    filename: str = ""


class _Duplication(BaseModel):
    target: _Target
    files: Annotated[list[SourceFile], Field(max_length=_MOST)]


def listing(call: Call) -> Response:
    """The LFS files uploaded to a repo, each with a path and a ref ("" when no commit has it yet)."""
    repo = call.repo(write=True)
    with call.hub.database.reading() as db:
        rows = db.execute("SELECT sha256, size FROM lfs_objects WHERE repo = ?", (repo.id,)).fetchall()
        places = _places(db, repo, {row["sha256"] for row in rows})
    shown = []
    for sha256, size in rows:
        path, ref = places.get(sha256, ("", None))
        pushed = timestamp(int(call.hub.blobs.path(sha256).stat().st_mtime))
        file = {"fileOid": sha256, "oid": sha256, "filename": path, "ref": ref, "size": size, "pushedAt": pushed}
        shown.append(file)
    return JSONResponse(sorted(shown, key=lambda file: (file["filename"], file["oid"])))


def _places(db: sqlite3.Connection, repo: Repo, wanted: set[str]) -> dict[str, tuple[str, str]]:
    """(path, ref) of each large file: where it is now if it is anywhere, else where it was last."""
    refs = sorted(list_refs(db, repo.id), key=lambda pair: pair[0] != "refs/heads/main")
    heads = [(ref, resolve(db, repo.id, oid)) for ref, oid in refs]
    past = ((ref, commit) for ref, head in heads for commit in history(db, repo.id, head))
    found: dict[str, tuple[str, str]] = {}
    seen: set[str] = set()

    def look(ref: str, commit: Commit) -> None:
        if commit.tree not in seen:
            seen.add(commit.tree)
            for path, _, file in walk(db, commit.tree):
                if file and file.lfs:
                    found.setdefault(file.sha256, (path, ref))

    for ref, commit in heads:
        look(ref, commit)
    for ref, commit in past:
        if wanted <= found.keys():
            break
        look(ref, commit)
    return found


def delete(call: Call) -> dict:
    """Delete LFS files from a repo and all its history: commits that had one, and those after them, are rewritten."""
    repo, asked = call.repo(write=True), call.read(_DeletionBody).deletions
    if not asked.rewriteHistory:
        raise HubError(400, "This local Hub removes files with a new history only: rewrite_history=True")
    with call.hub.database.writing() as db:
        forget_files(db, repo.id, set(asked.sha))
    return {}


def duplicate(call: Call) -> dict:
    """Server-side copy: make LFS files of this repo available to commits of another one."""
    source, asked = call.readable(), call.read(_Duplication)
    namespace, name = asked.target.name.split("/")
    with call.hub.database.writing() as db:
        target = find_repo(db, asked.target.type, namespace, name)
        if target is None or not target.visible_to(call.actor):
            raise repo_not_found(anonymous=call.actor is None)
        call.user.require_write(target.namespace)
        failed = [file.sha256 for file in asked.files if not _give(db, source.id, target.id, file.sha256)]
    error = f"no commit of {source.full_name} has this large file"
    return {"failed": [{"sha256": sha256, "error": error} for sha256 in failed]}


def _give(db: sqlite3.Connection, source: int, target: int, sha256: str) -> bool:
    """Record an LFS file of ``source`` for ``target``; False when no commit of ``source`` has it."""
    query = "SELECT size FROM lfs_objects WHERE repo = ? AND sha256 = ?"
    row = db.execute(query, (source, sha256)).fetchone()
    if row is None or not is_committed(db, source, sha256, row["size"]):
        return False
    db.execute("INSERT OR IGNORE INTO lfs_objects VALUES (?, ?, ?)", (target, sha256, row["size"]))
    return True
