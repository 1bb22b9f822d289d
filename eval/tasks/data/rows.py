"""Finished rows: the forms of ``eval.tasks.data.example_types``, built with the hash of their rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from eval.tasks.data.example_types import Captions, LabelledPairs, LabelledTexts, Rows, ScoredPairs
from eval.tasks.data.pins import rows_sha256
from hub.errors import InputError

Subset = tuple[str, int, int]
Example = TypeVar("Example", bound=Rows)


def tokens(text: str) -> str:
    """SentEval's text form: the tokens joined by single spaces."""
    return " ".join(text.split())


def number(place: str, text: str, low: float, high: float) -> float:
    """A score. Raises InputError when it is none, or not within low … high."""
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(place, f"{text!r} is no score", hint="restore the file") from error
    if not low <= value <= high:
        raise InputError(place, f"the score {text} is out of range", allowed=f"{low:g} to {high:g}")
    return value


def index(place: str, label: str, classes: Sequence[str]) -> int:
    """The class's number. Raises InputError for an unknown class."""
    if label not in classes:
        raise InputError(place, f"unknown class {label!r}", allowed=", ".join(classes), hint="restore the file")
    return classes.index(label)


def scored_pairs(rows: Sequence[tuple[str, str, float]], subsets: Sequence[Subset] = ()) -> ScoredPairs:
    """Pairs from (first, second, score)."""
    gold = np.array([score for _, _, score in rows], dtype=np.float64)
    first, second = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return _hashed(ScoredPairs(first, second, gold, sha256="", subsets=tuple(subsets)))


def labelled_texts(rows: Sequence[tuple[str, int]], classes: Sequence[str]) -> LabelledTexts:
    """Texts from (text, class number)."""
    labels = np.array([label for _, label in rows], dtype=np.int64)
    return _hashed(LabelledTexts(tuple(text for text, _ in rows), labels, tuple(classes), sha256=""))


def labelled_pairs(rows: Sequence[tuple[str, str, int]], classes: Sequence[str]) -> LabelledPairs:
    """Pairs from (first, second, class number)."""
    labels = np.array([label for _, _, label in rows], dtype=np.int64)
    first, second = tuple(row[0] for row in rows), tuple(row[1] for row in rows)
    return _hashed(LabelledPairs(first, second, labels, tuple(classes), sha256=""))


def captions(features: NDArray[np.float32], rows: Sequence[tuple[str, int]]) -> Captions:
    """Captions from (text, image) and the images' features (images, dimension)."""
    image_of = np.array([image for _, image in rows], dtype=np.int64)
    return _hashed(Captions(tuple(text for text, _ in rows), features, image_of, sha256=""))


def _hashed(rows: Example) -> Example:
    return replace(rows, sha256=rows_sha256(rows))
