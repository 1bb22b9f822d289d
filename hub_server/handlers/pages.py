"""HTML pages: the list of repos, and a repo's card, first rows, files and commits. No scripts, all escaped."""

import base64
import hashlib
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from starlette.responses import HTMLResponse, Response

from hub_server.http.call import Call
from hub_server.pages import cards
from hub_server.pages.preview import preview
from hub_server.storage.repos import KINDS, history, list_refs, list_repos, resolve
from hub_server.storage.trees import walk

_FILES, _COMMITS, _TAGS = 500, 50, 30
_GATED = "This repo is gated: its rows and files are for those whom its owners let in."
_NO_CARD = "There is no README.md with metadata that can be read."
_TEMPLATES = Path(__file__).parents[1] / "pages" / "templates"
_STYLE = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_PAGES = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
_PAGES.globals["style"] = _STYLE
_PAGES.filters["day"] = lambda seconds: datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _page(template: str, **facts: object) -> Response:
    return HTMLResponse(_PAGES.get_template(template).render(facts), headers=_HEADERS)


def front(call: Call) -> Response:
    """The front page: all repos that an anonymous visitor may see (a browser sends no token), newest change first."""
    with call.hub.database.reading() as db:
        kinds = {
            plural: [(repo, resolve(db, repo.id, "main")) for repo in list_repos(db, kind, call.actor)]
            for plural, kind in KINDS.items()
        }
    for repos in kinds.values():
        repos.sort(key=lambda pair: pair[1].date, reverse=True)
    return _page("front.html", title="Local Hub", endpoint=call.endpoint, kinds=kinds)


def repo(call: Call) -> Response:
    """The page of one repo at a revision."""
    found = call.repo()
    with call.hub.database.reading() as db:
        commit = resolve(db, found.id, call.args.get("revision", "main"))
        tree = {path: file for path, _oid, file in walk(db, commit.tree) if file}
        versions = [
            ref.removeprefix("refs/tags/") for ref, _ in list_refs(db, found.id) if ref.startswith("refs/tags/")
        ]
        commits = list(history(db, found.id, commit))
    content = {path: call.hub.blobs.path(file.sha256) for path, file in tree.items()}
    readme, base = content.get("README.md"), f"/{found.url_path}/resolve/{commit.oid}/"
    metadata = cards.stored_metadata(readme) if readme else {}
    configs = cards.configs(metadata, list(tree)) if found.kind == "dataset" and not found.gated else []
    shown = preview(readme, base, tuple(content[config.path] for config in configs))
    return _page(
        "repo.html",
        title=found.full_name,
        repo=found,
        commit=commit,
        base=base,
        versions=versions,
        tags=cards.tags(found.kind, metadata)[:_TAGS],
        card=shown.card,
        problem=_GATED if found.gated else shown.problem or ("" if metadata else _NO_CARD),
        tables=list(zip(configs, shown.tables, strict=True)),
        files=[(path, file.size) for path, file in list(tree.items())[:_FILES]],
        more_files=max(0, len(tree) - _FILES),
        size=sum(file.size for file in tree.values()),
        commits=commits[:_COMMITS],
        more_commits=max(0, len(commits) - _COMMITS),
    )
