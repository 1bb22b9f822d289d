"""Handlers for the files of a revision: tree listing, paths-info, download, preupload."""

import re
import sqlite3
from itertools import islice
from urllib.parse import parse_qs

from pydantic import BaseModel
from starlette.responses import FileResponse, JSONResponse, Response

from hub_server.handlers.call import Call, Hub, is_on
from hub_server.storage.errors import HubError, entry_not_found
from hub_server.storage.repos import Commit, get_commit, last_changes, resolve, timestamp
from hub_server.storage.rules import RepoPath, is_ignored, is_lfs
from hub_server.storage.trees import Entry, find, find_file, walk

PICTURES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
# A file in a repo must never run as a page or script of this origin.
_SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}
_PAGE, _PAGE_EXPANDED, _MAX_PATHS, _MAX_PREUPLOAD = 1000, 50, 1000, 256


class _Paths(BaseModel):
    paths: list[str] = []
    expand: bool = False


class _NewFile(BaseModel):
    path: RepoPath
    size: int


class _Preupload(BaseModel):
    files: list[_NewFile]
    gitIgnore: str | None = None


def tree(call: Call) -> Response:
    """One page of a folder listing; its cursor, commit and last path: all show one state, none walks the others."""
    repo, path, expand = call.repo(), call.args.get("path", ""), call.flag("expand")
    most = _PAGE_EXPANDED if expand else _PAGE
    size = call.number("limit", most, most)
    cursor = re.fullmatch(r"([0-9a-f]{40})-(.+)", call.query.get("cursor", ""), re.DOTALL)
    with call.hub.database.reading() as db:
        if cursor:
            commit, after = get_commit(db, repo.id, cursor[1]), cursor[2]
        else:
            commit, after = resolve(db, repo.id, call.args["revision"]), ""
        folder = find(db, commit.tree, path)
        if folder is None or folder.file:
            raise entry_not_found(f"{path} does not exist on {call.args['revision']!r}", commit.oid)
        entries = list(islice(walk(db, folder.oid, path, call.flag("recursive"), after), size + 1))
        shown = _describe(db, repo.id, commit, entries[:size], expand=expand)
    last = shown[-1]["path"].removeprefix(f"{path}/") if len(entries) > size else ""
    return JSONResponse(shown, headers=call.next_link(cursor=f"{commit.oid}-{last}") if last else {})


def _describe(db: sqlite3.Connection, repo: int, commit: Commit, entries: list[Entry], *, expand: bool) -> list[dict]:
    changes = last_changes(db, repo, commit, [entry.path for entry in entries]) if expand else {}
    shown = []
    for path, oid, file in entries:
        item: dict = {"type": "directory", "oid": oid, "size": 0, "path": path}
        if file:
            item |= {"type": "file", "size": file.size}
            item |= {"lfs": {"oid": file.sha256, **file.lfs_facts}} if file.lfs else {}
        if expand:
            change = changes[path]
            item["lastCommit"] = {"id": change.oid, "title": change.title, "date": timestamp(change.date)}
            item["securityFileStatus"] = {"status": "unscanned", "avScan": None, "pickleImportScan": None}
        shown.append(item)
    return shown


def paths_info(call: Call) -> list:
    """The entries at the given paths; unknown paths are left out."""
    repo = call.repo()
    if call.headers.get("content-type", "").startswith("application/json"):
        asked = call.read(_Paths)
    else:
        form = parse_qs(call.body().decode(), keep_blank_values=True)
        asked = _Paths(paths=form.get("paths", []), expand=is_on(form.get("expand", [""])[0]))
    if len(asked.paths) > _MAX_PATHS:
        raise HubError(413, "too many parameters")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        found = [find(db, commit.tree, path.strip("/")) for path in asked.paths]
        entries = [entry for entry in found if entry and entry.path]
        return _describe(db, repo.id, commit, entries, expand=asked.expand)


def preupload(call: Call) -> dict:
    """For each file to upload: LFS or regular, ignored or not, and the id of the present file."""
    repo, asked = call.repo(write=True), call.read(_Preupload)
    if len(asked.files) > _MAX_PREUPLOAD:
        raise HubError(413, f"At most {_MAX_PREUPLOAD} files per call")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        attributes = _text_of(call.hub, db, commit, ".gitattributes")
        ignored = asked.gitIgnore or _text_of(call.hub, db, commit, ".gitignore")
        answers = []
        for file in asked.files:
            mode = "lfs" if is_lfs(attributes, file.path, file.size) else "regular"
            answer = {"path": file.path, "uploadMode": mode, "shouldIgnore": is_ignored(ignored, file.path)}
            present = find_file(db, commit.tree, file.path)
            answers.append(answer | ({"oid": present.etag} if present else {}))
    return {"files": answers}


def _text_of(hub: Hub, db: sqlite3.Connection, commit: Commit, path: str) -> str:
    """Return a text file of a commit; empty when it is missing or larger than 1 MiB."""
    file = find_file(db, commit.tree, path)
    if file is None or file.size > 1 << 20:
        return ""
    return hub.blobs.path(file.sha256).read_text(encoding="utf-8", errors="replace")


class _Content(FileResponse):
    chunk_size = 1 << 20


def download(call: Call) -> Response:
    """Serve one file of one revision, or ranges of it."""
    repo, path = call.repo(), call.args["path"]
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        file = find_file(db, commit.tree, path)
    if file is None:
        raise entry_not_found(f'Entry not found: "{path}"', commit.oid)
    headers = {
        **_SAFE,
        "X-Repo-Commit": commit.oid,
        "ETag": f'"{file.etag}"',
        "Cache-Control": "no-cache, no-transform",
    }
    if file.lfs:
        headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
    plain = "application/octet-stream" if file.lfs else "text/plain; charset=utf-8"
    media = PICTURES.get(path.rpartition(".")[2].lower(), plain)
    return _Content(call.hub.blobs.path(file.sha256), headers=headers, media_type=media)
