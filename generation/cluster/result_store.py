"""Result store of a cluster: workers leave task results at a path or URL that all nodes reach, the driver fetches them.

``URL`` is a path on a shared file system, or any URL that fsspec writes to (object stores, ``hf://buckets/…``). Below
``URL/<run>/`` stand

    contents/<xxx>/<sha256>             the files, named by what is in them
    records/<xxx>/<task>-<digest>.json  a task's result; it names its files with their SHA-256, and comes after them

So a killed worker leaves at worst contents that no record names, and two workers that do one task disturb nobody. The
digest is that of the first texts: shards of other first texts are not found. Nothing is trusted that is not whole, and
only JSON and parquet are read.

On a path, files are written beside their place and renamed, and reach a run directory on the same file system as hard
links. Elsewhere a file is one ``PUT`` of the whole object; protocols that write as they send (``sftp``, ``ftp``) can
leave a part of it, which its checksum gives away.

Reading a file of ``hf://buckets/…`` lists its folder, which is why there are many folders, and huggingface_hub would
keep the listing. The tests run the same calls on a repository; on a real bucket this was never run (docs/scale.md).
"""

import hashlib
import json
import secrets
from dataclasses import replace
from pathlib import Path

from generation.cluster.store_files import StoreFiles
from generation.cluster.store_retry import StoreRetry
from generation.run_state.journal import TaskRecord
from generation.run_state.tasks import FinishGroup, OutputFile, Task, TaskResult, WriteFirstTexts, WriteShard
from hub.contract.run_dir import File
from hub.durable import atomic_path, sha256_file
from hub.errors import InputError, RunError


class LostResult(RunError):
    """A file that a record names is not in the store, or not whole. Done again, the task gives it anew."""


class ResultStore:
    """Task results of one run at ``url``, below the folder ``run``; give ``ResultStore.url`` to the workers.

    Failures that pass are retried (``retry``; without one, ``proven`` says that another process reached the store).
    Raises InputError as ``StoreFiles`` does.
    """

    def __init__(self, url: str, run: str, proven: bool = False, retry: StoreRetry | None = None):
        retry = retry or StoreRetry()
        retry.reached = retry.reached or proven
        self._files = StoreFiles(url, run, retry)
        self.url = self._files.url

    def mark(self) -> str:
        """Try the store, and leave a mark in it that ``require`` looks for; for the driver.

        Raises RunError when a file cannot be written, read or removed there.
        """
        mark = f"mark-{secrets.token_hex(8)}"
        try:
            for name in (f"{mark}-tried", mark):
                self._files.put(name, mark.encode())
                self._files.get(name)
            self._files.remove(f"{mark}-tried")
        except FileNotFoundError:
            hint = "choose a path or a protocol that can be written"
            raise RunError(f"store {self.url}", "a file that was written is not there", hint=hint) from None
        return mark

    def require(self, mark: str) -> None:
        """Check that this node sees the driver's mark and may write; for workers.

        Raises InputError when it does not see it, RunError or OSError when it cannot write.
        """
        try:
            self._files.get(mark)
        except FileNotFoundError:
            hint = "a path has to be on a file system that every node mounts there; memory:// is a process's own"
            raise InputError(
                f"store {self.url}", "what the driver wrote is not there on this node", hint=hint
            ) from None
        self._files.put(mark, mark.encode())

    def find(self, task: Task) -> TaskResult | None:
        """The result of a task that was done before, if it is whole; its files are to be fetched.

        A group is never found: its rows follow from the raw files of the run directory, and no model is asked.
        """
        if isinstance(task, FinishGroup):
            return None
        try:
            record = TaskRecord.model_validate(json.loads(self._files.get(_record_name(task))))
        except (FileNotFoundError, ValueError, RecursionError):  # torn, not JSON, not a record
            return None
        if record.task != task.key or not _is_of(task, record) or not all(self._holds(file) for file in record.files):
            return None
        return record.result(task)

    def put(self, result: TaskResult) -> TaskResult:
        """Leave a task's result: contents, then the record. Gives it back without the contents.

        Raises OSError (ENOSPC, EDQUOT) when a disk is full, RunError when the store fails otherwise.
        """
        for output in result.outputs:
            if output.content is not None and not self._holds(output.file):
                self._files.put(_content_name(output.file), output.content)
        if not isinstance(result.task, FinishGroup):
            record = TaskRecord.of(result).model_dump()
            self._files.put(_record_name(result.task), json.dumps(record).encode())  # keeps infinities, pydantic not
        return replace(result, outputs=tuple(OutputFile(output.file, None) for output in result.outputs))

    def fetch(self, result: TaskResult, directory: Path) -> None:
        """Bring the files of a result into their places in a run directory, each whole or not at all.

        Raises LostResult when one is not whole, OSError when the run directory's disk fails.
        """
        for file in (output.file for output in result.outputs if output.content is None):
            target = directory / file.path
            if target.is_file() and sha256_file(target) == file.sha256:
                continue
            with atomic_path(target) as temporary:
                try:
                    self._files.bring(_content_name(file), temporary)
                    found = sha256_file(temporary)
                except FileNotFoundError:
                    found = "nothing"
                if found != file.sha256:
                    place = f"{self.url}: {_content_name(file)} ({file.path})"
                    hint = "run the same command again: it is made anew"
                    raise LostResult(place, f"is not what was kept there (found {found})", hint=hint)

    def clear(self) -> None:
        """Remove all that the run left; for the driver, at the end, when no worker writes any more."""
        self._files.clear()

    def _holds(self, file: File) -> bool:
        try:
            return hashlib.sha256(self._files.get(_content_name(file))).hexdigest() == file.sha256
        except FileNotFoundError:
            return False


def store_folder(run: str, directory: Path) -> str:
    """The folder of a run in a store. Two runs of one recipe, in two run directories, do not share one."""
    return f"{run}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def _is_of(task: Task, record: TaskRecord) -> bool:
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
