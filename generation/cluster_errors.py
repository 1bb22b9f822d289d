"""Whose fault an error of a worker is, by what Ray and the worker say of it."""

import errno

from hub.errors import InputError, OutOfMemory

_KILLED = "OOM kill reason"  # of what Ray says at length when it ended a worker before the kernel would
_FULL = (errno.ENOSPC, errno.EDQUOT)


def node_problem(error: BaseException) -> str | None:
    """Why a worker's error speaks against its node, or None when it does not."""
    from ray.exceptions import OutOfDiskError, RayActorError

    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OutOfDiskError):
        return "its disk is full (Ray cannot keep objects there)"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"no space is left on its disk ({error.filename or error.strerror})"
    if isinstance(error, ImportError) or (isinstance(error, RayActorError) and error.actor_init_failed):
        return f"this package is not installed there as it is here: {what(error)}"
    return None


def out_of_memory(error: BaseException) -> bool:
    """Whether a worker had too little memory, on a CPU or a GPU: by its own word, or Ray ended it for that."""
    from ray.exceptions import OutOfMemoryError

    return isinstance(error, (OutOfMemory, OutOfMemoryError))


def what(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    line = next((line for line in lines if line.startswith(_KILLED)), lines[-1])
    return f"{type(error).__name__}: {line}"
