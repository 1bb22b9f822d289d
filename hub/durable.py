"""Durable files and folders: write a temporary file, fsync it, rename it, fsync its folder.

The fsync of a file does not cover its name: that is part of the folder.
"""

import hashlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sts_dino.hub.errors import InputError

# A stage fills ``NAME.SUFFIX`` beside a run directory NAME, and renames or removes that folder.
UNFINISHED_SUFFIXES = (
    "adapter",
    "appending",
    "base",
    "building",
    "checkpoints",
    "copies",
    "fetching",
    "partial",
    "scratch",
    "tmp",
)


def sync_to_disk(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to the disk (fsync).

    On Windows nothing happens for a folder. Raises OSError when ``path`` cannot be opened.
    """
    # Windows opens no folders, and flushes only files that are open for writing.
    is_windows = sys.platform == "win32"
    if is_windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_regular_file(path: Path) -> Path:
    """Return ``path`` when it is a file, a folder or absent.

    Raises InputError for a pipe, a socket or a device: reading one may never end.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(
            path,
            "is a pipe, a socket or a device",
            allowed="a file",
            hint="remove it, or name another",
        )
    return path


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, and flush the new names to the disk.

    Raises OSError where that fails, and when a file stands in the place of a folder.
    """
    missing = []
    # A drive that is absent has no parent but itself.
    while not path.is_dir() and path not in missing:
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_to_disk(folder.parent)


def rename_folder(staging: Path, folder: Path) -> None:
    """Flush the folder ``staging`` with all in it to the disk, then rename it to ``folder``.

    Raises OSError when ``folder`` exists and is not empty.
    """
    for path in [*staging.rglob("*"), staging]:
        sync_to_disk(path)
    staging.replace(folder)
    sync_to_disk(folder.parent)


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the caller writes a file there.

    At the end of the block the temporary file is flushed and renamed to ``path``. When the block
    raises, the temporary file is removed and ``path`` is unchanged. Missing parents of ``path`` are
    made. An OSError with a number that names the temporary file, or no file, gets ``path`` as its
    file name (``name_in_errors``).
    """
    make_folder(path.parent)
    # Several machines may write to a shared folder, so the name is random.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with name_in_errors(path, temporary):
        try:
            yield temporary
            sync_to_disk(temporary)
            temporary.replace(path)
            sync_to_disk(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically and durably, without changing its line breaks."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    with write_atomically(path) as temporary:
        temporary.write_bytes(content)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hex digits.

    Raises InputError for a pipe, a socket or a device, OSError for a file that cannot be read.
    """
    with require_regular_file(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def name_in_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Set ``filename`` of an OSError from the block to ``path``, and raise it.

    This holds for an error without a file name, as of pyarrow and of streams, and for one that
    names ``temporary``, the hidden file of ``path``. An OSError without a number (``errno``) is
    raised unchanged: with a file name, it would no longer show its own message.
    """
    try:
        yield
    except OSError as error:
        is_unnamed = error.filename is None or str(error.filename) == str(temporary)
        if is_unnamed and error.errno is not None:
            error.filename = str(path)
        raise
