"""Result store of a cluster: workers leave task results at a path or URL that all nodes reach, the driver fetches them.

``URL`` is a path on a shared file system, or any URL that fsspec writes to (object stores, ``hf://buckets/…``). Below
``URL/<run>/`` are

    contents/<xxx>/<sha256>             the files, named by their content
    records/<xxx>/<task>-<digest>.json  a task's result; it names its files with their SHA-256, and comes after them

So a killed worker leaves at worst contents that no record names, and two workers may do one task. The digest is that of
the source sentences: shards of other sentences are not found. Only whole files count, and only JSON and parquet are
read. On a path, files are written beside their place and renamed, and reach a run directory on the same file system as
hard links. Elsewhere a file is one ``PUT`` of the whole object; a checksum detects the parts that protocols like
``sftp`` may leave. Reading a file of ``hf://buckets/…`` lists its folder, hence the many folders; the tests run the
same calls on a repository, never on a real bucket (docs/scale.md).

Passing failures are retried, for one interruption of NFS or S3 must not end a run that takes days. Others (no
permission, no such bucket, no login, a full disk) end the step at once.
"""

import errno
import functools
import hashlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from generation.pipeline.directory import TaskRecord
from generation.pipeline.tasks import FinishGroup, OutputFile, Task, TaskResult, WriteShard, WriteSourceSentences
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
_PASSING_STATUS = PASSING - {409, 412}  # nothing is asked of a store on a condition: a conflict is there for good
# Of mounts that were away (ESTALE, EIO: soft NFS), of lines that dropped, of object stores that ask for patience (s3fs
# makes EBUSY of SlowDown and EIO of InternalError).
_PASSING_OS = frozenset(
    getattr(errno, name)
    for name in """ESTALE EIO EREMOTEIO ETIMEDOUT EBUSY EAGAIN EINTR EPIPE ENOTCONN ENOLINK ECONNRESET ECONNABORTED
    ENETRESET ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ECONNREFUSED""".split()  # noqa: SIM905 - readable
    if hasattr(errno, name)
)
_DROPPED = {  # errors of the packages behind fsspec's protocols that are no OSErrors; looked up, never imported
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
    "botocore.exceptions": ("HTTPClientError", "ConnectionError"),
    "requests.exceptions": ("ConnectionError", "Timeout", "ChunkedEncodingError"),
    "urllib3.exceptions": ("ProtocolError", "TimeoutError"),
}
_STATUS = ("status", "status_code", "code")  # where those packages keep an HTTP answer's number


class StoreRetry(RetryPolicy):
    """Retries of a store. Until it is ``reached``, what fails is a wrong address, or a login that is missing."""

    def passes(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        if _status(error) in _PASSING_STATUS:
            return True
        from huggingface_hub.errors import HfHubHTTPError

        dropped = _dropped()
        if isinstance(error, HfHubHTTPError) or not isinstance(error, (OSError, *dropped)):
            return super().passes(error)
        passing = isinstance(error, OSError) and error.errno in _PASSING_OS
        return self.reached and (passing or isinstance(error, (TimeoutError, ConnectionError, *dropped)))

    def _wait(self, state: "RetryCallState") -> float:
        seconds = super()._wait(state)
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, OSError) and error.errno:
            self._why = f"it fails ({error.strerror or errno.errorcode.get(error.errno)})"
        elif _status(error) is not None:
            self._why = f"it answered {_status(error)}"
        return seconds


def _dropped() -> tuple[type[BaseException], ...]:
    """The classes of ``_DROPPED`` whose packages this process has imported."""
    found = (
        getattr(sys.modules[module], name, None)
        for module, names in _DROPPED.items()
        if module in sys.modules
        for name in names
    )
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, BaseException))


def _status(error: BaseException | None) -> int | None:
    found = (getattr(error, name, None) for name in _STATUS)
    return next((number for number in found if isinstance(number, int)), None)


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """A store's failures as InputError or RunError, but for a missing file, a full disk and memory that ran out."""
    try:
        yield
    except (StsDinoError, FileNotFoundError, MemoryError):
        raise
    except PermissionError as error:
        hint = "let this user read and write there, on every node"
        raise RunError(f"store {url}", f"no permission ({error})", hint=hint) from error
    except NotImplementedError as error:
        raise InputError(f"store {url}", "this protocol cannot write, read and remove files", allowed=KNOWN) from error
    except OSError as error:
        if error.errno in (*FULL, errno.ENOMEM):
            error.filename = error.filename or url
            raise
        raise RunError(f"store {url}", str(error), hint="is it mounted, or reachable, on this node?") from error
    except Exception as error:  # every protocol's package raises errors of its own kinds
        words = f"{type(error).__name__}: {first_line(error)}"
        hint = "check the address, and the protocol's own login on every node"
        raise RunError(f"store {url}", words, hint=hint) from error


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _retried(
    method: Callable[Concatenate["StoreFiles", Arguments], Result],
) -> Callable[Concatenate["StoreFiles", Arguments], Result]:
    """Call a method again while its failures pass; raise the others in the project's words."""

    @functools.wraps(method)
    def call(self: "StoreFiles", *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with translated_errors(self.url):
            return self._retry.until_done(f"store {self.url}", lambda: method(self, *args, **kwargs))

    return call


class StoreFiles:
    """A run's files by name, at ``url``: the same place as an absolute path or a URL without a trailing slash.

    A missing file is a FileNotFoundError, a full disk keeps its errno, other failures are RunErrors. Raises InputError
    for a URL that is not one, has a password in it, or whose protocol's package is missing.
    """

    def __init__(self, url: str, run: str, retry: StoreRetry):
        self._fs, self._root, self.url = _opened(url)
        self._folder, self._retry = f"{self._root}/{run}", retry

    @_retried
    def get(self, name: str) -> bytes:
        """The content of a file."""
        return bytes(self._fs.cat_file(self._uncached(name)))

    @_retried
    def put(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        path = f"{self._folder}/{name}"
        if _is_local(self._fs):
            write_bytes(Path(path), content)  # beside its place, and renamed
            return
        try:
            self._fs.pipe_file(path, content)
        except FileNotFoundError:  # no such bucket, or folders are real here and have to be made
            if not self._fs.exists(self._root):
                raise RunError(f"store {self.url}", "is not there", hint="make the bucket or folder first") from None
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(path, content)

    @_retried
    def bring(self, name: str, target: Path) -> None:
        """Copy a file to a path of this machine; on one file system, link it."""
        path = self._uncached(name)
        if _is_local(self._fs):
            with suppress(OSError):  # another file system, one without links, another's file; copying tells the rest
                os.link(path, target)
                return
        self._fs.get_file(path, str(target))

    @_retried
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._folder}/{name}")

    @_retried
    def clear(self) -> None:
        """Remove all files of the run."""
        self._fs.invalidate_cache(self._folder)
        if self._fs.exists(self._folder):
            self._fs.rm(self._folder, recursive=True)

    def _uncached(self, name: str) -> str:
        """The path of a file that another node may have written since its folder was listed."""
        path = f"{self._folder}/{name}"
        self._fs.invalidate_cache(path)
        return path


def _opened(url: str) -> tuple["AbstractFileSystem", str, str]:
    """A path or URL as (file system, folder in it, URL for other processes)."""
    import fsspec

    if not url.strip():
        raise InputError("store", "is empty", allowed=KNOWN)
    protocol, separator, _ = url.partition("://")
    if not separator:
        folder = os.path.abspath(Path(url).expanduser())  # noqa: PTH100 - links stay links
        return fsspec.filesystem("file"), folder, folder
    _check(url)
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


def _check(url: str) -> None:
    require_no_secret(url)
    if "::" in url:
        raise InputError(f"store {url}", "chained protocols are not supported", allowed=KNOWN)
    if url.startswith("hf://"):
        if not re.match(r"hf://buckets/[^/]+/[^/]", url):
            hint = "in a repository every file would be a commit; use hf://buckets/ORG/NAME"
            raise InputError(f"store {url}", "is no bucket of the Hub", hint=hint)
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # a bar for every file would hide that of the run


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
    if isinstance(task, WriteSourceSentences):
        return not record.files and isinstance(record.facts, list) and len(record.facts) == len(task.numbers)
    return all(Path(path).parts[:1] == ("data",) for path in (*(file.path for file in record.files), *record.empty))


def _record_name(task: Task) -> str:
    firsts = [(first.source_id, first.text) for first in task.firsts] if isinstance(task, WriteShard) else []
    digest = hashlib.sha256(json.dumps([task.key, firsts]).encode()).hexdigest()
    return f"records/{digest[:3]}/{task.key}-{digest[:16]}.json"


def _content_name(file: File) -> str:
    return f"contents/{file.sha256[:3]}/{file.sha256}"
