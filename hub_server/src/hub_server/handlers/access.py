"""Handlers for repo visibility, gated repos and their access requests.

A gated repo is listed like any other, but its files are read by members of its namespace and by users whom these let
in. Nobody asks for access here, as one does on the Hub's pages: owners grant it, so "auto" and "manual" are alike.
"""

import secrets
import sqlite3
import time
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hub_server.http.call import Call
from hub_server.storage.refusals import HubError
from hub_server.storage.repos import Repo, timestamp

Status = Literal["accepted", "pending", "rejected"]


class _Settings(BaseModel):
    visibility: Literal["public", "private"] | None = None
    private: bool | None = None
    gated: Literal["auto", "manual", False] | None = None


class _Decision(BaseModel):
    user: str | None = None
    requestId: str | None = None
    status: Status
    rejectionReason: Annotated[str, Field(max_length=10_000)] = ""


class _Grant(BaseModel):
    user: str


def settings(call: Call) -> dict:
    """Change visibility and gating. Granted access is kept for when the repo is gated again."""
    repo, asked = call.repo(write=True), call.read(_Settings)
    private = asked.private if asked.visibility is None else asked.visibility == "private"
    with call.hub.database.writing() as db:
        if private is not None:
            db.execute("UPDATE repos SET private = ? WHERE id = ?", (private, repo.id))
        if asked.gated is not None:
            db.execute("DELETE FROM gates WHERE repo = ?", (repo.id,))
        if asked.gated:
            db.execute("INSERT INTO gates SELECT id, ? FROM repos WHERE id = ?", (asked.gated, repo.id))
    return {}


def auth_check(call: Call) -> dict:
    """200 when the actor may read the repo's files, or write to it."""
    call.readable()
    call.repo(write=bool(call.args.get("write")))
    return {}


def requests(call: Call) -> list[dict]:
    """The access requests of one status, newest first."""
    repo = call.repo(write=True)
    query = "SELECT * FROM access_requests WHERE repo = ? AND status = ? ORDER BY date DESC"
    with call.hub.database.reading() as db:
        rows = db.execute(query, (repo.id, call.args["status"])).fetchall()
    return [_facts(row) for row in rows]


def _facts(row: sqlite3.Row) -> dict:
    user = {"user": row["user"], "fullname": row["user"]}
    return {"requestId": row["id"], "user": user, "status": row["status"], "timestamp": timestamp(row["date"])}


def grant(call: Call) -> dict:
    """Grant access to a user who has not requested it."""
    repo, asked = call.repo(write=True), call.read(_Grant)
    with call.hub.database.writing() as db:
        _require_gate(repo)
        query = "SELECT name FROM namespaces WHERE name = ? AND NOT is_org"
        user = db.execute(query, (asked.user,)).fetchone()
        if user is None:
            raise HubError(404, f"There is no user {asked.user!r}")
        query = "SELECT status FROM access_requests WHERE repo = ? AND user = ?"
        _require_change(db.execute(query, (repo.id, user["name"])).fetchone(), "accepted")
        values = (secrets.token_hex(12), repo.id, user["name"], "accepted", int(time.time()))
        db.execute("REPLACE INTO access_requests VALUES (?, ?, ?, ?, ?)", values)
    return {}


def handle(call: Call) -> dict:
    """Accept, reject or reopen an access request. The reason of a rejection is not kept: nobody could read it here."""
    repo, asked = call.repo(write=True), call.read(_Decision)
    with call.hub.database.writing() as db:
        _require_gate(repo)
        query = "SELECT id, status FROM access_requests WHERE repo = ? AND (user = ? OR id = ?)"
        found = db.execute(query, (repo.id, asked.user, asked.requestId)).fetchone()
        if found is None:
            raise HubError(404, f"There is no access request of {asked.user or asked.requestId!r}")
        _require_change(found, asked.status)
        db.execute("UPDATE access_requests SET status = ? WHERE id = ?", (asked.status, found["id"]))
    return {}


def _require_gate(repo: Repo) -> None:
    if not repo.gated:
        raise HubError(400, f"{repo.full_name} is not gated: everybody who sees it can read it")


def _require_change(found: sqlite3.Row | None, status: Status) -> None:
    if found and found["status"] == status:
        raise HubError(400, f"The access request is {status} already")
