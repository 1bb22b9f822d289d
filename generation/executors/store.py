"""Result store of a cluster: workers write task results to a path or URL that all nodes can reach,
and the driver fetches them.

``URL`` is a path on a shared file system, or any URL that fsspec writes to (object stores,
``hf://buckets/…``). Below ``URL/<run>/`` are

    contents/<xxx>/<sha256>             the files, named by their content
    records/<xxx>/<task>-<digest>.json  a task's result with the SHA-256 of its files, written after
    them
    mark-<random>                       a file of the driver, which a worker looks for

A killed worker leaves at worst contents that no record names. Protocols like ``sftp`` may leave
parts of files, which a checksum detects. Reading a file of ``hf://buckets/…`` lists its folder,
hence the many folders (docs/scale.md).
"""

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sts_dino.generation.pipeline.tasks import (
    FinishGroup,
    Task,
    TaskResult,
    WriteShard,
    WriteSourceSentences,
)
from sts_dino.hub.client.retry import TEMPORARY_STATUSES, RetryPolicy
from sts_dino.hub.contract.run_dir import File
from sts_dino.hub.durable import hash_file, write_atomically, write_bytes
from sts_dino.hub.errors import InputError, RunError, StsDinoError, suggest_choice
from sts_dino.hub.untrusted import get_first_line, require_no_secret

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from tenacity import RetryCallState

ALLOWED_ADDRESSES = (
    "a path, or a URL that fsspec writes to, like s3://BUCKET/FOLDER or hf://buckets/ORG/NAME"
)
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
# A request of this module has no condition, so a conflict (409, 412) is permanent.
_TEMPORARY_STATUS = TEMPORARY_STATUSES - {409, 412}
# Temporary errors: of mounts that were away (ESTALE, EIO: soft NFS), of dropped connections, and of
# busy object stores (s3fs raises EBUSY for SlowDown and EIO for InternalError).
_TEMPORARY_ERRNO = """
    ESTALE EIO EREMOTEIO ETIMEDOUT EBUSY EAGAIN EINTR EPIPE ENOTCONN ENOLINK ECONNRESET ECONNABORTED
    ENETRESET ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ECONNREFUSED
""".split()  # noqa: SIM905 - readable
# Names of the exceptions for dropped connections in the packages behind fsspec's protocols
# (requests, urllib3, aiohttp, botocore, azure), which may not be installed.
_DROPPED_CONNECTION = """
    ConnectionError ClientConnectionError HTTPClientError Timeout TimeoutError ProtocolError
    ChunkedEncodingError ClientPayloadError ServiceRequestError ServiceResponseError
""".split()  # noqa: SIM905

Result = TypeVar("Result")


class LostResult(RunError):
    """A file of a record is missing in the store, or damaged; repeating its task restores it."""


class StoreRetry(RetryPolicy):
    """Retries of calls to a store.

    Before the first successful call (``reached``), errors of system and connection are not retried:
    they mean a wrong address or a missing login.
    """

    def should_retry(self, error: BaseException) -> bool:
        """Return whether the call that raised ``error`` may succeed later."""
        if get_http_status(error) in _TEMPORARY_STATUS:
            return True
        from huggingface_hub.errors import HfHubHTTPError

        is_dropped = any(kind.__name__ in _DROPPED_CONNECTION for kind in type(error).__mro__)
        is_of_system = is_dropped or isinstance(error, OSError)
        # the policy of the Hub client decides about an answer of the Hub, though it is an OSError
        if isinstance(error, HfHubHTTPError) or not is_of_system:
            return super().should_retry(error)
        number = getattr(error, "errno", None) or 0
        is_temporary = is_dropped or errno.errorcode.get(number) in _TEMPORARY_ERRNO
        return self.reached and is_temporary

    def _wait(self, state: "RetryCallState") -> float:
        """Return the seconds until the next try, and note the error for the log message."""
        seconds = super()._wait(state)
        error = state.outcome.exception() if state.outcome else None
        if error:
            self._last_failure = f"it fails ({get_first_line(error)})"
        return seconds


def get_http_status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of a package behind fsspec; None if it has none."""
    for name in ("status", "status_code", "code"):
        number = getattr(error, name, None)
        if isinstance(number, int):
            return number
    return None


@contextmanager
def convert_store_errors(url: str) -> Iterator[None]:
    """Raise a store's failures as RunError of one line.

    Errors of this package, a missing file, a full disk or quota, and memory that ran out stay as
    they are. An OSError of a full disk, quota or memory that names no file gets ``url`` as its file
    name.
    """
    try:
        yield
    except (StsDinoError, FileNotFoundError, MemoryError):
        raise
    except OSError as error:
        if error.errno in (*FULL_DISK_ERRNOS, errno.ENOMEM):
            error.filename = error.filename or url  # the message names it
            raise
        raise RunError(
            f"store {url}",
            get_first_line(error),
            hint="can this node reach it, may this user write there?",
        ) from error
    except Exception as error:  # every protocol's package raises errors of its own kinds
        raise RunError(
            f"store {url}",
            f"{type(error).__name__}: {get_first_line(error)}",
            hint="check the address, and the protocol's own login on every node",
        ) from error


class ResultStore:
    """Task results of one run, in a folder of a file system or object store.

    Args:
        url: path or URL of the store; workers get ``ResultStore.url``.
        run: name of the run's folder below ``url``.
        proven: whether another process has reached the store, so that failures may be temporary.
        retry: how temporary failures are retried; None: ``StoreRetry()``.

    Raises InputError for a URL that ``open_location`` refuses: a malformed one, one with a
    password, or one whose protocol's package is missing.
    """

    def __init__(self, url: str, run: str, proven: bool = False, retry: StoreRetry | None = None):
        location = open_location(url)
        self.url = location.url
        self._fs = location.file_system
        self._root = location.root
        self._folder = f"{self._root}/{run}"
        self._retry = retry or StoreRetry()
        self._retry.reached |= proven  # once reached, failures of the connection are retried

    def leave_mark(self) -> str:
        """Write a file for ``require_mark``, and return its name; the driver calls this.

        To try the store, a second file is written before it, read, and at last removed. Raises
        RunError when the store cannot be written or read, OSError when its disk is full.
        """
        mark = f"mark-{secrets.token_hex(8)}"
        try:
            for name in (f"{mark}-tried", mark):
                self._put(name, mark.encode())
                self._get(name)
            self._call(lambda: self._fs.rm_file(f"{self._folder}/{mark}-tried"))
        except FileNotFoundError:
            raise RunError(
                f"store {self.url}",
                "a file that was written is not there",
                hint="choose a path or a protocol that can be written",
            ) from None
        return mark

    def require_mark(self, mark: str) -> None:
        """Check that this node reads and writes the driver's store; a worker calls this.

        ``mark``: the name that ``leave_mark`` returned. Raises InputError when this node does not
        see the file, RunError or OSError when it cannot read it or write it again.
        """
        try:
            self._get(mark)
        except FileNotFoundError:
            raise InputError(
                f"store {self.url}",
                "what the driver wrote is not there on this node",
                hint="a path has to be on a file system that every node mounts there; "
                "memory:// is a process's own",
            ) from None
        self._put(mark, mark.encode())

    def find(self, task: Task) -> TaskResult | None:
        """Return the stored result of a task, without the contents of its files.

        The result is None for a group, which has no record because it is finished quickly, without
        a model. It is also None if the record is missing, damaged or another task's, or if a file
        is missing or damaged. Raises RunError when the store fails.
        """
        if isinstance(task, FinishGroup):
            return None
        try:
            result = TaskResult.from_line(self._get(name_record(task)), task)
        except FileNotFoundError:
            return None
        if result is None or not is_result_of(task, result):
            return None
        if not all(self._has_content(file) for file in result.files):
            return None
        return result

    def put(self, result: TaskResult) -> TaskResult:
        """Store the result of a task, and return the result without the contents of its files.

        The files are written first, the record after them. The result of a group has no record:
        ``find`` does not look for one. Raises OSError (ENOSPC, EDQUOT) when a disk is full,
        RunError when the store fails otherwise.
        """
        for file in result.files:
            if file.path in result.contents and not self._has_content(file):
                self._put(name_content(file), result.contents[file.path])
        if not isinstance(result.task, FinishGroup):
            self._put(name_record(result.task), result.to_line())
        return result.model_copy(update={"contents": {}})

    def fetch(self, result: TaskResult, directory: Path) -> None:
        """Copy the files of a result into a run directory.

        Files that are there unchanged, or that the result has in memory, are not copied. A file
        appears there whole or not at all. Raises LostResult when the store lacks a file or has a
        damaged one, RunError when the store fails, OSError when the disk of the run directory does.
        """
        for file in result.files:
            target = directory / file.path
            is_there = target.is_file() and hash_file(target) == file.sha256
            if not is_there and file.path not in result.contents:
                self._fetch_file(file, target)

    def _fetch_file(self, file: File, target: Path) -> None:
        """Copy one file of the store to ``target``, whole or not at all.

        Raises LostResult when it is missing or damaged, and otherwise as ``fetch``.
        """
        with write_atomically(target) as temporary:
            try:
                self._copy(name_content(file), temporary)
                digest = hash_file(temporary)
            except FileNotFoundError:
                digest = "nothing"
            if digest != file.sha256:
                location = f"{self.url}: {name_content(file)} ({file.path})"
                raise LostResult(
                    location,
                    f"is not what was kept there (found {digest})",
                    hint="run the same command again: it is made anew",
                )

    def clear(self) -> None:
        """Remove all files of the run; the driver calls this when all workers have ended.

        Raises RunError when the store fails.
        """

        def remove_folder() -> None:
            self._fs.invalidate_cache(self._folder)
            if self._fs.exists(self._folder):
                self._fs.rm(self._folder, recursive=True)

        self._call(remove_folder)

    def _has_content(self, file: File) -> bool:
        """Return whether the store has the content of a file, undamaged; this reads all of it."""
        try:
            return hashlib.sha256(self._get(name_content(file))).hexdigest() == file.sha256
        except FileNotFoundError:
            return False

    def _get(self, name: str) -> bytes:
        return self._call(lambda: bytes(self._fs.cat_file(self._resolve_fresh_path(name))))

    def _put(self, name: str, content: bytes) -> None:
        """Write a file, and make the folders that it needs below the store's own folder.

        On a local path the store's own folder is made, too. Elsewhere that folder, or the bucket,
        has to exist: else RunError is raised. Raises the errors of ``convert_store_errors``.
        """
        path = f"{self._folder}/{name}"

        def write_file() -> None:
            if is_local(self._fs):
                write_bytes(Path(path), content)  # atomic: a temporary file is renamed
                return
            try:
                self._fs.pipe_file(path, content)
            # Either the bucket is missing, or a folder of a protocol with real folders.
            except FileNotFoundError:
                if not self._fs.exists(self._root):
                    raise RunError(
                        f"store {self.url}", "is not there", hint="make the bucket or folder first"
                    ) from None
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, content)

        self._call(write_file)

    def _copy(self, name: str, target: Path) -> None:
        """Copy a file of the store to a new path of this machine, or make a hard link if possible.

        Raises FileNotFoundError when the store lacks it, and as ``convert_store_errors``.
        """

        def copy_file() -> None:
            path = self._resolve_fresh_path(name)
            if is_local(self._fs):
                # Linking fails between file systems, without support for links, or for another
                # user's file. The copy below then works or raises the better error.
                with suppress(OSError):
                    os.link(path, target)
                    return
            self._fs.get_file(path, str(target))

        self._call(copy_file)

    def _resolve_fresh_path(self, name: str) -> str:
        """Return the path of a file of the run, and drop the listing that fsspec cached of it.

        Another node may have written the file since.
        """
        path = f"{self._folder}/{name}"
        self._fs.invalidate_cache(path)
        return path

    def _call(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of ``attempt``, which is called again after a temporary failure.

        Raises the last failure as ``convert_store_errors`` does.
        """
        with convert_store_errors(self.url):
            return self._retry.call_until_done(f"store {self.url}", attempt)


def name_store_folder(run: str, directory: Path) -> str:
    """Return the name of a run's folder in a store: its key and a digest of its directory.

    So two runs of a recipe in two directories do not share a folder. ``run``: the run's key
    (``pipeline.job.compute_run_key``).
    """
    digest = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()
    return f"{run}-{digest[:8]}"


def is_result_of(task: Task, result: TaskResult) -> bool:
    """Return whether a result can be the result of this task.

    Other users may write to the store, so three things are checked: the key; that all paths begin
    with ``data/``; that source sentences have a fact for each number and no file. ``File`` has
    refused paths with ``..``; the paths in ``empty`` are never opened.
    """
    if result.key != task.key:
        return False
    if isinstance(task, WriteSourceSentences):
        facts = result.facts
        has_facts = isinstance(facts, list) and len(facts) == len(task.numbers)
        return has_facts and not result.files
    paths = [*(file.path for file in result.files), *result.empty]
    return all(path.startswith("data/") for path in paths)


def name_record(task: Task) -> str:
    """Return the name of a task's record in the store.

    It holds a digest of the task's key and, for a shard, of its source sentences.
    """
    sentences = list[tuple[str, str]]()
    if isinstance(task, WriteShard):
        sentences = [(sentence.source_id, sentence.text) for sentence in task.sentences]
    digest = hashlib.sha256(json.dumps([task.key, sentences]).encode()).hexdigest()
    return f"records/{digest[:3]}/{task.key}-{digest[:16]}.json"


def name_content(file: File) -> str:
    """Return the name of a file's content in the store."""
    return f"contents/{file.sha256[:3]}/{file.sha256}"


class StoreLocation(NamedTuple):
    """An opened path or URL of a store."""

    file_system: "AbstractFileSystem"
    root: str  # the folder in the file system
    url: str  # for other processes


def open_location(url: str) -> StoreLocation:
    """Open the path or URL of a store.

    Raises InputError for an empty or chained URL, for one that holds a user, a password or a query,
    for an unknown protocol, for a missing package, and for an hf:// URL outside a bucket. A URL
    that fsspec cannot parse raises InputError, too.
    """
    import fsspec

    # a path
    if not url.strip():
        raise InputError("store", "is empty", allowed=ALLOWED_ADDRESSES)
    protocol, separator, _ = url.partition("://")
    if not separator:
        folder = os.path.abspath(Path(url).expanduser())  # noqa: PTH100 - links stay links
        return StoreLocation(fsspec.filesystem("file"), folder, folder)

    # a URL: refuse what no store can be, then open it
    require_no_secret(url)
    if "::" in url:
        raise InputError(
            f"store {url}", "chained protocols are not supported", allowed=ALLOWED_ADDRESSES
        )
    if protocol == "hf":
        require_bucket(url)
    try:
        file_system, root = fsspec.url_to_fs(url)
    except ImportError as error:
        raise InputError(
            f"store {url}", f"needs a package: {error}", hint="install it on every node"
        ) from error
    except ValueError as error:
        protocols = [f"{name}://" for name in fsspec.available_protocols()]
        raise InputError(
            f"store {url}",
            str(error),
            allowed=ALLOWED_ADDRESSES,
            hint=suggest_choice(f"{protocol}://", protocols),
        ) from error
    root = root.rstrip("/")
    return StoreLocation(file_system, root, root if is_local(file_system) else url.rstrip("/"))


def require_bucket(url: str) -> None:
    """Raise InputError unless an hf:// URL is a bucket or a folder in one.

    For such a URL the Hub's progress bars are turned off.
    """
    if not re.match(r"hf://buckets/[^/]+/[^/]", url):
        raise InputError(
            f"store {url}",
            "is not a bucket of the Hub",
            hint="in a repository every file would be a commit; use hf://buckets/ORG/NAME",
        )
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # a bar for every file would hide the run's bar


def is_local(file_system: "AbstractFileSystem") -> bool:
    """Return whether a file system holds local paths, those of mounted disks included."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(file_system, LocalFileSystem)
