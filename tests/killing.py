"""Real kills: the generation command in a process of its own, ended by kill -9 at a chosen moment."""

import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

from generation import run
from generation.pipeline import source_sentences
from hub import cli

_CONTEXT = multiprocessing.get_context("forkserver")  # one server imports the libraries, once for all commands
_CONTEXT.set_forkserver_preload(["killing", "generation.backends.engine", "transformers.models.llama.modeling_llama"])
_SECONDS = 240


def started(arguments: list[str], round_size: int | None = None) -> BaseProcess:
    """``sts-dino write`` with these arguments, silent; ``round_size`` is that of source sentences."""
    process = _CONTEXT.Process(target=_command, args=(arguments, round_size))
    process.start()
    return process


def killed(arguments: list[str], reached: Callable[[], bool], round_size: int | None = None) -> None:
    """Start the command and kill -9 it as soon as it has ``reached`` its mark; fails if it ends before."""
    process, deadline = started(arguments, round_size), time.monotonic() + _SECONDS
    while process.is_alive() and not reached() and time.monotonic() < deadline:
        time.sleep(0.003)
    process.kill()
    process.join()
    assert process.exitcode == -9 and reached()


def _command(arguments: list[str], round_size: int | None) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    if round_size:
        source_sentences.round_size = lambda limit: round_size
    cli.run(lambda: run.app(arguments))
