"""Evaluation data: files, rows with their hash, the pins of rows, and the readers of SentEval's
files.

The readers keep the toolkit's encodings, row order and class numbers.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from sts_dino.hub.errors import InputError


@dataclass(frozen=True)
class DataFile:
    """The bytes of a file, and the place that errors name."""

    place: str
    content: bytes

    def split_lines(self, encoding: str = "utf-8") -> list[str]:
        """Return the lines without line ends, blank lines included; [] for an empty file.

        Lines end at newlines only: ``str.splitlines`` would also split at characters that occur
        inside sentences. Raises InputError when the bytes are not in ``encoding``.
        """
        try:
            text = self.content.decode(encoding)
        except UnicodeDecodeError as error:
            raise InputError(
                self.place, f"is not {encoding} (byte {error.start})", hint="restore the file"
            ) from error
        if not text:
            return []
        return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]

    def iter_cells(
        self, columns: int, encoding: str = "utf-8", header: bool = False
    ) -> Iterator[tuple[str, list[str]]]:
        """Yield (FILE:LINE, cells) of every line, split at tabs; quotation marks are text.

        Args:
            columns: the least number of cells of a line.
            encoding: the file's encoding.
            header: whether the first line is skipped.

        Raises InputError, naming the line, for fewer cells, and the error of ``split_lines``.
        """
        for number, line in enumerate(self.split_lines(encoding), start=1):
            if header and number == 1:
                continue
            cells = line.split("\t")
            if len(cells) < columns:
                raise InputError(
                    f"{self.place}:{number}",
                    f"has {len(cells)} tab-separated columns, expected {columns}",
                    hint="restore the file",
                )
            yield f"{self.place}:{number}", cells


SMALLEST_NORM = 1e-12  # divides a zero vector, whose cosine is then 0
Vector = NDArray[np.float64]
Indices = NDArray[np.intp]
Row = tuple[str | float | int, ...]


class Subset(NamedTuple):
    """Consecutive rows ``start`` to ``stop`` (exclusive) that come from one corpus."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Rows:
    """The rows of a split, in the dataset's own text form.

    ``columns``: one column of texts, or the two columns of pairs, n texts each. ``target`` (n,):
    human scores, or indices of classes in ``classes``. ``subsets``: consecutive parts by their
    corpus; empty: the rows have no subsets. ``sha256``: the hash of the rows (``hash_rows``),
    whatever their file's format.
    """

    columns: tuple[tuple[str, ...], ...]
    target: NDArray[Any]
    classes: tuple[str, ...] = ()
    subsets: tuple[Subset, ...] = ()
    sha256: str = ""

    @classmethod
    def from_tuples(
        cls, rows: Sequence[Row], classes: Sequence[str] = (), subsets: Sequence[Subset] = ()
    ) -> "Rows":
        """Make rows of tuples (text, target) or (sentence1, sentence2, target), with their hash.

        ``target`` is the index of a class in ``classes``, or without classes a score. Without
        tuples the rows have no columns.
        """
        # The last column is the target; without rows it is the only column, and empty
        *columns, target = zip(*rows, strict=True) if rows else ((),)
        dtype = np.int64 if classes else np.float64
        numbers = np.array(target, dtype=dtype)
        unhashed = cls(tuple(columns), numbers, tuple(classes), tuple(subsets))
        return replace(unhashed, sha256=hash_rows(unhashed))

    def __len__(self) -> int:
        return len(self.target)

    @property
    def first(self) -> tuple[str, ...]:
        """The first column: the single texts, or ``sentence1`` of the pairs."""
        return self.columns[0]

    @property
    def second(self) -> tuple[str, ...]:
        """The second column: ``sentence2`` of the pairs."""
        return self.columns[1]

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text: the first column, then the second; repeated texts included."""
        return sum(self.columns, ())

    def iter_canonical(self) -> Iterable[Row]:
        """Iterate over the rows as they are hashed: texts, then the score or the class's name."""
        target: list[Any] = self.target.tolist()
        if self.classes:
            target = [self.classes[label] for label in target]
        return zip(*self.columns, target, strict=True)

    def select(self, chosen: Indices) -> "Rows":
        """Return some of the rows, with the ``sha256`` of all rows.

        ``chosen``: sorted row indices, (m,). A subset without a chosen row is left out.
        """
        # A subset keeps the chosen rows between its bounds
        subsets = []
        for name, *bounds in self.subsets:
            start, stop = np.searchsorted(chosen, bounds).tolist()
            if start < stop:
                subsets.append(Subset(name, start, stop))
        columns = []
        for column in self.columns:
            columns.append(tuple(column[index] for index in chosen))
        return replace(
            self,
            columns=tuple(columns),
            target=self.target[chosen],
            subsets=tuple(subsets),
        )


def draw_rows(rows: Rows, limit: int | None, seed: int) -> Rows:
    """Draw ``limit`` rows with ``seed``, in the order of the data.

    All rows are returned for a ``limit`` of None or of at least their number. Every subset, or
    without subsets every class, keeps its share up to rounding. The first rows would be a biased
    sample: STSb begins with captions, and labelled rows are often sorted by class.
    """
    if limit is None or limit >= len(rows):
        return rows

    # The stratum of a row is its subset, else its class
    strata = rows.target.copy() if rows.classes else np.zeros(len(rows), dtype=np.intp)
    for number, (_, start, stop) in enumerate(rows.subsets):
        strata[start:stop] = number
    return rows.select(draw_indices(strata, limit, seed))


def draw_indices(strata: NDArray[np.integer], limit: int, seed: int) -> Indices:
    """Draw sorted row indices (limit,) by stratified systematic sampling, without replacement.

    Each stratum keeps its share, up to rounding, and every row is equally likely.

    Args:
        strata: the index of each row's stratum, (n,).
        limit: the number of rows to draw, at most n.
        seed: seed of the draw.
    """
    # Shuffle the rows within each stratum
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(strata))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]

    # Draw rows at equal distances from a random start
    positions = (np.arange(limit) + generator.random()) * len(strata) / limit
    return np.sort(by_stratum[positions.astype(np.intp)])


PINS_FILE = Path(__file__).with_name("pins") / "rows.yaml"
RESTORE_HINT = (
    "restore the files from their source: a score on other data would pass for a score on these"
)


class RowsPin(BaseModel, frozen=True, extra="forbid"):
    """The pin of a split's published rows.

    ``rows``: their number. ``more``: how many further rows are accepted. ``sha256``: the hash of
    the rows; None: not checked. ``subsets``: name → number of rows; empty: not checked.
    """

    rows: int
    more: int = 0
    sha256: str | None = None
    subsets: dict[str, int] = {}


# dataset → split → pin; empty for a user's own data, and for tests
Pins = Mapping[str, Mapping[str, RowsPin]]


@cache
def load_pins() -> dict[str, dict[str, RowsPin]]:
    """Load the pins of the published data, dataset → split → pin, from ``PINS_FILE``."""
    pins = yaml.safe_load(PINS_FILE.read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, dict[str, RowsPin]]).validate_python(pins)


def check_rows(place: str, rows: Rows, pin: RowsPin | None) -> None:
    """Require the number, hash and subsets of rows that ``pin`` states; None: accept any rows.

    Raises InputError, naming ``place``, when one of them differs.
    """
    if pin is None:
        return
    sizes = {name: stop - start for name, start, stop in rows.subsets}
    problem = None
    if not pin.rows <= len(rows) <= pin.rows + pin.more:
        expected = f"{pin.rows} to {pin.rows + pin.more}" if pin.more else str(pin.rows)
        problem = f"has {len(rows)} rows, expected {expected}"
    elif pin.sha256 is not None and rows.sha256 != pin.sha256:
        problem = f"has other rows: sha256 {rows.sha256[:12]}…, expected {pin.sha256[:12]}…"
    elif pin.subsets and sizes != pin.subsets:
        problem = f"has subsets of {sizes} rows, expected {pin.subsets}"
    if problem is not None:
        raise InputError(place, problem, hint=RESTORE_HINT)


def hash_rows(rows: Rows) -> str:
    """Return the SHA-256, as hex, of a split's rows: one JSON array a line, in UTF-8."""
    digest = hashlib.sha256()
    for row in rows.iter_canonical():
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
        digest.update(line.encode())
    return digest.hexdigest()


def join_tokens(text: str) -> str:
    """Return SentEval's text form: the tokens joined by single spaces."""
    return " ".join(text.split())


def parse_score(place: str, text: str, low: float, high: float) -> float:
    """Parse a score.

    Raises InputError, naming ``place``, for text that is not a number from ``low`` to ``high``.
    """
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(place, f"{text!r} is not a score", hint="restore the file") from error
    if not low <= value <= high:
        raise InputError(place, f"the score {text} is out of range", allowed=f"{low:g} to {high:g}")
    return value


def parse_class(place: str, label: str, classes: Sequence[str]) -> int:
    """Return the index of the class ``label`` in ``classes``.

    Raises InputError, naming ``place``, for an unknown class.
    """
    if label not in classes:
        raise InputError(
            place, f"unknown class {label!r}", allowed=", ".join(classes), hint="restore the file"
        )
    return classes.index(label)


# Facts of the toolkit's readers (facebookresearch/SentEval, ``senteval/*.py``): texts are tokens
# split at white space; in the two-file tasks the first file has class 1 (SUBJ: ``objective``);
# blank lines are rows. The toolkit sorts rows by length before it cuts folds. Here rows stay in the
# order of the files, and the probe sorts them.
BINARY = ("0", "1")
FINE = ("0", "1", "2", "3", "4")
TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SNLI = ("entailment", "neutral", "contradiction")
PART_CODES = {"train": "tr", "validation": "va", "test": "te"}  # in the files of probing tasks


TextForm = Callable[[str], str]


def read_two_classes(files: Sequence[DataFile]) -> Rows:
    """Read MR, CR, SUBJ or MPQA from two files: the texts of class 1, then those of class 0.

    The files have one text a line, in Latin-1.
    """
    rows: list[Row] = []
    for label, file in zip((1, 0), files, strict=True):
        rows += [(join_tokens(line), label) for line in file.split_lines("latin-1")]
    return Rows.from_tuples(rows, BINARY)


def read_table(
    files: Sequence[DataFile],
    columns: int,
    texts: Sequence[int],
    target: int,
    classes: Sequence[str] = (),
    span: tuple[float, float] = (0, 5),
    header: bool = False,
    form: TextForm = join_tokens,
) -> Rows:
    """Read tab-separated UTF-8 files, one after the other.

    Raises InputError, naming the line, for too few columns, an unknown class, or a score that is
    not a number within ``span``; also for a file in another encoding.

    Args:
        files: contents of the files.
        columns: the least number of columns of a line.
        texts: positions of the columns of texts, from 0.
        target: position of the column of the class or, without ``classes``, of the score.
        classes: names of the classes; a row's target is the index of its class. Empty: scores.
        span: lowest and highest allowed score.
        header: whether the first line of each file names the columns.
        form: function that converts a text to the dataset's text form.
    """
    rows: list[Row] = []
    for file in files:
        for place, cells in file.iter_cells(columns, header=header):
            value: float
            if classes:
                value = parse_class(place, cells[target], classes)
            else:
                value = parse_score(place, cells[target], *span)
            row_texts = [form(cells[position]) for position in texts]
            rows.append((*row_texts, value))
    return Rows.from_tuples(rows, classes)


def read_label_first(
    files: Sequence[DataFile], classes: Sequence[str], encoding: str = "utf-8"
) -> Rows:
    """Read SST5 or TREC from one file: a line is the class, a space and the text.

    TREC's classes have a subclass after a colon, which is left out. Raises InputError for an
    unknown class, and for a file in another ``encoding``.
    """
    rows: list[Row] = []
    for place, cells in files[0].iter_cells(1, encoding):
        label, _, text = cells[0].strip().partition(" ")
        coarse_label = label.partition(":")[0]
        rows.append((join_tokens(text), parse_class(place, coarse_label, classes)))
    return Rows.from_tuples(rows, classes)


def read_snli(files: Sequence[DataFile]) -> Rows:
    """Read SNLI from three files with one row a line: classes, premises and hypotheses.

    The texts are read as Latin-1, as SentEval does. Raises InputError when the files have different
    numbers of lines, for an unknown class, and for a file of classes that is not UTF-8.
    """
    class_file, *text_files = files
    lines = [class_file.split_lines()]
    lines += [file.split_lines("latin-1") for file in text_files]
    require_equal_line_counts(files, lines)
    rows: list[Row] = []
    for line, (label, premise, hypothesis) in enumerate(zip(*lines, strict=True), start=1):
        class_number = parse_class(f"{files[0].place}:{line}", label, SNLI)
        rows.append((join_tokens(premise), join_tokens(hypothesis), class_number))
    return Rows.from_tuples(rows, SNLI)


def read_probing(files: Sequence[DataFile], split: str) -> Rows:
    """Read a split of a probing task from the one file of all splits.

    A line has tab-separated cells: the split's code (``PART_CODES``) first, then the class, and the
    text last. A class's index is its position among the train split's classes, sorted as text
    (``10`` before ``5``). Raises InputError for fewer than three cells, for another code, and for a
    class that the train split lacks.
    """
    # Collect the lines of the split, and the classes of the train split
    train_labels = set()
    lines = []
    for place, (part, label, *_, text) in files[0].iter_cells(3):
        if part not in PART_CODES.values():
            raise InputError(
                place, f"unknown part {part!r}", allowed="tr, va, te", hint="restore the file"
            )
        if part == PART_CODES["train"]:
            train_labels.add(label)
        if part == PART_CODES[split]:
            lines.append((place, label, join_tokens(text)))

    # Number the classes
    classes = sorted(train_labels)
    rows = [(text, parse_class(place, label, classes)) for place, label, text in lines]
    return Rows.from_tuples(rows, classes)


def require_equal_line_counts(files: Sequence[DataFile], lines: Sequence[Sequence[Any]]) -> None:
    """Raise InputError when one of ``files`` has another number of lines than the first.

    ``lines``: the lines of each file, in the order of ``files``.
    """
    for file, file_lines in zip(files, lines, strict=True):
        if len(file_lines) != len(lines[0]):
            raise InputError(
                file.place,
                f"has {len(file_lines)} lines, {files[0].place} has {len(lines[0])}",
                hint="restore both files",
            )


def read_sts_year(files: Sequence[DataFile], subsets: Sequence[str], form: TextForm) -> Rows:
    """Read the subsets of a year of STS, one after another.

    A pair with an empty line in the gold file has no human score and is left out.

    Args:
        files: the input file and the gold file of the first subset, then of the next, ...; both
            files have one pair a line.
        subsets: the names of the subsets, in the toolkit's order.
        form: function that converts a text to the dataset's text form.

    Raises InputError when a subset's files differ in their number of lines, a line of texts has
    fewer than two columns, or a score is not a number from 0 to 5.
    """
    input_files = files[::2]
    gold_files = files[1::2]
    rows: list[Row] = []
    subset_rows: list[Subset] = []
    for name, input_file, gold_file in zip(subsets, input_files, gold_files, strict=True):
        start = len(rows)
        pairs = [cells for _, cells in input_file.iter_cells(2)]
        scores = gold_file.split_lines()
        require_equal_line_counts((input_file, gold_file), (pairs, scores))
        for line, (cells, score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score:
                value = parse_score(f"{gold_file.place}:{line}", score, 0, 5)
                rows.append((form(cells[0]), form(cells[1]), value))
        subset_rows.append(Subset(name, start, len(rows)))
    return Rows.from_tuples(rows, subsets=subset_rows)
