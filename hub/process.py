"""Signals and memory of this process.

Ctrl-C and SIGTERM while a command's libraries are imported end it with one line and an exit code, without a traceback:
``sts-dino`` sets the handlers first, then imports for seconds what the command needs, and only then calls
``hub.cli.run``. Until then the process holds nothing, so it may end at once. So this module imports little.
"""

import os
import signal
import sys
import time
from typing import Any

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 and the signal's number
LAST_WORDS = {
    INTERRUPTED: "interrupted; run the same command again to go on",
    TERMINATED: "ended by SIGTERM; run the same command again to go on",
}

_owner = 0  # the process whose handlers are set


def heed(interrupt: Any, terminate: Any) -> None:
    """Set the handlers of Ctrl-C and SIGTERM; a signal that is ignored, as behind a shell's &, or heeded stays so."""
    global _owner
    _owner = os.getpid()
    usual = {signal.SIGINT: (signal.default_int_handler, interrupt), signal.SIGTERM: (signal.SIG_DFL, terminate)}
    for number, (default, handler) in usual.items():
        if signal.getsignal(number) in (default, end_at_once):
            signal.signal(number, handler)


def end_at_once(number: int, _: object) -> None:
    """Print the last words and end, without what Python does at its end. A forked worker ends without words."""
    if os.getpid() != _owner:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os.write(2, f"{LAST_WORDS[128 + number]}\n".encode())
    os._exit(128 + number)  # an exception might be caught by whatever is being imported


_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere


def peak_rss_mb(children: bool = False) -> float:
    """Peak resident memory of this process in MiB, or of the largest child that has ended (on Windows 0: unknown)."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        import psutil

        usage = psutil.Process().memory_info()
        return 0.0 if children else round(getattr(usage, "peak_wset", usage.rss) / 2**20, 1)
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return round(resource.getrusage(who).ru_maxrss * _UNIT / 2**20, 1)


def seconds_since_start() -> float:
    """Seconds since this process was started, its interpreter and imports included."""
    import psutil

    return time.time() - psutil.Process().create_time()


def tree_rss_mb() -> float:
    """Resident memory of this process and all its descendants in MiB; pages that they share count once for each."""
    from contextlib import suppress

    import psutil

    whole, me = 0, psutil.Process()
    for one in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):  # it has ended
            whole += one.memory_info().rss
    return whole / 2**20
