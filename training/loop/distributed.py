"""Data-parallel training in several processes, started by ``torchrun`` or ``accelerate launch``.

All processes read and train; the main one alone writes, prints and holds the lock. Ranks come from
the launcher's environment, because the process group does not exist before the trainer's arguments
are built.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sts_dino.hub.errors import RunError

Result = TypeVar("Result")
MAIN_REPORT_SECONDS = 5.0  # other ranks wait this long for rank 0 to report its error
LOST_PROCESS_MESSAGES = ("Connection closed by peer", "Connection reset by peer")  # gloo's words


def get_process_count() -> int:
    """Return the number of processes of this run (torch's world size); unset and empty mean 1."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def get_process_index() -> int:
    """Return the rank of this process; 0 is the main one; unset and empty mean 0."""
    return int(os.environ.get("RANK") or 0)


def is_main() -> bool:
    """Return whether this is rank 0, which alone writes and prints."""
    return get_process_index() == 0


def run_on_main(function: Callable[[], Result]) -> Result:
    """Run ``function`` on rank 0 alone; return its result on every rank.

    All ranks call ``run_on_main``, and wait for rank 0. The result is pickled for the others. An
    error of ``function`` is raised on rank 0.
    """
    results = [function() if is_main() else None]
    if get_process_count() > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(results)
    return results[0]  # type: ignore[return-value] # the main process's result is there now


def wait_for_all() -> None:
    """Wait until all processes of the run have called this function."""
    if get_process_count() > 1:
        from accelerate.utils import wait_for_everyone

        wait_for_everyone()


@contextmanager
def report_once() -> Iterator[None]:
    """Let rank 0 report an error first: other ranks raise theirs ``MAIN_REPORT_SECONDS`` later.

    When rank 0 has failed, too, the launcher ends the other ranks before they report. With several
    processes, gloo's error over a lost connection becomes RunError: another process has ended. All
    other errors pass unchanged.
    """
    try:
        yield
    except BaseException as error:
        if not is_main():
            time.sleep(MAIN_REPORT_SECONDS)
        is_lost = isinstance(error, RuntimeError) and any(
            phrase in str(error) for phrase in LOST_PROCESS_MESSAGES
        )
        if is_lost and get_process_count() > 1:
            raise RunError(
                "training",
                "another process of this run has ended",
                hint="its own message says why; run the same command again",
            ) from error
        raise


def leave_group() -> None:
    """Leave torch's process group at the end of a run; do nothing in a single process."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
