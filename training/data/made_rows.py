"""Rows made from those of a dataset: texts paired with themselves, pairs and triplets of graded pairs; row weights.

They are made once, from all rows, and stay in memory: texts as Arrow columns, rows as indices into them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from hub.contract.sections.model import Grades
from hub.errors import InputError
from training.data.example_types import GRADED_PAIR, GRADED_TRIPLET, SELF_PAIR, STS, WEIGHT

FIRST_TEXTS = ("sentence1", "premise", "anchor", "text")  # what forms call a first text


def text_columns(named: tuple[str, ...] | None, there: list[str], place: str) -> tuple[str, ...]:
    """The columns whose texts are paired with themselves: those named, else that of the first texts.

    Raises InputError when none is named and none of ``FIRST_TEXTS`` is there.
    """
    if named is not None:
        return named
    found = next((column for column in FIRST_TEXTS if column in there), None)
    if found is None:
        hint = "name the columns of the texts: datasets.N.columns"
        raise InputError(place, f"has none of the columns {', '.join(FIRST_TEXTS)}", allowed=there, hint=hint)
    return (found,)


def self_pairs(rows: Dataset, limit: int | None) -> Dataset:
    """Each distinct text of all columns as (anchor, positive), in the order of the rows; blank ones are passed over.

    The source of both sides is unsupervised SimCSE (Gao et al. 2021, section 3): dropout alone tells them apart.
    """
    table = rows.with_format("arrow")[:]
    columns = [table[name].cast(pa.string()).combine_chunks() for name in table.column_names]
    count = len(columns)
    interleaved = pa.concat_arrays(columns).take(pa.array(np.arange(count * len(rows)).reshape(count, -1).T.ravel()))
    texts = pc.unique(interleaved)
    texts = texts.filter(pc.not_equal(pc.utf8_trim_whitespace(texts), ""))[:limit]
    return _dataset({"anchor": texts, "positive": texts}, SELF_PAIR.features.arrow_schema)


@dataclass
class _OfAnchor:
    """Rows of one first text, by what their scores make them."""

    positives: list[int] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)


def graded_rows(
    rows: Dataset, grades: Grades, with_negatives: bool, weights: str | None, limit: int | None
) -> tuple[Dataset, int]:
    """(anchor, positive[, negative]) of scored pairs, one row for each positive; and the number of anchors without any.

    The i-th positive of a first text takes its i-th negative, hardest (of the highest score) first, and begins again
    when they are used up. A negative with the text of a positive is none. With ``with_negatives`` a first text needs
    both. A row's weight is that of its positive.
    """
    table = rows.with_format("arrow")[:]
    first, second, scores = (table[name] for name in STS.columns)
    second_texts, values = second.to_pylist(), scores.to_numpy()
    positives: list[int] = []
    negatives: list[int] = []
    without = 0
    for found in _by_anchor(first.to_pylist(), values, grades):
        taken = {second_texts[row] for row in found.positives}
        others = [row for row in found.negatives if second_texts[row] not in taken]
        others.sort(key=lambda row: -values[row])
        if not found.positives or (with_negatives and not others):
            without += 1
            continue
        positives += found.positives
        if with_negatives:
            negatives += [others[index % len(others)] for index in range(len(found.positives))]
    chosen = pa.array(positives[:limit], pa.int64())
    columns = {"anchor": first.take(chosen), "positive": second.take(chosen)}
    if with_negatives:
        columns["negative"] = second.take(pa.array(negatives[:limit], pa.int64()))
    schema = (GRADED_TRIPLET if with_negatives else GRADED_PAIR).features.arrow_schema
    if weights is not None:
        columns[weights] = table[weights].take(chosen)
        schema = schema.append(table.schema.field(weights))
    return _dataset(columns, schema), without


def _by_anchor(first: list[str], scores: np.ndarray, grades: Grades) -> Iterator[_OfAnchor]:
    """The rows of each first text, in the order in which first texts come."""
    bounds = (grades.positive_from, grades.negative_from, grades.negative_to)
    positive_from, negative_from, negative_to = np.asarray(bounds, dtype=np.float32)  # as published scores are
    found: dict[str, _OfAnchor] = {}
    for row, (text, score) in enumerate(zip(first, scores.astype(np.float32), strict=True)):
        of = found.setdefault(text, _OfAnchor())
        if score >= positive_from:
            of.positives.append(row)
        elif negative_from <= score <= negative_to:
            of.negatives.append(row)
    yield from found.values()


def weighted(rows: Dataset, column: str, place: str) -> Dataset:
    """``rows`` with their weights, divided by their mean, as the column ``WEIGHT`` in float32.

    A loss that multiplies by them is then the weighted mean over the dataset, however its batches are cut. Raises
    InputError when every weight is 0.
    """
    weights = np.asarray(rows.with_format("numpy")[column][:], dtype=np.float64)
    mean = weights.mean()
    if not mean > 0:
        raise InputError(place, f"every weight in column {column!r} is 0", allowed="some row that counts")
    if not np.isfinite(mean):
        raise InputError(place, f"the weights in column {column!r} have no finite mean", allowed="smaller numbers")
    return rows.remove_columns(column).add_column(WEIGHT, (weights / mean).astype(np.float32))


def _dataset(columns: dict[str, pa.Array | pa.ChunkedArray], schema: pa.Schema) -> Dataset:
    return Dataset(pa.table(columns).cast(schema))
