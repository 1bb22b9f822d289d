"""Freeing disk space, while the Hub is stopped: what no branch, tag or upload of the last 24 hours needs.

Three things go. Commits that no ref leads to (squashed, or of a deleted branch) and that are older than a day. Xorbs of
repos that had no Xet upload for a day: the repo gets a new Xet address, so that no client refers to them again. And
contents that nothing names any more, unless they are younger than a day: they may wait for their commit.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from hub.local.blobs import BlobStore
from hub.local.database import Database

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
_NAMED = "SELECT sha256 FROM files UNION SELECT sha256 FROM lfs_objects UNION SELECT sha256 FROM xorbs"


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
        commits = db.execute(_DROP_COMMITS, (before,)).rowcount
        db.execute("DELETE FROM receipts WHERE (repo, oid) NOT IN (SELECT repo, oid FROM commits)")
        _drop_xorbs(db, before)
        db.execute(_REACH)
        db.execute("DELETE FROM entries WHERE tree NOT IN (SELECT oid FROM reached)")
        db.execute("DELETE FROM files WHERE oid NOT IN (SELECT oid FROM reached)")
        for upload in db.execute(_UNUSED_UPLOADS).fetchall():
            if blobs.path(upload["sha256"]).stat().st_mtime < before:
                db.execute("DELETE FROM lfs_objects WHERE repo = ? AND sha256 = ?", tuple(upload))
        db.execute("DELETE FROM xet_hashes WHERE sha256 NOT IN (SELECT sha256 FROM lfs_objects)")
        named = {row["sha256"] for row in db.execute(_NAMED)}
    return Freed(commits, *_drop_blobs(blobs, named, before))


def _drop_xorbs(db: sqlite3.Connection, before: int) -> None:
    idle = "SELECT repo FROM xorbs GROUP BY repo HAVING max(created) < ?"
    db.execute(f"DELETE FROM xet_spaces WHERE repo IN ({idle})", (before,))  # noqa: S608
    db.execute(f"DELETE FROM xorbs WHERE repo IN ({idle})", (before,))  # noqa: S608


def _drop_blobs(blobs: BlobStore, named: set[str], before: int) -> tuple[int, int]:
    """Remove old contents that the index does not name; returns how many, and their bytes."""
    count, size = 0, 0
    for path in blobs.folder.glob("*/*"):
        found = path.stat()
        if path.name not in named and found.st_mtime < before:
            path.unlink()
            count, size = count + 1, size + found.st_size
    return count, size
