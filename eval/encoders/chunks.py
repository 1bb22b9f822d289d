"""Embeddings on disk: files of some MiB, each named by the SHA-256 of its bytes, so that no torn one is ever trusted.

A row is the hash of a text and its vector. Texts themselves are not stored.
"""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.cli import say
from hub.contract.shards import atomic_path
from hub.errors import InputError, RunError

HASH_BYTES = 16
Digests = NDArray[np.bytes_]  # (n,) of HASH_BYTES each
_ROW_BITS = 32  # of a place: chunk number above, row below


def digests(texts: Sequence[str]) -> Digests:
    """The hashes (n,) that stand for texts on disk: 128 bits of BLAKE2b each."""
    found = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest() for text in texts)
    return np.frombuffer(b"".join(found), dtype=f"S{HASH_BYTES}")


class Chunks:
    """The chunk files of a folder and, in memory, where each text's embedding lies: 25 bytes a text."""

    def __init__(self, folder: Path, dimension: int):
        self.folder, self.dimension = folder, dimension
        self._row = np.dtype([("text", f"S{HASH_BYTES}"), ("embedding", "<f4", (dimension,))])
        self._paths: list[Path] = []
        self._digests: Digests = np.empty(0, dtype=f"S{HASH_BYTES}")  # in order
        self._places: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of each digest
        self._zero: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    @property
    def row_bytes(self) -> int:
        """What one text takes on disk."""
        return self._row.itemsize

    def bytes(self) -> int:
        """What the folder's chunks take on disk."""
        return sum(path.stat().st_size for path in self.folder.glob("*.npy"))

    def refresh(self) -> None:
        """Take in the chunks that are new in the folder; a damaged one is passed over and said.

        Raises InputError when a chunk is whole but of another dimension.
        """
        new = sorted(set(self.folder.glob("*.npy")) - set(self._paths))
        parts: list[tuple[Any, ...]] = [(self._digests, self._places, self._zero)]
        for path in new:
            rows = self._read(path)
            if rows is not None:
                first = len(self._paths) << _ROW_BITS
                self._paths.append(path)
                parts.append((rows["text"].copy(), first + np.arange(len(rows)), (rows["embedding"] == 0).all(axis=1)))
        if len(parts) > 1:
            joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
            order = np.argsort(joined[0], kind="stable")
            self._digests, self._places, self._zero = (column[order] for column in joined)

    def discard_damaged(self) -> None:
        """Remove what killed or torn writes left. Only for whoever alone writes here."""
        for path in (*self.folder.glob(".*.tmp"), *(set(self.folder.glob("*.npy")) - set(self._paths))):
            path.unlink(missing_ok=True)

    def append(self, found: Digests, embeddings: NDArray[np.float32]) -> None:
        """Write a new chunk: there whole or not at all. It counts from the next ``refresh`` on."""
        rows = np.empty(len(found), dtype=self._row)
        rows["text"], rows["embedding"] = found, embeddings
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        path = self.folder / f"{hashlib.sha256(buffer.getbuffer()).hexdigest()}.npy"
        with atomic_path(path) as temporary:
            temporary.write_bytes(buffer.getbuffer())

    def find(self, wanted: Digests) -> NDArray[np.int64]:
        """The place of each digest (n,), -1 for one that is not here."""
        if not len(self._digests):
            return np.full(len(wanted), -1)
        at = np.searchsorted(self._digests, wanted).clip(max=len(self._digests) - 1)
        return np.where(self._digests[at] == wanted, self._places[at], -1)

    def zeros(self, wanted: Digests) -> NDArray[np.bool_]:
        """Whether each digest (n,), which must be here, has a zero vector."""
        return self._zero[np.searchsorted(self._digests, wanted)]

    def take(self, places: NDArray[np.int64]) -> NDArray[np.float32]:
        """The embeddings (n, dimension) at places that ``find`` gave; one chunk is in memory at a time."""
        taken = np.empty((len(places), self.dimension), dtype=np.float32)
        numbers = places >> _ROW_BITS
        for number in np.unique(numbers):
            asked = np.flatnonzero(numbers == number)
            taken[asked] = self._mapped(self._paths[number])["embedding"][places[asked] & ((1 << _ROW_BITS) - 1)]
        return taken

    def _mapped(self, path: Path) -> np.ndarray:
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError) as error:
            hint = "nobody may delete or change it while an evaluation runs; run the same command again"
            raise RunError(path, "cached embeddings vanished while they were in use", hint=hint) from error

    def _read(self, path: Path) -> np.ndarray | None:
        """The rows of a chunk; None when its bytes are not those it was written with."""
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != path.stem:
            say(f"{path}: is damaged; its sentences are encoded again")
            return None
        rows = np.load(io.BytesIO(content), allow_pickle=False)
        if rows.dtype != self._row:
            problem = f"holds vectors of {rows['embedding'].shape[1]} numbers; now the encoder gives {self.dimension}"
            raise InputError(self.folder, problem, hint="give what has changed another revision, or delete this folder")
        return rows
