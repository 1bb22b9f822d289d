"""Repos: finding, creating, hiding and deleting them."""

import sqlite3
import time
from typing import NamedTuple

from hub.local.access import Actor
from hub.local.replies import HubError

KINDS = {"models": "model", "datasets": "dataset"}


class Repo(NamedTuple):
    """One repo."""

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


_COLUMNS = "id, kind, namespace, name, private, created"


def find_repo(db: sqlite3.Connection, kind: str, namespace: str, name: str) -> Repo | None:
    """The repo of this name, whatever the case; who may see it is the caller's question."""
    query = f"SELECT {_COLUMNS} FROM repos WHERE kind = ? AND namespace = ? AND name = ?"  # noqa: S608
    row = db.execute(query, (kind, namespace, name)).fetchone()
    return _repo(row) if row else None


def find_moved(db: sqlite3.Connection, kind: str, namespace: str, name: str) -> Repo | None:
    """The repo that once had this name."""
    former = "SELECT repo FROM former_names WHERE kind = ? AND namespace = ? AND name = ?"
    row = db.execute(f"SELECT {_COLUMNS} FROM repos WHERE id IN ({former})", (kind, namespace, name)).fetchone()  # noqa: S608
    return _repo(row) if row else None


def list_repos(db: sqlite3.Connection, kind: str, actor: Actor | None) -> list[Repo]:
    """All repos of a kind that ``actor`` may see, newest first."""
    query = f"SELECT {_COLUMNS} FROM repos WHERE kind = ? ORDER BY id DESC"  # noqa: S608
    return [repo for row in db.execute(query, (kind,)) if (repo := _repo(row)).visible_to(actor)]


def create_repo(db: sqlite3.Connection, kind: str, namespace: str, name: str, *, private: bool) -> Repo:
    """Add an empty repo; the caller has checked that the name is free. Its namespace is spelt as it was created."""
    values = (kind, _namespace(db, namespace), name, int(private), int(time.time()))
    query = "INSERT INTO repos(kind, namespace, name, private, created) VALUES (?, ?, ?, ?, ?)"
    repo = db.execute(query, values).lastrowid or 0
    return Repo(repo, kind, values[1], name, private, values[-1])


def _namespace(db: sqlite3.Connection, asked: str) -> str:
    """A user or organisation, spelt as it was created, else 404."""
    row = db.execute("SELECT name FROM namespaces WHERE name = ?", (asked,)).fetchone()
    if row is None:
        raise HubError(404, f"There is no user or organization {asked}")
    return row["name"]


def move_repo(db: sqlite3.Connection, repo: Repo, namespace: str, name: str) -> None:
    """Rename a repo; its old name leads to it. The caller has checked that the new name is free."""
    db.execute("UPDATE repos SET namespace = ?, name = ? WHERE id = ?", (_namespace(db, namespace), name, repo.id))
    db.execute("REPLACE INTO former_names VALUES (?, ?, ?, ?)", (repo.kind, repo.namespace, repo.name, repo.id))


def set_private(db: sqlite3.Connection, repo: Repo, private: bool) -> None:
    """Hide or show a repo."""
    db.execute("UPDATE repos SET private = ? WHERE id = ?", (int(private), repo.id))


def delete_repo(db: sqlite3.Connection, repo: Repo) -> None:
    """Remove a repo with its refs and commits; contents stay on the disk, unreachable."""
    db.execute("DELETE FROM repos WHERE id = ?", (repo.id,))


def _repo(row: sqlite3.Row) -> Repo:
    return Repo(row["id"], row["kind"], row["namespace"], row["name"], bool(row["private"]), row["created"])
