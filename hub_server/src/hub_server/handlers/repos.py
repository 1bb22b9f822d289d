"""Handlers for accounts, repos, their commits, branches and tags, and the validation of cards.

Handlers of a repo also raise the errors of ``Call.get_repo``; handlers that read a JSON body also
raise ValidationError.
"""

import sqlite3
from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from hub_server.handlers.call import Call, Hub, take_page
from hub_server.pages import cards
from hub_server.storage.commits import (
    MAX_BODY,
    apply_commit,
    put_file,
    read_request,
    stage_regular,
    write_commit,
)
from hub_server.storage.errors import HubError, make_missing_repo_error, make_not_served_error
from hub_server.storage.repos import (
    KINDS,
    Commit,
    Repo,
    count_history,
    create_ref,
    create_repo,
    delete_ref,
    find_repo,
    format_timestamp,
    list_refs,
    list_repos,
    resolve_revision,
    walk_history,
)
from hub_server.storage.rules import RepoName, check_ref_name, make_gitattributes
from hub_server.storage.trees import TreeEdit, find_file, walk

_LIST_PAGE = 100  # repos of a page, unless the client asks for another number
_LIST_MOST = 1000  # repos of a page
_MAX_SIBLINGS_BYTES = 32 << 20
_SIBLING_BYTES = 256  # of a file's JSON besides its path
# Query parameters of the Hub's listing whose filters do not exist here
_NO_FILTERS = {"apps", "gated", "inference", "inference_provider", "num_parameters"}
_PAGE_COMMITS = 50  # commits of a page, unless the client asks for another number
_MOST_PAGE_COMMITS = 1000  # commits of a page
Kind = Literal["model", "dataset"]


class NamedRepo(BaseModel):
    """The repo to create or delete; without an organization, the user owns the repo."""

    type: Kind | None = None
    organization: str | None = None
    name: RepoName
    visibility: Literal["public", "private"] | None = None
    private: bool | None = None


class _Settings(BaseModel):
    visibility: Literal["public", "private"] | None = None
    private: bool | None = None
    gated: Literal[False] | None = None


def describe_user(call: Call) -> dict:
    """Return the token's user, role and organisations. Raises HubError 401 without a token."""
    name, role, orgs = call.user
    return {
        "type": "user",
        "id": name,
        "name": name,
        "fullname": name,
        "email": f"{name}@localhost",
        "isPro": False,
        "orgs": [
            {"type": "org", "name": org, "fullname": org, "roleInOrg": "write"} for org in orgs
        ],
        "auth": {
            "type": "access_token",
            "accessToken": {"displayName": f"{name}-{role}", "role": role},
        },
    }


def create(call: Call) -> dict:
    """Create a repo with an initial commit of ``.gitattributes``; return its URL, name and id.

    Raises HubError: 400 for a bad name, 401 or 403 without the right to write, 409 when the repo
    exists.
    """
    request = call.parse_body(NamedRepo)
    user = call.user
    kind = request.type or "model"
    namespace = request.organization or user.name
    user.require_write(namespace)
    with call.hub.blobs.open_staging() as staging:
        file = stage_regular(make_gitattributes(kind), ".gitattributes", staging)
    with call.hub.database.begin_write() as db:
        existing = find_repo(db, kind, namespace, request.name)
        if existing:
            url = f"{call.endpoint}/{existing.url_path}"
            raise HubError(
                409, f"You already created this {kind} repo: {existing.full_name}", url=url
            )
        private = request.visibility == "private" or bool(request.private)
        repo = create_repo(db, kind, namespace, request.name, private=private)
        edit = TreeEdit(db, None)
        put_file(db, edit, ".gitattributes", file)
        write_commit(
            db, repo, "refs/heads/main", edit.save(), None, user.name, "initial commit", ""
        )
    return {"url": f"{call.endpoint}/{repo.url_path}", "name": repo.full_name, "id": str(repo.id)}


def delete(call: Call) -> dict:
    """Delete a repo with its refs and commits.

    Stored contents stay on the disk, but no address leads to them. Raises HubError: 400 for a bad
    name, 401 or 403 without the right to write, 404 for a missing repo.
    """
    request = call.parse_body(NamedRepo)
    user = call.user
    namespace = request.organization or user.name
    user.require_write(namespace)
    with call.hub.database.begin_write() as db:
        repo = find_repo(db, request.type or "model", namespace, request.name)
        if repo is None:
            raise make_missing_repo_error(anonymous=False)
        db.execute("DELETE FROM repos WHERE id = ?", (repo.id,))
    return {}


def update_settings(call: Call) -> dict:
    """Make a repo private or public; a request that names neither changes nothing."""
    repo = call.get_repo(write=True)
    request = call.parse_body(_Settings)
    private = request.private
    if request.visibility is not None:  # newer clients send this in place of ``private``
        private = request.visibility == "private"
    if private is not None:
        with call.hub.database.begin_write() as db:
            db.execute("UPDATE repos SET private = ? WHERE id = ?", (private, repo.id))
    return {}


def show_info(call: Call) -> dict:
    """Return repo info at a revision (default: main), as model_info and dataset_info read it.

    Raises HubError 404 for a missing revision.
    """
    repo = call.get_repo()
    expand = call.get_options("expand")
    with call.hub.database.begin_read() as db:
        commit = resolve_revision(db, repo.id, call.args.get("revision") or "main")
        info = _describe_repo(call.hub, db, repo, commit)
        if not expand or "siblings" in expand:
            siblings = _list_files(db, commit, blobs=call.has_flag("blobs"))
            # Clients list the tree, which has pages, when an info has no siblings.
            if siblings is not None:
                info["siblings"] = siblings
    return _select_properties(call, info)


def _describe_repo(hub: Hub, db: sqlite3.Connection, repo: Repo, commit: Commit) -> dict:
    """Return repo info at a commit, without the listing of files."""
    readme = find_file(db, commit.tree, "README.md")
    card = cards.read_stored_metadata(hub.blobs.get_path(readme.sha256)) if readme else {}
    info: dict = {
        "_id": str(repo.id),
        "id": repo.full_name,
        "author": repo.namespace,
        "sha": commit.oid,
        "lastModified": format_timestamp(commit.date),
        "createdAt": format_timestamp(repo.created),
        "private": repo.private,
        "gated": False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": cards.list_tags(repo.kind, card),
    }
    if card:
        info["cardData"] = card
    if repo.kind == "model":
        info |= {"modelId": repo.full_name, "config": {}}
        for key in ("library_name", "pipeline_tag"):
            if isinstance(card.get(key), str):
                info[key] = card[key]
    return info


def _list_files(db: sqlite3.Connection, commit: Commit, *, blobs: bool) -> list[dict] | None:
    """Return the files of a commit as ``siblings``; None beyond ``_MAX_SIBLINGS_BYTES``.

    blobs: whether to add the sizes, git ids and LFS facts.
    """
    siblings = []
    siblings_bytes = 0
    for path, oid, file in walk(db, commit.tree):
        if file:
            sibling: dict = {"rfilename": path}
            if blobs:
                sibling |= {"size": file.size, "blobId": oid}
                if file.lfs:
                    sibling["lfs"] = {"sha256": file.sha256, **file.lfs_facts}
            siblings_bytes += len(path.encode()) + _SIBLING_BYTES
            if siblings_bytes > _MAX_SIBLINGS_BYTES:
                return None
            siblings.append(sibling)
    return siblings


def list_matching_repos(call: Call) -> Response:
    """Return one page of the visible repos of a kind, filtered by the query.

    The last changed repo comes first, or with ``sort=createdAt`` the last created one. Raises
    HubError 400 for a filter that this Hub lacks.
    """
    unknown = _NO_FILTERS & set(call.query)
    if unknown:
        raise HubError(400, f"This local Hub cannot filter repos by {' or '.join(sorted(unknown))}")

    # Filter by owner and name, then by tags.
    author = call.query.get("author", "").lower()
    search_words = [word.lower() for word in call.query.getlist("search")]
    tags = {*call.query.getlist("filter"), *call.query.getlist("pipeline_tag")}
    matches: list[tuple[Repo, Commit]] = []
    with call.hub.database.begin_read() as db:
        for repo in list_repos(db, KINDS.get(call.args["kind"], ""), call.actor):
            has_words = all(word in repo.full_name.lower() for word in search_words)
            if has_words and author in ("", repo.namespace.lower()):
                commit = resolve_revision(db, repo.id, "main")
                if not tags or tags <= set(_describe_repo(call.hub, db, repo, commit)["tags"]):
                    matches.append((repo, commit))

        # In the Hub's other orders (downloads, likes, trends) all these repos are equal.
        if call.query.get("sort") == "createdAt":
            matches.sort(key=lambda match: match[0].created, reverse=True)
        else:
            matches.sort(key=lambda match: match[1].date, reverse=True)

        # Describe the repos of the page alone: each card may have a megabyte.
        start = call.parse_number("cursor")
        infos = (_describe_repo(call.hub, db, *match) for match in matches[start:])
        items = (_select_properties(call, info) for info in infos)
        page = take_page(items, call.parse_number("limit", _LIST_PAGE, _LIST_MOST))
    end = start + len(page)
    headers = call.make_next_link(cursor=end) if end < len(matches) else {}
    return JSONResponse(page, headers=headers)


def _select_properties(call: Call, info: dict) -> dict:
    """Return a repo's info with its ids and the properties in the query's ``expand``.

    Without ``expand``, all properties are returned.
    """
    expand = call.get_options("expand")
    if not expand:
        return info
    return {key: value for key, value in info.items() if key in ("_id", "id", *expand)}


class _NewBranch(BaseModel):
    startingPoint: str | None = None


class NewTag(BaseModel):
    """The name of a tag. Its message is dropped: no client of the Hub can read it back."""

    tag: str


def get_commit_body_limit(call: Call) -> int:
    """Return the limit in bytes of a commit's body.

    Raises the errors of ``Call.get_repo`` for a write.
    """
    call.get_repo(write=True)
    return MAX_BODY


def create_commit(call: Call) -> dict:
    """Apply the operations of the body as one commit to the path's branch; return the commit's id.

    Raises what ``read_request`` and ``apply_commit`` raise.
    """
    repo = call.get_repo(write=True)
    with call.hub.blobs.open_staging() as staging:
        request = read_request(call.content.iter_chunks(), staging)
    with call.hub.database.begin_write() as db:
        oid = apply_commit(db, repo, call.args["revision"], call.user, request)
    url = f"{call.endpoint}/{repo.url_path}/commit/{oid}"
    return {"success": True, "commitUrl": url, "commitOid": oid, "hookOutput": ""}


def list_commits(call: Call) -> Response:
    """Return one page of the history of a revision, newest first.

    The newest commit has the index 0, and the first page begins at the index ``p`` times ``limit``.
    The link to the next page has the index of that page's first commit as ``cursor``, because a
    page may end early (``take_page``). Raises HubError 404 for a missing revision.
    """
    repo = call.get_repo()
    size = call.parse_number("limit", _PAGE_COMMITS, _MOST_PAGE_COMMITS)
    page_start = call.parse_number("p") * size
    start = call.parse_number("cursor", default=page_start)
    formatted = "formatted" in call.get_options("expand")
    with call.hub.database.begin_read() as db:
        head = resolve_revision(db, repo.id, call.args["revision"])
        total = count_history(db, repo.id, head)
        commits = islice(walk_history(db, repo.id, head), start, None)
        items = (_describe_commit(commit, formatted=formatted) for commit in commits)
        page = take_page(items, size)
    headers = {"X-Total-Count": str(total)}
    end = start + len(page)
    if end < total:
        headers |= call.make_next_link(cursor=end)
    return JSONResponse(page, headers=headers)


def _describe_commit(commit: Commit, *, formatted: bool) -> dict[str, Any]:
    """Return the JSON of a commit; ``formatted`` repeats its texts where the Hub has HTML."""
    texts = {"title": commit.title, "message": commit.message}
    item: dict[str, Any] = {
        "id": commit.oid,
        **texts,
        "date": format_timestamp(commit.date),
        "authors": [{"user": commit.author}],
    }
    if formatted:
        item["formatted"] = texts
    return item


def list_branches_and_tags(call: Call) -> dict:
    """Return the branches and the tags of a repo, with the commit of each.

    This Hub has no conversions and no pull requests, so these lists are empty.
    """
    repo = call.get_repo()
    groups: dict[str, list] = {"heads": [], "tags": []}
    with call.hub.database.begin_read() as db:
        for ref, oid in list_refs(db, repo.id):
            _, group, name = ref.split("/", 2)
            groups[group].append({"name": name, "ref": ref, "targetCommit": oid})
    answer = {"branches": groups["heads"], "tags": groups["tags"], "converts": []}
    if call.has_flag("include_prs"):
        answer["pullRequests"] = []
    return answer


def create_branch(call: Call) -> dict:
    """Create a branch at the revision ``startingPoint`` (default: main).

    Raises HubError: 400 for a bad name, 404 for a missing revision, and as ``create_ref``.
    """
    repo = call.get_repo(write=True)
    branch = check_ref_name(call.args["ref"])
    start = call.parse_body(_NewBranch).startingPoint or "main"
    with call.hub.database.begin_write() as db:
        oid = resolve_revision(db, repo.id, start).oid
        create_ref(db, repo.id, f"refs/heads/{branch}", oid)
    return {}


def delete_branch(call: Call) -> dict:
    """Remove a branch. Raises HubError 403 for main, 404 for a missing branch."""
    repo = call.get_repo(write=True)
    if call.args["ref"] == "main":
        raise HubError(403, "Cannot delete refs/heads/main: it is the default branch")
    with call.hub.database.begin_write() as db:
        delete_ref(db, repo.id, f"refs/heads/{call.args['ref']}")
    return {}


def create_tag(call: Call) -> dict:
    """Create a tag with the name in the body at the revision in the path.

    Raises HubError as ``create_branch``.
    """
    repo = call.get_repo(write=True)
    tag = call.parse_body(NewTag).tag
    with call.hub.database.begin_write() as db:
        oid = resolve_revision(db, repo.id, call.args["ref"]).oid
        create_ref(db, repo.id, f"refs/tags/{check_ref_name(tag)}", oid)
    return {}


def delete_tag(call: Call) -> dict:
    """Remove a tag. Raises HubError 404 for a missing tag."""
    repo = call.get_repo(write=True)
    with call.hub.database.begin_write() as db:
        delete_ref(db, repo.id, f"refs/tags/{call.args['ref']}")
    return {}


def refuse_unknown_path(call: Call) -> Response:
    """Raise HubError 404 for a path that is not served, or the error of ``Call.get_repo``."""
    call.get_repo()
    raise make_not_served_error()


class _Card(BaseModel):
    content: str = ""


def validate_yaml(call: Call) -> Response:
    """Return the errors and warnings over a card's front matter, with status 400 for any error.

    The answer is JSON, or plain text for a client that accepts only plain text.
    """
    errors, warnings = cards.find_problems(call.parse_body(_Card).content)
    status = 400 if errors else 200
    if call.headers.get("accept") == "text/plain":
        lines = [f"- Error: {text}" for text in errors]
        lines += [f"- Warning: {text}" for text in warnings]
        return PlainTextResponse("\n".join(lines), status)
    messages = {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }
    return JSONResponse(messages, status)
