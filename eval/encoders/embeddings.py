"""Embeddings of an encoder, each distinct text once, on disk in files named by the SHA-256 of their bytes.

No torn file is ever trusted. A row is the hash of a text and its vector. Texts themselves are not stored.
"""

import hashlib
import io
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from tqdm import tqdm

from eval.encoders.load import Encoder, checked, shown, sided
from eval.tasks.task import Side
from hub.cli import say
from hub.contract.run_dir import ARTIFACTS
from hub.durable import atomic_path
from hub.errors import InputError, RunError

HASH_BYTES = 16
Digests = NDArray[np.bytes_]  # (n,) of HASH_BYTES each
_ROW_BITS = 32  # of a place: chunk number above, row below


def digests(texts: Sequence[str]) -> Digests:
    """The hashes (n,) that stand for texts on disk: 128 bits of BLAKE2b each."""
    found = (hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest() for text in texts)
    return np.frombuffer(b"".join(found), dtype=f"S{HASH_BYTES}")


class Chunks:
    """The chunk files of a folder and, in memory, where each text's embedding lies: 24 bytes a text."""

    def __init__(self, folder: Path, dimension: int):
        self.folder, self.dimension = folder, dimension
        self._row = np.dtype([("text", f"S{HASH_BYTES}"), ("embedding", "<f4", (dimension,))])
        self._paths: list[Path] = []
        self._digests: Digests = np.empty(0, dtype=f"S{HASH_BYTES}")  # in order
        self._places: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # of each digest

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
        parts: list[tuple[Any, ...]] = [(self._digests, self._places)]
        for path in new:
            rows = self._read(path)
            if rows is not None:
                first = len(self._paths) << _ROW_BITS
                self._paths.append(path)
                parts.append((rows["text"].copy(), first + np.arange(len(rows))))
        if len(parts) > 1:
            found, places = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            order = np.argsort(found, kind="stable")
            self._digests, self._places = found[order], places[order]

    def discard_damaged(self) -> None:
        """Remove what killed or torn writes left. Call it with the folder locked."""
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


CACHE = ARTIFACTS / "evaluations" / "embeddings"
BLOCK = 512  # sentences that the encoder is given at once
CHUNK_BYTES = 16 << 20  # of a file on disk
CHUNK_SECONDS = 30  # of work that a kill can cost
BAR_SECONDS = 1  # of work without a progress bar
MIB = 1 << 20
FEW = 10  # so few sentences may share an embedding, e.g. texts of unknown words
SAME = 1e-6  # vectors this close, relative to their largest number, are one: rounding in batches of other lengths


class Embeddings:
    """The embeddings that one encoder gives, for all tasks of a run.

    ``cache`` is the folder that keeps them for the next run, in one folder a revision; None keeps them until ``close``
    in a temporary one. Processes may share it. ``encoded`` counts the distinct sentences encoded, ``seconds`` the
    time that took.
    """

    def __init__(self, encoder: Encoder, cache: Path | None = CACHE):
        self.encoder = encoder
        self.encoded, self.seconds = 0, 0.0
        self._temporary = None if cache is not None and encoder.pinned else tempfile.TemporaryDirectory()
        place = Path(self._temporary.name) if self._temporary else cache
        assert place is not None
        self.folder = place / f"{re.sub(r'[^A-Za-z0-9.-]', '_', encoder.revision)[:16]}-{encoder.key[:16]}"
        self._chunks = Chunks(self.folder, encoder.dimension)
        self._chunks.refresh()
        self._wanted: dict[str, bytes] = {}  # text → its hash
        self._differ = False  # whether two embeddings are known to
        self._beside: dict[str, Embeddings] = {}

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the embeddings that are not kept."""
        for other in self._beside.values():
            other.close()
        if self._temporary:
            self._temporary.cleanup()

    def of(self, encoder: Encoder) -> "Embeddings":
        """The embeddings of the same model under another prompt, kept beside these and closed with them."""
        if encoder.key == self.encoder.key:
            return self
        if encoder.key not in self._beside:
            self._beside[encoder.key] = Embeddings(encoder, self.folder.parent)
        return self._beside[encoder.key]

    def add(self, texts: Sequence[str]) -> None:
        """Declare texts that a task will read; repeats cost nothing."""
        new = list(dict.fromkeys(text for text in texts if text not in self._wanted))
        self._wanted.update(zip(new, digests(new).tolist(), strict=True))

    def encode(self) -> None:
        """Encode every declared text that is not there yet, the longest first.

        Raises InputError for what ``checked`` refuses and when all sentences get the same embedding, RunError when the
        disk has no room.
        """
        if self._missing():
            with self._alone():
                self._chunks.refresh()  # another process may have been at work
                self._chunks.discard_damaged()
                self._encode(sorted(self._missing(), key=len, reverse=True))
                self._chunks.refresh()
            self._say_cost()
        self._require_difference()

    def rows(self, texts: Sequence[str], side: Side | None = None) -> NDArray[np.float32]:
        """The embeddings (n, dimension) of texts, repeats included. Texts that nobody declared are encoded first.

        side: queries and documents get the encoder's prompt for them, where it has one.
        """
        if side is not None:
            encoder = sided(self.encoder, side)
            if encoder.key not in {self.encoder.key, *self._beside}:
                say(f"{encoder.name}: a {side} is encoded with the prompt {encoder.settings['prompt']!r}")
            return self.of(encoder).rows(texts)
        self.add(texts)
        found = self._hashes(texts)
        if not self._differ or (self._chunks.find(found) < 0).any():
            self.encode()
        return self._chunks.take(self._chunks.find(found))

    def _hashes(self, texts: Iterable[str]) -> Digests:
        return np.array([self._wanted[text] for text in texts], dtype=f"S{HASH_BYTES}")

    def _missing(self) -> list[str]:
        absent = self._chunks.find(self._hashes(self._wanted)) < 0
        return [text for text, is_absent in zip(self._wanted, absent, strict=True) if is_absent]

    def _encode(self, texts: list[str]) -> None:
        """Encode texts, longest first, into chunks."""
        self._require_room(len(texts))
        name, dimension = self.encoder.name, self.encoder.dimension
        written = time.monotonic()
        waiting: list[NDArray[np.float32]] = []
        start = 0  # of what waits to be written
        with tqdm(total=len(texts), desc=f"encoding with {name}", unit=" sentences", delay=BAR_SECONDS) as bar:
            for place in range(0, len(texts), BLOCK):
                block = texts[place : place + BLOCK]
                began = time.perf_counter()
                waiting.append(checked(self.encoder.embed(block), block, name, dimension))
                self.seconds += time.perf_counter() - began
                bar.update(len(block))
                end = place + len(block)
                is_due = time.monotonic() - written > CHUNK_SECONDS
                if is_due or end == len(texts) or (end - start) * self._chunks.row_bytes >= CHUNK_BYTES:
                    self._chunks.append(self._hashes(texts[start:end]), np.concatenate(waiting))
                    self.encoded += end - start
                    waiting, start, written = [], end, time.monotonic()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder, waiting for another process. The lock of a killed process is free."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            held = lock.acquire(timeout=0)
        except Timeout:
            say(f"{self.folder}: waiting for another process that encodes with the same model")
            held = lock.acquire()
        with held:
            yield

    def _require_room(self, texts: int) -> None:
        needed, free = texts * self._chunks.row_bytes, disk_usage(self.folder).free
        if needed > free:
            found = f"{needed / MIB:,.0f} MiB are needed for {texts:,} embeddings, {free / MIB:,.0f} MiB are free"
            raise RunError(self.folder, found, hint="free some, or choose another folder for the embeddings")

    def _require_difference(self) -> None:
        """Raise InputError when all sentences have one embedding: no score means anything then."""
        if self._differ or len(self._wanted) < FEW:
            return
        hashes = self._hashes(self._wanted)
        first = self._chunks.take(self._chunks.find(hashes[:1]))
        for start in range(0, len(hashes), BLOCK):
            rows = self._chunks.take(self._chunks.find(hashes[start : start + BLOCK]))
            if (np.abs(rows - first) > SAME * np.abs(first).max()).any():
                self._differ = True
                return
        problem = f"gives all {len(hashes):,} sentences the same embedding, e.g. {shown(next(iter(self._wanted)))}"
        raise InputError(self.encoder.name, problem, hint="correlations are undefined; did its training collapse?")

    def _say_cost(self) -> None:
        """Say what was done, how large the cache is and how to get rid of it."""
        said = f"{self.encoded:,} sentences encoded in {self.seconds:.1f} s"
        if not self._temporary:
            said += f"; {self._chunks.bytes() / MIB:,.1f} MiB in {self.folder}, which may be deleted"
        say(said)


def cosine(encoder: Encoder) -> Callable[[list[str], list[str]], list[float]]:
    """Cosine similarity under an encoder, 0 with a zero vector; every distinct text of a batch is encoded once.

    Raises InputError when the encoder gives no embeddings.
    """

    def values(first: list[str], second: list[str]) -> list[float]:
        texts = sorted(dict.fromkeys((*first, *second)), key=len)  # little padding
        blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
        found = np.concatenate([checked(encoder.embed(b), b, encoder.name, encoder.dimension) for b in blocks])
        unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        place = {text: row for row, text in enumerate(texts)}
        left, right = ([place[text] for text in side] for side in (first, second))
        return [float(value) for value in np.einsum("ij,ij->i", unit[left], unit[right], dtype=np.float64)]

    return values
