"""Repos, their refs and their commits, as rows of the index."""

import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from hub_server.storage.credentials import Actor
from hub_server.storage.errors import HubError, revision_not_found
from hub_server.storage.trees import find

KINDS = {"models": "model", "datasets": "dataset"}


def timestamp(seconds: int) -> str:
    """A time (Unix seconds) as the Hub writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Repo(NamedTuple):
    """A model or dataset repo."""

    id: int
    kind: str
    namespace: str
    name: str
    private: bool
    created: int

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def url_path(self) -> str:
        """Where the repo lies under the endpoint."""
        return self.full_name if self.kind == "model" else f"{self.kind}s/{self.full_name}"

    def visible_to(self, actor: Actor | None) -> bool:
        """Public repos are seen by all, private ones by the members of their namespace."""
        return not self.private or (actor is not None and actor.owns(self.namespace))


def _repos(db: sqlite3.Connection, condition: str, *values: object) -> list[Repo]:
    query = f"SELECT id, kind, namespace, name, private, created FROM repos WHERE {condition} ORDER BY id DESC"  # noqa: S608
    found = [Repo(*row) for row in db.execute(query, values)]
    return [repo._replace(private=bool(repo.private)) for repo in found]


def find_repo(db: sqlite3.Connection, kind: str, namespace: str, name: str) -> Repo | None:
    """The repo of this name, whatever the case; who may see it is the caller's question."""
    return next(iter(_repos(db, "kind = ? AND namespace = ? AND name = ?", kind, namespace, name)), None)


def list_repos(db: sqlite3.Connection, kind: str, actor: Actor | None) -> list[Repo]:
    """All repos of a kind that ``actor`` may see, newest first."""
    return [repo for repo in _repos(db, "kind = ?", kind) if repo.visible_to(actor)]


def create_repo(db: sqlite3.Connection, kind: str, namespace: str, name: str, *, private: bool) -> Repo:
    """Add an empty repo; the caller has checked that the owner exists and the name is free."""
    query = "INSERT INTO repos(kind, namespace, name, private, created) VALUES (?, ?, ?, ?, ?)"
    owner = db.execute("SELECT name FROM namespaces WHERE name = ?", (namespace,)).fetchone()["name"]  # as it is spelt
    added = db.execute(query, (kind, owner, name, private, int(time.time())))
    return _repos(db, "id = ?", added.lastrowid)[0]


class Commit(NamedTuple):
    """A commit; ``date`` in Unix seconds."""

    oid: str
    tree: str
    parent: str | None
    author: str
    date: int
    title: str
    message: str


def _find_commit(db: sqlite3.Connection, repo: int, oid: str) -> Commit | None:
    query = "SELECT oid, tree, parent, author, date, title, message FROM commits WHERE repo = ? AND oid = ?"
    row = db.execute(query, (repo, oid)).fetchone()
    return Commit(*row) if row else None


def get_commit(db: sqlite3.Connection, repo: int, oid: str) -> Commit:
    """The commit with this full id, else 404."""
    commit = _find_commit(db, repo, oid)
    if commit is None:
        raise revision_not_found(oid)
    return commit


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
        commit = _find_commit(db, repo, commit.parent) if commit.parent else None


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
