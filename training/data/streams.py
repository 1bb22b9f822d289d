"""Streaming datasets (``IterableDataset``), checked row by row while training: neither memory nor disk holds them.

Rows are checked as they come, the first of them before training starts. A stream comes in an order of its own: its
files shuffled, and rows drawn from a buffer of some thousand, both by the run's seed and the epoch.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, IterableDataset

from hub.client.failures import reading
from hub.contract.recipe import Spans, TrainingData
from hub.errors import InputError, RunError
from hub.row_errors import reading_rows
from training.data.example_types import EXAMPLE_TYPES
from training.data.row_checks import NO_ROWS, ROWS, RowChecks


def checked_stream(rows: IterableDataset, spec: TrainingData, place: str, limit: int | None) -> IterableDataset:
    """The first ``limit`` rows (of one example set) of a stream, in order, with the example type's columns.

    Raises InputError when its first ``ROWS`` rows cannot be learned from; a bad row further on raises the same error
    when it is reached, with its number in the order of reading.
    """
    head = in_memory(rows.take(ROWS), place).data.table
    examples = EXAMPLE_TYPES[spec.example_type]
    checks = RowChecks(examples, spec.example_set, place)
    checks.require_columns(head.schema)
    checks.add(_read(head, list(range(head.num_rows)), replace(checks, place=f"{place}, as read")))
    checks.require_rows(f"{place} (the first {ROWS:,} rows)")
    if head.num_rows < ROWS:  # these are all there are
        checks.require_long_enough(spec.spans or Spans())
    stream = rows.with_format("arrow").map(
        _read,
        with_indices=True,
        batched=True,
        batch_size=ROWS,
        features=examples.features,
        remove_columns=[name for name in head.column_names if name not in examples.columns],
        fn_kwargs={"checks": RowChecks(examples, spec.example_set, f"{place}, as read")},
    )
    stream = stream.with_format(None)
    return stream if limit is None else stream.take(limit)


def _read(table: pa.Table, numbers: list[int], checks: RowChecks) -> pa.Table:
    """The rows of a stream that are trained on, checked, with the example type's features."""
    keep = checks.of_set(table)
    part = table.take(keep).select(list(checks.examples.columns))
    checks.require_cells(part, np.asarray(numbers, dtype=np.int64)[keep])
    return part.cast(checks.examples.features.arrow_schema)


def shuffled(rows: IterableDataset, buffer: int, seed: int) -> IterableDataset:
    """A stream in the order of ``seed`` and its epoch: files shuffled, rows drawn from a buffer of so many.

    One file at a time: read several at once, they are fed by threads whose end upstream waits five seconds for, and a
    row's number would be that in its file.
    """
    return rows.shuffle(seed=seed, buffer_size=buffer, max_buffer_input_shards=1)


@contextmanager
def stream_errors(spec: TrainingData) -> Iterator[None]:
    """Translate what ends a stream early: a Hub that is gone (RunError), or bytes that are no rows (InputError)."""
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
    """``rows`` epoch after epoch without end, each shuffled by its epoch, as one stream.

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
