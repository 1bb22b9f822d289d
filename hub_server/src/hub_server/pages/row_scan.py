"""A page of rows of untrusted parquet files, as texts; runs in a limited child (``readers``).

Without a filter, only the row groups of the page are read; the files' footers locate the groups. A
filter reads batch after batch, and stops after ``MOST_ROWS`` rows or some seconds; the answer has
the number of rows that were read.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hub_server.pages.readers import (
    MEMORY,
    MOST_FILES,
    MOST_ROWS,
    ROWS,
    Facts,
    Group,
    Question,
    Second,
    Window,
    escape_hidden_characters,
)

MOST_COLUMNS = 20  # of a table
LABEL_COLUMNS = (
    "reason",
    "label",
    "score",
    "target",
)  # the first of these columns is a file's label
MOST_LABELS = 50  # a column of more values is no label
# (first column, second column) of a pair of sentences → the column of the label
LABEL_OF_PAIR = {("sentence1", "sentence2"): "score", ("premise", "hypothesis"): "label"}
MOST_CELL_CHARACTERS = 3_000  # characters of a cell
MOST_PAGE_CHARACTERS = 1_000_000  # of all cells of a page: many long cells are cut earlier
_BATCH_ROWS = 10_000
_SCAN_SECONDS = 2.5  # three scans at most fit a child's CPU time
Rows = list[dict[str, Any]]


class Unreadable(Exception):
    """A file that cannot be read: its index, and the error."""

    def __init__(self, index: int, error: Exception):
        super().__init__(index, error)
        self.index = index
        self.error = error

    def describe(self) -> str:
        """Return the problem as a page shows it."""
        if isinstance(self.error, MemoryError | pa.ArrowMemoryError):
            return f"needs more memory to read than {MEMORY >> 30} GiB"
        if isinstance(self.error, OSError) and self.error.errno is not None:
            return f"cannot be read from the Hub's disk ({self.error.strerror})"
        return f"cannot be read as parquet ({type(self.error).__name__})"


@contextmanager
def raise_as_unreadable(index: int) -> Iterator[None]:
    """Raise Unreadable with ``index`` for an error of Arrow, the system or memory in the block."""
    try:
        yield
    except (pa.ArrowException, MemoryError, OSError, ValueError) as error:
        raise Unreadable(index, error) from error


class Label(NamedTuple):
    """A column and the class names of its numbers; ``column`` "" means that there is no column.

    ``names``: empty for a column without class names.
    """

    column: str = ""
    names: list[str] = []  # noqa: RUF012

    def format(self, value: object, most: int = MOST_CELL_CHARACTERS) -> str:
        """Return a value of the column as the page shows it, as ``format_cell``.

        A number with a class name has the name behind it: ``1 (neutral)``.
        """
        name = get_label_name(value, self.names)
        if name is not value:
            value = f"{value} ({name})"
        return format_cell(value, most)


class Split:
    """The rows of several parquet files, one file after the other, with the first file's schema.

    Files beyond ``MOST_FILES`` are left out. ``rows``: the number of rows of each file; None: read
    from the footers. Raises Unreadable when a file that has to be opened cannot be read.
    """

    def __init__(self, files: tuple[str, ...], rows: list[int] | None = None):
        self.files = files[:MOST_FILES]
        self.schema = self._open(0).schema_arrow
        self.rows = rows or [
            self._open(index).metadata.num_rows for index in range(len(self.files))
        ]

    def _open(self, index: int) -> pq.ParquetFile:
        """Open the file with this index and read its footer. Raises Unreadable."""
        with raise_as_unreadable(index):
            # With these options no column chunk is read into memory as a whole.
            return pq.ParquetFile(self.files[index], pre_buffer=False, buffer_size=1 << 20)

    def iter_batches(self, columns: list[str], start: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield batches of rows, from the row with the index ``start`` in all files on.

        Row groups before that row are not read. A batch lacks the columns that its file lacks.
        Raises Unreadable.
        """
        for index, rows in enumerate(self.rows):
            if start < rows:
                with raise_as_unreadable(index):
                    yield from self._iter_file_batches(index, columns, start)
            start = max(0, start - rows)

    def _iter_file_batches(
        self, index: int, columns: list[str], start: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of the file ``index``, from its row with the index ``start`` on.

        The file has this row.
        """
        # Skip the row groups before the start.
        file = self._open(index)
        groups = list(range(file.metadata.num_row_groups))
        while start >= (size := file.metadata.row_group(groups[0]).num_rows):
            start -= size
            del groups[0]

        # Read the remaining row groups, and cut off the rows before the start.
        present = [name for name in columns if name in file.schema_arrow.names]
        batches = file.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=present, use_threads=False
        )
        for batch in batches:
            yield batch.slice(min(start, batch.num_rows))
            start = max(0, start - batch.num_rows)


def answer(question: Question, facts: Facts | None) -> Window | Facts:
    """Return the page of rows that a question asks for; without ``facts``, all files' facts.

    ``readers.ask`` calls this in a child. For a file that cannot be read, the answer holds its
    index (``broken``) and the problem.
    """
    try:
        if facts is None:
            return collect_facts(Split(question.files))
        return find_rows(question, facts)
    except Unreadable as error:
        answer_type = Facts if facts is None else Window
        return answer_type(broken=error.index, problem=error.describe())


def collect_facts(split: Split) -> Facts:
    """Return the number of rows of each file, and the number of rows of each label.

    Raises Unreadable.
    """
    facts = Facts(file_rows=split.rows)
    label = choose_label(split)
    if label.column:
        counts, facts.counted = count_labels(split, label)
        facts.label_column = label.column
        facts.labels = list(counts.items())
    return facts


def choose_label(split: Split) -> Label:
    """Return the column to filter by: the first of ``LABEL_COLUMNS`` without nested values.

    Without such a column the label has the column "".
    """
    for name in LABEL_COLUMNS:
        if name in split.schema.names and not pa.types.is_nested(split.schema.field(name).type):
            return Label(name, read_label_names(split.schema.metadata, name))
    return Label()


def find_rows(question: Question, facts: Facts) -> Window:
    """Return the page of rows that a question asks for, as groups or as a table.

    ``facts``: those of ``collect_facts`` for these files. Raises Unreadable.
    """
    # Choose the columns.
    split = Split(question.files, facts.file_rows)
    names = split.schema.names
    pair = _find_pair(split.schema)
    window = Window(rows=sum(split.rows), can_group=pair is not None, **facts.model_dump())
    columns = names[:MOST_COLUMNS]
    if facts.label_column and facts.label_column not in columns:
        columns[-1] = facts.label_column  # the label is always among the columns
    if pair and question.grouped:
        columns = [*pair, LABEL_OF_PAIR[pair]]
        if "target" in names:
            columns.append("target")

    # Read the rows. A label that the files lack is ignored.
    if question.label not in dict(facts.labels):
        question = question.model_copy(update={"label": ""})
    if question.label or question.words:
        rows = scan_matches(split, columns, question, window)
    else:
        rows = read_page(split, columns, question, window)

    # Show the rows as groups or as a table.
    metadata = split.schema.metadata
    if pair and question.grouped:
        label = Label(LABEL_OF_PAIR[pair], read_label_names(metadata, LABEL_OF_PAIR[pair]))
        window.groups = group_rows(rows, pair, label)
        return window
    labels = [Label(name, read_label_names(metadata, name)) for name in columns]
    window.columns = [format_cell(name) for name in columns]
    window.more_columns = len(split.schema.names) - len(columns)
    most = min(MOST_CELL_CHARACTERS, MOST_PAGE_CHARACTERS // max(1, len(rows) * len(labels)))
    for row in rows:
        window.table.append([label.format(row.get(label.column), most) for label in labels])
    return window


def _find_pair(schema: pa.Schema) -> tuple[str, str] | None:
    """Return the two columns of sentence pairs with a label; None without such columns.

    Columns of lists or structs do not count.
    """
    plain_names = {field.name for field in schema if not pa.types.is_nested(field.type)}
    for pair, label in LABEL_OF_PAIR.items():
        if {*pair, label} <= plain_names:
            return pair
    return None


def read_page(split: Split, columns: list[str], question: Question, window: Window) -> Rows:
    """Return a page of rows without a filter, the last one for a page beyond the end.

    Sets the numbers of rows and pages, and the page, in ``window``. Raises Unreadable.
    """
    window.matches = window.scanned = window.rows
    bound_page(window, question.page)
    rows: Rows = []
    for batch in split.iter_batches(columns, (window.page - 1) * ROWS):
        rows += batch.slice(0, ROWS - len(rows)).to_pylist()
        if len(rows) >= ROWS:
            break
    return rows


def scan_matches(split: Split, columns: list[str], question: Question, window: Window) -> Rows:
    """Return a page of the rows that match the label and the words of a question.

    Sets the numbers of scanned rows, of matches and of pages, and the page, in ``window``. The scan
    ends after ``MOST_ROWS`` rows or ``_SCAN_SECONDS`` of CPU time. For a page beyond the end, the
    last page is returned. Raises Unreadable.
    """
    label = choose_label(split)
    if question.label and label.column not in columns:
        columns = [*columns, label.column]
    page_start = (question.page - 1) * ROWS
    page_end = question.page * ROWS
    rows: Rows = []
    started = time.process_time()
    for batch in split.iter_batches(columns):
        if window.scanned >= MOST_ROWS or time.process_time() - started > _SCAN_SECONDS:
            break
        window.scanned += batch.num_rows
        matches = batch.filter(match_rows(batch, question, label))
        # Take the matches that lie on the page.
        first = min(max(0, page_start - window.matches), matches.num_rows)
        end = min(max(0, page_end - window.matches), matches.num_rows)
        rows += matches.slice(first, end - first).to_pylist()
        window.matches += matches.num_rows
    bound_page(window, question.page)
    if window.page == question.page:
        return rows
    # The page is beyond the end: search again for the last page.
    window.matches = window.scanned = 0
    last_page = question.model_copy(update={"page": window.page})
    return scan_matches(split, columns, last_page, window)


def bound_page(window: Window, page: int) -> None:
    """Set the number of pages for ``window.matches``, and the page to show.

    For a ``page`` beyond the end, the last page is shown.
    """
    window.pages = max(1, math.ceil(window.matches / ROWS))
    window.page = min(page, window.pages)


def match_rows(batch: pa.RecordBatch, question: Question, label: Label) -> pa.Array:
    """Return a mask, (rows,), of the rows that have the label and the words of a question.

    An empty label or empty words match all rows.
    """
    mask = pa.repeat(True, batch.num_rows)
    if question.label:
        mask = match_label(batch, label, question.label)
    if question.words:
        mask = pc.and_(mask, match_words(batch, question.words))
    return mask


def match_label(batch: pa.RecordBatch, label: Label, shown: str) -> pa.Array:
    """Return a mask, (rows,), of the rows whose label the page shows as ``shown``.

    No row matches in a file without the label's column.
    """
    if label.column not in batch.schema.names:
        return pa.repeat(False, batch.num_rows)
    # The page may show several values as one text, e.g. numbers that differ in the seventh digit.
    column = decode_dictionary(batch.column(label.column))
    values = pc.unique(column)
    is_shown = [label.format(value) == shown for value in values.to_pylist()]
    # ``is_in`` finds NaN, too; no value is equal to it.
    return pc.is_in(column, value_set=values.filter(pa.array(is_shown, pa.bool_())))


def match_words(batch: pa.RecordBatch, words: str) -> pa.Array:
    """Return a mask, (rows,), of the rows with ``words`` as one substring of any text column.

    The case of letters does not count.
    """
    mask = pa.repeat(False, batch.num_rows)
    for column in map(decode_dictionary, batch.columns):
        if is_text(column.type):
            matches = pc.match_substring(column, words, ignore_case=True)
            mask = pc.or_(mask, pc.fill_null(matches, False))
    return mask


def decode_dictionary(column: pa.Array) -> pa.Array:
    """Return a dictionary-encoded column as plain values, and any other column as it is."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def count_labels(split: Split, label: Label) -> tuple[dict[str, int], int]:
    """Return label as shown → number of rows, and the number of rows that were read.

    The labels are in the order of ``make_sort_key``; rows without a label are not counted. The
    mapping is empty for more than ``MOST_LABELS`` labels. The count ends after ``MOST_ROWS`` rows
    or ``_SCAN_SECONDS`` of CPU time. Raises Unreadable.
    """
    counts: Counter[str] = Counter()
    values: dict[str, Any] = {}  # label as shown → its value in the files, to sort by
    rows_read = 0
    started = time.process_time()
    for batch in split.iter_batches([label.column]):
        if rows_read >= MOST_ROWS or time.process_time() - started > _SCAN_SECONDS:
            break
        rows_read += batch.num_rows
        if batch.num_columns == 0:  # this file lacks the column
            continue
        for item in pc.value_counts(decode_dictionary(batch.column(0))).to_pylist():
            if item["values"] is not None:
                text = label.format(item["values"])
                counts[text] += item["counts"]
                values[text] = item["values"]
        if len(counts) > MOST_LABELS:
            return {}, rows_read
    order = sorted(counts, key=lambda text: make_sort_key(values[text]))
    return {text: counts[text] for text in order}, rows_read


def make_sort_key(value: object) -> tuple[float, str]:
    """Return a key that sorts numbers from high to low, and texts in ascending order.

    In a column of numbers, NaN, None and texts are sorted as the number 0.
    """
    if isinstance(value, int | float) and value == value:  # NaN is not equal to itself
        return (-float(value), "")
    return (0.0, str(value))


def group_rows(rows: Rows, pair: tuple[str, str], label: Label) -> list[Group]:
    """Return one group for each source sentence, in the order of the rows.

    The second sentences of a group are sorted by label, with ``make_sort_key``.

    Args:
        rows: the rows of a page.
        pair: the columns of the source sentence and of the second sentence.
        label: the column of the label.
    """
    first_column, second_column = pair
    rows_by_first: dict[Any, Rows] = {}
    for row in rows:
        rows_by_first.setdefault(row.get(first_column), []).append(row)
    groups = []
    for first, members in rows_by_first.items():
        members.sort(key=lambda row: make_sort_key(row.get(label.column)))
        seconds = []
        for row in members:
            second = Second(
                label=format_cell(get_label_name(row.get(label.column), label.names)),
                text=format_cell(row.get(second_column)),
                note="sampled" if row.get("target") == "sampled" else "",
            )
            seconds.append(second)
        groups.append(Group(first=format_cell(first), seconds=seconds))
    return groups


def read_label_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str]:
    """Return the class names of a column; [] for a column without class names.

    ``metadata``: the metadata of a file's schema, in which ``datasets`` keeps the names.
    """
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return [str(name) for name in features[column]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def get_label_name(value: object, names: list[str]) -> object:
    """Return the class name of a label's number, or ``value`` itself without a name."""
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value


def format_cell(value: object, most: int = MOST_CELL_CHARACTERS) -> str:
    """Return a value as text, with hidden characters as U+FFFD; None is an empty text.

    A float has six significant digits. A text of more than ``most`` characters is cut there, and a
    note with its length is added.
    """
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > most:
        text = f"{text[:most]}… (cut: {len(text):,} characters)"
    return escape_hidden_characters(text)
