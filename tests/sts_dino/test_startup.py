"""Commands answer before they import what costs seconds: --help of every one, and what people get wrong most often."""

import re
import subprocess
import sys

import pytest

from sts_dino.commands import COMMANDS

HEAVY = {
    "torch",
    "datasets",
    "transformers",
    "sentence_transformers",
    "mteb",
    "peft",
    "ray",
    "sklearn",
    "scipy",
    "matplotlib",
    "pandas",
}
MODEL = "recipes/demo/demo-sts-dino.yaml"
REFUSALS = [
    *([name, "no-such-place"] for name in ("write", "explain", "train", "card", "release", "publish", "repeat")),
    ["score", "no-such-place.yaml"],  # without the ending it would be the name of an encoder
    *([name, "--no-such-option"] for name in ("adapt", "compare", "value", "hub")),
    ["train", MODEL, "--dry-run", "--set", "datasets.0.loss=Foo"],
    ["train", MODEL, "--set", "arguments.seed=3"],
    ["merge", "recipes"],
    ["card", "recipes"],
]


def imported(*words: str) -> tuple[int, set[str]]:
    """Exit code of ``sts-dino`` in a fresh process, and the packages it imported, by the interpreter's own report."""
    command = [sys.executable, "-X", "importtime", "-m", "sts_dino", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names = re.findall(r"^import time:.*\|\s+(\S+)$", done.stderr, flags=re.MULTILINE)
    assert "typer" in names, done.stderr[-2000:]
    return done.returncode, {name.split(".")[0] for name in names}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_no_heavy_library(command):
    code, names = imported(command, "--help")
    assert code == 0 and not names & HEAVY


@pytest.mark.parametrize("words", REFUSALS, ids=" ".join)
def test_a_refusal_imports_no_heavy_library(words):
    code, names = imported(*words)
    assert code in (1, 2) and not names & HEAVY
