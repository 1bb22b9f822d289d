"""Embeddings of an encoder, each distinct text once, in a SQLite table on disk: hash of a text → vector.

A block of texts is one transaction, so a killed process leaves whole vectors. Texts themselves are not stored.
"""

import hashlib
import re
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from eval.encoders.load import Encoder, checked, sided
from eval.tasks.task import Side
from hub.cli import say
from hub.contract.run_dir import ARTIFACTS
from hub.durable import make_folder
from hub.errors import InputError, RunError

CACHE = ARTIFACTS / "evaluations" / "embeddings"
BLOCK = 512  # sentences that the encoder is given, and the table is asked for, at once
BAR_SECONDS = 1  # of work without a progress bar
WAIT = 60  # seconds for another process that writes a block
MIB = 1 << 20
_TABLE = "CREATE TABLE IF NOT EXISTS embeddings (text BLOB PRIMARY KEY, vector BLOB, crc32 INTEGER) WITHOUT ROWID"


def digest(text: str) -> bytes:
    """The hash that stands for a text on disk: 128 bits of BLAKE2b."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Embeddings:
    """The embeddings that one encoder gives, for all tasks of a run.

    ``cache`` is the folder that keeps them for the next run, in one file a revision; None keeps them until ``close``
    in a temporary one. Processes may share it; at once, they may do the same work. ``encoded`` counts the distinct
    sentences encoded, ``seconds`` the time that took. Raises InputError for a cache of another dimension, RunError for
    one that cannot be read or written.
    """

    def __init__(self, encoder: Encoder, cache: Path | None = CACHE):
        self.encoder = encoder
        self.encoded, self.seconds = 0, 0.0
        self._temporary = None if cache is not None and encoder.pinned else tempfile.TemporaryDirectory()
        place = Path(self._temporary.name) if self._temporary else cache
        assert place is not None
        name = f"{re.sub(r'[^A-Za-z0-9.-]', '_', encoder.revision)[:16]}-{encoder.key[:16]}.sqlite"
        self.path = place / name
        self._wanted: dict[str, bytes] = {}  # text → its hash
        self._beside: dict[str, Embeddings] = {}
        make_folder(place)
        self._connection = sqlite3.connect(self.path, timeout=WAIT, check_same_thread=False)
        with self._transaction() as table:
            table.execute(_TABLE)
            ((size,),) = table.execute("SELECT max(length(vector)) FROM (SELECT vector FROM embeddings LIMIT 1)")
        if size not in (None, 4 * encoder.dimension):
            problem = f"holds vectors of {size // 4} numbers; now the encoder gives {encoder.dimension}"
            raise InputError(self.path, problem, hint="give what has changed another revision, or delete this file")

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the embeddings that are not kept."""
        for other in self._beside.values():
            other.close()
        self._connection.close()
        if self._temporary:
            self._temporary.cleanup()

    def of(self, encoder: Encoder) -> "Embeddings":
        """The embeddings of the same model under another prompt, kept beside these and closed with them."""
        if encoder.key == self.encoder.key:
            return self
        if encoder.key not in self._beside:
            self._beside[encoder.key] = Embeddings(encoder, self.path.parent)
        return self._beside[encoder.key]

    def add(self, texts: Sequence[str]) -> None:
        """Declare texts that a task will read; repeats cost nothing."""
        self._wanted.update((text, digest(text)) for text in texts if text not in self._wanted)

    def encode(self) -> None:
        """Encode every declared text that is not there yet, the longest first.

        Raises InputError for what ``checked`` refuses, RunError when the disk has no room.
        """
        texts, missing = list(self._wanted), list[str]()
        for start in range(0, len(texts), BLOCK):
            block = {text: self._wanted[text] for text in texts[start : start + BLOCK]}
            stored = self._stored(list(block.values()))
            missing += [text for text in block if block[text] not in stored]
        if missing:
            self._encode(sorted(missing, key=len, reverse=True))
            said = f"{self.encoded:,} sentences encoded in {self.seconds:.1f} s"
            if not self._temporary:
                said += f"; {self.path.stat().st_size / MIB:,.1f} MiB in {self.path}, which may be deleted"
            say(said)

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
        found = np.empty((len(texts), self.encoder.dimension), dtype=np.float32)
        for start in range(0, len(texts), BLOCK):
            hashes = [self._wanted[text] for text in texts[start : start + BLOCK]]
            if len(vectors := self._stored(hashes)) < len({*hashes}):
                self.encode()
                vectors = self._stored(hashes)
            found[start : start + BLOCK] = [vectors[one] for one in hashes]
        return found

    def _stored(self, hashes: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """Hash → vector of those that are whole in the table."""
        query = f"SELECT * FROM embeddings WHERE text IN ({','.join('?' * len(hashes))})"  # noqa: S608 - marks alone
        with self._transaction() as table:
            rows = table.execute(query, hashes).fetchall()
        return {text: np.frombuffer(vector, "<f4") for text, vector, crc32 in rows if zlib.crc32(vector) == crc32}

    def _encode(self, texts: list[str]) -> None:
        """Encode texts, longest first, a block at a time."""
        needed, free = len(texts) * 4 * self.encoder.dimension, disk_usage(self.path.parent).free
        if needed > free:
            problem = f"{needed / MIB:,.0f} MiB are needed for {len(texts):,} embeddings"
            hint = "free some, or choose another folder for the embeddings"
            raise RunError(self.path, f"{problem}, {free / MIB:,.0f} MiB are free", hint=hint)
        name = self.encoder.name
        with tqdm(total=len(texts), desc=f"encoding with {name}", unit=" sentences", delay=BAR_SECONDS) as bar:
            for place in range(0, len(texts), BLOCK):
                block = texts[place : place + BLOCK]
                began = time.perf_counter()
                found = checked(self.encoder.embed(block), block, name, self.encoder.dimension)
                self.seconds += time.perf_counter() - began
                vectors = [row.astype("<f4").tobytes() for row in found]
                rows = [(self._wanted[text], row, zlib.crc32(row)) for text, row in zip(block, vectors, strict=True)]
                with self._transaction() as table:
                    table.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", rows)
                self.encoded += len(block)
                bar.update(len(block))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk when it ends and undone when it fails."""
        try:
            with self._connection:
                yield self._connection
        except sqlite3.DatabaseError as error:
            hint = "free some space; if it is damaged, delete it: its sentences are encoded again"
            raise RunError(self.path, f"cannot be read or written: {error}", hint=hint) from error


def cosine(encoder: Encoder) -> Callable[[list[str], list[str]], list[float]]:
    """Cosine similarity under an encoder, 0 with a zero vector; every distinct text of a batch is encoded once.

    Raises InputError when the encoder gives no embeddings.
    """

    def values(first: list[str], second: list[str]) -> list[float]:
        texts = sorted(dict.fromkeys((*first, *second)), key=len)  # little padding
        blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
        found = np.concatenate([checked(encoder.embed(b), b, encoder.name, encoder.dimension) for b in blocks])
        place = {text: row for row, text in enumerate(texts)}
        left, right = ([place[text] for text in side] for side in (first, second))
        return paired(found[left], found[right])

    return values


def paired(first: NDArray[np.float32], second: NDArray[np.float32]) -> list[float]:
    """Cosine of each row of one array with that of the other, 0 with a zero vector."""
    left, right = (one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-12) for one in (first, second))
    return [float(value) for value in np.einsum("ij,ij->i", left, right, dtype=np.float64)]
