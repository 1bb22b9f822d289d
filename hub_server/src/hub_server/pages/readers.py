"""Questions about untrusted files, answered in a limited child process.

A child has 10 s of CPU, 4 GiB of memory and writes no file; two run at a time. Children are forked
from one process that has imported their libraries (multiprocessing's forkserver: without threads,
sockets or data of the server). The first page starts it: a new interpreter would cost most of a
second each time.
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

from pydantic import BaseModel, Field, ValidationError

SECONDS = 10  # of CPU time; a child may take twice as long on the clock
MEMORY = 4 << 30  # bytes of a child's address space
MOST_ANSWER_BYTES = 16 << 20  # a page of a browser, and what a small file can unfold to
ROWS = 50  # of a page
# Limits of a search and of a count of labels
MOST_FILES = 1000
MOST_ROWS = 2_000_000
MOST_WORDS = 200  # characters of a search
_CARDS = "hub_server.pages.cards"
_ROWS = "hub_server.pages.row_scan"
_HAS_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
_CONTEXT: Any = multiprocessing.get_context("forkserver" if _HAS_FORKSERVER else "spawn")
_CHILD_SLOTS = threading.Semaphore(2)
_START_LOCK = threading.Lock()
# With the joiners that emoji and some scripts need, and the visible signs of Arabic, Syriac and
# Kaithi around a number (Unicode's property Prepended_Concatenation_Mark)
_VISIBLE = (
    "\n\t\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2"
    "\U000110bd\U000110cd"
)
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co")  # categories: control, format, surrogate, private use
Answer = TypeVar("Answer", bound=BaseModel)
_NOT_STARTED = (
    "The Hub's machine could not start the process that reads this (too little memory, or too many "
    "processes). Load the page again later."
)


class ReaderFailed(Exception):
    """A child gave no answer: it took too much time or memory, or the file broke a library."""


class ReaderNotStarted(ReaderFailed):
    """The system refused a child process, so the file is not the cause."""


def ask(module: str, arguments: tuple[object, ...], answer: type[Answer]) -> Answer:
    """Call the function ``answer`` of a module in a limited child process; return its result.

    Args:
        module: the module's name.
        arguments: the arguments of the function.
        answer: the type of the result, which comes back as JSON of at most ``MOST_ANSWER_BYTES``.

    Raises:
        ReaderNotStarted: the system refused a process.
        ReaderFailed: the child ended without an answer, took too long, or answered too much or in
            another form.
    """
    with _CHILD_SLOTS:
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        # The limit of CPU time is in whole seconds.
        child_arguments = (module, arguments, sender, math.ceil(SECONDS))
        process = _CONTEXT.Process(target=_run_child, args=child_arguments, daemon=True)
        with receiver:
            try:
                _start_child(process, sender)
                if receiver.poll(2 * SECONDS):
                    # A child may run an attacker's code, so its answer is no pickle.
                    return answer.model_validate_json(receiver.recv_bytes(MOST_ANSWER_BYTES))
            except (EOFError, OSError, ValidationError) as error:
                raise ReaderFailed(module) from error
            finally:
                if process.pid:
                    process.kill()
                    process.join()
    raise ReaderFailed(module)


def _start_child(process: Any, connection: Connection) -> None:
    """Start a child, and close this process's copy of the child's connection.

    Only then does the end of the child end the wait for its answer. Raises ReaderNotStarted when
    the system refuses a process.
    """
    with _START_LOCK, connection:
        # Import these once, for all children. pyarrow imports pandas for its first scalar, which
        # takes longer than most searches. A child also imports the main module.
        if _HAS_FORKSERVER:
            _CONTEXT.set_forkserver_preload([_CARDS, _ROWS, "pandas", "hub_server.server"])
        try:
            process.start()
        except (EOFError, OSError) as error:
            raise ReaderNotStarted(str(error)) from error


def _run_child(
    module: str, arguments: tuple[object, ...], connection: Connection, seconds: int
) -> None:
    """Limit this child process, call a module's ``answer``, and send the result as JSON.

    ``seconds``: the limit of CPU time.
    """
    # Windows has no such limits: there ``ask`` alone limits the time.
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A traceback over an untrusted file is not a failure of the server: keep it out of the log.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    answer: BaseModel = importlib.import_module(module).answer(*arguments)
    connection.send_bytes(answer.model_dump_json().encode())


def escape_hidden_characters(text: str) -> str:
    """Return ``text`` with U+FFFD for every hidden character (``_HIDDEN_CATEGORIES``).

    The characters of ``_VISIBLE`` stay.
    """
    characters = []
    for character in text:
        if character not in _VISIBLE and unicodedata.category(character) in _HIDDEN_CATEGORIES:
            character = "\N{REPLACEMENT CHARACTER}"
        characters.append(character)
    return "".join(characters)


class Card(BaseModel):
    """A card as HTML that is safe to show; with a ``problem``, the HTML is empty."""

    html: str = ""
    problem: str = ""


class Question(BaseModel, frozen=True):
    """A request for one page of the rows in ``files`` that match a label and words.

    ``label``: as the page shows it. ``words``: one text to find. An empty label or empty words
    match all rows. ``page``: from 1. ``grouped``: whether to group pairs by source sentence.
    """

    files: tuple[str, ...]
    label: str = ""
    words: str = Field(default="", max_length=MOST_WORDS)
    page: int = Field(default=1, ge=1)
    grouped: bool = True


class Facts(BaseModel):
    """Facts about all rows of some files: the number of rows of each file, and the label column.

    ``label_column``: "" without one. ``labels``: (label as shown, number of rows) pairs, counted in
    the first ``counted`` rows. ``problem``: why nothing is known, or ""; ``broken``: the index of
    the file that cannot be read.
    """

    file_rows: list[int] = []
    label_column: str = ""
    labels: list[tuple[str, int]] = []
    counted: int = 0
    broken: int | None = None
    problem: str = ""


class Second(BaseModel):
    """A second sentence with its label.

    ``note``: "sampled" for a sentence that was generated for another source sentence.
    """

    label: str
    text: str
    note: str = ""


class Group(BaseModel):
    """A source sentence and its second sentences on this page."""

    first: str
    seconds: list[Second]


class Window(Facts):
    """A page of rows as texts, as groups or as a table, and the facts about all rows.

    ``page``: from 1 to ``pages``. ``rows``: the number of rows of the split; ``matches``: how many
    of the first ``scanned`` rows match. ``can_group``: whether the files have pairs. ``columns``:
    the names of the table's columns; ``more_columns``: how many columns are left out. A page of
    groups has no ``table``, and a table has no ``groups``.
    """

    page: int = 1
    pages: int = 1
    rows: int = 0
    matches: int = 0
    scanned: int = 0
    can_group: bool = False
    columns: list[str] = []
    more_columns: int = 0
    table: list[list[str]] = []
    groups: list[Group] = []


def show_card(readme: Path, base: str) -> Card:
    """Return a stored README as safe HTML, or the problem that prevents it.

    ``base``: the address that relative addresses in the README are placed below.
    """
    try:
        return _render_card(readme, base)
    except ReaderNotStarted:
        return Card(problem=_NOT_STARTED)
    except ReaderFailed:
        limits = f"more than {SECONDS} s, {MOST_ANSWER_BYTES >> 20} MiB of HTML or too much memory"
        return Card(problem=f"The card took {limits} to show, or broke the reader.")


def show_rows(question: Question) -> Window:
    """Return a page of rows, or a window with the problem that prevents it.

    For a page beyond the end, the last page is returned.
    """
    try:
        facts = _read_facts(question.files)
        if facts.problem:
            return Window(broken=facts.broken, problem=facts.problem)
        return _read_window(question)
    except ReaderNotStarted:
        return Window(problem=_NOT_STARTED)
    except ReaderFailed:
        limits = f"more than {SECONDS} s, {MOST_ANSWER_BYTES >> 20} MiB of rows or too much memory"
        return Window(problem=f"The rows took {limits} to show, or broke the reader.")


# Stored contents never change, so answers are kept; failures raise and are not kept.
@lru_cache(maxsize=256)
def _render_card(readme: Path, base: str) -> Card:
    return ask(_CARDS, (readme, base), Card)


@lru_cache(maxsize=128)
def _read_facts(files: tuple[str, ...]) -> Facts:
    return ask(_ROWS, (Question(files=files), None), Facts)


@lru_cache(maxsize=128)
def _read_window(question: Question) -> Window:
    return ask(_ROWS, (question, _read_facts(question.files)), Window)
