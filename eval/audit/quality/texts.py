"""What single texts and whole rows say of a dataset: lengths, distinct-n, repeats.

Texts are not kept. Of each text two 8-byte hashes are (exact and normal form), of each row two, and the n-grams of at
most ``DISTINCT_ROWS`` rows.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import AutoTokenizer

from eval.audit.quality.measures import Column, Distinct, Repeats, share
from eval.audit.rows import Batch
from eval.audit.text_forms import normal_form
from hub.model_folder import NO_CODE, reading_model

SHORT = 3  # tokens
NEEDED = (4, 32)  # tokens: the premises Auto-NLI used (section 4.1, appendix A), both ends included
DISTINCT_ROWS = 10_000  # distinct-n falls as texts are added: sets of unlike size are compared on as many texts
Lengths = Callable[[Sequence[str]], list[int]]


def whitespace_lengths(texts: Sequence[str]) -> list[int]:
    """Tokens between blanks."""
    return [len(text.split()) for text in texts]


def tokenizer_lengths(place: str) -> Lengths:
    """What the tokenizer of a model counts, without its special tokens. Raises InputError when it cannot be loaded."""
    with reading_model(place, "has no tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(place, **NO_CODE)

    def lengths(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    return lengths


class Texts:
    """Counts over the texts of one column, batch by batch."""

    def __init__(self, name: str, lengths: Lengths):
        self._name, self._of = name, lengths
        self._lengths = Counter[int]()
        self._empty, self._sampled = 0, 0
        self._exact, self._normal = array("Q"), array("Q")
        self._grams = {n: Counter[tuple[str, ...]]() for n in (1, 2, 3)}

    def add(self, texts: list[str], sampled: NDArray[np.int64]) -> None:
        """Count ``texts``; ``sampled`` are the places of those whose n-grams are counted."""
        self._lengths.update(self._of(texts))
        self._empty += sum(not text.strip() for text in texts)
        self._exact.extend(_hashed(text) for text in texts)
        self._normal.extend(_hashed(normal_form(text)) for text in texts)
        self._sampled += len(sampled)
        for place in sampled:
            tokens = texts[place].lower().split()
            for n, grams in self._grams.items():
                grams.update(zip(*(tokens[start:] for start in range(n)), strict=False))

    def column(self) -> Column:
        """What was counted. ``different`` texts are told apart by 64-bit hashes."""
        total = self._lengths.total()
        inside = sum(count for length, count in self._lengths.items() if NEEDED[0] <= length <= NEEDED[1])
        return Column(
            name=self._name,
            texts=total,
            empty=self._empty,
            short=sum(count for length, count in self._lengths.items() if length < SHORT),
            between_4_and_32=share(inside, total),
            mean_length=sum(length * count for length, count in self._lengths.items()) / max(total, 1),
            lengths=dict(sorted(self._lengths.items())),
            different=_different(self._exact),
            different_normal=_different(self._normal),
            distinct=tuple(self._distinct(n) for n in self._grams),
        )

    def _distinct(self, n: int) -> Distinct:
        different, total = len(self._grams[n]), self._grams[n].total()
        ratio = different / max(total, 1)
        return Distinct(n=n, different=different, total=total, ratio=ratio, texts=self._sampled)


class Rowwise:
    """Rows that repeat an earlier one, and pairs whose sides are the same, batch by batch."""

    def __init__(self) -> None:
        self._exact, self._normal = array("Q"), array("Q")
        self._same, self._same_normal = 0, 0

    def add(self, batch: Batch) -> None:
        """Count a batch's rows."""
        columns = list(batch.texts.values())
        labels = batch.labels or [""] * len(batch)
        for label, *texts in zip(labels, *columns, strict=True):
            normal = [normal_form(text) for text in texts]
            self._exact.append(_hashed("\0".join((label, *texts))))
            self._normal.append(_hashed("\0".join((label, *normal))))
            self._same += len(texts) > 1 and texts[0] == texts[1]
            self._same_normal += len(texts) > 1 and normal[0] == normal[1]

    def repeats(self) -> Repeats:
        """What was counted; the same sides include the exactly same ones."""
        rows = len(self._exact)
        return Repeats(
            rows=rows,
            exact=rows - _different(self._exact),
            normal=rows - _different(self._normal),
            same_sides=self._same,
            same_sides_normal=self._same_normal,
        )


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _different(hashes: "array[int]") -> int:
    return len(np.unique(np.frombuffer(hashes, dtype=np.uint64))) if hashes else 0
