"""Signals and memory of this process.

``sts-dino`` sets signal handlers first, then imports a command's libraries for seconds, and then
calls ``sts_dino.hub.cli.run_app``. During the imports, Ctrl-C and SIGTERM end the process at once,
with one line and an exit code: the process has no resource to release yet. This module imports
little, so that the handlers are set early.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Any

# Exit codes of a process that a signal ended: 128 and the signal's number
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
EXIT_MESSAGES = {
    EXIT_INTERRUPTED: "interrupted; run the same command again to go on",
    EXIT_TERMINATED: "ended by SIGTERM; run the same command again to go on",
}
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss's unit
_MIB = 2**20

_handling_process = 0  # the id of the process that set the handlers; forked workers inherit these


def set_signal_handlers(on_interrupt: Any, on_terminate: Any) -> None:
    """Set the handlers of SIGINT (Ctrl-C) and SIGTERM, as ``signal.signal`` takes them.

    A handler of another library stays, and so does an ignored signal: a shell ignores SIGINT for
    a command that it starts with ``&``.
    """
    global _handling_process
    _handling_process = os.getpid()
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end_at_once):
        signal.signal(signal.SIGINT, on_interrupt)
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, end_at_once):
        signal.signal(signal.SIGTERM, on_terminate)


def end_at_once(number: int, _: object) -> None:
    """Print the signal's message on stderr and exit, without Python's own shutdown.

    A signal handler; ``number`` is SIGINT or SIGTERM. A forked worker dies of the signal without a
    message, which its parent prints.
    """
    if os.getpid() != _handling_process:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # it ends the process here
    exit_code = 128 + number
    os.write(2, f"{EXIT_MESSAGES[exit_code]}\n".encode())
    os._exit(exit_code)  # the module that is being imported might catch an exception


def measure_peak_rss_mb(children: bool = False) -> float:
    """Return the peak resident memory of this process in MiB.

    Args:
        children: whether to return the peak of the largest child process that has ended. Windows
            does not record this peak; the result is 0.0 there.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        import psutil

        if children:
            return 0.0
        usage = psutil.Process().memory_info()
        return round(getattr(usage, "peak_wset", usage.rss) / _MIB, 1)
    usage_of = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return round(resource.getrusage(usage_of).ru_maxrss * _RSS_UNIT / _MIB, 1)


def measure_seconds_since_start() -> float:
    """Return the seconds since the operating system started this process."""
    import psutil

    return time.time() - psutil.Process().create_time()


def measure_tree_rss_mb() -> float:
    """Return the sum of the resident memory of this process and all its descendants in MiB.

    A page of memory that several processes share counts once for each process.
    """
    import psutil

    this_process = psutil.Process()
    total = 0
    for process in [this_process, *this_process.children(recursive=True)]:
        with suppress(psutil.Error):  # the process has ended
            total += process.memory_info().rss
    return total / _MIB
