"""Semantic textual similarity: read the pinned files, score pairs by cosine, correlate with people's scores.

The files are tab-separated and unquoted: a ``"`` inside a sentence is a character, so a CSV reader would join lines and
lose pairs without a word. They are split at tabs only.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.registry import DataFile, Task
from hub.errors import InputError, RunError

Vector = NDArray[np.float64]
Encode = Callable[[list[str]], NDArray[np.floating]]  # n sentences → (n, dimension)


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with people's scores (0 = unrelated … 5 = equivalent for STSb) and the hash of their file."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: Vector  # (pairs,)
    sha256: str

    def __len__(self) -> int:
        return len(self.gold)

    def head(self, limit: int | None) -> "Pairs":
        """The first ``limit`` pairs (all when None)."""
        return self if limit is None else Pairs(self.first[:limit], self.second[:limit], self.gold[:limit], self.sha256)


def read_pairs(path: Path, task: Task, split: str) -> Pairs:
    """All pairs of a split's file.

    Raises InputError naming file and line when the file is missing, short, malformed or not the pinned one: a score on
    part of the data would pass for a score on all of it.
    """
    if split not in task.files:
        raise InputError(f"{path}", f"{task.name} has no split {split!r}", allowed=sorted(task.files))
    content = _read(path, task)
    rows = [_row(line, f"{path}:{number}", task) for number, line in enumerate(_lines(content, path), start=1)]
    _check(path, len(rows), hashlib.sha256(content).hexdigest(), task.files[split])
    first, second, gold = zip(*rows, strict=True)
    return Pairs(first, second, np.array(gold, dtype=np.float64), task.files[split].sha256)


def _read(path: Path, task: Task) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(
            path, f"no such data file for {task.name}", hint="the repository keeps it in assets/"
        ) from error


def _lines(content: bytes, path: Path) -> list[str]:
    """Lines ended by a newline only: str.splitlines would also break at characters inside a sentence."""
    try:
        return content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(path, f"is not UTF-8 (byte {error.start})") from error


def _row(line: str, place: str, task: Task) -> tuple[str, str, float]:
    cells = line.split("\t")
    left, right = task.sentence_columns
    wanted = max(left, right, task.score_column) + 1
    if len(cells) < wanted:
        raise InputError(place, f"has {len(cells)} tab-separated columns; {task.name} needs {wanted}")
    try:
        score = float(cells[task.score_column])
    except ValueError as error:
        raise InputError(place, f"column {task.score_column + 1} is {cells[task.score_column]!r}, no score") from error
    if not 0 <= score <= task.scale:
        raise InputError(place, f"the score {score} is out of range", allowed=f"0 to {task.scale:g}")
    return cells[left], cells[right], score


def _check(path: Path, pairs: int, sha256: str, expected: DataFile) -> None:
    if pairs != expected.pairs:
        raise InputError(path, f"holds {pairs} pairs; this split has {expected.pairs}", hint="restore the whole file")
    if sha256 != expected.sha256:
        raise InputError(path, f"is another file (sha256 {sha256[:12]}…)", allowed=f"sha256 {expected.sha256[:12]}…")


def cosine_scores(encode: Encode, pairs: Pairs) -> Vector:
    """Cosine of the two embeddings of every pair, (pairs,), each distinct sentence encoded once.

    Raises RunError when an embedding is not finite.
    """
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    embeddings = np.asarray(encode(sentences), dtype=np.float64)
    if not np.isfinite(embeddings).all():
        raise RunError("evaluation", "the model gives embeddings that are not finite", hint="its training diverged")
    embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    place = {sentence: row for row, sentence in enumerate(sentences)}
    left = embeddings[[place[sentence] for sentence in pairs.first]]
    right = embeddings[[place[sentence] for sentence in pairs.second]]
    return np.einsum("ij,ij->i", left, right)


def pearson(first: Vector, second: Vector) -> float:
    """Pearson correlation, -1…1. Raises RunError when one side is constant, where it is undefined."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        raise RunError("evaluation", "a correlation with a constant is undefined", hint="do all embeddings coincide?")
    return float(np.corrcoef(first, second)[0, 1])


def average_ranks(values: Vector) -> Vector:
    """Ranks from 1, ties sharing the mean of their ranks, (n,) → (n,)."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(first: Vector, second: Vector) -> float:
    """Spearman correlation, -1…1: Pearson of the average ranks. Raises RunError when one side is constant."""
    return pearson(average_ranks(first), average_ranks(second))
