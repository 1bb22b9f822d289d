"""The README's snippet runs as pasted, its results are those that are kept, and the commands of every page exist."""

import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
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


def blocks(page: str) -> list[str]:
    """The indented blocks of a page, without their indent."""
    return [re.sub("^    ", "", one, flags=re.MULTILINE) for one in re.findall(r"(?<=\n\n)(?: {4}.*\n)+", page)]


def ran(folder: Path, *command: str) -> str:
    """What a command prints in a fresh folder, offline, with this Python's commands first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_its_install_is_that_of_the_weekly_job_and_takes_versions_that_were_tested():
    (weekly,) = re.findall(r"run: (pip install .*?)  #", (ROOT / ".github/workflows/install.yml").read_text())
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert f"`{weekly}`" in PAGE and f"torch=={tested['torch']}" in PAGE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    known = {canonicalize_name(name): version for name, version in tested.items()}
    for one in map(Requirement, asked):
        version = known.get(canonicalize_name(one.name))
        assert version is None or one.specifier.contains(version), str(one)
    for broken in ("transformers==5.24.0", "peft==0.22.0"):  # the first has no peft that works with it
        name, version = broken.split("==")
        assert not all(one.specifier.contains(version) for one in map(Requirement, asked) if one.name == name)


def test_each_of_its_blocks_is_one_that_is_run():
    install, commands, two = blocks(PAGE)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"^make ([a-z-]+)", install + two, re.MULTILINE)
    assert set(named) <= targets and len(named) == 3
    assert all(line.startswith("sts-dino ") for line in commands.splitlines())


@pytest.mark.slow("trains an encoder")
def test_its_snippet_runs_as_pasted(tmp_path):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "stsb/cosine" in ran(tmp_path, sys.executable, "-c", snippet)


@pytest.mark.slow("adapts an encoder")
def test_its_commands_run_as_pasted(tmp_path):
    rows = (ROOT / "assets/demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:61]
    questions = [["question"], *([row.split("\t")[0]] for row in rows)]
    with (tmp_path / "questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(questions)
    assert "adapt" in ran(tmp_path, "bash", "-ec", blocks(PAGE)[1])
    assert (tmp_path / "questions/report.html").is_file() and (tmp_path / "artifacts/datasets/questions-pairs").is_dir()
