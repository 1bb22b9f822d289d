"""Whether a text is in another language than it should be: py3langid's classifier, asked with care. Pure.

Short texts and texts full of names are what a classifier of languages gets wrong. So a text is called foreign only
where another language is far likelier than its own, and stays likelier without its capitalised words, most of which
are names. ``benchmarks.generation.wrong_language` of revision 5ab29a2` measures both kinds of error (docs/dataset_quality.md).
"""

from collections.abc import Mapping

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
    """Whether a text is in another language than ``language``, one of ``sections.languages.RECOGNISED``."""
    return _margin(text, language) >= MARGIN and _margin(_without_names(text), language) >= OF_OTHER_WORDS


def _margin(text: str, language: str) -> float:
    """Nats by which another language is likelier than ``language`` or one alike; negative where none is."""
    import py3langid  # loads its model, half a second: not before a recipe asks for it

    scores: Mapping[str, float] = dict(py3langid.rank(text))
    own = next((group for group in ALIKE if language in group), {language})
    others = scores.keys() - own - {_NO_LANGUAGE}
    return max(scores[one] for one in others) - max(scores[one] for one in own)


def _without_names(text: str) -> str:
    return " ".join(word for word in text.split() if not _first_letter(word).isupper())


def _first_letter(word: str) -> str:
    return next((character for character in word if character.isalpha()), "")
