"""``backend: openai``: texts from any OpenAI-compatible server, several requests at a time, none paid for twice.

The ``openai`` client retries by itself: 408, 409, 429, 5xx, timeouts and dropped connections, after 0.5 to 8 seconds
(doubling, with jitter) or after the server's Retry-After up to 120 seconds. Failures are one line each.
"""

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cached_property, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any

import httpx2
import openai
from pydantic import ValidationError

from generation.backends.answers import bounded, turn_text
from generation.backends.dialects import Answer, AnswerCache, key_of, opens_quotation, read_answer, request_body
from generation.backends.protocol import Completion, Request, cut
from hub.contract.published_paths import UNTOLD
from hub.contract.recipe import DecodingParameters, LanguageModel, Server
from hub.environment import require_usable
from hub.errors import InputError, RunError, StsDinoError
from hub.untrusted import one_line

_KEY = "OPENAI_API_KEY"
_AGAIN = "run the same command again: what was answered is kept"
_SHOWN = 200  # characters of a server's own words in an error
_CONNECT_SECONDS = 10.0
_LONGEST_ANSWER = 16 * 2**20  # bytes; most have a few kilobytes


class _Limits(threading.local):
    """Of one answer, its headers, trailers and redirects included: a byte at a time satisfies the limit of a read."""

    last, left = 0.0, 0  # the clock's time of the end; bytes

    def begin(self, seconds: float) -> None:
        """Begin the answer of this thread."""
        self.last, self.left = time.monotonic() + seconds, _LONGEST_ANSWER

    def watch(self, event: str, info: dict[str, Any]) -> None:
        """The extension ``trace`` of httpx: what is read of a new connection counts."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info["return_value"]
            stream.read = partial(self._read, stream.read)

    def _read(self, read: Callable[[int, float], bytes], most: int, timeout: float) -> bytes:
        seconds = self.last - time.monotonic()
        if seconds <= 0:
            raise httpx2.ReadTimeout("the answer does not end")
        found = read(most, min(timeout, seconds))
        self.left -= len(found)
        if self.left < 0:
            raise httpx2.ReadError(f"the answer has more than {_LONGEST_ANSWER >> 20} MB")
        return found


class Client:
    """Sends requests to one server. The key is read from the environment and appears in no message."""

    def __init__(self, server: Server):
        self.server = server
        self._key = os.environ.get(_KEY, "")
        require_usable()
        self._client = openai.OpenAI(
            base_url=server.base_url,
            api_key=self._key or "none",  # servers of one's own often ask for none, the client always wants one
            timeout=openai.Timeout(server.timeout, connect=min(server.timeout, _CONNECT_SECONDS)),
            max_retries=server.max_retries,
            default_headers={"Accept-Encoding": "identity"},  # else a small body may unpack to gigabytes
            http_client=openai.DefaultHttpxClient(
                event_hooks={"request": [self._begin], "response": [self._guard]},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one that is not ASCII stops all requests
            ),
        )
        self._limits = _Limits()

    def post(self, path: str, body: dict[str, object]) -> object:
        """The server's JSON. Raises what ``_answer`` raises."""
        return self._answer(lambda: self._client.post(path, cast_to=object, body=body), body)

    def owners(self) -> set[str]:
        """The owners that the server reports for its models; none in another form. Raises what ``_answer`` raises."""
        payload = self._answer(lambda: self._client.get("/models", cast_to=object), {})
        listed = payload.get("data") if isinstance(payload, dict) else None
        models = listed if isinstance(listed, list) else []
        return {str(one.get("owned_by")) for one in models if isinstance(one, dict)}

    def _begin(self, request: httpx2.Request) -> None:
        if "trace" not in request.extensions:  # a redirect has those of its request
            self._limits.begin(self.server.timeout)
            request.extensions["trace"] = self._limits.watch

    def _guard(self, response: httpx2.Response) -> None:
        """Follow no redirect to another host or port, unpack nothing, and read UTF-8 alone."""
        response.headers.pop("content-encoding", None)
        response.encoding = "utf-8"
        there = response.url.join(response.headers.get("location", ""))
        if (there.scheme, there.netloc) != (response.url.scheme, response.url.netloc):
            response.headers["elsewhere"] = response.headers.pop("location")

    def _answer(self, send: Callable[[], object], body: Iterable[str]) -> object:
        """What a request is answered with, as JSON. ``body``: the names of its fields.

        Raises InputError when the server refuses the key or the request, RunError when it fails after all retries.
        """
        try:
            payload = send()
        except openai.APIStatusError as error:
            failure = self._refused(error, body)
        except openai.APITimeoutError:
            seconds = f"no answer within {self.server.timeout:g} s"
            failure = self._failed(seconds, f"{_AGAIN}; if it is only slow, raise model.server.timeout")
        except openai.APIConnectionError as error:
            problem = f"cannot be reached or read ({self._shown(str(error.__cause__))})"
            failure = self._failed(problem, f"check that it runs at that address, then {_AGAIN}")
        except (ValueError, RecursionError, httpx2.InvalidURL):  # nested too deeply; a redirect to no address
            failure = self._failed("its answer is not JSON", "check that model.server.base_url is the API's address")
        else:
            if isinstance(payload, str):  # the client hands on what was not sent as JSON
                failure = self._failed(f"its answer is not JSON: {self._shown(payload)}", "check model.server.base_url")
            else:
                return payload
        raise failure  # outside of the except block: its context would carry the server's words, and they the key

    def malformed(self, error: ValidationError) -> RunError:
        """The error for JSON of another form."""
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"
        form = f"its answer has another form than OpenAI's: {self._shown(problem)}"
        return self._failed(form, "check what it serves")

    def check_secret(self, text: str) -> None:
        """Raise RunError when a text from the server holds the key: the text must go nowhere."""
        if self._key and self._key in text:
            raise self._failed("its answer holds the API key", "change the key")

    def _refused(self, error: openai.APIStatusError, body: Iterable[str]) -> StsDinoError:
        place, status = f"server {self.server.base_url}", error.status_code
        if status in (401, 403):  # its words may hold the key or a part of it
            given = "the key in" if self._key else "a request without a key; set"
            return InputError(place, f"refuses (HTTP {status}) {given} {_KEY}", hint="give a key that it accepts")
        if there := error.response.headers.get("elsewhere"):
            hint = "give that address as model.server.base_url if you trust it"
            return InputError(place, f"sends the request on to {self._shown(there)} (HTTP {status})", hint=hint)
        shown = f"HTTP {status}: {self._shown(error.response.text)}"
        if status == 404:
            return InputError(place, shown, hint="check base_url (it mostly ends in /v1) and model in model.server")
        if status in (408, 409, 429) or status >= 500:
            later = error.response.headers.get("retry-after")
            return self._failed(shown, f"{f'after {self._shown(later)} s ' if later else ''}{_AGAIN}")
        hint = f"fields sent: {', '.join(body)}; check model.server (decoding.top_k=0 leaves top_k out)"
        if "context" in error.response.text.lower():  # the word of OpenAI, vLLM and llama.cpp for a prompt too long
            hint = "serve the model with a longer context, or shorten the prompts (source, few_shot)"
        return InputError(place, f"refuses the request, {shown}", hint=hint)

    def _failed(self, problem: str, hint: str) -> RunError:
        return RunError(f"server {self.server.base_url}", problem, hint=hint)

    def _shown(self, words: str) -> str:
        """A server's words, fit for one line of a terminal: short, printable, without the key."""
        return one_line(words.replace(self._key, "[key]") if self._key else words, _SHOWN)


_CONTROL = re.compile(r"<\|[^\s<>|]{1,40}\|>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")


class OpenAIServer:
    """A language model behind a server, as a ``generation.backends.protocol.Writer``."""

    context = 0  # not known: a prompt that is too long is refused by the server

    def __init__(self, model: LanguageModel, directory: Path | None = None):
        """The writer of a recipe's section ``model``; its answers are kept beside the run ``directory``.

        No request is sent yet. Raises InputError for a published recipe, which does not name the server's address.
        """
        assert model.server is not None, "hub.contract.recipe checks this"
        self.model, self.server = model, model.server
        if self.server.base_url == UNTOLD:
            hint = f"serve {self.server.model}, and say where: --set model.server.base_url=URL"
            raise InputError("model.server.base_url", "is not published", hint=hint)
        path = directory.with_name(f"{directory.name}.answers.sqlite") if directory else None
        self.client, self._journal = Client(self.server), AnswerCache(path)

    def stream(
        self, queue: deque[Request], settings: DecodingParameters, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        """See ``generation.backends.protocol.Writer.stream``. ``server.concurrency`` requests are under way at a time.

        When a request fails for good, no other is begun; those under way are waited for, and their answers kept.
        """
        pool = ThreadPoolExecutor(self.server.concurrency, thread_name_prefix="openai")
        under_way: dict[Future[Answer], Request] = {}
        try:
            while queue or under_way:
                while queue and len(under_way) < self.server.concurrency:
                    request = queue.popleft()
                    under_way[pool.submit(self._answer, request, settings)] = request
                done, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in done:
                    request = under_way.pop(future)
                    yield request, self._completion(request, future.result(), settings)
        finally:
            pool.shutdown(cancel_futures=True)

    def ahead(self, settings: DecodingParameters, batch_size: int | None) -> int:
        """As many as are under way at a time."""
        return self.server.concurrency

    def _answer(self, request: Request, settings: DecodingParameters) -> Answer:
        path = "/chat/completions" if self.model.chat_template else "/completions"
        body = request_body(self.model, self.server, request, settings)
        key = key_of(self.server.base_url, path, body, request.seed)
        answer = self._journal.find(key)
        if answer is None:
            payload = self.client.post(path, body)
            try:
                answer = read_answer(payload, self.model, self.server, settings)
            except ValidationError as error:
                raise self.client.malformed(error) from None
            self.client.check_secret(f"{answer.text} {answer.finish_reason}")
            self._journal.add(key, answer)
        return answer

    def _completion(self, request: Request, answer: Answer, settings: DecodingParameters) -> Completion:
        stopped = answer.finish_reason == "stop"
        if opens_quotation(self.model, self.server):
            text, problem = cut(answer.text, stopped, settings.text_end)
        else:
            text, problem = turn_text(request.prompt, answer.text, stopped)
        return Completion(*bounded(text, problem, settings.max_new_tokens), answer.log_prob, None)

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``; it is read from ``path`` or ``repo_id``."""
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def is_control(self, text: str) -> bool:
        """Whether ``text`` holds a usual control token: which ones the served model has is not known."""
        return _CONTROL.search(text) is not None

    def shown_tokens(self, prompt: str) -> str:
        """Nothing: no server tells how it reads a prompt."""
        return ""

    prompt_tokens = count_tokens  # what the server adds to a prompt is not known

    @cached_property
    def _tokenizer(self) -> Any:
        name = self.model.path or self.model.repo_id
        if name is None:
            problem = "a server does not count tokens, and no tokenizer is named"
            raise InputError("model", problem, hint="give model.path or model.repo_id with the model's tokenizer")
        if self.model.path is None and self.model.revision is None:
            raise InputError("model.revision", "the tokenizer decides which texts are used", hint=f"pin that of {name}")
        from generation.backends.load_model import load_tokenizer  # torch: not without premise_tokens

        return load_tokenizer(self.model)

    def describe(self) -> dict[str, Any]:
        """Facts for the manifest."""
        return {
            "id": self.model.repo_id or self.server.model,
            "parameters": None,
            "backend": "openai",
            "served_model": self.server.model,
        }

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens and cost of all kept answers, those of interrupted runs included; cost None without prices."""
        totals = self._journal.totals()
        prices = self.server.price_per_million
        used = totals["prompt_tokens"], totals["completion_tokens"]
        return {**totals, "cost": (used[0] * prices[0] + used[1] * prices[1]) / 1e6 if prices else None}
