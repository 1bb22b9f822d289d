"""Words in sentences: inflection of the listed verbs, capitals, articles, and replacing words from a table."""

import random
import re

from demo.lm import words

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*|(?<![\d.,:$-])\d+(?![\d.,:%-])")
DETERMINERS = frozenset(
    words.listed(
        """numerous multiple various a an the this that these those his her its their two three four five six several
        many some"""
    )
)
PRONOUNS = frozenset(words.listed("he she it they we there one people men women"))


_NOT_DOUBLED = frozenset(words.listed("listen open travel enter gather explain"))


def gerund(verb: str) -> str:
    """`play` -> `playing`."""
    if verb in {"lie", "tie"}:
        return verb[:-2] + "ying"
    if verb.endswith("e"):
        return verb[:-1] + "ing"
    if re.search(r"[^aeiou][aeiou][bgmnptd]$", verb) and verb not in _NOT_DOUBLED:
        return verb + verb[-1] + "ing"
    return verb + "ing"


def third(verb: str) -> str:
    """`play` -> `plays`."""
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


GERUNDS = {gerund(v): v for v in words.VERBS}
THIRD = {third(v): v for v in words.VERBS}


def alternatives(groups: list[list[str]]) -> dict[str, list[str]]:
    """Every word of every group with the other words of its groups."""
    table: dict[str, list[str]] = {}
    for group in groups:
        for word in group:
            table.setdefault(word, []).extend(w for w in group if w != word)
    return table


def match_case(word: str, model: str) -> str:
    """``word`` with the capital letter of ``model``."""
    return word[:1].upper() + word[1:] if model[:1].isupper() else word


def capitalise(text: str) -> str:
    """A sentence begins with a capital letter."""
    return text[:1].upper() + text[1:]


def lower_start(text: str) -> str:
    """Lower the first letter, but only of a function word: names keep theirs."""
    first = text.split(" ", 1)[0].lower()
    return text[:1].lower() + text[1:] if first in DETERMINERS | PRONOUNS else text


def fix_articles(text: str) -> str:
    """`a apple` -> `an apple`, `an car` -> `a car`."""
    text = re.sub(r"\b([Aa])n (?=[BCDFGJKLMNPQRSTVWXYZbcdfgjklmnpqrstvwxyz][a-z])", r"\1 ", text)
    return re.sub(r"\b([Aa]) (?=[aeio][a-z])(?!one|eu)", r"\1n ", text)


def replace_words(text: str, table: dict[str, list[str]], rng: random.Random, chance: float, most: int) -> str | None:
    """Replace each word of the table with a chance, at least one and at most ``most``; None when it holds none."""
    spots = [m for m in WORD.finditer(text) if m[0].lower() in table or m[0] in table]
    spots = [m for m in spots if m[0][0].islower() or m.start() == 0 or m[0] in table]
    chosen = [m for m in spots if rng.random() < chance] or rng.sample(spots, min(1, len(spots)))
    for m in sorted(rng.sample(chosen, min(most, len(chosen))), key=lambda m: -m.start()):
        options = table.get(m[0]) or table[m[0].lower()]
        text = text[: m.start()] + match_case(rng.choice(options), m[0]) + text[m.end() :]
    return fix_articles(text) if chosen else None
