"""The README's snippet runs as pasted, its results are those that are kept, and the commands of
every page exist.
"""

import ast
import csv
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from contextlib import suppress
from inspect import signature
from itertools import chain, groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked_python import python_in
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer import Context, Exit
from typer.core import TyperGroup
from typer.main import get_command

from sts_dino import api
from sts_dino.adapt import EncoderChoices, list_next_commands, propose_adaptation
from sts_dino.cli import make_app
from sts_dino.hub.assets import find_asset
from sts_dino.hub.contract.measured import Estimate
from sts_dino.new import CorpusChoices

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    Path(name)
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "experiments/speed/README.md",
        "hub_server/README.md",
    )
]
PAGES += sorted(Path("docs").glob("*.md"))
COMMAND = SimpleNamespace(app=lambda words: make_app()(words, prog_name="sts-dino"))
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


def kept(name: str) -> dict:
    """A result file, wherever its experiment or benchmark keeps it."""
    (path,) = [*ROOT.glob(f"*/results/**/{name}")]
    return json.loads(path.read_text(encoding="utf-8"))


def blocks(page: str, has: str = "") -> list[str]:
    """The indented blocks of a page, without their indent: those with a line that begins as
    ``has``.
    """
    every = re.findall(r"(?<=\n\n)(?: {4}.*\n)+", page)
    return [
        block for one in every if re.search(f"^{has}", block := textwrap.dedent(one), re.MULTILINE)
    ]


def python_of(page: str) -> list[str]:
    """The Python of a page; api.md's fenced blocks are signatures, which test_sts_dino_reference.py
    holds.
    """
    fenced = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    return [one for one in [*fenced, *blocks(page)] if re.match("from|import", one)]


def commands(block: str) -> list[list[str]]:
    """The commands of shell lines, each as its words."""
    text, ends = re.sub(r"\\\n|(?:^|(?<=\s))# .*", " ", block, flags=re.MULTILINE), ";&|\n"
    lexer = shlex.shlex(text, posix=True, punctuation_chars=ends)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    return [
        list(words) for is_end, words in groupby(lexer, lambda word: word[:1] in ends) if not is_end
    ]


def check_line(words: list[str], whole: bool = True) -> None:
    """Parse a line as sts-dino does, up to the call; of a part, only its options. The clone's files
    must exist.
    """
    places = re.findall(r"(?<![\w/.])(?:assets|deploy|docs|eval|recipes)/[\w./-]+", " ".join(words))
    assert all(
        Path(place).exists() for place in places if "NAME" not in place and "..." not in place
    ), words
    command, name = get_command(make_app()), ""
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(Context(command), words)
    if whole:
        with suppress(Exit):
            command.make_context(name, words)
    options = {"--help", "--version", *(option for one in command.params for option in one.opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= options, words


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_each_command_of_a_page_is_one_that_the_command_line_takes(page, monkeypatch):
    """Blocks that take seconds run below; the others are parsed: they need Gemma, hours, machines
    or a finished run.
    """
    # NAME and RECIPE are placeholders
    monkeypatch.setattr("sts_dino.cli.convert_first_argument", lambda stage, words: words)
    text = page.read_text(encoding="utf-8")
    for program, *words in chain.from_iterable(map(commands, blocks(text, " *(make|sts-dino) "))):
        if program == "make":
            made = subprocess.run(
                ["make", "-n", *words], capture_output=True, text=True, check=True
            ).stdout
            for line in re.findall(r"^\.venv/bin/sts-dino (.*)", made, re.MULTILINE):
                check_line(shlex.split(line))
        elif program == "sts-dino":
            check_line(words)
    for line in re.findall(r"`sts-dino ([^`|]*)`", text):
        check_line(line.split(), whole=False)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_python_of_a_page_compiles_and_its_calls_fit_the_functions(page):
    for block in python_of(page.read_text(encoding="utf-8")):
        for call in ast.walk(ast.parse(block)):
            if (
                isinstance(call, ast.Call)
                and re.match(r"api\.\w+$", ast.unparse(call.func))
                and "sts_dino" in block
            ):
                named = {one.arg: one.value for one in call.keywords}
                signature(getattr(api, call.func.attr)).bind(*call.args, **named)


def test_its_results_are_those_of_the_experiments():
    rows = kept("minilm.json")["measured"]["rows"]
    earlier, *_ = kept("prompteol-gemma-sts-dino.seven_tasks.json").values()  # under old keys
    found = [Estimate.model_validate(row["mean of seven"]) for row in rows.values()]
    found += [Estimate.model_validate(row["average"]) for row in earlier.values()]
    cells = [f"{one.score:.1f} [{one.low:.1f}, {one.high:.1f}]" for one in found]
    pages = PAGE + (ROOT / "docs/better_pairs.md").read_text(encoding="utf-8")
    assert [cell for cell in cells if cell not in pages] == []


def test_its_domains_are_those_of_the_experiment():
    result = kept("domains_nine.json")
    assert result["seeds"] == 3
    columns = ("as published", "SimCSE", "teacher, base and pairs", "the teacher")
    table = PAGE.replace("*", "")
    for domain in result["scores"]["as published"]:
        scores = [f"{result['scores'][row][domain]:.1f}" for row in columns]
        assert f"| {' | '.join(scores)} |" in table, domain
    gains = [Estimate.model_validate(result["over_first"][row]) for row in columns[1:]]
    cells = [f"{gain.score:+.2f} [{gain.low:.2f}, {gain.high:.2f}]" for gain in gains]
    assert f"| {' | '.join(cells)} |" in table


def test_its_gain_over_simcse_is_that_of_the_experiment():
    gains = kept("domains_simcse.json")["over_first"]
    gain = Estimate.model_validate(gains["teacher, base and pairs"])
    assert f"{gain.score:.2f} [{gain.low:.2f}, {gain.high:.2f}] over SimCSE" in PAGE


def test_the_taught_start_has_the_figures_of_its_results():
    page = (ROOT / "docs/teacher.md").read_text(encoding="utf-8")
    seven = kept("minilm_taught.json")["averages"][0]
    assert seven["name"] == "auto-nli-sts" and f"{seven['score']:.1f}, MiniLM" in page
    result = kept("domains_start.json")
    for row in ("taught start", "taught start, teacher, base and pairs"):
        gain = Estimate.model_validate(result["over_first"][row])
        assert f"{gain.score:.2f} [{gain.low:.2f}, {gain.high:.2f}]" in page, row
    assert f"{gain.score:.2f} [{gain.low:.2f}, {gain.high:.2f}]" in PAGE  # adapt from that encoder
    (longer,) = map(Estimate.model_validate, kept("domains_simcse_150.json")["over_first"].values())
    assert f"{-longer.score:.2f} [{-longer.high:.2f}, {-longer.low:.2f}]" in page
    (more,) = map(Estimate.model_validate, kept("domains_start_over.json")["over_first"].values())
    assert f"{more.score:.2f} [{more.low:.2f}, {more.high:.2f}] less" in page
    ablations = ("domains_generated.json", "domains_settings.json", "domains_texts.json")
    for name in ("domains_losses.json", *ablations):
        for gain in map(Estimate.model_validate, kept(name)["over_first"].values()):
            assert f"{gain.score:+.2f} [{gain.low:.2f}, {gain.high:.2f}]" in page
    others = ("teacher_mpnet", "1.5b", "mpnet", "e5")
    variants = [f"domains_{other}.json" for other in others]
    for name in ("domains_120.json", "domains_50.json", *variants):
        gain = Estimate.model_validate(kept(name)["over_first"]["teacher, base and pairs"])
        assert f"{gain.score:+.2f} [{gain.low:.2f}, {gain.high:.2f}]" in page, name
    for name in ("domains_losses.json", *variants):
        scores = kept(name)["scores"]["teacher, base and pairs"].values()
        assert f"| {' | '.join(f'{score:.1f}' for score in scores)} |" in page, name


def test_the_search_page_has_the_figures_of_its_results():
    page = (ROOT / "docs/search.md").read_text(encoding="utf-8")
    for name in ("search.json", "search_teacher.json"):
        for row, scores in kept(name)["variants"].items():
            average = Estimate.model_validate(scores["average"])
            assert f"{average.score:.1f} [{average.low:.1f}, {average.high:.1f}]" in page, row
            if scores["over_simcse"]:
                gain = Estimate.model_validate(scores["over_simcse"])
                assert f"{gain.score:+.2f} [{gain.low:.2f}, {gain.high:.2f}]" in page, row


OFFLINE = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}


def ran(folder: Path, *command: str, programs: Path | None = None) -> str:
    """What a command prints in a fresh folder, offline, with this Python's commands first.

    ``programs``: a folder of commands before these.
    """
    folders = [str(programs)] if programs else []
    folders += [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, **OFFLINE, "PATH": os.pathsep.join(folders)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_hub_servers_blocks_run_as_pasted_in_a_fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in python_of((ROOT / "hub_server" / "README.md").read_text(encoding="utf-8")):
        exec(block, {})


def test_adapts_page_names_what_adapt_makes(tmp_path, monkeypatch, offline):
    """Its first `adapt` trains with Gemma for minutes: here its recipes are proposed, with the
    built-in model and an encoder that needs no download.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    page = (ROOT / "docs/adapt.md").read_text()
    lines = [line for block in blocks(page, "sts-dino") for line in commands(block)]
    adapted = next(line for line in lines if line[1] == "adapt")
    later = [line for line in lines if line[1] in ("annotate", "publish")]
    corpus, out = adapted[2], Path(adapted[adapted.index("--out") + 1])
    choices = CorpusChoices(lm=str(find_asset("demo-lm")), lm_license="cc-by-nc-sa-4.0")
    annotate, publish = list_next_commands(
        propose_adaptation(corpus, out, choices, EncoderChoices(encoder="static"))
    )
    assert [shlex.join(line) for line in later] == [annotate, publish, f"{publish} --yes"]


def test_its_install_is_that_of_the_weekly_job_and_takes_versions_that_were_tested():
    (weekly,) = re.findall(
        r"run: (pip install .*?)  #", (ROOT / ".github/workflows/install.yml").read_text()
    )
    tested = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    assert weekly in PAGE and f"torch=={tested['torch']}" in PAGE
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [
        *project["dependencies"],
        *chain.from_iterable(project["optional-dependencies"].values()),
    ]
    known = {canonicalize_name(name): version for name, version in tested.items()}
    for one in map(Requirement, asked):
        version = known.get(canonicalize_name(one.name))
        assert version is None or one.specifier.contains(version), str(one)
    # the first has no peft that works with it
    for broken in ("transformers==5.24.0", "peft==0.22.0"):
        name, version = broken.split("==")
        assert not all(
            one.specifier.contains(version) for one in map(Requirement, asked) if one.name == name
        )


def test_its_first_snippet_prints_what_the_page_shows(tmp_path):
    snippet, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert ran(tmp_path, sys.executable, "-c", snippet) == shown


@pytest.mark.slow("adapts an encoder")
@pytest.mark.timeout(1200)  # the longest test: six minutes beside other work
def test_its_route_and_its_steps_run_as_pasted(tmp_path):
    """But for the download: the built-in language model generates, and the first encoder is static.

    The commands are forks of a process that has imported the libraries; test_wheel.py runs the
    installed command.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    python = python_in({**os.environ, **OFFLINE})
    (programs / "sts-dino").write_text(f'#!/bin/sh\nexec {python} -m sts_dino "$@"\n')
    (programs / "sts-dino").chmod(0o700)
    rows = (ROOT / "assets/demo-data/x1.tsv").read_text(encoding="utf-8").splitlines()[1:61]
    texts = [row.split("\t")[0] for row in rows]
    (tmp_path / "sentences.txt").write_text("\n".join(texts), encoding="utf-8")
    with (tmp_path / "questions.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["question"], *([text] for text in texts)])
    # the first is the install, the last has make's targets: .ci/run runs them
    _, route, steps, _ = blocks(PAGE)
    download, adapt = route.splitlines()
    assert download.startswith("sts-dino lm ")
    adapt = adapt.replace("adapt ", "adapt --lm builtin --encoder static ")
    ran(tmp_path, "bash", "-ec", adapt, programs=programs)
    _, snippet = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    ran(tmp_path, sys.executable, "-c", snippet)
    assert "adapt" in ran(tmp_path, "bash", "-ec", steps, programs=programs)
    assert (tmp_path / "mine/report.html").is_file()
    assert (tmp_path / "artifacts/models/questions-encoder").is_dir()
