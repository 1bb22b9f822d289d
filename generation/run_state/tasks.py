"""Tasks of a run and their results.

A result is a function of the task, the recipe and the files it reads. Where it runs, when, beside what and how
often changes nothing: a task may be done again, or by two workers at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generation.inputs.sources import FirstText
from generation.run_state.layout import Group, Shard
from hub.contract.run_dir import File

Row = dict[str, Any]
Tick = Callable[[int], object]  # told of every n accepted texts
Read = Callable[[str], Path | bytes]  # a file of the run directory: its path, or its content


@dataclass(frozen=True)
class WriteFirstTexts:
    """Have the model write the first texts of some numbers."""

    numbers: range

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"first-texts-{self.numbers.start}-{self.numbers.stop}"


@dataclass(frozen=True)
class WriteShard:
    """Have the model write the texts of a shard."""

    shard: Shard
    firsts: tuple[FirstText, ...]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        shots, example_set = self.shard.variant.shots, self.shard.variant.example_set
        return f"shard-{shots or 0}-{example_set}-{self.shard.block:06d}-of-{self.shard.blocks:06d}"


@dataclass(frozen=True)
class FinishGroup:
    """Finish the raw rows of a group. ``empty``: files it would read that were not written, for want of rows."""

    group: Group
    empty: frozenset[str]

    @property
    def key(self) -> str:
        """The task's name among those of a run; fit for a file name."""
        return f"group-{self.group.shots or 0}-{self.group.index:06d}-of-{self.group.total:06d}"


Task = WriteFirstTexts | WriteShard | FinishGroup


@dataclass(frozen=True)
class OutputFile:
    """A file of a result: its manifest entry and its content (None: it is in the run directory or a store)."""

    file: File
    content: bytes | None


@dataclass(frozen=True)
class TaskResult:
    """What a task made.

    ``empty``: paths that got no file, for want of rows. ``facts``: JSON that the task's kind defines. ``rows``:
    accepted texts. ``seconds`` and ``node``: how long it took and where, for people; nothing published depends on them.
    """

    task: Task
    outputs: tuple[OutputFile, ...] = ()
    empty: tuple[str, ...] = ()
    facts: Any = None
    rows: int = 0
    seconds: float = 0.0
    node: str = ""
