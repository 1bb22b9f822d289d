"""Static encoders: a base's vocabulary cut to the tokens of a corpus, and files of word vectors.

Sentences of one language never read most vectors of a language model, yet each training step
updates all of them. ``cut_vocabulary`` keeps the tokens of the corpus (the most frequent ``size``),
the tokens that byte pair encoding (Sennrich et al. 2016) builds them from, and bytes or single
characters. So a kept token is found as before, and every other text still has tokens.
``dimensions`` keeps the vectors' first principal components, tokens weighted by their frequency p.
``sif`` multiplies each vector by a / (a + p), smooth inverse frequency (Arora et al. 2017). Both
happen once, before training, as in Model2Vec (Tulkens and van Dongen 2024).

A file of word vectors has a word and its numbers in each line, as GloVe's (Pennington et al. 2014);
fastText's .vec begins with a line of two counts. A text is split at white space and around
punctuation; it is lower-cased when no word of the file has a capital. The mean leaves out words
that the file lacks; a text with no other words gives the zero vector.
"""

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sts_dino.hub.contract.recipe import Vocabulary
from sts_dino.hub.errors import InputError
from sts_dino.training.data.objectives import name_key

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # a byte token; these write characters without a token
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")  # keys of a tokenizer's model
MOST_LINE_BYTES = 1 << 20  # of a line of word vectors
TEXTS_PER_BATCH = 1_000  # tokenised together
_NUMBER_AT_END = re.compile(r" [+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
_HEADER = re.compile(r"\d+ \d+")  # fastText's first line: number of words, dimensions


def cut_vocabulary(
    tokenizer: Tokenizer, weights: torch.Tensor, texts: Sequence[str], spec: Vocabulary, where: str
) -> tuple[Tokenizer, torch.Tensor]:
    """Return a tokenizer with the vocabulary that ``texts`` need, and its vectors.

    The vectors (tokens, dimensions) are float32; row i belongs to the token with id i.

    Args:
        tokenizer: the base's tokenizer, without truncation and padding.
        weights: the base's input embeddings (ids, dimensions of the base).
        texts: the corpus.
        spec: size, dimensions and SIF of the recipe.
        where: the recipe's section that errors name.

    Raises InputError for a tokenizer that is not one of plain byte pair encoding, for a base of
    fewer dimensions than ``spec.dimensions``, and for texts without a token of the base.
    """
    base_dimensions = weights.shape[1]
    if spec.dimensions is not None and spec.dimensions > base_dimensions:
        raise InputError(
            name_key(where, "vocabulary.dimensions"),
            f"{spec.dimensions} is more than the {base_dimensions} dimensions of the base",
            allowed=f"at most {base_dimensions}",
        )

    # The tokens, their vectors and their relative frequencies in the corpus.
    small_tokenizer, old_ids = cut_tokenizer(tokenizer, texts, spec.size, where)
    vectors = weights.detach()[old_ids].float().numpy()
    counts = _count_ids(small_tokenizer, texts)
    frequencies = np.array([counts[new_id] for new_id in range(len(old_ids))]) / counts.total()

    if spec.dimensions is not None:
        vectors = compute_principal_components(vectors, frequencies, spec.dimensions)
    if spec.sif is not None:
        # a / (a + p) with the recipe's a (Arora et al. 2017)
        vectors = vectors * (spec.sif / (spec.sif + frequencies))[:, None]
    return small_tokenizer, torch.from_numpy(vectors.astype(np.float32))


def cut_tokenizer(
    tokenizer: Tokenizer, texts: Sequence[str], size: int | None, where: str
) -> tuple[Tokenizer, list[int]]:
    """Return a tokenizer with fewer tokens; also return their ids in ``tokenizer``, by new id.

    The new vocabulary has the most frequent tokens of the texts, all tokens that they are merged
    from, the unknown token, and bytes or single characters, in which any other text can be written.

    Args:
        tokenizer: a tokenizer of byte pair encoding, without prefixes and suffixes of words, and
            without truncation and padding.
        texts: the corpus.
        size: the number of most frequent tokens; None: all tokens of the texts.
        where: the recipe's section that errors name.

    Raises InputError for a tokenizer of another kind, and for texts without a token of it.
    """
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    model = definition["model"]
    if model["type"] != "BPE" or any(model.get(key) for key in _AFFIXES):
        raise InputError(
            name_key(where, "vocabulary"),
            "its tokenizer is not one of plain byte pair encoding",
            hint="leave base.vocabulary out: other vocabularies are small",
        )

    # The corpus's most frequent tokens, and all that they are merged from. Added tokens outside the
    # model's vocabulary have no merges, and are left out.
    vocabulary: dict[str, int] = model["vocab"]
    tokens = {number: token for token, number in vocabulary.items()}
    ids = [number for number, _ in _count_ids(tokenizer, texts).most_common() if number in tokens]
    if not ids:
        raise InputError(
            name_key(where, "vocabulary"),
            "the corpus has no token of the base",
            hint="give other texts",
        )
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    needed = {model["unk_token"]}
    for number in ids[:size]:
        needed |= collect_parts(tokens[number], ranks)

    # The smallest tokens, in which any text can be written: bytes where the tokenizer falls back to
    # them, else single characters.
    smallest_tokens = _BYTE if model["byte_fallback"] else re.compile(".", re.DOTALL)
    needed |= {token for token in vocabulary if smallest_tokens.fullmatch(token)}

    # The definition with these tokens alone, numbered in their old order.
    small_vocabulary = sorted(needed & vocabulary.keys(), key=vocabulary.__getitem__)
    _select_tokens(definition, small_vocabulary)
    old_ids = [vocabulary[token] for token in small_vocabulary]
    return Tokenizer.from_str(json.dumps(definition)), old_ids


def _select_tokens(definition: dict[str, Any], tokens: list[str]) -> None:
    """Restrict a tokenizer's definition, in place, to ``tokens``; their indices become their ids.

    Merges and added tokens with any other token are removed, and so is the post-processor.
    ``definition``: the content of tokenizer.json.
    """
    model = definition["model"]
    ids = {token: number for number, token in enumerate(tokens)}
    model["vocab"] = ids
    model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= ids.keys()]
    added = [token for token in definition["added_tokens"] if token["content"] in ids]
    definition["added_tokens"] = [{**token, "id": ids[token["content"]]} for token in added]
    # The post-processor adds special tokens around a text, which a mean of embeddings leaves out.
    definition["post_processor"] = None


def collect_parts(token: str, ranks: dict[tuple[str, str], int]) -> set[str]:
    """Return the token, its characters, and all parts that byte pair encoding merges it from.

    ``ranks``: (left, right) → index in the list of merges; the merge of lowest rank comes first.
    """
    parts = list(token)
    collected = {token, *parts}
    while len(parts) > 1:
        # The merges that are possible now, as (rank, position of the left part).
        merges = [
            (ranks[pair], position)
            for position, pair in enumerate(pairwise(parts))
            if pair in ranks
        ]
        if not merges:
            break

        # Apply the merge of the lowest rank, at its first position.
        _, position = min(merges)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]
        collected.add(parts[position])
    return collected


def compute_principal_components(
    vectors: np.ndarray, frequencies: np.ndarray, dimensions: int
) -> np.ndarray:
    """Return each of n vectors (n, d) by its first principal components, (n, ``dimensions``).

    The vectors are centred first. Components are in descending order of variance. ``frequencies``
    (n,): the weight of each vector in mean and covariance; the weights add up to 1.
    ``dimensions``: at most d.
    """
    centred = vectors - frequencies @ vectors
    covariance = (centred * frequencies[:, None]).T @ centred
    _, directions = np.linalg.eigh(covariance)  # columns, by ascending variance
    largest_first = directions[:, ::-1]
    components: np.ndarray = centred @ largest_first[:, :dimensions]
    return components


def _count_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> Counter[int]:
    """Count how often each token id occurs in the texts; no special token is added to a text."""
    counts: Counter[int] = Counter()
    for first in range(0, len(texts), TEXTS_PER_BATCH):
        batch = list(texts[first : first + TEXTS_PER_BATCH])
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            counts.update(encoding.ids)
    return counts


# Metaspace puts this mark before each word of a text. Every word of the vocabulary begins with the
# mark, too, so that the tokenizer finds no part of an unknown word in the vocabulary.
_WORD_MARK = "▁"


def load_word_vectors(path: Path, max_seq_length: int) -> StaticEmbedding:
    """Load a file of word vectors (.txt or .vec, also with .gz) with a tokenizer of its words.

    A text is read up to ``max_seq_length`` known words. Raises InputError for a file without word
    vectors or with a bad line, OSError for a file that cannot be opened.
    """
    vocabulary, vectors = read_vectors(path)
    tokenizer = build_word_tokenizer(vocabulary, max_seq_length)
    return StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(vectors))


def read_vectors(path: Path) -> tuple[list[str], np.ndarray]:
    """Read words and their vectors, float32 (words, dimensions), in the order of the file.

    The first line, after fastText's header if there is one, has a space for each dimension. Of a
    repeated word, the first vector counts.

    Raises InputError naming the line for more or fewer numbers than dimensions, for a text that is
    not a number, for an infinite number or NaN, and for a line that is too long or not UTF-8.
    Raises InputError naming the file for a damaged .gz file and for a file without words, OSError
    for a file that cannot be opened.
    """
    rows: dict[str, np.ndarray] = {}
    dimensions = 0
    for number, line in _iter_lines(path):
        # Split the line from its end. The first line decides how many numbers a line has.
        where = f"{path}:{number}"
        if not dimensions:
            dimensions = line.count(" ")
            if dimensions < 1:
                raise InputError(where, "has no numbers", allowed="a word and its vector a line")
        word, *numbers = line.rsplit(" ", dimensions)  # a few words of GloVe contain spaces
        # A line with too many numbers leaves some of them at the end of ``word``.
        if len(numbers) != dimensions or not word or _NUMBER_AT_END.search(word):
            raise InputError(
                where,
                f"has {line.count(' ')} numbers",
                allowed=f"a word and {dimensions} numbers, as before",
            )
        try:
            with np.errstate(over="ignore"):  # too large a number becomes infinite, see below
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
    """Yield (number from 1, text) of each line, except fastText's header.

    The text has no spaces at its end, and no byte order mark at the file's start. Only a line feed
    ends a line: a word may contain another separator. Raises InputError for a line of more than
    ``MOST_LINE_BYTES``, which limits the memory, for bytes that are not UTF-8, and for a damaged
    .gz file; OSError for a file that cannot be opened.
    """
    number = 1
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            while raw := file.readline(MOST_LINE_BYTES + 1):
                if len(raw) > MOST_LINE_BYTES:
                    raise InputError(
                        f"{path}:{number}",
                        "is too long for a word and its vector",
                        allowed=f"at most {MOST_LINE_BYTES:,} bytes a line",
                    )
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n ")
                if number > 1 or not _HEADER.fullmatch(line):
                    yield number, line
                number += 1
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}", "is not UTF-8", hint="convert the file") from error
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise InputError(path, f"cannot be unpacked: {error}", hint="fetch it again") from error


def build_word_tokenizer(vocabulary: list[str], max_seq_length: int) -> Tokenizer:
    """Build a tokenizer whose ids are indices of ``vocabulary``; it leaves out other words.

    It splits a text at white space and around punctuation, lower-cases it unless a word of the
    vocabulary has a capital, and reads up to ``max_seq_length`` known words.
    """
    ids = {_WORD_MARK + word: index for index, word in enumerate(vocabulary)}
    # BPE without merges, because WordLevel needs a token for unknown words.
    tokenizer = Tokenizer(models.BPE(ids, [], ignore_merges=True))
    if not any(character.isupper() for character in "".join(vocabulary)):
        tokenizer.normalizer = normalizers.Lowercase()
    marked = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), marked])
    tokenizer.enable_truncation(max_seq_length)
    return tokenizer
