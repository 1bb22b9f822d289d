"""HTTP client for a Hub: time limits, checked answers, failures as the project's errors.

No message holds a token. ``httpx2`` and the client library send no token along a redirect to
another host.

A proxy or a login page may answer in place of a Hub. The client library trusts every answer, so a
wrong answer can raise any exception in the library: ``is_wrong_answer`` looks at the module where
the exception was raised.
"""

import logging
import re
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
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

from sts_dino.hub.environment import require_usable
from sts_dino.hub.errors import InputError, RunError, StsDinoError
from sts_dino.hub.untrusted import get_first_line, join_lines, strip_controls

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CLIENT_TIMEOUT = httpx2.Timeout(60, read=300)  # seconds; the library's default waits for ever
LEAST_BYTES_PER_SECOND = 100  # of an answer that takes longer than ``CLIENT_TIMEOUT.read``
LONGEST_REQUESTED_WAIT_SECONDS = 86_400  # a longer ``Retry-After`` is ignored
MOST_ANSWER_BYTES = 128 << 20  # of a decompressed answer; an uncompressed download has no limit
_UNPACKED_PIECE_BYTES = 1 << 20  # decompressed at once
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
# Errors of a connection, and the problem that each one shows
_CONNECTION_PROBLEMS: tuple[tuple[Any, str], ...] = (
    (httpx2.ProxyError, "the proxy refused the connection"),
    (httpx2.ReadTimeout, "the Hub did not answer in time"),
    (httpx2.WriteTimeout, "the Hub stopped receiving"),
    (
        (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError, ConnectionResetError),
        "the connection to the Hub broke off",
    ),
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
        client.headers["accept-encoding"] = "gzip"  # the one that ``_Body`` unpacks
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

    ``Retry-After`` is replaced by its value in seconds, or removed; ``Content-Encoding`` is
    removed, because ``_Body`` decompresses.

    Raises:
        WrongAnswer: a request other than a download is redirected to another host, an upload is
            redirected at all, or the body has another encoding than gzip.
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

    # Decompress here: the library's decoders unpack a small chunk to any number of bytes at once.
    encoding = response.headers.pop("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise WrongAnswer(f"an answer with the encoding {encoding[:20]}", request=request)
    if isinstance(response.stream, httpx2.SyncByteStream):
        is_packed = encoding != "identity"
        # The header counts compressed bytes. In an answer to HEAD the library looks for it.
        if is_packed and request.method != "HEAD":
            response.headers.pop("content-length", None)
        is_bounded = is_packed or not is_download
        response.stream = _Body(response.stream, is_packed=is_packed, is_bounded=is_bounded)


class _Body(httpx2.SyncByteStream):
    """The body of an answer, decompressed, with limits.

    A limit on the time of a single read does not stop a body of one byte a minute, so the whole
    body has a least speed.

    Args:
        stream: the body as it arrives.
        is_packed: whether the body is compressed with gzip.
        is_bounded: whether the decompressed body can have at most ``MOST_ANSWER_BYTES``.
    """

    def __init__(
        self, stream: httpx2.SyncByteStream, is_packed: bool = False, is_bounded: bool = False
    ):
        self._stream = stream
        self._is_packed = is_packed
        self._is_bounded = is_bounded

    def __iter__(self) -> Iterator[bytes]:
        """Yield the decompressed bytes.

        Raises ReadTimeout for a body below ``LEAST_BYTES_PER_SECOND``, WrongAnswer for a body of
        more than ``MOST_ANSWER_BYTES``, DecodingError for damaged gzip, and RemoteProtocolError for
        a body that ends too early.
        """
        produced = 0
        pieces = self._iter_received()
        for piece in unpack_gzip(pieces) if self._is_packed else pieces:
            produced += len(piece)
            if self._is_bounded and produced > MOST_ANSWER_BYTES:
                raise WrongAnswer(f"an answer of more than {MOST_ANSWER_BYTES >> 20} MiB")
            yield piece

    def _iter_received(self) -> Iterator[bytes]:
        """Yield the bytes as they arrive.

        Raises ReadTimeout for a body that brings fewer than ``LEAST_BYTES_PER_SECOND`` in the time
        after the first ``CLIENT_TIMEOUT.read`` seconds.
        """
        started = time.monotonic()
        received = 0
        for chunk in self._stream:
            yield chunk
            received += len(chunk)
            seconds = time.monotonic() - started
            seconds_late = seconds - (CLIENT_TIMEOUT.read or 0)
            if seconds_late > 0 and received < LEAST_BYTES_PER_SECOND * seconds_late:
                raise httpx2.ReadTimeout(f"{received} bytes in {seconds:.0f} seconds")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()


def unpack_gzip(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes of a gzip stream, at most ``_UNPACKED_PIECE_BYTES`` at once.

    An empty stream yields nothing; bytes after the end of the gzip data are ignored. Raises
    DecodingError for damaged data, RemoteProtocolError when the stream ends too early.
    """
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # 16: with gzip's header and checksum
    is_empty = True
    for chunk in chunks:
        while chunk and not unpacker.eof:
            is_empty = False
            try:
                piece = unpacker.decompress(chunk, _UNPACKED_PIECE_BYTES)
            except zlib.error as error:
                raise httpx2.DecodingError(str(error)) from error
            chunk = unpacker.unconsumed_tail
            if piece:
                yield piece
    if is_empty:  # the answer to HEAD has an encoding, and no body
        return
    yield unpacker.flush()  # some hundred bytes at most, because all input is consumed
    if not unpacker.eof:
        raise httpx2.RemoteProtocolError("a compressed answer ended too early")


def parse_retry_after(headers: httpx2.Headers) -> int | None:
    """Return the ``Retry-After`` header in seconds from now (RFC 9110, 10.2.3).

    The header holds seconds or a date. Return None for other text, a date in the past, and more
    than ``LONGEST_REQUESTED_WAIT_SECONDS``.
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

    This is so for redirects in circles, undecodable bodies, and exceptions that the library
    raises while it parses an answer.
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

    The phrase is one line without control characters.
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
    kind = type(error).__name__
    for error_types, problem in _CONNECTION_PROBLEMS:
        if isinstance(error, error_types):
            return f"{problem} ({kind})"
    if _is_certificate_error(error):
        return f"the certificate of the Hub, or of a proxy, cannot be verified ({kind})"
    return f"the Hub cannot be reached ({kind})"


def _is_certificate_error(error: BaseException) -> bool:
    return isinstance(error, httpx2.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error)


def _advise(error: Exception) -> str | None:
    """Return the hint of a message over a failed request to a Hub; None for other exceptions."""
    if isinstance(error, HfHubHTTPError):
        return _advise_on_status(error)
    if is_wrong_answer(error):
        return _NO_HUB_HINT
    if isinstance(error, httpx2.ProxyError):
        return "are HTTP_PROXY, HTTPS_PROXY and ALL_PROXY right? Nothing is lost"
    if _is_certificate_error(error):
        return (
            "set SSL_CERT_FILE to a file with the certificate of its authority, "
            "and check this machine's clock. Nothing is lost"
        )
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, ConnectionRefusedError)):
        return (
            "is it running, and is HF_ENDPOINT right? "
            "Run the same command again later: nothing is lost"
        )
    if isinstance(error, httpx2.HTTPError | ConnectionError):
        return "run the same command again later: nothing is lost"
    return None


def _advise_on_status(error: HfHubHTTPError) -> str:
    """Return the hint for a Hub's answer, by its status and message."""
    response = error.response
    message = describe_failure(error).lower()
    if response.status_code in (403, 413) and ("storage" in message or "quota" in message):
        return _STORAGE_HINT
    # A Hub's 404 over a repository, a revision or a file has a code.
    if response.status_code == 404 and "x-error-code" not in response.headers:
        return _NO_HUB_HINT
    again = "run the same command again later: nothing is lost"
    return _ADVICE.get(response.status_code, again)


@contextmanager
def convert_hub_errors(
    action: str, convert: Callable[[Exception], StsDinoError | None] = lambda error: None
) -> Iterator[None]:
    """Convert exceptions of the client library in the block into the project's errors.

    Other exceptions pass. Installs the project's HTTP client unless it is installed.

    Args:
        action: the action for the message, e.g. ``publish org/name``.
        convert: called first with the exception; returns the error to raise, or None.

    Raises:
        InputError: a repository's name is malformed.
        RunError: the Hub refused, or did not answer.
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
    """Convert exceptions over reading the repository ``name`` at ``revision``.

    Raises:
        InputError: the repository, its revision or its data files do not exist.
        RunError: the token has no access, or the Hub did not answer.
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

    # Exceptions of ``datasets``: only an imported library can have raised one.
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
    """Return the project's error for a Hub's refusal of a read; None for other exceptions."""
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
    """Return the project's error for a failed request to a Hub; None for other exceptions.

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
    hint = _advise(error)
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
    """
    try:
        return Account.model_validate(api.whoami())
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise WrongAnswer(f"an account without {field or 'fields'}") from None
