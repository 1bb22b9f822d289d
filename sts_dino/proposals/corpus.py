"""Look at a corpus: its column of texts, their lengths, language and faults.

A corpus is a file, or one split of a Hub dataset.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from sts_dino.generation.inputs.sources import (
    describe_source,
    has_control_characters,
    read_file_rows,
)
from sts_dino.generation.run import is_question
from sts_dino.hub.client.connection import convert_read_errors
from sts_dino.hub.client.fetch import open_hub_dataset, require_known
from sts_dino.hub.contract import licences
from sts_dino.hub.contract.recipe import LANGUAGE, QUOTE
from sts_dino.hub.contract.shards import convert_reader_errors
from sts_dino.hub.errors import InputError, suggest_choice
from sts_dino.hub.text_files import (
    MARK,
    READERS,
    as_text,
    is_blank,
    join_names,
    open_rows,
    require_column,
    require_kind,
    split_columns,
)
from sts_dino.hub.untrusted import join_lines
from sts_dino.hub.word_overlap import split_words

logger = logging.getLogger(__name__)

PROFILED_ROWS = 20_000  # rows that a profile reads
MOST_CHARACTERS = 1_000  # characters of a usable text
# usual names of a column of texts, the likeliest first
TEXT_COLUMN_NAMES = [
    "text",
    "sentence",
    "sentence1",
    "content",
    "body",
    "title",
    "question",
    "review",
    "description",
]
MOST_WORDS_IN_NAME = 4  # of a column; a first row with a longer cell is not a header
SEARCH_PAGE = (
    "for search over passages, generate queries for them: docs/search.md "
    "(its table: no gain over all-MiniLM-L6-v2 as published)"
)
FAULTS = ("empty", "broken", "multiline", "overlong", "repeated")
LENGTH_FAULTS = ("multiline", "overlong")  # the faults that a passage may have
# Kinds of texts; tickets have no sign of their own
KINDS = ("statements", "questions", "titles", "tickets")
LEAST_QUESTION_SHARE = 0.5  # share of questions from which a corpus consists of questions
LEAST_TITLE_SHARE = 0.8  # share of titles from which a corpus consists of titles
MOST_WORDS_IN_TITLE = 12
# a text with this many sentences and words is a passage; a ticket has fewer words
LEAST_SENTENCES_IN_PASSAGE = 2
LEAST_WORDS_IN_PASSAGE = 40
LEAST_PASSAGE_SHARE = 0.5  # share of passages from which a corpus consists of passages
# the end of a sentence; Chinese and Japanese marks need no blank after them
SENTENCE_END = re.compile(r"[.!?…؟।][\"'”’)\]]*(?=\s|$)|[。！？]")
SENTENCE_ENDS = tuple(".!?…:;。！？؟؛।॥")  # of sentences, not of titles
LANGUAGE_SAMPLE_TEXTS = 300  # texts whose language is recognised; at most twice as many


@dataclass(frozen=True)
class Profile:
    """Statistics of the first ``PROFILED_ROWS`` rows of a corpus.

    With several columns each cell counts as a row. ``usable`` and ``quoted`` count rows, and
    ``faults`` counts the unusable ones: fault, one of ``FAULTS`` → rows. A row counts under the
    first fault that ``_find_fault`` finds.
    """

    columns: tuple[str, ...]
    rows: int
    whole: bool  # whether the corpus has no further rows
    usable: int
    faults: Mapping[str, int]
    quoted: int  # usable texts with a quotation mark
    words: tuple[int, int, int]  # 5th, 50th and 95th percentile of the usable texts' lengths
    language: str  # code of the commonest language (ISO 639-1)
    in_language: float  # the share of texts recognised as that language
    kind: str  # one of ``KINDS``
    sign: str  # the measured share that decided the kind, in words
    passages: float  # share of passages among usable, multiline and overlong texts
    texts: tuple[str, ...] = ()  # the usable ones

    def describe(self, location: object, rejected: Mapping[str, int]) -> list[str]:
        """Return lines with the counts of rows and three texts, as ``describe_source`` does.

        Args:
            location: the corpus as the lines name it.
            rejected: reason → number of usable texts that a run would pass over.
        """
        usable = self.usable - sum(rejected.values())
        skipped = {**self.faults, **rejected}
        return describe_source(location, self.columns, usable, skipped, self.texts)


@dataclass(frozen=True)
class Corpus:
    """A corpus with its title, the keys of the recipe's ``source`` that locate it, and its licence.

    license: the licence of its card; None for a file, and where the project does not know it.
    """

    title: str
    source: Mapping[str, object]
    profile: Profile
    license: str | None = None


def measure_file(
    path: Path,
    column: str | None = None,
    language: str | None = None,
    kind: str | None = None,
    encoding: str | None = None,
) -> Profile:
    """Measure the statistics of a file that ``sts_dino.hub.text_files`` reads.

    Args:
        path: the file.
        column: the column of texts, or several with commas between them; None: ``choose_column``
            chooses one. A .txt file has no columns.
        language, kind: as in ``measure_texts``.
        encoding: the encoding of a file that is not UTF-8; None: it is recognised.

    Raises InputError for a missing file, another kind of file, an uncertain encoding, a column that
    is missing or cannot be guessed, a column of a .txt file, a file without a usable text, a
    malformed ``language`` and an unknown ``kind``.
    """
    if path.is_dir():
        raise InputError(path, "is a folder", allowed=f"a file of texts: {', '.join(READERS)}")
    if not path.is_file():
        raise InputError(
            path, "no such file", hint=f"looked in {Path.cwd()}; give a file of texts, one a row"
        )
    columns: tuple[str, ...] = ()
    if require_kind(path, path) != ".txt":
        columns = find_columns(path, column, encoding)
    elif column is not None:
        problem = f"has a text a line, and no column {column!r}"
        raise InputError(path, problem, hint="leave out --column or --columns")
    rows = read_file_rows(path, columns, str(path), encoding)
    return measure_texts(str(path), columns, chain.from_iterable(rows), language, kind)


def _require_known_choices(language: str | None, kind: str | None) -> None:
    """Raise InputError for a language code or a kind of texts that does not exist."""
    if kind is not None and kind not in KINDS:
        raise InputError(
            "--kind",
            f"no kind {kind!r}",
            allowed=", ".join(KINDS),
            hint=suggest_choice(kind, KINDS),
        )
    if language is not None and not re.fullmatch(LANGUAGE, language):
        raise InputError(
            "--language",
            f"{language!r} is not a language code",
            allowed="ISO 639 in lower case, e.g. en, de, yue",
        )


def measure_texts(
    location: str,
    columns: tuple[str, ...],
    cells: Iterator[str],
    language: str | None = None,
    kind: str | None = None,
) -> Profile:
    """Measure the statistics of texts.

    Args:
        location: the corpus, for errors.
        columns: the names of the columns of texts; empty for a .txt file.
        cells: the texts; the first ``PROFILED_ROWS`` are measured.
        language: the language code that the user gave; None: it is recognised.
        kind: the kind of texts that the user gave; None: it is recognised.

    Raises InputError without a usable text, for a malformed ``language`` and an unknown ``kind``.
    """
    _require_known_choices(language, kind)

    # Separate the usable texts, and count the faults of the others.
    texts = [cell.strip().removeprefix(MARK).strip() for cell in islice(cells, PROFILED_ROWS)]
    is_whole = next(cells, None) is None
    counts = dict.fromkeys(FAULTS, 0)
    passages = 0
    usable: list[str] = []
    seen_texts: set[str] = set()
    for text in texts:
        fault = _find_fault(text, seen_texts)
        seen_texts.add(text)
        if fault in (None, *LENGTH_FAULTS) and is_passage(text):
            passages += 1
        if fault:
            counts[fault] += 1
        else:
            usable.append(text)
    if not usable:
        reasons = ", ".join(f"{count} {fault}" for fault, count in counts.items() if count)
        are_passages = passages > LEAST_PASSAGE_SHARE * len(texts)
        hint = f"they are passages: {SEARCH_PAGE}" if are_passages else None
        raise InputError(
            location,
            f"has no usable text in its first {len(texts):,} rows ({reasons})",
            allowed=f"at least one text of one line, up to {MOST_CHARACTERS:,} characters",
            hint=hint,
        )

    # Measure lengths, language and kind of the usable texts.
    lengths = sorted(len(split_words(text)) for text in usable)
    last = len(lengths) - 1
    code, share = _infer_language(usable, language)
    kind, sign = _infer_kind(usable, kind)
    return Profile(
        columns=columns,
        rows=len(texts),
        whole=is_whole,
        usable=len(usable),
        faults=counts,
        quoted=sum(QUOTE in text for text in usable),
        words=(lengths[int(0.05 * last)], lengths[int(0.5 * last)], lengths[int(0.95 * last)]),
        language=code,
        in_language=share,
        kind=kind,
        sign=sign,
        passages=passages / (len(usable) + sum(counts[fault] for fault in LENGTH_FAULTS)),
        texts=tuple(usable),
    )


def _find_fault(text: str, seen_texts: set[str]) -> str | None:
    """Return a fault of a text, one of ``FAULTS``; None for a usable text.

    seen_texts: the texts of the rows before.
    """
    if is_blank(text):
        return "empty"
    if len(text.splitlines()) > 1:
        return "multiline"
    if len(text) > MOST_CHARACTERS:
        return "overlong"
    if has_control_characters(text):
        return "broken"
    return "repeated" if text in seen_texts else None


def _infer_language(texts: Sequence[str], language: str | None) -> tuple[str, float]:
    """Return the language code that the user gave, else the commonest one, and its share.

    py3langid recognises the language of each text of a sample. The share, 0 to 1, is the part of
    the sample that has the returned language.
    """
    import py3langid

    sample = texts[:: max(1, len(texts) // LANGUAGE_SAMPLE_TEXTS)]
    codes = [str(py3langid.classify(text)[0]) for text in sample]
    if language is None:
        # Of equally frequent languages, the first in the alphabet.
        language = max(sorted(set(codes)), key=codes.count)
    return language, codes.count(language) / len(codes)


def _infer_kind(texts: Sequence[str], kind: str | None) -> tuple[str, str]:
    """Return the kind that the user gave, else the recognised one, and the reason in words.

    The reason is a measured share of the texts, e.g. "80% end in a question mark". For the kind
    titles it is the share of titles, for all other kinds that of questions.
    """
    question_share = sum(map(is_question, texts)) / len(texts)
    title_share = sum(map(_is_like_title, texts)) / len(texts)
    if kind is None:
        if question_share >= LEAST_QUESTION_SHARE:
            kind = "questions"
        elif title_share >= LEAST_TITLE_SHARE:
            kind = "titles"
        else:
            kind = "statements"
    sign = f"{question_share:.0%} end in a question mark"
    if kind == "titles":
        sign = f"{title_share:.0%} have at most {MOST_WORDS_IN_TITLE} words and no full stop"
    return kind, sign


def is_passage(text: str) -> bool:
    """Return whether a text is a passage: several sentences, and the words of a paragraph."""
    sentences = len(SENTENCE_END.findall(text))
    is_long = len(split_words(text)) >= LEAST_WORDS_IN_PASSAGE
    return is_long and sentences >= LEAST_SENTENCES_IN_PASSAGE


def _is_like_title(text: str) -> bool:
    """Return whether a text is as short as a title and does not end like a sentence."""
    return len(split_words(text)) <= MOST_WORDS_IN_TITLE and not text.endswith(SENTENCE_ENDS)


def find_columns(path: Path, requested: str | None, encoding: str | None = None) -> tuple[str, ...]:
    """Return the names of the columns of texts in a table.

    Args:
        path: the table.
        requested: the user's column, or several with commas between them; None: ``choose_column``
            chooses one by the header and the first row.
        encoding: as in ``measure_file``.

    Raises InputError for a table without a header or rows, and for a column that is missing or
    cannot be guessed.
    """
    names, rows, _ = open_rows(path, path, encoding=encoding)
    header = join_names(names)

    # A column's own name may have a comma; any other request is a list of columns.
    if requested is not None and requested not in names:
        columns = tuple(split_columns(requested))
        for column in columns:
            require_column(column, names, path)
        return columns

    # A sentence in place of a column's name means that the header is missing.
    if requested is None and any(len(name.split()) > MOST_WORDS_IN_NAME for name in names):
        problem = f"has no header: its first row is {join_lines(header, 100)}"
        hint = (
            "write the columns' names into a first row; if it is a header, "
            "name the column of texts: --column NAME"
        )
        raise InputError(path, problem, hint=hint)
    first = next(rows, None)
    if first is None:
        raise InputError(path, "has no row", allowed="at least one text", hint=f"columns: {header}")
    # A row may lack the cells of some columns.
    _, cells = first
    row = dict.fromkeys(names) | cells
    return (choose_column(str(path), row, requested),)


def choose_column(location: str, row: Mapping[str, object], requested: str | None) -> str:
    """Choose the requested column of a row, else a usual name, else the only column of texts.

    A column of texts has more than two words in this row. location: the corpus, for errors. Raises
    InputError for a missing column, and where several columns or none hold texts.
    """
    columns = join_names(row)
    if requested is not None:
        require_column(requested, list(row), location)
        return requested
    candidates = [column for column in row if column.lower() in TEXT_COLUMN_NAMES]
    if candidates:
        return min(candidates, key=lambda column: TEXT_COLUMN_NAMES.index(column.lower()))
    texts = {column: value for column, value in row.items() if isinstance(value, str)}
    candidates = [column for column, text in texts.items() if len(split_words(text)) > 2]
    if len(candidates) == 1:
        return candidates[0]
    problem = "no column seems to hold texts"
    if candidates:
        problem = "which column holds the texts is not clear"
    raise InputError(location, problem, allowed=columns, hint="name it: --column NAME")


def read_hub_corpus(
    location: str,
    config: str | None = None,
    split: str | None = None,
    column: str | None = None,
    language: str | None = None,
    kind: str | None = None,
) -> Corpus:
    """Measure a Hub dataset at its commit: its card's licence and the first rows of one split.

    Args:
        location: ``ORG/NAME[@REVISION]``.
        config: None: the dataset's default config.
        split: None: its only split, else ``train``.
        column: the column of texts, one alone; None: ``choose_column`` chooses one.
        language, kind: as in ``measure_texts``.

    Raises InputError for a repository, revision, config, split or column that does not exist, for
    several configs without a default, for a column that cannot be guessed, for a split without a
    usable text, and for a malformed ``language`` or an unknown ``kind``; RunError when the Hub
    cannot be read.
    """
    # Choose a config and a split.
    repo_id, _, revision = location.partition("@")
    dataset = open_hub_dataset(repo_id, revision or None, location)
    configs = dataset.call("get_dataset_config_names")
    config = config or dataset.call("get_dataset_default_config_name")
    if config is None:
        raise InputError(
            location, "has several configs", allowed=", ".join(configs), hint="name one: --config"
        )
    require_known(config, configs, location, "config")
    splits = dataset.call("get_dataset_split_names", config)
    if split is None:
        split = splits[0] if len(splits) == 1 else "train"
    require_known(split, splits, f"{location} ({config})", "split")

    # Read the split's first rows.
    with convert_read_errors(repo_id, dataset.commit), convert_reader_errors(location, hint=None):
        rows: Any = iter(dataset.call("load_dataset", config, split=split, streaming=True))
        first = next(rows, None)
        if first is None:
            raise InputError(
                f"{location} ({config}, {split})", "has no row", allowed="at least one text"
            )
        name = choose_column(location, first, column)
        cells = (as_text(row[name], location, name) for row in chain([first], rows))
        profile = measure_texts(location, (name,), cells, language, kind)

    # Pin the commit; say so unless the user gave it.
    if revision != dataset.commit:
        branch = revision or "its main branch"
        logger.info(f"{repo_id}: {branch} is {dataset.commit} now; the recipe pins that")
    source = {
        "kind": "hub",
        "repo_id": repo_id,
        "revision": dataset.commit,
        "config": config,
        "splits": [split],
    }
    return Corpus(repo_id, source, profile, _get_known_licence(repo_id, dataset.license))


def _get_known_licence(repo_id: str, license_id: str | None) -> str | None:
    """Return a card's licence if the project's table of licences has it, else None and log why."""
    if license_id in licences.load_licences():
        return license_id
    problem = "no licence"
    if license_id:
        problem = f"{join_lines(license_id)!r}, which is not one known licence"
    logger.info(
        f"{repo_id}: its card names {problem}, so its texts count as unlicensed; "
        "if you know better: --license"
    )
    return None
