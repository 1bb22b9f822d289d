"""Data-parallel training in several processes, as ``torchrun -m sts_dino train`` or ``accelerate launch`` starts them.

All read and train; the main one alone writes, prints and holds the lock. Ranks come from the launcher's environment:
the trainer's arguments join the group of processes later.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from hub.errors import RunError

Result = TypeVar("Result")
GRACE = 5.0  # seconds
LOST = ("Connection closed by peer", "Connection reset by peer")  # gloo's words


def process_count() -> int:
    """World size: the processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_index() -> int:
    """Rank of this process; 0 is the main one."""
    return int(os.environ.get("RANK", "0"))


def is_main() -> bool:
    """Whether this is rank 0, which alone writes and prints."""
    return process_index() == 0


def on_main(work: Callable[[], Result]) -> Result:
    """Run ``work`` on rank 0 and broadcast its result to all."""
    results = [work() if is_main() else None]
    if process_count() > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(results)
    return results[0]  # type: ignore[return-value] # the main process's result is there now


def wait_for_all() -> None:
    """Barrier over all processes."""
    if process_count() > 1:
        from accelerate.utils import wait_for_everyone

        wait_for_everyone()


@contextmanager
def report_once() -> Iterator[None]:
    """Report an error once: other ranks wait, and the launcher ends them when rank 0 has failed first."""
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
    """Destroy the process group when all its work is done."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
