"""Commands answer before they import what costs seconds: --help of every one, and what people get
wrong most often.
"""

import json
import subprocess
import sys

from sts_dino.cli import COMMANDS

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
}
HEAVY |= {"matplotlib", "pandas"}
MODEL = "recipes/demo/demo-sts-dino.yaml"
REFUSALS = [
    *(
        [name, "no-such-place"]
        for name in ("write", "explain", "train", "card", "release", "publish", "repeat")
    ),
    ["score", "no-such-place.yaml"],  # without the ending it would be the name of an encoder
    *([name, "--no-such-option"] for name in ("adapt", "compare", "value", "hub")),
    ["train", MODEL, "--dry-run", "--set", "datasets.0.loss=Foo"],
    ["train", MODEL, "--set", "arguments.seed=3"],
    ["merge", "recipes"],
    ["card", "recipes"],
]
# Each command in a fork of a process that has imported what all share: its exit code and the
# packages it imported.
FORKS = """
import json, os, sys, typer, sts_dino.hub.cli
from sts_dino.__main__ import main

for words in json.loads(sys.argv[1]):
    read, write = os.pipe()
    if not os.fork():
        sys.argv, code = ["sts-dino", *words], 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        with os.fdopen(write, "w") as answer:
            json.dump([code, sorted({name.split(".")[0] for name in sys.modules})], answer)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        print(answer.read())
    os.wait()
"""


def imported(*commands: list[str]) -> list[tuple[int, set[str]]]:
    """Exit code and imported packages of each command, given as its words."""
    command = [sys.executable, "-c", FORKS, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [(code, set(names)) for code, names in map(json.loads, done.stdout.splitlines())]


def test_help_imports_no_heavy_library():
    found = dict(zip(COMMANDS, imported(*([name, "--help"] for name in COMMANDS)), strict=True))
    assert {name: code for name, (code, _) in found.items() if code} == {}
    assert {name: names & HEAVY for name, (_, names) in found.items() if names & HEAVY} == {}
    ((code, names),) = imported(["--help"])
    assert code == 0 and not names & {
        *HEAVY,
        "generation",
        "training",
        "eval",
        "release",
        "hub_server",
    }


def test_a_refusal_imports_no_heavy_library():
    for words, (code, names) in zip(REFUSALS, imported(*REFUSALS), strict=True):
        assert code in (1, 2) and not names & HEAVY, words
