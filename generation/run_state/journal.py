"""A task's result as a JSON record, and the journal of results that the manifest does not name yet."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from generation.run_state.tasks import OutputFile, Task, TaskResult
from hub.contract.run_dir import File
from hub.durable import fsync, make_folder, named_in_errors


class TaskRecord(BaseModel):
    """A task's result without the files' contents. ``raw``: of a group's, the raw files that it was made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    files: tuple[File, ...]
    empty: tuple[str, ...]
    facts: Any
    rows: int
    seconds: float
    node: str
    raw: str = ""

    @classmethod
    def of(cls, result: TaskResult, raw: str = "") -> "TaskRecord":
        """The record of a result."""
        files = tuple(output.file for output in result.outputs)
        measured = {name: getattr(result, name) for name in ("empty", "facts", "rows", "seconds", "node")}
        return cls(task=result.task.key, files=files, raw=raw, **measured)

    def result(self, task: Task) -> TaskResult:
        """The result of ``task``; its files stand elsewhere."""
        outputs = tuple(OutputFile(file, None) for file in self.files)
        return TaskResult(task, outputs, self.empty, self.facts, self.rows, self.seconds, self.node)


class Journal:
    """Append-only file of records, one JSON line each, on disk before the next begins."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, record: TaskRecord) -> None:
        """Add a record; it is on disk when this returns. Raises OSError with the file's name."""
        line = b"\n" + record.model_dump_json().encode()  # the line break first: it ends what a kill or full disk tore
        make_folder(self.path.parent)
        begun = not self.path.exists()
        with named_in_errors(self.path), self.path.open("ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
            if begun:
                fsync(self.path.parent)  # its name, too

    def records(self) -> Iterator[TaskRecord]:
        """Every whole record, the oldest first. A torn line is none."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for line in file:
                try:
                    yield TaskRecord.model_validate_json(line)
                except ValidationError:
                    continue

    def clear(self) -> None:
        """Remove all records."""
        self.path.unlink(missing_ok=True)
