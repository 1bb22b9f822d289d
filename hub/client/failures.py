"""Failures of a Hub, told in the project's words: which Hub, what it refused, what to do. Never a token."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from hub.client import session as client
from hub.errors import InputError, RunError, StsDinoError
from hub.printable import first_line, one_line

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
def hub_errors(what: str) -> Iterator[None]:
    """Turn client exceptions into RunError (InputError for a malformed name). ``what``: e.g. "publish org/name"."""
    client.ensure()
    try:
        yield
    except StsDinoError:
        raise
    except Exception as error:
        known = in_words(what, error)
        if known is None:
            raise
        raise known from None  # the cause holds request headers


def in_words(what: str, error: Exception) -> StsDinoError | None:
    """The project's error for a failure of a Hub or of the way there; None when ``error`` is something else."""
    if isinstance(error, StsDinoError):
        return error
    if isinstance(error, HFValidationError):
        return InputError(what, first_line(error))
    if isinstance(error, LocalTokenNotFoundError) or client.is_failure(error):
        return translated(what, error)
    lost = lost_connection(error)
    return translated(what, lost) if lost is not None else None


def lost_connection(error: BaseException) -> Exception | None:
    """The failed connection that transformers' plain OSError was raised from; None when there is none."""
    behind: BaseException | None = error if type(error) is OSError and error.errno is None else None
    while behind is not None and not isinstance(behind, httpx2.TransportError | ConnectionError):
        behind = behind.__cause__
    return behind


@contextmanager
def reading(what: str, revision: str | None) -> Iterator[None]:
    """Turn the Hub's failures while reading ``what`` into InputError (wrong name) or RunError (no access, no Hub).

    Causes are dropped: they hold request headers.
    """
    with hub_errors(f"read {what}"):
        try:
            yield
        except Exception as error:
            known = _of_reading(f"{what} at {constants.ENDPOINT}", revision, error)
            if known is None:
                raise
            raise known from None


def _of_reading(place: str, revision: str | None, error: Exception) -> StsDinoError | None:
    """The project's error for what a download, or ``datasets``, says of a repository; None of anything else."""
    if isinstance(error, GatedRepoError):
        return RunError(place, "is gated", hint="ask for access on its page, then set HF_TOKEN")
    if isinstance(error, RepositoryNotFoundError):  # the Hub gives the same answer for "absent" and "not yours"
        hint = "a private one needs a token with access to it: run `hf auth login` or set HF_TOKEN"
        return InputError(place, "no such repository, or no access to it", hint=hint)
    if isinstance(error, RevisionNotFoundError):
        return InputError(place, f"has no revision {revision!r}", hint="give a tag, branch or commit that is there")
    library: Any = sys.modules.get("datasets.exceptions")  # its errors can only be raised once it is imported
    if library and isinstance(error, library.DataFilesNotFoundError):
        hint = "does its card name files that are there? Publish them, or give another revision"
        return InputError(place, "has no data files that can be read", hint=hint)
    unanswered = isinstance(error, (LocalEntryNotFoundError, ConnectionError))
    if unanswered or (library and isinstance(error, library.FileNotFoundDatasetsError)):
        if constants.HF_HUB_OFFLINE:
            hint = "run once without it, or give the revision that was downloaded"
            return RunError(place, "is not downloaded, and HF_HUB_OFFLINE is set", hint=hint)
        return RunError(place, "stopped answering", hint="run the same command again later")
    if isinstance(error, FileNotFoundError) and error.errno is None:  # so ``datasets`` tells a Hub that answers nothing
        return RunError(place, "stopped answering", hint="run the same command again later")
    return None


def translated(what: str, error: Exception) -> StsDinoError:
    """The project's error for a failed request to the Hub."""
    place = f"{what} at {constants.ENDPOINT}"
    if isinstance(error, OfflineModeIsEnabled):
        return RunError(place, "HF_HUB_OFFLINE is set", hint="unset it to reach the Hub")
    if isinstance(error, LocalTokenNotFoundError):
        return RunError(place, "no token", hint="run `hf auth login` or set HF_TOKEN")
    if isinstance(error, HfHubHTTPError):
        said = one_line(client.message_of(error) or error.response.reason_phrase)
        hint = _ADVICE.get(error.response.status_code, "run the same command again later: nothing is lost")
        return RunError(place, f"the Hub answered {error.response.status_code}: {said}", hint=hint)
    if client.is_wrong(error):
        hint = "is HF_ENDPOINT right, or does a proxy or a login page answer in its place? Nothing is lost"
        return RunError(place, f"what answered is no Hub ({client.what_is_wrong(error)})", hint=hint)
    hint = "is it running, and is HF_ENDPOINT right? Run the same command again later: nothing is lost"
    return RunError(place, f"the Hub cannot be reached ({type(error).__name__})", hint=hint)
