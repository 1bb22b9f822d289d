"""The stages as child processes: each is the command that a user types, in a process of its own that ends with ours."""

import ctypes
import signal
import subprocess
import sys

from hub import cli
from hub.errors import RunError

_LIBC = ctypes.CDLL(None)  # opened before any fork
_SET_PARENT_DEATH_SIGNAL = 1


class Stage:
    """``python -m module arguments``, started; its results (stdout) are not shown, its talk (stderr) is."""

    def __init__(self, module: str, *arguments: str):
        self.name = f"python -m {module} {' '.join(arguments)}"
        cli.say(f"== {self.name}")
        self._process = subprocess.Popen(  # noqa: S603 - our own modules
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )

    def running(self) -> bool:
        """Whether it is still at work."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait for its end. Raises RunError when it failed (it has said why on stderr), KeyboardInterrupt likewise."""
        code = self._process.wait()
        if code == cli.INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            raise RunError(self.name, f"failed (exit code {code}), see above")


def run_stage(module: str, *arguments: str) -> None:
    """Run a stage to its end."""
    Stage(module, *arguments).wait()


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent is killed, so that no orphan holds a run directory (prctl(2))."""
    _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
