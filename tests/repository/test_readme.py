"""The README's snippet runs as pasted, its results are those that are kept, and the commands of every page exist."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from hub.contract.measured import VariantScores
from sts_dino.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
SEVEN = [f"sts{year}/all" for year in range(12, 17)] + ["stsb/cosine", "sick-r/cosine"]


def kept(name: str) -> dict:
    """A result file, wherever its experiment or benchmark keeps it."""
    (path,) = [*ROOT.glob(f"*/results/**/{name}")]
    return json.loads(path.read_text(encoding="utf-8"))


def options_of(command: str) -> set[str]:
    """The options of a command, and those of its subcommands."""
    found = get_command(import_module(COMMANDS[command].module).app)
    every = [found, *getattr(found, "commands", {}).values()]
    return {"--help", *(option for one in every for parameter in one.params for option in parameter.opts)}


@pytest.mark.parametrize("page", [Path("README.md"), *sorted(Path("docs").glob("*.md"))], ids=str)
def test_commands_and_options_that_a_page_names_exist(page):
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    for command, words in re.findall(r"(?:`|^ +)sts-dino ([a-z][a-z-]*)([^`|#\n]*)", text, re.MULTILINE):
        assert command in {"help", *COMMANDS}, command
        if command not in ("help", "benchmark", "experiment"):  # these two import a subcommand when it is called
            assert {*re.findall(r"(?<!\S)--[a-z][a-z-]*", words)} <= options_of(command), (command, words)


@pytest.mark.parametrize("name", ["prompteol-gemma-sts-dino", "static-sts-dino-gemma"])
def test_its_results_are_those_of_make_real(name):
    result = VariantScores.model_validate(kept(f"{name}.seven_tasks.json"))
    scores = [one.average for one in result.variants.values()]
    cells = [f"{one.score:.1f} [{one.low:.1f}, {one.high:.1f}]" for one in scores]
    assert any(all(cell in line for cell in cells) for line in PAGE.splitlines()), cells


def test_the_downloaded_encoder_scores_as_the_reference():
    (path,) = ROOT.glob("**/reference_scores.yaml")
    scores = yaml.safe_load(path.read_text(encoding="utf-8"))["scores"]
    assert f"**{sum(scores[task]['test'] for task in SEVEN) / len(SEVEN):.1f}**" in PAGE


@pytest.mark.slow("trains an encoder")
def test_its_snippet_runs_as_pasted(tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "stsb/cosine" in done.stdout
