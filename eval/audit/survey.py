"""The annotation page's words in the dataset's language: buttons, questions, headings and usual meanings of labels."""

import hashlib
import heapq
import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, NamedTuple

import yaml

from eval.audit.source import NO_LABEL, Batch, DatasetRows, score_label
from hub.contract.schema import NLI_LABELS
from hub.durable import make_folder
from hub.errors import InputError, RunError

ENGLISH = "en"


class PageWords(SimpleNamespace):
    """Texts of the page in one language, as ``words.yaml`` has them; braces hold what is filled in."""

    def headings(self, example_type: str) -> tuple[str, ...]:
        """Names of the texts of a row."""
        if example_type == "text":
            return (self.text,)
        scored = f"{self.sentence} 1", f"{self.sentence} 2"
        return scored if example_type == "sts" else (self.premise, self.hypothesis)


@cache
def page_words() -> dict[str, PageWords]:
    """Language (ISO 639) → the page's words, for the languages that it speaks."""
    text = (files("eval.audit") / "words.yaml").read_text(encoding="utf-8")
    found = yaml.load(text, yaml.BaseLoader)  # noqa: S506 - it makes texts alone
    return {language: PageWords(**words) for language, words in found.items()}


def words_in(language: str) -> PageWords:
    """The page's words in a language such as de or de-AT; in English where it does not speak it."""
    spoken = page_words()
    return spoken.get(language) or spoken.get(language.partition("-")[0]) or spoken[ENGLISH]


TRIPLET = {"positive": "entailment", "negative": "contradiction"}  # a triplet is two questions
MOST_LABELS = 9  # one digit key each


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
    """All rows of a dataset's split as they can be asked about; ``labels`` are the generator's and stay hidden.

    ``sha256`` is of the texts and labels: the same for a run directory and its copy on a Hub.
    """

    name: str
    config: str
    split: str
    headings: tuple[str, ...]  # what the texts of a row are called, e.g. ("premise", "hypothesis")
    scale: Scale
    texts: tuple[tuple[str, ...], ...]  # (rows, len(headings))
    labels: tuple[str, ...]  # (rows,)
    language: str = ENGLISH  # that people are asked in, where the page speaks it

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sha256(self) -> str:
        """Fingerprint of all rows, in order."""
        digest = hashlib.sha256()
        for texts, label in zip(self.texts, self.labels, strict=True):
            digest.update(repr((texts, label)).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Sample:
    """Rows drawn from a dataset, in the order of the questions."""

    examples: Examples
    seed: int
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)


def draw(examples: Examples, count: int, seed: int) -> Sample:
    """A simple random sample without replacement, in random order.

    Rows are ordered by a hash of (seed, row), so a larger sample of the same seed begins with the smaller one.
    Raises InputError when there are fewer than ``count`` rows.
    """
    if count > len(examples):
        place = f"{examples.name} ({examples.config}, {examples.split})"
        raise InputError(place, f"has {len(examples)} rows, {count} are asked for", hint=f"--sample {len(examples)}")

    def order(row: int) -> bytes:
        return hashlib.blake2b(f"{seed} {row}".encode(), digest_size=16).digest()

    rows = heapq.nsmallest(count, range(len(examples)), key=order)
    return Sample(examples, seed, tuple(rows))


def similarity_scale(scores: Iterable[float], place: str, language: str = ENGLISH) -> Scale:
    """The scale of a scored dataset: its scores. Raises InputError when they are too many to choose from."""
    labels = {score_label(score): score for score in sorted(set(scores))}
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} distinct scores", allowed=f"2 to {MOST_LABELS}")
    words, weak = words_in(language), "weakly" if 0 in labels.values() else "different"
    usual = [
        "completely" if score == 0 else weak if score <= 0.25 else "somewhat" if score < 0.75 else "same"
        for score in labels.values()
    ]
    return Scale(words.similarity, tuple(labels), tuple(words.meanings[one] for one in usual), ordered=True)


def inference_scale(language: str = ENGLISH) -> Scale:
    """Entailment, neutral, contradiction. All three can be answered, also where the generator makes only two."""
    words = words_in(language)
    return Scale(words.inference, NLI_LABELS, tuple(words.meanings[label] for label in NLI_LABELS), ordered=False)


def class_scale(labels: Sequence[str], place: str, language: str = ENGLISH) -> Scale:
    """The classes of single texts. Raises InputError when they are too many to choose from."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} labels", allowed=f"2 to {MOST_LABELS}")
    return Scale(words_in(language).which_class, tuple(labels), ("",) * len(labels), ordered=False)


def in_words(scale: Scale, meanings: Mapping[str, str]) -> Scale:
    """The scale with a recipe's own words for its labels; those that have none keep theirs."""
    own = tuple(meanings.get(label, usual) for label, usual in zip(scale.labels, scale.meanings, strict=True))
    return replace(scale, meanings=own)


def read_examples(rows: DatasetRows, language: str | None = None) -> Examples:
    """All rows of a split, asked about in a ``language``; None: in the dataset's.

    Raises InputError for labels that are none, too many, or not those of NLI pairs.
    """
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    for batch in rows.batches():
        found, given = _asked(batch)
        texts += found
        labels += given
    split = " + ".join(rows.splits)
    place = f"{rows.name} ({rows.config}, {split})"
    meanings = rows.meanings()
    spoken = language or meanings.language or ENGLISH
    scale = in_words(_scale(rows, labels, place, spoken), meanings.of)
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(f"{place} row {row}", f"has the label {label!r}", allowed=list(scale.labels))
    headings = words_in(spoken).headings(rows.example_type)
    return Examples(rows.name, rows.config, split, headings, scale, tuple(texts), tuple(labels), spoken)


def _asked(batch: Batch) -> tuple[list[tuple[str, ...]], list[str]]:
    first, second, labels = batch.pairs()
    if not first:
        return [(text,) for text in batch.texts["text"]], batch.labels
    given = [score_label(score) for score in batch.scores] or [TRIPLET.get(label, label) for label in labels]
    return list(zip(first, second, strict=True)), given


def _scale(rows: DatasetRows, labels: list[str], place: str, language: str) -> Scale:
    if rows.example_type == "sts":
        return similarity_scale(map(float, labels), place, language)
    if rows.example_type == "text":
        return class_scale(rows.class_names or sorted({*labels} - {NO_LABEL}), place, language)
    return inference_scale(language)


FILE = "answers.sqlite"
_WAIT = 10  # seconds for another writer
_SCHEMA = """
CREATE TABLE dataset (identity TEXT NOT NULL);
CREATE TABLE answers (
  number INTEGER PRIMARY KEY, annotator TEXT NOT NULL, row INTEGER NOT NULL, label TEXT NOT NULL, time TEXT NOT NULL
);
CREATE TABLE finished (annotator TEXT PRIMARY KEY, last INTEGER NOT NULL, time TEXT NOT NULL);
"""


_FINAL = "SELECT row FROM answers JOIN finished USING (annotator) WHERE annotator = ? AND number <= last"


class AnswerLockedError(InputError):
    """Who has seen the results may not change an answer that is in them: it would not be blind."""


class Answer(NamedTuple):
    """One line of the history; ``time`` is ISO 8601, UTC."""

    annotator: str
    row: int
    label: str
    time: str


class AnswerStore:
    """The answers of all annotators about one dataset, in ``directory``.

    Raises InputError when the file is of another dataset or is no such file; RunError when it cannot be written.
    """

    def __init__(self, directory: Path, examples: Examples):
        self.path = directory / FILE
        identity = {"config": examples.config, "split": examples.split, "sha256": examples.sha256}
        make_folder(directory)  # SQLite syncs the file's own name
        with self._transaction() as database:
            if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO dataset VALUES (?)", [json.dumps(identity)])
            found = json.loads(database.execute("SELECT identity FROM dataset").fetchone()[0])
        if found != identity:
            differ = ", ".join(
                f"{key} {found.get(key)}, here {identity[key]}" for key in identity if found.get(key) != identity[key]
            )
            raise InputError(self.path, f"holds answers about other rows ({differ})", hint="choose another --out")

    def add(self, annotator: str, row: int, label: str) -> None:
        """Write an answer durably. Raises Final when an earlier one stands, RunError when the disk refuses it."""
        with self._transaction() as database:
            if database.execute(f"{_FINAL} AND row = ?", [annotator, row]).fetchone():
                raise AnswerLockedError(annotator, "has seen the results: these answers are final")
            values = [annotator, row, label, _now()]
            database.execute("INSERT INTO answers (annotator, row, label, time) VALUES (?, ?, ?, ?)", values)

    def answers(self, annotator: str) -> dict[int, str]:
        """Row → label, the last answer to each row."""
        return {answer.row: answer.label for answer in self.history() if answer.annotator == annotator}

    def annotators(self) -> list[str]:
        """Everyone who answered, in the order of their first answer."""
        return list(dict.fromkeys(answer.annotator for answer in self.history()))

    def history(self) -> list[Answer]:
        """Every answer ever given, oldest first."""
        with self._transaction() as database:
            rows = database.execute("SELECT annotator, row, label, time FROM answers ORDER BY number").fetchall()
        return [Answer(*row) for row in rows]

    def finish(self, annotator: str) -> None:
        """Make the annotator's answers until now final."""
        with self._transaction() as database:
            last = "SELECT annotator, max(number), ? FROM answers WHERE annotator = ? GROUP BY annotator"
            database.execute(f"INSERT OR REPLACE INTO finished {last}", [_now(), annotator])

    def final(self, annotator: str) -> set[int]:
        """Rows whose answer by the annotator is final."""
        with self._transaction() as database:
            return {row for (row,) in database.execute(_FINAL, [annotator])}

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
            raise RunError(
                self.path, f"cannot be read or written: {error}", hint="no earlier answer is lost"
            ) from error
        except sqlite3.DatabaseError as error:
            hint = "it is damaged or something else: move it away, or choose another --out"
            raise InputError(self.path, f"is no file of answers: {error}", hint=hint) from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


LONGEST_NAME = 60
UNREAD_SECONDS = 0.4  # an answer sooner than that after its texts came is the second click on the pair before


@dataclass(frozen=True)
class AnnotatorSession:
    """Where a browser tab stands: whose it is, the place in the sample, and when its texts were shown."""

    annotator: str = ""
    place: int = 0
    shown: float = 0.0


@dataclass(frozen=True)
class View:
    """What is shown to a seat. ``answer`` is the one given before, if any."""

    stage: Literal["welcome", "question", "review", "results"]
    place: int = 0
    texts: tuple[str, ...] = ()
    answer: str | None = None
    answered: int = 0


def clean_name(name: str) -> str:
    """A name as it is stored: NFC, without control characters, single spaces. Raises InputError when it is no name."""
    visible = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in name)
    cleaned = " ".join(unicodedata.normalize("NFC", visible).split())
    if not cleaned or len(cleaned) > LONGEST_NAME:
        raise InputError("name", f"has {len(cleaned)} characters", allowed=f"1 to {LONGEST_NAME}")
    return cleaned


class Survey:
    """A sample of a dataset's rows and the answers to it."""

    def __init__(self, sample: Sample, store: AnswerStore, clock: Callable[[], float] = time.monotonic):
        self.sample, self._store, self._clock = sample, store, clock

    def join(self, name: str) -> AnnotatorSession:
        """A seat at the annotator's first open question. Raises InputError when the name is none."""
        return self._next_open(clean_name(name))

    def answer(self, seat: AnnotatorSession, label: str) -> AnnotatorSession:
        """Store the answer to what the seat shows and go on. Raises RunError when it could not be stored."""
        if label not in self.sample.examples.scale.labels:
            raise InputError("answer", f"is {label!r}", allowed=self.sample.examples.scale.labels)
        if self.view(seat).stage != "question" or self._clock() - seat.shown < UNREAD_SECONDS:
            return seat
        row = self.sample.rows[seat.place]
        if self._answers(seat.annotator).get(row) != label:
            try:
                self._store.add(seat.annotator, row, label)
            except AnswerLockedError:  # in another tab
                return self.join(seat.annotator)
        following = self.move(seat, +1)
        return following if following.place < len(self.sample) else self._next_open(seat.annotator)

    def move(self, seat: AnnotatorSession, step: int) -> AnnotatorSession:
        """The seat ``step`` places on, between the first and the one after the last."""
        return replace(seat, place=min(max(seat.place + step, 0), len(self.sample)), shown=self._clock())

    def view(self, seat: AnnotatorSession) -> View:
        """What the seat shows now."""
        if not seat.annotator:
            return View("welcome")
        answers = self._answers(seat.annotator)
        if self._store.final(seat.annotator).issuperset(self.sample.rows):
            return View("results", answered=len(answers))
        if seat.place >= len(self.sample):
            return View("review", place=len(self.sample), answered=len(answers))
        row = self.sample.rows[seat.place]
        return View("question", seat.place, self.sample.examples.texts[row], answers.get(row), len(answers))

    def finish(self, seat: AnnotatorSession) -> AnnotatorSession:
        """Make the annotator's answers final; back to the first open question when there is one."""
        if self.view(seat).stage == "review" and len(self._answers(seat.annotator)) == len(self.sample):
            self._store.finish(seat.annotator)
        return self._next_open(seat.annotator)

    @property
    def is_finished(self) -> bool:
        """Whether somebody has answered all, and seen the results: they need not be kept back from anybody then."""
        return any(self._store.final(name).issuperset(self.sample.rows) for name in self._store.annotators())

    def answers(self) -> dict[str, dict[int, str]]:
        """Annotator → row → label, of the sample's rows."""
        return {name: self._answers(name) for name in self._store.annotators()}

    def _answers(self, annotator: str) -> dict[int, str]:
        """Row → label of the sample's rows that the annotator has answered."""
        answers = self._store.answers(annotator)
        return {row: answers[row] for row in self.sample.rows if row in answers}

    def _next_open(self, annotator: str) -> AnnotatorSession:
        answers = self._answers(annotator)
        first = next((place for place, row in enumerate(self.sample.rows) if row not in answers), len(self.sample))
        return AnnotatorSession(annotator, first, self._clock())
