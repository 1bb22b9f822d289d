"""The search for better pairs: python -m benchmarks.better_pairs ARM... [--stage final]

Every arm of arms.yaml is a recipe. An arm's pairs are made, judged and measured by the stages' own commands, each
step once: a killed search goes on where it was, and arms share what they have in common. After each arm its row stands
in the results file, from which the tables and the plot are made.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.better_pairs.arms import Arm, Search, read_search
from benchmarks.better_pairs.datasets import commands
from benchmarks.better_pairs.figures import Row
from benchmarks.better_pairs.report import plot, read_rows, tables, with_row, with_tables
from benchmarks.better_pairs.runner import Runner
from benchmarks.better_pairs.steps import HINT, Steps
from benchmarks.trials import table, write_results
from eval.encoders.load import minilm
from hub import cli
from hub.contract.run_dir import ARTIFACTS, locked
from hub.contract.shards import write_bytes, write_text
from hub.errors import InputError, RunError, StsDinoError, did_you_mean

ARMS = Path(__file__).with_name("arms.yaml")
PAGE = Path("docs/better_pairs.md")
LIBRARIES = ("torch", "transformers", "sentence-transformers", "sts-dino")

app = cli.new_app(__doc__)


@app.command()
def main(
    arms: Annotated[list[str] | None, typer.Argument(metavar="ARM...", help="Names of arms or of groups")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every arm")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print all arms, or the commands of those named")] = False,
    stage: Annotated[str, typer.Option("--stage", metavar="NAME", help="How arms are measured")] = "screening",
    tables_too: Annotated[bool, typer.Option("--table", help="Print the tables, and write them into --page")] = False,
    plot_too: Annotated[bool, typer.Option("--plot", help="Draw a plot of each stage beside --page")] = False,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    texts: Annotated[int | None, typer.Option("--texts", min=1, help="First texts, in place of the stage's")] = None,
    pairs: Annotated[int | None, typer.Option("--pairs", min=2, help="Pairs, in place of the stage's")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Arms or trainings at a time")] = 1,
    data: Annotated[
        Path | None, typer.Option("--data", envvar="STS_DINO_DATA", metavar="DIR", help="First texts, and senteval")
    ] = None,
    file: Annotated[Path, typer.Option("--arms", metavar="FILE", help="The arms")] = ARMS,
    folder: Annotated[Path, typer.Option("--folder", help="Where steps are kept")] = ARTIFACTS / "better_pairs",
    out: Annotated[Path, typer.Option("--out", help="JSON file")] = Path("benchmarks/results/better_pairs.json"),
    page: Annotated[Path, typer.Option("--page", help="Markdown page with a place for the tables")] = PAGE,
) -> None:
    """Measure arms, and show what is measured. ``--set`` is for every dataset recipe.

    Examples:

      python -m benchmarks.better_pairs --list

      python -m benchmarks.better_pairs dino base --set @assets/offline.yaml

      python -m benchmarks.better_pairs verification --set @assets/offline.yaml --set model.dtype=bfloat16 --workers 2

      python -m benchmarks.better_pairs --all --stage final --set @assets/offline.yaml --table --plot
    """
    search = at(read_search(file), stage, texts, pairs)
    if not (arms or every or listed or tables_too or plot_too):
        raise InputError("ARM...", "which arms?", hint="name arms or groups, or give --all; --list shows them")
    chosen = search.chosen(arms or []) if arms or every or listed else []
    if listed:
        print(commands_of(search, chosen, stage, settings) if arms else overview(chosen, read_rows(out)))
        return
    failed = list[str]()
    if chosen:
        minilm()  # the judge of fidelity: without it nothing is begun
        with locked(folder):
            runner = Runner(search, stage, Steps(folder), data, settings, workers)
            for row in measured(runner, chosen, workers, failed):
                rows = with_row(read_rows(out), row)
                write_results(out, {"rows": [one.model_dump(mode="json") for one in rows]}, LIBRARIES)
                cli.say(row.told)
    rows = read_rows(out)
    if tables_too:
        write_text(page, with_tables(page.read_text(encoding="utf-8"), rows, page))
        print(tables(rows))
    if plot_too:
        for name in dict.fromkeys(row.stage for row in rows):
            path = page.with_name(f"{page.stem}.{name}.svg")
            write_bytes(path, plot(rows, name))
            cli.say(f"written: {path}")
    if failed:
        problem = f"{len(failed)} of {len(chosen)} failed, they say why above: {', '.join(failed)}"
        raise RunError("arms", problem, hint=HINT)


def at(search: Search, stage: str, texts: int | None, pairs: int | None) -> Search:
    """The search with a stage's first texts, and other numbers for it. Raises InputError for an unknown one."""
    if stage not in search.stages:
        hint = did_you_mean(stage, search.stages)
        raise InputError("--stage", f"{stage!r} is none", allowed=", ".join(search.stages), hint=hint)
    given = {name: value for name, value in (("texts", texts), ("pairs", pairs)) if value is not None}
    chosen = search.stages[stage].model_copy(update=given)
    default = chosen.first_texts or search.default_first_texts
    return search.model_copy(update={"stages": {**search.stages, stage: chosen}, "default_first_texts": default})


def measured(runner: Runner, arms: Sequence[Arm], workers: int, failed: list[str]) -> Iterator[Row]:
    """The rows of the arms as they come; the names of those that fail join ``failed``.

    An arm that was measured before the one that it is compared with is given once more at the end, with the difference.
    """
    found = dict[str, Row]()
    pool = ThreadPoolExecutor(workers)
    try:
        waiting = {pool.submit(runner.measure, arm): arm for arm in arms}
        for done in as_completed(waiting):
            try:
                row = done.result()
            except StsDinoError as error:
                cli.say(f"{waiting[done].name}: {error}")
                failed.append(waiting[done].name)
                continue
            found[row.arm] = row
            yield row
    finally:
        runner.steps.stop.set()  # of an end before the last arm's: what runs is ended, what waits is not begun
        pool.shutdown(cancel_futures=True)
    runner.steps.stop.clear()
    for arm in arms:
        if arm.name in found and arm.reference in found and found[arm.name].against is None:
            yield runner.measure(arm)


def overview(arms: Sequence[Arm], rows: Sequence[Row]) -> str:
    """The arms as a table, with the stages that each is measured in."""
    stages = {arm.name: [row.stage for row in rows if row.arm == arm.name] for arm in arms}
    cells = [[arm.group, arm.name, arm.varies, ", ".join(stages[arm.name])] for arm in arms]
    return table(["group", "arm", "what varies", "measured"], cells, names=4)


def commands_of(search: Search, arms: Sequence[Arm], stage: str, settings: Sequence[str]) -> str:
    """The commands that make the arms, with the places that are made on the way by their names."""
    lines = list[str]()
    for arm in arms:
        lines += [f"# {arm.name}: {arm.varies}", *commands(search, arm, search.stages[stage].data_seeds[0], settings)]
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)
