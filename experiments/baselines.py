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
    """The mean of random word vectors, float32 of shape [texts, 300]; texts without words share one
    vector.
    """
    return np.stack(
        [
            np.mean([_vector(word) for word in WORD_PATTERN.findall(text.lower()) or [""]], axis=0)
            for text in texts
        ]
    )


def _vector(word: str) -> NDArray[np.float32]:
    """Standard normal numbers seeded by the word's hash: the same on every machine."""
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(VECTOR_SIZE).astype(np.float32)
