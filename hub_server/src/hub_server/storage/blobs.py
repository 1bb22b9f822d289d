"""Content-addressed file store: ``blobs/sha256/aa/<sha256>``, immutable, complete or absent.

A blob is written to ``tmp/``, hashed on the way, flushed, renamed, and its folder flushed: only then may the index
name it. A crash leaves at worst a stray temporary file, which the next start sweeps. Parts of large uploads are not
flushed: the joined file is.
"""

import hashlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

UPLOAD_KEPT_SECONDS = 24 * 3600
_PIECE = 256 << 10  # bytes of a request body that stay in memory


def fsync(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to disk."""
    if (windows := sys.platform == "win32") and path.is_dir():  # it opens no folders, and flushes what it may write
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Blob(NamedTuple):
    """A stored file's sha256 and size in bytes."""

    sha256: str
    size: int


class Body:
    """A request body, as far as it was received."""

    def __init__(self, folder: Path):
        self._path, self.on_disk, self._pending = folder / uuid.uuid4().hex, False, bytearray()
        self._digest, self.size = hashlib.sha256(), 0

    def add(self, chunk: bytes) -> bool:
        """Buffer the next bytes; whether it is time to ``write`` them to disk."""
        self._pending += chunk
        self.size += len(chunk)
        return len(self._pending) >= _PIECE

    def write(self) -> None:
        """Append the buffer to the temporary file."""
        self._digest.update(self._pending)
        with self._path.open("ab") as file:
            self.on_disk = True
            file.write(self._pending)
        self._pending = bytearray()

    def chunks(self) -> Iterator[bytes]:
        """The bytes, in pieces."""
        if self.on_disk:
            with self._path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    yield chunk
        if self._pending:
            yield bytes(self._pending)

    def move(self, path: Path) -> Blob:
        """Leave the content as the file ``path``; the body is empty then."""
        self.write()
        self._path.replace(path)
        self.on_disk = False
        return Blob(self._digest.hexdigest(), self.size)

    def drop(self) -> None:
        """Remove the file of a content that is ``on_disk``."""
        self._path.unlink(missing_ok=True)


class BlobStore:
    """The content-addressed store, and the parts of unfinished multipart uploads."""

    def __init__(self, root: Path):
        self.folder, self.tmp, self._uploads = root / "blobs" / "sha256", root / "tmp", root / "uploads"
        for folder in (self.folder, self.tmp, self._uploads):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # private repos are private on the disk, too

    def sweep(self) -> None:
        """Remove unfinished files of an earlier process; call only before serving."""
        for stray in self.tmp.iterdir():
            stray.unlink()
        for upload in self._uploads.iterdir():
            if upload.stat().st_mtime < time.time() - UPLOAD_KEPT_SECONDS:
                shutil.rmtree(upload)

    def path(self, sha256: str) -> Path:
        """The path of a blob."""
        return self.folder / sha256[:2] / sha256

    @contextmanager
    def staging(self) -> Iterator["Staging"]:
        """A transaction for new blobs: stored durably when the block ends, dropped when it raises."""
        staging = Staging(self.tmp)
        try:
            yield staging
            self._settle(staging.waiting)
        finally:
            for temporary, _ in staging.waiting:
                temporary.unlink(missing_ok=True)

    def _settle(self, waiting: list[tuple[Path, Blob]]) -> None:
        """Flush and rename; from then on the index may name these blobs, and a power cut loses nothing."""
        with ThreadPoolExecutor(8) as pool:  # several times faster for many small files than one after the other
            list(pool.map(fsync, [temporary for temporary, _ in waiting]))
        folders = {self.folder}
        for temporary, blob in waiting:
            target = self.path(blob.sha256)
            target.parent.mkdir(exist_ok=True)
            temporary.replace(target)
            folders.add(target.parent)
        for folder in folders:
            fsync(folder)

    def add_part(self, upload: str, number: int, content: Body) -> Blob:
        """Store one part of a multipart upload."""
        (self._uploads / upload).mkdir(exist_ok=True)
        return content.move(self._uploads / upload / str(number))

    def part_chunks(self, upload: str, count: int) -> Iterator[bytes]:
        """The bytes of all parts in order. They are copied, not renamed: a part's writer may still hold it open."""
        for number in range(1, count + 1):
            with (self._uploads / upload / str(number)).open("rb") as part:
                while chunk := part.read(1 << 20):
                    yield chunk

    def drop_parts(self, upload: str) -> None:
        """Delete the parts of an upload that is complete."""
        shutil.rmtree(self._uploads / upload, ignore_errors=True)


class Staging:
    """Temporary files that become blobs."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.waiting: list[tuple[Path, Blob]] = []

    def add(self, chunks: Iterable[bytes]) -> Blob:
        """Write content to a temporary file; returns its sha256 and size."""
        temporary = self._folder / uuid.uuid4().hex
        blob = _write(temporary, chunks)
        self.waiting.append((temporary, blob))
        return blob

    def take(self, content: Body) -> Blob:
        """Move content that is a file already."""
        temporary = self._folder / uuid.uuid4().hex
        blob = content.move(temporary)
        self.waiting.append((temporary, blob))
        return blob


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
