"""A place that all nodes of a run reach: workers leave what they made there, and the driver takes it from there.

``URL`` is a path on a shared file system, or any URL that fsspec writes to (object stores, ``hf://buckets/…``). Below
``URL/<run>/`` stand

    contents/<xxx>/<sha256>             the files, named by what is in them
    records/<xxx>/<task>-<digest>.json  what a task gave; it names its files with their SHA-256, and comes after them

So a killed worker leaves at worst contents that no record names, and two workers that do one task disturb nobody. The
digest is that of the first texts: shards of other first texts are not found. Nothing is trusted that is not whole, and
only JSON and parquet are read.

On a path, files are written beside their place and renamed, and reach a run directory on the same file system as hard
links. Elsewhere a file is one ``PUT`` of the whole object; protocols that write as they send (``sftp``, ``ftp``) can
leave a part of it, which its checksum gives away.

``hf://buckets/ORG/NAME[/FOLDER]`` (huggingface_hub 2.4): every file is one upload through Xet and one request, and each
node's own login is used. Reading a file lists its folder, which is why there are many folders, and the listing is
forgotten before every read, for huggingface_hub would keep it. A repository (``hf://datasets/…``) is refused: every
file would be a commit; on one, the tests run the same calls, for the embedded Hub has no buckets. On a real bucket this
was never run.
"""

import hashlib
import json
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from generation.store_patience import PatientPlace, StorePatience
from generation.store_places import place
from generation.tasks import FinishGroup, Made, Piece, Task, WriteFirstTexts, WriteShard
from hub.errors import InputError, RunError
from hub.patience import Patience
from hub.run_dir import File
from hub.shards import atomic_path, sha256_file


class Lost(RunError):
    """A file that a record names is not in the store, or not whole. Done again, the task gives it anew."""


class Record(BaseModel):
    """What a task gave, as JSON (``generation.tasks.Made``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    files: tuple[File, ...]
    empty: tuple[str, ...]
    facts: Any
    rows: int
    seconds: float
    node: str


class Store:
    """What a run's workers leave for its driver at ``url``, below the folder ``run``.

    ``url``: the same place as an absolute path or a URL without a trailing slash; give that to the workers. Failures
    that pass are waited for (``patience``; without one, ``proven`` says that another process reached the store).

    Raises InputError for a URL that is not one, has a password in it, or whose protocol's package is missing.
    """

    def __init__(self, url: str, run: str, proven: bool = False, patience: Patience | None = None):
        patience = patience or StorePatience()
        patience.reached = patience.reached or proven
        self._place = PatientPlace(place(url, run), patience)
        self.url = self._place.url

    def mark(self) -> str:
        """Try the store, and leave a mark in it that ``require`` looks for; for the driver.

        Raises RunError when a file cannot be written, read or removed there.
        """
        mark = f"mark-{secrets.token_hex(8)}"
        try:
            for name in (f"{mark}-tried", mark):
                self._place.put(name, mark.encode())
                self._place.get(name)
            self._place.remove(f"{mark}-tried")
        except FileNotFoundError:
            hint = "choose a path or a protocol that can be written"
            raise RunError(f"store {self.url}", "a file that was written is not there", hint=hint) from None
        return mark

    def require(self, mark: str) -> None:
        """Check that this node sees the driver's mark and may write; for workers.

        Raises InputError when it does not see it, RunError or OSError when it cannot write.
        """
        try:
            self._place.get(mark)
        except FileNotFoundError:
            hint = "a path has to be on a file system that every node mounts there; memory:// is a process's own"
            raise InputError(
                f"store {self.url}", "what the driver wrote is not there on this node", hint=hint
            ) from None
        self._place.put(mark, mark.encode())

    def found(self, task: Task) -> Made | None:
        """What a task gave when it was done before, if that is whole; its files are to be fetched.

        A group is never found: its rows follow from the raw files of the run directory, and no model is asked.
        """
        if isinstance(task, FinishGroup):
            return None
        try:
            record = Record.model_validate(json.loads(self._place.get(_record_name(task))))
        except (FileNotFoundError, ValueError, RecursionError):  # torn, not JSON, not a record
            return None
        if record.task != task.key or not _is_of(task, record) or not all(self._holds(file) for file in record.files):
            return None
        pieces = tuple(Piece(file, None) for file in record.files)
        return Made(task, pieces, record.empty, record.facts, record.rows, record.seconds, record.node)

    def keep(self, made: Made) -> Made:
        """Leave what a task gave: contents, then the record. Gives it back without the contents.

        Raises OSError (ENOSPC, EDQUOT) when a disk is full, RunError when the store fails otherwise.
        """
        for piece in made.pieces:
            if piece.content is not None and not self._holds(piece.file):
                self._place.put(_content_name(piece.file), piece.content)
        if not isinstance(made.task, FinishGroup):
            self._place.put(_record_name(made.task), json.dumps(_record(made).model_dump()).encode())
        return replace(made, pieces=tuple(Piece(piece.file, None) for piece in made.pieces))

    def fetch(self, made: Made, directory: Path) -> None:
        """Bring the files of what was kept into their places in a run directory, each whole or not at all.

        Raises Lost when one is not whole, OSError when the run directory's disk fails.
        """
        for file in (piece.file for piece in made.pieces if piece.content is None):
            target = directory / file.path
            if target.is_file() and sha256_file(target) == file.sha256:
                continue
            with atomic_path(target) as temporary:
                try:
                    self._place.bring(_content_name(file), temporary)
                    found = sha256_file(temporary)
                except FileNotFoundError:
                    found = "nothing"
                if found != file.sha256:
                    place = f"{self.url}: {_content_name(file)} ({file.path})"
                    hint = "run the same command again: it is made anew"
                    raise Lost(place, f"is not what was kept there (found {found})", hint=hint)

    def clear(self) -> None:
        """Remove all that the run left; for the driver, at the end, when no worker writes any more."""
        self._place.clear()

    def _holds(self, file: File) -> bool:
        try:
            return hashlib.sha256(self._place.get(_content_name(file))).hexdigest() == file.sha256
        except FileNotFoundError:
            return False


def store_folder(run: str, directory: Path) -> str:
    """The folder of a run in a store. Two runs of one recipe, in two run directories, do not share one."""
    return f"{run}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def _record(made: Made) -> Record:
    files = tuple(piece.file for piece in made.pieces)
    return Record(
        task=made.task.key,
        files=files,
        empty=made.empty,
        facts=made.facts,
        rows=made.rows,
        seconds=made.seconds,
        node=made.node,
    )


def _is_of(task: Task, record: Record) -> bool:
    """Whether a record can be this task's: a store may hold what others put there."""
    if isinstance(task, WriteFirstTexts):
        return not record.files and isinstance(record.facts, list) and len(record.facts) == len(task.numbers)
    return all(Path(path).parts[:1] == ("data",) for path in (*(file.path for file in record.files), *record.empty))


def _record_name(task: Task) -> str:
    firsts = [(first.source_id, first.text) for first in task.firsts] if isinstance(task, WriteShard) else []
    digest = hashlib.sha256(json.dumps([task.key, firsts]).encode()).hexdigest()
    return f"records/{digest[:3]}/{task.key}-{digest[:16]}.json"


def _content_name(file: File) -> str:
    return f"contents/{file.sha256[:3]}/{file.sha256}"
