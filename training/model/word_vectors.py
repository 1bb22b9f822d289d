"""Mean of word vectors: a text file of vectors (GloVe's or fastText's form) as a stock StaticEmbedding.

GloVe (Pennington et al. 2014) writes a word and its numbers a line; fastText's .vec begins with a line of two counts.
A text is split at white space and around every punctuation mark; it is lower-cased when no word of the file has a
capital. Words that the file does not have are left out of the mean; a text of such words alone gives the zero vector,
whose cosine with every other vector is 0.
"""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from hub.errors import InputError

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
        if len(numbers) != dimensions or not word or (" " in word and _is_number(word.rsplit(" ", 1)[1])):
            found = line.count(" ")
            raise InputError(place, f"has {found} numbers", allowed=f"a word and {dimensions} numbers, as before")
        if word not in rows:
            rows[word] = _vector(numbers, place)
    if not rows:
        raise InputError(path, "holds no word vectors")
    return list(rows), np.stack(list(rows.values()))


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _vector(numbers: list[str], place: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):  # infinite then, which is refused
            vector = np.array(numbers, dtype=np.float32)
    except ValueError as error:
        raise InputError(place, str(error), allowed="a word and numbers, with single spaces between") from error
    if not np.isfinite(vector).all():
        raise InputError(place, "a number is not finite", hint="remove the line")
    return vector


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines without their ends and without fastText's header; only a line feed ends a line."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, raw in enumerate(file, 1):
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n ")
                header = number == 1 and len(fields := line.split(" ")) == 2 and all(map(str.isdecimal, fields))
                if not header:
                    yield number, line
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{number}", "is not UTF-8", hint="convert the file") from error
        except (gzip.BadGzipFile, EOFError) as error:
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
