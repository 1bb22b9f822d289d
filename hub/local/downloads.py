"""``resolve``: file contents, whole or in ranges, with the headers the clients' caches work by."""

import re
from collections.abc import Iterator
from pathlib import Path

from starlette.responses import Response, StreamingResponse

from hub.local.call import Call
from hub.local.refs import resolve as resolve_revision
from hub.local.replies import HubError, entry_not_found
from hub.local.trees import find_file

_CHUNK = 1 << 20
# A file in a repo must never run as a page or script of this origin.
_SAFE = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox"}


def resolve(call: Call) -> Response:
    """Serve one file of one revision."""
    repo = call.repo()
    path = call.args["path"]
    with call.hub.database.reading() as db:
        commit = resolve_revision(db, repo.id, call.args["revision"])
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
    media = "application/octet-stream" if file.lfs else "text/plain; charset=utf-8"
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
