"""Requests and answers of OpenAI-compatible servers (``model.server.dialect``), and the cache of paid answers.

The OpenAI API has no top-k. Its answer says "stop" both when a stop word was met and when the model ended the text
itself, without the stop word. A dialect declares what a server takes and reports beyond that.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from generation.backends.protocol import Request
from hub.contract.recipe import QUOTE, DecodingParameters, LanguageModel, Server
from hub.durable import make_folder
from hub.errors import InputError, RunError


@dataclass(frozen=True)
class Answer:
    """One answer as it was paid for: its text, why it ended, what it cost, and how likely it was."""

    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    log_prob: float | None  # mean nats per token, the closing mark included; None: not reported


def _utf8(text: str) -> str:
    text.encode()  # half a character (a lone surrogate) is not text: UnicodeEncodeError, a ValueError
    return text


Text = Annotated[str, AfterValidator(_utf8)]


class _Message(BaseModel):
    content: Text | None = None


# Rounding may lift 0 a little; the lowest number of float32 is what llama.cpp sends for a likelihood of 0.
_LogProb = Annotated[float, Field(ge=-3.4028235e38, le=1e-4, strict=True), AfterValidator(lambda one: min(one, 0.0))]


class _Token(BaseModel):
    token: Text = ""
    logprob: _LogProb | None = None


class _LogProbs(BaseModel):
    """Both forms of the API: ``content`` of chats, or ``tokens`` beside ``token_logprobs``."""

    content: list[_Token] | None = None
    tokens: list[Text] | None = None
    token_logprobs: list[_LogProb | None] | None = None


class _Choice(BaseModel):
    text: Text | None = None
    message: _Message | None = None
    finish_reason: Text | None = None
    logprobs: _LogProbs | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = Field(default=None, ge=0, le=2**53)
    completion_tokens: int | None = Field(default=None, ge=0, le=2**53)


class _Payload(BaseModel):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


def _mean_log_prob(logprobs: _LogProbs, text: str, closes: bool) -> float | None:
    """Over the tokens up to the one that closes the quotation."""
    if logprobs.content is not None:
        pairs = [(token.token, token.logprob) for token in logprobs.content]
    else:
        pairs = list(zip(logprobs.tokens or [], logprobs.token_logprobs or [], strict=False))
    if closes:
        closing = [place for place, (token, _) in enumerate(pairs) if QUOTE in token]
        if QUOTE in text and not closing:
            return None  # the mark came in one token with a stop word, of which some servers tell nothing
        pairs = pairs[: closing[0] + 1] if closing else pairs
    values = [value for _, value in pairs if value is not None]
    return sum(values) / len(values) if values and len(values) == len(pairs) else None


_TABLE = """CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER, completion_tokens INTEGER,
    log_prob REAL) WITHOUT ROWID"""
_TOTALS = """SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),
    count(*) - count(prompt_tokens + completion_tokens) FROM answers"""


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

    def totals(self) -> dict[str, int]:
        """Sums over all answers, those of earlier processes included; ``uncounted`` came without a token count."""
        with self._reported():
            sums = self._connection.execute(_TOTALS).fetchone()
        return dict(zip(("answers", "prompt_tokens", "completion_tokens", "uncounted"), sums, strict=True))

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


Body = dict[str, Any]
_SMALL = "start it with more context (llama-server -c SLOTS×TOKENS -np SLOTS), or lower decoding.max_new_tokens"


@dataclass(frozen=True)
class Dialect:
    """One kind of server, declared once in ``DIALECTS``.

    ``sampling`` gives the fields of the draw. ``quotes_stop``: whether the closing quotation mark may be a stop word,
    given whether log-probabilities are requested; else its text would look like one that ended by itself.
    ``opens_turn``: whether a chat model's turn can begin with our quotation mark. ``text`` reads the generated text
    where the choice's own field lacks it.
    """

    sampling: Callable[[DecodingParameters], Body]
    quotes_stop: Callable[[bool], bool]
    opens_turn: bool
    text: Callable[[object, Server], str] | None = None


def opens_quotation(model: LanguageModel, server: Server) -> bool:
    """Whether an answer continues an open quotation: always, but for chat models whose turn cannot be begun."""
    return not model.chat_template or DIALECTS[server.dialect].opens_turn


def request_body(model: LanguageModel, server: Server, request: Request, settings: DecodingParameters) -> Body:
    """All JSON fields of one request. The row's seed keeps 31 bits: llama.cpp takes no more."""
    dialect = DIALECTS[server.dialect]
    body: Body = {"model": server.model, "max_tokens": settings.max_new_tokens, "seed": request.seed >> 33}
    body |= _prompt(model, server, request.prompt)
    if opens_quotation(model, server):
        quoted = dialect.quotes_stop(server.logprobs) and settings.text_end == "quotation_mark"
        body["stop"] = [QUOTE, "\n"] if quoted else ["\n"]
    if server.logprobs:
        body["logprobs"] = model.chat_template or 1
    return body | dialect.sampling(settings)


def read_answer(payload: object, model: LanguageModel, server: Server, settings: DecodingParameters) -> Answer:
    """The answer in the JSON of /completions or /chat/completions.

    Raises pydantic.ValidationError for another form, InputError for what the dialect lacks.
    """
    found = _Payload.model_validate(payload)
    choice, usage = found.choices[0], found.usage or _Usage()
    text = (choice.text if choice.message is None else choice.message.content) or ""
    closes = opens_quotation(model, server) and settings.text_end == "quotation_mark"
    log_prob = _mean_log_prob(choice.logprobs or _LogProbs(), text, closes)
    if read_text := DIALECTS[server.dialect].text:
        text = read_text(payload, server)
    return Answer(text, choice.finish_reason, usage.prompt_tokens, usage.completion_tokens, log_prob)


def _prompt(model: LanguageModel, server: Server, prompt: str) -> Body:
    if not model.chat_template:
        return {"prompt": prompt}
    turns = [{"role": "user", "content": prompt.removesuffix(QUOTE)}]  # the answer opens the quotation
    if not opens_quotation(model, server):
        return {"messages": turns}
    begun = {"role": "assistant", "content": QUOTE}
    return {"messages": [*turns, begun], "add_generation_prompt": False, "continue_final_message": True}


def _openai_sampling(settings: DecodingParameters) -> Body:
    """``top_k`` is sent when the recipe asks for one, so that a server without top-k refuses it."""
    plain = {"temperature": 1.0, "top_p": settings.top_p}
    return {**plain, "top_k": settings.top_k} if settings.top_k else plain


def _vllm_sampling(settings: DecodingParameters) -> Body:
    """Every field that a model's generation_config.json could change; the stop word stays in the text."""
    fixed = {"min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
    return {"temperature": 1.0, "top_p": settings.top_p, "top_k": settings.top_k or -1, **fixed}


def _transformers_sampling(settings: DecodingParameters) -> Body:
    """``transformers serve`` samples only when the field generation_config says so; the stop word stays."""
    config = {"temperature": 1.0, "top_p": settings.top_p, "do_sample": True}
    return {"generation_config": json.dumps({**config, "top_k": settings.top_k, "repetition_penalty": 1.0})}


def _llamacpp_sampling(settings: DecodingParameters) -> Body:
    """Top-k, then top-p, at temperature 1 (fields: tools/server/README.md of llama.cpp).

    Samplers that are not named are off (min_p is 0.05 otherwise). As in the engine, the end of text cannot be drawn
    where a quotation mark ends a text.
    """
    chain = {"samplers": ["top_k", "top_p", "temperature"], "dynatemp_range": 0.0, "mirostat": 0}
    return {
        "temperature": 1.0,
        "top_k": settings.top_k,
        "top_p": settings.top_p,
        **chain,
        "ignore_eos": settings.text_end == "quotation_mark",
        "verbose": True,  # the answer's field __verbose
    }


class _Verbose(BaseModel):
    content: Text  # the generated text; the choice of a chat repeats the beginning of the turn before it
    stopping_word: Text
    truncated: bool


class _LlamacppPayload(BaseModel):
    verbose: _Verbose | None = Field(default=None, alias="__verbose")


def _llamacpp_text(payload: object, server: Server) -> str:
    """The generated text with the stop word that ended it, which the answer's ``text`` leaves out.

    Raises pydantic.ValidationError for another form; InputError when the server does not name the stop word, or when
    its context was full before the text ended.
    """
    verbose = _LlamacppPayload.model_validate(payload).verbose
    if verbose is None:
        hint = "use llama.cpp's server of July 2026 or newer (or start it with -lv 10), or dialect: openai"
        raise InputError(f"server {server.base_url}", "does not report in __verbose what ended a text", hint=hint)
    if verbose.truncated:
        raise InputError(f"server {server.base_url}", "its context was full before the text ended", hint=_SMALL)
    return verbose.content + verbose.stopping_word


DIALECTS = {
    "openai": Dialect(_openai_sampling, quotes_stop=lambda _: False, opens_turn=False),
    "vllm": Dialect(_vllm_sampling, quotes_stop=lambda _: True, opens_turn=True),
    "transformers": Dialect(_transformers_sampling, quotes_stop=lambda _: True, opens_turn=False),
    # llama.cpp gives no log-probability for a stop word, so none is sent where those are requested
    "llamacpp": Dialect(
        _llamacpp_sampling, quotes_stop=lambda logprobs: not logprobs, opens_turn=True, text=_llamacpp_text
    ),
}
