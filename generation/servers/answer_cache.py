"""Answers that were paid for, kept by what was asked, so that a killed run does not pay twice.

A SQLite file beside the run directory. Every answer is on the disk (fsync) before the pipeline sees it; a process
killed while it writes leaves the file as it was before that answer. Memory does not grow with the number of answers.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple

from generation.servers.answers import Answer
from hub.durable import make_folder
from hub.errors import InputError, RunError

_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
    log_prob REAL) WITHOUT ROWID"""
_TOTALS = """SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),
    count(*) - count(prompt_tokens + completion_tokens) FROM answers"""


class Totals(NamedTuple):
    """What all answers of a journal used; ``uncounted`` of them came without a token count."""

    answers: int
    prompt_tokens: int
    completion_tokens: int
    uncounted: int


class AnswerCache:
    """The answers of a run. Without a path they are kept until the process ends, in a temporary file."""

    def __init__(self, path: Path | None):
        self.path = path
        self._lock = threading.Lock()
        if path is not None:
            make_folder(path.parent)  # SQLite syncs the file's own name
        with self._reported():
            self._connection = sqlite3.connect(path or "", timeout=60, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)

    def find(self, key: bytes) -> Answer | None:
        """The answer kept under ``key``, or None."""
        with self._reported():
            row = self._connection.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
        return Answer(*row[1:]) if row else None

    def add(self, key: bytes, answer: Answer) -> None:
        """Keep an answer; it is on the disk when this returns. Any thread may call."""
        with self._reported():
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (key, *astuple(answer))
            )

    def totals(self) -> Totals:
        """Sums over all answers, those of earlier processes included."""
        with self._reported():
            return Totals(*self._connection.execute(_TOTALS).fetchone())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            hint = "free some space or fix its permissions, and run the same command again"
            raise RunError(self.path, f"cannot keep answers: {error}", hint=hint) from error
        except sqlite3.DatabaseError as error:
            hint = "move it away; what it held will be asked, and paid for, again"
            raise InputError(self.path, f"is not a journal of answers: {error}", hint=hint) from error


def key_of(*asked: Any) -> bytes:
    """SHA-256 of everything that decides an answer (JSON values)."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
