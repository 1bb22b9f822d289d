"""Blind questions about a dataset's rows, in the dataset's language, and the durable store of their answers."""

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

from eval.audit.source import NO_LABEL, DatasetRows
from hub.contract.recipe import DatasetRecipe
from hub.contract.schema import NLI_LABELS, QUERY_CLASS
from hub.durable import make_folder
from hub.errors import InputError, RunError

ENGLISH = "en"
TRIPLET = {"positive": "entailment", "negative": "contradiction"}  # a triplet is two questions
MOST_LABELS = 9  # one digit key each
LONGEST_NAME = 60


@cache
def page_words() -> dict[str, dict[str, Any]]:
    """Language (ISO 639) → the page's words; ``headings`` and ``questions`` are by example type."""
    text = (files("eval.audit") / "words.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.BaseLoader)  # makes texts only


def words_in(language: str) -> dict[str, Any]:
    """The page's words in a language such as de or de-AT; in English where it does not speak it."""
    spoken = page_words()
    return spoken.get(language) or spoken.get(language.partition("-")[0]) or spoken[ENGLISH]


@dataclass(frozen=True)
class Scale:
    """The question and its possible answers, in order, with their meanings ("" where the label says it all).

    ``ordered``: a distance between labels means something, so disagreements can be weighted.
    """

    question: str
    labels: tuple[str, ...]
    meanings: tuple[str, ...]
    ordered: bool


@dataclass(frozen=True)
class Examples:
    """All rows of a dataset's split as they can be asked about; ``labels`` are the generator's and stay hidden."""

    name: str
    config: str
    split: str
    headings: tuple[str, ...]  # names of the texts of a row, e.g. ("premise", "hypothesis")
    scale: Scale
    texts: tuple[tuple[str, ...], ...]  # (rows, len(headings))
    labels: tuple[str, ...]  # (rows,)
    language: str = ENGLISH

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sha256(self) -> str:
        """Fingerprint of all texts and labels, in order: the same for a run directory and its copy on a Hub."""
        digest = hashlib.sha256()
        for texts, label in zip(self.texts, self.labels, strict=True):
            digest.update(repr((texts, label)).encode())
        return digest.hexdigest()


def draw(examples: Examples, count: int, seed: int) -> tuple[int, ...]:
    """The rows of a simple random sample without replacement, in the random order of the questions.

    Rows are ordered by a hash of (seed, row), so a larger sample of the same seed begins with the smaller one.
    Raises InputError when there are fewer than ``count`` rows.
    """
    if count > len(examples):
        place = f"{examples.name} ({examples.config}, {examples.split})"
        raise InputError(place, f"has {len(examples)} rows, {count} are asked for", hint=f"--sample {len(examples)}")

    def order(row: int) -> bytes:
        return hashlib.blake2b(f"{seed} {row}".encode(), digest_size=16).digest()

    return tuple(heapq.nsmallest(count, range(len(examples)), key=order))


def score_label(score: float) -> str:
    """A similarity score as people see it: 0.9 for the float32 0.89999998."""
    return f"{score:g}"


def label_meanings(recipe: DatasetRecipe) -> dict[str, str]:
    """Label → ``labels[].meaning`` of a recipe: a class's name, or a score as rows have it, smoothed.

    Labels of one score share their words.
    """
    found = dict[str, list[str]]()
    for label in recipe.written_labels:
        if label.meaning is not None:
            score = recipe.postprocess.smoothed(label.score or 0.0)
            name = score_label(score) if recipe.dataset_schema.scored else label.name
            found.setdefault(name, []).append(label.meaning)
    return {name: "; ".join(meanings) for name, meanings in found.items()}


def read_examples(rows: DatasetRows, language: str | None = None) -> Examples:
    """All rows of a split, asked about in a ``language``; None: in the dataset's.

    Raises InputError for too many labels, for rows without one, and for labels that NLI pairs cannot have.
    """
    texts, labels = list[tuple[str, ...]](), list[str]()
    for batch in rows.batches():
        first, second, given = batch.pairs()
        texts += zip(first, second, strict=True) if first else zip(*batch.texts.values(), strict=True)
        labels += map(score_label, batch.scores) if rows.is_scored else given or batch.labels
    labels = [TRIPLET.get(label, label) for label in labels] if len(rows.columns) > 1 else labels
    place = f"{rows.name} ({rows.config}, {' + '.join(rows.splits)})"
    recipe = rows.recipe()
    language = language or (recipe and recipe.language) or ENGLISH
    words = words_in(language)
    scale = _scale(rows, labels, place, words, label_meanings(recipe) if recipe else {})
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(f"{place} row {row}", f"has the label {label!r}", allowed=list(scale.labels))
    headings = tuple(words["headings"][rows.example_type])
    return Examples(
        rows.name, rows.config, " + ".join(rows.splits), headings, scale, tuple(texts), tuple(labels), language
    )


def _scale(rows: DatasetRows, labels: list[str], place: str, words: dict[str, Any], own: dict[str, str]) -> Scale:
    """Scores in rising order, the classes of single texts, or NLI's three, also where the generator makes only two."""
    usual: dict[str, str] = words["meanings"]
    if rows.is_scored:
        choices = sorted({*labels}, key=float)
        usual = {label: words["similarity"][_similarity(float(label), "0" in choices)] for label in choices}
    elif len(rows.columns) > 1 and rows.example_type != QUERY_CLASS.name:
        choices = list(NLI_LABELS)
    else:
        choices, usual = list(rows.class_names) or sorted({*labels} - {NO_LABEL}), {}
    if not 2 <= len(choices) <= MOST_LABELS:
        problem = f"has {len(choices)} distinct {'scores' if rows.is_scored else 'labels'}"
        raise InputError(place, problem, allowed=f"2 to {MOST_LABELS}")
    meanings = tuple(own.get(label, usual.get(label, "")) for label in choices)
    return Scale(words["questions"][rows.example_type], tuple(choices), meanings, ordered=rows.is_scored)


def _similarity(score: float, has_zero: bool) -> str:
    """The name of DINO's words (Table 3) for a score: a low one means more where the scale has a 0, too."""
    if score <= 0.25:
        return "completely" if score == 0 else "weakly" if has_zero else "different"
    return "somewhat" if score < 0.75 else "same"


FILE = "answers.sqlite"
_WAIT = 10  # seconds for another writer
_SCHEMA = (
    "CREATE TABLE dataset (identity TEXT NOT NULL)",
    "CREATE TABLE answers (number INTEGER PRIMARY KEY, annotator TEXT NOT NULL, row INTEGER NOT NULL, "
    "label TEXT NOT NULL, time TEXT NOT NULL)",
)


class AnswerStore:
    """The answers of all annotators about one dataset, in ``directory``.

    Raises InputError when the file is about another dataset or damaged; RunError when it cannot be written.
    """

    def __init__(self, directory: Path, examples: Examples):
        self.path = directory / FILE
        identity = {"config": examples.config, "split": examples.split, "sha256": examples.sha256}
        make_folder(directory)  # SQLite syncs the file's own name
        with self._transaction() as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _SCHEMA:
                    database.execute(statement)
                database.execute("INSERT INTO dataset VALUES (?)", [json.dumps(identity)])
            found = json.loads(database.execute("SELECT identity FROM dataset").fetchone()[0])
        if found != identity:
            differ = [f"{key} {found.get(key)}, here {of}" for key, of in identity.items() if found.get(key) != of]
            problem = f"holds answers about other rows ({', '.join(differ)})"
            raise InputError(self.path, problem, hint="choose another --out")

    def add(self, annotator: str, row: int, label: str) -> None:
        """Write an answer durably. Raises RunError when the disk refuses it."""
        values = [annotator, row, label, datetime.now(UTC).isoformat(timespec="milliseconds")]
        with self._transaction() as database:
            database.execute("INSERT INTO answers (annotator, row, label, time) VALUES (?, ?, ?, ?)", values)

    def answers(self) -> dict[str, dict[int, str]]:
        """Annotator → row → the last answer; annotators in the order of their first answer."""
        found = dict[str, dict[int, str]]()
        with self._transaction() as database:
            for annotator, row, label in database.execute("SELECT annotator, row, label FROM answers ORDER BY number"):
                found.setdefault(annotator, {})[row] = label
        return found

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk when it ends and undone when it fails."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = EXTRA")  # the folder too, after the journal is removed
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
        except sqlite3.OperationalError as error:
            hint = "no earlier answer is lost"
            raise RunError(self.path, f"cannot be read or written: {error}", hint=hint) from error
        except sqlite3.DatabaseError as error:
            hint = "it is damaged or something else: move it away, or choose another --out"
            raise InputError(self.path, f"is not a file of answers: {error}", hint=hint) from error


def clean_name(name: str) -> str:
    """A stored name: NFC, without control characters, single spaces. Raises InputError when nothing is left."""
    visible = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name)
    cleaned = " ".join(unicodedata.normalize("NFC", visible).split())
    if not cleaned or len(cleaned) > LONGEST_NAME:
        raise InputError("name", f"has {len(cleaned)} characters", allowed=f"1 to {LONGEST_NAME}")
    return cleaned


@dataclass(frozen=True)
class Survey:
    """Drawn ``rows`` of a dataset, in the order of the questions, and the answers to them.

    Places count from 0 to the number of rows, the end.
    """

    examples: Examples
    seed: int
    rows: tuple[int, ...]
    store: AnswerStore

    def answers(self) -> dict[str, dict[int, str]]:
        """Annotator → row → label, of the drawn rows in the order of the questions."""
        found = self.store.answers()
        return {name: {row: of[row] for row in self.rows if row in of} for name, of in found.items()}

    def next_open(self, annotator: str) -> int:
        """The annotator's first question without an answer, or the end."""
        given = self.answers().get(annotator, {})
        return next((place for place, row in enumerate(self.rows) if row not in given), len(self.rows))

    def answer(self, annotator: str, place: int, label: str) -> int:
        """Store the answer to the question at ``place``; the place that follows.

        Raises InputError for a label or place that is not offered, RunError when the answer could not be stored.
        """
        if label not in self.examples.scale.labels or not 0 <= place < len(self.rows):
            raise InputError("answer", f"is {label!r} at {place}", allowed=self.examples.scale.labels)
        row = self.rows[place]
        if self.answers().get(annotator, {}).get(row) != label:
            self.store.add(annotator, row, label)
        return place + 1 if place + 1 < len(self.rows) else self.next_open(annotator)
