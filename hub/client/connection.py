"""HTTP client for a Hub: time limits, checked answers, and its failures as the project's errors, never with a token.

A proxy, a login page or worse may answer in place of a Hub. The client library trusts every answer, so its errors over
a wrong one are of any kind: ``is_wrong`` knows them by where they were raised. ``httpx2`` and the library keep a token
from following a redirect to another host.
"""

import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    CorruptedCacheException,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from pydantic import BaseModel, Field, ValidationError

from hub.environment import require_usable
from hub.errors import InputError, RunError, StsDinoError
from hub.untrusted import first_line, one_line, printable

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT = httpx2.Timeout(60, read=300)  # the client's own default waits for ever
LEAST_RATE = 100  # bytes a second, from ``TIMEOUT.read`` seconds on: slower is not an answer
LONGEST_ASKED = 86_400  # seconds; a server that asks for more asks for nonsense
_CLIENT = ("huggingface_hub", "httpx2", "httpcore2", "h11", "hf_xet")
_CHECKS = "huggingface_hub.dataclasses"  # of a model's config, wherever that lies
_TRIPS = (ArithmeticError, AttributeError, AssertionError, LookupError, RecursionError, TypeError, ValueError)
Heard = Callable[[httpx2.Response], None]


class WrongAnswer(httpx2.RequestError):
    """An answer that no Hub gives."""


_ours = list[Callable[[], httpx2.Client]]()  # what makes the clients of this process, once it is set


def use(*heard: Heard) -> None:
    """Make the client library of this process use our client; ``heard`` is called with the head of every answer."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def client() -> httpx2.Client:
        require_usable(of_hub=True)
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


def is_wrong(error: BaseException) -> bool:
    """Whether the answer is not a Hub's: the client tripped over the answer, or was led in circles or elsewhere."""
    if isinstance(error, HFValidationError):
        return False
    if isinstance(error, (WrongAnswer, httpx2.TooManyRedirects, httpx2.UnsupportedProtocol, httpx2.DecodingError)):
        return True
    if isinstance(error, (FileMetadataError, CorruptedCacheException, httpx2.InvalidURL)):
        return True
    unnamed = type(error) is OSError and error.errno is None  # a download of another length than was announced
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    in_client = any(module.partition(".")[0] in _CLIENT and module != _CHECKS for module in modules)
    return in_client and (unnamed or isinstance(error, _TRIPS))


def fit_to_print(record: logging.LogRecord) -> bool:
    """Clean the client's log: of what a server says, and of the query of addresses (signed, and good for hours)."""
    said = re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1", record.getMessage())
    record.msg, record.args = printable(said), ()
    return True


def reason(error: BaseException) -> str:
    """Return in a few words what went wrong between a Hub and this machine, with the Hub's own words if it has any."""
    if isinstance(error, HfHubHTTPError):
        said = getattr(error, "server_message", None) or error.response.headers.get("x-error-message")
        return f"the Hub answered {error.response.status_code}: {one_line(said or error.response.reason_phrase)}"
    if is_wrong(error):
        found = one_line(str(error)) if isinstance(error, WrongAnswer) else type(error).__name__
        return f"the answer is not a Hub's ({found})"
    return f"the Hub cannot be reached ({type(error).__name__})"


_ADVICE = {
    401: "the token is unknown, or the repository is private or absent: run `hf auth login` or set HF_TOKEN",
    403: "the token may not do this: use a token with write access to the organisation",
    404: "check the repository id and the revision",
    409: "it exists already in another state: run the same command again, it will plan anew",
    412: "somebody else committed meanwhile: run the same command again, it will plan anew",
    413: "too large for this Hub: a file, a commit, or what the storage quota has left; its message says which",
    422: "the Hub refuses this content: see its message",
    429: "too many requests: wait and run the same command again, nothing is lost",
    507: "the Hub's disk is full: free some space there and run the same command again",
}


@contextmanager
def hub_errors(what: str, known_as: Callable[[Exception], StsDinoError | None] = lambda error: None) -> Iterator[None]:
    """Turn client exceptions into RunError (InputError for a malformed name), unless ``known_as`` knows another error.

    what: e.g. "publish org/name".
    """
    if not _ours:
        use()
    try:
        yield
    except StsDinoError:
        raise
    except Exception as error:
        known = known_as(error) or in_words(what, error)
        if known is None:
            raise
        raise known from None  # the cause holds request headers


def reading(what: str, revision: str | None) -> AbstractContextManager[None]:
    """Turn the Hub's failures while reading ``what`` into InputError (wrong name) or RunError (no access, no Hub)."""
    return hub_errors(f"read {what}", lambda error: _of_reading(f"{what} at {constants.ENDPOINT}", revision, error))


def _of_reading(place: str, revision: str | None, error: Exception) -> StsDinoError | None:
    """The project's error for what a download, or ``datasets``, says of a repository; None of anything else."""
    if isinstance(error, GatedRepoError):
        return RunError(place, "is gated", hint="ask for access on its page, then set HF_TOKEN")
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if status == 403:
        return RunError(place, f"is forbidden: {reason(error)}", hint="use a token with read access to it")
    if isinstance(error, RepositoryNotFoundError):  # without a token, the Hub says 401 of an absent one, too
        hint = "a private one needs a token with access to it: run `hf auth login` or set HF_TOKEN"
        if status == 401:
            problem = "no such repository, or a private one: without a valid token the Hub does not say which"
            return InputError(place, problem, hint=hint)
        return InputError(place, "no such repository, or no access to it", hint=hint)
    if isinstance(error, RevisionNotFoundError):
        return InputError(place, f"has no revision {revision!r}", hint="give a tag, branch or commit that is there")
    library: Any = sys.modules.get("datasets.exceptions")  # its errors can only be raised once it is imported
    if library and isinstance(error, library.DataFilesNotFoundError):
        hint = "does its card name files that are there? Publish them, or give another revision"
        return InputError(place, "has no data files that can be read", hint=hint)
    unanswered = isinstance(error, LocalEntryNotFoundError | ConnectionError)
    unanswered = unanswered or (library and isinstance(error, library.FileNotFoundDatasetsError))
    if unanswered and constants.HF_HUB_OFFLINE:
        hint = "run once without it, or give the revision that was downloaded"
        return RunError(place, "is not downloaded, and HF_HUB_OFFLINE is set", hint=hint)
    if unanswered or (isinstance(error, FileNotFoundError) and error.errno is None):  # datasets, of a silent Hub
        return RunError(place, "stopped answering", hint="run the same command again later")
    return None


def in_words(what: str, error: Exception) -> StsDinoError | None:
    """The project's error for a failure of a Hub or of the way there; None when ``error`` is something else."""
    if isinstance(error, StsDinoError):
        return error
    if isinstance(error, HFValidationError):
        return InputError(what, first_line(error))
    place, error = f"{what} at {constants.ENDPOINT}", lost_connection(error) or error
    if isinstance(error, OfflineModeIsEnabled):
        return RunError(place, "HF_HUB_OFFLINE is set", hint="unset it to reach the Hub")
    if isinstance(error, LocalTokenNotFoundError):
        return RunError(place, "no token", hint="run `hf auth login` or set HF_TOKEN")
    if isinstance(error, HfHubHTTPError):
        hint = _ADVICE.get(error.response.status_code, "run the same command again later: nothing is lost")
    elif is_wrong(error):
        hint = "is HF_ENDPOINT right, or does a proxy or a login page answer in its place? Nothing is lost"
    elif isinstance(error, httpx2.HTTPError | ConnectionError):
        hint = "is it running, and is HF_ENDPOINT right? Run the same command again later: nothing is lost"
    else:
        return None
    return RunError(place, reason(error), hint=hint)


def lost_connection(error: BaseException) -> Exception | None:
    """The failed connection that transformers' plain OSError was raised from, or None."""
    behind: BaseException | None = error if type(error) is OSError and error.errno is None else None
    while behind is not None and not isinstance(behind, httpx2.TransportError | ConnectionError):
        behind = behind.__cause__
    return behind


class Account(BaseModel):
    """The token's user and organisations; an organisation has a name alone."""

    name: str = Field(min_length=1)
    orgs: tuple["Account", ...] = ()
    auth: dict[str, Any] = {}

    @property
    def role(self) -> str | None:
        """What the token may do ("read", "write", ...); None when the Hub does not say."""
        token = self.auth.get("accessToken")
        return token.get("role") if isinstance(token, dict) else None

    @property
    def names(self) -> list[str]:
        """Where its token may publish: the user first, then the organisations."""
        return [self.name, *(item.name for item in self.orgs)]


def account(api: "HfApi") -> Account:
    """Ask the Hub. Raises WrongAnswer when what it says is not an account."""
    try:
        return Account.model_validate(api.whoami())
    except ValidationError as error:
        raise WrongAnswer(f"an account without {'.'.join(map(str, error.errors()[0]['loc'])) or 'fields'}") from None
