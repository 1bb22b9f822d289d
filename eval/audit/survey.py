"""Blind questions about a dataset's rows, in its language, and a durable store of the answers."""

import hashlib
import heapq
import json
import sqlite3
import unicodedata
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from sts_dino.eval.audit.source import NO_LABEL, DatasetRows
from sts_dino.eval.tasks.own import normalize_text
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.schema import NLI_LABELS, QUERY_CLASS
from sts_dino.hub.durable import make_folder
from sts_dino.hub.errors import InputError, RunError
from sts_dino.hub.text_files import is_blank

DEFAULT_LANGUAGE = "en"
# A triplet is two questions: the NLI class of its pair with the positive, and with the negative
NLI_CLASS_OF_TRIPLET_LABEL = {"positive": "entailment", "negative": "contradiction"}
MAX_LABELS = 9  # each label has a digit key
MAX_NAME_CHARACTERS = 60


@cache
def load_page_words() -> dict[str, dict[str, Any]]:
    """Load ``words.yaml``, the page's words: language (ISO 639) → key → text or nested mapping."""
    text = (files("sts_dino.eval.audit") / "words.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.BaseLoader)  # BaseLoader makes texts only


def get_words(language: str) -> dict[str, Any]:
    """Return the page's words in ``language``, e.g. de or de-AT: key of ``words.yaml`` → words.

    A language that ``words.yaml`` lacks gets the words of its first part (de), else English words.
    """
    languages = load_page_words()
    for code in (language, language.partition("-")[0]):
        if code in languages:
            return languages[code]
    return languages[DEFAULT_LANGUAGE]


@dataclass(frozen=True)
class Scale:
    """A question and its possible answers.

    ``labels`` are the answers in order. ``meanings`` explains each label; "" where a label needs no
    explanation. ``ordered``: the labels have an order, so that κ can weight how far two of them lie
    apart.
    """

    question: str
    labels: tuple[str, ...]
    meanings: tuple[str, ...]
    ordered: bool


@dataclass(frozen=True)
class Examples:
    """The rows of one or several splits of a config as questions; a triplet gives two rows.

    ``split`` joins the names of the splits with " + ". ``labels`` are the generator's labels, which
    the page hides. ``headings`` names the texts of a row, e.g. ("premise", "hypothesis").
    """

    name: str
    config: str
    split: str
    headings: tuple[str, ...]
    scale: Scale
    texts: tuple[tuple[str, ...], ...]  # (rows, len(headings))
    labels: tuple[str, ...]  # (rows,)
    language: str = DEFAULT_LANGUAGE

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sha256(self) -> str:
        """SHA-256 of all texts and labels in order, the same for a run and its copy on a Hub."""
        digest = hashlib.sha256()
        for texts, label in zip(self.texts, self.labels, strict=True):
            digest.update(repr((texts, label)).encode())
        return digest.hexdigest()


def draw_rows(examples: Examples, count: int, seed: int) -> tuple[int, ...]:
    """Return ``count`` row numbers of ``examples``, a simple random sample in random order.

    Rows are ordered by a hash of (seed, row). So a larger sample of the same seed begins with the
    rows of a smaller sample. Raises InputError when ``examples`` has fewer than ``count`` rows.
    """
    if count > len(examples):
        raise InputError(
            f"{examples.name} ({examples.config}, {examples.split})",
            f"has {len(examples)} rows, {count} are asked for",
            hint=f"--sample {len(examples)}",
        )

    def hash_row(row: int) -> bytes:
        """Return a pseudo-random sort key of a row."""
        return hashlib.blake2b(f"{seed} {row}".encode(), digest_size=16).digest()

    return tuple(heapq.nsmallest(count, range(len(examples)), key=hash_row))


def format_score(score: float) -> str:
    """Return a similarity score with at most six digits: 0.9 for the float32 0.89999998."""
    return f"{score:zg}"  # z: no negative zero


def list_label_meanings(recipe: DatasetRecipe) -> dict[str, str]:
    """Return label → meaning, for the labels of a recipe that state a meaning.

    A label is given as rows have it: the name of a class, or the smoothed score as text. The
    meanings of labels with the same score are joined by "; ".
    """
    meanings: dict[str, list[str]] = {}
    for label in recipe.written_labels:
        if label.meaning is None:
            continue
        name = label.name
        if recipe.dataset_schema.scored:
            # Rows have the smoothed score in place of the name
            assert label.score is not None, "the schema requires it"
            name = format_score(recipe.postprocess.smooth_score(label.score))
        meanings.setdefault(name, []).append(label.meaning)
    return {name: "; ".join(texts) for name, texts in meanings.items()}


def read_examples(rows: DatasetRows, language: str | None = None) -> Examples:
    """Read all rows of a config as questions.

    Args:
        rows: the rows to ask about.
        language: the language of the page; None: the language of the dataset's recipe, else
            English.

    Raises InputError for rows without labels, for fewer than 2 or more than ``MAX_LABELS`` labels,
    for a label outside of the scale (``_make_scale``), for a damaged shard and for a score that is
    not finite. Raises RunError when the Hub refuses the recipe.
    """
    splits = " + ".join(rows.splits)
    location = f"{rows.name} ({rows.config}, {splits})"

    # Read the texts and the generator's labels; a triplet gives two pairs
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    for batch in rows.read_batches():
        first, second, pair_labels = batch.to_pairs()
        columns = [first, second] if first else list(batch.texts.values())
        texts += zip(*columns, strict=True)
        if rows.is_scored:
            labels += map(format_score, batch.scores)
        else:
            labels += pair_labels or batch.labels
    if not labels:
        raise InputError(
            location, "has no labels to compare answers with", allowed="labelled rows, or triplets"
        )
    if len(rows.columns) > 1:
        labels = [NLI_CLASS_OF_TRIPLET_LABEL.get(label, label) for label in labels]

    # Make the question and its answers, in the words of the page and of the recipe
    recipe = rows.read_recipe()
    meanings: dict[str, str] = {}
    if recipe is not None:
        language = language or recipe.language
        meanings = list_label_meanings(recipe)
    language = language or DEFAULT_LANGUAGE
    page_words = get_words(language)
    scale = _make_scale(rows, labels, location, page_words, meanings)
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(
                f"{location} row {row}", f"has the label {label!r}", allowed=list(scale.labels)
            )
    return Examples(
        name=rows.name,
        config=rows.config,
        split=splits,
        headings=tuple(page_words["headings"][rows.example_type]),
        scale=scale,
        texts=tuple(texts),
        labels=tuple(labels),
        language=language,
    )


def _make_scale(
    rows: DatasetRows,
    labels: list[str],
    location: str,
    page_words: dict[str, Any],
    recipe_meanings: dict[str, str],
) -> Scale:
    """Make the scale of the answers to rows.

    The answers about scored pairs are their scores in rising order. When a score lies outside of 0
    to 1, the page has no words for the meanings of the scores. The answers about queries and single
    texts are the dataset's own classes. The answers about other pairs are the three NLI classes,
    also where the generator makes only two of them.

    Args:
        rows: the rows to ask about.
        labels: the generator's label of each question, at least one.
        location: names the rows in errors.
        page_words: the words of the page.
        recipe_meanings: label → meaning, which replaces the words of the page.

    Raises InputError for fewer than 2 or more than ``MAX_LABELS`` answers.
    """
    # Choose the labels, and their meanings in the words of the page
    meanings: dict[str, str] = {}
    if rows.is_scored:
        choices = sorted({*labels}, key=float)
        if float(choices[0]) >= 0 and float(choices[-1]) <= 1:
            for label in choices:
                name = _choose_similarity_words(float(label), has_zero="0" in choices)
                meanings[label] = page_words["similarity"][name]
    elif len(rows.columns) > 1 and rows.example_type != QUERY_CLASS.name:
        choices = list(NLI_LABELS)
        meanings = page_words["meanings"]
    else:
        choices = list(rows.class_names) or sorted({*labels} - {NO_LABEL})
    if not 2 <= len(choices) <= MAX_LABELS:
        kind = "scores" if rows.is_scored else "labels"
        raise InputError(
            location, f"has {len(choices)} distinct {kind}", allowed=f"2 to {MAX_LABELS}"
        )

    # The recipe's meanings replace the page's
    meanings = meanings | recipe_meanings
    return Scale(
        question=page_words["questions"][rows.example_type],
        labels=tuple(choices),
        meanings=tuple(meanings.get(label, "") for label in choices),
        ordered=rows.is_scored,
    )


def _choose_similarity_words(score: float, has_zero: bool) -> str:
    """Return the key of the page's words for a similarity score of 0 to 1.

    DINO (Table 3) has words for the scores 0, 0.5 and 1: "completely", "somewhat" and "same". A
    score gets the words of the nearest of these. Only a score above 0 and at most 0.25 gets other
    words: "weakly" on a scale with a score of 0, else "different".

    has_zero: the scale has a score of 0.
    """
    if score == 0:
        return "completely"
    if score <= 0.25:
        return "weakly" if has_zero else "different"
    return "somewhat" if score < 0.75 else "same"


ANSWERS_FILE = "answers.sqlite"
_LOCK_TIMEOUT_SECONDS = 10  # wait for another process that writes
_CREATE_TABLES = (
    "CREATE TABLE dataset (identity TEXT NOT NULL)",
    "CREATE TABLE answers (number INTEGER PRIMARY KEY, annotator TEXT NOT NULL, "
    "row INTEGER NOT NULL, label TEXT NOT NULL, time TEXT NOT NULL)",
)


class AnswerStore:
    """Store of the answers of all annotators about one dataset: a SQLite file in ``directory``.

    Creating the object makes the folder and the file, if they are missing. It raises InputError
    when the file is damaged or has answers about other rows than ``examples``, RunError when the
    file cannot be read or written, and OSError when it cannot be made.

    Args:
        directory: the folder of the file.
        examples: the rows that the answers are about.
    """

    def __init__(self, directory: Path, examples: Examples):
        self.path = directory / ANSWERS_FILE
        identity = {"config": examples.config, "split": examples.split, "sha256": examples.sha256}
        # ``make_folder`` syncs the folder's name to disk; SQLite syncs only its file's name
        make_folder(directory)
        # Only the file's owner may read it; SQLite gives its journal the same rights. An existing
        # file is not touched, because closing it would release the locks of other threads
        if not self.path.exists():
            self.path.touch(mode=0o600)

        # Make the tables of a new file, and compare the dataset of an existing one
        with self._open_transaction() as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if not tables:
                for statement in _CREATE_TABLES:
                    database.execute(statement)
                database.execute("INSERT INTO dataset VALUES (?)", [json.dumps(identity)])
            elif not {"dataset", "answers"} <= tables:
                raise sqlite3.DatabaseError(f"it has the tables {', '.join(sorted(tables))}")
            stored = json.loads(database.execute("SELECT identity FROM dataset").fetchone()[0])
        if stored != identity:
            differences = ", ".join(
                f"{key} {stored.get(key)}, here {value}"
                for key, value in identity.items()
                if stored.get(key) != value
            )
            raise InputError(
                self.path,
                f"holds answers about other rows ({differences})",
                hint="choose another --out",
            )

    def add(self, annotator: str, row: int, label: str) -> None:
        """Write an annotator's label of a row durably.

        Raises RunError when the file cannot be written, InputError when it is damaged.
        """
        values = [annotator, row, label, datetime.now(UTC).isoformat(timespec="milliseconds")]
        with self._open_transaction() as database:
            database.execute(
                "INSERT INTO answers (annotator, row, label, time) VALUES (?, ?, ?, ?)", values
            )

    def read_answers(self) -> dict[str, dict[int, str]]:
        """Return annotator → row → last label; annotators in the order of their first answer.

        Names that differ only in spelling, which an earlier version stored, are one annotator
        (``fold_name``). Raises RunError when the file cannot be read, InputError when it is
        damaged.
        """
        answers: dict[str, dict[int, str]] = {}
        with self._open_transaction() as database:
            for annotator, row, label in database.execute(
                "SELECT annotator, row, label FROM answers ORDER BY number"
            ):
                answers.setdefault(fold_name(annotator), {})[row] = label
        return answers

    @contextmanager
    def _open_transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, which is durable when the block ends and undone when it fails.

        Raises RunError when the file cannot be read or written, InputError for a damaged file.
        """
        try:
            # Without an isolation level, the module begins no transactions of its own
            connection = sqlite3.connect(
                self.path, timeout=_LOCK_TIMEOUT_SECONDS, isolation_level=None
            )
            with closing(connection) as database:
                # Sync the folder, too, after the journal is removed
                database.execute("PRAGMA synchronous = EXTRA")
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            hint = "no earlier answer is lost"
            raise RunError(self.path, f"cannot be read or written: {error}", hint=hint) from error
        except sqlite3.DatabaseError as error:
            hint = "it is damaged or something else: move it away, or choose another --out"
            raise InputError(self.path, f"is not a file of answers: {error}", hint=hint) from error


def fold_name(name: str) -> str:
    """Return an annotator's name in one spelling.

    Letters are in NFKC and case-folded, white space is a single space, and control and format
    characters are removed. So Ana, ANA and the name in full-width letters are one annotator. A name
    without a visible character becomes empty.
    """
    return "" if is_blank(name) else normalize_text(unicodedata.normalize("NFKC", name))


def normalize_name(name: str) -> str:
    """Return an annotator's name as it is stored (``fold_name``).

    Raises InputError when the result has no or more than ``MAX_NAME_CHARACTERS`` characters.
    """
    cleaned = fold_name(name)
    if not cleaned or len(cleaned) > MAX_NAME_CHARACTERS:
        raise InputError(
            "name", f"has {len(cleaned)} characters", allowed=f"1 to {MAX_NAME_CHARACTERS}"
        )
    return cleaned


@dataclass(frozen=True)
class Survey:
    """Questions about drawn rows of a dataset, and the store of the answers.

    ``rows`` are row numbers in the order of the questions. A position is the number of a question
    from 0; the position after the last question is the number of rows.
    """

    examples: Examples
    seed: int
    rows: tuple[int, ...]
    store: AnswerStore

    def read_answers(self) -> dict[str, dict[int, str]]:
        """Return annotator → row → last label of the drawn rows, in the order of the questions.

        An annotator who answered only other rows has an empty mapping. Raises the errors of
        ``AnswerStore.read_answers``.
        """
        return {
            annotator: {row: labels[row] for row in self.rows if row in labels}
            for annotator, labels in self.store.read_answers().items()
        }

    def find_next_open(self, annotator: str) -> int:
        """Return the position of the annotator's first question without an answer.

        It is ``len(rows)`` when all questions have answers.
        """
        answered = self.read_answers().get(annotator, {})
        for position, row in enumerate(self.rows):
            if row not in answered:
                return position
        return len(self.rows)

    def store_answer(self, annotator: str, position: int, label: str) -> int:
        """Store the answer to the question at ``position``, and return the next position.

        The next position follows ``position``; after the last question it is that of the first
        question without an answer, else ``len(rows)``. An answer that repeats the stored one is not
        stored again. Raises InputError for a label or position that the survey does not have,
        RunError when the answer could not be stored.

        Args:
            annotator: the name as ``normalize_name`` returns it.
            position: the number of the question, from 0.
            label: the answer.
        """
        if label not in self.examples.scale.labels or not 0 <= position < len(self.rows):
            raise InputError(
                "answer",
                f"is {label!r} at {position}",
                allowed=f"{self.examples.scale.labels} at 0 to {len(self.rows) - 1}",
            )
        row = self.rows[position]
        if self.read_answers().get(annotator, {}).get(row) != label:
            self.store.add(annotator, row, label)
        if position + 1 < len(self.rows):
            return position + 1
        return self.find_next_open(annotator)
