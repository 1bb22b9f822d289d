"""Result store of a cluster: workers leave task results at a path or URL that all nodes reach, the driver fetches them.

``URL`` is a path on a shared file system, or any URL that fsspec writes to (object stores, ``hf://buckets/…``). Below
``URL/<run>/`` are

    contents/<xxx>/<sha256>             the files, named by their content
    records/<xxx>/<task>-<digest>.json  a task's result; it names its files with their SHA-256, and comes after them

A killed worker leaves at worst contents that no record names. Only whole files count: a checksum detects the parts that
protocols like ``sftp`` may leave. Reading a file of ``hf://buckets/…`` lists its folder, hence the many folders
(docs/scale.md).
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
from typing import TYPE_CHECKING, TypeVar

from generation.pipeline.tasks import FinishGroup, Task, TaskResult, WriteShard, WriteSourceSentences
from hub.client.retry import PASSING, RetryPolicy
from hub.contract.run_dir import File
from hub.durable import atomic_path, sha256_file, write_bytes
from hub.errors import InputError, RunError, StsDinoError, did_you_mean
from hub.untrusted import first_line, require_no_secret

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from tenacity import RetryCallState

KNOWN = "a path, or a URL that fsspec writes to, like s3://BUCKET/FOLDER or hf://buckets/ORG/NAME"
FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING_STATUS = PASSING - {409, 412}  # our requests have no condition: a conflict stays
# Of mounts that were away (ESTALE, EIO: soft NFS), of connections that dropped, of object stores that ask for patience
# (s3fs makes EBUSY of SlowDown and EIO of InternalError).
_PASSING_OS = """ESTALE EIO EREMOTEIO ETIMEDOUT EBUSY EAGAIN EINTR EPIPE ENOTCONN ENOLINK ECONNRESET ECONNABORTED
    ENETRESET ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ECONNREFUSED""".split()  # noqa: SIM905 - readable
# Dropped connections in the packages behind fsspec's protocols, which are not imported for this: requests, urllib3,
# aiohttp, botocore, azure.
_DROPPED = """ConnectionError ClientConnectionError HTTPClientError Timeout TimeoutError ProtocolError
    ChunkedEncodingError ClientPayloadError ServiceRequestError ServiceResponseError""".split()  # noqa: SIM905


class StoreRetry(RetryPolicy):
    """Retries of a store. Until it is ``reached``, a failure means a wrong address or a missing login."""

    def passes(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        if _status(error) in _PASSING_STATUS:
            return True
        from huggingface_hub.errors import HfHubHTTPError

        dropped = any(kind.__name__ in _DROPPED for kind in type(error).__mro__)
        if isinstance(error, HfHubHTTPError) or not (dropped or isinstance(error, OSError)):
            return super().passes(error)
        return self.reached and (dropped or errno.errorcode.get(getattr(error, "errno", None) or 0) in _PASSING_OS)

    def _wait(self, state: "RetryCallState") -> float:
        seconds = super()._wait(state)
        if state.outcome and (error := state.outcome.exception()):
            self._why = f"it fails ({first_line(error) or type(error).__name__})"
        return seconds


def _status(error: BaseException) -> int | None:
    """The HTTP status of an error of the packages behind fsspec's protocols."""
    found = (getattr(error, name, None) for name in ("status", "status_code", "code"))
    return next((number for number in found if isinstance(number, int)), None)


@contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """A store's failures as InputError or RunError, but for a missing file, a full disk and memory that ran out."""
    try:
        yield
    except (StsDinoError, FileNotFoundError, MemoryError):
        raise
    except OSError as error:
        if error.errno in (*FULL, errno.ENOMEM):
            error.filename = error.filename or url
            raise
        raise RunError(f"store {url}", str(error), hint="can this node reach it, may this user write there?") from error
    except Exception as error:  # every protocol's package raises errors of its own kinds
        words = f"{type(error).__name__}: {first_line(error)}"
        hint = "check the address, and the protocol's own login on every node"
        raise RunError(f"store {url}", words, hint=hint) from error


Result = TypeVar("Result")


class LostResult(RunError):
    """A file that a record names is missing in the store, or damaged. Done again, the task gives it anew."""


class ResultStore:
    """Task results of one run at ``url``, below the folder ``run``; give ``ResultStore.url`` to the workers.

    Failures that pass are retried (``retry``; without one, ``proven`` says that another process reached the store).
    Raises InputError for a URL that is malformed, has a password in it, or whose protocol's package is missing.
    """

    def __init__(self, url: str, run: str, proven: bool = False, retry: StoreRetry | None = None):
        self._fs, self._root, self.url = _opened(url)
        self._folder, self._retry = f"{self._root}/{run}", retry or StoreRetry()
        self._retry.reached |= proven

    def mark(self) -> str:
        """Try the store, and leave a mark that ``require`` looks for; for the driver. Raises RunError if it fails."""
        mark = f"mark-{secrets.token_hex(8)}"
        try:
            for name in (f"{mark}-tried", mark):
                self._put(name, mark.encode())
                self._get(name)
            self._retried(lambda: self._fs.rm_file(f"{self._folder}/{mark}-tried"))
        except FileNotFoundError:
            hint = "choose a path or a protocol that can be written"
            raise RunError(f"store {self.url}", "a file that was written is not there", hint=hint) from None
        return mark

    def require(self, mark: str) -> None:
        """Check that this node sees the driver's mark and may write; for workers.

        Raises InputError when it does not see it, RunError or OSError when it cannot write.
        """
        try:
            self._get(mark)
        except FileNotFoundError:
            hint = "a path has to be on a file system that every node mounts there; memory:// is a process's own"
            problem = "what the driver wrote is not there on this node"
            raise InputError(f"store {self.url}", problem, hint=hint) from None
        self._put(mark, mark.encode())

    def find(self, task: Task) -> TaskResult | None:
        """The result of a task that was done before, if it is whole; its files are to be fetched.

        A group is never found: its rows follow from the raw files of the run directory, and no model is asked.
        """
        if isinstance(task, FinishGroup):
            return None
        try:
            found = TaskResult.read(self._get(_record_name(task)), task)
        except FileNotFoundError:
            return None
        return found if found and _is_of(task, found) and all(map(self._holds, found.files)) else None

    def put(self, result: TaskResult) -> TaskResult:
        """Leave a task's result: contents, then the record. Gives it back without the contents.

        Raises OSError (ENOSPC, EDQUOT) when a disk is full, RunError when the store fails otherwise.
        """
        for file in result.files:
            if file.path in result.contents and not self._holds(file):
                self._put(_content_name(file), result.contents[file.path])
        if not isinstance(result.task, FinishGroup):
            self._put(_record_name(result.task), result.line())
        return result.with_(contents={})

    def fetch(self, result: TaskResult, directory: Path) -> None:
        """Bring the files of a result into their places in a run directory, each whole or not at all.

        Raises LostResult when one is not whole, OSError when the run directory's disk fails.
        """
        for file in result.files:
            target = directory / file.path
            if file.path in result.contents or (target.is_file() and sha256_file(target) == file.sha256):
                continue
            with atomic_path(target) as temporary:
                try:
                    self._bring(_content_name(file), temporary)
                    found = sha256_file(temporary)
                except FileNotFoundError:
                    found = "nothing"
                if found != file.sha256:
                    place = f"{self.url}: {_content_name(file)} ({file.path})"
                    hint = "run the same command again: it is made anew"
                    raise LostResult(place, f"is not what was kept there (found {found})", hint=hint)

    def clear(self) -> None:
        """Remove all that the run left; for the driver, at the end, when no worker writes any more."""

        def remove() -> None:
            self._fs.invalidate_cache(self._folder)
            if self._fs.exists(self._folder):
                self._fs.rm(self._folder, recursive=True)

        self._retried(remove)

    def _holds(self, file: File) -> bool:
        try:
            return hashlib.sha256(self._get(_content_name(file))).hexdigest() == file.sha256
        except FileNotFoundError:
            return False

    def _get(self, name: str) -> bytes:
        return self._retried(lambda: bytes(self._fs.cat_file(self._uncached(name))))

    def _put(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        path = f"{self._folder}/{name}"

        def write() -> None:
            if _is_local(self._fs):
                write_bytes(Path(path), content)  # beside its place, and renamed
                return
            try:
                self._fs.pipe_file(path, content)
            except FileNotFoundError:  # no such bucket, or folders are real here and have to be made
                if not self._fs.exists(self._root):
                    hint = "make the bucket or folder first"
                    raise RunError(f"store {self.url}", "is not there", hint=hint) from None
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, content)

        self._retried(write)

    def _bring(self, name: str, target: Path) -> None:
        """Copy a file to a path of this machine; on one file system, link it."""

        def copy() -> None:
            path = self._uncached(name)
            if _is_local(self._fs):
                with suppress(OSError):  # another file system, one without links, another user's: copying says more
                    os.link(path, target)
                    return
            self._fs.get_file(path, str(target))

        self._retried(copy)

    def _uncached(self, name: str) -> str:
        """The path of a file that another node may have written since its folder was listed."""
        path = f"{self._folder}/{name}"
        self._fs.invalidate_cache(path)
        return path

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """Call again while failures pass; raise the others in the project's words."""
        with _translated_errors(self.url):
            return self._retry.until_done(f"store {self.url}", attempt)


def store_folder(run: str, directory: Path) -> str:
    """The folder of a run in a store. Two runs of one recipe, in two run directories, do not share one."""
    return f"{run}-{hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]}"


def _is_of(task: Task, found: TaskResult) -> bool:
    """Whether a result can be this task's: others may write to the store."""
    if isinstance(task, WriteSourceSentences):
        matches = not found.files and isinstance(found.facts, list) and len(found.facts) == len(task.numbers)
    else:
        matches = all(path.startswith("data/") for path in (*(file.path for file in found.files), *found.empty))
    return matches and found.key == task.key


def _record_name(task: Task) -> str:
    firsts = [(first.source_id, first.text) for first in task.firsts] if isinstance(task, WriteShard) else []
    digest = hashlib.sha256(json.dumps([task.key, firsts]).encode()).hexdigest()
    return f"records/{digest[:3]}/{task.key}-{digest[:16]}.json"


def _content_name(file: File) -> str:
    return f"contents/{file.sha256[:3]}/{file.sha256}"


def _opened(url: str) -> tuple["AbstractFileSystem", str, str]:
    """A path or URL as (file system, folder in it, URL for other processes)."""
    import fsspec

    if not url.strip():
        raise InputError("store", "is empty", allowed=KNOWN)
    protocol, separator, _ = url.partition("://")
    if not separator:
        folder = os.path.abspath(Path(url).expanduser())  # noqa: PTH100 - links stay links
        return fsspec.filesystem("file"), folder, folder
    require_no_secret(url)
    if "::" in url:
        raise InputError(f"store {url}", "chained protocols are not supported", allowed=KNOWN)
    if protocol == "hf":
        if not re.match(r"hf://buckets/[^/]+/[^/]", url):
            hint = "in a repository every file would be a commit; use hf://buckets/ORG/NAME"
            raise InputError(f"store {url}", "is not a bucket of the Hub", hint=hint)
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # a bar for every file would hide that of the run
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        hint = "install it on every node"
        raise InputError(f"store {url}", f"needs a package: {error}", hint=hint) from error
    except ValueError as error:
        meant = did_you_mean(f"{protocol}://", [f"{known}://" for known in fsspec.available_protocols()])
        raise InputError(f"store {url}", str(error), allowed=KNOWN, hint=meant) from error
    root = root.rstrip("/")
    return files, root, root if _is_local(files) else url.rstrip("/")


def _is_local(files: "AbstractFileSystem") -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(files, LocalFileSystem)
