"""A store that fails for a moment is asked again: which failures of a file system or object store pass.

One blip of NFS or S3 is not the end of a run that takes days. Waiting is that of ``hub.patience``: longer and longer,
up to an hour, told with a countdown and ended by Ctrl-C. What does not pass (no permission, no such bucket, no login,
a full disk) ends the step at once.
"""

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from huggingface_hub.errors import HfHubHTTPError
from tenacity import RetryCallState

from generation.store_places import KNOWN, Place
from hub.errors import InputError, RunError, StsDinoError
from hub.patience import PASSING, Patience
from hub.printable import first_line

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
    "requests": ("ConnectionError", "Timeout", "exceptions.ChunkedEncodingError"),
    "urllib3.exceptions": ("ProtocolError", "TimeoutError"),
}
_STATUS = ("status", "status_code", "code")  # where those packages keep an HTTP answer's number

Result = TypeVar("Result")


class StorePatience(Patience):
    """How long a store may fail. Until it is ``reached``, what fails is a wrong address, or a login that is missing."""

    def passes(self, error: BaseException) -> bool:
        """Whether the same call may succeed later."""
        if _status(error) in _PASSING_STATUS:
            return True
        if isinstance(error, HfHubHTTPError) or not isinstance(error, (OSError, *_dropped())):
            return super().passes(error)
        passing = error.errno in _PASSING_OS if isinstance(error, OSError) else False
        return self.reached and (passing or isinstance(error, (TimeoutError, ConnectionError, *_dropped())))

    def _wait(self, state: RetryCallState) -> float:
        seconds = super()._wait(state)
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, OSError) and error.errno:
            self._why = f"it fails ({error.strerror or errno.errorcode.get(error.errno)})"
        elif _status(error) is not None:
            self._why = f"it answered {_status(error)}"
        return seconds


def _dropped() -> tuple[type[BaseException], ...]:
    """The classes of ``_DROPPED`` whose packages this process has imported."""
    found = []
    for module, names in _DROPPED.items():
        for name in names if module in sys.modules else ():
            place: object = sys.modules[module]
            for part in name.split("."):
                place = getattr(place, part, None)
            if isinstance(place, type) and issubclass(place, BaseException):
                found.append(place)
    return tuple(found)


def _status(error: BaseException | None) -> int | None:
    """The HTTP status of an object store's answer, if the error carries one."""
    found = (getattr(error, name, None) for name in _STATUS)
    return next((number for number in found if isinstance(number, int)), None)


class PatientPlace:
    """A ``Place`` whose calls are made again while their failures pass; other failures are told in our words."""

    def __init__(self, place: Place, patience: Patience):
        self.url, self._place, self._patience = place.url, place, patience

    def get(self, name: str) -> bytes:
        """See ``Place``."""
        return self._done(lambda: self._place.get(name))

    def put(self, name: str, content: bytes) -> None:
        """See ``Place``."""
        self._done(lambda: self._place.put(name, content))

    def bring(self, name: str, target: Path) -> None:
        """See ``Place``."""
        self._done(lambda: self._place.bring(name, target))

    def remove(self, name: str) -> None:
        """See ``Place``."""
        self._done(lambda: self._place.remove(name))

    def clear(self) -> None:
        """See ``Place``."""
        self._done(self._place.clear)

    def _done(self, attempt: Callable[[], Result]) -> Result:
        with _told(self.url):
            return self._patience.until_done(f"store {self.url}", attempt)


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Failures of a store in the project's words, but for a missing file, a full disk and memory that ran out."""
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
