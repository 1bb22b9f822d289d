"""Label fidelity: whether second texts are as near to their first text as their label says, by a judge's cosine.

Rows are those that one trains on, sampled negatives left out: nobody wrote them for their first text. First texts are
drawn, not rows: what is written for one first text is not independent, so intervals resample first texts.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.audit.source import Batch, DatasetRows
from hub.contract.label_fidelity import NEAR_COPY, Interval, LabelFidelity
from hub.contract.recipe import NLI_LABELS
from hub.contract.schema import SAMPLED
from hub.errors import InputError
from hub.word_overlap import word_overlap

DRAWS = 2000  # resamples of first texts
Rows = NDArray[np.int64]
Statistic = Callable[[Rows], float]


@dataclass(frozen=True)
class Pairs:
    """Pairs of drawn first texts, row by row; ``all_first_texts`` is how many there are to draw from."""

    place: str
    first: list[str]
    second: list[str]
    labels: list[str]
    all_first_texts: int

    @property
    def first_texts(self) -> int:
        """How many were drawn."""
        return len(set(self.first))


def draw_pairs(rows: DatasetRows, count: int, seed: int) -> Pairs:
    """All pairs of ``count`` first texts drawn at random, of all where there are fewer.

    Rows are read twice; of each first text eight bytes are kept. Raises InputError when there are no labelled pairs.
    """
    place = f"{rows.name} ({rows.config})"
    if len(rows.columns) != 2 or rows.labelled_by is None:
        raise InputError(place, f"has {rows.example_type} rows", allowed="labelled pairs (schema: sts or nli)")
    seen = array("Q")
    for batch in rows.batches():
        seen.extend(_hash(first, seed) for first, _, _ in _written(batch))
    hashes = np.unique(np.frombuffer(seen, dtype=np.uint64))
    if not len(hashes):
        raise InputError(place, "has no pair that was written for a label")
    last = hashes[min(count, len(hashes)) - 1]  # the smallest hashes: a simple random sample
    drawn = [row for batch in rows.batches() for row in _written(batch) if _hash(row[0], seed) <= last]
    first, second, labels = (list(column) for column in zip(*drawn, strict=True))
    return Pairs(place, first, second, labels, len(hashes))


def _written(batch: Batch) -> list[tuple[str, str, str]]:
    return [row for row in zip(*batch.pairs(), strict=True) if row[2] != SAMPLED]


def _hash(text: str, seed: int) -> int:
    digest = hashlib.blake2b(f"{seed}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def label_fidelity(
    pairs: Pairs, scores: Mapping[str, float | None], cosines: Sequence[float], classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """What ``hub.contract.label_fidelity.Fidelity`` says of texts: ``labels``, ``spearman``, ``near_copies``.

    scores: of each label, None where labels have none; ``cosines`` and an NLI judge's ``classes``: one a pair.
    Raises InputError for a label without a text.
    """
    targets, values = np.array(pairs.labels), np.asarray(cosines, dtype=np.float64)
    missing = [label for label in scores if label not in set(pairs.labels)]
    if missing:
        raise InputError(pairs.place, f"no text of label {missing[0]!r} was kept", hint="give a larger run")
    resamples = resampled(pairs.first)
    overlaps = np.array([word_overlap(*both) for both in zip(pairs.first, pairs.second, strict=True)])
    same = np.array([first == second for first, second in zip(pairs.first, pairs.second, strict=True)])

    def of_label(label: str) -> LabelFidelity:
        chosen = targets == label

        def mean(rows: Rows) -> float:
            found = values[rows][chosen[rows]]
            return float(found.mean()) if len(found) else float("nan")

        judged = Counter(name for name, is_it in zip(classes or (), chosen, strict=False) if is_it)
        return LabelFidelity(
            texts=int(chosen.sum()),
            cosine=_interval(mean, resamples, len(values)),
            identical=float(same[chosen].mean()),
            near_copies=float((overlaps[chosen] >= NEAR_COPY).mean()),
            word_overlap=float(overlaps[chosen].mean()),
            nli={name: judged[name] / judged.total() for name in NLI_LABELS} if classes is not None else None,
        )

    graded = np.array([scores.get(label) for label in pairs.labels], dtype=np.float64)  # NaN: no score
    return {
        "labels": {label: of_label(label) for label in scores},
        "spearman": None if np.isnan(graded).any() else correlation_interval(graded, values, resamples),
        "near_copies": float((overlaps >= NEAR_COPY).mean()),
    }


def correlation_interval(
    graded: ArrayLike, values: ArrayLike, resamples: Sequence[Rows], less: ArrayLike | None = None
) -> Interval | None:
    """Spearman's correlation of scores and values, with its interval; with ``less``, minus that of scores and those.

    None where it is undefined: scores or values that are all the same.
    """
    from scipy.stats import spearmanr

    scores, others = np.asarray(graded), [np.asarray(one) for one in (values, less) if one is not None]

    def correlation(rows: Rows) -> float:
        both = [(scores[rows], other[rows]) for other in others]
        if any(np.ptp(one) == 0 for pair in both for one in pair):
            return float("nan")
        found = [float(spearmanr(*pair).statistic) for pair in both]
        return found[0] - (found[1] if less is not None else 0.0)

    whole = np.arange(len(scores))
    return None if np.isnan(correlation(whole)) else _interval(correlation, resamples, len(whole))


def resampled(first: Sequence[str]) -> list[Rows]:
    """The rows of as many first texts as there are, drawn with replacement, ``DRAWS`` times."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(first))}
    of_rows = np.array([numbers[text] for text in first])
    order, counts = np.argsort(of_rows, kind="stable"), np.bincount(of_rows)
    members = np.split(order.astype(np.int32), np.cumsum(counts)[:-1])
    draws = np.random.default_rng(0).integers(0, len(members), (DRAWS, len(members)))
    return [np.concatenate([members[number] for number in drawn]) for drawn in draws]


def _interval(value: Statistic, resamples: Sequence[Rows], rows: int) -> Interval:
    """A statistic of all rows, and its 95 % percentile interval; resamples that leave it undefined are passed over."""
    whole = value(np.arange(rows))
    with np.errstate(invalid="ignore"):
        low, high = np.nanpercentile([value(drawn) for drawn in resamples], [2.5, 97.5])
    low, high = (end if np.isfinite(end) else whole for end in (low, high))
    return Interval(value=round(whole, 4), low=round(float(low), 4), high=round(float(high), 4))
