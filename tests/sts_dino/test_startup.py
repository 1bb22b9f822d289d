"""Commands answer before they import what costs seconds: --help of every one, and what people get wrong most often."""

import re
import subprocess
import sys

import pytest

from benchmarks.startup import REFUSALS, commands

HEAVY = {
    "torch",
    "datasets",
    "transformers",
    "sentence_transformers",
    "mteb",
    "ray",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
}
COMMANDS = list(commands())


def imported(command: str, *words: str) -> tuple[int, set[str]]:
    """Exit code of a fresh process, and the packages it imported, by the interpreter's own report."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", command, *words], capture_output=True, text=True, check=False
    )
    names = re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, flags=re.MULTILINE)
    assert "typer" in names, done.stderr[-2000:]
    return done.returncode, {name.split(".")[0] for name in names}


def test_every_command_is_found():
    assert {"generation.run", "training.run", "eval.run", "model_cards.render", "release.run"} <= {*COMMANDS}
    assert set(REFUSALS) <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_no_heavy_library(command):
    code, names = imported(command, "--help")
    assert code == 0 and not names & HEAVY


@pytest.mark.parametrize("command", REFUSALS)
def test_a_refusal_imports_no_heavy_library(command):
    code, names = imported(command, *REFUSALS[command])
    assert code in (1, 2) and not names & HEAVY
