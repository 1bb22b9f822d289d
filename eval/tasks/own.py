"""A user's own files as tasks: pairs with a score, and queries with judged documents (BEIR)."""

import csv
import io
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from shlex import quote
from statistics import mean
from typing import Annotated, Any, NamedTuple

import typer

from sts_dino.eval.tasks.rows import Rows
from sts_dino.eval.tasks.task import Metric, Side, Task
from sts_dino.hub.cli import FileOptions
from sts_dino.hub.durable import require_regular_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.text_files import (
    DecimalMark,
    as_number,
    as_text,
    is_blank,
    join_names,
    open_lines,
    open_rows,
    require_column,
    require_kind,
    split_columns,
)
from sts_dino.hub.untrusted import join_lines

logger = logging.getLogger(__name__)

COLUMNS_EXAMPLE = "e.g. sentence1, sentence2, score (docs/protocols.md)"
LEAST_COUNT = 10  # pairs or queries: with fewer, an interval is too wide to be useful
# Pairs with another score than the most frequent one: with fewer, many resamples are constant
LEAST_OTHER_SCORES = 3
SHOWN_CHARACTERS = 60  # of an id or a line that an error shows
OWN_GROUP = "own"  # the tasks' group
SPLIT = "test"  # the scored pairs or queries
CORPUS = "corpus"
QRELS = "qrels"
SIDES: tuple[Side, Side] = ("query", "document")
# Plain names of columns: lower case, letters and digits only; the first known name is taken
STS_COLUMN_PAIRS = (
    *((f"{kind}1", f"{kind}2") for kind in ("sentence", "text", "sent", "question", "s", "q")),
    *((f"{kind}a", f"{kind}b") for kind in ("sentence", "text", "")),
    ("premise", "hypothesis"),
    ("anchor", "positive"),
    ("source", "target"),
    ("first", "second"),
)
SEARCH_COLUMN_PAIRS = tuple(
    product(("query", "question"), ("passage", "document", "answer", "text"))
)
SCORE_COLUMNS = (
    *("score", "similarity", "similarityscore", "gold", "goldscore", "goldlabel", "label"),
    *("rating", "relatedness", "relatednessscore", "relevance", "humanscore", "meanscore"),
    "isduplicate",
)
ID_COLUMNS = {
    "query": ("queryid", "qid", "id"),
    "document": ("corpusid", "docid", "documentid", "passageid", "pid", "id"),
}
TEXT_COLUMNS = {
    "query": ("text", "query", "question"),
    "document": ("text", "passage", "document", "contents", "body"),
}
GRADE_COLUMNS = ("score", "relevance", "rel", "grade", "label")


def _make_file_option(name: str, help_text: str) -> Any:
    """Make a command-line option that takes a file."""
    return typer.Option(name, metavar="FILE", help=help_text)


@dataclass(frozen=True)
class OwnFiles:
    """Options that name a user's own evaluation files."""

    pairs: Annotated[
        Path | None, _make_file_option("--pairs", "Your own pairs: two texts and a score a row")
    ] = None
    queries: Annotated[
        Path | None,
        _make_file_option("--queries", "Your own queries, in BEIR's layout (_id, text)"),
    ] = None
    corpus: Annotated[
        Path | None,
        _make_file_option("--corpus", "The documents that they search (_id, title, text)"),
    ] = None
    qrels: Annotated[
        Path | None, _make_file_option("--qrels", "The judgements (query-id, corpus-id, score)")
    ] = None


@dataclass(frozen=True)
class OwnData:
    """Tasks of a user's own files, and their rows: dataset → split → rows.

    Of several tasks of one file, the most important is first.
    """

    tasks: tuple[Task, ...] = ()
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @property
    def text_count(self) -> int:
        """Number of texts to encode, repeats included: texts of pairs, queries and documents."""
        count = 0
        for splits in self.rows.values():
            # A search has documents beside its queries; pairs have as many second texts as first
            second_texts = splits.get(CORPUS, splits[SPLIT])
            count += len(splits[SPLIT]) + len(second_texts)
        return count


def read_own(files: OwnFiles, reading: FileOptions | None = None) -> OwnData:
    """Read a user's own files; the log reports the rows that were read and skipped.

    ``reading``: the columns of the pairs, and the files' encoding; None: both are recognised.
    Without files the result has no tasks. Raises InputError for options that do not belong
    together, for missing or unreadable files, for files without the columns, ids or scores that
    they need, and for fewer than ``LEAST_COUNT`` pairs or queries.
    """
    reading = reading or FileOptions()

    # A search needs three files; --columns needs pairs
    queries = files.queries
    corpus = files.corpus
    qrels = files.qrels
    paths = {"--queries": queries, "--corpus": corpus, "--qrels": qrels}
    absent = [option for option, path in paths.items() if path is None]
    if 0 < len(absent) < len(paths):
        raise InputError(absent[0], "is needed, too", allowed=f"{', '.join(paths)} together")
    if reading.columns is not None and files.pairs is None:
        raise InputError("--columns", "names the columns of --pairs", hint="give --pairs FILE, too")
    if reading.encoding is not None and files.pairs is None and queries is None:
        hint = "give --pairs FILE or --queries FILE, too"
        raise InputError("--encoding", "is the encoding of your own files", hint=hint)

    # Read the files, and make their tasks
    tasks: list[Task] = []
    rows: dict[str, Mapping[str, Rows]] = {}
    if files.pairs is not None:
        task, pairs = _read_pairs(files.pairs, reading)
        tasks.append(task)
        rows[task.dataset] = {SPLIT: pairs}
    if queries is not None and corpus is not None and qrels is not None:
        rows[f"{queries.name}/search"] = _read_search(queries, corpus, qrels, reading.encoding)
        tasks.append(_make_search_task(queries.name, "ndcg@10"))
        tasks.append(_make_search_task(queries.name, "recall@10"))
    return OwnData(tuple(tasks), rows)


def _require_file(path: Path) -> None:
    """Raise InputError for a missing file, a folder, a pipe, a socket or a device."""
    require_regular_file(path)
    if path.is_dir():
        raise InputError(path, "is a folder", allowed="a file")
    if not path.exists():
        raise InputError(path, "no such file")


@dataclass(frozen=True)
class _Table:
    """A user's file: columns, rows as (FILE:LINE, column → cell), and the decimal mark."""

    path: Path
    columns: Sequence[str]
    rows: Sequence[tuple[str, Mapping[str, Any]]]
    decimal_mark: DecimalMark

    @classmethod
    def read(cls, path: Path, encoding: str | None) -> "_Table":
        """Read a file into memory.

        The columns are those of the header and the keys of all rows, as rows of JSON lines may
        differ. ``encoding``: the file's encoding; None: it is recognised. Raises InputError for a
        missing or unreadable file.
        """
        _require_file(path)
        table = open_rows(path, path, encoding=encoding)
        columns = dict.fromkeys(table.columns)
        rows: list[tuple[str, Mapping[str, Any]]] = []
        for line, row in table.rows:
            columns.update(dict.fromkeys(row))
            rows.append((f"{path}:{line}", row))
        return cls(path, list(columns), rows, table.decimal_mark)

    def get_plain_names(self) -> set[str]:
        """Return the plain names of the columns, e.g. sentence1 of ``Sentence_1``."""
        return {_make_plain(column) for column in self.columns}

    def get_column(self, plain_name: str) -> str:
        """Return the column with a plain name, one of ``get_plain_names``.

        BEIR's column ``_id`` precedes other columns with the plain name "id". Raises InputError
        when several columns have the plain name, and none of them is ``_id``.
        """
        columns = [column for column in self.columns if _make_plain(column) == plain_name]
        if len(columns) > 1 and "_id" not in columns:
            quoted = " and ".join(repr(column) for column in columns)
            problem = f"the columns {quoted} differ only in letter case, spaces or punctuation"
            raise InputError(self.path, problem, hint="rename or remove one of them")
        return "_id" if "_id" in columns else columns[0]

    def find_column(self, names: Sequence[str]) -> str:
        """Return the column of the first plain name in ``names`` that the file has.

        Raises InputError when the file has none of the names, and the error of ``get_column``.
        """
        plain_names = self.get_plain_names()
        for name in names:
            if name in plain_names:
                return self.get_column(name)
        raise self.make_missing_error("a column", f"one of {', '.join(names)}")

    def make_missing_error(self, missing: str, allowed: str, hint: str | None = None) -> InputError:
        """Make the error for a file that lacks ``missing``; it lists the file's columns."""
        columns = join_names(self.columns)
        problem = f"lacks {missing} (columns {columns})"
        return InputError(self.path, problem, allowed=allowed, hint=hint)


def _get_text(row: Mapping[str, Any], column: str, place: str) -> str:
    """Return a cell as text, "" for a missing cell; ``place`` is FILE:LINE, for errors.

    Raises InputError for a cell that ``as_text`` refuses (e.g. a list or NaN), and for one with
    half a surrogate pair.
    """
    text = as_text(row.get(column), place, column)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"its column {column!r} holds half a surrogate pair, which is not a character"
        raise InputError(place, problem, allowed="text", hint="write the row anew") from error
    return text


def _make_plain(name: str) -> str:
    """Return a column's name in lower case, letters and digits only."""
    return "".join(filter(str.isalnum, name.casefold()))


@dataclass(frozen=True)
class _PairColumns:
    """The columns of scored pairs; ``is_search``: the texts are a query and a passage."""

    texts: tuple[str, str]
    score: str
    is_search: bool = False


def _format_columns(columns: Sequence[str]) -> str:
    """Return columns as the value of ``--columns``, quoted for ``split_columns`` and a shell."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(columns)
    return quote(join_lines(line.getvalue()))


def _find_pair_columns(table: _Table, names: str | None) -> _PairColumns:
    """Find the columns of the two texts and the score.

    ``names``: the option ``--columns``, three names with commas; they never make a search. None:
    the columns are found by their plain names; the first known pair of text columns counts.
    Raises InputError when ``names`` are not three distinct columns of the file, when a column is
    missing, and when two columns have the plain name of a chosen one.
    """
    # Make an example for errors from the first columns of the file, which may have fewer than three
    example_columns = list(table.columns[:3])
    example_columns += ("TEXT", "TEXT", "SCORE")[len(example_columns) :]
    example = f"--columns {_format_columns(example_columns)}"

    # Take the columns that the user names
    if names is not None:
        columns = split_columns(names)
        if len(columns) != 3:
            problem = f"{names!r} names {len(columns)} columns"
            allowed = f"two texts and a score, e.g. {example}"
            raise InputError("--columns", problem, allowed=allowed)
        for column in columns:
            require_column(column, table.columns, table.path)
        return _PairColumns((columns[0], columns[1]), columns[2])

    # Find the columns by their plain names
    plain_names = table.get_plain_names()
    hint = f"name yours: {example}"
    pairs = [pair for pair in (*STS_COLUMN_PAIRS, *SEARCH_COLUMN_PAIRS) if plain_names >= set(pair)]
    if not pairs:
        raise table.make_missing_error("two columns of texts", COLUMNS_EXAMPLE, hint)
    text_names = pairs[0]
    scores = [name for name in SCORE_COLUMNS if name in plain_names and name not in text_names]
    if not scores:
        raise table.make_missing_error("a column of scores", COLUMNS_EXAMPLE, hint)
    first, second = (table.get_column(name) for name in text_names)
    is_search = text_names in SEARCH_COLUMN_PAIRS
    return _PairColumns((first, second), table.get_column(scores[0]), is_search)


def _read_pairs(path: Path, reading: FileOptions) -> tuple[Task, Rows]:
    """Read scored pairs, and return their task and the distinct pairs, in the order of the file.

    The log reports merged and skipped rows. Raises InputError for a missing or unreadable file,
    missing columns, a cell that is not a text or a number, fewer than ``LEAST_COUNT`` distinct
    pairs, and scores or texts that allow no useful correlation.
    """
    table = _Table.read(path, reading.encoding)
    columns = _find_pair_columns(table, reading.columns)

    # Read the pairs, and count the rows that lack a score or a text
    skipped = Counter[str]()
    pairs: list[tuple[str, str, float]] = []
    for place, row in table.rows:
        first, second = (_get_text(row, column, place) for column in columns.texts)
        score = as_number(
            row.get(columns.score),
            place,
            columns.score,
            table.decimal_mark,
            "leave the cell empty to skip the row",
        )
        if score is None:
            skipped["without a score"] += 1
        elif is_blank(first) or is_blank(second):
            skipped["without a text"] += 1
        else:
            pairs.append((first, second, score))
    row_scores = [score for _, _, score in pairs]
    pairs, contradicted = _merge_repeated_pairs(pairs, in_order=columns.is_search)
    _require_enough(path, len(pairs), "distinct pairs", skipped)
    _require_varied(path, pairs)

    # Log what was read
    scores = [score for _, _, score in pairs]
    names = ", ".join([*columns.texts, columns.score])
    count = f"{len(pairs):,} pairs"
    if len(pairs) < len(row_scores):
        count = f"{len(pairs):,} distinct pairs of {len(row_scores):,}"
    logger.info(
        f"{path}: {count} ({names}), scores {min(scores):g} to "
        f"{max(scores):g}{_describe_skipped(skipped)}"
    )
    if contradicted:
        logger.warning(
            f"{path}: pairs with different scores in several rows: {contradicted:,}; "
            "their mean counts"
        )
    _warn_of_sentinel_score(path, row_scores)
    return _make_pairs_task(path.name, columns.is_search), Rows.from_tuples(pairs)


def _require_varied(path: Path, pairs: Sequence[tuple[str, str, float]]) -> None:
    """Raise InputError when the pairs (text, other text, score) allow no useful correlation.

    This is so when all scores, or all but one or two, are equal, or each pair has two equal texts.
    """
    scores = Counter(score for _, _, score in pairs)
    frequent, count = scores.most_common(1)[0]
    other_count = len(pairs) - count
    problem = None
    if other_count == 0:
        problem = f"all {len(pairs)} scores are {frequent:g}"
    elif other_count < LEAST_OTHER_SCORES:
        problem = f"all but {other_count} of {len(pairs)} scores are {frequent:g}"
    elif all(first == second for first, second, _ in pairs):
        problem = f"all {len(pairs)} pairs are two equal texts"
    if problem is not None:
        raise InputError(path, problem, hint="a correlation needs scores and texts that differ")


def _warn_of_sentinel_score(path: Path, scores: Sequence[float]) -> None:
    """Warn of a lowest or highest score that looks like a sentinel for "no judgement".

    The warning is for -1 below whole scores from 0 to 2 or more, as in SNLI, and for a score far
    outside the range of all others, e.g. 99 or -999.

    Args:
        path: the file, which the warning names.
        scores: the score of every row, with two or more distinct values; a mean over repeated
            pairs could hide a sentinel.
    """
    counts = Counter(scores)
    for candidate in (min(counts), max(counts)):
        other_scores = [score for score in counts if score != candidate]
        lowest, highest = min(other_scores), max(other_scores)
        distance = max(lowest - candidate, candidate - highest)
        has_classes = lowest == 0 and highest >= 2 and all(map(float.is_integer, other_scores))
        is_below_classes = candidate == -1 and has_classes
        # Far outside: at a distance of more than twice the range of the other distinct scores, of
        # which there are three or more, because two have no typical range
        is_far_outside = len(other_scores) >= 3 and distance > 2 * (highest - lowest)
        if is_below_classes or is_far_outside:
            logger.warning(
                f"{path}: {counts[candidate]:,} rows have the score {candidate:g}, the others "
                f"{lowest:g} to {highest:g}; if {candidate:g} means no judgement, empty these cells"
            )


def _merge_repeated_pairs(
    pairs: Sequence[tuple[str, str, float]], in_order: bool
) -> tuple[list[tuple[str, str, float]], int]:
    """Return each distinct pair once, with the mean of its scores.

    The bootstrap needs independent rows: with every row repeated 20 times, an interval would be
    too narrow by the square root of 20. Two pairs are the same when ``normalize_text`` makes their
    texts equal.

    Args:
        pairs: (text, other text, score) of each row.
        in_order: whether a pair with its texts exchanged is another pair, as for a query and a
            passage.

    Returns the distinct pairs, in the order and spelling of their first rows, and the number of
    distinct pairs with contradicting scores.
    """
    scores: dict[tuple[str, str], list[float]] = {}
    spellings: dict[tuple[str, str], tuple[str, str]] = {}
    for first, second, score in pairs:
        key = (normalize_text(first), normalize_text(second))
        if not in_order and key[0] > key[1]:
            key = (key[1], key[0])
        spellings.setdefault(key, (first, second))
        scores.setdefault(key, []).append(score)

    # ``fmean`` rounds twice: its mean of three scores 0.1 is not 0.1, which would break ties.
    # ``mean`` is exact but slow, so a single score does without it.
    distinct = [
        (*spellings[key], mean(values) if len(values) > 1 else values[0])
        for key, values in scores.items()
    ]
    contradicted = sum(1 for values in scores.values() if len(set(values)) > 1)
    return distinct, contradicted


def normalize_text(text: str) -> str:
    """Return a text in a form in which different spellings of one text are equal.

    Letters are composed (NFC) and case-folded. Each run of white space, tabs and line breaks
    included, becomes one space; at the ends it is removed. All other control and format characters
    (Unicode's Cc and Cf, e.g. a zero-width space) are removed.
    """
    visible = "".join(
        letter
        for letter in text
        if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cf")
    )
    return " ".join(unicodedata.normalize("NFC", visible.casefold()).split())


def _make_pairs_task(name: str, is_search: bool) -> Task:
    """Make ``FILE/cosine``, the task that scores the pairs of the file ``name`` by cosine.

    ``is_search``: whether the texts of a pair are a query and a passage, which get prompts.
    """
    prompts = ""
    if is_search:
        prompts = (
            "; the first with the encoder's prompt for queries, the second with its prompt for "
            "documents"
        )
    return Task(
        name=f"{name}/cosine",
        dataset=f"{name}/pairs",
        group=OWN_GROUP,
        family="sts",
        protocol="own pairs: Spearman correlation x 100 between the cosine of two text embeddings "
        f"and the score, over all pairs; no model is fitted on top{prompts}",
        metric="spearman",
        sides=SIDES if is_search else None,
    )


def _make_search_task(name: str, metric: Metric) -> Task:
    """Make ``FILE/METRIC``, the task that ranks documents for the queries of the file ``name``."""
    return Task(
        name=f"{name}/{metric}",
        dataset=f"{name}/search",
        group=OWN_GROUP,
        family="search",
        protocol=f"own queries: {metric} x 100 of the documents ranked by cosine, as trec_eval "
        "computes it, without the document of the query's own id unless that is relevant, mean "
        "over queries with a relevant document; the encoder's own prompts for queries and "
        "documents",
        metric=metric,
        unit="queries",
        fitted_on=(CORPUS, QRELS),  # nothing is fitted: a score needs the rows of these splits, too
        sides=SIDES,
    )


def _read_search(
    queries_path: Path, corpus_path: Path, qrels_path: Path, encoding: str | None
) -> dict[str, Rows]:
    """Read the judged queries, the corpus and the judgements, in BEIR's layout or TREC's.

    Returns ``SPLIT`` → rows (query id, text, number of relevant documents), ``CORPUS`` → rows
    (document id, text, 0) and ``QRELS`` → rows (query id, document id, grade), each in the order
    of its file. The log reports skipped queries. Raises InputError when no judgement is relevant,
    and for fewer than ``LEAST_COUNT`` judged queries; also the errors of ``_read_texts`` and
    ``_read_judgements``.
    """
    # Read the three files
    queries = _read_texts(queries_path, "query", encoding)
    documents = _read_texts(corpus_path, "document", encoding)
    known_texts = ((queries_path.name, queries), (corpus_path.name, documents))
    grades = _read_judgements(qrels_path, known_texts, encoding)

    # Keep the queries that have a text and a relevant document
    relevant_counts = Counter(query for (query, _), grade in grades.items() if grade > 0)
    if not relevant_counts:
        problem = f"none of its {len(grades)} judgements is relevant"
        raise InputError(qrels_path, problem, allowed="a score above 0")
    judged: list[tuple[str, str, float]] = []
    skipped = Counter[str]()
    for query, text in queries.items():
        if query not in relevant_counts:
            skipped["without a relevant document"] += 1
        elif is_blank(text):
            skipped["without a text"] += 1
        else:
            judged.append((query, text, float(relevant_counts[query])))
    _require_enough(queries_path, len(judged), "queries", skipped)

    # Log what was read, and what affects the score
    judgements = sum(int(count) for _, _, count in judged)
    logger.info(
        f"{queries_path}: {len(judged):,} queries with {judgements:,} relevant judgements "
        f"of {len(documents):,} documents{_describe_skipped(skipped)}"
    )
    empty = sum(is_blank(text) for text in documents.values())
    if empty:
        logger.warning(f"{corpus_path}: {empty:,} of {len(documents):,} documents have no text")
    shared_ids = sum(query in documents for query, _, _ in judged)
    if shared_ids:
        logger.info(
            f"{corpus_path}: {shared_ids:,} documents have the id of a query; a query "
            "does not find the document of its own id, unless that is judged relevant"
        )
    return {
        SPLIT: Rows.from_tuples(judged),
        CORPUS: Rows.from_tuples([(name, text, 0.0) for name, text in documents.items()]),
        QRELS: Rows.from_tuples([(*ids, grade) for ids, grade in grades.items()]),
    }


class _Judgement(NamedTuple):
    """A judgement: FILE:LINE, the ids of query and document, and the grade; None: an empty cell."""

    place: str
    query: str
    document: str
    grade: float | None


def _read_judgements(
    path: Path, known_texts: Sequence[tuple[str, Mapping[str, str]]], encoding: str | None
) -> dict[tuple[str, str], float]:
    """Read (query id, document id) → grade; a negative grade becomes 0, not relevant.

    known_texts: (file name, id → text) of the queries, then of the documents. Raises InputError
    for an unknown id, a repeated judgement, a missing grade, and a grade that is not a whole
    number; also the errors of ``_iter_judgements``.
    """
    grades: dict[tuple[str, str], float] = {}
    # (file name, unknown id) → place of its first judgement
    unknown: dict[tuple[str, str], str] = {}
    for place, query, document, grade in _iter_judgements(path, encoding):
        if (query, document) in grades:
            ids = f"query {_quote_id(query)} and document {_quote_id(document)}"
            raise InputError(place, f"judges {ids} twice")
        # Collect unknown ids, so that the error has their number
        for text_id, (file, texts) in zip((query, document), known_texts, strict=True):
            if text_id not in texts:
                unknown.setdefault((file, text_id), place)
        if grade is None or not grade.is_integer():
            problem = "has no score" if grade is None else f"its score is {grade:g}"
            raise InputError(place, problem, allowed="whole numbers; above 0 is relevant")
        grades[query, document] = max(grade, 0.0)
    if unknown:
        (file, text_id), place = next(iter(unknown.items()))
        problem = f"names the id {_quote_id(text_id)}, which {file} lacks"
        hint = f"{len(unknown)} such ids in all; give files of one collection"
        raise InputError(place, problem, hint=hint)
    return grades


def _iter_judgements(path: Path, encoding: str | None) -> Iterator[_Judgement]:
    """Yield the judgements of a file: TREC's four columns, or a table with a header.

    TREC's lines are query, iteration, document and grade, without a header. The first line that is
    not blank decides the format. Raises InputError for a missing or unreadable file, for a line of
    another form in TREC's format, for a table without a header or without the three columns, and
    for a cell that is not an id or a number.
    """
    # Read the first line that is not blank
    _require_file(path)
    is_text = require_kind(path, path) in (".txt", ".tsv", ".csv")
    lines = open_lines(path, path, encoding) if is_text else iter(())
    nonblank_lines = ((number, line) for number, line in lines if line.strip())
    first = next(nonblank_lines, (1, ""))

    # Read TREC's lines, the first one included
    if _is_trec_line(first[1]):
        for number, line in chain([first], nonblank_lines):
            place = f"{path}:{number}"
            cells = line.split()
            if not _is_trec_line(line):
                problem = (
                    f"is not a line of TREC's judgements: {join_lines(line, SHOWN_CHARACTERS)}"
                )
                raise InputError(place, problem, allowed="QUERY 0 DOCUMENT GRADE")
            yield _Judgement(place, cells[0], cells[2], float(cells[3]))
        return

    # Read a table; a column name that is a number shows that the first row is not a header
    table = _Table.read(path, encoding)
    if any(re.fullmatch(r"-?\d+", column) for column in table.columns):
        problem = f"has no header: its first row is {join_names(table.columns)}"
        allowed = "a first row query-id, corpus-id, score; or TREC's lines QUERY 0 DOCUMENT GRADE"
        raise InputError(path, problem, allowed=allowed)
    columns = [table.find_column(ID_COLUMNS["query"]), table.find_column(ID_COLUMNS["document"])]
    grade_column = table.find_column(GRADE_COLUMNS)
    for place, row in table.rows:
        query, document = (_get_text(row, column, place) for column in columns)
        grade = as_number(row.get(grade_column), place, grade_column, table.decimal_mark)
        yield _Judgement(place, query, document, grade)


def _quote_id(name: str) -> str:
    """Return an id for an error: quoted, in one line, at most ``SHOWN_CHARACTERS`` characters."""
    return repr(join_lines(name, SHOWN_CHARACTERS))


def _is_trec_line(line: str) -> bool:
    """Return whether a line is query, iteration, document and whole grade, split at white space."""
    return re.fullmatch(r"\S+\s+\S+\s+\S+\s+-?\d+", line.strip()) is not None


def _read_texts(path: Path, kind: Side, encoding: str | None) -> dict[str, str]:
    """Read id → text of queries or documents; as in BEIR, a document's title precedes its text.

    A text may be blank. Raises InputError for a missing or unreadable file, a missing column, a
    cell that is not text, a text without an id, and an id that occurs twice.
    """
    table = _Table.read(path, encoding)
    columns = [table.find_column(ID_COLUMNS[kind]), table.find_column(TEXT_COLUMNS[kind])]
    if kind == "document" and "title" in table.get_plain_names():
        columns.insert(1, table.get_column("title"))
    texts: dict[str, str] = {}
    for place, row in table.rows:
        text_id, *parts = (_get_text(row, column, place) for column in columns)
        if is_blank(text_id):
            raise InputError(place, f"has no {columns[0]}", hint="each text needs an id of its own")
        if text_id in texts:
            raise InputError(
                place,
                f"the id {_quote_id(text_id)} stands twice",
                hint="each text needs an id of its own",
            )
        texts[text_id] = " ".join(part for part in parts if part).strip()
    return texts


def _require_enough(path: Path, count: int, unit: str, skipped: Counter[str]) -> None:
    """Raise InputError when ``count`` is below ``LEAST_COUNT``.

    ``unit``: the counted things, for the error. ``skipped``: reason → number of skipped rows.
    """
    if count < LEAST_COUNT:
        problem = f"has too few {unit} ({count}){_describe_skipped(skipped)}"
        raise InputError(path, problem, allowed=f"{LEAST_COUNT} or more")


def _describe_skipped(skipped: Counter[str]) -> str:
    """Return "; passed over: COUNT REASON, ..." as the end of a sentence, or "" without any.

    ``skipped``: reason → number of skipped rows.
    """
    reasons = [f"{count:,} {reason}" for reason, count in skipped.items() if count]
    return f"; passed over: {', '.join(reasons)}" if reasons else ""
