"""Translates what parquet, CSV and JSON readers raise over damaged files into one InputError that names the file."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from hub.errors import InputError, StsDinoError
from hub.printable import first_line

RESTORE = "restore the file, or take another"
_OF_READERS = (pa.ArrowException, UnicodeDecodeError, csv.Error, EOFError, RecursionError)  # cut; nested too deep


def unreadable_kinds(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """The errors that readers raise over damaged bytes, ``datasets``' where anything has imported it, and ``more``."""
    library = sys.modules.get("datasets.exceptions")
    return (*_OF_READERS, *((library.DatasetsError,) if library else ()), *more)


@contextmanager
def reading_rows(place: object, hint: str | None = RESTORE) -> Iterator[None]:
    """Turn what parquet, CSV and JSON readers raise over damaged bytes into InputError that names ``place``.

    A failing Hub, disk or memory is another matter and passes.
    """
    try:
        yield
    except unreadable_kinds(OSError) as error:
        if is_of_the_world(error):
            raise _system_error(error) or error from None
        raise unreadable(error, place, hint) from error


def unreadable(error: BaseException, place: object, hint: str | None = RESTORE) -> InputError:
    """The one-line error for rows whose reader failed."""
    if type(error) is FileNotFoundError:  # the libraries derive errors of their own from it
        return InputError(place, "no such file", hint=hint)
    return InputError(place, f"cannot be read: {first_line(error.__cause__ or error)}", hint=hint)


def is_of_the_world(error: BaseException) -> bool:
    """Whether no byte of the file is to blame. pyarrow raises OSError without a number for pages it cannot unpack."""
    import httpx2

    passing = ConnectionError | httpx2.HTTPError | MemoryError | StsDinoError
    return _system_error(error) is not None or isinstance(error, passing) or isinstance(error.__cause__, passing)


def _system_error(error: BaseException) -> OSError | None:
    """What the system refused, e.g. to write a cache on a full disk: ``datasets`` tells of it as bad rows."""
    causes = error, error.__cause__
    return next((cause for cause in causes if isinstance(cause, OSError) and cause.errno is not None), None)
