"""The shape of a data set on disk: which files of which layout a split is read from, and by which reader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from eval.tasks.data.example_types import Rows
from eval.tasks.data.files import DataFile
from hub.errors import InputError

Layout = Literal["senteval", "originals"]
Reader = Callable[[Sequence[DataFile]], Rows]
Splits = Mapping[str, Sequence[str]]  # split → file names


@dataclass(frozen=True)
class Part:
    """A split: the files it is read from, in the reader's order."""

    files: tuple[str, ...]
    reader: Reader


@dataclass(frozen=True)
class DataSet:
    """A data set's layout and splits; ``sentences`` is the set of sentences it holds, whatever their text form.

    ``sentences`` is None where a decontamination reads the data set only when it is named.
    """

    name: str
    layout: Layout
    parts: Mapping[str, Part]
    sentences: str | None = None

    def part(self, split: str) -> Part:
        """The split's files and reader. Raises InputError when there is no such split."""
        if split not in self.parts:
            raise InputError(self.name, f"has no split {split!r}", allowed=", ".join(self.parts))
        return self.parts[split]


def parts(folder: str, files: Splits, reader: Reader) -> dict[str, Part]:
    """Splits that one reader reads from files of one folder."""
    return {split: Part(tuple(f"{folder}/{file}" for file in names), reader) for split, names in files.items()}
