"""People's answers on disk, append-only: an SQLite file that is whole after kill -9, a full disk or a power cut.

Every answer is a row of its own and is on the disk before ``add`` returns. A changed answer is a new row: the last one
counts and the history stays. Threads and processes may write at the same time. Answers belong to rows of one dataset,
known by its fingerprint; so samples of other seeds or sizes share the file. A name is only ever a value in it.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from eval.audit.annotation.sample import Examples
from hub.durable import make_folder
from hub.errors import InputError, RunError

FILE = "answers.sqlite"
_WAIT = 10  # seconds for another writer
_SCHEMA = """
CREATE TABLE dataset (identity TEXT NOT NULL);
CREATE TABLE answers (
  number INTEGER PRIMARY KEY, annotator TEXT NOT NULL, row INTEGER NOT NULL, label TEXT NOT NULL, time TEXT NOT NULL
);
CREATE TABLE finished (annotator TEXT PRIMARY KEY, last INTEGER NOT NULL, time TEXT NOT NULL);
"""


_FINAL = "SELECT row FROM answers JOIN finished USING (annotator) WHERE annotator = ? AND number <= last"


class AnswerLockedError(InputError):
    """Who has seen the results may not change an answer that is in them: it would not be blind."""


@dataclass(frozen=True)
class Answer:
    """One line of the history."""

    annotator: str
    row: int
    label: str
    time: str  # ISO 8601, UTC


class AnswerStore:
    """The answers of all annotators about one dataset, in ``directory``.

    Raises InputError when the file is of another dataset or is no such file; RunError when it cannot be written.
    """

    def __init__(self, directory: Path, examples: Examples):
        self.path = directory / FILE
        identity = {"config": examples.config, "split": examples.split, "sha256": examples.sha256}
        make_folder(directory)  # SQLite syncs the file's own name
        with self._transaction() as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO dataset VALUES (?)", [json.dumps(identity)])
            found = json.loads(database.execute("SELECT identity FROM dataset").fetchone()[0])
        if found != identity:
            differ = ", ".join(
                f"{key} {found.get(key)}, here {identity[key]}" for key in identity if found.get(key) != identity[key]
            )
            raise InputError(self.path, f"holds answers about other rows ({differ})", hint="choose another --out")

    def add(self, annotator: str, row: int, label: str) -> None:
        """Write an answer durably. Raises Final when an earlier one stands, RunError when the disk refuses it."""
        with self._transaction() as database:
            if database.execute(f"{_FINAL} AND row = ?", [annotator, row]).fetchone():
                raise AnswerLockedError(annotator, "has seen the results: these answers are final")
            values = [annotator, row, label, _now()]
            database.execute("INSERT INTO answers (annotator, row, label, time) VALUES (?, ?, ?, ?)", values)

    def answers(self, annotator: str) -> dict[int, str]:
        """Row → label, the last answer to each row."""
        return {answer.row: answer.label for answer in self.history() if answer.annotator == annotator}

    def annotators(self) -> list[str]:
        """Everyone who answered, in the order of their first answer."""
        return list(dict.fromkeys(answer.annotator for answer in self.history()))

    def history(self) -> list[Answer]:
        """Every answer ever given, oldest first."""
        with self._transaction() as database:
            rows = database.execute("SELECT annotator, row, label, time FROM answers ORDER BY number").fetchall()
        return [Answer(*row) for row in rows]

    def finish(self, annotator: str) -> None:
        """Make the annotator's answers until now final."""
        with self._transaction() as database:
            last = "SELECT annotator, max(number), ? FROM answers WHERE annotator = ? GROUP BY annotator"
            database.execute(f"INSERT OR REPLACE INTO finished {last}", [_now(), annotator])

    def final(self, annotator: str) -> set[int]:
        """Rows whose answer by the annotator is final."""
        with self._transaction() as database:
            return {row for (row,) in database.execute(_FINAL, [annotator])}

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk when it ends and undone when it fails."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = EXTRA")  # the folder too, after the journal is removed
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise RunError(
                self.path, f"cannot be read or written: {error}", hint="no earlier answer is lost"
            ) from error
        except sqlite3.DatabaseError as error:
            hint = "it is damaged or something else: move it away, or choose another --out"
            raise InputError(self.path, f"is no file of answers: {error}", hint=hint) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
