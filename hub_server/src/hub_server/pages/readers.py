"""Questions about untrusted files, answered in a limited child process, and what a page shows when it fails.

A child has 10 s of CPU, 4 GiB of memory and writes no file; two run at a time. Children are forked from one process
that has imported their libraries (multiprocessing's forkserver: without threads, sockets or data of the server). The
first page starts it: a new interpreter would cost most of a second each time.
"""

import importlib
import math
import multiprocessing
import os
import sys
import threading
import unicodedata
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SECONDS, MEMORY = 10, 4 << 30
ROWS = 50  # of a page
MOST_FILES, MOST_ROWS = 1000, 2_000_000  # of a split that a search or a count of labels reads
MOST_WORDS = 200  # characters of a search
_CARDS, _ROWS = "hub_server.pages.cards", "hub_server.pages.row_scan"
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _FORKS else "spawn")
_AT_ONCE, _STARTING = threading.Semaphore(2), threading.Lock()
_HARMLESS = "\n\t\u200c\u200d"  # with the joiners that emoji and some scripts need
Answer = TypeVar("Answer", bound=BaseModel)


class ReaderFailed(Exception):
    """A child ended without an answer: it took too much time or memory, or the file broke a library."""


def ask(module: str, question: BaseModel, answer: type[Answer]) -> Answer:
    """Return what the function ``answer`` of a module answers in a child process. Raises ReaderFailed."""
    with _AT_ONCE:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        words = (module, question.model_dump_json().encode(), theirs, math.ceil(SECONDS))
        process = _CONTEXT.Process(target=_answer, args=words, daemon=True)
        with ours:
            try:
                with _STARTING, theirs:
                    if _FORKS:  # pyarrow imports pandas for its first scalar: longer than most searches
                        _CONTEXT.set_forkserver_preload([_CARDS, _ROWS, "pandas"])
                    process.start()
                if ours.poll(2 * SECONDS):
                    return answer.model_validate_json(ours.recv_bytes())  # a child is not trusted with pickles
            except (EOFError, OSError, ValidationError) as error:
                raise ReaderFailed(module) from error
            finally:
                if process.pid:
                    process.kill()
                    process.join()
    raise ReaderFailed(module)


def _answer(module: str, question: bytes, connection: Connection, seconds: int) -> None:
    if sys.platform != "win32":  # there, ``ask`` alone limits the time, and nothing the memory
        import resource

        for limit, value in (("CPU", seconds), ("AS", MEMORY), ("FSIZE", 0), ("CORE", 0)):
            resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (value, value))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a traceback over an untrusted file is not a failure of the server
    answer: BaseModel = importlib.import_module(module).answer(question)
    connection.send_bytes(answer.model_dump_json().encode())


def visible(text: str) -> str:
    """``text`` with U+FFFD for every character that hides or reorders others; line breaks and tabs stay."""
    kept = (char in _HARMLESS or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co") for char in text)
    return "".join(char if keep else "\N{REPLACEMENT CHARACTER}" for char, keep in zip(text, kept, strict=True))


class CardQuestion(BaseModel):
    """A stored README, and the address below which its relative addresses lie."""

    readme: str
    base: str


class Card(BaseModel):
    """A card as HTML that is safe to show, or why there is none."""

    html: str = ""
    problem: str = ""


class Question(BaseModel):
    """A page of the rows of stored files: their label (as shown), words in them, the page from 1."""

    model_config = ConfigDict(frozen=True)

    files: tuple[str, ...]
    label: str = ""
    words: str = Field(default="", max_length=MOST_WORDS)
    page: int = Field(default=1, ge=1)
    grouped: bool = True


class Facts(BaseModel):
    """Facts about all rows of some files: rows of each file, and the (shown, rows) labels of ``label_column``.

    Labels are counted in the first ``counted`` rows. ``broken``: the place of a file that cannot be read.
    """

    file_rows: list[int] = []
    label_column: str = ""
    labels: list[tuple[str, int]] = []
    counted: int = 0
    broken: int | None = None
    problem: str = ""


class RowsQuestion(BaseModel):
    """A question to the reader of rows; without ``facts`` it returns these."""

    question: Question
    facts: Facts | None = None


class Second(BaseModel):
    """A second sentence with its label; ``note``: "sampled" for one generated for another source sentence."""

    label: str
    text: str
    note: str = ""


class Group(BaseModel):
    """A source sentence and its second sentences on this page."""

    first: str
    seconds: list[Second]


class Window(Facts):
    """A page of rows as texts, as groups or as a table, and the facts about all rows.

    ``rows``: of the split; ``found``: those that match, among the first ``looked_at``.
    """

    page: int = 1
    pages: int = 1
    rows: int = 0
    found: int = 0
    looked_at: int = 0
    can_group: bool = False
    columns: list[str] = []
    more_columns: int = 0
    table: list[list[str]] = []
    groups: list[Group] = []


def card(readme: Path, base: str) -> Card:
    """Return a stored README as HTML, with relative addresses below ``base``."""
    try:
        return _card(readme, base)
    except ReaderFailed:
        return Card(problem=f"The card took more than {SECONDS} s or too much memory to show.")


def window(question: Question) -> Window:
    """Return a page of rows; the last one for a page beyond the end."""
    try:
        facts = _facts(question.files)
        return Window(broken=facts.broken, problem=facts.problem) if facts.problem else _window(question)
    except ReaderFailed:
        return Window(problem=f"The rows took more than {SECONDS} s or too much memory to show, or broke the reader.")


# Stored contents never change, so answers are kept; failures raise and are not kept.
@lru_cache(maxsize=256)
def _card(readme: Path, base: str) -> Card:
    return ask(_CARDS, CardQuestion(readme=str(readme), base=base), Card)


@lru_cache(maxsize=128)
def _facts(files: tuple[str, ...]) -> Facts:
    return ask(_ROWS, RowsQuestion(question=Question(files=files)), Facts)


@lru_cache(maxsize=128)
def _window(question: Question) -> Window:
    return ask(_ROWS, RowsQuestion(question=question, facts=_facts(question.files)), Window)
