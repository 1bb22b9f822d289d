"""Handlers about whole repos: who am I, create, delete, settings, information, listing, permission and card checks."""

import sqlite3

from starlette.responses import PlainTextResponse, Response

from hub.local import cards
from hub.local.access import require_actor, require_write
from hub.local.attributes import default_gitattributes
from hub.local.call import Call, Hub, is_on
from hub.local.commits import first_commit, stage_regular
from hub.local.names import check_repo_name
from hub.local.refs import Commit, resolve, timestamp
from hub.local.replies import HubError, json_reply, repo_not_found
from hub.local.repos import KINDS, Repo, create_repo, delete_repo, find_repo, list_repos, move_repo, set_private
from hub.local.trees import files, find_file, walk

_LIST_PAGE, _LIST_MOST = 100, 1000


def whoami(call: Call) -> Response:
    """The account behind the token."""
    actor = require_actor(call.actor)
    token = {"displayName": f"{actor.name}-{actor.role}", "role": actor.role}
    orgs = [{"type": "org", "name": org, "fullname": org, "roleInOrg": "write"} for org in actor.orgs]
    account = {"type": "user", "id": actor.name, "name": actor.name, "fullname": actor.name, "isPro": False}
    auth = {"type": "access_token", "accessToken": token}
    return json_reply({**account, "email": f"{actor.name}@localhost", "orgs": orgs, "auth": auth})


def _named(call: Call, asked: dict) -> tuple[str, str, str]:
    """(kind, namespace, name) of a create or delete request; the actor may write there."""
    actor, kind = require_actor(call.actor), _kind(asked)
    namespace = asked.get("organization") or actor.name
    if not isinstance(namespace, str):
        raise HubError(400, "organization must be text")
    require_write(actor, namespace)
    return kind, namespace, check_repo_name(asked.get("name"))


def _kind(asked: dict) -> str:
    kind = asked.get("type") or "model"
    if kind not in KINDS.values():
        raise HubError(400, f"This local Hub stores models and datasets, not {kind!r}")
    return kind


def create(call: Call) -> Response:
    """Make a repo with its first commit, which holds ``.gitattributes``."""
    asked = call.json()
    kind, namespace, name = _named(call, asked)
    private = asked.get("visibility") == "private" or is_on(asked.get("private"))
    with call.hub.blobs.staging() as staging:
        oid, blob = stage_regular(default_gitattributes(kind), ".gitattributes", staging)
        staging.settle()
    actor = require_actor(call.actor)
    with call.hub.database.writing() as db:
        existing = find_repo(db, kind, namespace, name)
        if existing:
            url = f"{call.endpoint}/{existing.url_path}"
            raise HubError(409, f"You already created this {kind} repo: {existing.full_name}", url=url)
        repo = create_repo(db, kind, namespace, name, private=private)
        first_commit(db, repo, actor.name, ".gitattributes", oid, blob)
    return json_reply({"url": f"{call.endpoint}/{repo.url_path}", "name": repo.full_name, "id": str(repo.id)})


def delete(call: Call) -> Response:
    """Remove a repo."""
    kind, namespace, name = _named(call, call.json())
    with call.hub.database.writing() as db:
        repo = find_repo(db, kind, namespace, name)
        if repo is None:
            raise repo_not_found(anonymous=False)
        delete_repo(db, repo)
    return json_reply({})


def move(call: Call) -> Response:
    """Rename a repo or give it to another owner; the actor may write to both."""
    asked, actor = call.json(), require_actor(call.actor)
    kind, (namespace, name) = _kind(asked), _split_id(asked.get("fromRepo"))
    new_namespace, new_name = _split_id(asked.get("toRepo"))
    with call.hub.database.writing() as db:
        repo = find_repo(db, kind, namespace, name)
        if repo is None or not repo.visible_to(actor):
            raise repo_not_found(anonymous=False)
        for owner in (repo.namespace, new_namespace):
            require_write(actor, owner)
        taken = find_repo(db, kind, new_namespace, check_repo_name(new_name))
        if taken is not None and taken.id != repo.id:
            raise HubError(409, f"A {kind} repository called {taken.full_name} already exists")
        move_repo(db, repo, new_namespace, new_name)
    return json_reply({})


def _split_id(repo_id: object) -> tuple[str, str]:
    namespace, slash, name = repo_id.partition("/") if isinstance(repo_id, str) else ("", "", "")
    if not slash:
        raise HubError(400, "fromRepo and toRepo must be namespace/name")
    return namespace, name


def settings(call: Call) -> Response:
    """Hide or show a repo."""
    repo = call.repo(write=True)
    asked = call.json()
    if is_on(asked.get("gated")) or asked.get("gated") in ("auto", "manual"):
        raise HubError(400, "This local Hub has no gated repos")
    with call.hub.database.writing() as db:
        if "visibility" in asked or "private" in asked:
            set_private(db, repo, asked.get("visibility") == "private" or is_on(asked.get("private")))
    return json_reply({})


def auth_check(call: Call) -> Response:
    """Whether the actor may read the repo (the lookup says so) or write to it."""
    call.repo(write=bool(call.args.get("write")))
    return json_reply({})


def info(call: Call) -> Response:
    """What is known about a repo at a revision."""
    repo = call.repo()
    expand = call.query.getlist("expand") + call.query.getlist("expand[]")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args.get("revision") or "main")
        known = describe(call.hub, db, repo, commit)
        if not expand or "siblings" in expand:
            known["siblings"] = _siblings(db, commit, blobs=call.flag("blobs"))
    if expand:
        known = {key: value for key, value in known.items() if key in ("_id", "id", *expand)}
    return json_reply(known)


def describe(hub: Hub, db: sqlite3.Connection, repo: Repo, commit: Commit) -> dict:
    """The facts about a repo that do not need a walk through its files."""
    readme = find_file(db, commit.tree, "README.md")
    card = cards.stored_metadata(hub.blobs.path(readme.sha256)) if readme else {}
    known: dict = {
        "_id": str(repo.id),
        "id": repo.full_name,
        "author": repo.namespace,
        "sha": commit.oid,
        "lastModified": timestamp(commit.date),
        "createdAt": timestamp(repo.created),
        "private": repo.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": cards.tags(repo.kind, card),
    }
    if card:
        known["cardData"] = card
    if repo.kind == "model":
        known |= {"modelId": repo.full_name, "config": {}}
        known |= {key: card[key] for key in ("library_name", "pipeline_tag") if isinstance(card.get(key), str)}
    return known


def _siblings(db: sqlite3.Connection, commit: Commit, *, blobs: bool) -> list[dict]:
    found = [(path, entry.oid) for path, entry in walk(db, commit.tree) if not entry.is_folder]
    if not blobs:
        return [{"rfilename": path} for path, _ in found]
    stored, siblings = files(db, (oid for _, oid in found)), []
    for path, oid in found:
        file = stored[oid]
        sibling: dict = {"rfilename": path, "size": file.size, "blobId": oid}
        if file.lfs:
            sibling["lfs"] = {"sha256": file.sha256, "size": file.size, "pointerSize": file.pointer_size}
        siblings.append(sibling)
    return siblings


def listing(call: Call) -> Response:
    """The repos of a kind that the actor may see: by author, words in the name and tags; newest change first."""
    kind = KINDS.get(call.args["kind"], "")
    author = call.query.get("author", "").lower()
    words = [word.lower() for word in call.query.getlist("search")]
    wanted = set(call.query.getlist("filter"))
    with call.hub.database.reading() as db:
        found = [
            describe(call.hub, db, repo, resolve(db, repo.id, "main"))
            for repo in list_repos(db, kind, call.actor)
            if author in ("", repo.namespace.lower()) and all(word in repo.full_name.lower() for word in words)
        ]
    found = [repo for repo in found if wanted <= set(repo["tags"])]
    key = "createdAt" if call.query.get("sort") == "createdAt" else "lastModified"
    found.sort(key=lambda repo: repo[key], reverse=True)
    size, start = call.page(_LIST_PAGE, _LIST_MOST), call.number("cursor")
    headers = call.next_link(cursor=start + size) if start + size < len(found) else {}
    return json_reply(found[start : start + size], headers=headers)


def own_repos(call: Call) -> Response:
    """The repos of a namespace that the actor owns, with the bytes of their large files."""
    actor = require_actor(call.actor)
    namespace = call.args.get("namespace") or actor.name
    if not actor.owns(namespace):
        raise HubError(403, f"{actor.name} is not a member of {namespace}")
    shown = []
    with call.hub.database.reading() as db:
        sizes = dict(db.execute("SELECT repo, sum(size) FROM lfs_objects GROUP BY repo").fetchall())
        for kind in KINDS.values():
            for repo in list_repos(db, kind, actor):
                if repo.namespace.lower() == namespace.lower():
                    item = {"id": repo.full_name, "type": kind, "storage": sizes.get(repo.id, 0), "storagePercent": 0}
                    item["updatedAt"] = timestamp(resolve(db, repo.id, "main").date)
                    shown.append(item | {"visibility": "private" if repo.private else "public"})
    return json_reply(shown)


def not_served(call: Call) -> Response:
    """What the real Hub has beyond models' and datasets' files: an answer that says which of the two is missing."""
    call.repo()
    raise HubError(
        404, "This local Hub serves files, commits and cards of models and datasets: nothing at this address"
    )


def validate_yaml(call: Call) -> Response:
    """Check a card's front matter; plain text for those who ask for it."""
    errors, warnings = cards.problems(str(call.json().get("content", "")))
    status = 400 if errors else 200
    if call.headers.get("accept") == "text/plain":
        lines = [f"- Error: {text}" for text in errors] + [f"- Warning: {text}" for text in warnings]
        return PlainTextResponse("\n".join(lines), status)
    messages = {"errors": [{"message": text} for text in errors], "warnings": [{"message": text} for text in warnings]}
    return json_reply(messages, status)
