"""Training rows: checks, rows made from a dataset's rows, streams.

The checks read ``ROWS_PER_TABLE`` rows at a time, so a whole column is never in memory. Self-pairs,
graded pairs and graded triplets are made once and stay in memory: their texts as Arrow columns, the
rows as indices into them. The first rows of a stream are checked before training starts, the others
when they are read.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset
from numpy.typing import NDArray

from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.contract.recipe import Grades, Spans, TrainingData
from sts_dino.hub.contract.shards import convert_reader_errors
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.text_files import is_blank
from sts_dino.training.data.objectives import (
    DOCUMENTS,
    EXAMPLE_TYPES,
    GRADED_PAIR,
    GRADED_TRIPLET,
    SELF_PAIR,
    STS,
    ExampleType,
)

NO_ROWS_HINT = "generate more, or take another config"
# rows checked together, and rows of a stream that are checked before training starts
ROWS_PER_TABLE = 1_000
EXAMPLE_SET_COLUMN = "example_set"  # the set of few-shot examples in the prompt of a row
SOURCE_COLUMNS = ("sentence1", "premise", "anchor", "text")  # of source sentences, by schema

Indices = NDArray[np.int64]


@dataclass
class RowChecks:
    """The checks of one dataset's rows, and what they count.

    ``where``: the dataset that errors name. ``example_set``: only rows of this set are trained on;
    None takes all rows. ``one_target``: whether all rows may have the same target. ``rows``: the
    rows checked so far. ``low``, ``high``: the range of their target; for documents, of their
    lengths in bytes. ``sets``: the example sets of all rows read.
    """

    examples: ExampleType
    example_set: int | None
    where: str
    one_target: bool = False
    rows: int = 0
    low: float = math.inf
    high: float = -math.inf
    sets: set[int] = field(default_factory=set)

    @property
    def columns(self) -> list[str]:
        """The checked columns: the example type's, and ``example_set`` where it selects."""
        columns = list(self.examples.columns)
        return columns if self.example_set is None else [*columns, EXAMPLE_SET_COLUMN]

    def require_columns(self, schema: pa.Schema) -> None:
        """Raise InputError unless ``schema`` has all columns, with texts and numbers."""
        for column in self.columns:
            if column not in schema.names:
                reader = (
                    EXAMPLE_SET_COLUMN
                    if column == EXAMPLE_SET_COLUMN
                    else f"example type {self.examples.name}"
                )
                raise InputError(
                    self.where,
                    f"has no column {column!r}, which {reader} needs",
                    allowed=schema.names,
                    hint=None
                    if column == EXAMPLE_SET_COLUMN
                    else f"name your columns for {', '.join(self.examples.source.columns)}: "
                    "datasets.N.columns",
                )
            dtype = schema.field(column).type
            if column in self.examples.texts:
                allowed = "text"
                fits = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
            else:
                allowed = "numbers"
                target = self.examples.target
                may_be_real = (
                    column != EXAMPLE_SET_COLUMN and target is not None and not target.integers
                )
                fits = pa.types.is_integer(dtype) or (may_be_real and pa.types.is_floating(dtype))
            if not fits:
                raise InputError(self.where, f"column {column!r} holds {dtype}", allowed=allowed)

    def select_rows(self, table: pa.Table) -> Indices:
        """Return the indices (n,) of a table's training rows, and note the table's example sets."""
        if self.example_set is None:
            return np.arange(table.num_rows)
        self.sets.update(pc.unique(table[EXAMPLE_SET_COLUMN].drop_null()).to_pylist())
        is_of_set = pc.fill_null(pc.equal(table[EXAMPLE_SET_COLUMN], self.example_set), False)
        return np.flatnonzero(is_of_set.to_numpy())

    def require_cells(self, table: pa.Table, numbers: Indices) -> None:
        """Raise InputError for an empty text, and for a target that is missing or out of range.

        ``numbers`` (rows,): the row numbers that errors name, from 0.
        """
        target = self.examples.target
        for column in self.examples.columns:
            cells = table[column]
            allowed = None
            if target is not None and column == target.column:
                allowed = target.allowed
                # false for NaN
                fits = pc.and_(
                    pc.greater_equal(cells, target.low), pc.less_equal(cells, target.high)
                )
            elif self.examples.blank:
                fits = pc.is_valid(cells)
            else:
                fits = pc.not_equal(pc.utf8_trim_whitespace(cells), "")
            bad = pc.index(pc.fill_null(fits, False), False).as_py()
            if bad >= 0:
                value = cells[bad].as_py()
                text = f"{value:g}" if isinstance(value, int | float) else "empty"
                raise InputError(
                    self.where,
                    f"row {numbers[bad]} of column {column!r} is {text}",
                    allowed=allowed,
                )

    def count_rows(self, table: pa.Table) -> None:
        """Count the rows of a checked table, and widen the range of their target."""
        self.rows += table.num_rows
        if self.examples == DOCUMENTS:
            values = pc.binary_length(table["text"])
        elif self.examples.target is not None:
            values = table[self.examples.target.column]
        else:
            return
        if len(values):
            ends = pc.min_max(values).as_py()
            self.low = min(self.low, ends["min"])
            self.high = max(self.high, ends["max"])

    def require_rows(self, where: str) -> None:
        """Raise InputError naming ``where`` when no row was counted, or all have one target."""
        if self.rows == 0 and self.sets:
            raise InputError(
                where,
                f"has no rows of example_set {self.example_set}",
                allowed=f"the sets it has: {sorted(self.sets)}",
            )
        if self.rows == 0:
            raise InputError(where, "has no rows", hint=NO_ROWS_HINT)
        target = self.examples.target
        if target is not None and self.low == self.high and not self.one_target:
            raise InputError(
                where,
                f"every {target.column} is {self.low:g}: there is nothing to learn from",
                hint="mix the labels",
            )

    def require_long_enough(self, spans: Spans) -> None:
        """Raise InputError when the longest document has fewer bytes than a document needs units.

        ``training.data.spans`` counts units later, and skips shorter documents.
        """
        if self.examples == DOCUMENTS and self.high < spans.min_document:
            raise InputError(
                self.where,
                f"the longest of {self.rows:,} documents has {int(self.high):,} bytes, "
                f"so fewer {spans.unit} than spans.min_document {spans.min_document:,}",
                hint="lower spans.min_document and spans.max_length, or take longer documents",
            )


def check_rows(
    rows: Dataset, checks: RowChecks, limit: int | None = None, spans: Spans | None = None
) -> Dataset:
    """Check rows, and return the training rows with the columns of the example type.

    Raises InputError for a row that cannot be trained on.

    Args:
        rows: all rows of a split.
        checks: the checks, which also count the rows.
        limit: the number of training rows at most; None takes all.
        spans: the recipe's section, for documents.
    """
    if len(rows) == 0:  # its columns may have no type
        raise InputError(checks.where, "has no rows", hint=NO_ROWS_HINT)
    checks.require_columns(rows.features.arrow_schema)
    numbers = [np.arange(0)]
    first = 0
    for table in (
        rows.select_columns(checks.columns).with_format("arrow").iter(batch_size=ROWS_PER_TABLE)
    ):
        chosen = checks.select_rows(table)
        if limit is not None:
            chosen = chosen[: limit - checks.rows]
        part = table.take(chosen) if len(chosen) < table.num_rows else table
        checks.require_cells(part, first + chosen)
        checks.count_rows(part)
        if checks.example_set is not None:
            numbers.append(first + chosen)
        first += table.num_rows
        if limit is not None and checks.rows >= limit:
            break
    checks.require_rows(checks.where)
    checks.require_long_enough(spans or Spans())

    rows = rows.select_columns(list(checks.examples.columns))
    if checks.example_set is not None:
        return rows.select(np.concatenate(numbers))
    return rows.select(range(checks.rows)) if checks.rows < len(rows) else rows


def choose_text_columns(
    columns: tuple[str, ...] | None, available: list[str], where: str
) -> tuple[str, ...]:
    """Return the columns of the texts that are paired with themselves.

    These are the recipe's ``columns``, else the first of ``SOURCE_COLUMNS`` that is ``available``.
    Raises InputError naming ``where`` when there is none.
    """
    if columns is not None:
        return columns
    for column in SOURCE_COLUMNS:
        if column in available:
            return (column,)
    raise InputError(
        where,
        f"has none of the columns {', '.join(SOURCE_COLUMNS)}",
        allowed=available,
        hint="name the columns of the texts: datasets.N.columns",
    )


def make_self_pairs(rows: Dataset, limit: int | None) -> Dataset:
    """Return each distinct text of all columns as (anchor, positive), blank texts left out.

    Anchor and positive are equal: in unsupervised SimCSE (Gao et al. 2021, section 3) only dropout
    makes their embeddings differ. ``limit``: the number of pairs at most.
    """
    # The texts row by row, each row's columns in turn.
    table = rows.with_format("arrow")[:]
    columns = [table[name].cast(pa.string()).combine_chunks() for name in table.column_names]
    row_order = np.arange(len(columns) * len(rows)).reshape(len(columns), -1).T.ravel()
    texts = pc.unique(pa.concat_arrays(columns).take(pa.array(row_order)))

    has_text = [text is not None and not is_blank(text) for text in texts.to_pylist()]
    texts = texts.filter(pa.array(has_text))[:limit]
    pairs = pa.table({"anchor": texts, "positive": texts})
    return Dataset(pairs.cast(SELF_PAIR.features.arrow_schema))


class ScoredRows(NamedTuple):
    """The row numbers of one anchor's pairs in the positive and in the negative score band."""

    positives: list[int]
    negatives: list[int]


def make_graded_rows(
    rows: Dataset, grades: Grades, with_negatives: bool, limit: int | None
) -> tuple[Dataset, int]:
    """Make (anchor, positive[, negative]) rows of scored pairs.

    Each positive makes one row. The i-th positive of an anchor gets the anchor's i-th negative, the
    highest score first; the negatives start again when they are used up. A negative with the text
    of a positive is left out. Returns the rows, and the number of anchors without a row.

    Args:
        rows: scored pairs: sentence1, sentence2, score.
        grades: the score bands of positives and negatives.
        with_negatives: whether rows have a negative; an anchor without one has no row then.
        limit: the number of rows at most.
    """
    table = rows.with_format("arrow")[:]
    first, second, scores = (table[name] for name in STS.columns)
    partners = second.to_pylist()
    scores = scores.to_numpy()
    is_own_positive = grades.positives == "itself"
    positives: list[int] = []
    negatives: list[int] = []
    without = 0
    for anchor in _group_by_anchor(first.to_pylist(), scores, grades).values():
        # The hardest negatives first, without the positives' texts.
        positive_texts = {partners[row] for row in anchor.positives}
        hard = [row for row in anchor.negatives if partners[row] not in positive_texts]
        hard.sort(key=lambda row: -scores[row])

        # an anchor that is its own positive needs one row number, of which sentence1 is read
        chosen = hard[:1] if is_own_positive else anchor.positives
        if not chosen or (with_negatives and not hard):
            without += 1
            continue
        positives += chosen
        if with_negatives:
            negatives += itertools.islice(itertools.cycle(hard), len(chosen))

    numbers = pa.array(positives[:limit], pa.int64())
    columns = {
        "anchor": first.take(numbers),
        "positive": (first if is_own_positive else second).take(numbers),
    }
    examples = GRADED_PAIR
    if with_negatives:
        examples = GRADED_TRIPLET
        columns["negative"] = second.take(pa.array(negatives[:limit], pa.int64()))
    return Dataset(pa.table(columns).cast(examples.features.arrow_schema)), without


def _group_by_anchor(
    anchors: list[str], scores: NDArray[Any], grades: Grades
) -> dict[str, ScoredRows]:
    """Return anchor → its row numbers by score band, in the order of the anchors' first rows."""
    # published scores are float32
    bounds = (grades.positive_from, grades.negative_from, grades.negative_to)
    positive_from, negative_from, negative_to = np.asarray(bounds, dtype=np.float32)
    groups: dict[str, ScoredRows] = {}
    for row, (anchor, score) in enumerate(zip(anchors, scores.astype(np.float32), strict=True)):
        group = groups.setdefault(anchor, ScoredRows([], []))
        if score >= positive_from:
            group.positives.append(row)
        elif negative_from <= score <= negative_to:
            group.negatives.append(row)
    return groups


def count_distinct_rows(rows: Dataset, numbers: Iterable[int] | None = None) -> int:
    """Count the distinct rows among the row numbers ``numbers``; None counts among all rows."""
    rows = rows if numbers is None else rows.select(sorted(numbers))
    hashes: set[int] = set()
    for table in rows.with_format("arrow").iter(batch_size=ROWS_PER_TABLE):
        hashes.update(hash(repr(row)) for row in zip(*table.to_pydict().values(), strict=True))
    return len(hashes)


def has_equal_rows(rows: Iterable[dict[str, Any]]) -> bool:
    """Return whether all rows are equal; reading stops at the first row that differs."""
    rows = iter(rows)
    first = next(rows, None)
    return all(row == first for row in rows)


def check_stream(
    rows: IterableDataset, spec: TrainingData, where: str, limit: int | None, seed: int
) -> tuple[IterableDataset, bool]:
    """Return a stream's checked rows, shuffled, and whether all rows are known to be equal.

    Files are shuffled, and rows are drawn from the example type's buffer. Raises InputError when
    one of the first ``ROWS_PER_TABLE`` rows cannot be trained on. A later bad row raises InputError
    when the row is read, with its number in reading order.

    Args:
        rows: the stream with all its columns.
        spec: the recipe's entry: example type, example set and spans.
        where: the dataset that errors name.
        limit: the number of training rows at most.
        seed: decides the order.
    """
    # The first rows are checked now.
    head = read_into_memory(rows.take(ROWS_PER_TABLE), where).data.table
    examples = EXAMPLE_TYPES[spec.example_type]
    checks = RowChecks(examples, spec.example_set, where)
    checks.require_columns(head.schema)
    as_read = f"{where}, as read"
    part = _read_checked(head, list(range(head.num_rows)), replace(checks, where=as_read))
    checks.count_rows(part)
    checks.require_rows(f"{where} (the first {ROWS_PER_TABLE:,} rows)")
    if head.num_rows < ROWS_PER_TABLE:  # these are all there are
        checks.require_long_enough(spec.spans or Spans())

    # All rows are checked when they are read.
    stream = rows.with_format("arrow").map(
        _read_checked,
        with_indices=True,
        batched=True,
        batch_size=ROWS_PER_TABLE,
        features=examples.features,
        remove_columns=[name for name in head.column_names if name not in examples.columns],
        fn_kwargs={"checks": RowChecks(examples, spec.example_set, as_read)},
    )
    stream = stream.with_format(None)
    if limit is not None:
        stream = stream.take(limit)
    # One file at a time: datasets reads several files by threads, waits five seconds for each
    # thread, and numbers the rows of each file from 0.
    stream = stream.shuffle(seed=seed, buffer_size=examples.buffer, max_buffer_input_shards=1)
    is_all = head.num_rows < ROWS_PER_TABLE or (limit is not None and part.num_rows >= limit)
    return stream, is_all and has_equal_rows(part.slice(0, limit).to_pylist())


def _read_checked(table: pa.Table, numbers: list[int], checks: RowChecks) -> pa.Table:
    """Return the training rows of a stream's table, checked, with the example type's features."""
    chosen = checks.select_rows(table)
    part = table.take(chosen).select(list(checks.examples.columns))
    checks.require_cells(part, np.asarray(numbers, dtype=np.int64)[chosen])
    return part.cast(checks.examples.features.arrow_schema)


@contextmanager
def convert_stream_errors(spec: TrainingData) -> Iterator[None]:
    """Convert the errors of a stream: RunError for the Hub's, InputError for damaged rows."""
    if not spec.streaming:
        yield
        return
    hub = (
        convert_read_errors(spec.repo_id, spec.revision)
        if spec.repo_id is not None
        else nullcontext()
    )
    with hub, convert_reader_errors(f"datasets.0: {spec.repo_id or spec.path}"):
        yield


def read_into_memory(rows: IterableDataset, where: str) -> Dataset:
    """Read all rows of a short stream.

    Raises InputError naming ``where`` when the stream has no rows or cannot be read.
    """
    with convert_reader_errors(where):
        tables = list(rows.with_format("arrow").iter(batch_size=ROWS_PER_TABLE))
    if not tables:
        raise InputError(where, "has no rows", hint=NO_ROWS_HINT)
    return Dataset(pa.concat_tables(tables))


# a stream and an epoch → rows
ReadEpoch = Callable[[IterableDataset, int], Iterable[dict[str, Any]]]


def read_endlessly(
    rows: IterableDataset,
    where: str,
    features: Features | None = None,
    read: ReadEpoch = lambda rows, epoch: rows,
) -> IterableDataset:
    """Return an endless stream of the rows that ``read`` makes of ``rows``, epoch after epoch.

    Each epoch is shuffled anew. A step is a place in this one sequence, so a killed run can resume
    there. Reading raises RunError naming ``where`` when an epoch has no rows. ``features``: of the
    rows that ``read`` makes; None: of ``rows``.
    """
    arguments = {"rows": rows, "where": where, "read": read}
    return IterableDataset.from_generator(
        _read_epochs, features=features or rows.features, gen_kwargs=arguments
    )


def _read_epochs(rows: IterableDataset, where: str, read: ReadEpoch) -> Iterator[dict[str, Any]]:
    """Yield the rows of each epoch. Raises RunError naming ``where`` for an epoch without rows."""
    for epoch in itertools.count():
        rows.set_epoch(epoch)
        is_empty = True
        for row in read(rows, epoch):
            is_empty = False
            yield row
        if is_empty:
            raise RunError(
                where,
                "has no row to train on",
                hint="look at what its rows must hold, or take other data",
            )
