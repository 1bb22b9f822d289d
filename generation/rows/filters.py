"""Filters of generated texts: copies of the prompt, texts in another language, duplicates ...

The reasons are in ``sts_dino.hub.contract.schema``. identical comes from DINO section 4, duplicate
and over_cap (``postprocess.max_per_label``) from the original code. The others are ours, and a
recipe chooses among them (``postprocess.reject``, ``postprocess.near_copy``, a label's ``overlap``,
``verification``, ``selection``). Every function here is pure.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from sts_dino.generation.inputs.examples import ExampleSet
from sts_dino.generation.inputs.sources import has_control_characters
from sts_dino.generation.rows.selection import Row, find_rejections, reject_unselected
from sts_dino.hub.contract.recipe import X1, DatasetRecipe, Label, Variant
from sts_dino.hub.contract.schema import (
    CONTROL_CHARACTERS,
    DUPLICATE,
    EXAMPLE_COPY,
    EXAMPLE_LEAK,
    IDENTICAL,
    NEAR_COPY,
    OVER_CAP,
    OVERLAP,
    PROMPT_ECHO,
    PROMPT_WORDS,
    WRONG_LANGUAGE,
)
from sts_dino.hub.word_overlap import Words, compute_word_overlap, split_words

# so many consecutive words of an instruction are a copy: "mean the same thing" is one, "a bad
# movie" is not
COPIED_WORDS = 4
# an example leaks into a text that repeats so many of its long words, or, in a script without
# spaces, so many consecutive characters
LEAKED_WORDS = 3
LONG_WORD_LETTERS = 5
LEAKED_CHARACTERS = 8
_NAME = re.compile(r"(?<=[\w,;] )[A-ZÀ-ÖØ-Þ][^\W\d_]{2,}")  # within a sentence
_WORD = re.compile(r"[^\W\d_]+")
_LANGUAGES_WITH_CAPITAL_NOUNS = ("de", "lb")
_PIECE_END = re.compile(r'[\n".:;!?。：；！？]')


class _Candidate(NamedTuple):
    """A generated text and its prompt's source sentence, label and variant, if it has them."""

    text: str
    text1: str
    label: Label | None
    variant: Variant


class TextFilters:
    """The filters of a recipe that look at one generated text, its prompt and its source sentence.

    ``sets``: shot count → example sets.
    """

    def __init__(self, recipe: DatasetRecipe, sets: Mapping[int, Sequence[ExampleSet]]):
        self._near_copy = recipe.postprocess.near_copy
        self._language = recipe.language
        self._sets = sets
        self._instructions = InstructionText(_list_instructions(recipe))
        self._get_example_words = cache(self._collect_example_words)
        self._get_traits = cache(self._collect_traits)
        # in the order of the checks: the first rule that applies gives the reason
        rules = {
            EXAMPLE_COPY: self._is_example_copy,
            EXAMPLE_LEAK: self._has_example_leak,
            CONTROL_CHARACTERS: lambda candidate: has_control_characters(candidate.text),
            PROMPT_WORDS: lambda candidate: self._instructions.is_copied_by(candidate.text),
            PROMPT_ECHO: self._is_prompt_echo,
            WRONG_LANGUAGE: lambda candidate: is_foreign(candidate.text, self._language),
        }
        chosen: set[str] = set(recipe.postprocess.reject)
        if EXAMPLE_COPY in chosen:  # a leak is a copy in part
            chosen.add(EXAMPLE_LEAK)
        self._rules = {reason: rule for reason, rule in rules.items() if reason in chosen}

    def find_reason(
        self,
        text: str,
        text1: str = "",
        label: Label | None = None,
        variant: Variant = Variant(None, 0),  # noqa: B008 - frozen
    ) -> str | None:
        """Return the rejection reason of a generated text, or None.

        A text equal to ``text1`` is not compared with it: ``filter_rows`` rejects such a text.

        Args:
            text: the generated text.
            text1: the source sentence of its prompt; generated source sentences have none.
            label: the label of its prompt, if any.
            variant: the variant of its prompt; by default a prompt without examples.
        """
        candidate = _Candidate(text, text1, label, variant)
        for reason, is_rejected in self._rules.items():
            if is_rejected(candidate):
                return reason
        return self._find_overlap_reason(candidate)

    def _is_example_copy(self, candidate: _Candidate) -> bool:
        """Return whether a text has the same words, in order, as a text of its prompt's examples.

        Case and punctuation do not count.
        """
        examples = self._get_example_words(candidate.label, candidate.variant)
        return split_words(candidate.text) in examples

    def _collect_example_words(self, label: Label | None, variant: Variant) -> set[Words]:
        """Return the words of each text of a prompt's examples that has a word."""
        example_words = {split_words(text) for text in self._list_example_texts(label, variant)}
        return example_words - {()}

    def _list_example_texts(self, label: Label | None, variant: Variant) -> list[str]:
        """Return both texts of each example in a label's prompt.

        Empty without a label or without examples.
        """
        texts: list[str] = []
        if label is not None and variant.shots:
            for example in self._sets[variant.shots][variant.example_set][label.name]:
                texts += [example.premise, example.hypothesis]
        return texts

    def _has_example_leak(self, candidate: _Candidate) -> bool:
        """Return whether a text repeats what only the examples of its prompt say.

        That is a name of an example; ``LEAKED_WORDS`` long words of one example sentence, if they
        are at least half of the text's own long words; or ``LEAKED_CHARACTERS`` consecutive
        characters of an example in a script without spaces. Words and characters of the source
        sentence do not count.
        """
        traits = self._get_traits(candidate.label, candidate.variant)
        source_in_order = split_words(candidate.text1)
        source_words = set(source_in_order)

        # names
        names = traits.names & set(_WORD.findall(candidate.text))
        if any(name.casefold() not in source_words for name in names):
            return True

        # long words
        text_words = split_words(candidate.text)
        new_words = {word for word in text_words if len(word) >= LONG_WORD_LETTERS} - source_words
        for example_words in traits.long_words:
            leaked = len(example_words & new_words)
            if leaked >= LEAKED_WORDS and 2 * leaked >= len(new_words):
                return True

        # consecutive characters
        characters = "".join(text_words)
        source_characters = "".join(source_in_order)
        return any(
            run in characters and run not in source_characters for run in traits.character_runs
        )

    def _collect_traits(self, label: Label | None, variant: Variant) -> "_ExampleTraits":
        """Return the names, long words and runs of characters in the examples of a prompt.

        A capitalised word counts as a name if it stands inside a sentence that is mostly in lower
        case, and if no example has it in lower case. A language that capitalises its nouns has no
        names.
        """
        # collect capitalised words, long words and runs of characters, sentence by sentence
        sentences = self._list_example_texts(label, variant)
        names: set[str] = set()
        long_words: list[frozenset[str]] = []
        character_runs: list[str] = []
        for sentence in sentences:
            words = split_words(sentence)
            long_words.append(frozenset(word for word in words if len(word) >= LONG_WORD_LETTERS))
            cased_words = _WORD.findall(sentence)
            lower_case_words = sum(word.islower() for word in cased_words)
            if 2 * lower_case_words > len(cased_words):
                names.update(_NAME.findall(sentence))
            # ``split_words`` makes each character of a script without spaces a word
            for start in range(len(words) - LEAKED_CHARACTERS + 1):
                run = words[start : start + LEAKED_CHARACTERS]
                if all(len(word) == 1 for word in run):
                    character_runs.append("".join(run))

        # keep the capitalised words that are names
        if self._language in _LANGUAGES_WITH_CAPITAL_NOUNS:
            names.clear()
        every_word = {word for sentence in sentences for word in _WORD.findall(sentence)}
        names = {name for name in names if name.lower() not in every_word}
        return _ExampleTraits(frozenset(names), tuple(long_words), tuple(character_runs))

    def _is_prompt_echo(self, candidate: _Candidate) -> bool:
        """Return whether a text copies the instructions and has a word that its source sentence
        lacks.
        """
        is_copy = self._instructions.is_copied_by(candidate.text)
        return is_copy and not set(split_words(candidate.text)) <= set(split_words(candidate.text1))

    def _find_overlap_reason(self, candidate: _Candidate) -> str | None:
        """Return NEAR_COPY or OVERLAP if the recipe rejects the text's word overlap, else None.

        A text without a label is not compared. ``filter_rows`` rejects a text that equals its
        source sentence.
        """
        label = candidate.label
        if label is None or candidate.text == candidate.text1:
            return None
        if self._near_copy is None and label.overlap is None:
            return None
        overlap = compute_word_overlap(candidate.text1, candidate.text)
        if self._near_copy is not None and overlap >= self._near_copy:
            return NEAR_COPY
        if label.overlap is not None and not label.overlap[0] <= overlap <= label.overlap[1]:
            return OVERLAP
        return None


def _list_instructions(recipe: DatasetRecipe) -> list[str]:
    """Return the instruction of every label of a recipe, and that of ``model.server.contrast``."""
    instructions = [label.instruction for label in recipe.labels]
    server = recipe.model.server
    if server is not None and server.contrast is not None:
        instructions.append(server.contrast.instruction)
    return instructions


class _ExampleTraits(NamedTuple):
    """Names, words and characters of example sentences, by which a leaked example is found."""

    names: frozenset[str]  # capitalised words
    long_words: tuple[frozenset[str], ...]  # of each sentence, case-folded
    # ``LEAKED_CHARACTERS`` consecutive characters each, in a script without spaces between words
    character_runs: tuple[str, ...]


class InstructionText:
    """The words of a recipe's instructions, without the source sentence that they are given."""

    def __init__(self, instructions: Iterable[str]):
        self._parts: list[str] = []  # the words before and after the source sentence
        self._pieces: set[Words] = set()  # the words between two punctuation marks
        for instruction in instructions:
            for part in instruction.split(X1):
                self._parts.append(_join_words(_split_masking_numbers(part)))
                for piece in _PIECE_END.split(part):
                    self._pieces.add(_split_masking_numbers(piece))
        self._pieces.discard(())

    def is_copied_by(self, text: str) -> bool:
        """Return whether a text is made of the instructions' words alone.

        It is if it consists of whole pieces of the instructions, the words between two punctuation
        marks; or of ``COPIED_WORDS`` or more consecutive words before or after the source sentence
        of an instruction. Case, punctuation and the value of numbers do not matter:
        ``Sentence 3:`` is a copy of ``Sentence 2:``. False for a text without words.
        """
        text_words = _split_masking_numbers(text)
        joined = _join_words(text_words)
        if len(text_words) >= COPIED_WORDS and any(joined in part for part in self._parts):
            return True

        # the positions in the text's words at which a sequence of whole pieces can end
        ends = {0}
        for start in range(len(text_words)):
            if start in ends:
                for piece in self._pieces:
                    end = start + len(piece)
                    if text_words[start:end] == piece:
                        ends.add(end)
        return bool(text_words) and len(text_words) in ends


def _split_masking_numbers(text: str) -> Words:
    """Return the words of a text, with each run of digits as 0."""
    return tuple(re.sub(r"\d+", "0", word) for word in split_words(text))


def _join_words(text_words: Words) -> str:
    """Join words with a space around each, so that a substring of two texts has whole words."""
    return f" {' '.join(text_words)} "


def filter_rows(raw: Sequence[Row], recipe: DatasetRecipe) -> tuple[list[Row], list[Row]]:
    """Split the raw rows of a shard, in order, into kept rows and rejected rows.

    The first reason that applies counts: IDENTICAL to the source sentence, a reason of the
    verification or the selection, DUPLICATE of a kept row, OVER_CAP beyond ``max_per_label`` kept
    rows of a source sentence and label. A rejected row is a copy with a ``reason``.
    """
    # find the reasons that depend on a whole shard
    reasons = reject_unselected(raw, find_rejections(raw, recipe), recipe)

    # add those that depend on earlier rows
    kept_rows: list[Row] = []
    rejected_rows: list[Row] = []
    seen_texts: set[tuple[str, str, str]] = set()
    per_label = Counter[tuple[str, str]]()
    for row, reason in zip(raw, reasons, strict=True):
        label_key = (row["text1"], row["target"])
        text_key = (*label_key, row["text2"])
        if row["text1"] == row["text2"]:
            reason = IDENTICAL
        elif reason is None and text_key in seen_texts:
            reason = DUPLICATE
        elif reason is None and per_label[label_key] >= recipe.postprocess.max_per_label:
            reason = OVER_CAP
        if reason is not None:
            rejected_rows.append({**row, "reason": reason})
            continue
        seen_texts.add(text_key)
        per_label[label_key] += 1
        kept_rows.append(row)
    return kept_rows, rejected_rows


MARGIN = 15.0  # nats by which another language must be likelier than the recipe's
MARGIN_WITHOUT_NAMES = 7.5  # the same for the text without its capitalised words
ALIKE = (  # codes of languages that are written so alike that a sentence is often in several
    frozenset({"ar", "ary", "arz"}),
    frozenset({"bs", "hr", "sr"}),
    frozenset({"da", "nn", "no"}),
    frozenset({"en", "pcm"}),
    frozenset({"id", "ms"}),
    frozenset({"wuu", "yue", "zh"}),
)
_NO_LANGUAGE = "zxx"  # the classifier's class of numbers and code


def is_foreign(text: str, language: str) -> bool:
    """Return whether a text is in another language than ``language``, as py3langid recognises it.

    Another language must be likelier by ``MARGIN`` nats, and without the capitalised words by
    ``MARGIN_WITHOUT_NAMES``: foreign names alone do not make a text foreign.

    ``language``: a code in ``sts_dino.hub.contract.recipe.RECOGNISED_LANGUAGES``.
    """
    if _measure_language_margin(text, language) < MARGIN:
        return False
    without_names = " ".join(word for word in text.split() if not _is_capitalised(word))
    return _measure_language_margin(without_names, language) >= MARGIN_WITHOUT_NAMES


def _is_capitalised(word: str) -> bool:
    """Return whether the first letter of a word is a capital; False for a word without letters."""
    letters = [character for character in word if character.isalpha()]
    return bool(letters) and letters[0].isupper()


def _measure_language_margin(text: str, language: str) -> float:
    """Return how many nats the likeliest other language is likelier than ``language``.

    Languages that are written like ``language`` (``ALIKE``) count as this language. The margin is
    negative where every other language is less likely.
    """
    import py3langid  # loads its model, half a second: not before a recipe asks for it

    scores: Mapping[str, float] = dict(py3langid.rank(text))
    accepted: set[str] | frozenset[str] = {language}
    for group in ALIKE:
        if language in group:
            accepted = group
    foreign = scores.keys() - accepted - {_NO_LANGUAGE}
    return max(scores[code] for code in foreign) - max(scores[code] for code in accepted)
