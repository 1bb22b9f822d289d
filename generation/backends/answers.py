"""From what a model said to a ``Completion``: the same words and the same problems as the engine's. Pure."""

import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, Field

from generation.backends.protocol import Completion, cut
from hub.contract.recipe import QUOTE, TextEnd
from hub.contract.schema import EMPTY, NOT_CLOSED
from hub.durable import make_folder
from hub.errors import InputError, RunError

_STRAIGHT = str.maketrans({"\u201c": QUOTE, "\u201d": QUOTE})
_LABEL = re.compile(r'(\w[\w ]*:)\s*"?$')  # what a prompt ends with before the opening mark, e.g. "Answer:"
_LEAD_LINE = re.compile(r'^[^"\n]*:\s*\n\s*')  # "Here is a sentence:" on a line of its own
_OPENED = re.compile(r'(?:[^"\n]*:\s*)?"(.*)', re.DOTALL)


@dataclass(frozen=True)
class Answer:
    """One answer as it was paid for: its text, why it ended, what it cost, and how likely it was.

    ``log_prob`` is the mean in nats per token, the closing mark included; None where the server does not tell.
    """

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    log_prob: float | None


def _utf8(text: str) -> str:
    text.encode()  # half a character (a lone surrogate) is no text: UnicodeEncodeError, a ValueError
    return text


Text = Annotated[str, AfterValidator(_utf8)]


class _Message(BaseModel):
    content: Text | None = None


class _Choice(BaseModel):
    text: Text | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0, le=2**53)
    completion_tokens: int | None = Field(default=None, ge=0, le=2**53)


class _Payload(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def read_answer(payload: object, closes: bool) -> Answer:
    """The answer in the JSON of /completions or /chat/completions; ``closes``: a quotation mark ends its text.

    Raises pydantic.ValidationError when it has another form.
    """
    found = _Payload.model_validate(payload)
    choice, usage = found.choices[0], found.usage or _Usage()
    text = choice.text if choice.message is None else choice.message.content
    log_prob = _mean_log_prob(choice.logprobs or {}, text or "", closes)
    return Answer(text or "", choice.finish_reason, usage.prompt_tokens, usage.completion_tokens, log_prob)


def _mean_log_prob(logprobs: dict[str, Any], text: str, closes: bool) -> float | None:
    """Over the tokens up to the one that closes the quotation; both forms of the API are read."""
    if isinstance(content := logprobs.get("content"), list):
        pairs = [(token.get("token"), token.get("logprob")) for token in content]
    else:
        pairs = list(zip(logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [], strict=False))
    if closes:
        closing = [place for place, (token, _) in enumerate(pairs) if QUOTE in str(token)]
        if QUOTE in text and not closing:
            return None  # the mark came in one token with a stop word, of which some servers tell nothing
        pairs = pairs[: closing[0] + 1] if closing else pairs
    values = [value for _, value in pairs if isinstance(value, (int, float))]
    return sum(values) / len(values) if values and len(values) == len(pairs) else None


def completed(
    text: str, log_prob: float | None, text_end: TextEnd = "quotation_mark", ended: bool = False
) -> Completion:
    """What follows an opening quotation mark: the text up to its end, and the engine's problems.

    ``ended``: the server says that the model stopped by itself, or at the end of the line.
    """
    return Completion(*cut(text, ended, text_end), log_prob, None)


def said(prompt: str, answer: Answer) -> Completion:
    """The text in a chat model's own turn, which no quotation mark of ours opens.

    A line that ends in a colon before the text, and the prompt's own last words (``Answer:``), are passed over. If a
    quotation follows, the text is what it holds; a mark at the end of the line alone closes a text that none opened.
    Otherwise it is the first line, provided that it holds no quotation mark and that the model ended it (by a line
    break or by ending its turn).
    """
    words = _LEAD_LINE.sub("", answer.text.translate(_STRAIGHT).strip())
    label = _LABEL.search(prompt)
    if label and words.lower().startswith(label[1].lower()):
        words = words[len(label[1]) :].lstrip()
    if opened := _OPENED.match(words):
        return completed(opened[1], answer.log_prob)
    line, more, _ = words.partition("\n")
    line = line.rstrip()
    if line.find(QUOTE) == len(line) - 1 >= 0:
        return completed(line, answer.log_prob)
    ended = QUOTE not in line and (more or answer.finish_reason == "stop")
    problem = EMPTY if not line else None if ended else NOT_CLOSED
    return Completion(line, problem.name if problem else None, answer.log_prob, None)


_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
    log_prob REAL) WITHOUT ROWID"""
_TOTALS = """SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),
    count(*) - count(prompt_tokens + completion_tokens) FROM answers"""


class Totals(NamedTuple):
    """What all answers of a journal used; ``uncounted`` of them came without a token count."""

    answers: int
    prompt_tokens: int
    completion_tokens: int
    uncounted: int


class AnswerCache:
    """The answers of a run. Without a path they are kept until the process ends, in a temporary file."""

    def __init__(self, path: Path | None):
        self.path = path
        self._lock = threading.Lock()
        if path is not None:
            make_folder(path.parent)  # SQLite syncs the file's own name
        with self._reported():
            self._connection = sqlite3.connect(path or "", timeout=60, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)

    def find(self, key: bytes) -> Answer | None:
        """The answer kept under ``key``, or None."""
        with self._reported():
            row = self._connection.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
        return Answer(*row[1:]) if row else None

    def add(self, key: bytes, answer: Answer) -> None:
        """Keep an answer; it is on the disk when this returns. Any thread may call."""
        with self._reported():
            self._connection.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", (key, *astuple(answer))
            )

    def totals(self) -> Totals:
        """Sums over all answers, those of earlier processes included."""
        with self._reported():
            return Totals(*self._connection.execute(_TOTALS).fetchone())

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            hint = "free some space or fix its permissions, and run the same command again"
            raise RunError(self.path, f"cannot keep answers: {error}", hint=hint) from error
        except sqlite3.DatabaseError as error:
            hint = "move it away; what it held will be asked, and paid for, again"
            raise InputError(self.path, f"is not a journal of answers: {error}", hint=hint) from error


def key_of(*asked: Any) -> bytes:
    """SHA-256 of everything that decides an answer (JSON values)."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).digest()
