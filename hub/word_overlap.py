"""Word overlap of two texts: one measure for a recipe's filters and for dataset measurements."""

import re
import unicodedata
from collections import Counter

Words = tuple[str, ...]
_WITHOUT_SPACES = re.compile(
    "([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"  # kana, Han
)


def compute_word_overlap(text1: str, text2: str) -> float:
    """Return the share of common words of two texts, from 0.0 to 1.0.

    The share is Jaccard's index of the two bags of ``split_words``: a word that both texts hold
    twice counts twice; order, case and punctuation do not count. Two texts without any word have
    the share 1.0.
    """
    words1 = Counter(split_words(text1))
    words2 = Counter(split_words(text2))
    total = (words1 | words2).total()
    if total == 0:
        return 1.0
    return (words1 & words2).total() / total


def split_words(text: str) -> Words:
    """Return the words of a text, NFKC-normalized, case-folded and without punctuation.

    Combining marks stay, because Indic scripts write vowels as marks. Each Chinese and Japanese
    character is a word by itself, because these scripts have no spaces between words.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    spaced = _WITHOUT_SPACES.sub(r" \1 ", folded)
    # Punctuation separates words, too.
    letters = [char if _is_word_character(char) else " " for char in spaced]
    return tuple("".join(letters).split())


def _is_word_character(char: str) -> bool:
    """Return whether a character is a letter, a digit or a combining mark (category M)."""
    return char.isalnum() or unicodedata.category(char)[0] == "M"
