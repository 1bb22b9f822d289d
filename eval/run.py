"""Score an encoder: ``python -m eval.run [RECIPE] [--model M] [--tasks sts,transfer] [--senteval-data DIR]``.

Scores a recipe's model on the recipe's tasks, or any folder, Hub id or function on any tasks, and its untrained base
on the same bootstrap resamples. A killed run goes on at the next task. ``--compare A B C`` puts finished evaluations
side by side.
"""

import re
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from eval.data.hub import HubPin
from eval.data.sources import Source
from eval.encoders import load_encoder
from eval.evaluation import evaluate
from eval.job import Job, prepare, require_alike
from eval.records import BASE, RESULTS, Records
from eval.summary import asked, everything, only, summarise
from eval.table import table
from eval.task_data import TaskData
from hub.cli import DryRunOption, SetOption, new_app, run, say
from hub.errors import InputError, RunError
from hub.results import Method, write_results
from hub.run_dir import locked

app = new_app("Score a sentence encoder, or compare scored ones.")
Folder = Annotated[Path | None, typer.Option(metavar="DIR")]


def score(job: Job, data: TaskData) -> list[RunError]:
    """Score the job's encoders, write and print the results; what could not be scored."""
    model, base = load_encoder(job.model), load_encoder(job.base) if job.base else None
    folder = job.records.folder
    with locked(folder):
        job.records.clear_leftovers()
        scored = evaluate(job.entries, data, model, job.records, job.settings, job.cache)
        failures = list(scored.failures)
        sides = [asked(model, job.records, scored)]
        if base is not None:
            before = evaluate(job.entries, data, base, Records(folder / BASE), job.settings, job.cache)
            failures += before.failures
            sides.append(asked(base, Records(folder / BASE), before))
        whole = [everything(side, job.settings) for side in sides]
        written = summarise(whole[0], whole[1] if base else None, job.settings)
        results = only(written, [record.key for record in sides[0].records])
        write_results(folder / RESULTS, written)
        if base is not None:
            write_results(folder / BASE / RESULTS, summarise(whole[1], None, job.settings))
        say(f"written: {folder / RESULTS}")
        if job.results is not None:
            write_results(job.results, written)
            say(f"written: {job.results}")
    print(table(results))
    return failures


def check(job: Job, data: TaskData) -> None:
    """Before anything is encoded: all of the data are there, MTEB knows its names, and the folder is not another's.

    Raises InputError.
    """
    require_alike(job)
    absent: dict[str, InputError] = {}
    for entry in job.entries:
        if entry.task.kind != "mteb":
            try:
                data.rows(entry)
            except InputError as error:
                absent[entry.task.name] = error
            continue
        if job.settings.limit is not None:
            raise InputError(entry.task.name, "--limit does not reach MTEB's tasks", hint="leave it out, or the task")
        from eval.mteb_tasks import find_mteb  # importing mteb costs seconds

        find_mteb(entry.task.dataset)
    if absent:
        first = next(iter(absent.values()))
        if len(absent) == 1:
            raise first
        hint = f"or leave out what lacks its data: --skip {','.join(absent)}"
        raise InputError("--tasks", f"{len(absent)} tasks lack their data, the first: {first}", hint=hint)


def plan(job: Job, data: TaskData) -> None:
    """Print what would be scored; the data are read, no model is."""
    for entry in job.entries:
        told = "" if entry.task.kind == "mteb" else f": {len(data.rows(entry)[entry.split])} {entry.task.unit}"
        print(f"{entry}{told}" + (f" of {entry.path}" if entry.path else ""))
    if job.settings.part:
        print(f"{job.settings.part}: a trial, no scores of the tasks")
    print(f"model {job.model}; base {job.base or 'none'}; results to {job.results or job.records.folder / RESULTS}")


def split_names(values: list[str]) -> list[str]:
    """Options given more than once, or with commas, as one list."""
    names = (name for value in values for name in re.split(r",(?![^(]*\))", value))  # not within MTEB(eng, v2)
    return [name.strip() for name in names if name.strip()]


def read_seeds(values: list[str]) -> list[int]:
    """Seeds of the probes. Raises InputError for anything else."""
    names = split_names(values)
    wrong = next((name for name in names if not (name.isascii() and name.isdigit())), None)
    if wrong is not None or len(set(names)) < len(names):
        raise InputError(
            "--seeds", f"{wrong!r} is no seed" if wrong else "names a seed twice", allowed="e.g. 1111,1112"
        )
    return [int(name) for name in names] or [1111]


@app.command()
def main(
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[RECIPE]", help="A model recipe; with --compare, the evaluations")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Compare evaluations: --compare A B C")] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder, ORG/NAME[@REVISION] or python:module:function [default: the recipe's]"),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="The untrained student [default: NAME.base beside a folder --model]")
    ] = None,
    tasks: Annotated[
        list[str], typer.Option("--tasks", metavar="TASK,GROUP", help="[default: the recipe's]; repeatable")
    ] = [],  # noqa: B006 - typer copies it
    skip: Annotated[list[str], typer.Option("--skip", metavar="TASK,GROUP", help="Tasks to leave out of a group")] = [],  # noqa: B006
    senteval_data: Annotated[Path | None, typer.Option(metavar="DIR", help="SentEval's data directory")] = None,
    sts_data: Annotated[Path | None, typer.Option(metavar="DIR", help="The STS organisers' files")] = None,
    hub_data: Annotated[str | None, typer.Option(metavar="REPO@REVISION", help="A pinned Hub dataset instead")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="[default: beside a run directory, or artifacts/evaluations]"),
    ] = None,
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where embeddings are kept")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no embeddings")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="A trial on N rows of each split, drawn by the seed")
    ] = None,
    seeds: Annotated[list[str], typer.Option("--seeds", help="Seeds of the probes [default: 1111]")] = [],  # noqa: B006
    interval: Annotated[Method, typer.Option("--interval", help="Kind of bootstrap interval")] = "percentile",
    settings: SetOption = [],  # noqa: B006
    dry_run: DryRunOption = False,
) -> None:
    """Score an encoder on tasks that state their protocol, with 95 % bootstrap intervals; scores are x 100.

    Groups of tasks: sts, sts-original, transfer, transfer-lbfgs, probing, probing-lbfgs, retrieval, papers. mteb/NAME
    is any task, benchmark or task type of MTEB.

    Examples:

      python -m eval.run recipes/demo/demo-sts-dino.yaml

      python -m eval.run --model ORG/NAME@v1.0.0 --tasks sts,transfer --skip snli/senteval --senteval-data DIR

      python -m eval.run --compare artifacts/models/A artifacts/evaluations/B --out /tmp/comparison
    """
    if compare:
        from eval.compare import compare as side_by_side  # draws plots

        side_by_side([Path(place) for place in places or []], out)
        return
    if len(places or []) > 1:
        raise InputError(places[1] if places else "", "is a second recipe", hint="to compare evaluations add --compare")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    source = Source(senteval_data, sts_data, HubPin.parse(hub_data) if hub_data else None)
    job = prepare(
        source=source,
        recipe=Path(places[0]) if places else None,
        model=model,
        base=base,
        tasks=split_names(tasks),
        skip=split_names(skip),
        out=out,
        cache=cache,
        no_cache=no_cache,
        limit=limit,
        seeds=read_seeds(seeds),
        interval=interval,
        overrides=settings,
    )
    data = TaskData(source, job.settings.limit, job.settings.seed)
    check(job, data)
    if dry_run:
        plan(job, data)
        return
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    failures = score(job, data)
    if failures:
        raise RunError("evaluation", f"{len(failures)} not scored, see above", hint="the others are written")


if __name__ == "__main__":
    run(app)
