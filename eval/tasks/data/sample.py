"""Part of a split, for a trial: rows drawn by a seed, as many of every subset or class as it has of the whole."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eval.tasks.data.example_types import Captions, LabelledPairs, LabelledTexts, Rows, ScoredPairs

Indices = NDArray[np.intp]


def drawn(rows: Rows, limit: int | None, seed: int) -> Rows:
    """``limit`` of the rows (all when None), in their order, with the SHA-256 of the whole.

    The first rows would be no sample: STSb's begin with captions, the years' with one subset, labelled rows often lie
    sorted by class. Of captions, those of images drawn one after another.
    """
    if limit is None or limit >= len(rows):
        return rows
    if isinstance(rows, ScoredPairs):
        return _pairs(rows, limit, seed)
    if isinstance(rows, Captions):
        chosen = _captions(rows, limit, seed)
        return replace(rows, text=_of(rows.text, chosen), image_of=rows.image_of[chosen])
    chosen = spread(rows.labels, limit, seed)
    if isinstance(rows, LabelledTexts):
        return replace(rows, text=_of(rows.text, chosen), labels=rows.labels[chosen])
    assert isinstance(rows, LabelledPairs)
    return replace(rows, first=_of(rows.first, chosen), second=_of(rows.second, chosen), labels=rows.labels[chosen])


def spread(strata: NDArray[np.integer], limit: int, seed: int) -> Indices:
    """Indices (limit,), sorted, of rows drawn without replacement, each as likely as any other.

    ``strata`` (n,) numbers each row's group; a group's share of the drawn rows is its share of all, but for rounding
    (systematic sampling of shuffled rows, sorted by group).
    """
    draw = np.random.default_rng(seed)
    shuffled = draw.permutation(len(strata))
    by_group = shuffled[np.argsort(strata[shuffled], kind="stable")]
    places = ((np.arange(limit) + draw.random()) * len(strata) / limit).astype(np.intp)
    return np.sort(by_group[places])


def _pairs(rows: ScoredPairs, limit: int, seed: int) -> ScoredPairs:
    group = np.zeros(len(rows), dtype=np.intp)
    for number, (_, start, stop) in enumerate(rows.subsets):
        group[start:stop] = number
    chosen = spread(group, limit, seed)
    ends = [(name, *np.searchsorted(chosen, (start, stop)).tolist()) for name, start, stop in rows.subsets]
    subsets = tuple((name, start, stop) for name, start, stop in ends if start < stop)
    return ScoredPairs(_of(rows.first, chosen), _of(rows.second, chosen), rows.gold[chosen], rows.sha256, subsets)


def _captions(rows: Captions, limit: int, seed: int) -> Indices:
    """The captions of images in a drawn order, until there are enough."""
    place = np.random.default_rng(seed).permutation(int(rows.image_of.max()) + 1)
    return np.sort(np.argsort(place[rows.image_of], kind="stable")[:limit])


def _of(texts: tuple[str, ...], chosen: Indices) -> tuple[str, ...]:
    return tuple(texts[row] for row in chosen)
