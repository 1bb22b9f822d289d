"""Where evaluation data are read from: a SentEval directory, the STS organisers' files, or pinned Hub datasets."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eval.tasks.hub import Repository
from eval.tasks.own import CORPUS, QRELS, OwnData
from eval.tasks.registry import find_dataset
from eval.tasks.rows import DataFile, Pins, Rows, check_rows, drawn, in_directory, published
from eval.tasks.task import LAYOUTS, DataSet, Layout, Task
from hub.assets import asset
from hub.errors import InputError

SHIPPED = asset("stsb")


def shipped(name: str) -> DataFile:
    """A file that the project carries. Raises InputError when the checkout has lost it."""
    path = SHIPPED / Path(name).name
    if not path.is_file():
        raise InputError(path, "no such data file", hint="it comes with the project: install that again")
    return DataFile(str(path), path.read_bytes())


class Source:
    """The rows of any data set, whole and checked, or an error. Nothing is read before it is asked for.

    A directory that is given is the only place of its layout; pinned Hub datasets serve the layouts without one. The
    STS Benchmark's validation and test splits ship with the project, and are read there when nothing else is named.
    """

    def __init__(
        self,
        senteval: Path | None = None,
        originals: Path | None = None,
        hub: Repository | None = None,
        *,
        pins: Pins | None = None,
        own: OwnData | None = None,
    ):
        """``pins``: the published ones by default; ``{}`` checks nothing. ``own``: a user's files, scored as well."""
        self._roots: dict[Layout, Path | None] = {"senteval": senteval, "originals": originals}
        self._repository = hub
        self._pins = published() if pins is None else pins
        self.own = own or OwnData()

    def load(self, dataset: str, splits: Sequence[str]) -> dict[str, Rows]:
        """The named splits (train, validation, test; ``all`` where the protocol cuts its own folds).

        Raises InputError: unknown data set or split, no source for it (names the option to give), a file that is
        missing, short, long or altered (names the files, found and expected).
        """
        if dataset in self.own.rows:
            return {split: self.own.rows[dataset][split] for split in splits}
        found = find_dataset(dataset)
        for split in splits:
            found.part(split)
        return {split: self._rows(found, split) for split in splits}

    def has(self, dataset: str, split: str) -> bool:
        """Whether a place is given where the split would be read; whether its files are there, ``load`` tells."""
        return self._reader(find_dataset(dataset), split) is not None

    def _rows(self, dataset: DataSet, split: str) -> Rows:
        """The rows of a split. The rows decide, not the bytes: a file with other line ends passes."""
        part, read = dataset.part(split), self._reader(dataset, split)
        if read is None:
            option = LAYOUTS[dataset.layout].option
            hint = f"give {option}, or pinned Hub data with --hub-data ORG/NAME@REVISION"
            raise InputError(dataset.name, "no source of its data is given", hint=hint)
        files = [read(name) for name in part.files]
        rows = part.reader(files)
        more = f" and {len(files) - 1} more files" if len(files) > 1 else ""
        check_rows(f"{dataset.name} {split}, {files[0].place}{more}", rows, self._pins.get(dataset.name, {}).get(split))
        return rows

    def _reader(self, dataset: DataSet, split: str) -> Callable[[str], DataFile] | None:
        """What reads the files of a split; None when no directory or repository of files is named."""
        root = self._roots[dataset.layout]
        if root is not None:
            return partial(in_directory, root, LAYOUTS[dataset.layout].option)
        if split in dataset.shipped:
            return shipped
        return self._repository.read if self._repository else None


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
            limits = {split: None if split in (CORPUS, QRELS) else self._limit for split in found}
            self._read |= {keys[split]: drawn(rows, limits[split], self._seed) for split, rows in found.items()}
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


def read_file(path: Path, task: Task, split: str) -> Rows:
    """The pairs of a split whose one file is named: the published file, wherever it lies.

    Raises InputError when it is missing or another file, or the task does not read its split from one file.
    """
    task.reads(split)
    dataset = find_dataset(task.dataset)
    part = dataset.part(split)
    if len(part.files) != 1 or task.fitted_on or task.design:
        raise InputError(path, f"{task.name} is not read from one file", hint="leave path out of the recipe")
    try:
        file = DataFile(str(path), path.read_bytes())
    except (FileNotFoundError, IsADirectoryError) as error:
        hint = "the repository keeps it in assets/"
        raise InputError(path, f"no such data file for {task.name}", hint=hint) from error
    rows = part.reader([file])
    check_rows(str(path), rows, published().get(dataset.name, {}).get(split))
    return rows
