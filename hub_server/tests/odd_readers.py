"""A reader that misbehaves as an untrusted file might make it; a limited child imports it."""

import os
import tempfile
import time
from pathlib import Path

from hub_server.pages.readers import Card


def answer(question: bytes) -> Card:
    if b"sleep" in question:
        time.sleep(60)
    if b"write" in question:
        Path(tempfile.mkdtemp(), "x").write_bytes(b"x" * 10)
    if b"die" in question:
        os._exit(0)
    if b"memory" in question:
        bytearray(1 << 40)
    return Card()
