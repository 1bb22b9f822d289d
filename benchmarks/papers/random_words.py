"""A baseline encoder that knows nothing of any word: each has a random vector of its own, a text their mean."""

import hashlib
import re
from collections.abc import Sequence

import numpy as np

SIZE = 300  # as GloVe's
WORD = re.compile(r"\w+|[^\w\s]")


def encode(texts: Sequence[str]) -> np.ndarray:
    """The embeddings of texts, float32 of shape [texts, 300]; texts without words share one vector."""
    return np.stack([np.mean([_vector(word) for word in WORD.findall(text.lower()) or [""]], axis=0) for text in texts])


def _vector(word: str) -> np.ndarray:
    """Standard normal numbers, drawn by the word's hash: the same on every machine."""
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
