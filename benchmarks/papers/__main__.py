"""The papers' experiments in miniature: python -m benchmarks.papers EXPERIMENT... | --all

Every table and figure of the papers that can be run on this machine, from recipes: the same comparison and protocol, a
smaller language model, fewer rows. Steps (datasets, encoders, scores) are named by what decides them and done once,
for all experiments that need them: a killed run goes on, a second one computes nothing. Results are kept as data; the
page docs/results.md is made of them, beside the papers' own numbers.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.better_pairs.steps import HINT, Steps
from benchmarks.papers import full_size
from benchmarks.papers.page import matched, write_page
from benchmarks.papers.plan import Experiment, read_papers
from benchmarks.papers.result import read_result
from benchmarks.papers.runner import Experiments
from benchmarks.trials import table
from hub import cli
from hub.contract.run_dir import ARTIFACTS, locked
from hub.durable import write_text
from hub.errors import InputError, RunError, StsDinoError

PLAN = Path(__file__).with_name("experiments")
RESULTS = Path("benchmarks/results/papers")

app = cli.new_app(__doc__)


@app.command()
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT...", help="dino-1, ..., or papers: dino, auto-nli, declutr"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every experiment")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print the experiments; the commands of those named")] = False,
    page_too: Annotated[bool, typer.Option("--page", help="Write docs/results.md from what is kept")] = False,
    scale: Annotated[
        Literal["small", "paper"], typer.Option("--scale", help="paper: print the plan at full size, run nothing")
    ] = "small",
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    data: Annotated[
        Path | None,
        typer.Option("--data", envvar="STS_DINO_DATA", metavar="DIR", help="senteval, sts-original and text"),
    ] = None,
    file: Annotated[
        Path, typer.Option("--plan", metavar="PATH", help="The experiments: a file, or a folder of them")
    ] = PLAN,
    folder: Annotated[Path, typer.Option("--folder", help="Where steps are kept")] = ARTIFACTS / "papers",
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="Where results are kept")] = RESULTS,
    page: Annotated[Path, typer.Option("--page-file", metavar="FILE")] = Path("docs/results.md"),
) -> None:
    """Run experiments, and show what was found. ``--set`` is for every dataset recipe; files also for encoders'.

    Examples:

      python -m benchmarks.papers --list

      python -m benchmarks.papers dino-2 --data DIR --set @assets/offline.yaml --set model.dtype=bfloat16

      python -m benchmarks.papers dino --scale paper

      python -m benchmarks.papers --page
    """
    papers = read_papers(file)
    if not (names or every or listed or page_too or scale == "paper"):
        raise InputError("EXPERIMENT...", "which ones?", hint="name some, or give --all; --list shows them")
    chosen = papers.chosen(names or [])
    if scale == "paper":
        print(full_size.plan(chosen))
        return
    if listed:
        runner = Experiments(papers, Steps(folder), data, settings)
        print(
            "\n".join(f"# {one.name}\n" + "\n".join(runner.commands(one)) for one in chosen)
            if names
            else overview(chosen, results)
        )
        return
    failed = list[str]()
    if names or every:
        with locked(folder):
            runner = Experiments(papers, Steps(folder), data, settings)
            for one in chosen:
                try:
                    result = runner.run(one)
                except StsDinoError as error:
                    cli.say(f"{one.name}: {error}")
                    failed.append(one.name)
                    continue
                write_text(results / f"{one.name}.json", result.model_dump_json(indent=1) + "\n")
                cli.say(f"written: {results / f'{one.name}.json'}")
    if page_too or (names or every):
        write_page(page, papers, results)
        cli.say(f"written: {page}")
    if failed:
        problem = f"{len(failed)} of {len(chosen)} failed, they say why above: {', '.join(failed)}"
        raise RunError("experiments", problem, hint=HINT)


def overview(experiments: list[Experiment], results: Path) -> str:
    """The experiments as a table, with the effects that were found."""
    rows = []
    for one in experiments:
        result = read_result(results / f"{one.name}.json")
        verdicts = [found.verdict for _, found in matched(one, result)] if result else []
        effects = f"{verdicts.count('reproduced')} of {len(verdicts)} effects reproduced" if verdicts else "measured"
        told = effects if result else "not run yet"
        rows.append([one.name, one.title, told])
    return table(["experiment", "what it measures", "result"], rows, names=3)


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)
