"""Signals and memory of this process.

Ctrl-C and SIGTERM while a command's libraries are imported end it with one line and an exit code, without a traceback:
``sts-dino`` sets the handlers first, then imports for seconds what the command needs, and only then calls
``hub.cli.run``. Until then the process holds nothing, so it may end at once.
"""

import os
import resource
import signal
import sys

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 and the signal's number
LAST_WORDS = {
    INTERRUPTED: "interrupted; run the same command again to go on",
    TERMINATED: "ended by SIGTERM; run the same command again to go on",
}


def heed_from_now_on() -> None:
    """Set the handlers; signals that are ignored or heeded already stay so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else ignored, as behind a shell's &
        signal.signal(signal.SIGINT, _end_at_once)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end_at_once)


def hand_over() -> None:
    """Give signals back their usual meaning: from now on the caller heeds them."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _end_at_once:
            signal.signal(number, usual)


def _end_at_once(number: int, _: object) -> None:
    os.write(2, f"{LAST_WORDS[128 + number]}\n".encode())
    os._exit(128 + number)  # an exception might be caught by whatever is being imported


_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere


def peak_rss_mb(children: bool = False) -> float:
    """Peak resident memory of this process in MiB, or of the largest child that has ended."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return round(resource.getrusage(who).ru_maxrss * _UNIT / 2**20, 1)
