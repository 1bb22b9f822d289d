"""``backend: openai``: texts from any OpenAI-compatible server, several requests at a time.

``Client`` also requests embeddings from such a server.

No answer is paid for twice: ``AnswerCache`` stores them beside the run directory.

The ``openai`` client retries by itself: 408, 409, 429, 5xx, timeouts and dropped connections, after
0.5 to 8 seconds (doubling, with jitter) or after the server's Retry-After up to 120 seconds.
Failures are one line each.
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import openai
from pydantic import ValidationError

from sts_dino.generation.backends.answer_text import (
    bound_text,
    decode_escapes,
    extract_structured_text,
    extract_turn_text,
)
from sts_dino.generation.backends.dialects import (
    REFUSAL,
    SENTENCE_KEY,
    Answer,
    continues_quotation,
    find_error_status,
    list_answer_keys,
    make_body,
    read_answers,
)
from sts_dino.generation.backends.protocol import Completion, Request, extract_text
from sts_dino.hub.contract.published_paths import HIDDEN_ADDRESS
from sts_dino.hub.contract.recipe import DecodingParameters, LanguageModel, Server
from sts_dino.hub.contract.schema import ABOUT_THE_TASK
from sts_dino.hub.durable import make_folder
from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.hub.process import require_usable
from sts_dino.hub.untrusted import join_lines

logger = logging.getLogger(__name__)

_KEY_VARIABLE = "OPENAI_API_KEY"
_AGAIN = "run the same command again: what was answered is kept"
_LONGEST_PAUSE = 120.0  # longest Retry-After, in seconds, after which a request is sent again
# headers of OpenAI and others: what remains of a limit → after how long the limit is whole again
_LIMIT_HEADERS = {
    "x-ratelimit-remaining-requests": "x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens": "x-ratelimit-reset-tokens",
}
_SECONDS_OF_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)")  # of "6m0s", "12ms" or "7.5"
_ANSWERS_TO_SPEED_UP = 20  # answers without a change before one more request may be in flight
_BYTES_PER_TOKEN = 3  # of a prompt; a low guess, so that the reserved price is rather too high
_PROOFS = 3  # HTTP requests that show whether a server gives structured output
_QUOTED_LENGTH = 200  # characters of a server's message in an error
_CONNECT_SECONDS = 10.0
_NEW_LIMIT_FIELD = "max_completion_tokens"  # OpenAI's later name of max_tokens
_LONGEST_ANSWER = 16 * 2**20  # bytes; most have a few kilobytes
_CONTROL_TOKEN = re.compile(r"<\|[^\s<>|]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers (\n"
    "    key BLOB PRIMARY KEY, text TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER, "
    "completion_tokens INTEGER,\n"
    "    log_prob REAL, model TEXT) WITHOUT ROWID"
)
_INSERT = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?)"
_TOTALS = """SELECT count(*) AS answers,
    count(nullif(prompt_tokens, 0)) AS counted_requests,
    coalesce(sum(prompt_tokens), 0) AS prompt_tokens,
    coalesce(sum(completion_tokens), 0) AS completion_tokens,
    count(*) - count(prompt_tokens + completion_tokens) AS uncounted FROM answers"""
_MODELS = "SELECT model, count(*) FROM answers WHERE model IS NOT NULL GROUP BY model ORDER BY 1"


class AnswerCache:
    """The answers of a run in an SQLite file; without a path in a temporary file of this process.

    All methods raise RunError if the disk fails, InputError for a file that is not such a database.
    """

    def __init__(self, path: Path | None):
        """Open the file, and make it if necessary.

        ``path``: the file; None: a temporary file. Raises OSError, too, when the folder of ``path``
        cannot be made.
        """
        self.path = path
        self._lock = threading.Lock()
        if path is not None:
            make_folder(path.parent)  # flushes the folder's name; SQLite flushes the file's
        with self._lock_connection():
            self._connection = sqlite3.connect(
                path or "", timeout=60, check_same_thread=False, isolation_level=None
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_TABLE)

    def find(self, key: bytes) -> Answer | None:
        """Return the answer stored under ``key``, or None."""
        with self._lock_connection():
            row = self._connection.execute("SELECT * FROM answers WHERE key = ?", (key,)).fetchone()
        return Answer(*row[1:]) if row else None

    def add(self, keys: Sequence[bytes], answers: Sequence[Answer]) -> None:
        """Store the answers of one request, each under its key; any thread may call.

        There may be more keys than answers; the last keys then get none. With a path, all answers
        are on the disk when this returns.
        """
        rows = [(key, *astuple(answer)) for key, answer in zip(keys, answers, strict=False)]
        # one transaction, which an error rolls back
        with self._lock_connection(), self._connection:
            self._connection.execute("BEGIN")
            self._connection.executemany(_INSERT, rows)

    def sum_tokens(self) -> dict[str, int]:
        """Return sums over all answers, those of earlier processes included.

        Keys: ``answers``, ``counted_requests`` (the requests with a token count: one answer of each
        has the prompt's tokens), ``prompt_tokens``, ``completion_tokens``, and ``uncounted``, the
        number of answers without a token count.
        """
        with self._lock_connection():
            return dict(self._connection.execute(_TOTALS).fetchone())

    def count_models(self) -> dict[str, int]:
        """Return the name of each model that answered → the number of its answers, by name."""
        with self._lock_connection():
            return dict(self._connection.execute(_MODELS).fetchall())

    @contextmanager
    def _lock_connection(self) -> Iterator[None]:
        """Hold the lock during a block, and convert the errors of SQLite.

        Raises RunError if the disk fails, InputError for a file that is not such a database.
        """
        location = self.path or "temporary file of a server's answers"
        try:
            with self._lock:
                yield
        except sqlite3.OperationalError as error:
            raise RunError(
                location,
                f"cannot keep answers: {error}",
                hint="free some space or fix its permissions, and run the same command again",
            ) from error
        except sqlite3.DatabaseError as error:
            raise InputError(
                location,
                f"is not a journal of answers: {error}",
                hint="move it away; what it held will be asked, and paid for, again",
            ) from error


class _Post(NamedTuple):
    """One request as it is sent, and the key of each of its answers in the cache."""

    path: str  # of the API, below ``base_url``
    body: dict[str, Any]  # the JSON fields
    keys: tuple[bytes, ...]  # at least one


def hash_request(*values: Any) -> bytes:
    """Return the SHA-256 of the values that decide an answer, written as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class Advice:
    """Texts for the hint of an error: what the user can change after a failed request.

    address: name of the setting with the server's URL.
    names: hint after HTTP 404, for a wrong URL or name of the model.
    slow: hint after a timeout.
    fields: hint after a refused request.
    long: hint after a text that is too long for the model.
    """

    address: str
    names: str
    slow: str
    fields: str
    long: str


GENERATOR_ADVICE = Advice(
    address="model.server.base_url",
    names="check base_url (it mostly ends in /v1) and model in model.server",
    slow=f"{_AGAIN}; if it is only slow, raise model.server.timeout",
    fields="check model.server (decoding.top_k=0 leaves top_k out)",
    long="serve the model with a longer context, or shorten the prompts (source, few_shot)",
)
TEACHER_ADVICE = Advice(
    address="the URL of --teacher",
    names="check --teacher NAME@URL: the URL mostly ends in /v1",
    slow=_AGAIN,
    fields="check what the server accepts",
    long="serve the model with a longer context, or leave out the longest texts",
)


class RefusedRequestError(InputError):
    """A server refuses a request for its fields or its length."""


class BrokenRequestError(RunError):
    """A server fails on a request with HTTP 500 or 501, as some do on a field they do not know."""


class CancelledRequest(BaseException):
    """A request is not sent because the run ends; no Exception, which the client would retry."""


def parse_duration(text: str) -> float:
    """Return the seconds of a header such as "6m0s", "12ms" or "7.5"; 0 for any other text."""
    parts = _DURATION_PART.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0.0
    return sum(float(number) * _SECONDS_OF_UNITS[unit] for number, unit in parts)


def _read_key() -> str:
    """Return the API key of the environment, without blanks around it; "" without one.

    Raises InputError, which does not show the key, for one that no HTTP header can hold.
    """
    key = os.environ.get(_KEY_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            _KEY_VARIABLE,
            "holds letters beyond ASCII, or a control character such as a line break",
            allowed="the key alone, as the server's operator gave it",
        )
    return key


class Pace:
    """How many requests may be in flight (``allowed``), and when the next one may start.

    An answer 429 halves ``allowed``, down to 1. The answers to requests that were in flight before
    that do not halve it again. A 429 also stops all requests for its Retry-After. Answer number
    ``_ANSWERS_TO_SPEED_UP`` after a change of ``allowed``, or the first later one without 429,
    raises ``allowed`` by one, up to the recipe's ``concurrency``. An answer after which nothing
    remains of a rate limit stops all requests until the limit is reset. Pauses above
    ``_LONGEST_PAUSE`` are ignored. ``is_cancelled`` ends the pauses of all waiting requests,
    without sending them. Any thread may call the methods.
    """

    def __init__(self, concurrency: int):
        self.concurrency = concurrency
        self.allowed = concurrency
        self._answers = 0  # number of answers since ``allowed`` changed
        self._old_requests = 0  # number of requests that were in flight when it was halved
        self._pause_end = 0.0  # of the monotonic clock
        self.is_cancelled = threading.Event()
        self._lock = threading.Lock()

    def record_answer(self, status: int, retry_after: str) -> None:
        """Count an answer, and change ``allowed`` if that is due.

        Args:
            status: HTTP status of the answer.
            retry_after: its header Retry-After in seconds; a date is ignored. After 429 no request
                starts for so long, unless that is above ``_LONGEST_PAUSE``.
        """
        with self._lock:
            self._answers += 1
            is_old = self._old_requests > 0
            if is_old:
                self._old_requests -= 1
            if status == 429:
                # all requests in flight may be refused at once: that halves ``allowed`` only once
                if not is_old:
                    self._old_requests = self.allowed - 1  # without the one that is answered here
                    self.allowed = max(1, self.allowed // 2)
                    self._answers = 0
                self._stop_requests(parse_duration(retry_after))
            elif self._answers >= _ANSWERS_TO_SPEED_UP and self.allowed < self.concurrency:
                self.allowed += 1
                self._answers = 0

    def follow_limits(self, headers: Mapping[str, str]) -> None:
        """Let no request start before the reset of a rate limit that is used up.

        ``headers``: the headers of an answer, with names in lower case.
        """
        with self._lock:
            for remaining, reset in _LIMIT_HEADERS.items():
                if headers.get(remaining) == "0":
                    self._stop_requests(parse_duration(headers.get(reset, "")))

    def _stop_requests(self, seconds: float) -> None:
        """Let no request start for so many seconds.

        A pause above ``_LONGEST_PAUSE`` is ignored here: the next 429 then ends the run.
        """
        if seconds <= _LONGEST_PAUSE:
            self._pause_end = max(self._pause_end, time.monotonic() + seconds)

    def wait(self) -> None:
        """Wait until the pause is over. Raises CancelledRequest when ``is_cancelled`` ends it."""
        while (seconds := self._pause_end - time.monotonic()) > 0:
            if self.is_cancelled.wait(seconds):
                raise CancelledRequest


class _AnswerLimits(threading.local):
    """Limits on the time and size of one answer, with its headers, trailers and redirects.

    Every thread has its own. They are needed because the timeout of a single read does not end an
    answer that arrives a byte at a time.
    """

    deadline = 0.0  # of the monotonic clock
    bytes_left = 0

    def start(self, seconds: float) -> None:
        """Start the limits of this thread's next answer, which has so many seconds."""
        self.deadline = time.monotonic() + seconds
        self.bytes_left = _LONGEST_ANSWER

    def watch_connection(self, event: str, info: dict[str, Any]) -> None:
        """Replace the method ``read`` of a new connection by ``_read``.

        httpx calls this function for each event of a request that has it as extension ``trace``.
        """
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            stream.read = partial(self._read, stream.read)

    def _read(self, read: Callable[[int, float], bytes], size: int, timeout: float) -> bytes:
        """Read at most ``size`` bytes from a connection.

        Raises ReadTimeout after the answer's deadline, ReadError for a too long answer, and what
        ``read`` raises. ``read``: the connection's own method. ``timeout``: seconds.
        """
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise httpx2.ReadTimeout("the answer does not end")
        chunk = read(size, min(timeout, seconds))
        self.bytes_left -= len(chunk)
        if self.bytes_left < 0:
            raise httpx2.ReadError(f"the answer has more than {_LONGEST_ANSWER >> 20} MB")
        return chunk


class Client:
    """Sends requests to one server. The key is read from the environment and is in no message.

    ``server``: address and settings of the server. ``advice``: the hints of errors.
    """

    def __init__(self, server: Server, advice: Advice = GENERATOR_ADVICE):
        """Make the client; no request is sent yet.

        Raises InputError for a key, a proxy or a file of certificates in the environment that
        cannot be used.
        """
        self.server = server
        self.advice = advice
        self._key = _read_key()
        self._limits = _AnswerLimits()
        self.pace = Pace(server.concurrency)
        require_usable()
        self._client = openai.OpenAI(
            base_url=server.base_url,
            # local servers often need no key, the client always does
            api_key=self._key or "none",
            timeout=openai.Timeout(server.timeout, connect=min(server.timeout, _CONNECT_SECONDS)),
            max_retries=server.max_retries,
            # else a small body may unpack to gigabytes
            default_headers={"Accept-Encoding": "identity"},
            http_client=openai.DefaultHttpxClient(
                event_hooks={
                    "request": [self._limit_answer],
                    "response": [self._guard_response],
                },
                # a cookie that is not ASCII stops all requests
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            ),
        )

    def post(self, path: str, body: dict[str, object]) -> object:
        """Post the fields ``body`` to a path below ``base_url``; return the server's JSON.

        Raises what ``_send`` raises.
        """
        return self._send(lambda: self._client.post(path, cast_to=object, body=body), body)

    def get(self, path: str) -> object:
        """Return the server's JSON for a path below ``base_url``, or for a full URL.

        Raises what ``_send`` raises.
        """
        return self._send(lambda: self._client.get(path, cast_to=object), {})

    def _limit_answer(self, request: httpx2.Request) -> None:
        """Before a request is sent: wait until it may start, and start the limits of its answer.

        Raises CancelledRequest when ``pace.is_cancelled`` ends the wait.
        """
        # a redirect has the extensions of its request, and stays within the limits of that one
        if "trace" not in request.extensions:
            self.pace.wait()
            self._limits.start(self.server.timeout)
            request.extensions["trace"] = self._limits.watch_connection

    def _guard_response(self, response: httpx2.Response) -> None:
        """Make a response safe for the client, count it, and follow its rate limits.

        Nothing is decompressed, text is read as UTF-8, and a redirect to another scheme, host or
        port is not followed: its header ``location`` becomes ``elsewhere``. A malformed
        ``location`` raises InvalidURL or ValueError, which ``_send`` converts.
        """
        response.headers.pop("content-encoding", None)
        response.encoding = "utf-8"
        target = response.url.join(response.headers.get("location", ""))
        if (target.scheme, target.netloc) != (response.url.scheme, response.url.netloc):
            response.headers["elsewhere"] = response.headers.pop("location")
        if response.is_success:
            self._apply_error_object(response)  # some servers send errors with status 200
        self.pace.record_answer(response.status_code, response.headers.get("retry-after", ""))
        self.pace.follow_limits(response.headers)

    def _apply_error_object(self, response: httpx2.Response) -> None:
        """Give a successful response with an error object the status that the object means.

        See ``find_error_status``. The client then retries or fails as for that status.
        """
        response.read()
        if '"error"' not in response.text:  # nearly all answers: they need no parsing here
            return
        try:
            payload = json.loads(response.text)
        except (ValueError, RecursionError):
            return
        status = find_error_status(payload)
        if status is not None:
            response.status_code = status

    def _send(self, send: Callable[[], object], fields: Iterable[str]) -> object:
        """Return the JSON that answers a request.

        Args:
            send: sends the request through the client.
            fields: the names of the request's fields, for an error.

        Raises:
            InputError: the server refuses the key, does not have the path or model, or redirects to
                another server. RefusedRequestError: it refuses the request's fields or length.
            RunError: the request fails after all retries or for lack of credit, or its answer is
                not JSON.
                BrokenRequestError: it fails with HTTP 500 or 501.
            CancelledRequest: ``pace.is_cancelled`` ended the request's wait, before it was sent.
        """
        try:
            payload = send()
            if not isinstance(payload, str):
                return payload
            # the client returns an answer that is not JSON as text
            problem = f"its answer is not JSON: {self.quote(payload)}"
            failure: StsDinoError = self.make_error(problem, f"check {self.advice.address}")
        except openai.APIStatusError as error:
            failure = self._explain_status(error, fields)
        except openai.APITimeoutError:
            failure = self.make_error(
                f"no answer within {self.server.timeout:g} s",
                self.advice.slow,
            )
        except openai.APIConnectionError as error:
            failure = self.make_error(
                f"cannot be reached or read ({self.quote(str(error.__cause__))})",
                f"check that it runs at that address, then {_AGAIN}",
            )
        # JSON that is nested too deeply; a redirect to an invalid address
        except (ValueError, RecursionError, httpx2.InvalidURL):
            failure = self.make_error(
                "its answer is not JSON",
                f"check that {self.advice.address} is the API's address",
            )
        # raised outside of the except block: its context would show the server's message, which
        # may hold the key
        raise failure

    def describe_malformed(self, error: ValidationError) -> RunError:
        """Return the error for an answer that lacks the form of OpenAI's API.

        ``error``: what pydantic raised over its JSON.
        """
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        problem = self.quote(f"{field}: {first['msg']}")
        return self.make_error(
            f"its answer has another form than OpenAI's: {problem}",
            "check what it serves",
        )

    def check_secret(self, text: str) -> None:
        """Raise RunError when a text from the server holds the key, before it is stored."""
        if self._key and self._key in text:
            raise self.make_error("its answer holds the API key", "change the key")

    def _explain_status(self, error: openai.APIStatusError, fields: Iterable[str]) -> StsDinoError:
        """Return the error for an answer with an HTTP status of failure, as ``_send`` lists them.

        ``error``: the client's exception. ``fields``: the names of the request's fields.
        """
        location = f"server {self.server.base_url}"
        status = error.status_code
        body = error.response.text
        if status in (401, 403):  # the body may hold the key or a part of it
            credentials = "the key in" if self._key else "a request without a key; set"
            return InputError(
                location,
                f"refuses (HTTP {status}) {credentials} {_KEY_VARIABLE}",
                hint="give a key that it accepts",
            )
        target = error.response.headers.get("elsewhere")
        if target:
            return InputError(
                location,
                f"sends the request on to {self.quote(target)} (HTTP {status})",
                hint=f"give that address as {self.advice.address} if you trust it",
            )

        problem = f"HTTP {status}: {self.quote(body)}"
        if status == 404:
            return InputError(location, problem, hint=self.advice.names)
        # 402: the account has no credit left
        if status in (402, 408, 409, 429) or status >= 500:
            seconds = parse_duration(error.response.headers.get("retry-after", ""))
            delay = f"after {seconds:.10g} s " if seconds else ""
            failure = BrokenRequestError if status in (500, 501) else RunError
            remedy = "add credit to the account, then " if status == 402 else delay
            return failure(location, problem, hint=f"{remedy}{_AGAIN}")
        hint = f"fields sent: {', '.join(fields)}; {self.advice.fields}"
        # the word of OpenAI, vLLM and llama.cpp for a prompt too long
        if "context" in body.lower():
            hint = self.advice.long
        return RefusedRequestError(location, f"refuses the request, {problem}", hint=hint)

    def make_error(self, problem: str, hint: str) -> RunError:
        """Return the RunError for a failing server; ``hint``: the next step."""
        return RunError(f"server {self.server.base_url}", problem, hint=hint)

    def quote(self, message: str) -> str:
        """Return a server's message for one line of a terminal: short, printable, no key."""
        if self._key:
            message = message.replace(self._key, "[key]")
        return join_lines(message, _QUOTED_LENGTH)


class OpenAIServer:
    """A language model behind a server, as a ``sts_dino.generation.backends.protocol.Writer``."""

    context = 0  # not known: the server refuses a prompt that is too long

    def __init__(self, model: LanguageModel, directory: Path | None = None):
        """Make the writer of a recipe's section ``model``; no request is sent yet.

        Its answers are stored beside the run ``directory``; None: in a temporary file.
        Raises InputError for a published recipe, which does not name the server's address, and what
        ``Client`` and ``AnswerCache`` raise.
        """
        assert model.server is not None, "sts_dino.hub.contract.recipe checks this"
        self.model = model
        self.server = model.server
        if self.server.base_url == HIDDEN_ADDRESS:
            raise InputError(
                "model.server.base_url",
                "is not published",
                hint=f"serve {self.server.model}, and say where: --set model.server.base_url=URL",
            )
        self.client = Client(self.server)
        path = directory.with_name(f"{directory.name}.answers.sqlite") if directory else None
        self._cache = AnswerCache(path)
        self._spent_lock = threading.Lock()
        self._spent = self.usage["cost"] or 0.0  # on stored answers; 0 without prices
        # whether the server gave fewer texts than requested, which is logged once
        self._has_few_choices = False
        self._refuses_choices = False  # whether the server refuses the field n
        self._refuses_max_tokens = False  # whether it takes max_completion_tokens instead
        self._reserved = 0.0  # sum of the estimates of ``_keep_budget`` for requests in flight

    def stream(
        self,
        queue: deque[Request],
        settings: DecodingParameters,
        batch_size: int | None,
        prefixes: Sequence[str] = (),
    ) -> Iterator[tuple[Request, Completion]]:
        """Complete the requests as ``Writer.stream`` does, ``server.concurrency`` at a time.

        When a request fails for good, no other starts. Requests in flight are waited for, and their
        answers are stored. Texts of one answer (``contrast``, ``choices``) share one HTTP request.
        ``batch_size`` and ``prefixes`` are unused. Raises what ``_fetch_answers`` and
        ``_prove_structured_output`` raise.
        """
        self.client.pace.is_cancelled.clear()
        if queue and self.server.structured_output:
            self._prove_structured_output(queue, settings)
        pool = ThreadPoolExecutor(self.server.concurrency, thread_name_prefix="openai")
        # by the first key of an unfinished HTTP request: its answers, and the texts that need them
        in_flight: dict[bytes, Future[list[Answer]]] = {}
        texts: dict[bytes, list[Request]] = {}
        try:
            while queue or in_flight:
                # Send HTTP requests; a text of one that is in flight needs no other one
                while queue and len(in_flight) < self.client.pace.allowed:
                    request = queue.popleft()
                    post = self._make_post(request, settings)
                    key = post.keys[0]
                    if key not in in_flight:
                        in_flight[key] = pool.submit(self._fetch_answers, post, settings)
                        texts[key] = []
                    texts[key].append(request)

                # Hand over the texts of the answers
                wait(in_flight.values(), return_when=FIRST_COMPLETED)
                finished = [key for key, future in in_flight.items() if future.done()]
                for key in finished:
                    answers = in_flight.pop(key).result()
                    for request in texts.pop(key):
                        answer = self._choose_answer(request, answers)
                        if answer is None:
                            queue.appendleft(replace(request, choice=None))
                            continue
                        yield request, self._make_completion(request, answer, settings)
        except BaseException:
            self.client.pace.is_cancelled.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _choose_answer(self, request: Request, answers: Sequence[Answer]) -> Answer | None:
        """Return the answer with the text of ``request``; None if the server gave too few choices.

        The first None is logged as a warning, unless the server refuses the field ``n``.
        """
        index = 0 if request.choice is None else request.choice.number
        if index < len(answers):
            return answers[index]
        if not self._has_few_choices and not self._refuses_choices:
            self._has_few_choices = True
            logger.warning(
                f"server {self.server.base_url}: gives {len(answers)} of the texts that one "
                "request asks for (model.server.choices); the others are requested one by one"
            )
        return None

    def choose_queue_length(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """Return how many texts all concurrent HTTP requests together ask for.

        See ``Writer.choose_queue_length``; both arguments are unused.
        """
        texts_of_request = self.server.choices * len(list_answer_keys(self.server))
        return self.server.concurrency * texts_of_request

    def _prove_structured_output(
        self, requests: Iterable[Request], settings: DecodingParameters
    ) -> None:
        """Send at most ``_PROOFS`` HTTP requests, until an answer has the requested JSON.

        Raises InputError when all these answers lack it, and what ``_fetch_answers`` raises. Some
        servers ignore ``response_format``, and a model may miss the JSON once. An answer that was
        cut proves nothing, and passes. The answers are cached like any other, so they are paid for
        once.
        """
        # Texts of one answer share its HTTP request
        posts: dict[bytes, _Post] = {}
        for request in requests:
            post = self._make_post(request, settings)
            posts.setdefault(post.keys[0], post)
            if len(posts) == _PROOFS:
                break

        for post in posts.values():
            answer = self._fetch_answers(post, settings)[0]
            text, _ = extract_structured_text(answer.text, list_answer_keys(self.server)[0])
            # a sentence of the JSON may be NOT_CLOSED, too; without the JSON the text is the answer
            if text != answer.text or not answer.has_ended(settings.max_new_tokens):
                return
        raise InputError(
            f"server {self.server.base_url}",
            "answers without the JSON of model.server.structured_output: "
            f"{join_lines(text, _QUOTED_LENGTH)!r}",
            hint="remove structured_output from the recipe: the sentence is then found in the "
            "answer's text",
        )

    def _make_post(self, request: Request, settings: DecodingParameters) -> _Post:
        """Return the HTTP request for a text; texts of one answer have the same request."""
        path = "/chat/completions" if self.model.chat_template else "/completions"
        body = make_body(self.model, self.server, request, settings)
        if request.choice is None:
            key = hash_request(self.server.base_url, path, body, request.seed)
            return _Post(path, body, (key,))
        keys = [
            hash_request(self.server.base_url, path, body, request.choice.seed, index)
            for index in range(request.choice.total)
        ]
        return _Post(path, body, tuple(keys))

    def _fetch_answers(self, post: _Post, settings: DecodingParameters) -> list[Answer]:
        """Return the answers of a request from the cache, else from the server, and cache them.

        There is one answer for each choice that the server gave, at least one, in its order. Raises
        what ``Client.post``, ``_keep_budget`` and the cache raise. Also raises RunError for JSON of
        another form and for an answer with the API key, and InputError for an answer that lacks a
        field of the dialect or was cut by the server's context.
        """
        cached = [answer for answer in map(self._cache.find, post.keys) if answer is not None]
        if cached:
            return cached
        with self._keep_budget(post.body) as add_cost:
            payload = self._post_choices(post)
            try:
                answers = read_answers(
                    payload, self.model, self.server, settings, count=len(post.keys)
                )
            except ValidationError as error:
                raise self.client.describe_malformed(error) from None
            for answer in answers:
                self.client.check_secret(f"{answer.text} {answer.finish_reason} {answer.model}")
            self._cache.add(post.keys, answers)
            add_cost(answers)
        return answers

    def _post_choices(self, post: _Post) -> object:
        """Send a request, without the field ``n`` if the server refuses it; return the JSON.

        Raises what ``Client.post`` raises.
        """
        if "n" not in post.body:
            return self._post_limited(post.path, post.body)
        if not self._refuses_choices:
            try:
                return self._post_limited(post.path, post.body)
            except (RefusedRequestError, BrokenRequestError):
                logger.debug("a request with n is refused; it is sent again without n")
        body = {name: value for name, value in post.body.items() if name != "n"}
        payload = self._post_limited(post.path, body)
        if not self._refuses_choices:  # without n the request is accepted, so n was the reason
            self._refuses_choices = True
            logger.warning(
                f"server {self.server.base_url}: refuses several texts in one request (the field "
                "n); they are requested one by one (set model.server.choices=1 to skip this test)"
            )
        return payload

    def _post_limited(self, path: str, body: dict[str, Any]) -> object:
        """Send a request with its token limit in the field that the server takes; return the JSON.

        OpenAI's models of 2025 and later refuse ``max_tokens``, and name ``max_completion_tokens``
        in the refusal. Raises what ``Client.post`` raises.
        """
        if not self._refuses_max_tokens:
            try:
                return self.client.post(path, body)
            except RefusedRequestError as error:
                if _NEW_LIMIT_FIELD not in str(error):
                    raise
        renamed = {name: value for name, value in body.items() if name != "max_tokens"}
        renamed[_NEW_LIMIT_FIELD] = body["max_tokens"]
        payload = self.client.post(path, renamed)
        self._refuses_max_tokens = True
        return payload

    @contextmanager
    def _keep_budget(self, body: dict[str, Any]) -> Iterator[Callable[[Sequence[Answer]], None]]:
        """Reserve a high estimate of a request's price during a block.

        Yields a function that adds the price of the request's answers to the spent sum. Raises
        RunError for a request beyond the budget. The function raises InputError for answers without
        a number of tokens, if there is a budget. ``body``: the fields of the request.
        """
        # Reserve the price of the prompt and of as many generated tokens as the request allows
        budget = self.server.budget
        prompt_bytes = len(json.dumps(body.get("messages") or body.get("prompt")).encode())
        most_tokens = body["max_tokens"] * body.get("n", 1)
        highest = self._compute_price(prompt_bytes / _BYTES_PER_TOKEN, most_tokens)
        with self._spent_lock:
            if budget is not None and self._spent + self._reserved + highest > budget:
                raise RunError(
                    f"server {self.server.base_url}",
                    f"the budget of {budget:g} is used up: {self._spent:.4f} spent, and the "
                    "requests in flight with the next one may cost "
                    f"{self._reserved + highest:.4f}",
                    hint="run the same command again with a larger --budget "
                    "(model.server.budget): what was answered is kept",
                )
            self._reserved += highest

        def add_cost(answers: Sequence[Answer]) -> None:
            first = answers[0]
            if budget is not None and None in (first.prompt_tokens, first.completion_tokens):
                raise InputError(
                    f"server {self.server.base_url}",
                    "counts no tokens in its answers, so that a budget cannot be kept",
                    hint="leave out --budget (model.server.budget)",
                )
            completion_tokens = sum(answer.completion_tokens or 0 for answer in answers)
            with self._spent_lock:
                self._spent += self._compute_price(first.prompt_tokens or 0, completion_tokens)

        # Release it after the request, whether it failed or not
        try:
            yield add_cost
        finally:
            with self._spent_lock:
                self._reserved -= highest

    def _compute_price(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the price of tokens in the currency of ``price_per_million``; 0 without prices."""
        prompt_price, completion_price = self.server.price_per_million or (0.0, 0.0)
        return (prompt_tokens * prompt_price + completion_tokens * completion_price) / 1e6

    def _make_completion(
        self, request: Request, answer: Answer, settings: DecodingParameters
    ) -> Completion:
        """Return the completion with the text of an answer, and its problem if any."""
        has_ended = answer.has_ended(settings.max_new_tokens)
        problem: str | None
        if answer.finish_reason == REFUSAL:
            text, problem = answer.text, ABOUT_THE_TASK
        elif self.server.structured_output:
            key = request.answer_key or SENTENCE_KEY
            text, problem = extract_structured_text(answer.text, key)
        elif continues_quotation(self.model, self.server):
            text = decode_escapes(answer.text, request.prompt)
            text, problem = extract_text(text, has_ended, settings.text_end)
        else:
            text = decode_escapes(answer.text, request.prompt)
            text, problem = extract_turn_text(request.prompt, text, has_ended)
        text, problem = bound_text(text, problem, request.prompt, settings.max_new_tokens)
        return Completion(text, problem, answer.log_prob, margin=None)

    def count_tokens(self, text: str) -> int:
        """Return how many tokens the model's tokenizer makes of ``text``.

        Raises what ``_tokenizer`` raises.
        """
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def is_control(self, text: str) -> bool:
        """Return whether ``text`` holds a control token that is common among models.

        The control tokens of the served model are unknown.
        """
        return _CONTROL_TOKEN.search(text) is not None

    def format_tokens(self, prompt: str) -> str:
        """Return an empty string: no server reports how it reads a prompt."""
        return ""

    count_prompt_tokens = count_tokens  # what the server adds to a prompt is not known

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer of ``model.path`` or ``model.repo_id``.

        Raises InputError if neither is set, and for a tokenizer on the Hub without
        ``model.revision``; also what ``load_model.load_tokenizer`` raises.
        """
        name = self.model.path or self.model.repo_id
        if name is None:
            raise InputError(
                "model",
                "a server does not count tokens, and no tokenizer is named",
                hint="give model.path or model.repo_id with the model's tokenizer",
            )
        if self.model.path is None and self.model.revision is None:
            raise InputError(
                "model.revision",
                "the tokenizer decides which texts are used",
                hint=f"pin that of {name}",
            )
        # imports torch, which only recipes with premise_tokens need
        from sts_dino.generation.backends.load_model import load_tokenizer

        return load_tokenizer(self.model)

    def describe(self) -> dict[str, Any]:
        """Return facts for the manifest: the served model, and options that change its texts."""
        return {
            "id": self.model.repo_id or self.server.model,
            "parameters": None,
            "backend": "openai",
            "served_model": self.server.model,
            **({"structured_output": True} if self.server.structured_output else {}),
            **({"contrast": True} if self.server.contrast else {}),
        }

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, cost and models of all stored answers, those of interrupted runs included.

        Keys: those of ``AnswerCache.sum_tokens``; ``cost``, in the currency of
        ``price_per_million``, None without prices; ``models``, see ``AnswerCache.count_models``.
        """
        totals: dict[str, Any] = dict(self._cache.sum_tokens())
        totals["cost"] = None
        if self.server.price_per_million:
            totals["cost"] = self._compute_price(
                totals["prompt_tokens"], totals["completion_tokens"]
            )
        totals["models"] = self._cache.count_models()
        return totals
