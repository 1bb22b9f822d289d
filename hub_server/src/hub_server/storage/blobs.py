"""Content-addressed file store: ``blobs/sha256/aa/<sha256>``, immutable, complete or absent.

A blob is written to ``tmp/``, hashed on the way, flushed, renamed, and its folder flushed: only
then may the index name it. A crash leaves at worst a stray temporary file, which the next start
removes. Parts of large uploads are not flushed: the joined file is.
"""

import errno
import hashlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

UPLOAD_KEPT_SECONDS = 24 * 3600  # of an upload that was never finished
_MEMORY_BYTES = 256 << 10  # of a request body; a longer body is written to a file
_READ_BYTES = 1 << 20  # of a file, read at once
_FLUSH_THREADS = 8


def sync_to_disk(path: Path) -> None:
    """Flush the content of a file, or the names in a folder, to the disk (fsync).

    On Windows nothing happens for a folder.
    """
    flags = os.O_RDONLY
    # Windows opens no folders, and flushes only files that are open for writing.
    if sys.platform == "win32":
        if path.is_dir():
            return
        flags = os.O_RDWR
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Blob(NamedTuple):
    """A stored file's sha256 and size in bytes."""

    sha256: str
    size: int


class Body:
    """The received part of a request's body, in memory; a longer body in a file of ``folder``.

    ``size``: the number of received bytes; ``on_disk``: whether the file exists.
    """

    def __init__(self, folder: Path):
        self._path = folder / uuid.uuid4().hex
        self.on_disk = False
        self._pending = bytearray()
        self._digest = hashlib.sha256()
        self.size = 0

    def add(self, chunk: bytes) -> bool:
        """Buffer the next bytes; return whether the caller has to ``write`` the buffer."""
        self._pending += chunk
        self.size += len(chunk)
        return len(self._pending) >= _MEMORY_BYTES

    def write(self) -> None:
        """Append the buffer to the file, and empty the buffer."""
        self._digest.update(self._pending)
        with self._path.open("ab") as file:
            self.on_disk = True
            file.write(self._pending)
        self._pending = bytearray()

    def iter_chunks(self) -> Iterator[bytes]:
        """Yield the body's bytes in pieces."""
        if self.on_disk:
            with self._path.open("rb") as file:
                while chunk := file.read(_READ_BYTES):
                    yield chunk
        if self._pending:
            yield bytes(self._pending)

    def move(self, path: Path) -> Blob:
        """Rename the body's file to ``path``, and return the content's hash and size."""
        self.write()
        self._path.replace(path)
        self.on_disk = False
        return Blob(self._digest.hexdigest(), self.size)

    def drop(self) -> None:
        """Remove the body's file if the file exists."""
        self._path.unlink(missing_ok=True)


class BlobStore:
    """The content-addressed store, and the parts of unfinished multipart uploads."""

    def __init__(self, root: Path):
        self.folder = root / "blobs" / "sha256"
        self.tmp = root / "tmp"
        self._uploads = root / "uploads"
        for folder in (self.folder, self.tmp, self._uploads):
            # Other users of the machine must not read private repos.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def remove_strays(self) -> None:
        """Remove unfinished files of an earlier process; call only before serving.

        An upload's parts stay for ``UPLOAD_KEPT_SECONDS`` after the last new part, because a client
        may resume the upload.
        """
        shutil.rmtree(self.tmp)
        self.tmp.mkdir(mode=0o700)
        for upload in self._uploads.iterdir():
            if upload.stat().st_mtime < time.time() - UPLOAD_KEPT_SECONDS:
                shutil.rmtree(upload)

    def require_free_space(self, size: int) -> None:
        """Raise OSError (ENOSPC) when the disk has no room for ``size`` more bytes."""
        if size > shutil.disk_usage(self.tmp).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.tmp))

    def get_path(self, sha256: str) -> Path:
        """Return the path at which the blob of this hash is, or would be, stored."""
        return self.folder / sha256[:2] / sha256

    @contextmanager
    def open_staging(self) -> Iterator["Staging"]:
        """Yield a ``Staging`` for new blobs.

        At the end of the block, the staged blobs are flushed to the disk and stored. When the block
        raises, the staged blobs are removed.
        """
        with TemporaryDirectory(dir=self.tmp) as folder:
            staging = Staging(Path(folder))
            yield staging
            self._store_blobs(staging.waiting)

    def _store_blobs(self, waiting: list[tuple[Path, Blob]]) -> None:
        """Flush the temporary files and rename them to blobs; then the index may name the blobs.

        A power cut loses no stored blob. ``waiting``: (temporary file, its hash and size) pairs.
        """
        # Flush the contents. Threads flush many small files several times faster than a loop.
        temporaries = [temporary for temporary, _ in waiting]
        with ThreadPoolExecutor(_FLUSH_THREADS) as pool:
            list(pool.map(sync_to_disk, temporaries))  # list raises the threads' errors

        # Rename the files, then flush the folders that hold their new names.
        folders = {self.folder}
        for temporary, blob in waiting:
            target = self.get_path(blob.sha256)
            target.parent.mkdir(exist_ok=True)
            temporary.replace(target)
            folders.add(target.parent)
        for folder in folders:
            sync_to_disk(folder)

    def add_part(self, upload: str, number: int, content: Body) -> Blob:
        """Store a part of a multipart upload; return the part's hash and size.

        The part is not flushed to the disk. It replaces an earlier part with this number.
        """
        (self._uploads / upload).mkdir(exist_ok=True)
        return content.move(self._uploads / upload / str(number))

    def iter_part_chunks(self, upload: str, count: int) -> Iterator[bytes]:
        """Yield the bytes of the parts 1 to ``count`` in order.

        Raises FileNotFoundError for a missing part. The caller copies the bytes into a new file,
        because the request that wrote a part may still have the part open.
        """
        for number in range(1, count + 1):
            with (self._uploads / upload / str(number)).open("rb") as part:
                while chunk := part.read(_READ_BYTES):
                    yield chunk

    def drop_parts(self, upload: str) -> None:
        """Delete the parts of an upload that is complete."""
        shutil.rmtree(self._uploads / upload, ignore_errors=True)


class Staging:
    """Temporary files of new blobs, listed in ``waiting`` with their hashes and sizes."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.waiting: list[tuple[Path, Blob]] = []

    def add(self, chunks: Iterable[bytes]) -> Blob:
        """Write content to a temporary file; return its sha256 and size."""
        temporary = self._folder / uuid.uuid4().hex
        digest = hashlib.sha256()
        size = 0
        with temporary.open("xb") as file:
            for chunk in chunks:
                digest.update(chunk)
                size += file.write(chunk)
        blob = Blob(digest.hexdigest(), size)
        self.waiting.append((temporary, blob))
        return blob

    def take(self, content: Body) -> Blob:
        """Move a request's body to a temporary file; return its sha256 and size."""
        temporary = self._folder / uuid.uuid4().hex
        blob = content.move(temporary)
        self.waiting.append((temporary, blob))
        return blob
