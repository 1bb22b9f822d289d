"""Handlers about the files of a revision: tree listings, single paths, downloads, and how to upload new files."""

import re
import sqlite3
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import parse_qs

from starlette.responses import Response, StreamingResponse

from hub.local.attributes import is_ignored, is_lfs
from hub.local.call import Call, Hub, is_on, json_object
from hub.local.names import check_path
from hub.local.refs import Commit, get_commit, last_changes, resolve, timestamp
from hub.local.replies import HubError, entry_not_found, json_reply
from hub.local.trees import Entry, files, find, find_file, walk

_CHUNK = 1 << 20
_PICTURES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"}
# A file in a repo must never run as a page or script of this origin.
_SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}
_PAGE, _PAGE_EXPANDED, _MAX_PATHS, _MAX_PREUPLOAD = 1000, 50, 1000, 256


def tree(call: Call) -> Response:
    """One page of a folder; the cursor names the commit, so that all pages show the same state."""
    repo = call.repo()
    path, expand = call.args.get("path") or "", call.flag("expand")
    most = _PAGE_EXPANDED if expand else _PAGE
    size = call.page(most, most)
    cursor = re.fullmatch(r"([0-9a-f]{40})-(\d{1,9})", call.query.get("cursor", ""))
    with call.hub.database.reading() as db:
        if cursor:
            commit, start = get_commit(db, repo.id, cursor[1]), int(cursor[2])
        else:
            commit, start = resolve(db, repo.id, call.args["revision"]), 0
        folder = find(db, commit.tree, path)
        if folder is None or not folder.is_folder:
            raise entry_not_found(f"{path} does not exist on {call.args['revision']!r}", commit.oid)
        entries = walk(db, folder.oid, path, call.flag("recursive"))
        page = list(islice(entries, start, start + size + 1))
        shown = _describe(db, repo.id, commit, page[:size], expand=expand)
    headers = call.next_link(cursor=f"{commit.oid}-{start + size}") if len(page) > size else {}
    return json_reply(shown, headers=headers)


def _describe(
    db: sqlite3.Connection, repo: int, commit: Commit, entries: list[tuple[str, Entry]], *, expand: bool
) -> list[dict]:
    stored = files(db, (entry.oid for _, entry in entries if not entry.is_folder))
    changes = last_changes(db, repo, commit, [path for path, _ in entries]) if expand else {}
    shown = []
    for path, entry in entries:
        item: dict = {"type": "directory", "oid": entry.oid, "size": 0, "path": path}
        if not entry.is_folder:
            file = stored[entry.oid]
            item |= {"type": "file", "size": file.size}
            if file.lfs:
                item["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
        if expand:
            change = changes[path]
            item["lastCommit"] = {"id": change.oid, "title": change.title, "date": timestamp(change.date)}
            if not entry.is_folder:
                item["securityFileStatus"] = {"status": "unscanned", "avScan": None, "pickleImportScan": None}
        shown.append(item)
    return shown


def paths_info(call: Call) -> Response:
    """The entries at the given paths; unknown paths are left out."""
    repo = call.repo()
    if call.headers.get("content-type", "").startswith("application/json"):
        asked = json_object(call.body())
        paths, expand = asked.get("paths") or [], is_on(asked.get("expand"))
    else:
        form = parse_qs(call.body().decode(), keep_blank_values=True)
        paths, expand = form.get("paths", []), is_on(form.get("expand", [""])[0])
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise HubError(400, "paths must be a list of texts")
    if len(paths) > _MAX_PATHS:
        raise HubError(413, "too many parameters")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        found = [(path, find(db, commit.tree, path)) for path in (path.strip("/") for path in paths) if path]
        entries = [(path, entry) for path, entry in found if entry is not None]
        return json_reply(_describe(db, repo.id, commit, entries, expand=expand))


def preupload(call: Call) -> Response:
    """For each new file: large or regular, ignored or not, and what is there now (clients skip what is equal)."""
    repo = call.repo(write=True)
    asked = call.json()
    wanted = asked.get("files")
    if not isinstance(wanted, list) or not all(isinstance(item, dict) for item in wanted):
        raise HubError(400, "files must be a list of objects")
    if len(wanted) > _MAX_PREUPLOAD:
        raise HubError(413, f"At most {_MAX_PREUPLOAD} files per call")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        attributes = text_of(call.hub, db, commit, ".gitattributes")
        ignored = asked.get("gitIgnore") or text_of(call.hub, db, commit, ".gitignore")
        answers = [_upload_mode(db, commit, item, attributes, str(ignored)) for item in wanted]
    return json_reply({"files": answers})


def _upload_mode(db: sqlite3.Connection, commit: Commit, item: dict, attributes: str, ignored: str) -> dict:
    path, size = check_path(item.get("path")), item.get("size")
    large = is_lfs(attributes, path, size if isinstance(size, int) else 0)
    answer = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": is_ignored(ignored, path)}
    present = find_file(db, commit.tree, path)
    return answer | ({"oid": present.etag} if present else {})


def text_of(hub: Hub, db: sqlite3.Connection, commit: Commit, path: str) -> str:
    """A small text file of a commit; empty when there is none or it is larger than 1 MiB."""
    file = find_file(db, commit.tree, path)
    if file is None or file.size > 1 << 20:
        return ""
    return hub.blobs.path(file.sha256).read_text(encoding="utf-8", errors="replace")


def download(call: Call) -> Response:
    """Serve one file of one revision."""
    repo = call.repo()
    path = call.args["path"]
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args["revision"])
        file = find_file(db, commit.tree, path)
    if file is None:
        raise entry_not_found(f'Entry not found: "{path}"', commit.oid)
    headers = {
        **_SAFE,
        "X-Repo-Commit": commit.oid,
        "ETag": f'"{file.etag}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-cache, no-transform",
    }
    if file.lfs:
        headers |= {"X-Linked-Etag": f'"{file.etag}"', "X-Linked-Size": str(file.size)}
    wanted = _range(call, file.size, file.etag)
    start, end = wanted or (0, file.size)
    headers["Content-Length"] = str(end - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
    media = _PICTURES.get(path.rpartition(".")[2].lower()) or (
        "application/octet-stream" if file.lfs else "text/plain; charset=utf-8"
    )
    content = iter(()) if call.method == "HEAD" else _read(call.hub.blobs.path(file.sha256), start, end)
    return StreamingResponse(content, 206 if wanted else 200, headers, media)


def _range(call: Call, size: int, etag: str) -> tuple[int, int] | None:
    """The single byte range asked for, as [start, end); other forms mean the whole file, as HTTP allows."""
    found = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", call.headers.get("range", "").replace(" ", ""))
    if found is None or not any(found.groups()) or call.headers.get("if-range", f'"{etag}"') != f'"{etag}"':
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    if start >= end:
        raise HubError(416, "The requested range is not satisfiable", headers={"Content-Range": f"bytes */{size}"})
    return start, end


def _read(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (chunk := file.read(min(_CHUNK, end - start))):
            start += len(chunk)
            yield chunk
