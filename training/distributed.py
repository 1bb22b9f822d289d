"""Several processes of one run, as ``torchrun -m training.run`` or ``accelerate launch`` starts them.

All read and train; the main one alone writes, prints and holds the lock. The launcher's environment says who is who, so
nothing here needs the group of processes before the trainer's arguments have joined it.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed
from accelerate.utils import broadcast_object_list, wait_for_everyone

from hub.errors import RunError

Result = TypeVar("Result")
GRACE = 5.0  # seconds
LOST = ("Connection closed by peer", "Connection reset by peer")  # gloo's words


def process_count() -> int:
    """Processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """This process's number among them; 0 is the main one."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this process writes and prints."""
    return process_index() == 0


def on_main(work: Callable[[], Result]) -> Result:
    """What ``work`` returns on the main process, on all of them; the others wait."""
    results = [work() if is_main() else None]
    if process_count() > 1:
        broadcast_object_list(results)
    return results[0]  # type: ignore[return-value] # the main process's result is there now


def wait_for_all() -> None:
    """Return when every process has come here."""
    if process_count() > 1:
        wait_for_everyone()


@contextmanager
def one_voice() -> Iterator[None]:
    """Let the main process tell of an error that all share, or that ends the others.

    When a process dies, its launcher ends the rest. So another one waits before its own error goes on: if the main
    process had the same error, or was the first, this one is stopped while it waits; if not, it speaks for itself.
    """
    try:
        yield
    except BaseException as error:
        if not is_main():
            time.sleep(GRACE)
        if isinstance(error, RuntimeError) and process_count() > 1 and any(words in str(error) for words in LOST):
            problem = "another process of this run has ended"
            raise RunError("training", problem, hint="its own message says why; run the same command again") from error
        raise


def leave_group() -> None:
    """End the group of processes in order, when all its work is done."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
