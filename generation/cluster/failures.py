"""Worker errors by cause, from their type: the task, the node, out of memory, or an unknown one of the worker."""

import errno
from enum import Enum
from typing import NamedTuple

from hub.errors import InputError, OutOfMemory

_KILLED = "OOM kill reason"  # of what Ray says at length when it ended a worker before the kernel would
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Cause(Enum):
    """What is at fault, and so what is done about it."""

    TASK = "the task: the run stops"
    NODE = "the node: it is left out"
    MEMORY = "too many workers on the node: it gets one less"
    WORKER = "the worker is lost: its task is tried elsewhere"


class Failure(NamedTuple):
    """Why a call to a worker raised; ``reason`` in one line."""

    cause: Cause
    reason: str


def classify(error: BaseException, starting: bool) -> Failure:
    """The failure behind an error. ``starting``: the worker was loading its model, it had no task."""
    from ray.exceptions import OutOfDiskError, OutOfMemoryError, RayActorError

    if isinstance(error, InputError):
        return Failure(Cause.NODE if starting else Cause.TASK, str(error))
    if isinstance(error, (OutOfMemory, OutOfMemoryError)):  # by the worker's own word, or Ray ended it for that
        return Failure(Cause.MEMORY, one_line(error))
    if isinstance(error, OutOfDiskError):
        return Failure(Cause.NODE, "its disk is full (Ray cannot keep objects there)")
    if isinstance(error, OSError) and error.errno in _FULL:
        return Failure(Cause.NODE, f"no space is left on its disk ({error.filename or error.strerror})")
    if isinstance(error, ImportError) or (isinstance(error, RayActorError) and error.actor_init_failed):
        return Failure(Cause.NODE, f"this package is not installed there as it is here: {one_line(error)}")
    return Failure(Cause.WORKER, one_line(error))


def one_line(error: BaseException) -> str:
    """An error's type and the line of its message that tells most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    line = next((line for line in lines if line.startswith(_KILLED)), lines[-1])
    return f"{type(error).__name__}: {line}"
