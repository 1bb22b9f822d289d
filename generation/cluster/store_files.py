"""Files of one run below a path or URL, through fsspec, with retries of what passes (``store_retry``)."""

import functools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from generation.cluster.store_retry import KNOWN, StoreRetry, translated_errors
from hub.durable import write_bytes
from hub.errors import InputError, RunError, did_you_mean
from hub.untrusted import require_no_secret

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

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
