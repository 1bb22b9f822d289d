"""The index: one SQLite database in WAL mode, flushed to disk on every commit.

Readers see one snapshot, writers take turns. After a crash, a transaction is there as a whole or
not at all. File contents live in ``blobs.py``; ``schema.sql`` has the tables: users, tokens, repos,
refs, commits, trees, uploads.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hub_server.storage.errors import CommandError

_VERSION = 3  # of the tables; SQLite keeps the number as ``user_version``
_LOCK_SECONDS = 30  # that a connection waits for another process's lock
# Version 2 had gated repos and pull requests. The files of a gated repo must not become public.
_FROM_VERSION_2 = """
UPDATE repos SET private = 1 WHERE id IN (SELECT repo FROM gates);
DELETE FROM refs WHERE name LIKE 'refs/pr/%';
DELETE FROM xet_spaces;
DROP TABLE xorbs;
"""
_SCHEMA = Path(__file__).with_name("schema.sql")


class Database:
    """The index; all access is in a transaction of ``begin_read`` or ``begin_write``.

    The file is created if it is missing. Raises CommandError when SQLite cannot open it, and when
    it is damaged or has another version; OSError when it cannot be created.
    """

    def __init__(self, path: Path):
        self._path = path
        # SQLite's own lock makes writers sleep; this lock wakes the next writer at once.
        self._write_lock = threading.Lock()
        path.touch(mode=0o600)
        try:
            # This connection stays open: when the last connection closes, SQLite merges the
            # write-ahead log into the file, which takes time.
            self._open_connection = self._connect()
            self._open_connection.execute("PRAGMA journal_mode=WAL")
            self._upgrade()
        # OperationalError: the disk, a permission or a lock. Other errors: the file's content.
        except sqlite3.OperationalError as error:
            problem = f"cannot be opened or written ({error})"
            hint = (
                "free some space, change its permissions, or stop another Hub on this --root, and "
                "start the Hub again"
            )
            raise CommandError(f"{path}: {problem}; {hint}", exit_code=1) from error
        except sqlite3.DatabaseError as error:
            problem = f"cannot be used ({error}); restore it, or take a new --root"
            raise CommandError(f"{path}: {problem}", exit_code=1) from error

    def _upgrade(self) -> None:
        """Create the tables, or bring those of version 2 up to date, in one transaction.

        Raises CommandError for any other version.
        """
        version = self._open_connection.execute("PRAGMA user_version").fetchone()[0]
        if version == _VERSION:  # write nothing: a Hub on a full disk can still serve
            return
        if version not in (0, 2):  # 0: a new file
            problem = f"written by another version of the Hub (form {version}; allowed: {_VERSION})"
            hint = "serve it with that version, or take a new --root"
            raise CommandError(f"{self._path}: {problem}; {hint}", exit_code=1)
        script = _SCHEMA.read_text(encoding="utf-8")
        if version == 2:
            script = _FROM_VERSION_2 + script
        self._open_connection.executescript(
            f"BEGIN; {script} PRAGMA user_version={_VERSION}; COMMIT"
        )

    def _connect(self) -> sqlite3.Connection:
        """Return a new connection without a transaction; threads may use it one at a time."""
        connection = sqlite3.connect(
            self._path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        return connection

    @contextmanager
    def begin_read(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a read transaction, which sees one consistent snapshot."""
        with self._run_transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def begin_write(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a write transaction.

        The end of the block commits to the disk; an exception rolls back.
        """
        with self._write_lock, self._run_transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def _run_transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        # When the block raises, closing the connection rolls back.
        with closing(self._connect()) as connection:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection that stays open; SQLite merges the write-ahead log into the file."""
        self._open_connection.close()
