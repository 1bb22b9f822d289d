"""Branches, tags and the commits they lead to."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from hub.local.replies import HubError, revision_not_found
from hub.local.trees import find


class Commit(NamedTuple):
    """One commit of a repo."""

    oid: str
    tree: str
    parent: str | None
    author: str
    date: int
    title: str
    message: str


_COLUMNS = "oid, tree, parent, author, date, title, message"


def timestamp(seconds: int) -> str:
    """A time as the Hub writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def find_commit(db: sqlite3.Connection, repo: int, oid: str) -> Commit | None:
    """The commit with this full id, or None."""
    row = db.execute(f"SELECT {_COLUMNS} FROM commits WHERE repo = ? AND oid = ?", (repo, oid)).fetchone()  # noqa: S608
    return Commit(*row) if row else None


def resolve(db: sqlite3.Connection, repo: int, revision: str) -> Commit:
    """The commit a branch, tag, full ref or commit id (7 digits or more) means, else 404."""
    for name in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
        oid = ref_target(db, repo, name)
        if oid is not None:
            return get_commit(db, repo, oid)
    if 7 <= len(revision) <= 40 and set(revision) <= set("0123456789abcdef"):
        query = "SELECT oid FROM commits WHERE repo = ? AND oid >= ? AND oid < ? LIMIT 2"
        rows = db.execute(query, (repo, revision, revision + "g")).fetchall()
        if len(rows) == 1:
            return get_commit(db, repo, rows[0]["oid"])
    raise revision_not_found(revision)


def get_commit(db: sqlite3.Connection, repo: int, oid: str) -> Commit:
    """The commit with this full id, else 404."""
    commit = find_commit(db, repo, oid)
    if commit is None:
        raise revision_not_found(oid)
    return commit


def ref_target(db: sqlite3.Connection, repo: int, ref: str) -> str | None:
    """The commit a full ref name points to, or None."""
    row = db.execute("SELECT oid FROM refs WHERE repo = ? AND name = ?", (repo, ref)).fetchone()
    return row["oid"] if row else None


def list_refs(db: sqlite3.Connection, repo: int) -> list[tuple[str, str]]:
    """All (full ref name, commit id) pairs of a repo."""
    return [tuple(row) for row in db.execute("SELECT name, oid FROM refs WHERE repo = ? ORDER BY name", (repo,))]


def create_ref(db: sqlite3.Connection, repo: int, ref: str, oid: str) -> None:
    """Add a branch or tag; 409 when it exists, or when git could not hold both (``a`` and ``a/b``)."""
    for existing, _ in list_refs(db, repo):
        if existing == ref:
            raise HubError(409, f"Reference {ref} already exists")
        if existing.startswith(f"{ref}/") or ref.startswith(f"{existing}/"):
            raise HubError(409, f"Reference {ref} cannot exist next to {existing}")
    db.execute("INSERT INTO refs VALUES (?, ?, ?)", (repo, ref, oid))


def delete_ref(db: sqlite3.Connection, repo: int, ref: str) -> None:
    """Remove a branch or tag, else 404; its commits stay readable by id."""
    if db.execute("DELETE FROM refs WHERE repo = ? AND name = ?", (repo, ref)).rowcount == 0:
        raise revision_not_found(ref.split("/", 2)[2])


def history(db: sqlite3.Connection, repo: int, head: Commit) -> Iterator[Commit]:
    """``head`` and its ancestors, newest first."""
    commit: Commit | None = head
    while commit is not None:
        yield commit
        commit = find_commit(db, repo, commit.parent) if commit.parent else None


def last_changes(db: sqlite3.Connection, repo: int, head: Commit, paths: list[str]) -> dict[str, Commit]:
    """For each path, the newest commit that gave it its present content."""
    now = {path: find(db, head.tree, path) for path in paths}
    changed = dict.fromkeys(paths, head)
    for commit in history(db, repo, head):
        now = {path: entry for path, entry in now.items() if find(db, commit.tree, path) == entry}
        if not now:
            break
        changed.update(dict.fromkeys(now, commit))
    return changed
