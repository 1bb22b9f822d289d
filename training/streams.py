"""Training rows that are read while training: neither this machine's memory nor its disk holds them all.

Rows are checked as they come, the first of them before training starts. A stream comes in an order of its own: its
files shuffled, and rows drawn from a buffer of some thousand (``BUFFER``), both by the run's seed and the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset

from hub.errors import InputError, RunError
from hub.recipe import Spans, TrainingData
from hub.remote import reading
from hub.row_errors import reading_rows
from training.row_checks import (
    COLUMNS,
    DOCUMENTS,
    NO_ROWS,
    ROWS,
    Spread,
    check_cells,
    check_columns,
    example_sets,
    of_example_set,
    require_long_enough,
    require_rows,
)

BUFFER = {"sts": 10_000, "triplet": 10_000, "pair-class": 10_000, DOCUMENTS: 1_000}  # rows that a stream draws from


def checked_stream(rows: IterableDataset, spec: TrainingData, place: str, limit: int | None) -> IterableDataset:
    """The first ``limit`` rows (of one example set) of a stream, in order, with the form's columns and features.

    Raises InputError when its first ``ROWS`` rows cannot be learned from; a bad row further on raises the same error
    when it is reached, with its number in the order of reading.
    """
    head = in_memory(rows.take(ROWS), place).data.table
    check_columns(head.schema, spec.form, spec.example_set, place)
    spread, part = Spread(), _read(head, list(range(head.num_rows)), spec.form, spec.example_set, place)
    spread.add(part, spec.form)
    found = [] if spec.example_set is None else example_sets(head)
    require_rows(spread, spec.form, f"{place} (the first {ROWS:,} rows)", spec.example_set, found)
    if spec.form == DOCUMENTS and head.num_rows < ROWS:  # these are all there are
        require_long_enough(spread, spec.spans or Spans(), place)
    stream = rows.with_format("arrow").map(
        _read,
        with_indices=True,
        batched=True,
        batch_size=ROWS,
        features=COLUMNS[spec.form],
        remove_columns=[name for name in head.column_names if name not in COLUMNS[spec.form]],
        fn_kwargs={"form": spec.form, "example_set": spec.example_set, "place": place},
    )
    stream = stream.with_format(None)
    return stream if limit is None else stream.take(limit)


def _read(table: pa.Table, numbers: list[int], form: str, example_set: int | None, place: str) -> pa.Table:
    """The rows of a stream that are trained on, checked, with the form's features."""
    keep = of_example_set(table, example_set)
    part = table.take(keep).select(list(COLUMNS[form]))
    check_cells(part, form, f"{place}, as read", np.asarray(numbers, dtype=np.int64)[keep])
    return part.cast(COLUMNS[form].arrow_schema)


def shuffled(rows: IterableDataset, form: str, seed: int) -> IterableDataset:
    """A stream in the order of ``seed`` and its epoch: files shuffled, rows drawn from a buffer.

    One file at a time: read several at once, they are fed by threads whose end upstream waits five seconds for, and a
    row's number would be that in its file.
    """
    return rows.shuffle(seed=seed, buffer_size=BUFFER[form], max_buffer_input_shards=1)


@contextmanager
def stream_errors(spec: TrainingData) -> Iterator[None]:
    """Tell what ends a stream in the middle: a Hub that is gone (RunError), or bytes that are no rows (InputError)."""
    if not spec.streaming:
        yield
        return
    hub = reading(spec.repo_id, spec.revision) if spec.repo_id is not None else nullcontext()
    with hub, reading_rows(f"datasets.0: {spec.repo_id or spec.path}"):
        yield


def in_memory(rows: IterableDataset, place: str) -> Dataset:
    """All rows of a short stream. Raises InputError when it has none or cannot be read."""
    with reading_rows(place):
        parts = list(rows.with_format("arrow").iter(batch_size=ROWS))
    if not parts:
        raise InputError(place, "has no rows", hint=NO_ROWS)
    return Dataset(pa.concat_tables(parts))


def endless(rows: IterableDataset, place: str) -> IterableDataset:
    """``rows`` pass after pass, each in the order of its number, as one stream.

    A step is then a place in one sequence, to which a killed run can return. Raises RunError when a pass is empty.
    """
    return IterableDataset.from_generator(_passes, features=rows.features, gen_kwargs={"rows": rows, "place": place})


def _passes(rows: IterableDataset, place: str) -> Iterator[dict[str, Any]]:
    number, empty = 0, False
    while not empty:
        rows.set_epoch(number)
        empty = True
        for row in rows:
            empty = False
            yield row
        number += 1
    raise RunError(place, "has no row to train on", hint="look at what its rows must hold, or take other data")
