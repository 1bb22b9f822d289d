"""Handlers for commits, branches and tags."""

from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from hub_server.handlers.call import Call
from hub_server.storage.commits import MAX_BODY, apply, read_request
from hub_server.storage.errors import HubError
from hub_server.storage.repos import create_ref, delete_ref, history, list_refs, resolve, timestamp
from hub_server.storage.rules import check_ref_name

_PAGE, _MOST = 50, 1000


class _NewBranch(BaseModel):
    startingPoint: str | None = None


class NewTag(BaseModel):
    """The name of a tag. Its message is accepted and not kept: no client of the Hub can read it back."""

    tag: str


def body_limit_of_commit(call: Call) -> int:
    """Body limit of a commit; refused at once for those who may not commit."""
    call.repo(write=True)
    return MAX_BODY


def commit(call: Call) -> dict:
    """Commit to a branch."""
    repo = call.repo(write=True)
    with call.hub.blobs.staging() as staging:
        request = read_request(call.content.chunks(), staging)
    with call.hub.database.writing() as db:
        oid = apply(db, repo, call.args["revision"], call.user, request)
    url = f"{call.endpoint}/{repo.url_path}/commit/{oid}"
    return {"success": True, "commitUrl": url, "commitOid": oid, "hookOutput": ""}


def commits(call: Call) -> Response:
    """One page of the history of a revision, newest first."""
    repo = call.repo()
    size, page = call.number("limit", _PAGE, _MOST), call.number("p")
    with call.hub.database.reading() as db:
        past = list(history(db, repo.id, resolve(db, repo.id, call.args["revision"])))
    shown = []
    for item in past[page * size : (page + 1) * size]:
        words = {"title": item.title, "message": item.message}
        entry = {"id": item.oid, **words, "date": timestamp(item.date), "authors": [{"user": item.author}]}
        shown.append(entry | ({"formatted": words} if "formatted" in call.options("expand") else {}))
    headers = call.next_link(p=page + 1) if (page + 1) * size < len(past) else {}
    return JSONResponse(shown, headers={"X-Total-Count": str(len(past)), **headers})


def refs(call: Call) -> dict:
    """All branches and tags."""
    repo = call.repo()
    groups: dict[str, list] = {"heads": [], "tags": []}
    with call.hub.database.reading() as db:
        for ref, oid in list_refs(db, repo.id):
            _, group, name = ref.split("/", 2)
            groups[group].append({"name": name, "ref": ref, "targetCommit": oid})
    answer = {"branches": groups["heads"], "tags": groups["tags"], "converts": []}
    return answer | ({"pullRequests": []} if call.flag("include_prs") else {})


def create_branch(call: Call) -> dict:
    """Start a branch at ``startingPoint`` (default: main)."""
    repo, branch = call.repo(write=True), check_ref_name(call.args["ref"])
    start = call.read(_NewBranch).startingPoint or "main"
    with call.hub.database.writing() as db:
        create_ref(db, repo.id, f"refs/heads/{branch}", resolve(db, repo.id, start).oid)
    return {}


def delete_branch(call: Call) -> dict:
    """Remove a branch, never main."""
    repo = call.repo(write=True)
    if call.args["ref"] == "main":
        raise HubError(403, "Cannot delete refs/heads/main: it is the default branch")
    with call.hub.database.writing() as db:
        delete_ref(db, repo.id, f"refs/heads/{call.args['ref']}")
    return {}


def create_tag(call: Call) -> dict:
    """Create a tag at a revision."""
    repo, asked = call.repo(write=True), call.read(NewTag)
    with call.hub.database.writing() as db:
        oid = resolve(db, repo.id, call.args["ref"]).oid
        create_ref(db, repo.id, f"refs/tags/{check_ref_name(asked.tag)}", oid)
    return {}


def delete_tag(call: Call) -> dict:
    """Remove a tag."""
    repo = call.repo(write=True)
    with call.hub.database.writing() as db:
        delete_ref(db, repo.id, f"refs/tags/{call.args['ref']}")
    return {}
