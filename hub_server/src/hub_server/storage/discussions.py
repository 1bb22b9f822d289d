"""Discussions, their comments and events: rows of the index, and their JSON. Texts are kept as sent."""

import html
import json
import sqlite3
import time
from typing import Any, NamedTuple

from hub_server.storage.refusals import HubError
from hub_server.storage.repos import Repo, timestamp


class Discussion(NamedTuple):
    """One discussion; ``target``, ``base`` and ``merged`` are those of a pull request.

    A change (pull request) has a branch it is to go to, the commit it began at and, when merged, the one it became.
    """

    num: int
    title: str
    status: str
    author: str
    date: int
    target: str | None
    base: str | None
    merged: str | None

    @property
    def is_open(self) -> bool:
        """Drafts are open, merged changes are not."""
        return self.status in ("open", "draft")

    def facts(self, repo: Repo) -> dict[str, Any]:
        """Its JSON in a listing."""
        return {
            "num": self.num,
            "title": self.title,
            "status": self.status,
            "author": {"name": self.author},
            "createdAt": timestamp(self.date),
            "isPullRequest": self.target is not None,
            "repo": {"name": repo.full_name, "type": repo.kind},
        }


def list_discussions(db: sqlite3.Connection, repo: int) -> list[Discussion]:
    """All discussions of a repo, newest first."""
    columns = "num, title, status, author, date, target, base, merged"
    query = f"SELECT {columns} FROM discussions LEFT JOIN changes USING (repo, num) WHERE repo = ? ORDER BY num DESC"  # noqa: S608
    return [Discussion(*row) for row in db.execute(query, (repo,))]


def get_discussion(db: sqlite3.Connection, repo: int, num: int) -> Discussion:
    """One discussion, else 404."""
    found = next((found for found in list_discussions(db, repo) if found.num == num), None)
    if found is None:
        raise HubError(404, f"There is no discussion {num}")
    return found


def add_discussion(
    db: sqlite3.Connection, repo: int, num: int, author: str, title: str, description: str, status: str
) -> None:
    """Open a discussion with its first comment; the caller has drawn the number."""
    values = (repo, num, title, status, author, int(time.time()))
    db.execute("INSERT INTO discussions VALUES (?, ?, ?, ?, ?, ?)", values)
    add_comment(db, repo, num, author, description)


def next_number(db: sqlite3.Connection, repo: int) -> int:
    """The number of the next discussion; repos of older versions have changes that are refs only."""
    query = """
    SELECT max(num) FROM (SELECT num FROM discussions WHERE repo = ?1
    UNION SELECT CAST(substr(name, 9) AS INTEGER) FROM refs WHERE repo = ?1 AND name LIKE 'refs/pr/%' UNION SELECT 0)
    """
    return 1 + int(db.execute(query, (repo,)).fetchone()[0])


def add_comment(db: sqlite3.Connection, repo: int, num: int, author: str, text: str) -> dict:
    """Add a comment; its event as clients read it."""
    version = {"raw": text, "date": int(time.time()), "author": author}
    return add_event(db, repo, num, author, "comment", {"versions": [version], "hidden": False})


def add_event(db: sqlite3.Connection, repo: int, num: int, author: str, kind: str, data: dict) -> dict:
    """Add an event; its JSON."""
    query = "INSERT INTO events(repo, num, kind, author, date, data) VALUES (?, ?, ?, ?, ?, ?)"
    added = db.execute(query, (repo, num, kind, author, int(time.time()), json.dumps(data)))
    return _event(db.execute("SELECT * FROM events WHERE id = ?", (added.lastrowid,)).fetchone())


def events(db: sqlite3.Connection, repo: int, num: int) -> list[dict]:
    """The events of a discussion, oldest first."""
    rows = db.execute("SELECT * FROM events WHERE repo = ? AND num = ? ORDER BY id", (repo, num))
    return [_event(row) for row in rows]


def change_comment(
    db: sqlite3.Connection, repo: int, num: int, identity: str, author: str, text: str | None, *, may_hide: bool
) -> dict:
    """Edit one's own comment, or (None) hide one; 403 when it is somebody else's, 404 when missing."""
    query = "SELECT * FROM events WHERE repo = ? AND num = ? AND id = ? AND kind = 'comment'"
    row = db.execute(query, (repo, num, int(identity, 16))).fetchone()
    if row is None:
        raise HubError(404, f"There is no comment {identity} in discussion {num}")
    if row["author"] != author and not (text is None and may_hide):
        raise HubError(403, f"This comment is {row['author']}'s")
    data = json.loads(row["data"])
    if text is None:
        data["hidden"] = True
    else:
        data["versions"].append({"raw": text, "date": int(time.time()), "author": author})
    db.execute("UPDATE events SET data = ? WHERE id = ?", (json.dumps(data), row["id"]))
    return _event(db.execute("SELECT * FROM events WHERE id = ?", (row["id"],)).fetchone())


def _event(row: sqlite3.Row) -> dict:
    data = json.loads(row["data"])
    if row["kind"] == "comment":
        data = _comment(data["versions"], hidden=data["hidden"])
    return event_facts(f"{row['id']:024x}", row["kind"], row["author"], row["date"], data)


def event_facts(identity: str, kind: str, author: str, date: int, data: dict) -> dict:
    """The JSON of an event."""
    return {"id": identity, "type": kind, "author": {"name": author}, "createdAt": timestamp(date), "data": data}


def _comment(versions: list[dict], *, hidden: bool) -> dict:
    """A hidden comment keeps its place and loses its texts."""
    shown = [
        {
            "raw": "" if hidden else version["raw"],
            "html": "" if hidden else f"<pre>{html.escape(version['raw'])}</pre>",
            "updatedAt": timestamp(version["date"]),
            "author": {"name": version["author"]},
        }
        for version in versions
    ]
    return {"edited": len(shown) > 1, "hidden": hidden, "latest": shown[-1], "history": shown[:-1]}
