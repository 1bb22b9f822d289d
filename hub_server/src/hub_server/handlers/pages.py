"""HTML pages of the Hub, of an owner and of a repo, for people: they see what an anonymous visitor may see."""

import json
import re

from starlette.responses import Response

from hub_server.handlers.page_places import place, rows_view
from hub_server.http.call import Call
from hub_server.pages import cards, rendering
from hub_server.pages.card_html import Card, card
from hub_server.storage.refusals import HubError
from hub_server.storage.repos import KINDS, Commit, Repo, history, list_repos, resolve
from hub_server.storage.trees import walk

_NEWEST, _COMMITS, _TAGS = 50, 5, 30
_GATED = "This repo is gated: its rows and files are for those whom its owners let in."
_NO_CARD = "There is no README.md with metadata that can be read."


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
    """The page of one repo at a revision: rows of a dataset, card, files and commits."""
    here = place(call)
    found = here.repo
    with call.hub.database.reading() as db:
        files = {path: file for path, _oid, file in walk(db, here.commit.tree) if file}
        commits = [commit for commit, _ in zip(history(db, found.id, here.commit), range(_COMMITS), strict=False)]
    readme = files.get("README.md")
    stored = call.hub.blobs.path(readme.sha256) if readme else None
    metadata = cards.stored_metadata(stored) if stored else {}
    configs = cards.configs(metadata, list(files)) if found.kind == "dataset" and not found.gated else []
    shown = card(stored, here.content) if stored else Card()
    return rendering.page(
        "repo.html",
        call.endpoint,
        title=found.full_name,
        place=here,
        usage=_usage(found, here.name),
        facts=cards.tags(found.kind, metadata)[:_TAGS],
        card=shown.html,
        problem=_GATED if found.gated else shown.problem or ("" if metadata else _NO_CARD),
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


def script(_: Call) -> Response:
    """The script of the copy buttons; all else works without it."""
    return rendering.script()


_OF_CLIENTS = re.compile(r"/(?:api|xet|lfs-upload|uploads|papers|buckets)(?:/.*)?|.*/resolve/.*|.*\.git/.*|/-/.*")


def asks_for_page(method: str, path: str, accept: str) -> bool:
    """Whether a person waits for the answer: a browser's request that is none of a client's addresses."""
    return method in ("GET", "HEAD") and "text/html" in accept and not _OF_CLIENTS.fullmatch(path)
