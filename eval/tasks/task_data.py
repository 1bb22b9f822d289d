"""The rows that tasks are scored on: read once from their source, cut down where a limit asks for part of them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.tasks.data.example_types import Rows, ScoredPairs
from eval.tasks.data.files import DataFile
from eval.tasks.data.pins import check_rows, published
from eval.tasks.data.sample import drawn
from eval.tasks.registry import find_dataset
from eval.tasks.sources import Source
from eval.tasks.task import Task
from hub.errors import InputError

BLANK = "."  # what the toolkit's example encoders are given for a blank line (4 rows of CR, 3 of MPQA)


@dataclass(frozen=True)
class Entry:
    """A task and the split to score; ``path`` is the split's own file, where a recipe names one."""

    task: Task
    split: str
    path: Path | None = None

    def __str__(self) -> str:
        return f"{self.task.name} {self.split}"


class TaskData:
    """The rows of entries. Each split is read once; ``limit`` draws so many rows of each with ``seed``."""

    def __init__(self, source: Source, limit: int | None = None, seed: int = 42):
        self.source, self._limit, self._seed = source, limit, seed
        self._read: dict[tuple[str, str, Path | None], Rows] = {}

    def rows(self, entry: Entry) -> dict[str, Rows]:
        """split → rows of all that scoring the entry needs. Raises InputError when they are not whole."""
        task = entry.task
        keys = {split: (task.dataset, split, entry.path) for split in task.reads(entry.split)}
        missing = [split for split, key in keys.items() if key not in self._read]
        if missing:
            found = self._load(entry, missing)
            self._read |= {keys[split]: drawn(rows, self._limit, self._seed) for split, rows in found.items()}
        return {split: self._read[key] for split, key in keys.items()}

    def _load(self, entry: Entry, splits: list[str]) -> dict[str, Rows]:
        if entry.path is None:
            return self.source.load(entry.task.dataset, splits)
        return {entry.split: read_file(entry.path, entry.task, entry.split)}

    def texts(self, entry: Entry) -> Iterator[tuple[str, ...]]:
        """Every text that scoring the entry needs embedded, split by split, repeats included."""
        has_probe = entry.task.design is not None
        for rows in self.rows(entry).values():
            yield tuple(text or BLANK for text in rows.texts) if has_probe else rows.texts

    def sha256(self, entry: Entry) -> str:
        """Hash of the rows that the score depends on; of whole splits, whatever the limit."""
        hashes = [rows.sha256 for rows in self.rows(entry).values()]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def read_file(path: Path, task: Task, split: str) -> ScoredPairs:
    """The pairs of a split whose one file is named: the published file, wherever it lies.

    Raises InputError when it is missing or another file, or the task does not read its split from one file.
    """
    task.reads(split)
    dataset = find_dataset(task.dataset)
    part = dataset.part(split)
    if len(part.files) != 1 or task.family != "sts":
        raise InputError(path, f"{task.name} is not read from one file", hint="leave path out of the recipe")
    try:
        file = DataFile(str(path), path.read_bytes())
    except (FileNotFoundError, IsADirectoryError) as error:
        hint = "the repository keeps it in assets/"
        raise InputError(path, f"no such data file for {task.name}", hint=hint) from error
    rows = part.reader([file])
    check_rows(str(path), rows, published().rows.get(dataset.name, {}).get(split))
    assert isinstance(rows, ScoredPairs)
    return rows
