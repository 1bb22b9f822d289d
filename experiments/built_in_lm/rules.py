"""Rules that rewrite one sentence: paraphrases (same meaning), swaps (changed facts), negations, simplifications.

Every rule is a pure function ``(sentence, rng) -> str | None``; None: the rule does not apply. Word lists are in
words.yaml.
"""

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml


def listed(block: str) -> list[str]:
    """The words of a block of text; the entries of a block with bars."""
    return [" ".join(entry.split()) for entry in block.split("|")] if "|" in block else block.split()


def _groups(block: str) -> list[list[str]]:
    return [[w.replace("_", " ") for w in line.split()] for line in block.strip().splitlines()]


_DATA = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
SYNONYMS, SWAPS = _groups(_DATA["synonyms"]), _groups(_DATA["swaps"])
PHRASES: list[tuple[str, str]] = [(one, other) for one, other in _DATA["phrases"]]
ADJECTIVES, VERBS = frozenset(listed(_DATA["adjectives"])), listed(_DATA["verbs"])
HYPERNYMS: dict[str, str] = _DATA["hypernyms"]
NUMBERS: dict[str, str] = _DATA["numbers"]

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*|(?<![\d.,:$-])\d+(?![\d.,:%-])")
DETERMINERS = frozenset(
    listed(
        """numerous multiple various a an the this that these those his her its their two three four five six several
        many some"""
    )
)
PRONOUNS = frozenset(listed("he she it they we there one people men women"))


_NOT_DOUBLED = frozenset(listed("listen open travel enter gather explain"))


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


GERUNDS = {gerund(v): v for v in VERBS}
THIRD = {third(v): v for v in VERBS}


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


Rule = Callable[[str, random.Random], "str | None"]

_PREPOSITIONS = listed(
    "in on at near by with during behind beside along through under across inside outside over from for to of"
)
_PLACE = r"in|on|at|near|behind|beside|along|through|under|across|inside|outside|during|by"
_TAIL_PHRASE = re.compile(rf"^(.{{12,}}?\w) ((?:{_PLACE}) (?:[\w'-]+ ){{0,5}}[\w'-]+)([.!]?)$")
_FRONTED = re.compile(r"^((?:In|On|At|During|After|Before|By|For|With|Near|Under) [^,]{2,40}), ([^,].{10,}?)([.!]?)$")
_COORDINATED = re.compile(r"\b((?:a|an|the|two|three) \w+) and ((?:a|an|the|two|three) \w+)\b", re.IGNORECASE)
_NOT_A_HEAD = frozenset([*_PREPOSITIONS, *listed("and or is are was were has have while who that as")])
_SYNONYMS = alternatives(SYNONYMS)
_SWAPS = alternatives(SWAPS)
_DIGITS = {digit: word for word, digit in NUMBERS.items()}


def synonyms(text: str, rng: random.Random) -> str | None:
    """Replace most words that have a synonym, three at most."""
    return replace_words(text, _SYNONYMS, rng, 0.7, 3)


def phrases(text: str, rng: random.Random) -> str | None:
    """Exchange one set phrase or contraction."""
    options = []
    for pair in PHRASES:
        for old, new in (pair, pair[::-1]):
            if len(old) > 4 and (found := re.search(rf"(?<![\w']){re.escape(old)}(?![\w'])", text, re.IGNORECASE)):
                options.append((found, new))
    if not options:
        return None
    found, new = rng.choice(options)
    return text[: found.start()] + match_case(new, found[0]) + text[found.end() :]


def numbers(text: str, rng: random.Random) -> str | None:
    """`three` <-> `3`."""
    table = {**{w: [d] for w, d in NUMBERS.items()}, **{d: [w] for d, w in _DIGITS.items()}}
    return replace_words(text, table, rng, 1.0, 1)


def progressive(text: str, rng: random.Random) -> str | None:
    """`is playing` <-> `plays`, `are playing` <-> `play`."""
    if found := re.search(r"\b(is|are) (\w+ing)\b", text):
        if verb := GERUNDS.get(found[2]):
            return text[: found.start()] + (third(verb) if found[1] == "is" else verb) + text[found.end() :]
        return None
    for found in re.finditer(r"(?<=[a-z] )(\w+)\b", text):
        subject = text[: found.start()].split()[-1].lower()
        plural = subject in {"men", "women", "people", "children"} or (subject.endswith("s") and len(subject) > 3)
        if not plural and found[1] in THIRD and subject not in DETERMINERS and found.start() < 40:
            return text[: found.start()] + "is " + gerund(THIRD[found[1]]) + text[found.end() :]
        if plural and found[1] in VERBS and found.start() < 40:
            return text[: found.start()] + "are " + gerund(found[1]) + text[found.end() :]
    return None


def auxiliary(text: str, rng: random.Random) -> str | None:
    """Captions: `A man playing` <-> `A man is playing`."""
    tokens_ = text.split()
    for i, word in enumerate(tokens_[1:6], 1):
        if word in {"is", "are"} and i + 1 < len(tokens_) and tokens_[i + 1].endswith("ing"):
            return " ".join(tokens_[:i] + tokens_[i + 1 :])
        if word in GERUNDS and tokens_[0].lower() in DETERMINERS and tokens_[i - 1].lower() not in DETERMINERS:
            plural = tokens_[0].lower() not in {"a", "an", "the", "this", "one"} or tokens_[1].lower() in PRONOUNS
            return " ".join([*tokens_[:i], "are" if plural else "is", *tokens_[i:]])
    return None


def there_is(text: str, rng: random.Random) -> str | None:
    """`A man is playing` <-> `There is a man playing`."""
    if found := re.match(r"There (?:is|are) ((?:a|an|the|two|three|four|some|several|many)\b.*)$", text):
        return capitalise(found[1])
    if found := re.match(r"((?:A|An|Two|Three|Four|Five|Some|Several|Many) [^.,]{2,60}?) (is|are) (\w+ing\b.*)$", text):
        return f"There {found[2]} {lower_start(found[1])} {found[3]}"
    if re.match(r"(A|An) [^.,]+ \w+ing\b", text) and not re.search(r"\b(is|are|was|has)\b", text):
        return "There is " + lower_start(text)
    return None


def front_phrase(text: str, rng: random.Random) -> str | None:
    """Move the last phrase of place or time to the front, or a fronted one to the end."""
    if found := _FRONTED.match(text):
        return capitalise(found[2]) + " " + found[1][:1].lower() + found[1][1:] + found[3]
    if "," in text or not (found := _TAIL_PHRASE.match(text)):
        return None
    return f"{capitalise(found[2])}, {lower_start(found[1])}{found[3]}"


def articles(text: str, rng: random.Random) -> str | None:
    """Exchange one article for the other."""
    found = list(re.finditer(r"\b([Aa]n?|[Tt]he) (?=[a-z])", text))
    if not found:
        return None
    m = rng.choice(found)
    new = match_case("a" if m[1].lower() == "the" else "the", m[1])
    return fix_articles(text[: m.start(1)] + new + text[m.end(1) :])


def drop_modifier(text: str, rng: random.Random) -> str | None:
    """Leave out one adjective or adverb that is followed by a word."""
    tokens = text.split()
    spots = [i for i, w in enumerate(tokens[:-1]) if w.lower() in ADJECTIVES and tokens[i + 1][0].isalpha()]
    spots = [i for i in spots if tokens[i + 1].lower() not in _NOT_A_HEAD and tokens[i - 1] != "and"]
    if not spots:
        return None
    i = rng.choice(spots)
    return capitalise(fix_articles(" ".join(tokens[:i] + tokens[i + 1 :])))


def drop_clause(text: str, rng: random.Random) -> str | None:
    """Leave out a parenthesis, or the shorter side of a last comma when most of the sentence stays."""
    if "(" in text and ")" in text:
        return re.sub(r" \([^)]*\)", "", text)
    if "," not in text:
        return None
    head, tail = text.rsplit(",", 1)
    return head + text[-1] if len(head) > 2 * len(tail) and text[-1] in ".!?" else None


def coordinate(text: str, rng: random.Random) -> str | None:
    """`a man and a woman` -> `a woman and a man`."""
    if not (found := _COORDINATED.search(text)):
        return None
    swapped = f"{match_case(found[2].lower(), found[1])} and {lower_start(found[1])}"
    return text[: found.start()] + swapped + text[found.end() :]


def frame(text: str, rng: random.Random) -> str | None:
    """Add or remove a frame that says nothing new."""
    for opening in ("However, ", "Also, ", "In fact, ", "Indeed, ", "Then, ", "Reportedly, "):
        if text.startswith(opening):
            return capitalise(text[len(opening) :])
    if text.endswith("?"):
        return None
    if text.startswith(("A ", "An ", "Two ", "Three ")):
        return rng.choice(["Here, ", "In this picture, ", "The photo shows ", "We see "]) + lower_start(text)
    return rng.choice(["In fact, ", "Reportedly, ", "It is said that ", "Indeed, "]) + lower_start(text)


def clothing(text: str, rng: random.Random) -> str | None:
    """`in a red shirt` <-> `wearing a red shirt`."""
    if found := re.search(r"\bwearing (?=(?:a|an|the|\w+) )", text):
        return text[: found.start()] + rng.choice(["in ", "dressed in "]) + text[found.end() :]
    garments = "shirt|jacket|hat|dress|coat|suit|shorts|jeans|uniform|vest|cap"
    worn = rf"\b(?:dressed )?in (?=(?:a |an )?(?:\w+ ){{0,2}}(?:{garments})\b)"
    if found := re.search(worn, text):
        return text[: found.start()] + "wearing " + text[found.end() :]
    return None


STRUCTURE: tuple[tuple[Rule, float], ...] = (
    (progressive, 3.0),
    (there_is, 2.0),
    (front_phrase, 0.8),
    (auxiliary, 2.0),
    (coordinate, 2.0),
    (drop_clause, 1.5),
    (frame, 0.5),
)
WORDING: tuple[tuple[Rule, float], ...] = (
    (synonyms, 6.0),
    (phrases, 3.0),
    (clothing, 2.0),
    (numbers, 2.0),
    (drop_modifier, 2.0),
    (articles, 1.0),
)


def _one_of(rules: Sequence[tuple[Rule, float]], text: str, rng: random.Random) -> str:
    """Apply one applicable rule, tried in a weighted random order; the text itself when none applies."""
    order = sorted(rules, key=lambda item: rng.random() ** (1 / item[1]), reverse=True)
    for rule, _ in order:
        changed = rule(text, rng)
        if changed and changed != text:
            return changed
    return text


def paraphrase(text: str, rng: random.Random) -> str | None:
    """Rewrite with one or two changes of structure and one or two of wording; None when nothing applied."""
    result = _one_of(WORDING, text, rng)
    if rng.random() < 0.5:
        result = _one_of(WORDING, result, rng)
    if rng.random() < 0.75:
        result = _one_of(STRUCTURE, result, rng)
    return result if result != text else None


def swap(text: str, rng: random.Random, most: int = 3) -> str | None:
    """Exchange up to ``most`` words for words that mean something else."""
    return replace_words(text, _SWAPS, rng, 0.7, most)


def negate(text: str, rng: random.Random) -> str | None:
    """Put `not` after the first auxiliary, or deny the whole sentence."""
    if found := re.search(r"\b(is|are|was|were|can|will|could|would|should|has|have|had)\b(?! not|n't)", text):
        return text[: found.end()] + " not" + text[found.end() :]
    if text[:2] == "A " and rng.random() < 0.5:
        return "No " + text[2:]
    return None


def simplify(text: str, rng: random.Random) -> str | None:
    """Say less: cut the sentence before a late preposition or comma, drop modifiers, use more general words."""
    tokens = text.rstrip(".!?").split()
    breaks = {*_PREPOSITIONS, "while", "as", "and", "that"}
    cuts = [i for i, w in enumerate(tokens) if i >= 4 and w in breaks]
    cuts += [i + 1 for i, w in enumerate(tokens[:-1]) if i >= 4 and w.endswith(",")]
    result = " ".join(tokens[: rng.choice(cuts)]).rstrip(",") if cuts else " ".join(tokens)
    for _ in range(3):
        result = drop_modifier(result, rng) or result
    if rng.random() < 0.4:
        result = replace_words(result, {k: [v] for k, v in HYPERNYMS.items()}, rng, 0.6, 2) or result
    return result + "." if result != text.rstrip(".!?") else None


def split_point(text: str) -> int | None:
    """Index of the word where the predicate's rest begins: after the first verb form, else in the middle."""
    tokens = text.split()
    for i, word in enumerate(tokens[2:-2], 2):
        if word in GERUNDS or word in THIRD or word in {"is", "are", "was", "were", "has", "had", "will", "can"}:
            return i
    return len(tokens) // 2 if len(tokens) >= 8 else None


def graft(text: str, other: str, rng: random.Random, keep_head: float = 0.85) -> str | None:
    """The subject of one sentence with the predicate of the other: half of each, mostly the beginning of ``text``."""
    first, second = split_point(text), split_point(other)
    if first is None or second is None:
        return None
    if rng.random() < keep_head:
        return " ".join(text.split()[:first] + other.split()[second:])
    return " ".join(other.split()[:second] + text.split()[first:])


def agree(text: str) -> str:
    """`A woman are` -> `A woman is`, `Two women is` -> `Two women are`, at the first verb of a caption."""
    if re.match(r"An? (?:(?!and\b)[\w-]+ ){1,9}?are ", text):
        return text.replace(" are ", " is ", 1)
    if re.match(r"(?:Two|Three|Four|Five|Several|Many|Some) (?:(?!are\b)[\w-]+ ){1,9}?is ", text):
        return text.replace(" is ", " are ", 1)
    return text


def swap_tail(text: str, rng: random.Random) -> str | None:
    """The beginning as it is; up to three exchanged words in the rest."""
    first = split_point(text)
    if first is None:
        return None
    tokens = text.split()
    tail = swap(" ".join(tokens[first:]), rng)
    return " ".join([*tokens[:first], tail]) if tail else None
