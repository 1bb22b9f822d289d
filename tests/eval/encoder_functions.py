"""Functions that a user might give as ``python:encoder_functions:NAME``: good ones and bad ones."""

import hashlib
from functools import partial

import numpy as np
import torch

DIMENSION = 8


def letters(texts, dimension=DIMENSION):
    """A vector that the text alone decides."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=dimension) for seed in seeds])


def pinned(texts):
    return letters(texts).astype(np.float32)


pinned.revision = "v1"
wider = partial(letters, dimension=DIMENSION + 1)
wider.revision = "v1"


def as_tensor(texts):
    return torch.tensor(letters(texts), dtype=torch.bfloat16, requires_grad=True)


def one_short(texts):
    return letters(texts)[:-1] if len(texts) > 1 else letters(texts)


def changing(texts):
    return letters(texts, dimension=len(texts))


def not_a_number(texts):
    found = letters(texts)
    found[[text.startswith("bad") for text in texts], 2] = np.nan
    return found


def zero(texts):
    return np.where([[text == ""] for text in texts], 0.0, letters(texts))


for function in (one_short, changing, not_a_number, zero):
    function.revision = "v1"
