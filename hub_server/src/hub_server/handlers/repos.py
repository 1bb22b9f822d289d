"""Handlers for accounts and repos: whoami, create, delete, settings, info, listing, card validation."""

import sqlite3
from typing import Literal

from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hub_server.handlers.call import Call, Hub
from hub_server.pages import cards
from hub_server.storage.commits import put_file, stage_regular, write_commit
from hub_server.storage.errors import HubError, not_served, repo_not_found
from hub_server.storage.repos import (
    KINDS,
    Commit,
    Repo,
    create_repo,
    find_repo,
    list_repos,
    resolve,
    timestamp,
)
from hub_server.storage.rules import RepoName, default_gitattributes
from hub_server.storage.trees import TreeEdit, find_file, walk

_LIST_PAGE, _LIST_MOST = 100, 1000
_NO_FILTERS = {"apps", "gated", "inference", "inference_provider", "num_parameters"}
Kind = Literal["model", "dataset"]


class NamedRepo(BaseModel):
    """Which repo to create or delete; without an organization it is the user's own."""

    type: Kind | None = None
    organization: str | None = None
    name: RepoName
    visibility: Literal["public", "private"] | None = None
    private: bool | None = None


class _Settings(BaseModel):
    visibility: Literal["public", "private"] | None = None
    private: bool | None = None
    gated: Literal[False] | None = None


def whoami(call: Call) -> dict:
    """The token's user, role and organisations."""
    name, role, orgs = call.user
    return {
        **{"type": "user", "id": name, "name": name, "fullname": name, "email": f"{name}@localhost", "isPro": False},
        "orgs": [{"type": "org", "name": org, "fullname": org, "roleInOrg": "write"} for org in orgs],
        "auth": {"type": "access_token", "accessToken": {"displayName": f"{name}-{role}", "role": role}},
    }


def create(call: Call) -> dict:
    """Create a repo with an initial commit of ``.gitattributes``."""
    asked, user = call.read(NamedRepo), call.user
    kind, namespace = asked.type or "model", asked.organization or user.name
    user.require_write(namespace)
    with call.hub.blobs.staging() as staging:
        file = stage_regular(default_gitattributes(kind), ".gitattributes", staging)
    with call.hub.database.writing() as db:
        existing = find_repo(db, kind, namespace, asked.name)
        if existing:
            url = f"{call.endpoint}/{existing.url_path}"
            raise HubError(409, f"You already created this {kind} repo: {existing.full_name}", url=url)
        private = asked.visibility == "private" or bool(asked.private)
        repo = create_repo(db, kind, namespace, asked.name, private=private)
        edit = TreeEdit(db, None)
        put_file(db, edit, ".gitattributes", file)
        write_commit(db, repo, "refs/heads/main", edit.save(), None, user.name, "initial commit", "")
    return {"url": f"{call.endpoint}/{repo.url_path}", "name": repo.full_name, "id": str(repo.id)}


def delete(call: Call) -> dict:
    """Delete a repo with its refs and commits; contents stay on the disk, out of reach."""
    asked, user = call.read(NamedRepo), call.user
    namespace = asked.organization or user.name
    user.require_write(namespace)
    with call.hub.database.writing() as db:
        repo = find_repo(db, asked.type or "model", namespace, asked.name)
        if repo is None:
            raise repo_not_found(anonymous=False)
        db.execute("DELETE FROM repos WHERE id = ?", (repo.id,))
    return {}


def settings(call: Call) -> dict:
    """Change the visibility of a repo."""
    repo, asked = call.repo(write=True), call.read(_Settings)
    private = asked.private if asked.visibility is None else asked.visibility == "private"
    if private is not None:
        with call.hub.database.writing() as db:
            db.execute("UPDATE repos SET private = ? WHERE id = ?", (private, repo.id))
    return {}


def info(call: Call) -> dict:
    """Repo info at a revision, as model_info and dataset_info read it."""
    repo, expand = call.repo(), call.options("expand")
    with call.hub.database.reading() as db:
        commit = resolve(db, repo.id, call.args.get("revision") or "main")
        known = _describe(call.hub, db, repo, commit)
        if not expand or "siblings" in expand:
            known["siblings"] = _siblings(db, commit, blobs=call.flag("blobs"))
    return _expanded(call, [known])[0]


def _describe(hub: Hub, db: sqlite3.Connection, repo: Repo, commit: Commit) -> dict:
    """Repo info without the listing of its files."""
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
    siblings = []
    for path, oid, file in walk(db, commit.tree):
        if file:
            sibling: dict = {"rfilename": path}
            if blobs:
                sibling |= {"size": file.size, "blobId": oid}
                sibling |= {"lfs": {"sha256": file.sha256, **file.lfs_facts}} if file.lfs else {}
            siblings.append(sibling)
    return siblings


def listing(call: Call) -> Response:
    """The repos of a kind that the actor may see, filtered; newest change first, or as ``sort`` says."""
    unknown = _NO_FILTERS & set(call.query)
    if unknown:
        raise HubError(400, f"This local Hub cannot filter repos by {' or '.join(sorted(unknown))}")
    author, words = call.query.get("author", "").lower(), [word.lower() for word in call.query.getlist("search")]
    with call.hub.database.reading() as db:
        found = [
            _describe(call.hub, db, repo, resolve(db, repo.id, "main"))
            for repo in list_repos(db, KINDS.get(call.args["kind"], ""), call.actor)
            if author in ("", repo.namespace.lower()) and all(word in repo.full_name.lower() for word in words)
        ]
    wanted = {*call.query.getlist("filter"), *call.query.getlist("pipeline_tag")}
    found = [repo for repo in found if wanted <= set(repo["tags"])]
    # Of the other orders the Hub has, all repos here are equal: none is downloaded, liked or trending.
    key = "createdAt" if call.query.get("sort") == "createdAt" else "lastModified"
    found.sort(key=lambda repo: repo[key], reverse=True)
    size, start = call.number("limit", _LIST_PAGE, _LIST_MOST), call.number("cursor")
    headers = call.next_link(cursor=start + size) if start + size < len(found) else {}
    return JSONResponse(_expanded(call, found[start : start + size]), headers=headers)


def _expanded(call: Call, repos: list[dict]) -> list[dict]:
    """Repo infos with the properties that ``expand`` names, else all."""
    expand = call.options("expand")
    return [{key: repo[key] for key in repo if not expand or key in ("_id", "id", *expand)} for repo in repos]


def not_found(call: Call) -> Response:
    """404 for an unknown path below a repo, with the repo's own error when that is missing."""
    call.repo()
    raise not_served()


class _Card(BaseModel):
    content: str = ""


def validate_yaml(call: Call) -> Response:
    """Validate a card's front matter; plain text for those who accept that."""
    errors, warnings = cards.problems(call.read(_Card).content)
    status = 400 if errors else 200
    if call.headers.get("accept") == "text/plain":
        lines = [f"- Error: {text}" for text in errors] + [f"- Warning: {text}" for text in warnings]
        return PlainTextResponse("\n".join(lines), status)
    messages = {"errors": [{"message": text} for text in errors], "warnings": [{"message": text} for text in warnings]}
    return JSONResponse(messages, status)
