"""A dataset's rows, batch by batch. No more than one batch of texts is held; rows drawn at random keep their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eval.audit.label_meanings import LabelMeanings
from hub.contract.schema import ROW_SCHEMAS, text_schema
from hub.errors import InputError

if TYPE_CHECKING:
    from datasets import Features

BATCH = 4096  # rows
_SCHEMAS = {**ROW_SCHEMAS, "text": text_schema(())}
TEXTS = {  # example type → its text columns
    name: tuple(column for column, of in schema.columns.items() if of == "string") for name, schema in _SCHEMAS.items()
}
LABELS = {  # example type → the column of its label
    name: column for name, schema in _SCHEMAS.items() for column, of in schema.columns.items() if of != "string"
}
TARGET = "target"  # provenance: the label whose instruction was given
NO_LABEL = "no label"

Read = Callable[[str, list[str]], Iterator[pa.Table]]  # split, columns → tables of at most ``BATCH`` rows


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a split; those not drawn are left out. ``labels`` is empty for triplets."""

    split: str
    rows: NDArray[np.int64]  # (n,) their numbers in the split, from 0
    texts: dict[str, list[str]]  # column → n texts
    labels: list[str]
    scores: list[float]  # of the sts type, else empty

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> tuple[list[str], list[str], list[str]]:
        """First texts, second texts and labels of the batch's pairs: a triplet is a positive pair, then a negative one.

        Single texts are no pairs: three empty lists.
        """
        columns = list(self.texts.values())
        if len(columns) == 3:
            anchors = [anchor for anchor in columns[0] for _ in range(2)]
            others = [text for both in zip(*columns[1:], strict=True) for text in both]
            return anchors, others, ["positive", "negative"] * len(self)
        return (columns[0], columns[1], self.labels) if len(columns) == 2 else ([], [], [])


@dataclass(frozen=True)
class DatasetRows:
    """One config of a dataset. ``revision`` is the Hub commit or the run's fingerprint.

    ``meanings`` reads what its labels mean in its recipe's words, and in which language.
    """

    name: str
    revision: str
    config: str
    example_type: str
    splits: dict[str, int]  # split → rows
    class_names: tuple[str, ...]
    labelled_by: str | None  # column
    read: Read
    meanings: Callable[[], LabelMeanings] = LabelMeanings

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns, in the example type's order."""
        return TEXTS[self.example_type]

    @property
    def total(self) -> int:
        """Rows of all splits."""
        return sum(self.splits.values())

    def drawn(self, sample: int | None, seed: int) -> NDArray[np.int64]:
        """Numbers (over all splits, in order) of ``sample`` rows drawn without replacement, sorted; all when None."""
        if sample is None or sample >= self.total:
            return np.arange(self.total)
        return np.sort(np.random.default_rng(seed).choice(self.total, sample, replace=False))

    def batches(self, sample: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """All rows, or ``sample`` of them drawn at random, split by split.

        Raises InputError for a scored pair whose score is no number.
        """
        chosen, first = self.drawn(sample, seed), 0
        asked = dict.fromkeys([*self.columns, *([self.labelled_by] if self.labelled_by else [])])
        if self.example_type == "sts":
            asked["score"] = None
        for split, rows in self.splits.items():
            start = first
            for table in self.read(split, list(asked)):
                low, high = np.searchsorted(chosen, [start, start + len(table)])
                kept = chosen[low:high] - start
                if len(kept):
                    yield self._batch(split, kept + start - first, table.take(kept))
                start += len(table)
            first += rows

    def _batch(self, split: str, rows: NDArray[np.int64], table: pa.Table) -> Batch:
        texts = {column: [text or "" for text in table[column].to_pylist()] for column in self.columns}
        scores = table["score"].to_pylist() if self.example_type == "sts" else []
        for row, score in zip(rows, scores, strict=False):
            if score is None or not math.isfinite(score):
                place = f"{self.name} ({self.config}), {split} row {row}"
                raise InputError(place, f"has the score {score}", allowed="a number", hint="drop the row")
        labels = [self._label(value) for value in table[self.labelled_by].to_pylist()] if self.labelled_by else []
        return Batch(split, rows, texts, labels, scores)

    def _label(self, value: object) -> str:
        if isinstance(value, float):
            return f"{round(value, 1):g}"  # people's scores: one group a tenth
        if isinstance(value, int) and 0 <= value < len(self.class_names):
            return self.class_names[value]
        return NO_LABEL if value is None or value == -1 else str(value)


def example_type_of(features: Features, place: str) -> tuple[str, str | None, tuple[str, ...]]:
    """The example type of a config with these columns, the column that labels its rows, and the names of its classes.

    Raises InputError when the columns are of no example type, or texts or scores of another type.
    """
    from datasets import ClassLabel

    needed = {form: [*texts, LABELS[form]] if form in LABELS else texts for form, texts in TEXTS.items()}
    form = next((form for form, columns in needed.items() if features.keys() >= {*columns}), None)
    if form is None:
        allowed = " | ".join(map(", ".join, needed.values()))
        raise InputError(place, f"has the columns {sorted(features)}", allowed=allowed)
    for column in TEXTS[form]:
        _require_type(features, column, ("string", "large_string"), place)
    if form == "sts":
        _require_type(features, "score", ("float", "int", "double"), place)
    kind = features.get("label")
    names = tuple(kind.names) if isinstance(kind, ClassLabel) else ()
    return form, TARGET if form == "sts" and TARGET in features else LABELS.get(form), names


def _require_type(features: Features, column: str, allowed: tuple[str, ...], place: str) -> None:
    from datasets import Value

    kind = features[column]
    dtype = kind.dtype if isinstance(kind, Value) else type(kind).__name__
    if not dtype.startswith(allowed):
        raise InputError(place, f"its column {column!r} is of the type {dtype}", allowed=" or ".join(allowed[:2]))
