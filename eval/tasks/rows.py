"""Evaluation data: content of files, rows of a split with their hash, the pins that both are held against."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

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


Vector = NDArray[np.float64]
Labels = NDArray[np.int64]
Indices = NDArray[np.intp]
Subset = tuple[str, int, int]
Row = tuple[str | float | int, ...]


@dataclass(frozen=True)
class _Pairs:
    first: tuple[str, ...]
    second: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.first + self.second


@dataclass(frozen=True)
class _Texts:
    text: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.text


@dataclass(frozen=True)
class ScoredPairs(_Pairs):
    """Sentence pairs with human scores. ``subsets`` are (name, start, stop) of consecutive rows, if any."""

    gold: Vector  # (n,)
    sha256: str
    subsets: tuple[Subset, ...] = ()

    def canonical(self) -> Iterable[Row]:
        """The rows as they enter the hash."""
        return zip(self.first, self.second, self.gold.tolist(), strict=True)

    def draw(self, limit: int, seed: int) -> "ScoredPairs":
        """``limit`` rows, as many of every subset as it has of the whole."""
        group = np.zeros(len(self), dtype=np.intp)
        for number, (_, start, stop) in enumerate(self.subsets):
            group[start:stop] = number
        chosen = spread(group, limit, seed)
        ends = [(name, *np.searchsorted(chosen, (start, stop)).tolist()) for name, start, stop in self.subsets]
        subsets = tuple((name, start, stop) for name, start, stop in ends if start < stop)
        first, second = _of(self.first, chosen), _of(self.second, chosen)
        return ScoredPairs(first, second, self.gold[chosen], self.sha256, subsets)


@dataclass(frozen=True)
class LabelledTexts(_Texts):
    """Single texts with a class, an index into ``classes``."""

    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str

    def canonical(self) -> Iterable[Row]:
        """The rows as they enter the hash."""
        return zip(self.text, (self.classes[label] for label in self.labels), strict=True)

    def draw(self, limit: int, seed: int) -> "LabelledTexts":
        """``limit`` rows, as many of every class as it has of the whole."""
        chosen = spread(self.labels, limit, seed)
        return replace(self, text=_of(self.text, chosen), labels=self.labels[chosen])


@dataclass(frozen=True)
class LabelledPairs(_Pairs):
    """Text pairs with a class, an index into ``classes``."""

    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str

    def canonical(self) -> Iterable[Row]:
        """The rows as they enter the hash."""
        return zip(self.first, self.second, (self.classes[label] for label in self.labels), strict=True)

    def draw(self, limit: int, seed: int) -> "LabelledPairs":
        """``limit`` rows, as many of every class as it has of the whole."""
        chosen = spread(self.labels, limit, seed)
        first, second = _of(self.first, chosen), _of(self.second, chosen)
        return replace(self, first=first, second=second, labels=self.labels[chosen])


@dataclass(frozen=True)
class Captions(_Texts):
    """Images as feature vectors and their captions; caption i describes image ``image_of[i]``."""

    features: NDArray[np.float32] = field(repr=False)  # (images, 2048)
    image_of: Labels  # (captions,)
    sha256: str

    def canonical(self) -> Iterable[Row]:
        """The rows as they enter the hash."""
        return zip(self.text, self.image_of.tolist(), strict=True)

    def draw(self, limit: int, seed: int) -> "Captions":
        """The captions of images in a drawn order, until there are enough."""
        place = np.random.default_rng(seed).permutation(int(self.image_of.max()) + 1)
        chosen = np.sort(np.argsort(place[self.image_of], kind="stable")[:limit])
        return replace(self, text=_of(self.text, chosen), image_of=self.image_of[chosen])


Rows = ScoredPairs | LabelledTexts | LabelledPairs | Captions
"""Texts are in the data set's own text form; ``sha256`` is the same wherever the rows were read."""
Example = TypeVar("Example", bound=Rows)


def drawn(rows: Rows, limit: int | None, seed: int) -> Rows:
    """``limit`` of the rows (all when None), in their order, with the SHA-256 of the whole.

    The first rows would be no sample: STSb's begin with captions, the years' with one subset, labelled rows often lie
    sorted by class.
    """
    return rows if limit is None or limit >= len(rows) else rows.draw(limit, seed)


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


def _of(texts: tuple[str, ...], chosen: Indices) -> tuple[str, ...]:
    return tuple(texts[row] for row in chosen)


PINS_FILE = Path(__file__).with_name("pins") / "files.yaml"
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
    for row in rows.canonical():
        digest.update(canonical_line(row))
    if isinstance(rows, Captions):
        digest.update(np.ascontiguousarray(rows.features, dtype="<f4").ravel().data)
    return digest.hexdigest()


def canonical_line(row: Row) -> bytes:
    """A row as it enters the hash."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def tokens(text: str) -> str:
    """SentEval's text form: the tokens joined by single spaces."""
    return " ".join(text.split())


def number(place: str, text: str, low: float, high: float) -> float:
    """A score. Raises InputError when it is none, or not within low … high."""
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(place, f"{text!r} is no score", hint="restore the file") from error
    if not low <= value <= high:
        raise InputError(place, f"the score {text} is out of range", allowed=f"{low:g} to {high:g}")
    return value


def index(place: str, label: str, classes: Sequence[str]) -> int:
    """The class's number. Raises InputError for an unknown class."""
    if label not in classes:
        raise InputError(place, f"unknown class {label!r}", allowed=", ".join(classes), hint="restore the file")
    return classes.index(label)


def scored_pairs(rows: Sequence[tuple[str, str, float]], subsets: Sequence[Subset] = ()) -> ScoredPairs:
    """Pairs from (first, second, score)."""
    gold = np.array([score for _, _, score in rows], dtype=np.float64)
    first, second = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return _hashed(ScoredPairs(first, second, gold, sha256="", subsets=tuple(subsets)))


def labelled_texts(rows: Sequence[tuple[str, int]], classes: Sequence[str]) -> LabelledTexts:
    """Texts from (text, class number)."""
    labels = np.array([label for _, label in rows], dtype=np.int64)
    return _hashed(LabelledTexts(tuple(text for text, _ in rows), labels, tuple(classes), sha256=""))


def labelled_pairs(rows: Sequence[tuple[str, str, int]], classes: Sequence[str]) -> LabelledPairs:
    """Pairs from (first, second, class number)."""
    labels = np.array([label for _, _, label in rows], dtype=np.int64)
    first, second = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return _hashed(LabelledPairs(first, second, labels, tuple(classes), sha256=""))


def captions(features: NDArray[np.float32], rows: Sequence[tuple[str, int]]) -> Captions:
    """Captions from (text, image) and the images' features (images, dimension)."""
    image_of = np.array([image for _, image in rows], dtype=np.int64)
    return _hashed(Captions(tuple(text for text, _ in rows), features, image_of, sha256=""))


def _hashed(rows: Example) -> Example:
    return replace(rows, sha256=rows_sha256(rows))
