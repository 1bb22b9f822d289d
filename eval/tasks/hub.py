"""A dataset repository that holds SentEval's (or the organisers') layout, as files or as one ``senteval.tar``.

SimCSE's authors publish such an archive: ``princeton-nlp/datasets-for-simcse``. Files are read at one commit, and are
checked against the same pins as a directory's. An archive is never unpacked: its members are read in place, so that
no name in it can reach a file of this machine.
"""

import hashlib
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import yaml
from numpy.typing import NDArray

from eval.tasks.rows import RESTORE, DataFile, Row, Rows, RowsPin, Subset, canonical_line, names_in_layout
from hub.errors import InputError

ARCHIVE = "senteval.tar"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubPin:
    """A dataset repository at a revision; ``MTEB`` stands for MTEB's STS repositories at MTEB's revisions."""

    repo_id: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubPin":
        """From ``ORG/NAME@REVISION`` or ``mteb``. Raises InputError for a repository without a revision."""
        repo_id, _, revision = text.partition("@")
        found = cls(repo_id, revision or None)
        if found != MTEB and not (repo_id.count("/") == 1 and revision):
            hint = "name a commit or tag: data that change under a score make it worthless"
            raise InputError("--hub-data", f"{text!r} is not pinned", allowed="ORG/NAME@REVISION or mteb", hint=hint)
        return found


MTEB = HubPin("mteb")


class Repository:
    """The files of a pinned dataset repository, downloaded one by one when they are read."""

    def __init__(self, pin: HubPin):
        self._pin = pin
        self._archive: Archive | None = None

    def read(self, name: str) -> DataFile:
        """The file from the repository or from its archive. Raises InputError when neither has it."""
        if self._archive is None:
            for candidate in names_in_layout(name):
                path = self._download(candidate)
                if path is not None:
                    return DataFile(f"{self._place}: {candidate}", path.read_bytes())
            archive = self._download(ARCHIVE)
            if archive is None:
                hint = f"the repository needs SentEval's layout, or {ARCHIVE} with it"
                raise InputError(f"{self._place}: {name}", "no such data file at this revision", hint=hint)
            self._archive = Archive(archive, f"{self._place}: {ARCHIVE}")
        return self._archive.read(name)

    @cached_property
    def _commit(self) -> str:
        from huggingface_hub import HfApi

        from hub.client.connection import reading

        if _COMMIT.fullmatch(self._pin.revision or ""):
            return self._pin.revision or ""
        with reading(f"dataset {self._pin.repo_id}", self._pin.revision):
            return HfApi().dataset_info(self._pin.repo_id, revision=self._pin.revision).sha or ""

    @cached_property
    def _place(self) -> str:
        return f"dataset {self._pin.repo_id}@{self._commit[:12]}"

    def _download(self, name: str) -> Path | None:
        """The file in the client's cache, or None when the repository has none of this name. A commit never changes, so
        what the cache knows of one, files and their absence, is not asked again and works offline.
        """
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        from hub.client.connection import reading

        known = try_to_load_from_cache(self._pin.repo_id, name, repo_type="dataset", revision=self._commit)
        if known is not None:
            return Path(known) if isinstance(known, str) else None
        with reading(f"dataset {self._pin.repo_id}", self._pin.revision):
            try:
                return Path(hf_hub_download(self._pin.repo_id, name, repo_type="dataset", revision=self._commit))
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                return None


class Archive:
    """SentEval's layout in an uncompressed tar, read in place."""

    def __init__(self, path: Path, place: str):
        self._path, self.place = path, place

    @cached_property
    def _members(self) -> list[tarfile.TarInfo]:
        """Raises InputError for a path that leaves the archive, or no archive."""
        try:
            with tarfile.open(self._path, "r:") as tar:
                members = tar.getmembers()
        except tarfile.TarError as error:
            raise InputError(self.place, f"is not a tar archive: {error}", hint="restore the whole file") from error
        for path in (PurePosixPath(member.name) for member in members):
            if path.is_absolute() or ".." in path.parts:
                raise InputError(self.place, f"has a member outside of it: {str(path)!r}", hint="use another archive")
        return members

    def read(self, name: str) -> DataFile:
        """The member whose path ends like ``name``. Raises InputError when it is absent, doubled or no plain file."""
        for candidate in names_in_layout(name):
            found = [member for member in self._members if PurePosixPath(member.name).match(candidate)]
            if len(found) > 1:
                problem = f"is there {len(found)} times: {', '.join(member.name for member in found[:3])}"
                raise InputError(f"{self.place}: {candidate}", problem, hint="use an archive with one layout")
            if found:
                return self._content(found[0])
        raise InputError(f"{self.place}: {name}", "no such data file in the archive", hint="use a whole archive")

    def _content(self, member: tarfile.TarInfo) -> DataFile:
        place = f"{self.place}: {member.name}"
        if not member.isfile():
            raise InputError(place, "is not a plain file", hint="use an archive of plain files")
        try:
            with tarfile.open(self._path, "r:") as tar:
                stream = tar.extractfile(member)
                return DataFile(place, stream.read() if stream else b"")
        except tarfile.TarError as error:
            raise InputError(place, f"cannot be read: {error}", hint="restore the whole archive") from error


DATASETS_FILE = Path(__file__).with_name("pins") / "mteb_datasets.yaml"
ORDER_FILE = Path(__file__).with_name("pins") / "row_order.npz"
COLUMNS = ("sentence1", "sentence2", "score")
Order = NDArray[np.uint32]


@cache
def mteb_pins() -> dict[str, HubPin]:
    """Data set → MTEB's repository at MTEB's revision."""
    entries = yaml.safe_load(DATASETS_FILE.read_text(encoding="utf-8"))
    return {name: HubPin(**entry) for name, entry in entries.items()}


@cache
def published_order() -> dict[str, Order]:
    """``<data set>/<split>`` → the first four bytes of every row's hash, in the published order."""
    with np.load(ORDER_FILE, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def key(row: Row) -> int:
    """The first four bytes of a row's hash."""
    return int.from_bytes(hashlib.sha256(canonical_line(row)).digest()[:4], "big")


def in_order(place: str, rows: Sequence[Row], order: Order) -> list[Row]:
    """``rows`` in the published order. Raises InputError when they are not the published ones."""
    if len(rows) != len(order):
        raise InputError(place, f"has {len(rows)} rows, expected {len(order)}", hint=RESTORE)
    keys = np.array([key(row) for row in rows], dtype=np.uint32)
    unknown = np.flatnonzero(~np.isin(keys, order))
    if len(unknown):
        problem = f"{len(unknown)} rows are not among the published ones, e.g. {str(rows[unknown[0]])[:80]}"
        raise InputError(place, problem, hint=RESTORE)
    places, found = np.argsort(order, kind="stable"), np.argsort(keys, kind="stable")
    if not np.array_equal(order[places], keys[found]):
        raise InputError(place, "repeats some rows and lacks others", hint=RESTORE)
    return [rows[found[position]] for position in np.argsort(places)]


def mteb_has(dataset: str, split: str) -> bool:
    """Whether MTEB has a repository of the data set, and the split's published order is known."""
    return dataset in mteb_pins() and f"{dataset}/{split}" in published_order()


def mteb_rows(dataset: str, split: str, pin: RowsPin | None, form: Callable[[str], str]) -> Rows:
    """A split from MTEB's repository in the published order, with the subsets that ``pin`` lists.

    Raises InputError when MTEB has no such data or its rows are not the published ones.
    """
    name, order = f"{dataset}/{split}", published_order()
    if not mteb_has(dataset, split):
        hint = "give --senteval-data DIR or --sts-data DIR"
        raise InputError(name, "is not among the data of --hub-data mteb", allowed=", ".join(order), hint=hint)
    repository = mteb_pins()[dataset]
    place = f"dataset {repository.repo_id}@{(repository.revision or '')[:12]} {split}"
    found = _download(place, repository, split)
    rows = [(form(first), form(second), float(score)) for first, second, score in found]
    return Rows.of(in_order(place, rows, order[name]), subsets=bounds(pin.subsets if pin else {}))


def bounds(sizes: Mapping[str, int]) -> list[Subset]:
    """(name, start, stop) of consecutive subsets from their sizes."""
    stops = np.cumsum(list(sizes.values())).tolist()
    return [(name, stop - size, stop) for (name, size), stop in zip(sizes.items(), stops, strict=True)]


def _download(place: str, repository: HubPin, split: str) -> list[tuple[str, str, float]]:
    from datasets import load_dataset

    from hub.client.connection import reading
    from hub.contract.shards import reading_rows

    with reading(f"dataset {repository.repo_id}", repository.revision), reading_rows(place):
        table = load_dataset(repository.repo_id, revision=repository.revision, split=split)
    missing = [column for column in COLUMNS if column not in table.column_names]
    if missing:
        raise InputError(place, f"has no column {missing[0]!r}", allowed=", ".join(table.column_names))
    return list(zip(*(table[column] for column in COLUMNS), strict=True))
