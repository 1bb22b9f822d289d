"""Evaluation data: content of files, rows of a split with their hash, and the pins that these are held against."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hub.errors import InputError


@dataclass(frozen=True)
class DataFile:
    """A file's bytes and the place that messages name."""

    place: str
    content: bytes

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


def in_directory(root: Path, option: str, name: str) -> DataFile:
    """A file of a local directory in SentEval's layout (``downstream/``, ``probing/``; or ``downstream`` itself, by any
    name), or in the STS organisers'.
    """
    if not root.is_dir():
        raise InputError(root, "no such directory", hint=f"check {option}")
    inside = root.resolve().name == "downstream" and not (root / "downstream").is_dir()
    for candidate in names_in_layout(name):
        path = (root.parent if inside else root) / candidate
        if path.is_file():
            return DataFile(str(path), path.read_bytes())
    hint = f"{option} needs the whole layout: restore the file, or score without its task"
    raise InputError(root / name, "no such data file", hint=hint)


Vector = NDArray[np.float64]
Labels = NDArray[np.int64]
Indices = NDArray[np.intp]
Subset = tuple[str, int, int]
Row = tuple[str | float | int, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of a split, in the data set's own text form; ``sha256`` is the same wherever they were read.

    ``columns`` are the texts: one a row, or the two of a pair. ``target`` (n,) is the human score, the number of the
    class in ``classes``. ``subsets`` are (name, start, stop) of consecutive rows, if any.
    """

    columns: tuple[tuple[str, ...], ...]
    target: NDArray[Any]
    classes: tuple[str, ...] = ()
    subsets: tuple[Subset, ...] = ()
    sha256: str = ""

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        classes: Sequence[str] = (),
        subsets: Sequence[Subset] = (),
    ) -> "Rows":
        """From (text, target) or (sentence1, sentence2, target), with their hash."""
        *columns, target = zip(*rows, strict=True) if rows else ((),)
        numbers = np.array(target, dtype=np.int64 if classes else np.float64)
        found = cls(tuple(columns), numbers, tuple(classes), tuple(subsets))
        return replace(found, sha256=rows_sha256(found))

    def __len__(self) -> int:
        return len(self.target)

    @property
    def first(self) -> tuple[str, ...]:
        """The single text, or the first one of a pair."""
        return self.columns[0]

    @property
    def second(self) -> tuple[str, ...]:
        """The second text of a pair."""
        return self.columns[1]

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return tuple(text for column in self.columns for text in column)

    def canonical(self) -> Iterable[Row]:
        """The rows as they enter the hash: texts, then score or class name."""
        target = [self.classes[label] for label in self.target] if self.classes else self.target.tolist()
        return zip(*self.columns, target, strict=True)

    def take(self, chosen: Indices) -> "Rows":
        """Some rows (sorted), with the SHA-256 of the whole."""
        ends = [(name, *np.searchsorted(chosen, (start, stop)).tolist()) for name, start, stop in self.subsets]
        return replace(
            self,
            columns=tuple(tuple(column[row] for row in chosen) for column in self.columns),
            target=self.target[chosen],
            subsets=tuple((name, start, stop) for name, start, stop in ends if start < stop),
        )


def drawn(rows: Rows, limit: int | None, seed: int) -> Rows:
    """``limit`` of the rows (all when None), in their order: every subset and class with its share.

    The first rows would be no sample: STSb's begin with captions, labelled rows often lie sorted by class.
    """
    if limit is None or limit >= len(rows):
        return rows
    strata = rows.target.copy() if rows.classes else np.zeros(len(rows), dtype=np.intp)
    for number, (_, start, stop) in enumerate(rows.subsets):
        strata[start:stop] = number
    return rows.take(spread(strata, limit, seed))


def spread(strata: NDArray[np.integer], limit: int, seed: int) -> Indices:
    """Indices (limit,), sorted, of rows drawn without replacement, each as likely as any other.

    ``strata`` (n,) numbers each row's group; a group's share of the drawn rows is its share of all, but for rounding
    (systematic sampling of shuffled rows, sorted by group).
    """
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(len(strata))
    by_group = shuffled[np.argsort(strata[shuffled], kind="stable")]
    places = ((np.arange(limit) + draw.random()) * len(strata) / limit).astype(np.intp)
    return np.sort(by_group[places])


PINS_FILE = Path(__file__).with_name("pins") / "rows.yaml"
RESTORE = "restore the files from their source: a score on other data would pass for a score on these"


class RowsPin(BaseModel):
    """A split's rows and their hash in canonical form; ``more``: how many further rows are accepted.

    ``subsets``: rows of every subset, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: int
    more: int = 0
    sha256: str | None = None
    subsets: dict[str, int] = {}


Pins = Mapping[str, Mapping[str, RowsPin]]  # data set → split → pin; empty for data of one's own, and for tests


@cache
def published() -> dict[str, dict[str, RowsPin]]:
    """The pins of the published data, ``rows.yaml``."""
    pins = yaml.safe_load(PINS_FILE.read_text(encoding="utf-8"))
    return {name: {split: RowsPin(**pin) for split, pin in splits.items()} for name, splits in pins.items()}


def check_rows(place: str, rows: Rows, pin: RowsPin | None) -> None:
    """Raises InputError when a pinned split has other rows than the published ones, or another number of them."""
    if pin is None:
        return
    if not pin.rows <= len(rows) <= pin.rows + pin.more:
        expected = f"{pin.rows} to {pin.rows + pin.more}" if pin.more else str(pin.rows)
        raise InputError(place, f"has {len(rows)} rows, expected {expected}", hint=RESTORE)
    if pin.sha256 is not None and rows.sha256 != pin.sha256:
        problem = f"has other rows: sha256 {rows.sha256[:12]}…, expected {pin.sha256[:12]}…"
        raise InputError(place, problem, hint=RESTORE)
    found = {name: stop - start for name, start, stop in rows.subsets}
    if pin.subsets and found != pin.subsets:
        raise InputError(place, f"has subsets of {found} rows, expected {pin.subsets}", hint=RESTORE)


def rows_sha256(rows: Rows) -> str:
    """SHA-256 of a split's rows, one JSON array a line, as UTF-8: equal wherever the same rows were read from."""
    digest = hashlib.sha256()
    for row in rows.canonical():
        digest.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def tokens(text: str) -> str:
    """SentEval's text form: the tokens joined by single spaces."""
    return " ".join(text.split())


def number(place: str, text: str, low: float, high: float) -> float:
    """A score. Raises InputError when it is none, or not within low … high."""
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(place, f"{text!r} is not a score", hint="restore the file") from error
    if not low <= value <= high:
        raise InputError(place, f"the score {text} is out of range", allowed=f"{low:g} to {high:g}")
    return value


def index(place: str, label: str, classes: Sequence[str]) -> int:
    """The class's number. Raises InputError for an unknown class."""
    if label not in classes:
        raise InputError(place, f"unknown class {label!r}", allowed=", ".join(classes), hint="restore the file")
    return classes.index(label)
