"""The papers in miniature: run experiments, list them, write their pages.

Every experiment is a table or figure of a paper: the same comparison and protocol with a smaller
language model and fewer rows. Its steps (datasets, encoders, scores) are keyed by what decides them
and run once for all experiments: a killed run resumes, and a second run computes nothing.
"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.experiments import chat_ways, domains, pair_quality, search
from sts_dino.experiments.page import match_effects, write_pages
from sts_dino.experiments.plan import Experiment, read_plan
from sts_dino.experiments.runner import Runner, read_result
from sts_dino.experiments.speed.trials import format_table
from sts_dino.experiments.steps import RESUME_HINT, Steps
from sts_dino.experiments.variants import draw_source_sentences, refinish_run
from sts_dino.hub import cli
from sts_dino.hub.contract.run_dir import ARTIFACTS, lock_run
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError, RunError, StsDinoError

logger = logging.getLogger(__name__)

PLANS = Path("experiments/plans")
RESULTS = Path("experiments/results/papers")

app = cli.make_app("Run experiments; results go to experiments/results (docs/results.md).")
app.command("source-sentences")(draw_source_sentences)
app.command("search")(search.main)
app.command("domains")(domains.main)
app.command("chat-ways")(chat_ways.main)
app.command("pair-quality")(pair_quality.main)
app.command("refinish")(refinish_run)


@app.command("run")
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT...", help="Experiments or papers: dino, auto-nli, ..."),
    ] = None,
    run_every: Annotated[bool, typer.Option("--all", help="Every experiment")] = False,
    list_only: Annotated[
        bool, typer.Option("--list", help="List experiments and their results")
    ] = False,
    write_page: Annotated[
        bool, typer.Option("--page", help="Write the pages from kept results")
    ] = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            envvar="STS_DINO_DATA",
            metavar="DIR",
            help="Folder with senteval, sts-original, text",
        ),
    ] = None,
    file: Annotated[
        Path, typer.Option("--plan", metavar="PATH", help="Plan: a YAML file or a folder of them")
    ] = PLANS,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the steps")] = ARTIFACTS
    / "papers",
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", help="Folder of the results")
    ] = RESULTS,
    page: Annotated[Path, typer.Option("--page-file", metavar="FILE", help="Page to write")] = Path(
        "docs/results.md"
    ),
) -> None:
    """Run experiments, keep their results, and write the pages of all kept results.

    ``--set`` applies to every dataset recipe; files (@FILE) also to encoders' recipes.

    Examples:

      sts-dino experiment run --list

      sts-dino experiment run dino-2 --data DIR --set model.dtype=bfloat16

      sts-dino experiment run --page
    """
    # Choose the experiments
    plan = read_plan(file)
    if not (names or run_every or list_only or write_page):
        hint = "name some, or give --all; --list shows them"
        raise InputError("EXPERIMENT...", "no experiment given", hint=hint)
    chosen = plan.choose_experiments(names or [])
    if list_only:
        print(format_overview(chosen, results))
        return

    # Run the experiments; --all leaves out those that only an earlier revision repeats
    if run_every:
        chosen = [experiment for experiment in chosen if not experiment.finished]
    failed = list[str]()
    if names or run_every:
        if data is not None and not data.is_dir():
            raise InputError(
                f"--data {data}",
                "no such folder",
                hint="name the folder that has senteval, sts-original and text",
            )
        with lock_run(folder):
            failed = run_all(Runner(plan, Steps(folder), data, settings), chosen, results)

    # Write the pages, also of experiments that ran before a failure
    write_pages(page, plan, results)
    logger.info(f"wrote {page}")
    if failed:
        count = f"{len(failed)} of {len(chosen)} failed"
        problem = f"{count}, see the errors above: {', '.join(failed)}"
        raise RunError("experiments", problem, hint=RESUME_HINT)


def run_all(runner: Runner, experiments: list[Experiment], results: Path) -> list[str]:
    """Run experiments and write their results as JSON. Return the names of those that failed.

    An InputError or RunError is logged, and the next experiment runs.

    Args:
        runner: the runner of the experiments' plan.
        experiments: the experiments, in the order in which they run.
        results: the folder of the results; an earlier result of the same name is replaced.
    """
    failed = list[str]()
    for experiment in experiments:
        path = results / f"{experiment.name}.json"
        try:
            result = runner.run(experiment)
        except StsDinoError as error:
            logger.info(f"{experiment.name}: {error}")
            failed.append(experiment.name)
            continue
        write_text(path, result.model_dump_json(indent=1) + "\n")
        logger.info(f"wrote {path}")
    return failed


def format_overview(experiments: list[Experiment], results: Path) -> str:
    """Format the experiments as a table, with the number of reproduced effects of each result.

    ``results``: the folder of the results. Raises InputError for a file that is not a result, and
    for a paper, table or row that the project does not have.
    """
    rows = []
    for experiment in experiments:
        outcome = "measured"
        result = read_result(results / f"{experiment.name}.json")
        if result is None:
            outcome = "not run yet"
        elif effects := match_effects(experiment, result):
            verdicts = [effect.difference.verdict for effect in effects]
            reproduced = verdicts.count("reproduced")
            outcome = f"{reproduced} of {len(verdicts)} effects reproduced"
        rows.append([experiment.name, experiment.title, outcome])
    return format_table(["experiment", "what it measures", "result"], rows, names=3)
