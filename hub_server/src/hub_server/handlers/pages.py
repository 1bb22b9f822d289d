"""HTML pages for a browser, with an anonymous visitor's rights: the Hub, an owner, a repo, a file.

A page has only links and GET forms, so its address holds the view. Templates escape every value but
the cleaned card, and a strict policy allows no script at all. A ``report.html`` is untrusted HTML:
its sandbox has no scripts, no origin and no other address.

Pages of a repo also raise the errors of ``Call.get_repo``, and HubError 404 for a missing revision.
"""

import base64
import hashlib
import json
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader
from starlette.responses import FileResponse, HTMLResponse, Response

from hub_server.handlers.call import Call
from hub_server.handlers.files import PICTURES
from hub_server.pages import cards
from hub_server.pages.cards import Config
from hub_server.pages.readers import (
    MOST_FILES,
    MOST_WORDS,
    Card,
    Question,
    Window,
    escape_hidden_characters,
    show_card,
    show_rows,
)
from hub_server.storage.errors import HubError, make_missing_entry_error
from hub_server.storage.repos import (
    KINDS,
    Commit,
    Repo,
    list_refs,
    list_repos,
    resolve_revision,
    walk_history,
)
from hub_server.storage.trees import File, find_entry, find_file, walk

REPORT = "report.html"  # a self-contained page that a run directory may hold
# The most items that a page shows
_NEWEST = 50  # repos that changed last
_MOST_OWNERS = 1000
_COMMITS = 20
_TAGS = 30
_ENTRIES = 1000  # of a folder
_TEXT = 200_000  # bytes of a file
_LINES = 5_000  # of a file
_NO_CARD = "There is no README.md with metadata that can be read."
_TEMPLATES = Path(cards.__file__).with_name("templates")
_STYLE = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_QUIET = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_REPORT_HEADERS = _QUIET | {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Cache-Control": "no-cache",
}
_ADVICE = {
    "RepoNotFound": "Its name may be misspelt, or it is private: these pages show public repos "
    "only. A private one is read by a client with a token: hf download NAME (--repo-type dataset), "
    "with HF_ENDPOINT and HF_TOKEN_PATH set.",
    "RevisionNotFound": "A revision is a branch, a tag or a commit id; "
    "the repo's page names its tags.",
    "EntryNotFound": "The file or folder may have another name in this revision.",
}
_FAILED = (
    "The server's own fault: its log (stderr) has the details. "
    "Load the page again, or go to the start page."
)


def _escape_text(value: object) -> object:
    """Return plain text with hidden characters made visible; other values as they are."""
    # Markup, a subclass of str, is the HTML of this Hub's own templates and the cleaned card.
    if type(value) is str:
        return escape_hidden_characters(value)
    return value


def format_time(seconds: int) -> str:
    """Return a time (Unix seconds) as text, such as ``2024-01-31 12:00 UTC``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_PAGES = Environment(
    loader=FileSystemLoader(_TEMPLATES),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_escape_text,
)
_PAGES.globals["style"] = _STYLE
_PAGES.filters |= {"time": format_time, "number": "{:,}".format}


def render_page(template: str, endpoint: str, status: int = 200, **facts: object) -> Response:
    """Return a rendered template as an HTML response whose policy allows no script.

    ``endpoint``: this server's own address. ``facts``: the values of the template.
    """
    policy = (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self'; frame-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    html = _PAGES.get_template(template).render(endpoint=endpoint, **facts)
    return HTMLResponse(html, status, _QUIET | {"Content-Security-Policy": policy})


def render_error_page(
    endpoint: str, path: str, status: int, message: str, code: str = ""
) -> Response:
    """Return an error as an HTML page: the problem and the next step.

    Args:
        endpoint: this server's own address.
        path: path of the request, percent-encoded.
        status: HTTP status.
        message: the problem, as clients get it.
        code: the X-Error-Code that clients map to an exception.
    """
    reason = "Not found" if code == "RepoNotFound" else HTTPStatus(status).phrase
    default_advice = _FAILED if status == HTTPStatus.INTERNAL_SERVER_ERROR else ""
    repo = ""
    if code in ("RevisionNotFound", "EntryNotFound"):
        # The repo's page: /namespace/name, or /datasets/namespace/name.
        segments = 4 if path.startswith("/datasets/") else 3
        repo = "/".join(path.split("/")[:segments])
    return render_page(
        "error.html",
        endpoint,
        status,
        title=f"{status} {reason}",
        message=message,
        advice=_ADVICE.get(code, default_advice),
        repo=repo,
    )


class RepoRevision(NamedTuple):
    """A repo at a revision.

    ``name``: the revision in the visitor's address; ``tags``: all tags, in descending order;
    ``has_report``: whether the commit has the file ``REPORT``.
    """

    repo: Repo
    commit: Commit
    name: str
    tags: list[str]
    has_report: bool

    @property
    def repo_url(self) -> str:
        """The repo's page."""
        return f"/{self.repo.url_path}"

    @property
    def url(self) -> str:
        """The repo's page at this revision."""
        return self.repo_url if self.name == "main" else self.build_url("commit")

    @property
    def content_url(self) -> str:
        """The address of this commit's files, with a slash at the end."""
        return f"{self.repo_url}/resolve/{self.commit.oid}/"

    def build_url(self, kind: str, path: str = "") -> str:
        """Return the address of a page of this revision; ``kind``: blob, tree, report or commit."""
        below = f"/{quote(path)}" if path else ""
        return f"{self.repo_url}/{kind}/{quote(self.name, safe='')}{below}"


def find_repo_revision(call: Call) -> RepoRevision:
    """Return the repo and the revision (default: main) in a page's path.

    Raises the errors of ``Call.get_repo``, and HubError 404 for a missing revision.
    """
    repo = call.get_repo()
    name = call.args.get("revision", "main")
    with call.hub.database.begin_read() as db:
        commit = resolve_revision(db, repo.id, name)
        refs = list_refs(db, repo.id)
        has_report = find_file(db, commit.tree, REPORT) is not None
    tags = [ref.removeprefix("refs/tags/") for ref, _ in refs if ref.startswith("refs/tags/")]
    tags.reverse()
    return RepoRevision(repo, commit, name, tags, has_report)


def build_rows_view(
    call: Call, url: str, configs: list[Config], files: dict[str, File]
) -> dict[str, object]:
    """Return the values of the template ``rows.html``: rows, the form's values, addresses.

    Files that cannot be read raise nothing: ``window`` then holds the problem.

    Args:
        call: the request, with the form's values as query.
        url: the address of the page.
        configs: the dataset's configs, at least one.
        files: path → file of the commit.
    """
    # Choose the split and its files.
    config, split = _choose_split(configs, call.query)
    paths = config.splits[split]
    stored_files = [call.hub.blobs.get_path(files[path].sha256) for path in paths[:MOST_FILES]]

    # Read the page of rows.
    label = call.query.get("label", "")
    search_text = call.query.get("q", "").strip()[:MOST_WORDS]
    is_grouped = call.query.get("view", "") != "table"
    window = show_rows(
        Question(
            files=tuple(map(str, stored_files)),
            label=label,
            words=search_text,
            page=call.parse_number("page", 1),
            grouped=is_grouped,
        )
    )

    # The form's values, and its choices: (value, text) of each.
    query = {
        "config": config.name,
        "split": split,
        "label": label if label in dict(window.labels) else "",
        "q": search_text,
        "view": "" if is_grouped else "table",
    }
    split_names: dict[str, None] = {}
    for any_config in configs:
        split_names |= dict.fromkeys(any_config.splits)
    label_options = [(name, f"{name} ({count:,} rows)") for name, count in window.labels]

    # The addresses that change one of the values.
    other_view = "table" if is_grouped else ""
    all_rows_url = ""
    if query["label"] or search_text:
        all_rows_url = _build_rows_url(url, query, label="", q="")
    return {
        "window": window,
        "query": query,
        "configs": [(any_config.name, any_config.name) for any_config in configs],
        "splits": [(name, name) for name in split_names],
        "labels": [("", "all"), *label_options],
        "url": url,
        # The file that cannot be read; without a problem, the template shows no path.
        "path": paths[window.broken or 0],
        "more_files": max(0, len(paths) - MOST_FILES),
        "page_urls": _build_page_urls(url, query, window),
        "other_view_url": _build_rows_url(url, query, view=other_view, page=window.page),
        "all_rows_url": all_rows_url,
    }


def _choose_split(configs: list[Config], query: Mapping[str, str]) -> tuple[Config, str]:
    """Return the config and the name of the split in a query.

    An unknown config is replaced by the first one, and a split that the config lacks by its first
    split: when a visitor chooses another config, the form still has the old split.
    """
    configs_by_name = {config.name: config for config in configs}
    config = configs_by_name.get(query.get("config", ""), configs[0])
    split = query.get("split", "")
    if split not in config.splits:
        split = next(iter(config.splits))
    return config, split


def _build_rows_url(url: str, query: dict[str, str], **changes: object) -> str:
    """Return the address of a page of rows for a query with ``changes``, without empty values."""
    changed_query = query | changes
    values = {name: value for name, value in changed_query.items() if value}
    return f"{url}?{urlencode(values)}#rows"


def _build_page_urls(url: str, query: dict[str, str], window: Window) -> dict[str, str]:
    """Return title → address of the first, previous, next and last page of rows.

    Pages that do not exist and the current page are left out.
    """
    numbers = {
        "First": 1,
        "Previous": window.page - 1,
        "Next": window.page + 1,
        "Last": window.pages,
    }
    return {
        title: _build_rows_url(url, query, page=number)
        for title, number in numbers.items()
        if 1 <= number <= window.pages and number != window.page
    }


def _list_visible_repos(call: Call) -> list[tuple[Repo, Commit]]:
    """Return the repos that the visitor may read, each with main's newest commit.

    The repo that changed last comes first.
    """
    pairs = []
    with call.hub.database.begin_read() as db:
        for kind in KINDS.values():
            for repo in list_repos(db, kind, call.actor):
                pairs.append((repo, resolve_revision(db, repo.id, "main")))
    return sorted(pairs, key=lambda pair: pair[1].date, reverse=True)


def show_front(call: Call) -> Response:
    """Show the start page: owners, and the repos that changed last."""
    repos = _list_visible_repos(call)
    owners = Counter(repo.namespace for repo, _ in repos)
    sorted_owners = sorted(owners.items(), key=lambda owner: owner[0].lower())
    return render_page(
        "front.html",
        call.endpoint,
        title="Local Hub",
        owners=sorted_owners[:_MOST_OWNERS],
        more_owners=max(0, len(owners) - _MOST_OWNERS),
        newest=repos[:_NEWEST],
        more=max(0, len(repos) - _NEWEST),
    )


def show_owner(call: Call) -> Response:
    """Show a user or an organisation: its datasets and models, newest change first.

    Raises HubError 404 for an unknown name.
    """
    namespace = call.args["namespace"]
    query = "SELECT name, is_org FROM namespaces WHERE name = ?"
    with call.hub.database.begin_read() as db:
        row = db.execute(query, (namespace,)).fetchone()
    if row is None:
        raise HubError(404, f"There is no user or organisation {namespace!r} on this Hub.")
    pairs_by_kind: dict[str, list] = {kind: [] for kind in KINDS.values()}
    for repo, commit in _list_visible_repos(call):
        if repo.namespace.lower() == row["name"].lower():
            pairs_by_kind[repo.kind].append((repo, commit))
    datasets_first = reversed(KINDS.items())  # the page lists datasets before models
    return render_page(
        "owner.html",
        call.endpoint,
        title=row["name"],
        is_org=bool(row["is_org"]),
        kinds={plural: pairs_by_kind[kind] for plural, kind in datasets_first},
        empty=not any(pairs_by_kind.values()),
    )


def show_repo(call: Call) -> Response:
    """Show one repo at a revision: rows of a dataset, card, files and last commits.

    A card or rows that cannot be read are replaced by their problem. Raises HubError 404 for a
    missing repo or revision.
    """
    # Read the index.
    revision = find_repo_revision(call)
    repo = revision.repo
    with call.hub.database.begin_read() as db:
        files = {path: file for path, _oid, file in walk(db, revision.commit.tree) if file}
        commits = list(islice(walk_history(db, repo.id, revision.commit), _COMMITS))

    # Render the card.
    metadata: dict = {}
    card = Card()
    if "README.md" in files:
        readme = call.hub.blobs.get_path(files["README.md"].sha256)
        metadata = cards.read_stored_metadata(readme)
        card = show_card(readme, revision.content_url)

    # Read the rows of a dataset.
    view = None
    if repo.kind == "dataset":
        configs = cards.list_configs(metadata, list(files))
        if configs:
            view = build_rows_view(call, revision.url, configs, files)
    return render_page(
        "repo.html",
        call.endpoint,
        title=repo.full_name,
        revision=revision,
        usage=_format_usage(repo, revision.name),
        facts=cards.list_tags(repo.kind, metadata)[:_TAGS],
        card=card.html,
        problem=card.problem or ("" if metadata else _NO_CARD),
        view=view,
        files=len(files),
        size=sum(file.size for file in files.values()),
        commits=commits,
    )


def _format_usage(repo: Repo, revision: str) -> str:
    """Return the lines of Python that load a repo at a revision."""
    pinned = f", revision={json.dumps(revision)}" if revision != "main" else ""
    arguments = f'"{repo.full_name}"{pinned}'
    if repo.kind == "dataset":
        return f"from datasets import load_dataset\ndataset = load_dataset({arguments})"
    return (
        "from sentence_transformers import SentenceTransformer\n"
        f"model = SentenceTransformer({arguments})"
    )


def show_folder(call: Call) -> Response:
    """Show the listing of a folder, folders first; the root when no path is given.

    Raises HubError 404 for a missing folder, and for the path of a file.
    """
    revision = find_repo_revision(call)
    path = call.args.get("path", "").strip("/")
    commit = revision.commit
    with call.hub.database.begin_read() as db:
        folder = find_entry(db, commit.tree, path)
        if folder is None or folder.file:
            problem = f"There is no folder {path!r} at {revision.name!r}"
            raise make_missing_entry_error(problem, commit.oid)
        entries = list(walk(db, folder.oid, path, recursive=False))
    entries.sort(key=lambda entry: entry.file is not None)  # False, a folder, sorts first
    return render_page(
        "tree.html",
        call.endpoint,
        title=f"{path or 'Files'} · {revision.repo.full_name}",
        revision=revision,
        path=path,
        entries=entries[:_ENTRIES],
        more=max(0, len(entries) - _ENTRIES),
    )


def show_file(call: Call) -> Response:
    """Show one file: rows of parquet, a picture, text with line numbers, or its size and SHA-256.

    Every file can be downloaded from its page. Raises HubError 404 for a missing file.
    """
    revision = find_repo_revision(call)
    path = call.args["path"]
    file = _get_file(call, revision, path)
    suffix = path.rpartition(".")[2].lower()
    content: dict[str, Any] = {}
    if suffix == "parquet":
        configs = [Config("", {"": [path]})]  # one file: the form shows no config and no split
        url = revision.build_url("blob", path)
        content["view"] = build_rows_view(call, url, configs, {path: file})
    elif suffix in PICTURES:
        content["picture"] = revision.content_url + quote(path)
    else:
        lines = _read_lines(call.hub.blobs.get_path(file.sha256))
        if lines is not None:
            content["lines"] = lines[:_LINES]
            content["cut"] = file.size > _TEXT or len(lines) > _LINES
    return render_page(
        "blob.html",
        call.endpoint,
        title=f"{path} · {revision.repo.full_name}",
        revision=revision,
        path=path,
        file=file,
        is_report=path == REPORT,
        **content,
    )


def _get_file(call: Call, revision: RepoRevision, path: str) -> File:
    """Return the file at ``path``. Raises HubError 404 for a missing file and for a folder."""
    with call.hub.database.begin_read() as db:
        file = find_file(db, revision.commit.tree, path)
    if file is None:
        problem = f"There is no file {path!r} at {revision.name!r}"
        raise make_missing_entry_error(problem, revision.commit.oid)
    return file


def _read_lines(stored: Path) -> list[str] | None:
    """Return the lines in the first ``_TEXT`` bytes of a file, without their line breaks.

    None unless these bytes are UTF-8 text without NUL characters.
    """
    with stored.open("rb") as content:
        start = content.read(_TEXT)
    is_whole = len(start) < _TEXT  # a longer file may be cut inside a character
    try:
        # An incremental decoder ignores a character that the limit cuts in two.
        text = getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def show_report(call: Call) -> Response:
    """Show the report of a repo in a sandbox: no script, no other address, no shared origin.

    Raises HubError 404 when the commit has no report.
    """
    file = _get_file(call, find_repo_revision(call), REPORT)
    return FileResponse(
        call.hub.blobs.get_path(file.sha256),
        media_type="text/html; charset=utf-8",
        headers=_REPORT_HEADERS,
    )
