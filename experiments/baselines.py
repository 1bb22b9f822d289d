"""Encoders without training, for ``sts-dino score --model python:experiments.baselines:NAME``."""

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 300  # as GloVe's
WORD = re.compile(r"\w+|[^\w\s]")


def random_words(texts: Sequence[str]) -> NDArray[np.float32]:
    """The mean of random word vectors, float32 of shape [texts, 300]; texts without words share one vector."""
    return np.stack([np.mean([_vector(word) for word in WORD.findall(text.lower()) or [""]], axis=0) for text in texts])


def _vector(word: str) -> NDArray[np.float32]:
    """Standard normal numbers seeded by the word's hash: the same on every machine."""
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)


def minilm(texts: Sequence[str]) -> Any:
    """all-MiniLM-L6-v2's embeddings, [texts, 384]. Raises InputError where it is not on this machine."""
    return _minilm().embed(list(texts))


@cache
def _minilm() -> Any:
    from eval.encoders.load import load_encoder
    from eval.encoders.load import minilm as place

    return load_encoder(str(place()))
