"""Peak memory of a process, in one unit on every system."""

import resource
import sys

_UNIT = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere


def peak_rss_mb(children: bool = False) -> float:
    """Peak resident memory of this process in MiB, or of the largest child that has ended."""
    who = resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    return round(resource.getrusage(who).ru_maxrss * _UNIT / 2**20, 1)
