"""Which texts of a dataset stand in evaluation data: exactly, in normal form, or nearly.

Kinds, strongest first:

- exact: the same characters.
- normal: the same letters and digits (``eval.audit.text_forms.normal_form``), so other case,
punctuation, spacing, or the tokenised form of the sentence.
- near: the character 3-grams of the normal forms have a Jaccard similarity of 0.5 or more, and the evaluation sentence
  has 16 letters and digits, about four words. They are looked up by hashes, which finds 99 % of the pairs with just
  that similarity and more of those above it (``MatchSettings.recall``). One word changed is within that for nearly all
  sentences, and so is another sentence of the same pattern (``A man plays a guitar``, ``A man plays a flute``): they
  cannot be told apart.
- short: exact or normal, but with fewer than 12 letters and digits (``a good film``): a match by chance. Counted, and
  no reason to drop a row.

A text that holds an evaluation sentence as a small part of it is not found.

Memory: the distinct evaluation sentences with their signatures' hashes (about 1 KB each).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from eval.audit.decontamination.near_duplicates import Banding, NearIndex
from eval.audit.decontamination.sentences import EvaluationSet
from eval.audit.text_forms import normal_form
from hub.contract.decontamination import KINDS, Kind

BLOCK = 512  # texts whose neighbours are looked up at once


@dataclass(frozen=True)
class MatchSettings:
    """The thresholds of a match."""

    similarity: float = 0.5
    near_letters: int = 16  # of the evaluation sentence
    short_letters: int = 12

    @property
    def banding(self) -> Banding:
        """What finds the candidates of a near match."""
        return Banding.at(self.similarity)

    @property
    def recall(self) -> float:
        """The share of the pairs just at the threshold that is expected to be found, rounded to four decimals."""
        return round(self.banding.recall(self.similarity), 4)


@dataclass(frozen=True)
class Place:
    """Where an evaluation sentence stands: ``place`` like sts12/test, row from 0, side 1 or 2."""

    place: str
    row: int
    side: int


@dataclass(frozen=True)
class Match:
    """One evaluation sentence that a text matches; similarity of 3-grams, 1 unless near."""

    kind: Kind
    similarity: float
    sentence: int  # number of the normal form
    place: Place


class Sentences:
    """All evaluation sentences, to be asked which of them a text is."""

    def __init__(self, sets: Sequence[EvaluationSet], settings: MatchSettings | None = None):
        self.settings = settings or MatchSettings()
        self._number: dict[str, int] = {}  # normal form → its number
        self._places: list[dict[Place, set[bytes]]] = []  # of every normal form: place → hashes of its texts
        for one in sets:
            for side, texts in enumerate(one.sides, start=1):
                for row, text in enumerate(texts):
                    self._add(text, Place(one.place, row, side))
        long = [form for form in self._number if len(form) >= self.settings.near_letters]
        self._long = [self._number[form] for form in long]
        self._near = NearIndex(long, self.settings.banding)

    def __len__(self) -> int:
        """Distinct normal forms."""
        return len(self._number)

    def _add(self, text: str, place: Place) -> None:
        form = normal_form(text)
        if not form:
            return
        number = self._number.setdefault(form, len(self._places))
        if number == len(self._places):
            self._places.append({})
        self._places[number].setdefault(place, set()).add(_hashed(text))

    def matches(self, texts: Sequence[str]) -> list[list[Match]]:
        """For each text its matches, one with every sentence of every split that it matches, strongest first."""
        forms = [normal_form(text) for text in texts]
        matches = []
        for text, form, neighbours in zip(texts, forms, self._neighbours(forms), strict=True):
            near = [
                Match("near", value, number, place) for number, value in neighbours for place in self._places[number]
            ]
            matches.append(_once([*self._same(text, form), *near]))
        return matches

    def _neighbours(self, forms: Sequence[str]) -> list[list[tuple[int, float]]]:
        """(number of an evaluation sentence, similarity) of the near ones of each text; none for short texts."""
        least = self.settings.similarity
        asked = [row for row, form in enumerate(forms) if len(form) >= self.settings.short_letters]
        found: list[list[tuple[int, float]]] = [[] for _ in forms]
        for start in range(0, len(asked), BLOCK):
            block = asked[start : start + BLOCK]
            for row, near in zip(block, self._near.near([forms[row] for row in block], least), strict=True):
                found[row] = [
                    (self._long[place], similarity)
                    for place, similarity in near
                    if self._long[place] != self._number.get(forms[row])
                ]
        return found

    def _same(self, text: str, form: str) -> list[Match]:
        number = self._number.get(form)
        if number is None:
            return []
        short, own = len(form) < self.settings.short_letters, _hashed(text)
        return [
            Match("short" if short else "exact" if own in texts else "normal", 1.0, number, place)
            for place, texts in self._places[number].items()
        ]


def _once(matches: Sequence[Match]) -> list[Match]:
    """The strongest match with every sentence of every split, strongest first."""
    found: dict[tuple[str, int], Match] = {}
    for match in sorted(matches, key=_rank):
        found.setdefault((match.place.place, match.sentence), match)
    return list(found.values())


def _rank(match: Match) -> tuple[int, float, str, int, int]:
    place = match.place
    return KINDS.index(match.kind), -match.similarity, place.place, place.row, place.side


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
