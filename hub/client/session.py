"""The HTTP client that this process speaks to a Hub with: its limits in time, and how its failures are known.

What answers in the place of a Hub may be a proxy, a login page or worse. The client library trusts every answer, so its
own errors over a wrong one are of any kind: ``is_wrong`` knows them by where they were raised. That a token does not
follow a redirect to another host is the work of ``httpx2`` and of the library.
"""

import logging
import re
import time
import traceback
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from huggingface_hub.errors import (
    CorruptedCacheException,
    FileMetadataError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
)

from hub.printable import one_line, printable

TIMEOUT = httpx2.Timeout(60, read=300)  # the client's own default waits for ever
LEAST_RATE = 100  # bytes a second, from ``TIMEOUT.read`` seconds on: slower is no answer
LONGEST_ASKED = 86_400  # seconds; a server that asks for more asks for nonsense
_CLIENT = ("huggingface_hub", "httpx2", "httpcore2", "h11", "hf_xet")
_CHECKS = "huggingface_hub.dataclasses"  # of a model's config, wherever that lies
_TRIPS = (ArithmeticError, AttributeError, AssertionError, LookupError, RecursionError, TypeError, ValueError)
Heard = Callable[[httpx2.Response], None]


class WrongAnswer(httpx2.RequestError):
    """An answer that no Hub gives."""


_ours = list[Callable[[], httpx2.Client]]()  # what makes the clients of this process, once it is set


def ensure() -> None:
    """Make the client library of this process use our client, unless it does."""
    if not _ours:
        use()


def use(*heard: Heard) -> None:
    """Make the client library of this process use our client; ``heard`` is called with the head of every answer."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def client() -> httpx2.Client:
        made = default_client_factory()
        made.timeout = TIMEOUT
        hooks = made.event_hooks
        made.event_hooks = {**hooks, "response": [*hooks["response"], *heard, _checked]}
        return made

    _ours[:] = [client]
    set_client_factory(client)
    library = logging.getLogger("huggingface_hub")
    for place in (logging.getLogger("huggingface_hub.utils._http"), *library.handlers):
        place.addFilter(fit_to_print)


def _checked(response: httpx2.Response) -> None:
    """Refuse what leads an API request to somebody else, and look after the time that an answer takes."""
    seconds = asked_seconds(response.headers)
    response.headers.pop("retry-after", None)
    if seconds is not None:
        response.headers["retry-after"] = str(seconds)
    request, goes_on = response.request, response.headers.get("location") if response.is_redirect else None
    if goes_on and ("/api/" in request.url.path or not isinstance(request.stream, httpx2.ByteStream)):
        there = request.url.join(goes_on)
        if there.host != request.url.host or request.method == "PUT":  # an upload's body is gone by now
            raise WrongAnswer(f"the request is sent on to {there.host}", request=request)
    if isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _Flowing(response.stream)


class _Flowing(httpx2.SyncByteStream):
    """A body that must keep coming: a drip of bytes satisfies every limit on a single read."""

    def __init__(self, stream: httpx2.SyncByteStream):
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        started, came = time.monotonic(), 0
        for chunk in self._stream:
            yield chunk
            came += len(chunk)
            late = time.monotonic() - started - (TIMEOUT.read or 0)
            if late > 0 and came < LEAST_RATE * late:
                raise httpx2.ReadTimeout(f"{came} bytes in {time.monotonic() - started:.0f} seconds")

    def close(self) -> None:
        """Let the connection go."""
        self._stream.close()


def asked_seconds(headers: httpx2.Headers) -> int | None:
    """The seconds of a ``Retry-After``, which is a number or a date (RFC 9110, 10.2.3); None when it is neither."""
    asked = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", asked):
        seconds = int(asked)
    else:
        try:
            seconds = round(parsedate_to_datetime(asked).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None
    return seconds if 0 <= seconds <= LONGEST_ASKED else None


def is_failure(error: BaseException) -> bool:
    """Whether an error of a step that speaks to a Hub is the Hub's, or that of the way there."""
    known = (HfHubHTTPError, httpx2.HTTPError, ConnectionError, OfflineModeIsEnabled)
    return isinstance(error, known) or is_wrong(error)


def is_wrong(error: BaseException) -> bool:
    """Whether what answered is no Hub: the client tripped over the answer, or was led in circles or elsewhere."""
    if isinstance(error, HFValidationError):
        return False
    if isinstance(error, (WrongAnswer, httpx2.TooManyRedirects, httpx2.UnsupportedProtocol, httpx2.DecodingError)):
        return True
    if isinstance(error, (FileMetadataError, CorruptedCacheException, httpx2.InvalidURL)):
        return True
    unnamed = type(error) is OSError and error.errno is None  # a download of another length than was announced
    return (unnamed or isinstance(error, _TRIPS)) and _raised_in_client(error)


def what_is_wrong(error: BaseException) -> str:
    """A few words for people."""
    return one_line(str(error)) if isinstance(error, WrongAnswer) else type(error).__name__


def _raised_in_client(error: BaseException) -> bool:
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(module.partition(".")[0] in _CLIENT and module != _CHECKS for module in modules)


def fit_to_print(record: logging.LogRecord) -> bool:
    """Clean the client's log: of what a server says, and of the query of addresses (signed, and good for hours)."""
    said = re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1", record.getMessage())
    record.msg, record.args = printable(said), ()
    return True


def message_of(error: HfHubHTTPError) -> str | None:
    """What a Hub says for a refusal, as it said it; None when it says nothing but the status."""
    said: Any = getattr(error, "server_message", None) or error.response.headers.get("x-error-message")
    return str(said) if said else None
