"""Rows that cannot be read: whatever a reader raises over a file's bytes is one line that says which file."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pyarrow as pa
from datasets.exceptions import DatasetsError

from hub.errors import InputError
from hub.model_folder import first_line

RESTORE = "restore the file, or take another"
UNREADABLE = (
    *(pa.ArrowException, DatasetsError, UnicodeDecodeError, csv.Error),
    *(EOFError, RecursionError),  # a cut file; JSON nested too deep
)


@contextmanager
def reading_rows(place: object, hint: str | None = RESTORE) -> Iterator[None]:
    """Turn what parquet, CSV and JSON readers raise over damaged bytes into InputError that names ``place``.

    A failing Hub, disk or memory is another matter and passes.
    """
    try:
        yield
    except (*UNREADABLE, OSError) as error:
        if _is_of_the_world(error):
            raise
        raise InputError(place, f"cannot be read: {first_line(error.__cause__ or error)}", hint=hint) from error


def _is_of_the_world(error: Exception) -> bool:
    """Whether no byte of the file is to blame. pyarrow raises OSError without a number for pages it cannot unpack."""
    causes = error, error.__cause__
    if any(isinstance(cause, ConnectionError | httpx2.HTTPError | MemoryError) for cause in causes):
        return True
    return any(isinstance(cause, OSError) and cause.errno is not None for cause in causes)
