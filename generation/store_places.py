"""Where a store's files stand: a folder of a file system, or objects behind a URL that fsspec writes to."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub.utils import disable_progress_bars

from hub.errors import InputError, RunError, StsDinoError, nearest
from hub.shards import write_bytes
from hub.store_url import require_no_secret

_FULL = (errno.ENOSPC, errno.EDQUOT)
_KNOWN = "a path, or a URL that fsspec writes to, like s3://BUCKET/FOLDER or hf://buckets/ORG/NAME"


class Place(Protocol):
    """A run's files by name, at ``url``. A missing one is a FileNotFoundError, a full disk keeps its errno."""

    url: str

    def get(self, name: str) -> bytes:
        """The content of a file."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        ...

    def bring(self, name: str, target: Path) -> None:
        """Copy or link a file to a path of this machine."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def clear(self) -> None:
        """Remove all files of the run."""
        ...


class _Folder:
    """A folder of a file system."""

    def __init__(self, folder: Path, run: str):
        self.url, self._folder = str(folder), folder / run

    def get(self, name: str) -> bytes:
        with _told(self.url):
            return (self._folder / name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        with _told(self.url):
            write_bytes(self._folder / name, content)

    def bring(self, name: str, target: Path) -> None:
        with _told(self.url):
            try:
                os.link(self._folder / name, target)
            except OSError:  # another file system, one without links, another's file; copying tells what is missing
                shutil.copyfile(self._folder / name, target)

    def remove(self, name: str) -> None:
        with _told(self.url):
            (self._folder / name).unlink()

    def clear(self) -> None:
        with _told(self.url):
            if self._folder.is_dir():
                shutil.rmtree(self._folder)


class _Objects:
    """Objects of a store that fsspec reaches."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str, url: str, run: str):
        self.url, self._files, self._root, self._run = url, files, root.rstrip("/"), run

    def get(self, name: str) -> bytes:
        with _told(self.url):
            return bytes(self._files.cat_file(self._fresh(name)))

    def put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        with _told(self.url):
            try:
                self._files.pipe_file(path, content)
            except FileNotFoundError:  # no such bucket, or folders are real here and have to be made
                if not self._files.exists(self._root):
                    raise RunError(
                        f"store {self.url}", "is not there", hint="make the bucket or folder first"
                    ) from None
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, content)

    def bring(self, name: str, target: Path) -> None:
        with _told(self.url):
            self._files.get_file(self._fresh(name), str(target))

    def remove(self, name: str) -> None:
        with _told(self.url):
            self._files.rm_file(self._path(name))

    def clear(self) -> None:
        path = f"{self._root}/{self._run}"
        with _told(self.url):
            self._files.invalidate_cache(path)
            if self._files.exists(path):
                self._files.rm(path, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{self._run}/{name}"

    def _fresh(self, name: str) -> str:
        """The path of a file that another node may have written since its folder was listed."""
        path = self._path(name)
        self._files.invalidate_cache(path)
        return path


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Failures of a store in the project's words, but for a missing file and a full disk."""
    try:
        yield
    except (StsDinoError, FileNotFoundError):
        raise
    except PermissionError as error:
        hint = "let this user read and write there, on every node"
        raise RunError(f"store {url}", f"no permission ({error})", hint=hint) from error
    except NotImplementedError as error:
        raise InputError(f"store {url}", "this protocol cannot write, read and remove files", allowed=_KNOWN) from error
    except OSError as error:
        if error.errno in _FULL:
            error.filename = error.filename or url
            raise
        raise RunError(f"store {url}", str(error), hint="is it mounted, or reachable, on this node?") from error
    except Exception as error:  # every protocol's package raises errors of its own kinds
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        hint = "check the address, and the protocol's own login on every node"
        raise RunError(f"store {url}", words, hint=hint) from error


def place(url: str, run: str) -> Place:
    """The files of a run at a path or URL.

    Raises InputError for a URL that is not one, has a password in it, or whose protocol's package is missing.
    """
    if not url.strip():
        raise InputError("store", "is empty", allowed=_KNOWN)
    protocol, separator, rest = url.partition("://")
    if not separator:
        return _Folder(Path(os.path.abspath(Path(url).expanduser())), run)  # noqa: PTH100 - links stay links
    require_no_secret(url)
    if "::" in url:
        raise InputError(f"store {url}", "chained protocols are not supported", allowed=_KNOWN)
    if protocol == "hf" and not re.match(r"buckets/[^/]+/[^/]", rest):
        hint = "in a repository every file would be a commit; use hf://buckets/ORG/NAME"
        raise InputError(f"store {url}", "is no bucket of the Hub", hint=hint)
    if protocol == "hf":
        disable_progress_bars()  # a bar for every file would hide that of the run
    try:
        files, root = fsspec.url_to_fs(url)
    except ImportError as error:
        hint = "install it on every node"
        raise InputError(f"store {url}", f"needs a package: {error}", hint=hint) from error
    except ValueError as error:
        guess = nearest(protocol, fsspec.available_protocols())
        meant = f"did you mean {guess}://?" if guess else None
        raise InputError(f"store {url}", str(error), allowed=_KNOWN, hint=meant) from error
    if isinstance(files, LocalFileSystem):
        return _Folder(Path(root), run)
    return _Objects(files, root, url.rstrip("/"), run)
