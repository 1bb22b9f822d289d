"""The papers in miniature: run experiments, list them, write their pages.

Every experiment is a table or figure of a paper: the same comparison and protocol with a smaller language model and
fewer rows. Its steps (datasets, encoders, scores) are keyed by what decides them and run once for all experiments: a
killed run resumes, and a second run computes nothing.
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.trials import table
from experiments.page import matched, write_pages
from experiments.plan import Experiment, read_plan
from experiments.result import read_result
from experiments.runner import Runner
from experiments.steps import HINT, Steps
from hub import cli
from hub.contract.run_dir import ARTIFACTS, locked
from hub.durable import write_text
from hub.errors import InputError, RunError, StsDinoError

PLANS = Path("experiments/plans")
RESULTS = Path("experiments/results/papers")


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT...", help="Experiments or papers: dino, auto-nli, ..."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every experiment")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List experiments and their results")] = False,
    page_too: Annotated[bool, typer.Option("--page", help="Write the pages from kept results")] = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="STS_DINO_DATA", metavar="DIR", help="Folder with senteval, sts-original, text"),
    ] = None,
    file: Annotated[Path, typer.Option("--plan", metavar="PATH", help="Plan: a YAML file or a folder of them")] = PLANS,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS / "papers",
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the results")] = RESULTS,
    page: Annotated[Path, typer.Option("--page-file", metavar="FILE", help="Page to write")] = Path("docs/results.md"),
) -> None:
    """Run experiments. ``--set`` applies to every dataset recipe; files (@FILE) also to encoders' recipes.

    Examples:

      sts-dino experiment run --list

      sts-dino experiment run dino-2 --data DIR --set @assets/offline.yaml --set model.dtype=bfloat16

      sts-dino experiment run --page
    """
    plan = read_plan(file)
    if not (names or every or listed or page_too):
        raise InputError("EXPERIMENT...", "no experiment given", hint="name some, or give --all; --list shows them")
    chosen = plan.chosen(names or [])
    if listed:
        print(overview(chosen, results))
        return
    failed = list[str]()
    if names or every:
        with locked(folder):
            runner = Runner(plan, Steps(folder), data, settings)
            for one in (one for one in chosen if not (every and one.finished)):
                try:
                    result = runner.run(one)
                except StsDinoError as error:
                    cli.say(f"{one.name}: {error}")
                    failed.append(one.name)
                    continue
                write_text(results / f"{one.name}.json", result.model_dump_json(indent=1) + "\n")
                cli.say(f"wrote {results / f'{one.name}.json'}")
    write_pages(page, plan, results)
    cli.say(f"wrote {page}")
    if failed:
        problem = f"{len(failed)} of {len(chosen)} failed, see the errors above: {', '.join(failed)}"
        raise RunError("experiments", problem, hint=HINT)


def overview(experiments: list[Experiment], results: Path) -> str:
    """The experiments as a table, with the number of reproduced effects."""
    rows = []
    for one in experiments:
        result = read_result(results / f"{one.name}.json")
        verdicts = [found.verdict for _, found in matched(one, result)] if result else []
        effects = f"{verdicts.count('reproduced')} of {len(verdicts)} effects reproduced" if verdicts else "measured"
        rows.append([one.name, one.title, effects if result else "not run yet"])
    return table(["experiment", "what it measures", "result"], rows, names=3)
