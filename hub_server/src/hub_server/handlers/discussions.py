"""Handlers for discussions and pull requests: whoever sees a repo may comment, members of its namespace decide."""

import sqlite3
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from hub_server.http.call import Call
from hub_server.storage import pull_requests
from hub_server.storage.discussions import (
    Discussion,
    add_comment,
    add_discussion,
    add_event,
    change_comment,
    events,
    get_discussion,
    list_discussions,
    next_number,
)
from hub_server.storage.refusals import HubError
from hub_server.storage.repos import Repo
from hub_server.storage.rules import Message

_PAGE = 50
# A merged change's title becomes a commit's.
Title = Annotated[Message, StringConstraints(strip_whitespace=True, min_length=3, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=65_536)]


class _NewDiscussion(BaseModel):
    title: Title
    description: Text
    pullRequest: bool = False


class _NewComment(BaseModel):
    comment: Text


class _NewText(BaseModel):
    content: Text


class _NewTitle(BaseModel):
    title: Title


class _NewStatus(BaseModel):
    status: Literal["open", "closed"]
    comment: Text | None = None


class _Merge(BaseModel):
    comment: Text | None = None


def listing(call: Call) -> dict:
    """One page of the discussions of a repo, newest first."""
    repo, page = call.repo(), call.number("p")
    kind, status, author = call.query.get("type", "all"), call.query.get("status", "all"), call.query.get("author")
    with call.hub.database.reading() as db:
        found = [
            discussion
            for discussion in list_discussions(db, repo.id)
            if kind in ("all", "pull_request" if discussion.target else "discussion")
            and status in ("all", "open" if discussion.is_open else "closed")
            and author in (None, discussion.author)
        ]
    shown = [discussion.facts(repo) for discussion in found[page * _PAGE : (page + 1) * _PAGE]]
    return {"discussions": shown, "count": len(found), "start": page * _PAGE}


def create(call: Call) -> dict:
    """Open a discussion, or a pull request: a draft that starts at main and has no commits yet."""
    asked, actor = call.read(_NewDiscussion), call.user
    actor.require_role()
    repo = call.readable() if asked.pullRequest else call.repo()
    words = (actor.name, asked.title, asked.description)
    with call.hub.database.writing() as db:
        if asked.pullRequest:
            return {"num": pull_requests.open_pull_request(db, repo.id, "main", *words, "draft")}
        number = next_number(db, repo.id)
        add_discussion(db, repo.id, number, *words, "open")
    return {"num": number}


def show(call: Call) -> dict:
    """One discussion with its events; of a pull request, its diff and conflicts, too."""
    repo, number = call.repo(), int(call.args["num"])
    with call.hub.database.reading() as db:
        found = get_discussion(db, repo.id, number)
        past = events(db, repo.id, number)
        answer = found.facts(repo)
        if found.target:
            answer |= pull_requests.details(db, repo.id, found)
            past += pull_requests.commit_events(db, repo.id, found)
    return answer | {"events": sorted(past, key=lambda event: event["createdAt"])}


def comment(call: Call) -> dict:
    """Add a comment."""
    repo, number, asked = call.repo(), int(call.args["num"]), call.read(_NewComment)
    call.user.require_role()
    with call.hub.database.writing() as db:
        get_discussion(db, repo.id, number)
        return {"newMessage": add_comment(db, repo.id, number, call.user.name, asked.comment)}


def edit(call: Call) -> dict:
    """Edit one's own comment."""
    return _change_comment(call, call.read(_NewText).content)


def hide(call: Call) -> dict:
    """Hide one's own comment, or as a member anybody's."""
    return _change_comment(call, None)


def _change_comment(call: Call, text: str | None) -> dict:
    repo, user = call.repo(), call.user
    user.require_role()
    number, may_hide = int(call.args["num"]), user.owns(repo.namespace)
    with call.hub.database.writing() as db:
        changed = change_comment(db, repo.id, number, call.args["comment"], user.name, text, may_hide=may_hide)
    return {"updatedComment": changed}


def rename(call: Call) -> dict:
    """Change the title."""
    repo, number, asked = call.repo(), int(call.args["num"]), call.read(_NewTitle)
    with call.hub.database.writing() as db:
        found = _decided_by(call, repo, get_discussion(db, repo.id, number))
        db.execute("UPDATE discussions SET title = ? WHERE repo = ? AND num = ?", (asked.title, repo.id, number))
        words = {"from": found.title, "to": asked.title}
        return {"newTitle": add_event(db, repo.id, number, call.user.name, "title-change", words)}


def change_status(call: Call) -> dict:
    """Close a discussion or open it again; a draft becomes ready to merge."""
    repo, number, asked = call.repo(), int(call.args["num"]), call.read(_NewStatus)
    with call.hub.database.writing() as db:
        found = _decided_by(call, repo, get_discussion(db, repo.id, number))
        if found.status in ("merged", asked.status):
            raise HubError(400, f"Discussion {number} is {found.status} already")
        if asked.comment:
            add_comment(db, repo.id, number, call.user.name, asked.comment)
        return {"newStatus": _set_status(call, db, repo, number, asked.status)}


def merge(call: Call) -> dict:
    """Merge a pull request into its target branch."""
    repo, number, asked = call.repo(write=True), int(call.args["num"]), call.read(_Merge)
    with call.hub.database.writing() as db:
        found = get_discussion(db, repo.id, number)
        if found.target is None:
            raise HubError(400, f"Discussion {number} is no pull request")
        oid = pull_requests.merge(db, repo, found, call.user.name)
        if asked.comment:
            add_comment(db, repo.id, number, call.user.name, asked.comment)
        _set_status(call, db, repo, number, "merged")
    return {"commitId": oid}


def _decided_by(call: Call, repo: Repo, found: Discussion) -> Discussion:
    """The discussion, if the actor may change it: its author, and the members of the repo's namespace; else 403."""
    if found.author == call.user.name:
        call.user.require_role()
    else:
        call.user.require_write(repo.namespace)
    return found


def _set_status(call: Call, db: sqlite3.Connection, repo: Repo, number: int, status: str) -> dict:
    db.execute("UPDATE discussions SET status = ? WHERE repo = ? AND num = ?", (status, repo.id, number))
    return add_event(db, repo.id, number, call.user.name, "status-change", {"status": status})
