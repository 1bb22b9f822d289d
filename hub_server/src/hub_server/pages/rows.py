"""One page of the rows of parquet files, as a question and its answer; ``row_scan`` finds it in a child process."""

import unicodedata
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hub_server.pages import child

ROWS = 50  # of a page
MOST_FILES, MOST_ROWS = 1000, 2_000_000  # of a split that a search or a count of labels reads
_HARMLESS = "\n\t\u200c\u200d"  # with the joiners that emoji and some scripts need
MOST_WORDS = 200  # characters of a search
_FAILED = f"The rows took more than {child.SECONDS} s or too much memory to show, or broke the reader."


def visible(text: str) -> str:
    """``text`` with U+FFFD for every character that hides or reorders others; line breaks and tabs stay."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    keep = char in _HARMLESS or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co")
    return char if keep else "\N{REPLACEMENT CHARACTER}"


class Question(BaseModel):
    """Which rows: of which stored files, with which label (as it is shown), with which words, on which page from 1."""

    model_config = ConfigDict(frozen=True)

    files: tuple[str, ...]
    label: str = ""
    words: str = Field(default="", max_length=MOST_WORDS)
    page: int = Field(default=1, ge=1)
    grouped: bool = True


class Facts(BaseModel):
    """What is known of all rows of some files: the rows of each, and its labels, (as shown, rows) of ``label_column``.

    Labels are counted in the first ``counted`` rows. ``broken``: the place of a file that could not be read.
    """

    file_rows: list[int] = []
    label_column: str = ""
    labels: list[tuple[str, int]] = []
    counted: int = 0
    broken: int | None = None
    problem: str = ""


class Request(BaseModel):
    """A question to the reader; without ``facts`` these alone are wanted."""

    question: Question
    facts: Facts | None = None


class Second(BaseModel):
    """A second text with its label; ``note``: "sampled" for one that was written for another first text."""

    label: str
    text: str
    note: str = ""


class Group(BaseModel):
    """A first text and its second texts on this page; ``continued``: others stand on the page before."""

    first: str
    seconds: list[Second]
    continued: bool = False


class Window(BaseModel):
    """A page of rows as texts, as groups or as a table.

    ``rows``: of the split; ``found``: those that match, among the first ``looked_at``; the rest as in ``Facts``.
    """

    page: int = 1
    pages: int = 1
    rows: int = 0
    found: int = 0
    looked_at: int = 0
    counted: int = 0
    label_column: str = ""
    labels: list[tuple[str, int]] = []
    can_group: bool = False
    columns: list[str] = []
    more_columns: int = 0
    table: list[list[str]] = []
    groups: list[Group] = []
    broken: int | None = None
    problem: str = ""


def window(question: Question) -> Window:
    """The page of rows that was asked for, the last one when there are fewer."""
    try:
        facts = _facts(question.files)
        return Window(broken=facts.broken, problem=facts.problem) if facts.problem else _window(question)
    except (child.ChildFailed, ValidationError):
        return Window(problem=_FAILED)


# Contents never change under their address, so answers hold; failures raise and are not kept.
@lru_cache(maxsize=128)
def _facts(files: tuple[str, ...]) -> Facts:
    return Facts.model_validate_json(_ask(Request(question=Question(files=files))))


@lru_cache(maxsize=128)
def _window(question: Question) -> Window:
    request = Request(question=question, facts=_facts(question.files))
    return Window.model_validate_json(_ask(request))


def _ask(request: Request) -> bytes:
    return child.answer_of("hub_server.pages.row_scan", request.model_dump_json().encode())
