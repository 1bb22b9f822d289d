"""HTML pages for a browser, with an anonymous visitor's rights: the Hub, an owner, a repo and its files.

All of it is links and GET forms, so an address holds a view. A ``report.html`` is shown in a sandbox.
"""

import json
import re
from codecs import getincrementaldecoder
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import FileResponse, Response

from hub_server.handlers.call import Call
from hub_server.handlers.files import PICTURES
from hub_server.pages import cards, rendering
from hub_server.pages.cards import Config
from hub_server.pages.readers import MOST_FILES, MOST_WORDS, Card, Question, card, window
from hub_server.storage.errors import HubError, entry_not_found
from hub_server.storage.repos import KINDS, Commit, Repo, history, list_refs, list_repos, resolve
from hub_server.storage.trees import File, find, find_file, walk

REPORT = "report.html"  # a self-contained page that a run directory may hold
_NEWEST, _COMMITS, _TAGS, _ENTRIES = 50, 20, 30, 1000
_TEXT, _LINES = 200_000, 5_000  # bytes and lines of a file that are shown
_NO_CARD = "There is no README.md with metadata that can be read."
_API = re.compile(r"/(?:api|xet|lfs-upload|uploads|papers|buckets)(?:/.*)?|.*/resolve/.*|.*\.git/.*")


class Place(NamedTuple):
    """A repo at a revision as a visitor named it. ``revision`` is percent-encoded; ``report``: whether it has one."""

    repo: Repo
    commit: Commit
    revision: str
    name: str
    tags: list[str]
    report: bool

    @property
    def home(self) -> str:
        """The repo's page."""
        return f"/{self.repo.url_path}"

    def at(self, kind: str, path: str = "") -> str:
        """The address of a page (blob, tree, report) or of a content (resolve) at this revision."""
        return f"{self.home}/{kind}/{self.revision}" + (f"/{quote(path)}" if path else "")

    @property
    def here(self) -> str:
        """The repo's page at this revision."""
        return self.home if self.name == "main" else self.at("commit")

    @property
    def content(self) -> str:
        """Where the files of this very commit lie, with a slash at the end."""
        return f"{self.home}/resolve/{self.commit.oid}/"


def place(call: Call) -> Place:
    """Return the repo and the revision of a page's path (default: main). Raises HubError."""
    repo, name = call.repo(), call.args.get("revision", "main")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, name)
        refs = [ref for ref, _ in list_refs(db, repo.id)]
        report = find_file(db, commit.tree, REPORT) is not None
    tags = [ref.removeprefix("refs/tags/") for ref in refs if ref.startswith("refs/tags/")]
    return Place(repo, commit, quote(name, safe=""), name, tags[::-1], report)


def rows_view(call: Call, here: str, configs: list[Config], files: dict[str, File]) -> dict[str, object]:
    """The values of the template ``rows.html``: the rows of the query, and the addresses of the pages around.

    An unknown config or split is the first one, so that the form works from any config to any other.
    """
    asked = {name: call.query.get(name, "") for name in ("config", "split", "label", "q", "view")}
    config = next((config for config in configs if config.name == asked["config"]), configs[0])
    split = asked["split"] if asked["split"] in config.splits else next(iter(config.splits))
    paths = config.splits[split]
    words, grouped = asked["q"].strip()[:MOST_WORDS], asked["view"] != "table"
    shown = window(
        Question(
            files=tuple(str(call.hub.blobs.path(files[path].sha256)) for path in paths[:MOST_FILES]),
            label=asked["label"],
            words=words,
            page=call.number("page", 1),
            grouped=grouped,
        )
    )
    label = asked["label"] if asked["label"] in dict(shown.labels) else ""
    kept = {"config": config.name, "split": split, "label": label, "q": words, "view": "" if grouped else "table"}

    def address(**changes: object) -> str:
        query = {name: value for name, value in {**kept, **changes}.items() if value}
        return f"{here}?{urlencode(query)}#rows"

    return {
        "shown": shown,
        "asked": kept,
        "configs": [(config.name, config.name) for config in configs],
        "splits": [(name, name) for name in dict.fromkeys(name for config in configs for name in config.splits)],
        "labels": [("", "all"), *((name, f"{name} ({count:,} rows)") for name, count in shown.labels)],
        "here": here,
        "path": paths[shown.broken or 0],
        "more_files": max(0, len(paths) - MOST_FILES),
        "others": {
            title: address(page=number)
            for title, number in {
                "First": 1,
                "Previous": shown.page - 1,
                "Next": shown.page + 1,
                "Last": shown.pages,
            }.items()
            if 1 <= number <= shown.pages and number != shown.page
        },
        "other_view": address(view="table" if grouped else "", page=shown.page),
        "all_rows": address(label="", q="") if label or words else "",
    }


def _visible(call: Call) -> list[tuple[Repo, Commit]]:
    """Repos that the visitor may see, with the last commit of main, newest first."""
    with call.hub.database.reading() as db:
        repos = [repo for kind in KINDS.values() for repo in list_repos(db, kind, call.actor)]
        found = [(repo, resolve(db, repo.id, "main")) for repo in repos]
    return sorted(found, key=lambda pair: pair[1].date, reverse=True)


def front(call: Call) -> Response:
    """The start page: owners, and the repos that changed last."""
    repos = _visible(call)
    owners: dict[str, int] = {}
    for repo, _ in repos:
        owners[repo.namespace] = owners.get(repo.namespace, 0) + 1
    return rendering.page(
        "front.html",
        call.endpoint,
        title="Local Hub",
        owners=sorted(owners.items(), key=lambda owner: owner[0].lower()),
        newest=repos[:_NEWEST],
        more=max(0, len(repos) - _NEWEST),
    )


def owner(call: Call) -> Response:
    """The page of a user or an organisation: its datasets and models, newest change first."""
    asked = call.args["namespace"]
    with call.hub.database.reading() as db:
        row = db.execute("SELECT name, is_org FROM namespaces WHERE name = ?", (asked,)).fetchone()
    if row is None:
        raise HubError(404, f"There is no user or organisation {asked!r} on this Hub.")
    mine = [pair for pair in _visible(call) if pair[0].namespace.lower() == row["name"].lower()]
    kinds = {plural: [pair for pair in mine if pair[0].kind == kind] for plural, kind in reversed(KINDS.items())}
    return rendering.page(
        "owner.html", call.endpoint, title=row["name"], is_org=bool(row["is_org"]), kinds=kinds, empty=not mine
    )


def repo(call: Call) -> Response:
    """The page of one repo at a revision: rows of a dataset, card, files and last commits."""
    here = place(call)
    found = here.repo
    with call.hub.database.reading() as db:
        files = {path: file for path, _oid, file in walk(db, here.commit.tree) if file}
        commits = [commit for commit, _ in zip(history(db, found.id, here.commit), range(_COMMITS), strict=False)]
    readme = files.get("README.md")
    stored = call.hub.blobs.path(readme.sha256) if readme else None
    metadata = cards.stored_metadata(stored) if stored else {}
    configs = cards.configs(metadata, list(files)) if found.kind == "dataset" else []
    shown = card(stored, here.content) if stored else Card()
    return rendering.page(
        "repo.html",
        call.endpoint,
        title=found.full_name,
        place=here,
        usage=_usage(found, here.name),
        facts=cards.tags(found.kind, metadata)[:_TAGS],
        card=shown.html,
        problem=shown.problem or ("" if metadata else _NO_CARD),
        view=rows_view(call, here.here, configs, files) if configs else None,
        files=len(files),
        size=sum(file.size for file in files.values()),
        commits=commits,
    )


def _usage(repo: Repo, revision: str) -> str:
    """The lines of Python that load a repo."""
    pinned = f", revision={json.dumps(revision)}" if revision != "main" else ""
    if repo.kind == "dataset":
        return f'from datasets import load_dataset\ndataset = load_dataset("{repo.full_name}"{pinned})'
    loaded = f'SentenceTransformer("{repo.full_name}"{pinned})'
    return f"from sentence_transformers import SentenceTransformer\nmodel = {loaded}"


def asks_for_page(method: str, path: str, accept: str) -> bool:
    """Whether a browser asks for a page: not for one of the addresses that clients use."""
    return method in ("GET", "HEAD") and "text/html" in accept and not _API.fullmatch(path)


def tree(call: Call) -> Response:
    """The listing of a folder, folders first; the root when no path is given."""
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
    """One file: rows of parquet, a picture, text with line numbers, or its size and SHA-256; and its download."""
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
    """Return the first lines of a stored file; None for other content than UTF-8 text."""
    with stored.open("rb") as content:
        start = content.read(_TEXT)
    try:
        text = getincrementaldecoder("utf-8")().decode(start, final=len(start) < _TEXT)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def report(call: Call) -> Response:
    """The report of a repo as HTML in a sandbox: it runs no script, fetches nothing and shares no origin."""
    stored = call.hub.blobs.path(_file(call, place(call), REPORT).sha256)
    return FileResponse(stored, media_type="text/html; charset=utf-8", headers=rendering.REPORT_HEADERS)
