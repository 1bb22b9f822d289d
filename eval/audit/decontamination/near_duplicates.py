"""Near-duplicate sentences: MinHash signatures of character n-grams, banded candidates, exact Jaccard similarity.

Signatures are datasketch's (Broder 1997). The band index is ours: sorted arrays instead of a set for every bucket of
every band. It gives the candidates of ``datasketch.MinHashLSH`` with the same bands (tested) in a fraction of its
memory, and answers whole batches at once.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Signatures = NDArray[np.uint32]  # (n, permutations)
SEED = 1
SCHEME = "affine32"
RECALL = 0.99  # of the pairs at the threshold that are to be expected among the candidates
LONGEST = 768  # values of a signature
WIDEST = 4  # rows of a band: more make fewer candidates and, for one threshold, longer signatures


@dataclass(frozen=True)
class Banding:
    """Two texts are candidates when all values of at least one band agree."""

    bands: int
    rows: int
    grams: int = 3  # characters of the normal form

    @classmethod
    def at(cls, similarity: float) -> "Banding":
        """The banding that finds ``RECALL`` of the pairs with this similarity, and more of those with a higher one.

        Of the numbers of rows up to ``WIDEST`` the largest whose signature is no longer than ``LONGEST``.
        """
        bandings = [_reaching(similarity, rows) for rows in range(1, WIDEST + 1)]
        return [banding for banding in bandings if banding.permutations <= LONGEST][-1]

    def recall(self, similarity: float) -> float:
        """The expected share of the pairs with this similarity that are candidates: 1 - (1 - s^rows)^bands."""
        return 1 - (1 - similarity**self.rows) ** self.bands

    @property
    def permutations(self) -> int:
        """Values of a signature."""
        return self.bands * self.rows


def _reaching(similarity: float, rows: int) -> Banding:
    """The fewest bands of so many rows that reach ``RECALL`` at this similarity."""
    alike = similarity**rows  # the probability that one band agrees
    return Banding(1 if alike >= RECALL else math.ceil(math.log(1 - RECALL) / math.log(1 - alike)), rows)


def grams(form: str, size: int) -> set[str]:
    """The character n-grams of a text in normal form; a shorter text is its own only one."""
    return {form[start : start + size] for start in range(max(1, len(form) - size + 1))}


def jaccard(first: set[str], second: set[str]) -> float:
    """Members of both over members of either."""
    common = len(first & second)
    return common / (len(first) + len(second) - common)


def signatures(forms: Sequence[str], banding: Banding) -> Signatures:
    """MinHash signatures of texts in normal form, (n, permutations)."""
    from datasketch import MinHash

    permutations = MinHash(banding.permutations, seed=SEED, scheme=SCHEME).permutations
    found = np.empty((len(forms), banding.permutations), dtype=np.uint32)
    for row, form in enumerate(forms):
        one = MinHash(banding.permutations, permutations=permutations, scheme=SCHEME, hashfunc=_hashed)
        one.update_batch(grams(form, banding.grams))
        found[row] = one.hashvalues
    return found


def _hashed(gram: str) -> int:
    return zlib.crc32(gram.encode("utf-8", "surrogatepass"))


class NearIndex:
    """Texts in normal form, to be asked which of them are near to others."""

    def __init__(self, forms: Sequence[str], banding: Banding):
        self.banding = banding
        self._forms = forms
        hashes = self._banded(signatures(forms, self.banding))
        self._order = np.argsort(hashes, axis=1, kind="stable").astype(np.int32)  # (bands, n)
        self._sorted = np.take_along_axis(hashes, self._order, axis=1)

    def near(self, forms: Sequence[str], least: float) -> list[list[tuple[int, float]]]:
        """For each text the indexed texts whose n-grams have a Jaccard similarity of ``least`` or more, best first."""
        found: list[list[tuple[int, float]]] = [[] for _ in forms]
        asked = [grams(form, self.banding.grams) for form in forms]
        for query, place in zip(*self.candidates(forms), strict=True):
            mine, other = asked[query], self._forms[place]
            if least * len(mine) > len(other):  # a text has no more n-grams than characters
                continue
            similarity = jaccard(mine, grams(other, self.banding.grams))
            if similarity >= least:
                found[query].append((place, similarity))
        return [sorted(one, key=lambda match: (-match[1], match[0])) for one in found]

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
