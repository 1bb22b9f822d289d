"""Durable folders and names: fsync of directories, which the fsync of a file does not cover."""

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
