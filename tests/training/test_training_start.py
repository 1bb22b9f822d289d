"""A refusal needs no library that takes seconds to import."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "sentence_transformers", "datasets", "peft", "matplotlib"}
PROBE = """
import runpy, sys
try:
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=False)
except SystemExit as ended:
    print(ended.code, *sorted({heavy} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("module", "words", "code"),
    [
        ("training.run", ["--help"], 0),
        ("training.run", ["recipes/demo/demo-sts-dino.yaml", "--dry-run", "--set", "datasets.0.loss=Foo"], 2),
        ("training.run", ["recipes/demo/demo-sts-dino.yaml", "--set", "arguments.seed=3"], 2),
        ("training.merge", ["recipes"], 2),
        ("model_cards.render", ["recipes"], 2),
    ],
)
def test_a_refusal_imports_no_heavy_library(module, words, code):
    probe = PROBE.replace("{heavy}", repr(HEAVY)).replace("sys.argv[1]", repr(module))
    done = subprocess.run([sys.executable, "-c", probe, *words], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == str(code), done.stderr
