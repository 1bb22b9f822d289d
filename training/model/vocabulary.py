"""A base's vocabulary cut to the tokens of a corpus, for static encoders: fewer vectors, shorter ones, weighted ones.

A language model's vocabulary is made for many languages and for code: most of its vectors are never read in sentences
of one language, yet each training step updates all of them. What is kept are the tokens of the corpus (the most
frequent ``size``), the tokens that byte pair encoding (Sennrich et al. 2016) builds them from, and bytes or single
characters: a kept token is found as before, and every other text still has tokens.

``dimensions``: the vectors' first principal components, tokens weighted by their frequency p. ``sif``: each vector is
multiplied by a / (a + p), smooth inverse frequency (Arora et al. 2017). Both are done once, before training, as
Model2Vec does with frequencies that it estimates from ranks (Tulkens and van Dongen 2024).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from hub.contract.sections.model import Vocabulary
from hub.errors import InputError

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # what a character outside the vocabulary falls back to
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")


def cut(
    tokenizer: Tokenizer, weights: torch.Tensor, texts: Sequence[str], spec: Vocabulary, place: str
) -> tuple[Tokenizer, torch.Tensor]:
    """The tokenizer with the vocabulary that ``texts`` need, and the vectors of its tokens, in float32.

    ``weights``: a vector for each id. Raises InputError when the tokenizer is not one of byte pair encoding, or has
    fewer tokens or dimensions than are asked for.
    """
    if spec.dimensions is not None and spec.dimensions > weights.shape[1]:
        found = f"{spec.dimensions} is more than the {weights.shape[1]} dimensions of the base"
        raise InputError(f"{place}.vocabulary.dimensions", found, allowed=f"at most {weights.shape[1]}")
    smaller, ids = cut_tokenizer(tokenizer, texts, spec.size, place)
    vectors = weights.detach()[ids].float().numpy()
    counts = _counts(smaller, texts)
    frequencies = np.array([counts[number] for number in range(len(ids))]) / counts.total()
    if spec.dimensions is not None:
        vectors = principal_components(vectors, frequencies, spec.dimensions)
    if spec.sif is not None:
        vectors = vectors * (spec.sif / (spec.sif + frequencies))[:, None]
    return smaller, torch.from_numpy(vectors.astype(np.float32))


def cut_tokenizer(
    tokenizer: Tokenizer, texts: Sequence[str], size: int | None, place: str
) -> tuple[Tokenizer, list[int]]:
    """The tokenizer without the tokens that ``texts`` do not need, and the former ids of those that are left."""
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    model = definition["model"]
    if model["type"] != "BPE" or any(model.get(key) for key in _AFFIXES):
        hint = "leave base.vocabulary out: other vocabularies are small"
        raise InputError(f"{place}.vocabulary", "its tokenizer is not one of byte pair encoding", hint=hint)
    vocabulary: dict[str, int] = model["vocab"]
    names = {number: token for token, number in vocabulary.items()}
    seen = [names[number] for number, _ in _counts(tokenizer, texts).most_common() if number in names]
    if not seen:
        raise InputError(f"{place}.vocabulary", "the corpus has no token of the base", hint="give other texts")
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    needed = {part for token in seen[:size] for part in derivation(token, ranks)} | _alphabet(vocabulary, model)
    kept = sorted(needed & vocabulary.keys(), key=vocabulary.__getitem__)
    new = {token: number for number, token in enumerate(kept)}
    model["vocab"] = new
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= new.keys()]
    added = (token for token in definition["added_tokens"] if token["content"] in new)
    definition["added_tokens"] = [{**token, "id": new[token["content"]]} for token in added]
    definition["post_processor"] = None  # special tokens around a text, which a mean of embeddings leaves out
    return Tokenizer.from_str(json.dumps(definition)), [vocabulary[token] for token in kept]


def derivation(token: str, ranks: dict[tuple[str, str], int]) -> Iterable[str]:
    """The token, and all that byte pair encoding merges on the way to it: with these it is found in a text as before.

    Merges inside a token's characters go in the same order in a text as alone, because no other merge crosses them.
    """
    parts = list(token)
    found = {token, *parts}
    while len(parts) > 1:
        ranked = [(ranks.get(pair), place) for place, pair in enumerate(pairwise(parts))]
        known = [(rank, place) for rank, place in ranked if rank is not None]
        if not known:
            break
        _, place = min(known)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
        found.add(parts[place])
    return found


def principal_components(vectors: np.ndarray, frequencies: np.ndarray, dimensions: int) -> np.ndarray:
    """The vectors, less their mean, in the directions in which tokens of a text vary most."""
    centred = vectors - frequencies @ vectors
    covariance = (centred * frequencies[:, None]).T @ centred
    _, directions = np.linalg.eigh(covariance)  # ascending
    result: np.ndarray = centred @ directions[:, : -dimensions - 1 : -1]
    return result


def _alphabet(vocabulary: dict[str, int], model: dict[str, Any]) -> set[str]:
    """What any text can be written in: bytes where the tokenizer falls back to them, else all single characters."""
    if model["byte_fallback"]:
        letters = {token for token in vocabulary if _BYTE.fullmatch(token)}
    else:
        letters = {token for token in vocabulary if len(token) == 1}
    return letters | {model["unk_token"]} - {None}


def _counts(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[int]:
    """How often each id stands in the texts."""
    counts: Counter[int] = Counter()
    for first in range(0, len(texts), 1000):
        for encoding in tokenizer.encode_batch(list(texts[first : first + 1000]), add_special_tokens=False):
            counts.update(encoding.ids)
    return counts
