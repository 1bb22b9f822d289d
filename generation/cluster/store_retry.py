"""Retry policy for a result store: which failures of a file system or object store are transient.

One blip of NFS or S3 is not the end of a run that takes days. Waiting is that of ``hub.client.retry``. What does not
pass (no permission, no such bucket, no login, a full disk) ends the step at once.
"""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hub.client.retry import PASSING, RetryPolicy
from hub.errors import InputError, RunError, StsDinoError
from hub.untrusted import first_line

if TYPE_CHECKING:
    from tenacity import RetryCallState

KNOWN = "a path, or a URL that fsspec writes to, like s3://BUCKET/FOLDER or hf://buckets/ORG/NAME"
FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING_STATUS = PASSING - {409, 412}  # nothing is asked of a store on a condition: a conflict is there for good
# Of mounts that were away (ESTALE, EIO: soft NFS), of lines that dropped, of object stores that ask for patience (s3fs
# makes EBUSY of SlowDown and EIO of InternalError).
_PASSING_OS = frozenset(
    getattr(errno, name)
    for name in """ESTALE EIO EREMOTEIO ETIMEDOUT EBUSY EAGAIN EINTR EPIPE ENOTCONN ENOLINK ECONNRESET ECONNABORTED
    ENETRESET ENETDOWN ENETUNREACH EHOSTDOWN EHOSTUNREACH ECONNREFUSED""".split()  # noqa: SIM905 - readable
    if hasattr(errno, name)
)
_DROPPED = {  # errors of the packages behind fsspec's protocols that are no OSErrors; looked up, never imported
    "aiohttp": ("ClientConnectionError", "ClientPayloadError"),
    "azure.core.exceptions": ("ServiceRequestError", "ServiceResponseError"),
    "botocore.exceptions": ("HTTPClientError", "ConnectionError"),
    "requests.exceptions": ("ConnectionError", "Timeout", "ChunkedEncodingError"),
    "urllib3.exceptions": ("ProtocolError", "TimeoutError"),
}
_STATUS = ("status", "status_code", "code")  # where those packages keep an HTTP answer's number


class StoreRetry(RetryPolicy):
    """Retries of a store. Until it is ``reached``, what fails is a wrong address, or a login that is missing."""

    def passes(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        if _status(error) in _PASSING_STATUS:
            return True
        from huggingface_hub.errors import HfHubHTTPError

        dropped = _dropped()
        if isinstance(error, HfHubHTTPError) or not isinstance(error, (OSError, *dropped)):
            return super().passes(error)
        passing = isinstance(error, OSError) and error.errno in _PASSING_OS
        return self.reached and (passing or isinstance(error, (TimeoutError, ConnectionError, *dropped)))

    def _wait(self, state: "RetryCallState") -> float:
        seconds = super()._wait(state)
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, OSError) and error.errno:
            self._why = f"it fails ({error.strerror or errno.errorcode.get(error.errno)})"
        elif _status(error) is not None:
            self._why = f"it answered {_status(error)}"
        return seconds


def _dropped() -> tuple[type[BaseException], ...]:
    """The classes of ``_DROPPED`` whose packages this process has imported."""
    found = (
        getattr(sys.modules[module], name, None)
        for module, names in _DROPPED.items()
        if module in sys.modules
        for name in names
    )
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, BaseException))


def _status(error: BaseException | None) -> int | None:
    found = (getattr(error, name, None) for name in _STATUS)
    return next((number for number in found if isinstance(number, int)), None)


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """A store's failures as InputError or RunError, but for a missing file, a full disk and memory that ran out."""
    try:
        yield
    except (StsDinoError, FileNotFoundError, MemoryError):
        raise
    except PermissionError as error:
        hint = "let this user read and write there, on every node"
        raise RunError(f"store {url}", f"no permission ({error})", hint=hint) from error
    except NotImplementedError as error:
        raise InputError(f"store {url}", "this protocol cannot write, read and remove files", allowed=KNOWN) from error
    except OSError as error:
        if error.errno in (*FULL, errno.ENOMEM):
            error.filename = error.filename or url
            raise
        raise RunError(f"store {url}", str(error), hint="is it mounted, or reachable, on this node?") from error
    except Exception as error:  # every protocol's package raises errors of its own kinds
        words = f"{type(error).__name__}: {first_line(error)}"
        hint = "check the address, and the protocol's own login on every node"
        raise RunError(f"store {url}", words, hint=hint) from error
