"""The index: one SQLite database in WAL mode, flushed to disk on every commit.

Readers see one snapshot, writers take turns; a transaction is either wholly there after a crash or not at all.
File contents live in ``blobs.py``; ``schema.sql`` has the tables: users, tokens, repos, refs, commits, trees, uploads.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hub_server.storage.errors import CommandError

_VERSION = 3
# Version 2 had gated repos and pull requests. The files of a gated repo must not become public.
_FROM_VERSION_2 = """
UPDATE repos SET private = 1 WHERE id IN (SELECT repo FROM gates);
DELETE FROM refs WHERE name LIKE 'refs/pr/%';
DELETE FROM xet_spaces;
DROP TABLE xorbs;
"""
_SCHEMA = Path(__file__).with_name("schema.sql")


class Database:
    """The index; ``reading`` and ``writing`` are the only ways in."""

    def __init__(self, path: Path):
        self._path = path
        # SQLite's own waiting is unfair and sleeps; within this process a lock hands writers on at once.
        self._writers = threading.Lock()
        path.touch(mode=0o600)
        try:
            # Kept open: with the last connection SQLite would fold the write-ahead log into the file, each time.
            self._keeper = self._connect()
            self._keeper.execute("PRAGMA journal_mode=WAL")
            version = self._keeper.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, 2, _VERSION):
                problem = f"written by another version of the Hub (form {version}; allowed: {_VERSION})"
                hint = "serve it with that version, or take a new --root"
                raise CommandError(f"{path}: {problem}; {hint}", exit_code=1)
            if version != _VERSION:  # else nothing is written: the disk may be full
                change = (_FROM_VERSION_2 if version == 2 else "") + _SCHEMA.read_text(encoding="utf-8")
                self._keeper.executescript(f"BEGIN; {change} PRAGMA user_version={_VERSION}; COMMIT")
        except sqlite3.DatabaseError as error:
            problem = f"cannot be used ({error}); restore it, or take a new --root"
            raise CommandError(f"{path}: {problem}", exit_code=1) from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: one consistent snapshot."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: committed to disk when the block ends, rolled back when it raises."""
        with self._writers, self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as connection:  # closing rolls back an uncommitted transaction
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close the last connection, which folds the write-ahead log into the file."""
        self._keeper.close()
