"""A reader of pages that does what a stranger's file might make it do; imported in a limited child process."""

import os
import tempfile
import time
from pathlib import Path


def answer(request: bytes) -> bytes:
    """What a reader might do, in a child process."""
    if request == b"sleep":
        time.sleep(60)
    if request == b"write":
        Path(tempfile.mkdtemp(), "x").write_bytes(b"x" * 10)
    if request == b"die":
        os._exit(0)
    return bytearray(1 << 40)
