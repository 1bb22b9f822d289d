"""Static encoders: a base's vocabulary cut to the tokens of a corpus, and files of word vectors.

Sentences of one language never read most vectors of a language model, yet each training step updates all of them.
``cut`` keeps the tokens of the corpus (the most frequent ``size``), the tokens that byte pair encoding (Sennrich et al.
2016) builds them from, and bytes or single characters. So a kept token is found as before, and every other text still
has tokens. ``dimensions`` keeps the vectors' first principal components, tokens weighted by their frequency p. ``sif``
multiplies each vector by a / (a + p), smooth inverse frequency (Arora et al. 2017). Both happen once, before training,
as in Model2Vec (Tulkens and van Dongen 2024).

GloVe (Pennington et al. 2014) writes a word and its numbers a line; fastText's .vec begins with a line of two counts.
A text is split at white space and around punctuation; it is lower-cased when no word of the file has a capital. The
mean leaves out words that the file lacks; a text of such words alone gives the zero vector.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from hub.contract.recipe import Vocabulary
from hub.errors import InputError

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # what a character outside the vocabulary falls back to
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
MOST_BYTES = 1 << 20  # of a line of word vectors
_NUMBER_AT_END = re.compile(r" [+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)


def cut(
    tokenizer: Tokenizer, weights: torch.Tensor, texts: Sequence[str], spec: Vocabulary, place: str
) -> tuple[Tokenizer, torch.Tensor]:
    """The tokenizer with the vocabulary that ``texts`` need, and the vectors of its tokens, in float32.

    ``weights``: (ids, dimensions). Raises InputError for a tokenizer without byte pair encoding or too few dimensions.
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
    needed = {part for token in seen[:size] for part in derivation(token, ranks)}
    # any text can be written in bytes where the tokenizer falls back to them, else in single characters
    letters = _BYTE.fullmatch if model["byte_fallback"] else re.compile(".", re.DOTALL).fullmatch
    needed |= {token for token in vocabulary if letters(token)} | {model["unk_token"]}
    kept = sorted(needed & vocabulary.keys(), key=vocabulary.__getitem__)
    new = {token: number for number, token in enumerate(kept)}
    model["vocab"] = new
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= new.keys()]
    added = (token for token in definition["added_tokens"] if token["content"] in new)
    definition["added_tokens"] = [{**token, "id": new[token["content"]]} for token in added]
    definition["post_processor"] = None  # special tokens around a text, which a mean of embeddings leaves out
    return Tokenizer.from_str(json.dumps(definition)), [vocabulary[token] for token in kept]


def derivation(token: str, ranks: dict[tuple[str, str], int]) -> Iterable[str]:
    """The token, and all that byte pair encoding merges on the way to it: so a text has it as before."""
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


def _counts(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[int]:
    """How often each id stands in the texts."""
    counts: Counter[int] = Counter()
    for first in range(0, len(texts), 1000):
        for encoding in tokenizer.encode_batch(list(texts[first : first + 1000]), add_special_tokens=False):
            counts.update(encoding.ids)
    return counts


_MARK = "▁"  # before every word: no single character is in the vocabulary, so the parts of an unknown word are not


def load_word_vectors(path: Path, max_seq_length: int) -> StaticEmbedding:
    """The vectors of a .txt or .vec file, or either as .gz, under a tokenizer that knows exactly their words.

    A text counts up to ``max_seq_length`` known words. Raises InputError naming the line that cannot be read.
    """
    words, vectors = read_vectors(path)
    return StaticEmbedding(word_tokenizer(words, max_seq_length), embedding_weights=torch.from_numpy(vectors))


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """The words of a file and their vectors, float32 (words, dimensions); of a word that stands twice, the first."""
    rows: dict[str, np.ndarray] = {}
    dimensions = 0
    for number, line in _lines(path):
        place = f"{path}:{number}"
        if not dimensions:
            dimensions = line.count(" ")
            if dimensions < 1:
                raise InputError(place, "has no numbers", allowed="a word and its vector a line")
        word, *numbers = line.rsplit(" ", dimensions)  # a few words of GloVe contain spaces
        if len(numbers) != dimensions or not word or _NUMBER_AT_END.search(word):
            found = line.count(" ")
            raise InputError(place, f"has {found} numbers", allowed=f"a word and {dimensions} numbers, as before")
        try:
            with np.errstate(over="ignore"):  # infinite then, which is refused
                vector = np.array(numbers, dtype=np.float32)
        except ValueError as error:
            raise InputError(place, str(error), allowed="a word and numbers, with single spaces between") from error
        if not np.isfinite(vector).all():
            raise InputError(place, "a number is not finite", hint="remove the line")
        rows.setdefault(word, vector)
    if not rows:
        raise InputError(path, "holds no word vectors")
    return list(rows), np.stack(list(rows.values()))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines without their ends and without fastText's header; only a line feed ends a line."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), 1):
                if len(raw) > MOST_BYTES:
                    problem, allowed = "is too long for a word and its vector", f"at most {MOST_BYTES:,} bytes a line"
                    raise InputError(f"{path}:{number}", problem, allowed=allowed)
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n ")
                header = number == 1 and len(fields := line.split(" ")) == 2 and all(map(str.isdecimal, fields))
                if not header:
                    yield number, line
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}", "is not UTF-8", hint="convert the file") from error
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(path, f"cannot be unpacked: {error}", hint="fetch it again") from error


def word_tokenizer(words: list[str], max_seq_length: int) -> Tokenizer:
    """A tokenizer whose ids are the positions in ``words``; it leaves out every other word."""
    vocabulary = {_MARK + word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], ignore_merges=True))  # WordLevel needs a token for the unknown
    if not any(character.isupper() for word in words for character in word):
        tokenizer.normalizer = normalizers.Lowercase()
    marked = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), marked])
    tokenizer.enable_truncation(max_seq_length)
    return tokenizer
