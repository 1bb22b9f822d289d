"""Index of evaluation sentences that finds the sentences a text repeats exactly or nearly.

Near-duplicates have similar MinHash signatures (Broder 1997) of their character n-grams. Two texts
are candidates when their signatures agree in a band; the exact Jaccard similarity of their n-grams
then decides. The library datasketch computes the signatures. The index of the bands is this
project's: sorted arrays instead of a set for every bucket. It gives the same candidates as
``datasketch.MinHashLSH`` with the same bands (tested) in a fraction of the memory, for whole
batches at once.
"""

import hashlib
import math
import re
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.tasks.registry import DATASETS, find_dataset
from sts_dino.eval.tasks.rows import Pins
from sts_dino.eval.tasks.sources import Source, list_layout_paths
from sts_dino.eval.tasks.task import LAYOUTS, DataSet, Layout
from sts_dino.hub.contract.measured import MATCH_KINDS, MatchKind
from sts_dino.hub.errors import InputError

_LETTERS_AND_DIGITS = re.compile(r"[^\W_]+")
Signatures = NDArray[np.uint32]  # (n, permutations)
MINHASH_SEED = 1
MINHASH_SCHEME = "affine32"  # datasketch's name of the permutations
# Expected share of the pairs at the threshold that are candidates
MIN_EXPECTED_RECALL = 0.99
MAX_SIGNATURE_VALUES = 768
# More rows of a band make fewer candidates and, for one threshold, longer signatures
MAX_BAND_ROWS = 4


def normalize_text(text: str) -> str:
    """Return the normal form of ``text``: its letters and digits in NFKC, case folded.

    Plain, Moses and Penn Treebank tokenizations have one normal form: ``Don't!``, ``do n't !`` and
    ``don 't``; so have ``cannot`` and ``can not``. Two sentences that differ in word boundaries
    only (``now here``, ``nowhere``) have one normal form, too.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(_LETTERS_AND_DIGITS.findall(folded))


@dataclass(frozen=True)
class Banding:
    """Division of a MinHash signature into ``bands`` bands of ``rows`` values each.

    Two texts are candidates when all values of at least one band agree. ``grams`` is the number of
    characters of an n-gram.
    """

    bands: int
    rows: int
    grams: int = 3

    @classmethod
    def choose(cls, similarity: float) -> "Banding":
        """Return a banding whose expected recall is at least ``MIN_EXPECTED_RECALL``.

        Its ``rows`` is the largest number, up to ``MAX_BAND_ROWS``, with which the signature has at
        most ``MAX_SIGNATURE_VALUES`` values. Where even 2 rows need more values, ``rows`` is 1.

        similarity: the Jaccard similarity of the pairs to find, above 0, at most 1.
        """
        for rows in range(MAX_BAND_ROWS, 1, -1):
            banding = cls(_count_bands(similarity**rows), rows)
            if banding.bands * rows <= MAX_SIGNATURE_VALUES:
                return banding
        return cls(_count_bands(similarity), 1)


def _count_bands(probability: float) -> int:
    """Return the number of bands whose expected recall reaches ``MIN_EXPECTED_RECALL``.

    probability: the probability that one band of two similar texts agrees, above 0.
    """
    if probability >= MIN_EXPECTED_RECALL:
        return 1
    return math.ceil(math.log(1 - MIN_EXPECTED_RECALL) / math.log(1 - probability))


def split_grams(form: str, size: int) -> set[str]:
    """Return the character n-grams of a normal form; a shorter form is its only n-gram.

    size: characters of an n-gram.
    """
    count = max(1, len(form) - size + 1)
    return {form[start : start + size] for start in range(count)}


def compute_signatures(forms: Sequence[str], banding: Banding) -> Signatures:
    """Return the MinHash signatures of n normal forms, (n, bands x rows), in their order.

    ``banding``: its number of values is the length of a signature.
    """
    from datasketch import MinHash

    size = banding.bands * banding.rows
    sketches = MinHash.generator(
        (split_grams(form, banding.grams) for form in forms),
        num_perm=size,
        seed=MINHASH_SEED,
        scheme=MINHASH_SCHEME,
        hashfunc=_hash_gram,
    )
    values = [sketch.hashvalues for sketch in sketches]
    return np.array(values, dtype=np.uint32).reshape(-1, size)


def _hash_gram(gram: str) -> int:
    """Return a 32-bit hash of an n-gram, which may hold lone surrogates."""
    return zlib.crc32(gram.encode("utf-8", "surrogatepass"))


class NearIndex:
    """Index of n normal forms that finds the indexed forms near to other forms.

    Each band has the hashes of all indexed forms in rising order, so that a binary search finds
    the forms with the same hash.

    Args:
        forms: the n normal forms to index; n may be 0.
        banding: the bands of the signatures.
    """

    def __init__(self, forms: Sequence[str], banding: Banding):
        self.banding = banding
        self._forms = forms
        hashes = self._hash_bands(compute_signatures(forms, self.banding))
        self._order = np.argsort(hashes, axis=1, kind="stable").astype(np.int32)  # (bands, n)
        self._sorted = np.take_along_axis(hashes, self._order, axis=1)  # (bands, n)

    def find_near(
        self, forms: Sequence[str], min_similarity: float
    ) -> dict[str, list[tuple[str, float]]]:
        """Return form → the indexed forms with similar n-grams, each with its similarity.

        Args:
            forms: the normal forms to look up, all different.
            min_similarity: the smallest Jaccard similarity of the sets of n-grams, 0 to 1.

        An equal form is not near. Queried forms without a near form are left out.
        """
        near: dict[str, list[tuple[str, float]]] = {}
        grams = [split_grams(form, self.banding.grams) for form in forms]
        for query, indexed in zip(*self.find_candidates(forms), strict=True):
            form = forms[query]
            candidate = self._forms[indexed]
            if form == candidate:
                continue
            # A form has no more n-grams than characters, so the similarity is at most
            # len(candidate) / len(grams[query]); a candidate that is too short is skipped
            if len(candidate) < min_similarity * len(grams[query]):
                continue
            candidate_grams = split_grams(candidate, self.banding.grams)
            shared = len(grams[query] & candidate_grams)
            similarity = shared / len(grams[query] | candidate_grams)
            if similarity >= min_similarity:
                near.setdefault(form, []).append((candidate, similarity))
        return near

    def find_candidates(self, forms: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return the pairs of a queried and an indexed form that agree in a band, each pair once.

        Item i of the first list is the index of pair i's queried form in ``forms``. Item i of the
        second list is the index of its indexed form, in the order of the class's ``forms``.
        """
        if not forms or not len(self._forms):
            return [], []
        hashes = self._hash_bands(compute_signatures(forms, self.banding))
        pairs = []
        for band, sorted_band, order in zip(hashes, self._sorted, self._order, strict=True):
            # The equal hashes of query i are sorted_band[low[i] : low[i] + counts[i]]
            low = np.searchsorted(sorted_band, band, "left")
            counts = np.searchsorted(sorted_band, band, "right") - low
            # One entry for each pair: its query, and 0, 1, ... within the query's range
            queries = np.repeat(np.arange(len(forms)), counts)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            indexed = order[np.repeat(low, counts) + offsets]
            # A pair is one number, so that pairs of several bands can be made distinct
            pairs.append(queries * len(self._forms) + indexed)
        queries, positions = np.divmod(np.unique(np.concatenate(pairs)), len(self._forms))
        return queries.tolist(), positions.tolist()

    def _hash_bands(self, signatures: Signatures) -> NDArray[np.uint64]:
        """Return a 64-bit hash of every band's values, (bands, n), for n signatures.

        The hash is the sum of value x random odd weight, modulo 2^64. A collision adds a candidate,
        which ``find_near`` then compares in full.
        """
        rows = self.banding.rows
        draws = np.random.default_rng(MINHASH_SEED).integers(1 << 63, size=rows, dtype=np.uint64)
        weights = draws * 2 + 1
        values = signatures.reshape(len(signatures), self.banding.bands, rows).astype(np.uint64)
        return np.ascontiguousarray((values * weights).sum(axis=2, dtype=np.uint64).T)


@dataclass(frozen=True)
class EvaluationSet:
    """The texts of an evaluation split.

    ``name`` is the split's name, e.g. sts12/test, which all text forms share; ``form`` is the data
    set's name, e.g. sts12-original. ``sides`` has a tuple of n texts for each of the two sides of
    pairs, or one tuple for single texts. ``sha256`` is the hash of the rows.
    """

    name: str
    form: str
    sides: tuple[tuple[str, ...], ...]
    sha256: str

    @property
    def split(self) -> str:
        """The name of the split without its data set, e.g. test."""
        return self.name.partition("/")[2]


@dataclass(frozen=True)
class EvaluationTexts:
    """Evaluation splits to check a dataset against (``sets``).

    ``absent`` has the names of splits without files, e.g. sts12-original/test.
    """

    sets: tuple[EvaluationSet, ...]
    absent: tuple[str, ...]


def read_evaluation_sets(
    senteval: Path | None = None,
    originals: Path | None = None,
    names: Sequence[str] = (),
    pins: Pins | None = None,
) -> EvaluationTexts:
    """Read every evaluation split in the given directories.

    Without ``originals``, the validation and test splits of the STS Benchmark are read from the
    files that ship with the project.

    Args:
        senteval: SentEval's directory; None: its splits are not read.
        originals: the STS organisers' directory; None: of its splits only the shipped are read.
        names: read only these data sets, and require all their splits; empty: all data sets but
            the probing tasks and those whose sentences another data set has (``sick-e``,
            ``sick-r-full``). A split that a given directory lacks is then listed as absent.
        pins: the hashes that the rows must have; None: the project's.

    Raises InputError for an unknown name, for a directory without evaluation data, for a file that
    is altered or missing beside other files of its split, and for a missing split of ``names``.
    """
    # Choose the data sets; those without ``sentences`` are read by name only
    source = Source(senteval=senteval, originals=originals, pins=pins)
    roots: dict[Layout, Path | None] = {"senteval": senteval, "originals": originals}
    datasets = [find_dataset(name) for name in names]
    if not names:
        datasets = [dataset for dataset in DATASETS.values() if dataset.sentences is not None]

    # Read their splits; a split without files is absent
    sets: list[EvaluationSet] = []
    absent: list[str] = []
    layouts_read: set[Layout] = set()
    for dataset in datasets:
        root = roots[dataset.layout]
        for split in dataset.parts:
            if names or _has_split(dataset, split, root):
                _require_source(dataset, split, root)
                rows = source.load(dataset.name, [split])[split]
                name = f"{dataset.sentences or dataset.name}/{split}"
                sets.append(EvaluationSet(name, dataset.name, rows.columns, rows.sha256))
                layouts_read.add(dataset.layout)
            elif root is not None:
                absent.append(f"{dataset.name}/{split}")

    # Without names, refuse a directory that has no evaluation data
    for layout, root in roots.items():
        if not names and root is not None and layout not in layouts_read:
            raise InputError(
                root, "has no evaluation data", hint="check --senteval-data and --sts-data"
            )
    return EvaluationTexts(tuple(sets), tuple(absent))


def _require_source(dataset: DataSet, split: str, root: Path | None) -> None:
    """Raise InputError when ``root`` is None and the split does not ship with the project."""
    if root is None and split not in dataset.shipped:
        option = LAYOUTS[dataset.layout].option
        raise InputError(
            f"{dataset.name}/{split}",
            "no source of its data is given",
            hint=f"give {option}, or leave {dataset.name} out of --sets",
        )


def _has_split(dataset: DataSet, split: str, root: Path | None) -> bool:
    """Return whether ``root`` has at least one file of a split; None has the shipped splits.

    One file is enough, so that reading the split raises an error when another file is missing.
    """
    if root is None:
        return split in dataset.shipped
    paths = chain.from_iterable(
        list_layout_paths(root, name) for name in dataset.parts[split].files
    )
    return any(path.is_file() for path in paths)


LOOKUP_TEXTS = 512  # texts of one lookup in the index
MIN_NEAR_LETTERS = 16  # shorter normal forms of evaluation sentences have no near matches
SHORT_FORM_LETTERS = 12  # a match of a shorter normal form is by chance: its kind is "short"


class Location(NamedTuple):
    """Place of an evaluation sentence: a split like sts12/test, a row from 0, side 1 or 2."""

    split: str
    row: int
    side: int


class Match(NamedTuple):
    """Match of a text with one evaluation sentence.

    ``similarity`` is the Jaccard similarity of the 3-grams, 1 unless the kind is "near".
    ``sentence`` is the normal form of the evaluation sentence.
    """

    kind: MatchKind
    similarity: float
    sentence: str
    location: Location


class SentenceIndex:
    """Index of all evaluation sentences that finds the matches of a text.

    Args:
        sets: the evaluation splits. Their texts without letters and digits are left out.
        similarity: the smallest Jaccard similarity of a near match, above 0, at most 1.
    """

    def __init__(self, sets: Sequence[EvaluationSet], similarity: float = 0.5):
        self.similarity = similarity
        # normal form → location → hashes of the texts there, at most one for each text form
        self._locations: dict[str, dict[Location, set[bytes]]] = {}
        for evaluation_set in sets:
            for side, texts in enumerate(evaluation_set.sides, start=1):
                for row, text in enumerate(texts):
                    form = normalize_text(text)
                    if form:  # a text without letters and digits is left out
                        locations = self._locations.setdefault(form, {})
                        location = Location(evaluation_set.name, row, side)
                        locations.setdefault(location, set()).add(_hash_text(text))
        long_forms = [form for form in self._locations if len(form) >= MIN_NEAR_LETTERS]
        self._near = NearIndex(long_forms, Banding.choose(similarity))

    def __len__(self) -> int:
        """Return the number of distinct normal forms."""
        return len(self._locations)

    @property
    def settings(self) -> dict[str, float | int | dict[str, int]]:
        """The settings that a ledger records: similarity, numbers of letters, and banding.

        ``recall`` is the expected share of the pairs with just this similarity that are found.
        """
        banding = self._near.banding
        recall = 1 - (1 - self.similarity**banding.rows) ** banding.bands
        return {
            "similarity": self.similarity,
            "near_letters": MIN_NEAR_LETTERS,
            "short_letters": SHORT_FORM_LETTERS,
            "banding": asdict(banding),
            "recall": round(recall, 4),
        }

    def find_matches(self, texts: Sequence[str]) -> list[list[Match]]:
        """Return the matches of each of n texts, n lists, the strongest match first.

        A text has at most one match with each sentence of each split; a list without matches is
        empty. A normal form of fewer than ``SHORT_FORM_LETTERS`` letters has no near matches.
        """
        # Find the near sentences of each distinct form that is not short
        forms = [normalize_text(text) for text in texts]
        long_forms = list(dict.fromkeys(form for form in forms if len(form) >= SHORT_FORM_LETTERS))
        near: dict[str, list[tuple[str, float]]] = {}
        for start in range(0, len(long_forms), LOOKUP_TEXTS):
            near |= self._near.find_near(long_forms[start : start + LOOKUP_TEXTS], self.similarity)

        # Join the sentences with the same form and the near ones, and select the strongest matches
        matches = []
        for text, form in zip(texts, forms, strict=True):
            candidates = self._match_form(text, form)
            for sentence, similarity in near.get(form, ()):
                for location in self._locations[sentence]:
                    candidates.append(Match("near", similarity, sentence, location))
            matches.append(_select_strongest(candidates))
        return matches

    def _match_form(self, text: str, form: str) -> list[Match]:
        """Return a match with every location of ``form``, the normal form of ``text``.

        The kind is "short" for a short form, else "exact" where a text of the location has the
        same characters, else "normal".
        """
        text_hash = _hash_text(text)
        matches = []
        for location, hashes in self._locations.get(form, {}).items():
            kind: MatchKind = "exact" if text_hash in hashes else "normal"
            if len(form) < SHORT_FORM_LETTERS:
                kind = "short"
            matches.append(Match(kind, 1.0, form, location))
        return matches


def _select_strongest(matches: Sequence[Match]) -> list[Match]:
    """Return the strongest match with each sentence of each split, strongest first.

    ``matches``: the matches of one text. Of equally strong matches, the first location counts.
    """

    def rank(match: Match) -> tuple[int, float, Location]:
        # The smallest value is the strongest match
        return MATCH_KINDS.index(match.kind), -match.similarity, match.location

    strongest: dict[tuple[str, str], Match] = {}
    for match in sorted(matches, key=rank):
        strongest.setdefault((match.location.split, match.sentence), match)
    return list(strongest.values())


def _hash_text(text: str) -> bytes:
    """Return a 64-bit hash of a text, which stands for the text in memory."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
