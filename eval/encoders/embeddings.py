"""Cached embeddings of an encoder in a SQLite table: hash of a text → vector.

Each distinct text is encoded once. A block of texts is one transaction, so a killed process leaves
only complete vectors. The table stores no text.
"""

import hashlib
import logging
import re
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.encoders.load import Encoder, check_embeddings, make_side_encoder
from sts_dino.eval.tasks.rows import SMALLEST_NORM
from sts_dino.eval.tasks.task import Side
from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.durable import make_folder
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.messages import ProgressBar

logger = logging.getLogger(__name__)

CACHE_FOLDER = ARTIFACTS / "evaluations" / "embeddings"
BLOCK_TEXTS = 512  # texts of one call of the encoder, and of one query of the table
PROGRESS_DELAY_SECONDS = 1  # work before a progress bar appears
LOCK_TIMEOUT_SECONDS = 60  # wait for another process that writes a block
MIB = 1 << 20
FLOAT32_BYTES = 4
_CREATE_TABLE = (
    "CREATE TABLE IF NOT EXISTS embeddings (text BLOB PRIMARY KEY, vector BLOB, crc32 INTEGER) "
    "WITHOUT ROWID"
)


def hash_text(text: str) -> bytes:
    """Return the 16-byte BLAKE2b hash under which a text is stored."""
    # ``surrogatepass``: a text from JSON may hold half a surrogate pair
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Embeddings:
    """The embeddings of one encoder, for all tasks of a run.

    ``encoded`` counts the texts that were encoded with the encoder's own prompt, ``seconds`` is the
    time that this took. Several processes may use one cache; when they run at the same time, they
    may encode the same texts.

    Args:
        encoder: the encoder.
        cache: the folder that keeps embeddings for the next run, in one file per revision and
            settings. None, or an encoder that is not pinned: a temporary folder keeps them until
            ``close``.

    Raises InputError for a cache with vectors of another dimension, RunError for a cache that
    cannot be read or written, and OSError when the folder cannot be made.
    """

    def __init__(self, encoder: Encoder, cache: Path | None):
        self.encoder = encoder
        self.encoded = 0
        self.seconds = 0.0
        self._hashes: dict[str, bytes] = {}  # declared text → hash
        self._other_prompts: dict[str, Embeddings] = {}  # key of the encoder with the prompt

        # Open the file of this revision and these settings
        self._temporary = None
        if cache is None or not encoder.pinned:
            self._temporary = tempfile.TemporaryDirectory()
            cache = Path(self._temporary.name)
        revision = re.sub(r"[^A-Za-z0-9.-]", "_", encoder.revision)[:16]
        self.path = cache / f"{revision}-{encoder.key[:16]}.sqlite"
        make_folder(cache)
        with _convert_sqlite_errors(self.path):
            self._connection = sqlite3.connect(
                self.path, timeout=LOCK_TIMEOUT_SECONDS, check_same_thread=False
            )

        # Refuse stored vectors of another dimension
        with self._open_transaction() as table:
            table.execute(_CREATE_TABLE)
            row = table.execute("SELECT length(vector) FROM embeddings LIMIT 1").fetchone()
        if row is not None and row[0] != FLOAT32_BYTES * encoder.dimension:
            stored_dimension = row[0] // FLOAT32_BYTES
            raise InputError(
                self.path,
                f"holds vectors of {stored_dimension} numbers; now the encoder gives "
                f"{encoder.dimension}",
                hint="give the changed encoder another revision, or delete this file",
            )

    def __enter__(self) -> "Embeddings":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files of all prompts, and remove a temporary folder."""
        for embeddings in self._other_prompts.values():
            embeddings.close()
        self._connection.close()
        if self._temporary:
            self._temporary.cleanup()

    def get_for_prompt(self, encoder: Encoder) -> "Embeddings":
        """Return the embeddings of ``encoder``: the same model with the same or another prompt.

        The first call for another prompt opens a file in the same folder, or in a temporary one if
        the encoder is not pinned; ``close`` closes it. Raises the errors of the class.
        """
        if encoder.key == self.encoder.key:
            return self
        if encoder.key not in self._other_prompts:
            self._other_prompts[encoder.key] = Embeddings(encoder, self.path.parent)
        return self._other_prompts[encoder.key]

    def declare(self, texts: Sequence[str]) -> None:
        """Register texts that will be read, so that ``encode_declared`` encodes them together."""
        for text in texts:
            if text not in self._hashes:
                self._hashes[text] = hash_text(text)

    def encode_declared(self) -> None:
        """Encode every declared text that the table lacks, the longest texts first.

        Raises InputError for embeddings that ``check_embeddings`` refuses, RunError when the disk
        has no room or the table cannot be read or written, and the errors of the encoder.
        """
        # Find the texts without a stored vector
        texts = list(self._hashes)
        missing: list[str] = []
        for start in range(0, len(texts), BLOCK_TEXTS):
            block = texts[start : start + BLOCK_TEXTS]
            stored = self._read_vectors([self._hashes[text] for text in block])
            missing += [text for text in block if self._hashes[text] not in stored]
        if not missing:
            return

        # Texts of similar length have little padding
        self._encode_blocks(sorted(missing, key=len, reverse=True))
        message = f"{self.encoded:,} sentences encoded in {self.seconds:.1f} s"
        if not self._temporary:
            size = self.path.stat().st_size / MIB
            message += f"; {size:,.1f} MiB in {self.path}, which may be deleted"
        logger.info(message)

    def embed(self, texts: Sequence[str], side: Side | None = None) -> NDArray[np.float32]:
        """Return the embeddings of texts, (n, dimension), and encode those that the table lacks.

        Args:
            texts: n texts.
            side: "query" or "document" encodes with the encoder's prompt for this side of a
                search, where it has one; None: with the encoder's default prompt.

        Raises the errors of ``encode_declared``; with a side, also those of ``get_for_prompt``.
        """
        # Encode with the prompt of the side, and log the prompt at its first use
        if side is not None:
            encoder = make_side_encoder(self.encoder, side)
            is_open = encoder.key in {self.encoder.key, *self._other_prompts}
            if not is_open:
                prompt = encoder.settings["prompt"]
                logger.info(f"{encoder.name}: a {side} is encoded with the prompt {prompt!r}")
            return self.get_for_prompt(encoder).embed(texts)

        # Read block by block; the first missing vector encodes all declared texts
        self.declare(texts)
        rows = np.empty((len(texts), self.encoder.dimension), dtype=np.float32)
        for start in range(0, len(texts), BLOCK_TEXTS):
            hashes = [self._hashes[text] for text in texts[start : start + BLOCK_TEXTS]]
            vectors = self._read_vectors(hashes)
            if len(vectors) < len(set(hashes)):
                self.encode_declared()
                vectors = self._read_vectors(hashes)
            rows[start : start + BLOCK_TEXTS] = [vectors[text_hash] for text_hash in hashes]
        return rows

    def _read_vectors(self, hashes: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        """Read hash → vector (dimension,) of at most ``BLOCK_TEXTS`` hashes.

        Hashes without a stored vector, or with a damaged one, are left out. Raises RunError when
        the table cannot be read.
        """
        placeholders = ",".join("?" * len(hashes))
        query = f"SELECT * FROM embeddings WHERE text IN ({placeholders})"  # noqa: S608 - "?" only
        with self._open_transaction() as table:
            rows = table.execute(query, hashes).fetchall()
        return {
            text_hash: np.frombuffer(vector, "<f4")
            for text_hash, vector, crc32 in rows
            if zlib.crc32(vector) == crc32
        }

    def _encode_blocks(self, texts: list[str]) -> None:
        """Encode texts in their order, and store their vectors block by block.

        Raises the errors of ``encode_declared``.
        """
        # Require room on the disk
        needed = len(texts) * FLOAT32_BYTES * self.encoder.dimension
        free = disk_usage(self.path.parent).free
        if needed > free:
            raise RunError(
                self.path,
                f"{needed / MIB:,.0f} MiB are needed for {len(texts):,} embeddings, "
                f"{free / MIB:,.0f} MiB are free",
                hint="free some, or choose another folder for the embeddings",
            )

        # Encode and store the blocks
        name = self.encoder.name
        bar = ProgressBar(
            total=len(texts),
            desc=f"encoding with {name}",
            unit=" sentence",
            delay=PROGRESS_DELAY_SECONDS,
        )
        with bar:
            block_texts = self.encoder.max_call_texts or BLOCK_TEXTS
            for start in range(0, len(texts), block_texts):
                block = texts[start : start + block_texts]
                started = time.perf_counter()
                vectors = self.encoder.embed(block)
                vectors = check_embeddings(vectors, block, name, self.encoder.dimension)
                self.seconds += time.perf_counter() - started
                rows = []
                for text, vector in zip(block, vectors, strict=True):
                    content = vector.astype("<f4").tobytes()
                    rows.append((self._hashes[text], content, zlib.crc32(content)))
                with self._open_transaction() as table:
                    table.executemany("INSERT OR REPLACE INTO embeddings VALUES (?, ?, ?)", rows)
                self.encoded += len(block)
                bar.update(len(block))

    @contextmanager
    def _open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction that commits at the end of the block, or rolls back on an exception.

        Raises RunError for an error of SQLite.
        """
        with _convert_sqlite_errors(self.path), self._connection:
            yield self._connection


@contextmanager
def _convert_sqlite_errors(path: Path) -> Iterator[None]:
    """Convert an error of SQLite over the file ``path`` into a RunError."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        hint = (
            "free some space, or choose another folder; if the file is damaged, delete it: its "
            "sentences are encoded again"
        )
        raise RunError(path, f"cannot be read or written: {error}", hint=hint) from error


def compute_text_cosines(encoder: Encoder, first: list[str], second: list[str]) -> list[float]:
    """Compute the cosine of each pair of texts, (n,), in the order of the pairs.

    Every distinct text is encoded once, and no embedding is written to disk. The cosine with a zero
    vector is 0.

    Args:
        encoder: the encoder.
        first: one text of each pair, (n,) with n ≥ 1.
        second: the other text of each pair, (n,).

    Raises InputError when the encoder gives no embeddings, RunError when the encoder is a function
    and raises.
    """
    # Encode block by block; texts of similar length have little padding
    texts = sorted(dict.fromkeys((*first, *second)), key=len)
    blocks = []
    block_texts = encoder.max_call_texts or BLOCK_TEXTS
    for start in range(0, len(texts), block_texts):
        block = texts[start : start + block_texts]
        vectors = check_embeddings(encoder.embed(block), block, encoder.name, encoder.dimension)
        blocks.append(vectors)
    embeddings = np.concatenate(blocks)

    # Compare the embeddings of each pair
    row_of = {text: row for row, text in enumerate(texts)}
    first_rows = [row_of[text] for text in first]
    second_rows = [row_of[text] for text in second]
    return compute_cosines(embeddings[first_rows], embeddings[second_rows])


def compute_cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> list[float]:
    """Compute the cosine of each row of ``first`` (n, d) with the same row of ``second`` (n, d).

    The n cosines are computed in float64. The cosine with a zero vector is 0.
    """
    units = []
    for vectors in (first.astype(np.float64), second.astype(np.float64)):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        units.append(vectors / np.maximum(norms, SMALLEST_NORM))
    cosines: list[float] = np.einsum("ij,ij->i", *units).tolist()
    return cosines
