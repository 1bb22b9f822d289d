"""Serve a GGUF file by llama.cpp's own server, from the package xllamacpp.

It listens on 127.0.0.1 and prints the base_url of its OpenAI-compatible API once the model is
loaded. ``serve`` runs it as a child process for the duration of a ``with`` block.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer

from sts_dino.hub.errors import InputError, RunError

DEFAULT_SLOTS = 32
CONTEXT_TOKENS = 512  # of a prompt and its text
_END_SECONDS = 20.0  # a server that takes longer to end is killed


@dataclass(frozen=True)
class Serving:
    """A server that answers: the address of its API, and its process."""

    base_url: str
    process: psutil.Process


@contextmanager
def serve(
    gguf: Path, slots: int = DEFAULT_SLOTS, context: int = CONTEXT_TOKENS, threads: int = 1
) -> Iterator[Serving]:
    """Serve a GGUF file on a free port of 127.0.0.1 for the duration of a ``with`` block.

    The server ends with the block, and with this process however that ends. Raises RunError when
    the server does not start.

    Args:
        gguf: the model file.
        slots: texts generated at a time.
        context: tokens of each prompt and its text.
        threads: threads that compute.
    """
    command = [sys.executable, "-m", "sts_dino", "benchmark", "llamacpp-server", str(gguf)]
    command += ["--slots", str(slots), "--context", str(context), "--threads", str(threads)]
    command += ["--port", "0", "--until-stdin-closes"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        child = subprocess.Popen(  # noqa: S603 - this module, with a path and numbers
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8"
        )
        try:
            assert child.stdin is not None and child.stdout is not None
            base_url = child.stdout.readline().strip()  # empty when the child has ended
            if not base_url:
                child.wait()
                log.seek(0)
                error = _find_error(log.read()).removeprefix(f"error: {gguf}: ")
                raise RunError(gguf, f"llama.cpp's server did not start: {error}")
            yield Serving(base_url, psutil.Process(child.pid))
        finally:
            _stop_server(child)


def _find_error(log: str) -> str:
    """Return the last line of a log that begins with "error: ", else its last line.

    An empty log gives a phrase that says so.
    """
    lines = log.strip().splitlines()
    # llama.cpp's own thread may write after the error
    errors = [line for line in lines if line.startswith("error: ")]
    if errors:
        return errors[-1]
    return lines[-1] if lines else "its log is empty"


def _stop_server(child: "subprocess.Popen[str]") -> None:
    """Close the server's pipes, which ends it, and wait; kill it after ``_END_SECONDS``."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()  # The end of its standard input ends the server.
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(
    gguf: Annotated[Path, typer.Argument(metavar="GGUF", help="The model file")],
    slots: Annotated[int, typer.Option(min=1, help="Texts generated at a time")] = DEFAULT_SLOTS,
    context: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt and its text, for each slot")
    ] = CONTEXT_TOKENS,
    threads: Annotated[int, typer.Option(min=1, help="Threads that compute")] = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8080,
    until_stdin_closes: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Serve a GGUF file on 127.0.0.1 until Ctrl-C, and print the base_url of its API."""
    # Check the file and the package
    if not gguf.is_file():
        raise InputError(gguf, "no such file", hint="name a GGUF file")
    try:
        import xllamacpp
    except ImportError as error:
        install = "pip install -c constraints.txt xllamacpp"
        hint = f"{install}, or run llama-server of llama.cpp (docs/backends.md)"
        problem = f"the package with llama.cpp's server is missing ({error})"
        raise InputError("xllamacpp", problem, hint=hint) from error

    # Start the server
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.port = port
    parameters.ui = False
    parameters.n_parallel = slots
    parameters.n_ctx = slots * context
    parameters.fit_params = False  # else llama.cpp changes parameters to fit the free memory
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:  # its reason is in its log, above
        hint = f"check that it is a GGUF file of a known architecture and that port {port} is free"
        raise RunError(gguf, "llama.cpp cannot serve it", hint=hint) from error
    print(f"{server.listening_address}/v1", flush=True)

    # Serve until the end
    if until_stdin_closes:
        sys.stdin.read()
        os._exit(0)  # do not wait for unfinished texts, which no client reads any more
    else:
        threading.Event().wait()
