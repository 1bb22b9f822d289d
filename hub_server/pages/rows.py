"""One page of the rows of parquet files, as a question and its answer; ``row_scan`` finds it in a child process."""

from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hub_server.pages import child

ROWS = 50  # of a page
MOST_FILES, MOST_ROWS = 1000, 2_000_000  # of a split that a search or a count of labels reads
MOST_WORDS = 200  # characters of a search
_FAILED = f"The rows took more than {child.SECONDS} s or too much memory to show, or broke the reader."


class Question(BaseModel):
    """Which rows: of which stored files, with which label (as it is shown), with which words, on which page from 1."""

    model_config = ConfigDict(frozen=True)

    files: tuple[str, ...]
    label: str = ""
    words: str = Field(default="", max_length=MOST_WORDS)
    page: int = Field(default=1, ge=1)
    grouped: bool = True


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
    """A page of rows as texts, as groups or as a table, and what is known of all rows.

    ``rows``: of the split; ``found``: those that match, among the first ``looked_at``; ``labels``: (as shown, rows) of
    ``label_column``, counted in the first ``counted`` rows; ``broken``: the place of a file that could not be read.
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
        return _window(question)
    except (child.ChildFailed, ValidationError):
        return Window(problem=_FAILED)


@lru_cache(maxsize=128)
def _window(question: Question) -> Window:
    # Contents never change under their address, so an answer holds; failures raise and are not kept.
    request = question.model_dump_json().encode()
    return Window.model_validate_json(child.answer_of("hub_server.pages.row_scan", request))
