"""Where a store's files stand: a folder of a file system, or objects behind a URL that fsspec writes to.

Failures come as the file system or the protocol's package raises them: ``generation.store_patience`` sorts them.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem
from huggingface_hub.utils import disable_progress_bars

from hub.errors import InputError, RunError, nearest
from hub.shards import write_bytes
from hub.store_url import require_no_secret

KNOWN = "a path, or a URL that fsspec writes to, like s3://BUCKET/FOLDER or hf://buckets/ORG/NAME"


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
        """Remove a file, if it is there."""
        ...

    def clear(self) -> None:
        """Remove all files of the run."""
        ...


class _Folder:
    """A folder of a file system."""

    def __init__(self, folder: Path, run: str):
        self.url, self._folder = str(folder), folder / run

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        write_bytes(self._folder / name, content)

    def bring(self, name: str, target: Path) -> None:
        try:
            os.link(self._folder / name, target)
        except OSError:  # another file system, one without links, another's file; copying tells what is missing
            shutil.copyfile(self._folder / name, target)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        if self._folder.is_dir():
            shutil.rmtree(self._folder)


class _Objects:
    """Objects of a store that fsspec reaches."""

    def __init__(self, files: fsspec.AbstractFileSystem, root: str, url: str, run: str):
        self.url, self._files, self._root, self._run = url, files, root.rstrip("/"), run

    def get(self, name: str) -> bytes:
        return bytes(self._files.cat_file(self._fresh(name)))

    def put(self, name: str, content: bytes) -> None:
        path = self._path(name)
        try:
            self._files.pipe_file(path, content)
        except FileNotFoundError:  # no such bucket, or folders are real here and have to be made
            if not self._files.exists(self._root):
                raise RunError(f"store {self.url}", "is not there", hint="make the bucket or folder first") from None
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, content)

    def bring(self, name: str, target: Path) -> None:
        self._files.get_file(self._fresh(name), str(target))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def clear(self) -> None:
        path = f"{self._root}/{self._run}"
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


def place(url: str, run: str) -> Place:
    """The files of a run at a path or URL.

    Raises InputError for a URL that is not one, has a password in it, or whose protocol's package is missing.
    """
    if not url.strip():
        raise InputError("store", "is empty", allowed=KNOWN)
    protocol, separator, rest = url.partition("://")
    if not separator:
        return _Folder(Path(os.path.abspath(Path(url).expanduser())), run)  # noqa: PTH100 - links stay links
    require_no_secret(url)
    if "::" in url:
        raise InputError(f"store {url}", "chained protocols are not supported", allowed=KNOWN)
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
        raise InputError(f"store {url}", str(error), allowed=KNOWN, hint=meant) from error
    if isinstance(files, LocalFileSystem):
        return _Folder(Path(root), run)
    return _Objects(files, root, url.rstrip("/"), run)
