"""Static encoders: a base's vocabulary cut to the tokens of a corpus, and files of word vectors.

Sentences of one language never read most vectors of a language model, yet each training step
updates all of them. ``cut_vocabulary`` keeps the tokens of the corpus (the most frequent ``size``),
the tokens that byte pair encoding (Sennrich et al. 2016) builds them from, and bytes or single
characters. So a kept token is found as before, and every other text still has tokens.
``dimensions`` keeps the vectors' first principal components, tokens weighted by their frequency p.
``sif`` multiplies each vector by a / (a + p), smooth inverse frequency (Arora et al. 2017). Both
happen once, before training, as in Model2Vec (Tulkens and van Dongen 2024).

GloVe (Pennington et al. 2014) writes a word and its numbers a line; fastText's .vec begins with a
line of two counts. A text is split at white space and around punctuation; it is lower-cased when no
word of the file has a capital. The mean leaves out words that the file lacks; a text of such words
alone gives the zero vector.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sts_dino.hub.contract.recipe import Vocabulary
from sts_dino.hub.errors import InputError

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # what a character outside the vocabulary falls back to
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
MOST_BYTES = 1 << 20  # of a line of word vectors
_NUMBER_AT_END = re.compile(r" [+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
_HEADER = re.compile(r"\d+ \d+")  # fastText's: words and dimensions


def cut_vocabulary(
    tokenizer: Tokenizer, weights: torch.Tensor, texts: Sequence[str], spec: Vocabulary, where: str
) -> tuple[Tokenizer, torch.Tensor]:
    """Return the tokenizer with the vocabulary that ``texts`` need, and its vectors, in float32.

    Args:
        tokenizer: the base's.
        weights: (ids, dimensions), its input embeddings.
        texts: the corpus.
        spec: size, dimensions and SIF of the recipe.
        where: what errors name.

    Raises InputError for a tokenizer without byte pair encoding or too few dimensions.
    """
    most = weights.shape[1]
    if spec.dimensions is not None and spec.dimensions > most:
        raise InputError(
            f"{where}.vocabulary.dimensions",
            f"{spec.dimensions} is more than the {most} dimensions of the base",
            allowed=f"at most {most}",
        )
    smaller, ids = cut_tokenizer(tokenizer, texts, spec.size, where)
    vectors = weights.detach()[ids].float().numpy()
    counts = _count_ids(smaller, texts)
    frequencies = np.array([counts[number] for number in range(len(ids))]) / counts.total()
    if spec.dimensions is not None:
        vectors = compute_principal_components(vectors, frequencies, spec.dimensions)
    if spec.sif is not None:
        vectors = vectors * (spec.sif / (spec.sif + frequencies))[:, None]
    return smaller, torch.from_numpy(vectors.astype(np.float32))


def cut_tokenizer(
    tokenizer: Tokenizer, texts: Sequence[str], size: int | None, where: str
) -> tuple[Tokenizer, list[int]]:
    """Return the tokenizer with fewer tokens, and the ids of these tokens in ``tokenizer``.

    It keeps the most frequent tokens of the texts, all tokens that they are merged from, the
    unknown token, and the tokens in which any other text can be written.

    Args:
        tokenizer: a tokenizer of byte pair encoding, without prefixes and suffixes of words.
        texts: the corpus.
        size: the number of most frequent tokens; None: all tokens of the texts.
        where: the recipe's section that errors name.

    Raises InputError for another tokenizer, and for texts without a token of it.
    """
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    model = definition["model"]
    if model["type"] != "BPE" or any(model.get(key) for key in _AFFIXES):
        raise InputError(
            f"{where}.vocabulary",
            "its tokenizer is not one of plain byte pair encoding",
            hint="leave base.vocabulary out: other vocabularies are small",
        )

    # The corpus's most frequent tokens, and all that they are merged from.
    vocabulary: dict[str, int] = model["vocab"]
    tokens = {number: token for token, number in vocabulary.items()}
    ids = [number for number, _ in _count_ids(tokenizer, texts).most_common() if number in tokens]
    if not ids:
        raise InputError(
            f"{where}.vocabulary", "the corpus has no token of the base", hint="give other texts"
        )
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    needed = {model["unk_token"]}
    for number in ids[:size]:
        needed |= collect_parts(tokens[number], ranks)

    # Any text can be written in bytes where the tokenizer falls back to them, else in single
    # characters.
    smallest_tokens = _BYTE if model["byte_fallback"] else re.compile(".", re.DOTALL)
    needed |= {token for token in vocabulary if smallest_tokens.fullmatch(token)}

    # The definition with these tokens alone, numbered in their old order.
    tokens_left = sorted(needed & vocabulary.keys(), key=vocabulary.__getitem__)
    _keep_tokens(definition, tokens_left)
    old_ids = [vocabulary[token] for token in tokens_left]
    return Tokenizer.from_str(json.dumps(definition)), old_ids


def _keep_tokens(definition: dict[str, Any], tokens: list[str]) -> None:
    """Remove all other tokens from a tokenizer's definition, in place; number these anew."""
    model = definition["model"]
    ids = {token: number for number, token in enumerate(tokens)}
    model["vocab"] = ids
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= ids.keys()]
    added = [token for token in definition["added_tokens"] if token["content"] in ids]
    definition["added_tokens"] = [{**token, "id": ids[token["content"]]} for token in added]
    # special tokens around a text, which a mean of embeddings leaves out
    definition["post_processor"] = None


def collect_parts(token: str, ranks: dict[tuple[str, str], int]) -> set[str]:
    """Return the token and all that byte pair encoding merges on the way to it."""
    parts = list(token)
    collected = {token, *parts}
    while len(parts) > 1:
        merges = [
            (ranks[pair], position)
            for position, pair in enumerate(pairwise(parts))
            if pair in ranks
        ]
        if not merges:
            break
        _, position = min(merges)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]
        collected.add(parts[position])
    return collected


def compute_principal_components(
    vectors: np.ndarray, frequencies: np.ndarray, dimensions: int
) -> np.ndarray:
    """Return the vectors, less their mean, in the directions in which a text's tokens vary most."""
    centred = vectors - frequencies @ vectors
    covariance = (centred * frequencies[:, None]).T @ centred
    _, directions = np.linalg.eigh(covariance)  # ascending
    result: np.ndarray = centred @ directions[:, : -dimensions - 1 : -1]
    return result


def _count_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[int]:
    """Count how often each id stands in the texts."""
    counts: Counter[int] = Counter()
    for first in range(0, len(texts), 1000):
        batch = list(texts[first : first + 1000])
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            counts.update(encoding.ids)
    return counts


# before every word: no single character is in the vocabulary, so the parts of an unknown word are
# not
_MARK = "▁"


def load_word_vectors(path: Path, max_seq_length: int) -> StaticEmbedding:
    """Load the vectors of a .txt or .vec file, or either as .gz, under a tokenizer of its words.

    A text counts up to ``max_seq_length`` known words. Raises InputError naming the line that
    cannot be read.
    """
    vocabulary, vectors = read_vectors(path)
    tokenizer = build_word_tokenizer(vocabulary, max_seq_length)
    return StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(vectors))


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """Read words and vectors, float32 (words, dimensions); of a repeated word the first."""
    rows: dict[str, np.ndarray] = {}
    dimensions = 0
    for number, line in _iter_lines(path):
        where = f"{path}:{number}"
        if not dimensions:
            dimensions = line.count(" ")
            if dimensions < 1:
                raise InputError(where, "has no numbers", allowed="a word and its vector a line")
        word, *numbers = line.rsplit(" ", dimensions)  # a few words of GloVe contain spaces
        if len(numbers) != dimensions or not word or _NUMBER_AT_END.search(word):
            raise InputError(
                where,
                f"has {line.count(' ')} numbers",
                allowed=f"a word and {dimensions} numbers, as before",
            )
        try:
            with np.errstate(over="ignore"):  # infinite then, which is refused
                vector = np.array(numbers, dtype=np.float32)
        except ValueError as error:
            raise InputError(
                where, str(error), allowed="a word and numbers, with single spaces between"
            ) from error
        if not np.isfinite(vector).all():
            raise InputError(where, "a number is not finite", hint="remove the line")
        rows.setdefault(word, vector)
    if not rows:
        raise InputError(path, "holds no word vectors")
    return list(rows), np.stack(list(rows.values()))


def _iter_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines without ends and fastText's header; only a line feed ends one."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, raw in enumerate(iter(partial(file.readline, MOST_BYTES + 1), b""), 1):
                if len(raw) > MOST_BYTES:
                    raise InputError(
                        f"{path}:{number}",
                        "is too long for a word and its vector",
                        allowed=f"at most {MOST_BYTES:,} bytes a line",
                    )
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n ")
                if number > 1 or not _HEADER.fullmatch(line):
                    yield number, line
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}", "is not UTF-8", hint="convert the file") from error
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(path, f"cannot be unpacked: {error}", hint="fetch it again") from error


def build_word_tokenizer(vocabulary: list[str], max_seq_length: int) -> Tokenizer:
    """Build a tokenizer whose ids are positions in ``vocabulary``; it drops other words."""
    ids = {_MARK + word: index for index, word in enumerate(vocabulary)}
    # WordLevel needs a token for the unknown
    tokenizer = Tokenizer(models.BPE(ids, [], ignore_merges=True))
    if not any(character.isupper() for character in "".join(vocabulary)):
        tokenizer.normalizer = normalizers.Lowercase()
    marked = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), marked])
    tokenizer.enable_truncation(max_seq_length)
    return tokenizer
