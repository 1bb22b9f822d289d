"""Stages as child processes: the commands that a user types, each in a process that ends with this one."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import typer

from hub import cli
from hub.errors import InputError, RunError
from hub.process import INTERRUPTED

_LIBC = ctypes.CDLL(None)  # opened before any fork
_SET_PARENT_DEATH_SIGNAL = 1
POLL = 0.1  # seconds between two looks at a thread's stage


class StageProcess:
    """``sts-dino command arguments``, started; its results (stdout) are not shown, its talk (stderr) is.

    As a context manager it ends with its block, however that ends.
    """

    def __init__(self, command: str, *arguments: str):
        self.name = f"sts-dino {command} {' '.join(arguments)}"
        cli.say(f"== {self.name}")
        self._process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", "sts_dino", command, *arguments],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )

    def __enter__(self) -> "StageProcess":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self.stop()

    def running(self) -> bool:
        """Whether it is still at work."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait for its end. Raises typer.Exit with its code when it failed and said why, RunError when killed."""
        code = self._process.wait()
        if code < 0:
            hint = "is the memory enough? Run the same command again to go on"
            raise RunError(self.name, f"was killed ({signal.Signals(-code).name})", hint=hint)
        if code:
            raise typer.Exit(code)

    def stop(self) -> None:
        """Terminate it, and wait for its end."""
        self._process.terminate()
        self._process.wait()


def run_stage(command: str, *arguments: str, stop: Event | None = None) -> None:
    """Run a stage to its end; in a thread, end it and raise KeyboardInterrupt when ``stop`` is set."""
    with StageProcess(command, *arguments) as stage:
        while stop is not None and stage.running():
            if stop.wait(POLL):
                raise KeyboardInterrupt
        stage.wait()


@contextmanager
def named(what: str, place: Path, hint: str) -> Iterator[None]:
    """Give a stage that fails, one of many of a command, a line of its own: InputError or RunError at ``place``.

    An interruption passes as it is.
    """
    try:
        yield
    except typer.Exit as end:
        if end.exit_code == INTERRUPTED:
            raise
        kind = InputError if end.exit_code == InputError.exit_code else RunError
        raise kind(place, f"{what} failed, it says why above", hint=hint) from None


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is killed, so that no orphan holds a run directory (prctl(2))."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
