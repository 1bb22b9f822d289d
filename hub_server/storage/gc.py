"""Garbage collection, while the Hub is stopped: what no branch, tag or upload of the last 24 hours needs.

Three things go. Commits that no ref leads to (squashed, or of a deleted branch) and that are older than a day. Xorbs of
repos that had no Xet upload for a day: the repo gets a new Xet address, so that no client refers to them again. And
contents that nothing reaches any more, unless they are younger than a day: they may wait for their commit.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from hub.errors import RunError
from hub_server.storage.blobs import BlobStore
from hub_server.storage.database import Database

KEPT_SECONDS = 24 * 3600
_DROP_COMMITS = """
DELETE FROM commits WHERE date < ? AND (repo, oid) NOT IN (
    WITH RECURSIVE kept(repo, oid) AS (
        SELECT repo, oid FROM refs
        UNION
        SELECT repo, parent FROM kept JOIN commits USING (repo, oid) WHERE parent IS NOT NULL)
    SELECT repo, oid FROM kept)
"""
_REACH = """
CREATE TEMP TABLE reached AS WITH RECURSIVE found(repo, oid) AS (
    SELECT repo, tree FROM commits
    UNION
    SELECT repo, entries.oid FROM found JOIN entries ON tree = found.oid)
SELECT repo, oid FROM found
"""
_UNUSED_UPLOADS = """
SELECT repo, sha256 FROM lfs_objects EXCEPT SELECT repo, sha256 FROM reached JOIN files USING (oid) WHERE lfs
"""
_NEEDED = """
SELECT sha256 FROM files WHERE oid IN (SELECT oid FROM reached)
UNION SELECT sha256 FROM lfs_objects UNION SELECT sha256 FROM xorbs
"""


class Freed(NamedTuple):
    """What a garbage collection removed."""

    commits: int
    files: int
    bytes: int


def collect(root: Path, now: float | None = None) -> Freed:
    """Free what is not needed; the caller holds the lock of ``root``. RunError when the index cannot be changed.

    A disk may be full, and to forget something in the index takes room. So contents that no commit reaches go before
    the index is touched, then the few rows that hold others, and the many rows that hold nothing last. Whatever stops
    this in between, no row that a client can reach names a content that is gone.
    """
    before = int(time.time() if now is None else now) - KEPT_SECONDS
    blobs = BlobStore(root)
    blobs.drop_reserve()
    blobs.sweep()
    count = size = 0
    try:
        with closing(Database(root / "hub.sqlite")) as database:
            count, size = _drop_blobs(blobs, _needed(database), before)
            commits = _forget(database, blobs, before)
            more, bytes_more = _drop_blobs(blobs, _needed(database), before)
            count, size = count + more, size + bytes_more
            _tidy(database)
    except sqlite3.OperationalError as error:
        problem = f"{count} contents of {size:,} bytes were removed, but the index could not be changed ({error})"
        hint = "run gc again; if it stops here once more, free some space elsewhere"
        raise RunError(root, problem, hint=hint) from error
    blobs.keep_reserve()
    return Freed(commits, count, size)


def _needed(database: Database) -> set[str]:
    """sha256 of the blobs that a commit reaches, or that an upload may still bring into one."""
    with database.reading() as db:
        db.execute(_REACH)
        return {row["sha256"] for row in db.execute(_NEEDED)}


def _forget(database: Database, blobs: BlobStore, before: int) -> int:
    """Drop old commits, idle xorbs and unused uploads from the index; returns how many commits."""
    with database.writing() as db:
        commits = db.execute(_DROP_COMMITS, (before,)).rowcount
        db.execute("DELETE FROM receipts WHERE (repo, oid) NOT IN (SELECT repo, oid FROM commits)")
        _drop_xorbs(db, before)
        db.execute(_REACH)
        for upload in db.execute(_UNUSED_UPLOADS).fetchall():
            if blobs.path(upload["sha256"]).stat().st_mtime < before:
                db.execute("DELETE FROM lfs_objects WHERE repo = ? AND sha256 = ?", tuple(upload))
    return commits


def _tidy(database: Database) -> None:
    """Drop folders and files that no commit reaches from the index, and hashes of files that nobody has."""
    with database.writing() as db:
        db.execute(_REACH)
        db.execute("DELETE FROM entries WHERE tree NOT IN (SELECT oid FROM reached)")
        db.execute("DELETE FROM files WHERE oid NOT IN (SELECT oid FROM reached)")
        db.execute("DELETE FROM xet_hashes WHERE sha256 NOT IN (SELECT sha256 FROM lfs_objects)")


def _drop_xorbs(db: sqlite3.Connection, before: int) -> None:
    idle = "SELECT repo FROM xorbs GROUP BY repo HAVING max(created) < ?"
    db.execute(f"DELETE FROM xet_spaces WHERE repo IN ({idle})", (before,))  # noqa: S608
    db.execute(f"DELETE FROM xorbs WHERE repo IN ({idle})", (before,))  # noqa: S608


def _drop_blobs(blobs: BlobStore, needed: set[str], before: int) -> tuple[int, int]:
    """Remove old contents that are not needed; returns how many, and their bytes."""
    count, size = 0, 0
    for path in blobs.folder.glob("*/*"):
        found = path.stat()
        if path.name not in needed and found.st_mtime < before:
            path.unlink()
            count, size = count + 1, size + found.st_size
    return count, size
