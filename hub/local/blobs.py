"""File contents by sha256: ``blobs/sha256/aa/<sha256>``, immutable, complete or absent.

A blob is written to ``tmp/``, hashed on the way, flushed, renamed, and its folder flushed: only then may the index
name it. A crash leaves at worst a stray temporary file, which the next start sweeps. Parts of large uploads are not
flushed: the joined file is.
"""

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

UPLOAD_KEPT_SECONDS = 24 * 3600


class Blob(NamedTuple):
    """A stored content."""

    sha256: str
    size: int


class BlobStore:
    """The folder of blobs, and the parts of uploads that are still on their way."""

    def __init__(self, root: Path):
        self.folder, self._tmp, self._uploads = root / "blobs" / "sha256", root / "tmp", root / "uploads"
        for folder in (self.folder, self._tmp, self._uploads):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private repos are private on the disk, too

    def sweep(self) -> None:
        """Remove what an earlier process left unfinished; call only before serving."""
        for stray in self._tmp.iterdir():
            stray.unlink()
        for upload in self._uploads.iterdir():
            if upload.stat().st_mtime < time.time() - UPLOAD_KEPT_SECONDS:
                shutil.rmtree(upload)

    def path(self, sha256: str) -> Path:
        """Where the content lies."""
        return self.folder / sha256[:2] / sha256

    def staging(self) -> "Staging":
        """A place for new blobs of one request."""
        return Staging(self, self._tmp)

    def add_part(self, upload: str, number: int, chunks: Iterable[bytes]) -> Blob:
        """Keep one part of a multipart upload."""
        folder = self._uploads / upload
        folder.mkdir(exist_ok=True)
        temporary = self._tmp / uuid.uuid4().hex
        blob = _write(temporary, chunks)
        temporary.replace(folder / f"{number:05d}")
        return blob

    def part_chunks(self, upload: str, count: int) -> Iterator[bytes]:
        """The bytes of all parts in order. They are copied, not renamed: a part's writer may still hold it open."""
        for number in range(1, count + 1):
            with (self._uploads / upload / f"{number:05d}").open("rb") as part:
                while chunk := part.read(1 << 20):
                    yield chunk

    def drop_parts(self, upload: str) -> None:
        """Forget an upload that is complete."""
        shutil.rmtree(self._uploads / upload, ignore_errors=True)


class Staging:
    """New blobs on their way into the store: all of them once ``settle`` has returned, none of them before.

    Many small files are flushed side by side, which is several times faster than one after the other.
    """

    def __init__(self, store: BlobStore, folder: Path):
        self._store, self._folder = store, folder
        self._waiting: list[tuple[Path, Blob]] = []

    def __enter__(self) -> "Staging":
        return self

    def __exit__(self, *_: object) -> None:
        for temporary, _blob in self._waiting:
            temporary.unlink(missing_ok=True)

    def add(self, chunks: Iterable[bytes]) -> Blob:
        """Write a content to a temporary file; returns its address to be."""
        temporary = self._folder / uuid.uuid4().hex
        blob = _write(temporary, chunks)
        self._waiting.append((temporary, blob))
        return blob

    def settle(self) -> None:
        """Flush and rename all that was added; from then on the index may name it, and a power cut loses nothing."""
        if not self._waiting:
            return
        with ThreadPoolExecutor(min(8, len(self._waiting))) as pool:
            list(pool.map(_flush, [temporary for temporary, _ in self._waiting]))
        folders = {self._store.folder}
        for temporary, blob in self._waiting:
            target = self._store.path(blob.sha256)
            target.parent.mkdir(exist_ok=True)
            temporary.replace(target)
            folders.add(target.parent)
        self._waiting.clear()
        for folder in folders:
            _flush(folder)


def _write(path: Path, chunks: Iterable[bytes]) -> Blob:
    """Write ``chunks`` to a new file, which is removed again when that fails."""
    digest, size = hashlib.sha256(), 0
    with ExitStack() as undo, path.open("xb") as file:
        undo.callback(path.unlink)
        for chunk in chunks:
            digest.update(chunk)
            size += file.write(chunk)
        file.flush()
        undo.pop_all()
    return Blob(digest.hexdigest(), size)


def _flush(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
