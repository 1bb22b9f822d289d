"""HTTP client for a Hub: time limits, checked answers, failures as the project's errors.

No message holds a token. ``httpx2`` and the client library send no token along a redirect to
another host.

A proxy or a login page may answer in place of a Hub. The client library trusts every answer, so a
wrong answer can raise any exception in the library: ``is_wrong_answer`` looks for the library's
modules in the traceback.
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

from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.hub.process import require_usable
from sts_dino.hub.untrusted import get_first_line, join_lines, strip_controls

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CLIENT_TIMEOUT = httpx2.Timeout(60, read=300)  # seconds; the library's default waits for ever
LEAST_BYTES_PER_SECOND = 100  # of an answer that takes longer than ``CLIENT_TIMEOUT.read``
LONGEST_REQUESTED_WAIT_SECONDS = 86_400  # a longer ``Retry-After`` is ignored
MOST_ANSWER_BYTES = 128 << 20  # of an answer; a download has no limit
_CLIENT_PACKAGES = ("huggingface_hub", "httpx2", "httpcore2", "h11", "hf_xet")
# This module checks a model's config, which may be a local file: no answer is involved.
_CONFIG_CHECKS_MODULE = "huggingface_hub.dataclasses"
# The library raises these over an answer of an unexpected form.
_FORM_ERRORS = (
    ArithmeticError,
    AttributeError,
    AssertionError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_NO_HUB_HINT = (
    "is HF_ENDPOINT right, or does a proxy or a login page answer in its place? Nothing is lost"
)
# HTTP status of a Hub's answer → hint of the error message
_ADVICE = {
    400: "the Hub refuses this request: see its message",
    401: "the token is unknown, or the repository is private or absent: "
    "run `hf auth login` or set HF_TOKEN",
    403: "its message says why; a token needs write access to publish (`hf auth whoami`)",
    404: "check the repository id and the revision",
    407: "the proxy asks for a password: put it into HTTP_PROXY or HTTPS_PROXY, "
    "as http://USER:PASSWORD@HOST:PORT",
    409: "something on the Hub is in the way: run the same command again, it will plan anew; "
    "if it is refused again, rename or remove what the message names",
    412: "somebody else committed meanwhile: run the same command again, it will plan anew",
    413: "too large for this Hub: a file, a commit, or what the storage quota has left; "
    "its message says which",
    422: "the Hub refuses this content: see its message",
    429: "too many requests: wait and run the same command again, nothing is lost",
    507: "the Hub cannot store this; its message says why: mend that there "
    "and run the same command again",
}
_STORAGE_HINT = (
    "the storage of this account is used up: make room there, or publish to another account"
)
_AGAIN = "run the same command again later: nothing is lost"
# Errors of a connection, the problem that each one shows, and the hint of its message
_CONNECTION_PROBLEMS: tuple[tuple[Any, str, str], ...] = (
    (
        httpx2.ProxyError,
        "the proxy refused the connection",
        "are HTTP_PROXY, HTTPS_PROXY and ALL_PROXY right? Nothing is lost",
    ),
    (httpx2.ReadTimeout, "the Hub did not answer in time", _AGAIN),
    (httpx2.WriteTimeout, "the Hub stopped receiving", _AGAIN),
    (
        (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError, ConnectionResetError),
        "the connection to the Hub broke off",
        _AGAIN,
    ),
    (
        (httpx2.ConnectError, httpx2.ConnectTimeout, ConnectionRefusedError),
        "the Hub cannot be reached",
        "is it running, and is HF_ENDPOINT right? "
        "Run the same command again later: nothing is lost",
    ),
    ((httpx2.HTTPError, ConnectionError), "the Hub cannot be reached", _AGAIN),
)
_CERTIFICATE_PROBLEM = (
    "the certificate of the Hub, or of a proxy, cannot be verified",
    "set SSL_CERT_FILE to a file with the certificate of its authority, "
    "and check this machine's clock. Nothing is lost",
)
Listener = Callable[[httpx2.Response], None]
_is_installed = False


class WrongAnswer(httpx2.RequestError):
    """An HTTP answer that a Hub never sends, such as a branch without a commit."""


def install_client(*listeners: Listener) -> None:
    """Make huggingface_hub use an HTTP client with this module's limits, in this process.

    The log records of huggingface_hub are cleaned, too (``clean_log_record``). The library creates
    the client at its first request, which raises InputError for a bad environment variable.

    Args:
        listeners: functions that are called with every answer, before its body is read.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def create_client() -> httpx2.Client:
        require_usable(of_hub=True)
        client = default_client_factory()
        client.timeout = CLIENT_TIMEOUT
        # A small compressed answer could unpack to gigabytes.
        client.headers["accept-encoding"] = "identity"
        hooks = client.event_hooks
        response_hooks = [*hooks["response"], *listeners, _check_response]
        client.event_hooks = {**hooks, "response": response_hooks}
        return client

    global _is_installed
    _is_installed = True
    set_client_factory(create_client)
    logging.getLogger("huggingface_hub.utils._http").addFilter(clean_log_record)
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.addFilter(clean_log_record)


def _check_response(response: httpx2.Response) -> None:
    """Check the head of an answer, and limit the time and the length of its body.

    A download, here any request outside ``/api/`` without a streamed body, may have any length.
    ``Retry-After`` is replaced by its value in seconds, or removed.

    Raises:
        WrongAnswer: a request that is no download is redirected to another host, or is a PUT and is
            redirected at all; or the body is compressed, which no request allows.
    """
    # Replace the header by its checked value in seconds.
    seconds = parse_retry_after(response.headers)
    response.headers.pop("retry-after", None)
    if seconds is not None:
        response.headers["retry-after"] = str(seconds)

    # Requests to the API, and those whose body is a stream, may not leave the host.
    request = response.request
    location = response.headers.get("location")
    is_download = "/api/" not in request.url.path and isinstance(request.stream, httpx2.ByteStream)
    if response.is_redirect and location and not is_download:
        target = request.url.join(location)
        # The body of an upload was sent already.
        if target.host != request.url.host or request.method == "PUT":
            raise WrongAnswer(f"the request is sent on to {target.host}", request=request)

    encoding = response.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise WrongAnswer(f"an answer with the encoding {encoding[:20]}", request=request)
    if isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _Body(response.stream, is_bounded=not is_download)


class _Body(httpx2.SyncByteStream):
    """The body of an answer, with limits.

    A limit on the time of a single read does not stop a body of one byte a minute, so the whole
    body has a least speed.

    Args:
        stream: the body as it arrives.
        is_bounded: whether a body of more than ``MOST_ANSWER_BYTES`` is refused.
    """

    def __init__(self, stream: httpx2.SyncByteStream, is_bounded: bool):
        self._stream = stream
        self._is_bounded = is_bounded

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes as they arrive.

        The first ``CLIENT_TIMEOUT.read`` seconds are free. Raises ReadTimeout when the body has
        brought fewer than ``LEAST_BYTES_PER_SECOND`` for each later second. Raises WrongAnswer when
        a bounded body has more than ``MOST_ANSWER_BYTES``.
        """
        started = time.monotonic()
        received = 0
        for chunk in self._stream:
            received += len(chunk)
            if self._is_bounded and received > MOST_ANSWER_BYTES:
                raise WrongAnswer(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
            yield chunk
            seconds = time.monotonic() - started
            seconds_late = seconds - (CLIENT_TIMEOUT.read or 0)
            if seconds_late > 0 and received < LEAST_BYTES_PER_SECOND * seconds_late:
                raise httpx2.ReadTimeout(f"{received} bytes in {seconds:.0f} seconds")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


def parse_retry_after(headers: httpx2.Headers) -> int | None:
    """Return the ``Retry-After`` header in seconds from now (RFC 9110, 10.2.3).

    The header holds seconds or a date. Return None for a missing header, other text, a date in the
    past, and more than ``LONGEST_REQUESTED_WAIT_SECONDS``.
    """
    value = headers.get("retry-after", "").strip()
    try:
        if re.fullmatch(r"[0-9]{1,9}", value):
            seconds = int(value)
        else:
            seconds = round(parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
    if not 0 <= seconds <= LONGEST_REQUESTED_WAIT_SECONDS:
        return None
    return seconds


def is_wrong_answer(error: BaseException) -> bool:
    """Return whether an error of the client library shows that the answer came from no Hub.

    This is so for WrongAnswer, redirects in circles or to malformed addresses, undecodable
    bodies, answers without a file's metadata, downloads of another length than announced, and
    ``_FORM_ERRORS`` that pass through the library.
    """
    if isinstance(error, HFValidationError):  # a malformed repository id of the user
        return False
    if isinstance(
        error,
        (
            WrongAnswer,
            httpx2.TooManyRedirects,
            httpx2.UnsupportedProtocol,
            httpx2.DecodingError,
            httpx2.InvalidURL,
            FileMetadataError,
            CorruptedCacheException,
        ),
    ):
        return True
    # An OSError without a number is a download of another length than announced.
    is_plain_os_error = type(error) is OSError and error.errno is None
    if not (is_plain_os_error or isinstance(error, _FORM_ERRORS)):
        return False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        is_of_client = module.partition(".")[0] in _CLIENT_PACKAGES
        if is_of_client and module != _CONFIG_CHECKS_MODULE:
            return True
    return False


def clean_log_record(record: logging.LogRecord) -> bool:
    """Remove control characters and queries of URLs from a record of the client library's log.

    A query may hold a signature that gives access for hours. Returns True: as a logging filter the
    function drops no record.
    """
    message = re.sub(r"(https?://[^\s'\"?]+)\?[^\s'\"]+", r"\1", record.getMessage())
    record.msg = strip_controls(message)
    record.args = ()
    return True


def describe_failure(error: BaseException) -> str:
    """Return a phrase for a failed request: the Hub's status and message, or the kind of failure.

    The phrase is one line without control characters. An exception of no known kind is described
    as a Hub that cannot be reached.
    """
    if isinstance(error, HfHubHTTPError):
        response = error.response
        message = getattr(error, "server_message", None) or response.headers.get("x-error-message")
        message = join_lines(message or response.reason_phrase)
        return f"the Hub answered {response.status_code}: {message}"
    if isinstance(error, WrongAnswer):
        return f"the answer is not a Hub's ({join_lines(str(error))})"
    if is_wrong_answer(error):
        return f"the answer is not a Hub's ({type(error).__name__})"
    problem, _ = _find_connection_problem(error) or ("the Hub cannot be reached", "")
    return f"{problem} ({type(error).__name__})"


def _find_connection_problem(error: BaseException) -> tuple[str, str] | None:
    """Return the problem and the hint for a lost connection; None for other exceptions."""
    if isinstance(error, httpx2.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return _CERTIFICATE_PROBLEM
    for error_types, problem, hint in _CONNECTION_PROBLEMS:
        if isinstance(error, error_types):
            return problem, hint
    return None


def _find_hint(error: Exception) -> str | None:
    """Return the hint for the error message about a failed Hub request.

    None if ``error`` is not a failed request.
    """
    if isinstance(error, HfHubHTTPError):
        return _find_status_hint(error)
    if is_wrong_answer(error):
        return _NO_HUB_HINT
    connection_problem = _find_connection_problem(error)
    return connection_problem[1] if connection_problem else None


def _find_status_hint(error: HfHubHTTPError) -> str:
    """Return the hint for the error message about a Hub's refusal, by its status and message."""
    response = error.response
    message = describe_failure(error).lower()
    if response.status_code in (403, 413) and ("storage" in message or "quota" in message):
        return _STORAGE_HINT
    # A Hub's 404 over a repository, a revision or a file has a code.
    if response.status_code == 404 and "x-error-code" not in response.headers:
        return _NO_HUB_HINT
    return _ADVICE.get(response.status_code, _AGAIN)


@contextmanager
def convert_hub_errors(
    action: str, convert: Callable[[Exception], StsDinoError | None] = lambda error: None
) -> Iterator[None]:
    """Convert exceptions of the client library in the block into the project's errors.

    The project's own errors pass, and so does an exception for which ``convert`` and
    ``convert_error`` return None. Installs the project's HTTP client unless it is installed.

    Args:
        action: the action for the message, e.g. ``publish org/name``.
        convert: called first with the exception; returns the error to raise, or None for that of
            ``convert_error``.

    Raises:
        InputError: a repository's name is malformed.
        RunError: the Hub refused or did not answer, HF_HUB_OFFLINE is set, or there is no token.
    """
    if not _is_installed:
        install_client()
    try:
        yield
    except StsDinoError:
        raise
    except Exception as error:
        converted = convert(error) or convert_error(action, error)
        if converted is None:
            raise
        raise converted from None  # the cause holds request headers


def convert_read_errors(name: str, revision: str | None) -> AbstractContextManager[None]:
    """Return a context that converts exceptions over reading a repository.

    Exceptions that ``convert_hub_errors`` does not convert pass unchanged.

    Args:
        name: the repository, as messages name it.
        revision: the revision that is read, for messages; None: the main branch.

    Raises, in the block:
        InputError: the repository, its revision or its data files do not exist, or its id is
            malformed.
        RunError: the token has no access, the Hub did not answer, or HF_HUB_OFFLINE is set and the
            repository was not downloaded.
    """
    target = f"{name} at {constants.ENDPOINT}"
    return convert_hub_errors(
        f"read {name}", lambda error: _convert_read_error(name, target, revision, error)
    )


def _convert_read_error(
    name: str, target: str, revision: str | None, error: Exception
) -> StsDinoError | None:
    """Return the project's error for a failure to read a repository; None for other exceptions.

    Args:
        name: the repository.
        target: the repository and its Hub, for errors.
        revision: the revision that is read; None: the main branch.
        error: the exception.
    """
    refusal = _convert_read_refusal(target, revision, error)
    if refusal is not None:
        return refusal

    # ``datasets`` takes seconds to import, and can have raised only if it is imported already.
    is_unanswered = isinstance(error, LocalEntryNotFoundError | ConnectionError)
    datasets_errors: Any = sys.modules.get("datasets.exceptions")
    if datasets_errors:
        is_unanswered |= isinstance(error, datasets_errors.FileNotFoundDatasetsError)
        if isinstance(error, datasets_errors.DataFilesNotFoundError):
            return InputError(
                target,
                "has no data files that can be read",
                hint="does its card name files that are there? "
                "Publish them, or give another revision",
            )

    # A failed request, which the client library and ``datasets`` report as a missing file
    cause = error.__cause__
    if is_unanswered and isinstance(cause, HfHubHTTPError | httpx2.HTTPError | FileMetadataError):
        refusal = _convert_read_refusal(target, revision, cause)
        return refusal or convert_error(f"read {name}", cause)
    if is_unanswered and constants.HF_HUB_OFFLINE:
        return RunError(
            target,
            "is not downloaded, and HF_HUB_OFFLINE is set",
            hint="run once without it, or give the revision that was downloaded",
        )
    # A missing local file has a number; a FileNotFoundError of ``datasets`` and fsspec has none.
    if is_unanswered or (isinstance(error, FileNotFoundError) and error.errno is None):
        return RunError(target, "stopped answering", hint="run the same command again later")
    return None


def _convert_read_refusal(
    target: str, revision: str | None, error: Exception
) -> StsDinoError | None:
    """Return the project's error for a Hub's refusal to read a repository.

    A refusal is about a gated, forbidden or missing repository, or a missing revision. None for
    other exceptions.
    """
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError):
        return RunError(target, "is gated", hint="ask for access on its page, then set HF_TOKEN")
    if status == 403:
        return RunError(
            target,
            f"is forbidden: {describe_failure(error)}",
            hint="use a token with read access to it",
        )
    if isinstance(error, RepositoryNotFoundError):
        problem = "no such repository, or no access to it"
        if status == 401:
            problem = (
                "no such repository, or a private one: "
                "without a valid token the Hub does not say which"
            )
        return InputError(
            target,
            problem,
            hint="a private one needs a token with access to it: "
            "run `hf auth login` or set HF_TOKEN",
        )
    if isinstance(error, RevisionNotFoundError):
        return InputError(
            target,
            f"has no revision {revision!r}",
            hint="give a tag, branch or commit that is there",
        )
    return None


def convert_error(action: str, error: Exception) -> StsDinoError | None:
    """Return the project's error for a request to a Hub that failed or could not be made.

    One of the project's own errors is returned as it is. None for any other exception.

    action: the action for the message, e.g. ``publish org/name``.
    """
    if isinstance(error, StsDinoError):
        return error
    if isinstance(error, HFValidationError):
        return InputError(action, get_first_line(error))
    target = f"{action} at {constants.ENDPOINT}"
    error = find_lost_connection(error) or error
    if isinstance(error, OfflineModeIsEnabled):
        return RunError(target, "HF_HUB_OFFLINE is set", hint="unset it to reach the Hub")
    if isinstance(error, LocalTokenNotFoundError):
        return RunError(target, "no token", hint="run `hf auth login` or set HF_TOKEN")
    hint = _find_hint(error)
    if hint is None:
        return None
    return RunError(target, describe_failure(error), hint=hint)


def find_lost_connection(error: BaseException) -> Exception | None:
    """Return the connection error among the causes of an OSError without a number, or None.

    transformers reports a lost connection as such an OSError.
    """
    if type(error) is not OSError or error.errno is not None:
        return None
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, httpx2.TransportError | ConnectionError):
        cause = cause.__cause__
    return cause


class Account(BaseModel):
    """A token's user, or an organisation of the user; an organisation has only a name."""

    name: str = Field(min_length=1)
    orgs: tuple["Account", ...] = ()
    auth: dict[str, Any] = {}

    @property
    def role(self) -> str | None:
        """The token's role, e.g. "read" or "write"; None when the Hub gives no role."""
        token = self.auth.get("accessToken")
        return token.get("role") if isinstance(token, dict) else None

    @property
    def names(self) -> list[str]:
        """The namespaces that the token may publish to: the user, then the organisations."""
        return [self.name, *(item.name for item in self.orgs)]


def fetch_account(api: "HfApi") -> Account:
    """Return the account of the client's token.

    Raises:
        LocalTokenNotFoundError: the client has no token.
        HfHubHTTPError: the Hub refuses the token.
        WrongAnswer: the answer has another form.
        Exception: the request failed otherwise, as the client library raises it.
    """
    try:
        return Account.model_validate(api.whoami())
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise WrongAnswer(f"an account without {field or 'fields'}") from None
