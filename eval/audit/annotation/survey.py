"""What an annotator sees and does, without a page: join, answer, go back, end with the results.

The generator's labels are read by ``Survey.report`` alone, which an annotator reaches after the last answer; from then
on the answers are final, so that every answer was given blind.
"""

import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from eval.audit.annotation.report import Report, make_report
from eval.audit.annotation.sample import Sample
from eval.audit.annotation.store import AnswerLockedError, AnswerStore
from hub.errors import InputError

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

    def report(self) -> Report:
        """The agreement of all annotators with the generator and with one another."""
        return make_report(self.sample, {name: self._answers(name) for name in self._store.annotators()})

    def _answers(self, annotator: str) -> dict[int, str]:
        """Row → label of the sample's rows that the annotator has answered."""
        answers = self._store.answers(annotator)
        return {row: answers[row] for row in self.sample.rows if row in answers}

    def _next_open(self, annotator: str) -> AnnotatorSession:
        answers = self._answers(annotator)
        first = next((place for place, row in enumerate(self.sample.rows) if row not in answers), len(self.sample))
        return AnnotatorSession(annotator, first, self._clock())
