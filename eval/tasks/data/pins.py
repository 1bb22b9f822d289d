"""What the data are: SHA-256 and size of every file, and of the rows of every split, wherever they are read from.

``files.yaml`` was measured on copies of the published files by ``eval.tasks.measure``. What was not
at hand (SNLI's train part, the probing tasks, COCO) has only the counts that its papers and SentEval's documentation
give, and no checksum: there the count alone is checked.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field

from eval.tasks.data.example_types import Captions, LabelledPairs, LabelledTexts, Rows, ScoredPairs
from eval.tasks.data.files import DataFile
from hub.errors import InputError

PINS_FILE = Path(__file__).parents[1] / "pins" / "files.yaml"
RESTORE = "restore the whole file from its source: a score on other data would pass for a score on these"


class FilePin(BaseModel):
    """A file's lines, header included, and the hash of its bytes; ``more``: how many further lines are accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    lines: int
    more: int = 0
    sha256: str | None = None


class RowsPin(BaseModel):
    """A split's rows and their hash in canonical form; ``more``: how many further rows are accepted.

    ``subsets``: rows of every subset, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: int
    more: int = 0
    sha256: str | None = None
    subsets: dict[str, int] = Field(default_factory=dict)


class Pins(BaseModel):
    """Every pin. An empty ``Pins()`` checks nothing: for data of one's own, and for tests."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    senteval: dict[str, FilePin] = Field(default_factory=dict)  # path in SentEval's layout → pin
    originals: dict[str, FilePin] = Field(default_factory=dict)  # path in the organisers' layout → pin
    rows: dict[str, dict[str, RowsPin]] = Field(default_factory=dict)  # data set → split → pin


@cache
def published() -> Pins:
    """The pins of the published data, ``files.yaml``."""
    return Pins.model_validate(yaml.safe_load(PINS_FILE.read_text(encoding="utf-8")))


def check_lines(file: DataFile, pin: FilePin | None) -> None:
    """Raises InputError when a pinned file has another number of lines."""
    if pin is not None and not pin.lines <= file.line_count <= pin.lines + pin.more:
        problem = f"has {file.line_count} lines, expected {_count(pin.lines, pin.more)}"
        raise InputError(file.place, problem, hint=RESTORE)


def check_file(file: DataFile, pin: FilePin | None) -> None:
    """Raises InputError when a pinned file has another number of lines or, where they are known, other bytes."""
    check_lines(file, pin)
    if pin is not None and pin.sha256 not in (None, file.sha256):
        found, expected = file.sha256[:12], str(pin.sha256)[:12]
        problem = f"is altered: {file.line_count} lines as expected, but sha256 {found}…, expected {expected}…"
        raise InputError(file.place, problem, hint=RESTORE)


def check_rows(place: str, rows: Rows, pin: RowsPin | None) -> None:
    """Raises InputError when a pinned split has other rows than the published ones, or another number of them."""
    if pin is None:
        return
    if not pin.rows <= len(rows) <= pin.rows + pin.more:
        raise InputError(place, f"has {len(rows)} rows, expected {_count(pin.rows, pin.more)}", hint=RESTORE)
    if pin.sha256 is not None and rows.sha256 != pin.sha256:
        problem = f"has other rows: sha256 {rows.sha256[:12]}…, expected {pin.sha256[:12]}…"
        raise InputError(place, problem, hint=RESTORE)
    if isinstance(rows, ScoredPairs) and pin.subsets:
        found = {name: stop - start for name, start, stop in rows.subsets}
        if found != pin.subsets:
            raise InputError(place, f"has subsets of {found} rows, expected {pin.subsets}", hint=RESTORE)


def _count(least: int, more: int) -> str:
    return f"{least}" if not more else f"{least} to {least + more}"


def rows_sha256(rows: Rows) -> str:
    """SHA-256 of a split's rows, one JSON array a line: texts, then score, class name or image, as UTF-8.

    Independent of the files' format, so equal wherever the same rows were read from. Images' features are hashed
    behind the captions, as little-endian float32.
    """
    digest = hashlib.sha256()
    for row in canonical_rows(rows):
        digest.update(canonical_line(row))
    if isinstance(rows, Captions):
        digest.update(np.ascontiguousarray(rows.features, dtype="<f4").ravel().data)
    return digest.hexdigest()


def canonical_line(row: tuple[str | float | int, ...]) -> bytes:
    """A row as it enters the hash."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def canonical_rows(rows: Rows) -> Iterator[tuple[str | float | int, ...]]:
    """The rows as tuples, in order."""
    if isinstance(rows, ScoredPairs):
        yield from zip(rows.first, rows.second, rows.gold.tolist(), strict=True)
    elif isinstance(rows, LabelledTexts):
        yield from zip(rows.text, (rows.classes[label] for label in rows.labels), strict=True)
    elif isinstance(rows, LabelledPairs):
        yield from zip(rows.first, rows.second, (rows.classes[label] for label in rows.labels), strict=True)
    else:
        yield from zip(rows.text, rows.image_of.tolist(), strict=True)
