"""Every distinct sentence encoded once: sorted by length, kept on disk by model revision and text, read back by tasks.

What a task reads is what lies on disk, so a run gives the same bits whether it encoded a sentence or found it. Neither
the embeddings of a run nor of a cache are ever in memory together.
"""

import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from tqdm import tqdm

from eval.encoders.chunks import HASH_BYTES, Chunks, Digests, digests
from eval.encoders.load import Encoder
from eval.encoders.output import checked, shown
from hub.cli import say
from hub.contract.run_dir import ARTIFACTS
from hub.errors import InputError, RunError

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

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the embeddings that are not kept."""
        if self._temporary:
            self._temporary.cleanup()

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

    def rows(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The embeddings (n, dimension) of texts, repeats included. Texts that nobody declared are encoded first."""
        self.add(texts)
        found = self._hashes(texts)
        if not self._differ or (self._chunks.find(found) < 0).any():
            self.encode()
        return self._chunks.take(self._chunks.find(found))

    @property
    def reused(self) -> int:
        """How many of the distinct sentences asked for were there before."""
        return len(self._wanted) - len(self._missing()) - self.encoded

    @property
    def zero_vectors(self) -> int:
        """How many of the sentences, once encoded, have the zero vector, which has no direction to compare."""
        return int(self._chunks.zeros(self._hashes(self._wanted)).sum())

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
        """Hold the folder for this process, after whoever holds it now. The lock of a killed process is free."""
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
        if zero := self.zero_vectors:
            said += f"; {zero:,} sentences have the zero vector"
        if not self._temporary:
            said += f"; {self._chunks.bytes() / MIB:,.1f} MiB in {self.folder}, which may be deleted"
        say(said)
