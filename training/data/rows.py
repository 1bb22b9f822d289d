"""Training rows: checks, rows made from a dataset's rows, streams.

The checks read ``ROWS_PER_TABLE`` rows at a time, so a whole column is never in memory. Self-pairs,
graded pairs and graded triplets are made once and stay in memory as Arrow columns. The first rows
of a stream are checked before training starts, all rows when they are read.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    GRADED_TRIPLET,
    IN_BATCH_LOSSES,
    SELF_PAIR,
    STS,
    ExampleType,
    name_key,
)

NO_ROWS_HINT = "generate more, or take another config"
# rows checked together, and rows of a stream that are checked before training starts
ROWS_PER_TABLE = 1_000
EXAMPLE_SET_COLUMN = "example_set"  # the set of few-shot examples in the prompt of a row
SOURCE_COLUMNS = ("sentence1", "premise", "anchor", "text")  # of source sentences, by schema

# kind of a column → the tests of its types, one of which must hold
KINDS = {
    "text": (pa.types.is_string, pa.types.is_large_string),
    "integers": (pa.types.is_integer,),
    "numbers": (pa.types.is_integer, pa.types.is_floating),
}

Indices = NDArray[np.int64]


@dataclass
class RowChecks:
    """The checks of one dataset's rows, and the counts of the rows that passed them.

    Attributes:
        example_type: the type of the rows.
        example_set: only rows of this set are trained on; None: all rows.
        where: the dataset that errors name: its key in the recipe, a colon, and more.
        may_have_one_target: whether all rows may have the same target.
        spans: the recipe's settings for documents; None: their defaults.
        has_columns_key: whether the dataset's section of the recipe may have the key ``columns``.
        row_count: the number of rows counted so far.
        low: the lowest target of these rows; infinity before the first row.
        high: the highest target of these rows; minus infinity before the first row.
        longest: the length of the longest document, in bytes.
        example_sets: the example sets of all rows read; empty where ``example_set`` is None.
    """

    example_type: ExampleType
    example_set: int | None
    where: str
    may_have_one_target: bool = False
    spans: Spans | None = None
    has_columns_key: bool = True
    row_count: int = 0
    low: float = math.inf
    high: float = -math.inf
    longest: int = 0
    example_sets: set[int] = field(default_factory=set)

    @property
    def kinds(self) -> dict[str, str]:
        """The checked columns: name → text, numbers or integers.

        They are the columns of the example type and, with an ``example_set``, its column.
        """
        kinds = self.example_type.kinds
        if self.example_set is not None:
            kinds[EXAMPLE_SET_COLUMN] = "integers"
        return kinds

    def require_columns(self, schema: pa.Schema) -> None:
        """Raise InputError unless ``schema`` has all columns, each of its kind."""
        for column, kind in self.kinds.items():
            if column not in schema.names:
                needed_by = f"example type {self.example_type.name}"
                names = ", ".join(self.example_type.source_type.columns)
                key = name_key(self.where, "columns")
                hint: str | None = f"name your columns for {names}: {key}"
                if column == EXAMPLE_SET_COLUMN:
                    needed_by = EXAMPLE_SET_COLUMN
                if column == EXAMPLE_SET_COLUMN or not self.has_columns_key:
                    hint = None  # a recipe cannot name another column
                raise InputError(
                    self.where,
                    f"has no column {column!r}, which {needed_by} needs",
                    allowed=schema.names,
                    hint=hint,
                )
            dtype = schema.field(column).type
            if not any(is_allowed(dtype) for is_allowed in KINDS[kind]):
                raise InputError(self.where, f"column {column!r} holds {dtype}", allowed=kind)

    def select_rows(self, table: pa.Table) -> Indices:
        """Return the indices (n,), ascending, of the table's rows that are trained on.

        They are the rows of ``example_set``; for None, all rows. With an ``example_set``, all
        example sets of the table are added to ``example_sets``.
        """
        if self.example_set is None:
            return np.arange(table.num_rows)
        example_sets = table[EXAMPLE_SET_COLUMN]
        self.example_sets.update(pc.unique(example_sets.drop_null()).to_pylist())
        is_selected = pc.fill_null(pc.equal(example_sets, self.example_set), False)
        return np.flatnonzero(is_selected.to_numpy())

    def require_cells(self, table: pa.Table, numbers: Indices) -> None:
        """Raise InputError for the first bad cell of the first column with one.

        A text must not be missing and, unless the example type allows it, not blank. A target must
        not be missing, and must be in its range. ``numbers`` (rows of ``table``,): the row numbers
        that errors name, from 0.
        """
        target = self.example_type.target
        for column in self.example_type.columns:
            # Compare the whole column; a missing cell gives null.
            cells = table[column]
            allowed = None
            if target is not None and column == target.column:
                allowed = target.allowed
                # NaN fails both comparisons.
                is_allowed = pc.and_(
                    pc.greater_equal(cells, target.low), pc.less_equal(cells, target.high)
                )
            elif self.example_type.may_be_blank:
                is_allowed = pc.is_valid(cells)
            else:
                is_allowed = pc.not_equal(pc.utf8_trim_whitespace(cells), "")

            # Report the first bad cell; the index is -1 without one.
            bad = pc.index(pc.fill_null(is_allowed, False), False).as_py()
            if bad >= 0:
                value = cells[bad].as_py()
                text = f"{value:g}" if isinstance(value, int | float) else "empty"
                raise InputError(
                    self.where,
                    f"row {numbers[bad]} of column {column!r} is {text}",
                    allowed=allowed,
                    hint="rows are counted from 0",
                )

    def count_rows(self, table: pa.Table) -> None:
        """Update the counts, the target's range and the longest document by a checked table."""
        self.row_count += table.num_rows
        if self.example_type == DOCUMENTS and table.num_rows:
            self.longest = max(self.longest, pc.max(pc.binary_length(table["text"])).as_py())
        target = self.example_type.target
        if target is not None and table.num_rows:
            extremes = pc.min_max(table[target.column]).as_py()
            self.low = min(self.low, extremes["min"])
            self.high = max(self.high, extremes["max"])

    def require_rows(self, where: str) -> None:
        """Raise InputError naming ``where`` when no row was counted, or all have one target.

        ``may_have_one_target`` allows equal targets.
        """
        if self.row_count == 0 and self.example_sets:
            raise InputError(
                where,
                f"has no rows of example_set {self.example_set}",
                allowed=f"the sets it has: {sorted(self.example_sets)}",
            )
        if self.row_count == 0:
            raise InputError(where, "has no rows", hint=NO_ROWS_HINT)
        target = self.example_type.target
        if target is not None and self.low == self.high and not self.may_have_one_target:
            raise InputError(
                where,
                f"every {target.column} is {self.low:g}: there is nothing to learn from",
                hint="mix the labels",
            )

    def require_long_document(self) -> None:
        """Raise InputError when the longest document has fewer bytes than ``min_document`` units.

        A unit (word or token) has at least one byte, so every document would be too short. This
        cheap check runs before the base is loaded; ``make_span_rows`` counts the units. Rows of
        other example types pass.
        """
        spans = self.spans or Spans()
        if self.example_type == DOCUMENTS and self.longest < spans.min_document:
            raise InputError(
                self.where,
                f"the longest of {self.row_count:,} documents has {self.longest:,} bytes, so fewer "
                f"{spans.unit} than spans.min_document {spans.min_document:,}",
                hint="lower spans.min_document and spans.max_length, or take longer documents",
            )


def check_rows(rows: Dataset, checks: RowChecks, limit: int | None = None) -> Dataset:
    """Check rows; return the training rows in their order, with the example type's columns alone.

    Raises InputError for a column that is missing or holds another type, and for a training row
    with a bad cell. Raises InputError also for rows that teach nothing: none, all with one target,
    or only documents that are too short.

    Args:
        rows: all rows of a split.
        checks: the checks, which also count the rows.
        limit: the number of training rows at most; later rows are not checked. None: no limit.
    """
    # Before the columns: those of an empty dataset may have no type.
    if len(rows) == 0:
        raise InputError(checks.where, "has no rows", hint=NO_ROWS_HINT)
    checks.require_columns(rows.features.arrow_schema)

    # Check the training rows table by table, and collect the indices of those in the example set.
    numbers = [np.arange(0)]
    first = 0  # the index of the table's first row
    checked_columns = rows.select_columns(list(checks.kinds)).with_format("arrow")
    for table in checked_columns.iter(batch_size=ROWS_PER_TABLE):
        indices = checks.select_rows(table)
        if limit is not None:
            indices = indices[: limit - checks.row_count]
        part = table.take(indices) if len(indices) < table.num_rows else table
        checks.require_cells(part, first + indices)
        checks.count_rows(part)
        if checks.example_set is not None:
            numbers.append(first + indices)
        first += table.num_rows
        if limit is not None and checks.row_count >= limit:
            break
    checks.require_rows(checks.where)
    checks.require_long_document()

    # Select the training rows, which stay memory-mapped. Without an example set they are the first
    # rows.
    rows = rows.select_columns(list(checks.example_type.columns))
    if checks.example_set is not None:
        return rows.select(np.concatenate(numbers))
    return rows.select(range(checks.row_count)) if checks.row_count < len(rows) else rows


def choose_text_columns(
    columns: tuple[str, ...] | None, available: list[str], where: str
) -> tuple[str, ...]:
    """Return the columns of the texts that are paired with themselves.

    They are the recipe's ``columns``, else the first of ``SOURCE_COLUMNS`` that is ``available``.
    Raises InputError naming ``where`` when none of ``SOURCE_COLUMNS`` is available. The recipe's
    columns are not checked here. ``available``: the columns of the dataset. ``where`` is that of
    ``RowChecks``.
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
        hint=f"name the columns of the texts: {name_key(where, 'columns')}",
    )


def make_self_pairs(rows: Dataset, limit: int | None) -> Dataset:
    """Return each distinct text of all columns as (anchor, positive); blank cells are left out.

    Anchor and positive are equal: in unsupervised SimCSE (Gao et al. 2021, section 3) only dropout
    makes their embeddings differ. The pairs come row by row, a row's texts in the order of its
    columns. ``limit``: the number of pairs at most; None: no limit. The result is empty when all
    cells are blank.
    """
    # Take the texts row by row. The columns lie one after another in one array, so its positions
    # (columns, rows), transposed, are in that order.
    table = rows.with_format("arrow")[:]
    # A large string has 64-bit offsets: the texts of a large corpus exceed 2 GiB.
    columns = [table[name].cast(pa.large_string()).combine_chunks() for name in table.column_names]
    positions = np.arange(len(columns) * len(rows)).reshape(len(columns), len(rows))
    row_order = pa.array(positions.T.ravel())
    texts = pc.unique(pa.concat_arrays(columns).take(row_order))

    has_text = [text is not None and not is_blank(text) for text in texts.to_pylist()]
    texts = texts.filter(pa.array(has_text))[:limit]
    pairs = pa.table({"anchor": texts, "positive": texts})
    return Dataset(pairs.cast(SELF_PAIR.features.arrow_schema))


class ScoredRows(NamedTuple):
    """Row indices of an anchor's pairs: those with a positive's score, those with a negative's."""

    positives: list[int]
    negatives: list[int]


def make_graded_rows(
    rows: Dataset, grades: Grades, example_type: ExampleType, limit: int | None
) -> tuple[Dataset, int]:
    """Make (anchor, positive[, negative]) rows of scored pairs.

    An anchor is a distinct sentence1. Each of its positives makes one row. The i-th positive gets
    the anchor's i-th negative, in descending order of scores; the negatives start again when they
    are used up. A negative with the text of the anchor or of a positive is left out. With
    ``grades.positives: itself`` the anchor is its own only positive, and needs a negative.

    Returns the rows, and the number of anchors without a row, which ``limit`` does not change.
    Anchors are in the order of their first pairs, their positives in the order of the pairs.

    Args:
        rows: scored pairs: sentence1, sentence2, score.
        grades: the score ranges of positives and negatives.
        example_type: ``GRADED_PAIR``; or ``GRADED_TRIPLET``, where an anchor needs a negative.
        limit: the number of rows at most; None: no limit.
    """
    table = rows.with_format("arrow")[:]
    first, second, score_column = (table[name] for name in STS.columns)
    partners = second.to_pylist()
    scores = score_column.to_numpy()
    is_own_positive = grades.positives == "itself"
    with_negatives = example_type == GRADED_TRIPLET

    # Choose two row indices of ``rows`` for each new row: its positive's and its negative's.
    positives: list[int] = []
    negatives: list[int] = []
    anchors_without_row = 0
    for text, anchor in _group_by_anchor(first.to_pylist(), scores, grades).items():
        # The hardest negatives first, without the texts of the anchor and its positives.
        near_texts = {text, *(partners[row] for row in anchor.positives)}
        hard_negatives = [row for row in anchor.negatives if partners[row] not in near_texts]
        hard_negatives.sort(key=lambda row: -scores[row])

        # An anchor that is its own positive needs one row index, where sentence1 is read.
        own_positives = hard_negatives[:1] if is_own_positive else anchor.positives
        if not own_positives or (with_negatives and not hard_negatives):
            anchors_without_row += 1
            continue
        positives += own_positives
        if with_negatives:
            negatives += itertools.islice(itertools.cycle(hard_negatives), len(own_positives))

    # Take the texts.
    numbers = pa.array(positives[:limit], pa.int64())
    positive_column = first if is_own_positive else second
    columns = {"anchor": first.take(numbers), "positive": positive_column.take(numbers)}
    if with_negatives:
        columns["negative"] = second.take(pa.array(negatives[:limit], pa.int64()))
    graded = Dataset(pa.table(columns).cast(example_type.features.arrow_schema))
    return graded, anchors_without_row


def _group_by_anchor(
    anchors: list[str], scores: NDArray[Any], grades: Grades
) -> dict[str, ScoredRows]:
    """Return anchor → the indices of its positive and negative rows.

    Anchors are in the order of their first rows, indices ascend. A row with a score outside both
    ranges is left out; its anchor stays. ``anchors``, ``scores`` (rows,): those of each row.
    """
    # Published scores are float32: a bound of 0.7 must equal a score of 0.7.
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


def count_distinct_rows(rows: Dataset, numbers: Iterable[int]) -> int:
    """Count the distinct rows among the rows with the indices ``numbers``.

    Only hashes of the rows are in memory: two rows with equal hashes count as one.
    """
    hashes: set[int] = set()
    for table in rows.select(sorted(numbers)).with_format("arrow").iter(batch_size=ROWS_PER_TABLE):
        columns = table.to_pydict().values()
        hashes.update(hash(repr(cells)) for cells in zip(*columns, strict=True))
    return len(hashes)


def require_distinct_rows(rows: Iterable[dict[str, Any]], loss: str, where: str) -> None:
    """Raise InputError naming ``where`` when all rows are equal, and ``loss`` is an in-batch loss.

    ``rows``: at least one. Reading stops at the first difference. ``loss``: the loss's name.
    """
    iterator = iter(rows)
    first = next(iterator, None)
    if loss in IN_BATCH_LOSSES and all(row == first for row in iterator):
        raise InputError(
            where,
            f"has 1 distinct row, and {loss} compares the rows of a batch with one another",
            allowed="at least 2 distinct rows",
            hint="give more, or take another loss",
        )


def check_stream(
    rows: IterableDataset, spec: TrainingData, where: str, limit: int | None, seed: int
) -> IterableDataset:
    """Return a shuffled stream of checked rows, with the columns of the example type alone.

    Rows are drawn at random from a buffer of the example type's ``shuffle_buffer`` rows. Without a
    limit, files are shuffled, too. Raises InputError when the first ``ROWS_PER_TABLE`` rows fail
    the checks of ``check_rows``. A later bad row raises InputError when it is read, with its number
    in reading order. The length of documents is checked where the first rows are the whole stream.
    That the rows of an in-batch loss differ is checked where the first rows have all training rows.

    Args:
        rows: the stream with all its columns.
        spec: the recipe's entry: example type, example set, spans and loss.
        where: the dataset that errors name.
        limit: the number of training rows of an epoch at most, in file order; None: no limit.
        seed: decides the order.
    """
    # Check the first rows now.
    head = read_into_memory(rows.take(ROWS_PER_TABLE), where).data.table
    example_type = EXAMPLE_TYPES[spec.example_type]
    checks = RowChecks(example_type, spec.example_set, where, spans=spec.spans)
    checks.require_columns(head.schema)
    where_row = f"{where}, as read"  # row numbers in errors are those of the reading order
    numbers = list(range(head.num_rows))
    checked_head = _select_training_rows(head, numbers, replace(checks, where=where_row))
    checks.count_rows(checked_head)
    checks.require_rows(f"{where} (the first {ROWS_PER_TABLE:,} rows)")
    is_whole_stream = head.num_rows < ROWS_PER_TABLE
    if is_whole_stream:
        checks.require_long_document()

    # Check all rows when they are read.
    stream = rows.with_format("arrow").map(
        _select_training_rows,
        with_indices=True,
        batched=True,
        batch_size=ROWS_PER_TABLE,
        features=example_type.features,
        remove_columns=[name for name in head.column_names if name not in example_type.columns],
        fn_kwargs={"checks": RowChecks(example_type, spec.example_set, where_row)},
    )
    stream = stream.with_format(None)
    if limit is not None:
        stream = stream.take(limit)
    # One file at a time: datasets reads several files by threads, waits five seconds for each
    # thread, and numbers the rows of each file from 0.
    stream = stream.shuffle(
        seed=seed, buffer_size=example_type.shuffle_buffer, max_buffer_input_shards=1
    )
    if is_whole_stream or (limit is not None and checked_head.num_rows >= limit):
        require_distinct_rows(checked_head.slice(0, limit).to_pylist(), spec.loss, where)
    return stream


def _select_training_rows(table: pa.Table, numbers: list[int], checks: RowChecks) -> pa.Table:
    """Return the rows of ``table`` that are trained on, checked, with the example type's columns.

    ``table``: rows of a stream. ``numbers`` (rows of ``table``,): the row numbers that errors name.
    Raises InputError for a bad cell of a returned row.
    """
    indices = checks.select_rows(table)
    selected = table.take(indices).select(list(checks.example_type.columns))
    checks.require_cells(selected, np.asarray(numbers, dtype=np.int64)[indices])
    return selected.cast(checks.example_type.features.arrow_schema)


@contextmanager
def convert_stream_errors(spec: TrainingData) -> Iterator[None]:
    """Convert errors over reading a stream into InputError (damaged rows) or RunError (the Hub).

    A repository that does not exist is an InputError, too. Without ``spec.streaming``, all errors
    pass unchanged, because the rows were read and checked before the training. Errors over rows
    name ``datasets.0``, because a stream is a recipe's only dataset.
    """
    if not spec.streaming:
        yield
        return
    hub_errors: AbstractContextManager[None] = nullcontext()
    if spec.repo_id is not None:
        hub_errors = convert_read_errors(spec.repo_id, spec.revision)
    with hub_errors, convert_reader_errors(f"datasets.0: {spec.repo_id or spec.path}"):
        yield


def read_into_memory(rows: IterableDataset, where: str) -> Dataset:
    """Return all rows of a short stream, in order.

    Raises InputError naming ``where`` when the stream has no rows or its data are damaged. Errors
    of the Hub's client pass unchanged.
    """
    with convert_reader_errors(where):
        tables = list(rows.with_format("arrow").iter(batch_size=ROWS_PER_TABLE))
    if not tables:
        raise InputError(where, "has no rows", hint=NO_ROWS_HINT)
    return Dataset(pa.concat_tables(tables))


# a function: a stream, the index of an epoch → the rows of this epoch
ReadEpoch = Callable[[IterableDataset, int], Iterable[dict[str, Any]]]


def read_endlessly(
    rows: IterableDataset,
    where: str,
    features: Features | None = None,
    read: ReadEpoch = lambda rows, epoch: rows,
) -> IterableDataset:
    """Return an endless stream of the rows that ``read`` makes of ``rows``, epoch after epoch.

    A shuffled stream has another order in each epoch. A step of the training is a place in the
    endless sequence, so a killed run can resume there. Reading raises RunError naming ``where``
    when an epoch has no rows.

    Args:
        rows: a finite stream.
        where: the dataset that errors name.
        features: the features of the rows that ``read`` makes; None: those of ``rows``.
        read: makes the rows of one epoch of ``rows`` (default: the rows as they are).
    """
    arguments = {"rows": rows, "where": where, "read": read}
    return IterableDataset.from_generator(
        _read_epochs, features=features or rows.features, gen_kwargs=arguments
    )


def _read_epochs(rows: IterableDataset, where: str, read: ReadEpoch) -> Iterator[dict[str, Any]]:
    """Yield the rows of epoch 0, 1, 2, ... endlessly.

    Raises RunError naming ``where`` for an epoch without rows.
    """
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
