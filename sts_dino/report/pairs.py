"""Random pairs of each label of a dataset, their cosine similarities, and the pairs farthest from their label."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from eval.audit.source import Batch, DatasetRows

PER_LABEL = 300  # drawn pairs
SEED = 42
ALL = "all"  # rows of a config without labels
Cosines = Mapping[str, Sequence[float]]  # label → a number for each drawn pair


@dataclass(frozen=True)
class Pair:
    """A row of a dataset: two texts, or one and an empty second. ``score`` is None where rows have none."""

    first: str
    second: str
    score: float | None = None


@dataclass(frozen=True)
class Sample:
    """Label → drawn pairs in random order; ``totals``: label → all its rows. ``drawn`` False: the first rows found."""

    config: str
    pairs: dict[str, tuple[Pair, ...]]
    totals: dict[str, int]
    drawn: bool = True

    @property
    def has_pairs(self) -> bool:
        """Whether rows have two texts."""
        return any(pair.second for pairs in self.pairs.values() for pair in pairs)


@dataclass(frozen=True)
class Misfit:
    """A pair, its cosine similarity, and the expected one: its score, else the median of its label's drawn pairs."""

    label: str
    pair: Pair
    cosine: float
    expected: float


def draw(rows: DatasetRows, labels: Sequence[str], count: int = PER_LABEL, seed: int = SEED) -> Sample:
    """At most ``count`` pairs of each label, drawn without replacement; ``labels`` come first, in their order."""
    random, totals = np.random.default_rng(seed), Counter[str]()
    kept: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
    for batch in rows.batches():
        found = _pairs(batch)
        totals.update(label for label, _ in found)
        new: dict[str, list[tuple[float, Pair]]] = defaultdict(list)
        for key, (label, pair) in zip(random.random(len(found)).tolist(), found, strict=True):
            if len(kept[label]) < count or key < kept[label][-1][0]:
                new[label].append((key, pair))
        for label, some in new.items():
            kept[label] = heapq.nsmallest(count, [*kept[label], *some], key=lambda one: one[0])
    ordered = [label for label in labels if label in kept] + sorted(kept.keys() - set(labels))
    pairs = {label: tuple(pair for _, pair in kept[label]) for label in ordered}
    return Sample(rows.config, pairs, {label: totals[label] for label in ordered})


def _pairs(batch: Batch) -> list[tuple[str, Pair]]:
    first, second, labels = batch.pairs()
    if not first:  # single texts
        first = next(iter(batch.texts.values()))
        second, labels = [""] * len(first), batch.labels
    scores = batch.scores if len(batch.scores) == len(first) else [None] * len(first)
    columns = zip(first, second, labels or [ALL] * len(first), scores, strict=True)
    return [(label, Pair(a, b, score)) for a, b, label, score in columns]


def misfits(sample: Sample, cosines: Cosines, count: int = 10) -> list[Misfit]:
    """The drawn pairs whose cosine differs most from the expected one; the farthest first."""
    found = [
        Misfit(label, pair, cosine, float(np.median(cosines[label])) if pair.score is None else pair.score)
        for label, pairs in sample.pairs.items()
        for pair, cosine in zip(pairs, cosines[label], strict=True)
    ]
    return heapq.nlargest(count, found, key=lambda one: abs(one.cosine - one.expected))


def cosines_of(sample: Sample, encoders: Mapping[str, Path]) -> dict[str, Cosines]:
    """Name of an encoder → the cosine similarities of a sample's pairs; its embeddings are kept, as for its scores."""
    from eval.encoders.embeddings import Embeddings, paired  # it and the encoder cost seconds
    from eval.encoders.load import load_encoder

    rows, found = [pair for pairs in sample.pairs.values() for pair in pairs], dict[str, Cosines]()
    for name, folder in encoders.items():
        with Embeddings(load_encoder(str(folder))) as embeddings:
            values = iter(
                paired(embeddings.rows([one.first for one in rows]), embeddings.rows([one.second for one in rows]))
            )
        found[name] = {label: [round(next(values), 6) for _ in pairs] for label, pairs in sample.pairs.items()}
    return found
