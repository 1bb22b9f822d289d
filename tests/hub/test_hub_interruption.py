"""A signal while a command imports its libraries: one line and the exit code, whichever command it
is.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("write", "score", "demo")  # of a package, with options of its own, of a clone
LIBRARIES = (
    "psutil",
    "typer",
    "torch",
    "numpy",
    "pydantic",
    "datasets",
    "transformers",
    "sentence_transformers",
)
WORDS = {"SIGINT": (130, b"interrupted"), "SIGTERM": (143, b"ended by SIGTERM")}


def interrupted(
    command: str, number: str, folder: Path, **more: object
) -> subprocess.CompletedProcess[bytes]:
    """The command, with libraries that are still being imported when the signal comes."""
    for name in LIBRARIES:
        code = f"import os, signal\nos.kill(os.getpid(), signal.{number})\nprint('went on')"
        (folder / f"{name}.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}"}
    words = [sys.executable, "-m", "sts_dino", command]
    return subprocess.run(
        words, env=environment, capture_output=True, check=False, timeout=60, **more
    )


@pytest.mark.parametrize("number", WORDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_during_the_imports_is_one_line_and_an_exit_code(command, number, tmp_path):
    code, word = WORDS[number]
    done = interrupted(command, number, tmp_path)
    assert (done.returncode, done.stdout) == (code, b""), done.stderr
    assert done.stderr.startswith(word) and done.stderr.count(b"\n") == 1


def test_an_interrupt_that_is_ignored_stays_so(tmp_path):
    """Behind a shell's ``&``: Ctrl-C is for the command in front."""
    ignored = interrupted(
        "hub", "SIGINT", tmp_path, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert b"went on" in ignored.stdout


def test_a_handler_is_set_by_a_command_alone_which_hands_it_over_when_it_has_begun():
    code = """
import signal, generation
usual = lambda: signal.getsignal(2) is signal.default_int_handler
from sts_dino.hub import cli, process
assert usual() and signal.getsignal(15) == signal.SIG_DFL
process.set_signal_handlers(process.end_at_once, process.end_at_once)
assert not usual()
cli.run_app(lambda: print(usual(), signal.getsignal(15) is process.end_at_once))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
