"""Handlers about history: commits, branches and tags."""

from itertools import islice

from starlette.responses import Response

from hub.local.access import require_actor
from hub.local.call import Call
from hub.local.commits import MAX_BODY, apply, branch_head, open_change, read_request, write_commit
from hub.local.names import check_ref_name
from hub.local.refs import create_ref, delete_ref, history, list_refs, resolve, timestamp
from hub.local.replies import HubError, json_reply

_PAGE, _MOST = 50, 1000


def commit(call: Call) -> Response:
    """Add a commit to a branch."""
    repo = call.repo(write=True)
    with call.hub.blobs.staging() as staging:
        request = read_request(call.limited(MAX_BODY), staging)
        staging.settle()
    author = require_actor(call.actor).name
    with call.hub.database.writing() as db:
        branch = call.args["revision"]
        number = open_change(db, repo.id, branch) if call.flag("create_pr") else 0
        oid = apply(db, repo, f"refs/pr/{number}" if number else branch, author, request)
    page = f"{call.endpoint}/{repo.url_path}"
    answer = {"success": True, "commitUrl": f"{page}/commit/{oid}", "commitOid": oid, "hookOutput": ""}
    return json_reply(answer | ({"pullRequestUrl": f"{page}/discussions/{number}"} if number else {}))


def commits(call: Call) -> Response:
    """One page of the history of a revision, newest first."""
    repo = call.repo()
    size, page = call.page(_PAGE, _MOST), call.number("p")
    formatted = "formatted" in call.query.getlist("expand[]") + call.query.getlist("expand")
    with call.hub.database.reading() as db:
        past = list(history(db, repo.id, resolve(db, repo.id, call.args["revision"])))
    shown = []
    for item in islice(past, page * size, (page + 1) * size):
        entry: dict = {"id": item.oid, "title": item.title, "message": item.message, "date": timestamp(item.date)}
        entry["authors"] = [{"user": item.author}]
        if formatted:
            entry["formatted"] = {"title": item.title, "message": item.message}
        shown.append(entry)
    headers = call.next_link(p=page + 1) if (page + 1) * size < len(past) else {}
    return json_reply(shown, headers={"X-Total-Count": str(len(past)), **headers})


def super_squash(call: Call) -> Response:
    """Replace a branch by one commit of its present files; `gc` then frees what the old commits alone held."""
    repo = call.repo(write=True)
    message = str(call.json().get("message") or f"Super-squash branch {call.args['ref']!r}")
    title, _, rest = message.partition("\n")
    with call.hub.database.writing() as db:
        ref, head = branch_head(db, repo, call.args["ref"])
        write_commit(db, repo, ref, head.tree, None, require_actor(call.actor).name, title, rest.strip())
    return json_reply({})


def refs(call: Call) -> Response:
    """All branches and tags."""
    repo = call.repo()
    with call.hub.database.reading() as db:
        found = list_refs(db, repo.id)
    groups: dict[str, list] = {"branches": [], "tags": [], "converts": [], "pullRequests": []}
    for ref, oid in found:
        _, group, name = ref.split("/", 2)
        target = {"heads": "branches", "tags": "tags", "pr": "pullRequests"}[group]
        groups[target].append({"name": name, "ref": ref, "targetCommit": oid})
    if not call.flag("include_prs"):
        del groups["pullRequests"]
    return json_reply(groups)


def create_branch(call: Call) -> Response:
    """Start a branch at ``startingPoint`` (default: main)."""
    repo = call.repo(write=True)
    branch = check_ref_name(call.args["ref"])
    start = str(call.json().get("startingPoint") or "main")
    with call.hub.database.writing() as db:
        create_ref(db, repo.id, f"refs/heads/{branch}", resolve(db, repo.id, start).oid)
    return json_reply({})


def delete_branch(call: Call) -> Response:
    """Remove a branch, never main."""
    repo = call.repo(write=True)
    if call.args["ref"] == "main":
        raise HubError(403, "Cannot delete refs/heads/main: it is the default branch")
    with call.hub.database.writing() as db:
        delete_ref(db, repo.id, f"refs/heads/{call.args['ref']}")
    return json_reply({})


def create_tag(call: Call) -> Response:
    """Name a revision. Tag messages are accepted and not kept: no client of the Hub can read them back."""
    repo = call.repo(write=True)
    tag = call.json().get("tag")
    with call.hub.database.writing() as db:
        oid = resolve(db, repo.id, call.args["ref"]).oid
        create_ref(db, repo.id, f"refs/tags/{check_ref_name(tag)}", oid)
    return json_reply({})


def delete_tag(call: Call) -> Response:
    """Remove a tag."""
    repo = call.repo(write=True)
    with call.hub.database.writing() as db:
        delete_ref(db, repo.id, f"refs/tags/{call.args['ref']}")
    return json_reply({})
