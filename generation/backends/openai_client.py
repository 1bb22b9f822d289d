"""One request to an OpenAI-compatible server: sent with the ``openai`` client, its failures told in one line.

The client retries by itself: 408, 409, 429, 5xx, timeouts and dropped connections, after 0.5 to 8 seconds (doubling,
with jitter) or after the server's Retry-After up to 120 seconds.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import openai

from hub.contract.recipe import Server
from hub.errors import InputError, RunError, StsDinoError

_KEY = "OPENAI_API_KEY"
_AGAIN = "run the same command again: what was answered is kept"
_SHOWN = 200  # characters of a server's own words in an error
_CONNECT_SECONDS = 10.0


class Client:
    """Sends requests to one server. The key is read from the environment and appears in no message."""

    def __init__(self, server: Server):
        self.server = server
        self._key = os.environ.get(_KEY, "")
        self._client = openai.OpenAI(
            base_url=server.base_url,
            api_key=self._key or "none",  # servers of one's own often ask for none, the client always wants one
            timeout=openai.Timeout(server.timeout, connect=min(server.timeout, _CONNECT_SECONDS)),
            max_retries=server.max_retries,
        )

    def post(self, path: str, body: dict[str, object]) -> object:
        """The server's JSON. Raises what ``_answer`` raises."""
        return self._answer(lambda: self._client.post(path, cast_to=object, body=body), body)

    def models(self) -> list[dict[str, Any]]:
        """What the server says of the models that it serves, in OpenAI's form. Raises what ``_answer`` raises."""
        payload = self._answer(lambda: self._client.get("/models", cast_to=object), {})
        listed = payload.get("data") if isinstance(payload, dict) else None
        return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []

    def _answer(self, send: Callable[[], object], body: Iterable[str]) -> object:
        """What a request is answered with, as JSON. ``body``: the names of its fields.

        Raises:
            InputError: the server refuses the key or the request.
            RunError: it cannot be reached, gives no answer in time, or fails, after all retries; or no JSON comes.
        """
        try:
            payload = send()
        except openai.APIStatusError as error:
            failure = self._refused(error, body)
        except openai.APITimeoutError:
            seconds = f"no answer within {self.server.timeout:g} s"
            failure = self._failed(seconds, f"{_AGAIN}; if it is only slow, raise model.server.timeout")
        except openai.APIConnectionError as error:
            failure = self._failed(
                f"cannot be reached ({self._shown(str(error.__cause__))})", f"start it, then {_AGAIN}"
            )
        except ValueError:
            failure = self._failed("its answer is not JSON", "check that model.server.base_url is the API's address")
        else:
            if isinstance(payload, str):  # the client hands on what was not sent as JSON
                failure = self._failed(f"its answer is not JSON: {self._shown(payload)}", "check model.server.base_url")
            else:
                return payload
        raise failure  # outside of the except block: its context would carry the server's words, and they the key

    def mentions_key(self, text: str) -> bool:
        """Whether the key stands in a text from the server, which must then go nowhere."""
        return bool(self._key) and self._key in text

    def malformed(self, problem: str) -> RunError:
        """The error for JSON of another form."""
        return self._failed(
            f"its answer has another form than OpenAI's: {self._shown(problem)}", "check what it serves"
        )

    def _refused(self, error: openai.APIStatusError, body: Iterable[str]) -> StsDinoError:
        place, status = f"server {self.server.base_url}", error.status_code
        if status in (401, 403):  # its words may hold the key or a part of it
            given = "the key in" if self._key else "a request without a key; set"
            return InputError(place, f"refuses (HTTP {status}) {given} {_KEY}", hint="give a key that it accepts")
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
        clean = words.replace(self._key, "[key]") if self._key else words
        line = " ".join("".join(char if char.isprintable() else " " for char in clean).split())
        return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."
