"""Commands answer before they import what costs seconds: --help of every one, and the most frequent mistakes."""

import re
import subprocess
import sys

import pytest

from benchmarks.startup import REFUSALS
from sts_dino.commands import COMMANDS

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


def imported(*words: str) -> tuple[int, set[str]]:
    """Exit code of a fresh process, and the packages it imported, by the interpreter's own report."""
    command = [sys.executable, "-X", "importtime", "-m", "sts_dino", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names = re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, flags=re.MULTILINE)
    assert "typer" in names, done.stderr[-2000:]
    return done.returncode, {name.split(".")[0] for name in names}


@pytest.mark.parametrize("words", [[name] for name in COMMANDS] + [["experiment", "run"], ["benchmark", "throughput"]])
def test_help_imports_no_heavy_library(words):
    code, names = imported(*words, "--help")
    assert code == 0 and not names & HEAVY


@pytest.mark.parametrize("command", REFUSALS)
def test_a_refusal_imports_no_heavy_library(command):
    code, names = imported(*REFUSALS[command])
    assert code in (1, 2) and not names & HEAVY
