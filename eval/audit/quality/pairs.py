"""A number for every pair, label by label: lexical overlap and the cosine of an encoder's embeddings.

Of a pair, four bytes per measure are kept.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from eval.audit.quality.measures import QUANTILES, Auc, Measure, Spread
from eval.audit.rows import Batch
from eval.audit.text_forms import words
from eval.encoders.load import Encoder
from eval.encoders.output import checked

Values = Callable[[list[str], list[str]], Sequence[float]]  # first and second texts → a number per pair
ORDER = ("contradiction", "negative", "neutral", "entailment", "positive")  # rising likeness
BIN = 0.05  # of histograms
BLOCK = 512  # texts an encoder is given at once


def jaccard(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over words in either; 1 where both have none."""
    return [len(a & b) / len(a | b) if a | b else 1.0 for a, b in _word_sets(first, second)]


def overlap_coefficient(first: list[str], second: list[str]) -> list[float]:
    """Words in both texts over the words of the text with fewer; 1 where one has none."""
    return [len(a & b) / min(len(a), len(b)) if a and b else 1.0 for a, b in _word_sets(first, second)]


def _word_sets(first: list[str], second: list[str]) -> list[tuple[set[str], set[str]]]:
    return [(set(words(a)), set(words(b))) for a, b in zip(first, second, strict=True)]


def cosine(encoder: Encoder) -> Values:
    """Cosine similarity under an encoder, 0 with a zero vector; every distinct text of a batch is encoded once.

    Raises InputError when the encoder gives no embeddings.
    """

    def values(first: list[str], second: list[str]) -> list[float]:
        texts = sorted(dict.fromkeys((*first, *second)), key=len)  # little padding
        blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
        found = np.concatenate([checked(encoder.embed(b), b, encoder.name, encoder.dimension) for b in blocks])
        unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        place = {text: row for row, text in enumerate(texts)}
        left, right = ([place[text] for text in side] for side in (first, second))
        return [float(value) for value in np.einsum("ij,ij->i", unit[left], unit[right], dtype=np.float64)]

    return values


class PairMeasure:
    """One measure over all pairs, label by label."""

    def __init__(self, name: str, values: Values, low: float, source: str | None = None, revision: str | None = None):
        self._name, self._values, self._source, self._revision = name, values, source, revision
        self._edges = np.linspace(low, 1.0, round((1.0 - low) / BIN) + 1)
        self._found: dict[str, array[float]] = defaultdict(lambda: array("f"))
        self._scores: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # label → sum of its scores, pairs

    def add(self, batch: Batch) -> None:
        """Measure a batch's pairs."""
        first, second, labels = batch.pairs()
        if not first:
            return
        for label, value in zip(labels, self._values(first, second), strict=True):
            self._found[label].append(value)
        for label, score in zip(labels, batch.scores, strict=False):
            self._scores[label][0] += score
            self._scores[label][1] += 1

    def measure(self) -> Measure | None:
        """What was measured, labels in rising order; None without pairs."""
        if not self._found:
            return None
        ordered = sorted(self._found, key=self._rank)
        values = {label: np.asarray(self._found[label], dtype=np.float64) for label in ordered}
        return Measure(
            name=self._name,
            source=self._source,
            revision=self._revision,
            edges=tuple(self._edges),
            labels=tuple(self._spread(label, values[label]) for label in ordered),
            separations=tuple(
                Auc(lower=lower, higher=higher, auc=auc(values[lower], values[higher]))
                for lower, higher in pairwise(ordered)
            ),
        )

    def _rank(self, label: str) -> tuple[float, int, str]:
        """By the mean score of its pairs, else by what the label means, else by name."""
        total, pairs = self._scores.get(label, (0.0, 0.0))
        return (total / pairs if pairs else 0.0, ORDER.index(label) if label in ORDER else len(ORDER), label)

    def _spread(self, label: str, values: NDArray[np.float64]) -> Spread:
        cuts = np.quantile(values, QUANTILES)
        cells, _ = np.histogram(np.clip(values, self._edges[0], self._edges[-1]), self._edges)
        return Spread(
            label=label,
            n=len(values),
            mean=float(values.mean()),
            sd=float(values.std()),
            quantiles={f"{q:g}": float(value) for q, value in zip(QUANTILES, cuts, strict=True)},
            histogram=tuple(int(cell) for cell in cells),
        )


def auc(lower: NDArray[np.float64], higher: NDArray[np.float64]) -> float:
    """The chance that a value of ``higher`` exceeds one of ``lower``, ties counting half."""
    is_higher = np.repeat([0, 1], [len(lower), len(higher)])
    return float(roc_auc_score(is_higher, np.concatenate([lower, higher])))
