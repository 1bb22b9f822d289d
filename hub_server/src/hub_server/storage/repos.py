"""Repos, their refs and their commits, as rows of the index.

An argument ``repo`` is the id of a repo. A full ref name is ``refs/heads/NAME`` (a branch) or
``refs/tags/NAME`` (a tag).
"""

import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from hub_server.storage.credentials import Actor
from hub_server.storage.errors import HubError, make_missing_revision_error
from hub_server.storage.trees import find_entry

# plural in addresses → kind of a repo
KINDS = {"models": "model", "datasets": "dataset"}
MAX_REFS = 5_000  # branches and tags of a repo: one answer lists them all


def format_timestamp(seconds: int) -> str:
    """Return a time (Unix seconds) as the Hub writes it, such as ``2024-01-31T12:00:00.000Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Repo(NamedTuple):
    """A model or dataset repo.

    ``kind``: a value of ``KINDS``; ``created``: in Unix seconds.
    """

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
        """The path of the repo under the endpoint."""
        return self.full_name if self.kind == "model" else f"{self.kind}s/{self.full_name}"

    def is_visible_to(self, actor: Actor | None) -> bool:
        """Return whether the repo is public, or the actor a member of its namespace."""
        return not self.private or (actor is not None and actor.is_member_of(self.namespace))


def _select_repos(db: sqlite3.Connection, condition: str, *values: object) -> list[Repo]:
    """Return the repos that meet an SQL condition, newest first; ``values`` fill its ``?``."""
    columns = "id, kind, namespace, name, private, created"
    query = f"SELECT {columns} FROM repos WHERE {condition} ORDER BY id DESC"  # noqa: S608
    repos = [Repo(*row) for row in db.execute(query, values)]
    # SQLite has no booleans: the column holds 0 or 1.
    return [repo._replace(private=bool(repo.private)) for repo in repos]


def find_repo(db: sqlite3.Connection, kind: str, namespace: str, name: str) -> Repo | None:
    """Return the repo of this kind and name, in any case of letters; None if there is none.

    The caller checks whether the actor may see the repo.
    """
    condition = "kind = ? AND namespace = ? AND name = ?"
    repos = _select_repos(db, condition, kind, namespace, name)
    return repos[0] if repos else None


def list_repos(db: sqlite3.Connection, kind: str, actor: Actor | None) -> list[Repo]:
    """Return all repos of a kind that ``actor`` may see, newest first."""
    return [repo for repo in _select_repos(db, "kind = ?", kind) if repo.is_visible_to(actor)]


def create_repo(
    db: sqlite3.Connection, kind: str, namespace: str, name: str, *, private: bool
) -> Repo:
    """Add an empty repo and return it.

    The caller has checked that the owner exists and that the owner has no repo of this name.
    """
    # Use the owner's own spelling: names match in any case.
    row = db.execute("SELECT name FROM namespaces WHERE name = ?", (namespace,)).fetchone()
    insert = "INSERT INTO repos(kind, namespace, name, private, created) VALUES (?, ?, ?, ?, ?)"
    cursor = db.execute(insert, (kind, row["name"], name, private, int(time.time())))
    return _select_repos(db, "id = ?", cursor.lastrowid)[0]


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
    """Return the commit with this full id; None for a missing commit."""
    columns = "oid, tree, parent, author, date, title, message"
    query = f"SELECT {columns} FROM commits WHERE repo = ? AND oid = ?"  # noqa: S608
    row = db.execute(query, (repo, oid)).fetchone()
    return Commit(*row) if row else None


def get_commit(db: sqlite3.Connection, repo: int, oid: str) -> Commit:
    """Return the commit with this full id. Raises HubError 404 for a missing commit."""
    commit = _find_commit(db, repo, oid)
    if commit is None:
        raise make_missing_revision_error(oid)
    return commit


def resolve_revision(db: sqlite3.Connection, repo: int, revision: str) -> Commit:
    """Return the commit of a branch, tag, full ref or commit id (7 digits or more), in this order.

    Raises HubError 404 for an unknown revision, and for an abbreviation of several commit ids.
    """
    for name in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision):
        oid = get_ref_target(db, repo, name)
        if oid is not None:
            return get_commit(db, repo, oid)
    if 7 <= len(revision) <= 40 and set(revision) <= set("0123456789abcdef"):
        # "g" sorts after every hexadecimal digit: the range holds all ids that begin so.
        query = "SELECT oid FROM commits WHERE repo = ? AND oid >= ? AND oid < ? LIMIT 2"
        rows = db.execute(query, (repo, revision, revision + "g")).fetchall()
        if len(rows) == 1:
            return get_commit(db, repo, rows[0]["oid"])
    raise make_missing_revision_error(revision)


def get_ref_target(db: sqlite3.Connection, repo: int, ref: str) -> str | None:
    """Return the id of the commit that a full ref name points to; None for a missing ref."""
    row = db.execute("SELECT oid FROM refs WHERE repo = ? AND name = ?", (repo, ref)).fetchone()
    return row["oid"] if row else None


def list_refs(db: sqlite3.Connection, repo: int) -> list[tuple[str, str]]:
    """Return all (full ref name, commit id) pairs of a repo, by name."""
    rows = db.execute("SELECT name, oid FROM refs WHERE repo = ? ORDER BY name", (repo,))
    return [(row["name"], row["oid"]) for row in rows]


def create_ref(db: sqlite3.Connection, repo: int, ref: str, oid: str) -> None:
    """Add the branch or tag with the full name ``ref`` at the commit ``oid``.

    Raises HubError: 409 when the name exists, or when git cannot hold the name beside another one
    (``a`` and ``a/b``); 400 when the repo has ``MAX_REFS`` branches and tags.
    """
    refs = list_refs(db, repo)
    if len(refs) >= MAX_REFS:
        raise HubError(400, f"A repo can have at most {MAX_REFS} branches and tags: delete some")
    for existing, _ in refs:
        if existing == ref:
            raise HubError(409, f"Reference {ref} already exists")
        if existing.startswith(f"{ref}/") or ref.startswith(f"{existing}/"):
            raise HubError(409, f"Reference {ref} cannot exist next to {existing}")
    db.execute("INSERT INTO refs VALUES (?, ?, ?)", (repo, ref, oid))


def delete_ref(db: sqlite3.Connection, repo: int, ref: str) -> None:
    """Remove the branch or tag with the full name ``ref``; its commits stay readable by id.

    Raises HubError 404 for a missing ref.
    """
    if db.execute("DELETE FROM refs WHERE repo = ? AND name = ?", (repo, ref)).rowcount == 0:
        raise make_missing_revision_error(ref.split("/", 2)[2])


def count_history(db: sqlite3.Connection, repo: int, head: Commit) -> int:
    """Return the number of commits from the first one to ``head``, without reading their texts."""
    query = (
        "WITH RECURSIVE history(oid) AS (VALUES (?) UNION ALL SELECT commits.parent FROM history "
        "JOIN commits ON commits.repo = ? AND commits.oid = history.oid "
        "WHERE commits.parent IS NOT NULL) SELECT COUNT(*) FROM history"
    )
    return int(db.execute(query, (head.oid, repo)).fetchone()[0])


def walk_history(db: sqlite3.Connection, repo: int, head: Commit) -> Iterator[Commit]:
    """Yield ``head`` and its ancestors, newest first."""
    commit: Commit | None = head
    while commit is not None:
        yield commit
        commit = _find_commit(db, repo, commit.parent) if commit.parent else None


def find_last_changes(
    db: sqlite3.Connection, repo: int, head: Commit, paths: list[str]
) -> dict[str, Commit]:
    """Return path → the last commit, ``head`` or an ancestor, that changed the path's content."""
    entries = {path: find_entry(db, head.tree, path) for path in paths}
    # Walk back as long as a path keeps its content: the last commit of that walk introduced it.
    changes = dict.fromkeys(paths, head)
    unchanged = list(entries)
    for commit in walk_history(db, repo, head):
        unchanged = [
            path for path in unchanged if find_entry(db, commit.tree, path) == entries[path]
        ]
        if not unchanged:
            break
        changes |= dict.fromkeys(unchanged, commit)
    return changes
