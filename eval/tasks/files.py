"""Content of data files, with the name that messages use: checked against their pins, cut into lines and cells."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hub.errors import InputError


@dataclass(frozen=True)
class DataFile:
    """A file's bytes and the place that messages name."""

    place: str
    content: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes, as hex."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def line_count(self) -> int:
        """Lines, header included, whether or not the last one ends in a newline."""
        return self.content.count(b"\n") + (self.content[-1:] not in (b"", b"\n"))

    def lines(self, encoding: str = "utf-8") -> list[str]:
        """Lines ended by a newline, or by a carriage return and one; blank lines count.

        Not ``str.splitlines``: it also breaks at characters that stand inside sentences. Raises InputError when the
        bytes are not in ``encoding``.
        """
        try:
            text = self.content.decode(encoding)
        except UnicodeDecodeError as error:
            raise InputError(self.place, f"is not {encoding} (byte {error.start})", hint="restore the file") from error
        lines = text.removesuffix("\n").split("\n") if text else []
        return [line.removesuffix("\r") for line in lines]

    def cells(self, columns: int, encoding: str = "utf-8", header: bool = False) -> Iterator[tuple[str, list[str]]]:
        """(place, cells) of every line, split at tabs and nowhere else: these files know no quoting.

        Raises InputError naming the line that has fewer than ``columns`` cells.
        """
        for number, line in enumerate(self.lines(encoding), start=1):
            if header and number == 1:
                continue
            cells = line.split("\t")
            if len(cells) < columns:
                problem = f"has {len(cells)} tab-separated columns, expected {columns}"
                raise InputError(f"{self.place}:{number}", problem, hint="restore the file")
            yield f"{self.place}:{number}", cells


def names_in_layout(name: str) -> tuple[str, ...]:
    """A file's names: in the whole layout, and where its ``downstream`` folder is the root (as in SimCSE's archive)."""
    return tuple(dict.fromkeys((name, name.removeprefix("downstream/"))))


class Place(Protocol):
    """Where files lie: a directory, an archive or a repository."""

    def read(self, name: str) -> DataFile:
        """The file called ``name`` in SentEval's or the organisers' layout. Raises InputError when it is not there."""


class Directory:
    """A local directory in SentEval's layout (``downstream/``, ``probing/``; or ``downstream`` itself), or in the STS
    organisers'.
    """

    def __init__(self, root: Path, option: str):
        if not root.is_dir():
            raise InputError(root, "no such directory", hint=f"check {option}")
        inside = root.resolve().name == "downstream" and not (root / "downstream").is_dir()
        self._root, self._option = (root.parent if inside else root), option

    def read(self, name: str) -> DataFile:
        """The file, also where the layout's ``downstream`` folder has another name."""
        for candidate in names_in_layout(name):
            path = self._root / candidate
            if path.is_file():
                return DataFile(str(path), path.read_bytes())
        hint = f"{self._option} needs the whole layout: restore the file, or score without its task"
        raise InputError(self._root / name, "no such data file", hint=hint)
