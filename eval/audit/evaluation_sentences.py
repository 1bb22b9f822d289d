"""Near-duplicate sentences: MinHash signatures of character n-grams, banded candidates, exact Jaccard similarity.

Signatures are datasketch's (Broder 1997). The band index is ours: sorted arrays instead of a set for every bucket of
every band. It gives the candidates of ``datasketch.MinHashLSH`` with the same bands (tested) in a fraction of its
memory, and answers whole batches at once.
"""

import hashlib
import math
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.tasks.registry import DATASETS, find_dataset
from eval.tasks.rows import Pins, names_in_layout
from eval.tasks.sources import Source
from eval.tasks.task import DataSet, Layout
from hub.contract.measured import KINDS, Kind
from hub.errors import InputError

_WORD = re.compile(r"[^\W_]+")
Signatures = NDArray[np.uint32]  # (n, permutations)
SEED = 1
SCHEME = "affine32"
RECALL = 0.99  # of the pairs at the threshold that are to be expected among the candidates
LONGEST = 768  # values of a signature
WIDEST = 4  # rows of a band: more make fewer candidates and, for one threshold, longer signatures


def normal_form(text: str) -> str:
    """The letters and digits of ``text`` alone: NFKC, case folded, without spaces and punctuation.

    Plain, Moses and Penn Treebank forms of a sentence meet in it: ``Don't!``, ``do n't !`` and ``don 't``; so do
    ``cannot`` and ``can not``. Two sentences that differ in word boundaries only (``now here``, ``nowhere``) meet too.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded if folded.isalnum() else "".join(_WORD.findall(folded))


@dataclass(frozen=True)
class Banding:
    """Two texts are candidates when all values of at least one band agree."""

    bands: int
    rows: int  # of a band
    grams: int = 3  # characters of the normal form

    @classmethod
    def at(cls, similarity: float) -> "Banding":
        """The banding that finds ``RECALL`` of the pairs with this similarity, and more of those with a higher one.

        Of the numbers of rows up to ``WIDEST`` the largest whose signature is no longer than ``LONGEST``.
        """
        found = []
        for rows in range(1, WIDEST + 1):
            alike = similarity**rows  # the probability that one band agrees
            found.append(cls(1 if alike >= RECALL else math.ceil(math.log(1 - RECALL) / math.log(1 - alike)), rows))
        return [banding for banding in found if banding.bands * banding.rows <= LONGEST][-1]

    def recall(self, similarity: float) -> float:
        """The expected share of the pairs with this similarity that are candidates."""
        return 1 - (1 - similarity**self.rows) ** self.bands


def grams(form: str, size: int) -> set[str]:
    """The character n-grams of a text in normal form; a shorter text is its own only one."""
    return {form[start : start + size] for start in range(max(1, len(form) - size + 1))}


def signatures(forms: Sequence[str], banding: Banding) -> Signatures:
    """MinHash signatures of texts in normal form, (n, bands x rows)."""
    from datasketch import MinHash

    def hashed(gram: str) -> int:
        return zlib.crc32(gram.encode("utf-8", "surrogatepass"))

    size, every = banding.bands * banding.rows, (grams(form, banding.grams) for form in forms)
    made = MinHash.generator(every, num_perm=size, seed=SEED, scheme=SCHEME, hashfunc=hashed)
    return np.array([one.hashvalues for one in made], dtype=np.uint32).reshape(-1, size)


class NearIndex:
    """Texts in normal form, to be asked which of them are near to others."""

    def __init__(self, forms: Sequence[str], banding: Banding):
        self.banding = banding
        self._forms = forms
        hashes = self._banded(signatures(forms, self.banding))
        self._order = np.argsort(hashes, axis=1, kind="stable").astype(np.int32)  # (bands, n)
        self._sorted = np.take_along_axis(hashes, self._order, axis=1)

    def near(self, forms: Sequence[str], least: float) -> dict[str, list[tuple[str, float]]]:
        """For each text the others whose n-grams have a Jaccard similarity of ``least`` or more, if there are any."""
        found: dict[str, list[tuple[str, float]]] = {}
        asked = [grams(form, self.banding.grams) for form in forms]
        for query, place in zip(*self.candidates(forms), strict=True):
            form, mine, other = forms[query], asked[query], self._forms[place]
            if form != other and least * len(mine) <= len(other):  # a text has no more n-grams than characters
                theirs = grams(other, self.banding.grams)
                if (similarity := len(mine & theirs) / len(mine | theirs)) >= least:
                    found.setdefault(form, []).append((other, similarity))
        return found

    def candidates(self, forms: Sequence[str]) -> tuple[list[int], list[int]]:
        """(number of the text, number of an indexed text) of every pair that agrees in a band, each pair once."""
        if not forms or not len(self._forms):
            return [], []
        wanted = self._banded(signatures(forms, self.banding))
        pairs = []
        for band, ranked, order in zip(wanted, self._sorted, self._order, strict=True):
            low, high = np.searchsorted(ranked, band, "left"), np.searchsorted(ranked, band, "right")
            counts = high - low
            queries = np.repeat(np.arange(len(forms)), counts)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            pairs.append(queries * len(self._forms) + order[np.repeat(low, counts) + offsets])
        queries, places = np.divmod(np.unique(np.concatenate(pairs)), len(self._forms))
        return queries.tolist(), places.tolist()

    def _banded(self, found: Signatures) -> NDArray[np.uint64]:
        """A 64-bit hash of every band's values, (bands, n). A collision costs a candidate, never an answer."""
        odd = np.random.default_rng(SEED).integers(1 << 63, size=self.banding.rows, dtype=np.uint64) * 2 + 1
        values = found.reshape(len(found), self.banding.bands, self.banding.rows).astype(np.uint64)
        return np.ascontiguousarray((values * odd).sum(axis=2, dtype=np.uint64).T)


@dataclass(frozen=True)
class EvaluationSet:
    """A split's texts, side by side: ``sides`` holds one tuple of n texts for each side of a pair, or the only one."""

    place: str  # e.g. sts12/test, whatever the text form
    form: str  # the data set's own name, e.g. sts12-original
    sides: tuple[tuple[str, ...], ...]
    sha256: str

    @property
    def split(self) -> str:
        """The place's split."""
        return self.place.partition("/")[2]


@dataclass(frozen=True)
class EvaluationTexts:
    """What a dataset is checked against, and the splits whose files are not there."""

    sets: tuple[EvaluationSet, ...]
    absent: tuple[str, ...]


def read_evaluation_sets(
    senteval: Path | None = None,
    originals: Path | None = None,
    names: Sequence[str] = (),
    pins: Pins | None = None,
) -> EvaluationTexts:
    """Every split that the given directories have; without one, the STS Benchmark's shipped validation and test.

    ``names``: these data sets alone, all of whose splits must be there (the probing tasks are read only by
    name). Raises InputError for an unknown name, and for a file that is missing beside others of its split, or altered.
    """
    source = Source(senteval=senteval, originals=originals, pins=pins)
    roots: dict[Layout, Path | None] = {"senteval": senteval, "originals": originals}
    sets, absent, read = list[EvaluationSet](), list[str](), set[Layout]()
    usual = [dataset for dataset in DATASETS.values() if dataset.sentences is not None]
    for dataset in [find_dataset(name) for name in names] if names else usual:
        root = roots[dataset.layout]
        for split in dataset.parts:
            place = f"{dataset.sentences or dataset.name}/{split}"
            if names or (split in dataset.shipped if root is None else _is_there(dataset, split, root)):
                rows = source.load(dataset.name, [split])[split]
                sets.append(EvaluationSet(place, dataset.name, rows.columns, rows.sha256))
                read.add(dataset.layout)
            elif root is not None:
                absent.append(f"{dataset.name}/{split}")
    for layout, root in roots.items():
        if not names and root is not None and layout not in read:
            raise InputError(root, "has no evaluation data", hint="check --senteval-data and --sts-data")
    return EvaluationTexts(tuple(sets), tuple(absent))


def _is_there(dataset: DataSet, split: str, root: Path) -> bool:
    """Whether any file of a split is: if one is missing, reading it says so."""
    bases = (root, root.parent) if root.name == "downstream" else (root,)
    paths = [base / name for base in bases for file in dataset.parts[split].files for name in names_in_layout(file)]
    return any(path.is_file() for path in paths)


BLOCK = 512  # texts whose neighbours are looked up at once
NEAR_LETTERS = 16  # of an evaluation sentence, from which on it has near matches
SHORT_LETTERS = 12  # matches of fewer are by chance


class Place(NamedTuple):
    """Where an evaluation sentence stands: ``place`` like sts12/test, row from 0, side 1 or 2."""

    place: str
    row: int
    side: int


class Match(NamedTuple):
    """One evaluation sentence that a text matches; similarity of 3-grams, 1 unless near."""

    kind: Kind
    similarity: float
    sentence: str  # its normal form
    place: Place


class Sentences:
    """All evaluation sentences, to be asked which of them a text is; ``similarity`` is that of near matches."""

    def __init__(self, sets: Sequence[EvaluationSet], similarity: float = 0.5):
        self.similarity = similarity
        self._places: dict[str, dict[Place, set[bytes]]] = {}  # normal form → place → hashes of its texts
        for one in sets:
            for side, texts in enumerate(one.sides, start=1):
                for row, text in enumerate(texts):
                    if form := normal_form(text):
                        places = self._places.setdefault(form, {})
                        places.setdefault(Place(one.place, row, side), set()).add(_hashed(text))
        self._near = NearIndex([form for form in self._places if len(form) >= NEAR_LETTERS], Banding.at(similarity))

    def __len__(self) -> int:
        """Distinct normal forms."""
        return len(self._places)

    @property
    def settings(self) -> dict[str, float | int | dict[str, int]]:
        """The thresholds, and ``recall``: the expected share of the pairs just at the threshold that is found."""
        banding = self._near.banding
        letters = {"near_letters": NEAR_LETTERS, "short_letters": SHORT_LETTERS}
        recall = round(banding.recall(self.similarity), 4)
        return {"similarity": self.similarity, **letters, "banding": asdict(banding), "recall": recall}

    def matches(self, texts: Sequence[str]) -> list[list[Match]]:
        """For each text its matches, one with every sentence of every split that it matches, strongest first."""
        forms = [normal_form(text) for text in texts]
        asked = list(dict.fromkeys(form for form in forms if len(form) >= SHORT_LETTERS))
        near: dict[str, list[tuple[str, float]]] = {}
        for start in range(0, len(asked), BLOCK):
            near |= self._near.near(asked[start : start + BLOCK], self.similarity)
        found = []
        for text, form in zip(texts, forms, strict=True):
            places = ((other, alike, place) for other, alike in near.get(form, ()) for place in self._places[other])
            others = [Match("near", alike, other, place) for other, alike, place in places]
            found.append(_once([*self._same(text, form), *others]))
        return found

    def _same(self, text: str, form: str) -> Iterator[Match]:
        short, own = len(form) < SHORT_LETTERS, _hashed(text)
        for place, texts in self._places.get(form, {}).items():
            yield Match("short" if short else "exact" if own in texts else "normal", 1.0, form, place)


def _once(matches: Sequence[Match]) -> list[Match]:
    """The strongest match with every sentence of every split, strongest first."""
    found: dict[tuple[str, str], Match] = {}
    for match in sorted(matches, key=lambda one: (KINDS.index(one.kind), -one.similarity, one.place)):
        found.setdefault((match.place.place, match.sentence), match)
    return list(found.values())


def _hashed(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
