"""How many words two texts share: one measure for what a recipe filters by and for what is measured of a dataset."""

import re
import unicodedata
from collections import Counter

Words = tuple[str, ...]
_ALONE = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])")  # kana, Han


def word_overlap(one: str, other: str) -> float:
    """The share of their words, 0 to 1, that two texts have in common: Jaccard's index of the two bags of ``words``.

    A word that stands twice in both counts twice; order, case and punctuation do not count. 1 for the same words in any
    order, and for two texts without any word; 0 where no word is shared.
    """
    ours, theirs = Counter(words(one)), Counter(words(other))
    whole = (ours | theirs).total()
    return (ours & theirs).total() / whole if whole else 1.0


def words(text: str) -> Words:
    """The words of a text, without case, punctuation and width. Marks stay: vowels are marks in Indic scripts.

    Chinese and Japanese have no spaces between words, so each of their characters counts as a word.
    """
    plain = _ALONE.sub(r" \1 ", unicodedata.normalize("NFKC", text).casefold())
    return tuple("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in plain).split())
