"""Pages for people: the list of repos, and a repo's card, first rows, files and commits. No scripts, all escaped."""

import base64
import hashlib
from datetime import UTC, datetime

from jinja2 import Environment
from starlette.responses import HTMLResponse, Response

from hub.local import cards
from hub.local.call import Call
from hub.local.page_templates import FRONT, REPO, STYLE
from hub.local.preview import Table, preview
from hub.local.refs import history, list_refs, resolve
from hub.local.repos import KINDS, Repo, list_repos
from hub.local.trees import files, walk

_FILES, _COMMITS = 500, 50
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


_PAGES = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
_PAGES.filters["day"] = _day
_PAGES.globals["style"] = STYLE
_FRONT, _REPO = _PAGES.from_string(FRONT), _PAGES.from_string(REPO)


def front(call: Call) -> Response:
    """All repos that an anonymous visitor may see (a browser sends no token), newest change first."""
    with call.hub.database.reading() as db:
        kinds = {
            plural: [(repo, resolve(db, repo.id, "main")) for repo in list_repos(db, kind, call.actor)]
            for plural, kind in KINDS.items()
        }
    for repos in kinds.values():
        repos.sort(key=lambda pair: pair[1].date, reverse=True)
    return HTMLResponse(_FRONT.render(title="Local Hub", endpoint=call.endpoint, kinds=kinds), headers=_HEADERS)


def repo(call: Call) -> Response:
    """One repo at a revision."""
    found = call.repo()
    with call.hub.database.reading() as db:
        commit = resolve(db, found.id, call.args.get("revision") or "main")
        entries = [(path, entry.oid) for path, entry in walk(db, commit.tree) if not entry.is_folder]
        stored = files(db, (oid for _, oid in entries))
        tags = [ref.removeprefix("refs/tags/") for ref, _ in list_refs(db, found.id) if ref.startswith("refs/tags/")]
        commits = list(history(db, found.id, commit))
    tree = {path: stored[oid] for path, oid in entries}
    content = {path: call.hub.blobs.path(file.sha256) for path, file in tree.items()}
    readme, base = content.get("README.md"), f"/{found.url_path}/resolve/{commit.oid}/"
    metadata = cards.stored_metadata(readme) if readme else {}
    configs = cards.configs(metadata, list(tree)) if found.kind == "dataset" else []
    shown = preview(readme, base, tuple(content[config.path] for config in configs))
    tables = shown.tables or [Table(problem="not shown")] * len(configs)
    page = _REPO.render(
        title=found.full_name,
        repo=found,
        commit=commit,
        base=base,
        tags=tags,
        usage=_usage(found),
        card=shown.card,
        problem=shown.problem or ("" if metadata else "There is no README.md with metadata that can be read."),
        metadata=cards.summary(metadata),
        tables=list(zip(configs, tables, strict=True)),
        files=[(path, file.size) for path, file in list(tree.items())[:_FILES]],
        more_files=max(0, len(tree) - _FILES),
        size=sum(file.size for file in tree.values()),
        commits=commits[:_COMMITS],
        more_commits=max(0, len(commits) - _COMMITS),
    )
    return HTMLResponse(page, headers=_HEADERS)


def _usage(repo: Repo) -> str:
    if repo.kind == "dataset":
        return f'from datasets import load_dataset\ndataset = load_dataset("{repo.full_name}")'
    lines = "from sentence_transformers import SentenceTransformer\nmodel = SentenceTransformer({!r})"
    return lines.format(repo.full_name).replace("'", '"')
