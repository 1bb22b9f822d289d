"""What a run finished since its manifest was last written: one JSON line an entry, on disk before the next begins."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hub.durable import fsync, make_folder
from hub.run_dir import File
from hub.shards import named_in_errors


class ShardEntry(BaseModel):
    """A shard's files, and those of its paths that got no file, for want of rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: tuple[File, ...]
    empty: tuple[str, ...]


class GroupEntry(BaseModel):
    """A finished group's files and counts (``Tally.parts``); ``raw`` tells which raw files they were made from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    raw: str
    files: tuple[File, ...]
    facts: dict[str, Any]


Entry = TypeVar("Entry", bound=BaseModel)


class Journal(Generic[Entry]):
    """Entries of one kind in a file that only grows until it is cleared."""

    def __init__(self, path: Path, kind: type[Entry]):
        self.path, self._kind = path, kind

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on disk when this returns. Raises OSError with the file's name."""
        line = b"\n" + entry.model_dump_json().encode()  # the line break first: it ends what a kill or a full disk tore
        make_folder(self.path.parent)
        begun = not self.path.exists()
        with named_in_errors(self.path), self.path.open("ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
            if begun:
                fsync(self.path.parent)  # its name, too

    def entries(self) -> Iterator[Entry]:
        """Every whole entry, the oldest first. A torn line is none."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            for line in file:
                try:
                    yield self._kind.model_validate_json(line)
                except ValidationError:
                    continue

    def clear(self) -> None:
        """Remove all entries."""
        self.path.unlink(missing_ok=True)
