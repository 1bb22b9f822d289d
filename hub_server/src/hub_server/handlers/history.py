"""Handlers for commits, branches and tags."""

from itertools import islice
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from hub_server.handlers.call import Call, take_page
from hub_server.storage.commits import MAX_BODY, apply_commit, read_request
from hub_server.storage.errors import HubError
from hub_server.storage.repos import (
    Commit,
    count_history,
    create_ref,
    delete_ref,
    format_timestamp,
    list_refs,
    resolve_revision,
    walk_history,
)
from hub_server.storage.rules import check_ref_name

_PAGE_COMMITS = 50  # commits of a page, unless the client asks for another number
_MOST_PAGE_COMMITS = 1000  # commits of a page


class _NewBranch(BaseModel):
    startingPoint: str | None = None


class NewTag(BaseModel):
    """The name of a tag. Its message is dropped: no client of the Hub can read it back."""

    tag: str


def get_commit_body_limit(call: Call) -> int:
    """Return a commit's body limit. Raises HubError for those who may not commit."""
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

    The first page begins at commit number ``p`` times ``limit``. The link to the next page has the
    number of its first commit as ``cursor``, because a page may end early (``take_page``). Raises
    HubError 404 for a missing revision.
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

    There are no conversions and no pull requests, so these lists are empty.
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

    Raises HubError: 400 for a bad name, 404 for a missing revision, 409 for a name that exists.
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
    """Create a tag of the body's name at the path's revision; errors as for ``create_branch``."""
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
