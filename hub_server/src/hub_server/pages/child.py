"""A limited child process that reads what strangers wrote: 10 s of CPU, 4 GiB of memory, two at a time, no files.

Children are forked from one process that has imported what they need (multiprocessing's forkserver: it has no threads,
sockets or data of the server), begun by the first page: a fresh interpreter would cost most of a second each time.
"""

import importlib
import math
import multiprocessing
import os
import resource
import threading
from multiprocessing.connection import Connection

SECONDS, MEMORY = 10, 4 << 30
# pyarrow imports pandas for its first scalar, which would take longer than most searches.
_READERS = ["hub_server.pages.card_markdown", "hub_server.pages.row_scan", "pandas"]
_CONTEXT = multiprocessing.get_context("forkserver")
_AT_ONCE, _STARTING = threading.Semaphore(2), threading.Lock()


class ChildFailed(Exception):
    """The child ended without an answer: it took too long or too much memory, or its input broke a library."""


def answer_of(module: str, request: bytes) -> bytes:
    """What the function ``answer`` of a module says to ``request``. Raises ChildFailed."""
    with _AT_ONCE:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_answer, args=(module, request, theirs, math.ceil(SECONDS)), daemon=True)
        with ours:
            try:
                with _STARTING, theirs:
                    _CONTEXT.set_forkserver_preload(_READERS)
                    process.start()
                if ours.poll(2 * SECONDS):
                    return ours.recv_bytes()  # bytes alone: a child is not trusted with pickles
            except (EOFError, OSError):  # it has ended, or could not begin
                pass
            finally:
                if process.pid:
                    process.kill()
                    process.join()
    raise ChildFailed(module)


def _answer(module: str, request: bytes, connection: Connection, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a stranger's file raises is no failure of the server
    connection.send_bytes(importlib.import_module(module).answer(request))
