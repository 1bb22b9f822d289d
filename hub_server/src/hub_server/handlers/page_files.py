"""HTML pages of a repo's files: a folder, one file, its history, and the report, which runs in a sandbox."""

from codecs import getincrementaldecoder
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.responses import FileResponse, Response

from hub_server.handlers.files import PICTURES
from hub_server.handlers.page_places import REPORT, Place, place, rows_view
from hub_server.http.call import Call
from hub_server.pages import rendering
from hub_server.pages.cards import Config
from hub_server.storage.refusals import entry_not_found
from hub_server.storage.repos import history
from hub_server.storage.trees import File, find, find_file, walk

_ENTRIES, _COMMITS = 1000, 50
_TEXT, _LINES = 200_000, 5_000  # bytes and lines of a file that are shown


def tree(call: Call) -> Response:
    """The listing of a folder, folders first; the root when no path is given."""
    call.readable()
    here, path = place(call), call.args.get("path", "").strip("/")
    with call.hub.database.reading() as db:
        folder = find(db, here.commit.tree, path)
        if folder is None or folder.file:
            raise entry_not_found(f"There is no folder {path!r} at {here.name!r}", here.commit.oid)
        entries = sorted(walk(db, folder.oid, path, recursive=False), key=lambda entry: entry.file is not None)
    return rendering.page(
        "tree.html",
        call.endpoint,
        title=f"{path or 'Files'} · {here.repo.full_name}",
        place=here,
        path=path,
        entries=entries[:_ENTRIES],
        more=max(0, len(entries) - _ENTRIES),
    )


def blob(call: Call) -> Response:
    """One file: rows of parquet, a picture, text with line numbers, or what is known of it; and its download."""
    call.readable()
    here, path = place(call), call.args["path"]
    file = _file(call, here, path)
    suffix = path.rpartition(".")[2].lower()
    shown: dict[str, Any] = {}
    stored = call.hub.blobs.path(file.sha256)
    if suffix == "parquet":
        shown["view"] = rows_view(call, here.at("blob", path), [Config("", {"": [path]})], {path: file})
    elif suffix in PICTURES:
        shown["picture"] = here.content + quote(path)
    elif (lines := _lines(stored)) is not None:
        shown["lines"], shown["cut"] = lines[:_LINES], file.size > _TEXT or len(lines) > _LINES
    return rendering.page(
        "blob.html",
        call.endpoint,
        title=f"{path} · {here.repo.full_name}",
        place=here,
        path=path,
        file=file,
        is_report=path == REPORT,
        **shown,
    )


def _file(call: Call, here: Place, path: str) -> File:
    with call.hub.database.reading() as db:
        file = find_file(db, here.commit.tree, path)
    if file is None:
        raise entry_not_found(f"There is no file {path!r} at {here.name!r}", here.commit.oid)
    return file


def _lines(stored: Path) -> list[str] | None:
    """The lines at the beginning of a stored file; None when it is no UTF-8 text."""
    with stored.open("rb") as content:
        start = content.read(_TEXT)
    try:
        text = getincrementaldecoder("utf-8")().decode(start, final=len(start) < _TEXT)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def commits(call: Call) -> Response:
    """A page of the history of a revision, newest first."""
    here = place(call)
    with call.hub.database.reading() as db:
        past = list(history(db, here.repo.id, here.commit))
    pages = -(-len(past) // _COMMITS)
    number = min(call.number("page", 1), pages)
    return rendering.page(
        "commits.html",
        call.endpoint,
        title=f"Commits · {here.repo.full_name}",
        place=here,
        commits=past[(number - 1) * _COMMITS : number * _COMMITS],
        count=len(past),
        number=number,
        pages=pages,
    )


def report(call: Call) -> Response:
    """The report of a repo, as HTML in a sandbox: no script runs, nothing is fetched, no origin is shared."""
    call.readable()
    stored = call.hub.blobs.path(_file(call, place(call), REPORT).sha256)
    return FileResponse(stored, media_type="text/html; charset=utf-8", headers=rendering.REPORT_HEADERS)
