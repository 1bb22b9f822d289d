"""Filters of generated texts: copies of the prompt, texts in another language, duplicates ... Pure.

The reasons are in ``hub.contract.schema``. identical is of DINO section 4, duplicate and over_cap
(``postprocess.max_per_label``) of the original code; the others are ours, and a recipe chooses among them
(``postprocess.reject``, ``postprocess.near_copy``, a label's ``overlap``, ``verification``).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from generation.inputs.examples import ExampleSet
from generation.inputs.sources import has_control_characters
from generation.rows import verification
from hub.contract.recipe import X1, DatasetRecipe, Label, Variant
from hub.contract.schema import (
    CONTROL_CHARACTERS,
    DUPLICATE,
    EXAMPLE_COPY,
    IDENTICAL,
    NEAR_COPY,
    OVER_CAP,
    OVERLAP,
    PROMPT_ECHO,
    PROMPT_WORDS,
    WRONG_LANGUAGE,
)
from hub.word_overlap import Words, word_overlap, words

Row = dict[str, Any]
RUN = 4  # so many of an instruction's words in a row are a copy: "a bad movie" is none, "mean the same thing" is one
_ENDS_A_PIECE = re.compile(r'[\n".:;!?。：；！？]')


class TextFilters:
    """Reject completions that are unusable, copy their prompt, or are too near to or far from x1."""

    def __init__(self, recipe: DatasetRecipe, sets: Mapping[int, Sequence[ExampleSet]]):
        self._near_copy, self._language = recipe.postprocess.near_copy, recipe.language
        self._chosen, self._sets = frozenset(recipe.postprocess.reject), sets
        self._scaffold = InstructionText(label.instruction for label in recipe.labels)
        self._shown = cache(self._examples)

    def reason(
        self, text: str, text1: str = "", label: Label | None = None, variant: Variant | None = None
    ) -> str | None:
        """The rejection reason of a generated text, or None.

        ``text1``, ``label`` and ``variant`` are of its prompt; a source sentence that the model writes has none of
        them. Words that text1 has, too, do not echo the instruction. ``filtered`` handles a text equal to text1.
        """
        if EXAMPLE_COPY in self._chosen and label and variant and words(text) in self._shown(label.name, variant):
            return EXAMPLE_COPY
        if CONTROL_CHARACTERS in self._chosen and has_control_characters(text):
            return CONTROL_CHARACTERS
        if PROMPT_WORDS in self._chosen and self._scaffold.holds(text):
            return PROMPT_WORDS
        echo = PROMPT_ECHO in self._chosen and self._scaffold.holds(text)
        if echo and not {*words(text)} <= {*words(text1)}:
            return PROMPT_ECHO
        if WRONG_LANGUAGE in self._chosen and is_foreign(text, self._language):
            return WRONG_LANGUAGE
        if label is None or text == text1 or (self._near_copy is None and label.overlap is None):
            return None
        shared, (least, most) = word_overlap(text1, text), label.overlap or (0.0, 1.0)
        if self._near_copy is not None and shared >= self._near_copy:
            return NEAR_COPY
        return None if least <= shared <= most else OVERLAP

    def _examples(self, label: str, variant: Variant) -> frozenset[Words]:
        if not variant.shots:
            return frozenset()
        examples = self._sets[variant.shots][variant.example_set][label]
        shown = (words(text) for example in examples for text in (example.premise, example.hypothesis))
        return frozenset(found for found in shown if found)


class InstructionText:
    """The words of the instructions without a source sentence."""

    def __init__(self, instructions: Iterable[str]):
        parts = [part for instruction in instructions for part in instruction.split(X1)]
        pieces = {_unnumbered(piece) for part in parts for piece in _ENDS_A_PIECE.split(part)}
        self._pieces = pieces - {()}
        self._parts = [_joined(_unnumbered(part)) for part in parts]

    def holds(self, text: str) -> bool:
        """Whether a text is nothing but whole pieces of the instructions, or ``RUN`` and more of their words in a row.

        Case, punctuation and the value of numbers do not matter: ``Sentence 3:`` is a copy of ``Sentence 2:``.
        """
        found = _unnumbered(text)
        if len(found) >= RUN and any(_joined(found) in part for part in self._parts):
            return True
        ends = {0}
        for start in range(len(found)):
            if start in ends:
                ends |= {start + len(piece) for piece in self._pieces if found[start : start + len(piece)] == piece}
        return bool(found) and len(found) in ends


def _unnumbered(text: str) -> Words:
    return tuple(re.sub(r"\d+", "0", word) for word in words(text))


def _joined(found: Words) -> str:
    return f" {' '.join(found)} "


def filtered(raw: Sequence[Row], recipe: DatasetRecipe) -> tuple[list[Row], list[Row]]:
    """Split the raw rows of a shard, in order, into kept rows and rejected ones with their ``reason``.

    A row is rejected as identical, by verification, as duplicate or as over_cap. It stays in the config ``raw``.
    """
    kept, dropped = list[Row](), list[Row]()
    seen, per_label = set[tuple[str, str, str]](), Counter[tuple[str, str]]()
    for row, refused in zip_longest(raw, verification.refused(raw, recipe)):
        key = (row["text1"], row["text2"], row["target"])
        reason = IDENTICAL if row["text1"] == row["text2"] else refused
        if reason is None and key in seen:
            reason = DUPLICATE
        if reason is None and per_label[key[0], key[2]] >= recipe.postprocess.max_per_label:
            reason = OVER_CAP
        if reason is not None:
            dropped.append({**row, "reason": reason})
            continue
        seen.add(key)
        per_label[key[0], key[2]] += 1
        kept.append(row)
    return kept, dropped


MARGIN = 15.0  # nats between the likeliest other language and the text's own
OF_OTHER_WORDS = 7.5  # and so many of them without the capitalised words
ALIKE = (  # written so alike that a sentence is often of both
    frozenset({"ar", "ary", "arz"}),
    frozenset({"bs", "hr", "sr"}),
    frozenset({"da", "nn", "no"}),
    frozenset({"en", "pcm"}),
    frozenset({"id", "ms"}),
    frozenset({"wuu", "yue", "zh"}),
)
_NO_LANGUAGE = "zxx"  # the classifier's class of numbers and code


def is_foreign(text: str, language: str) -> bool:
    """Whether a text is in another language than ``language``, one of ``hub.contract.recipe.RECOGNISED``."""
    without_names = (word for word in text.split() if not next(filter(str.isalpha, word), "").isupper())
    return _margin(text, language) >= MARGIN and _margin(" ".join(without_names), language) >= OF_OTHER_WORDS


def _margin(text: str, language: str) -> float:
    """Nats by which another language is likelier than ``language`` or one alike; negative where none is."""
    import py3langid  # loads its model, half a second: not before a recipe asks for it

    scores: Mapping[str, float] = dict(py3langid.rank(text))
    own = next((group for group in ALIKE if language in group), {language})
    others = scores.keys() - own - {_NO_LANGUAGE}
    return max(scores[one] for one in others) - max(scores[one] for one in own)
