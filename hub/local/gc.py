"""Freeing disk space, while the Hub is stopped: what no branch, tag or upload of the last 24 hours needs.

Three things go. Commits that no ref leads to (squashed, or of a deleted branch) and that are older than a day. Xorbs of
repos that had no Xet upload for a day: the repo gets a new Xet address, so that no client refers to them again. And
contents that nothing names any more, unless they are younger than a day: they may wait for their commit.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from hub.local.blobs import BlobStore
from hub.local.database import Database
from hub.local.refs import get_commit, history, list_refs
from hub.local.trees import read_folder

KEPT_SECONDS = 24 * 3600


class Freed(NamedTuple):
    """What a collection removed."""

    commits: int
    files: int
    bytes: int


def collect(root: Path, now: float | None = None) -> Freed:
    """Free what is not needed; the caller holds the lock of ``root``. The index first: a crash leaves only strays."""
    before = int(time.time() if now is None else now) - KEPT_SECONDS
    blobs = BlobStore(root)
    blobs.sweep()
    with closing(Database(root / "hub.sqlite")) as database, database.writing() as db:
        commits = sum(_drop_commits(db, row["id"], before) for row in db.execute("SELECT id FROM repos").fetchall())
        _drop_xorbs(db, before)
        needed = _reachable_files(db)
        _drop_uploads(db, needed, blobs, before)
        kept = {row[0] for row in db.execute("SELECT sha256 FROM files UNION SELECT sha256 FROM lfs_objects")}
        kept |= {row[0] for row in db.execute("SELECT sha256 FROM xorbs")}
    return Freed(commits, *_drop_blobs(blobs, kept, before))


def _drop_commits(db: sqlite3.Connection, repo: int, before: int) -> int:
    """Forget old commits that no ref leads to; returns how many."""
    kept = {commit.oid for _, oid in list_refs(db, repo) for commit in history(db, repo, get_commit(db, repo, oid))}
    rows = db.execute("SELECT oid FROM commits WHERE repo = ? AND date < ?", (repo, before)).fetchall()
    gone = [(repo, row["oid"]) for row in rows if row["oid"] not in kept]
    db.executemany("DELETE FROM commits WHERE repo = ? AND oid = ?", gone)
    db.executemany("DELETE FROM receipts WHERE repo = ? AND oid = ?", gone)
    return len(gone)


def _drop_xorbs(db: sqlite3.Connection, before: int) -> None:
    idle = "SELECT repo FROM xorbs GROUP BY repo HAVING max(created) < ?"
    db.execute(f"DELETE FROM xet_spaces WHERE repo IN ({idle})", (before,))  # noqa: S608
    db.execute(f"DELETE FROM xorbs WHERE repo IN ({idle})", (before,))  # noqa: S608


def _reachable_files(db: sqlite3.Connection) -> set[tuple[int, str]]:
    """(repo, git id) of every file of every commit; forgets trees and files that no commit holds."""
    found: set[tuple[int, str]] = set()
    all_trees: set[str] = set()
    for repo in [row["id"] for row in db.execute("SELECT id FROM repos").fetchall()]:
        trees: set[str] = set()
        for row in db.execute("SELECT DISTINCT tree FROM commits WHERE repo = ?", (repo,)).fetchall():
            found |= {(repo, oid) for oid in _files_below(db, row["tree"], trees)}
        all_trees |= trees
    _keep_only(db, "trees", all_trees)
    _keep_only(db, "files", {oid for _, oid in found})
    return found


def _files_below(db: sqlite3.Connection, tree: str, seen: set[str]) -> Iterator[str]:
    """Git ids of files below a folder, without the folders seen before."""
    if tree in seen:
        return
    seen.add(tree)
    for entry in read_folder(db, tree).values():
        if entry.is_folder:
            yield from _files_below(db, entry.oid, seen)
        else:
            yield entry.oid


def _keep_only(db: sqlite3.Connection, table: str, oids: set[str]) -> None:
    stored = [row["oid"] for row in db.execute(f"SELECT oid FROM {table}")]  # noqa: S608
    gone = [(oid,) for oid in stored if oid not in oids]
    db.executemany(f"DELETE FROM {table} WHERE oid = ?", gone)  # noqa: S608


def _drop_uploads(db: sqlite3.Connection, needed: set[tuple[int, str]], blobs: BlobStore, before: int) -> None:
    """Forget large files that were uploaded to a repo a day ago or more and are in none of its commits."""
    content = {row["oid"]: row["sha256"] for row in db.execute("SELECT oid, sha256 FROM files WHERE lfs = 1")}
    used = {(repo, content[oid]) for repo, oid in needed if oid in content}
    uploads = [(row["repo"], row["sha256"]) for row in db.execute("SELECT repo, sha256 FROM lfs_objects")]
    gone = [upload for upload in uploads if upload not in used and blobs.path(upload[1]).stat().st_mtime < before]
    db.executemany("DELETE FROM lfs_objects WHERE repo = ? AND sha256 = ?", gone)


def _drop_blobs(blobs: BlobStore, kept: set[str], before: int) -> tuple[int, int]:
    """Remove old contents that the index does not name; returns how many, and their bytes."""
    count, size = 0, 0
    for path in blobs.folder.glob("*/*"):
        found = path.stat()
        if path.name not in kept and found.st_mtime < before:
            path.unlink()
            count, size = count + 1, size + found.st_size
    return count, size
