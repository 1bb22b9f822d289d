"""Durable files and folders: temporary file, fsync, rename, fsync of the folder, which the file's does not cover."""

import hashlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hub.errors import InputError

WORK = ("adapter", "appending", "base", "building", "checkpoints", "copies", "fetching", "partial", "scratch", "tmp")


def fsync(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk when this returns."""
    windows = sys.platform == "win32"  # it opens no folders, and flushes what is open for writing
    if windows and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def regular(path: Path) -> Path:
    """A file to read. Raises InputError for a pipe, a socket or a device, which might never end."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(path, "is a pipe, a socket or a device", allowed="a file", hint="remove it, or name another")
    return path


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; their names are on the disk when this returns."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        fsync(folder.parent)


def rename_folder(staging: Path, folder: Path) -> None:
    """Give a folder that others filled (a client, a library) its name: its files first, so the name stands for them."""
    for path in [*staging.rglob("*"), staging]:
        fsync(path)
    staging.replace(folder)
    fsync(folder.parent)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` to write to; on success fsynced and renamed, on failure removed."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # machines may share the folder
    try:
        with named_in_errors(path):
            yield temporary
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically and durably."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with regular(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Make an OSError say which file: pyarrow and stream writes do not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
