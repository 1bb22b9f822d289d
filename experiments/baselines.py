"""Encoders without training, for ``sts-dino score --model
python:sts_dino.experiments.baselines:NAME``.
"""

import hashlib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

VECTOR_SIZE = 300  # as GloVe's
WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def random_words(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the mean of each text's random word vectors, float32, (texts, 300).

    ``texts`` has at least one text. Words are lower-cased; a punctuation mark is a word. Texts
    without words share one vector.
    """
    means = []
    for text in texts:
        words = WORD_PATTERN.findall(text.lower()) or [""]
        means.append(np.mean([_make_word_vector(word) for word in words], axis=0))
    return np.stack(means)


def _make_word_vector(word: str) -> NDArray[np.float32]:
    """Return standard normal numbers seeded by the word's hash, (300,), equal on every machine."""
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(VECTOR_SIZE).astype(np.float32)
