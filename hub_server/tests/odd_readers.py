"""A reader that misbehaves as an untrusted file might make it; a limited child imports it."""

import os
import tempfile
import time
from pathlib import Path

from hub_server.pages.readers import Card


def answer(word: str) -> Card:
    if "sleep" in word:
        time.sleep(60)
    if "write" in word:
        Path(tempfile.mkdtemp(), "x").write_bytes(b"x" * 10)
    if "die" in word:
        os._exit(0)
    if "memory" in word:
        bytearray(1 << 40)
    return Card()
