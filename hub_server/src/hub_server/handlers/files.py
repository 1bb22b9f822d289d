"""Handlers for the files of a revision: tree listing, paths-info, download, preupload.

Handlers of a repo also raise the errors of ``Call.get_repo``; handlers that read a JSON body also
raise ValidationError.
"""

import re
import sqlite3
from itertools import islice
from urllib.parse import parse_qs

from pydantic import BaseModel
from starlette.responses import FileResponse, JSONResponse, Response

from hub_server.handlers.call import Call, Hub, is_on, take_page
from hub_server.storage.errors import HubError, make_missing_entry_error
from hub_server.storage.repos import (
    Commit,
    find_last_changes,
    format_timestamp,
    get_commit,
    resolve_revision,
)
from hub_server.storage.rules import RepoPath, is_ignored, is_lfs
from hub_server.storage.trees import Entry, find_entry, find_file, walk

# The suffixes that a page shows as pictures, and their media types
PICTURES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
}
# A file in a repo must never run as a page or script of this origin.
_SAFE_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
}
_PAGE_ENTRIES = 1000  # entries of a page
_EXPANDED_PAGE_ENTRIES = 50  # entries of a page with their last commits
_MAX_PATHS = 1000  # of one call
_MAX_PREUPLOAD = 256  # files of one call
_MAX_RULES_BYTES = 1 << 20  # of a stored .gitattributes or .gitignore
_CHUNK_BYTES = 1 << 20  # of a download, read at once


class _Paths(BaseModel):
    paths: list[str] = []
    expand: bool = False


class _NewFile(BaseModel):
    path: RepoPath
    size: int


class _Preupload(BaseModel):
    files: list[_NewFile]
    gitIgnore: str | None = None


def list_folder(call: Call) -> Response:
    """Return one page of a folder's listing, in the order of ``walk``.

    The cursor of the next page is the commit and the last path. All pages therefore show one
    commit, and a page does not walk the entries of earlier pages. Raises HubError 404 for a missing
    revision or path, and for the path of a file.
    """
    # Read the query.
    repo = call.get_repo()
    folder_path = call.args.get("path", "")
    expand = call.has_flag("expand")
    most = _EXPANDED_PAGE_ENTRIES if expand else _PAGE_ENTRIES
    size = call.parse_number("limit", default=most, most=most)
    cursor = re.fullmatch(r"([0-9a-f]{40})-(.+)", call.query.get("cursor", ""), re.DOTALL)

    # List one entry more than the page holds, to find out whether there is a next page.
    with call.hub.database.begin_read() as db:
        if cursor:
            commit = get_commit(db, repo.id, cursor[1])
        else:
            commit = resolve_revision(db, repo.id, call.args["revision"])
        start = cursor[2] if cursor else ""
        folder = find_entry(db, commit.tree, folder_path)
        if folder is None or folder.file:
            problem = f"{folder_path} does not exist on {call.args['revision']!r}"
            raise make_missing_entry_error(problem, commit.oid)
        walked = walk(db, folder.oid, folder_path, call.has_flag("recursive"), start)
        entries = list(islice(walked, size + 1))
        described = _describe_entries(db, repo.id, commit, entries[:size], expand=expand)
        items = take_page(described, size)

    headers = {}
    if len(entries) > len(items):
        last_path = items[-1]["path"].removeprefix(f"{folder_path}/")
        headers = call.make_next_link(cursor=f"{commit.oid}-{last_path}")
    return JSONResponse(items, headers=headers)


def _describe_entries(
    db: sqlite3.Connection, repo: int, commit: Commit, entries: list[Entry], *, expand: bool
) -> list[dict]:
    """Return the JSON of each entry of a commit, in the order of ``entries``.

    ``expand``: whether to add the commit that last changed the entry.
    """
    paths = [entry.path for entry in entries]
    changes = find_last_changes(db, repo, commit, paths) if expand else {}
    items = []
    for path, oid, file in entries:
        item: dict = {"type": "directory", "oid": oid, "size": 0, "path": path}
        if file:
            item |= {"type": "file", "size": file.size}
            if file.lfs:
                item["lfs"] = {"oid": file.sha256, **file.lfs_facts}
        if expand:
            change = changes[path]
            item["lastCommit"] = {
                "id": change.oid,
                "title": change.title,
                "date": format_timestamp(change.date),
            }
            item["securityFileStatus"] = {
                "status": "unscanned",
                "avScan": None,
                "pickleImportScan": None,
            }
        items.append(item)
    return items


def describe_paths(call: Call) -> list:
    """Return the entries at the paths in the body, in that order; the body is JSON or a form.

    Unknown paths and the root are left out.

    Raises HubError 413 for more than ``_MAX_PATHS`` paths, 404 for a missing revision.
    """
    repo = call.get_repo()
    if call.headers.get("content-type", "").startswith("application/json"):
        request = call.parse_body(_Paths)
    else:
        form = parse_qs(call.read_body().decode(), keep_blank_values=True)
        expand = is_on(form.get("expand", [""])[0])
        request = _Paths(paths=form.get("paths", []), expand=expand)
    if len(request.paths) > _MAX_PATHS:
        raise HubError(413, "too many parameters")
    with call.hub.database.begin_read() as db:
        commit = resolve_revision(db, repo.id, call.args["revision"])
        entries = []
        for path in request.paths:
            entry = find_entry(db, commit.tree, path.strip("/"))
            if entry and entry.path:  # the root has no path, and the Hub does not list it
                entries.append(entry)
        return _describe_entries(db, repo.id, commit, entries, expand=request.expand)


def plan_upload(call: Call) -> dict:
    """Return for each file to upload its mode, whether to ignore it, and the stored file's id.

    The mode is ``lfs`` or ``regular``; the id is missing for a new path. Raises HubError 413 for
    more than ``_MAX_PREUPLOAD`` files, 404 for a missing revision, and 400 as ``is_ignored``.
    """
    repo = call.get_repo(write=True)
    request = call.parse_body(_Preupload)
    if len(request.files) > _MAX_PREUPLOAD:
        raise HubError(413, f"At most {_MAX_PREUPLOAD} files per call")
    with call.hub.database.begin_read() as db:
        commit = resolve_revision(db, repo.id, call.args["revision"])
        attributes = _read_text(call.hub, db, commit, ".gitattributes")
        # The client's own .gitignore replaces that of the repo.
        ignored = request.gitIgnore or _read_text(call.hub, db, commit, ".gitignore")
        answers = []
        for file in request.files:
            answer = {
                "path": file.path,
                "uploadMode": "lfs" if is_lfs(attributes, file.path, file.size) else "regular",
                "shouldIgnore": is_ignored(ignored, file.path),
            }
            stored = find_file(db, commit.tree, file.path)
            if stored:
                answer["oid"] = stored.etag
            answers.append(answer)
    return {"files": answers}


def _read_text(hub: Hub, db: sqlite3.Connection, commit: Commit, path: str) -> str:
    """Return a text file of a commit; "" when it is missing or larger than ``_MAX_RULES_BYTES``."""
    file = find_file(db, commit.tree, path)
    if file is None or file.size > _MAX_RULES_BYTES:
        return ""
    return hub.blobs.get_path(file.sha256).read_text(encoding="utf-8", errors="replace")


class _Content(FileResponse):
    chunk_size = _CHUNK_BYTES


def download(call: Call) -> Response:
    """Return the answer that sends a file of a revision, or the ranges that the client asks for.

    The headers keep a browser from running the file. Raises HubError 404 for a missing file or
    revision.
    """
    repo = call.get_repo()
    path = call.args["path"]
    with call.hub.database.begin_read() as db:
        commit = resolve_revision(db, repo.id, call.args["revision"])
        file = find_file(db, commit.tree, path)
    if file is None:
        raise make_missing_entry_error(f'Entry not found: "{path}"', commit.oid)
    headers = {
        **_SAFE_HEADERS,
        "X-Repo-Commit": commit.oid,
        "ETag": f'"{file.etag}"',
        "Cache-Control": "no-cache, no-transform",
    }
    if file.lfs:
        headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
    plain_type = "application/octet-stream" if file.lfs else "text/plain; charset=utf-8"
    media_type = PICTURES.get(path.rpartition(".")[2].lower(), plain_type)
    return _Content(call.hub.blobs.get_path(file.sha256), headers=headers, media_type=media_type)
