"""Score an encoder: ``sts-dino score MODEL [--tasks sts,transfer] [--senteval-data DIR] [--pairs mine.csv]``.

Scores a recipe's model on the recipe's tasks, or any folder, Hub id or function on any tasks and on a user's own files,
and its untrained base on the same bootstrap resamples. A killed run resumes at the next task.
"""

import re
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from eval.encoders.load import require_model
from eval.runs.job import Request, check, plan, prepare
from eval.runs.records import COMPARED, read_evaluation
from eval.statistics.paired import Verdict
from eval.tasks.hub import Repository
from eval.tasks.own import CorpusOption, PairsOption, QrelsOption, QueriesOption, read_own
from eval.tasks.sources import Source, TaskData
from hub.cli import DryRunOption, JsonOption, SetOption, answer, new_app
from hub.errors import InputError, RunError

app = new_app("Score a sentence encoder.")


def split_names(values: list[str]) -> list[str]:
    """Options given more than once, or with commas, as one list."""
    names = (name for value in values for name in re.split(r",(?![^(]*\))", value))  # not within MTEB(eng, v2)
    return [name.strip() for name in names if name.strip()]


def read_seeds(values: list[str]) -> list[int]:
    """Seeds of the probes. Raises InputError for anything else."""
    names = split_names(values)
    if len(set(names)) < len(names) or not all(name.isascii() and name.isdigit() for name in names):
        raise InputError("--seeds", f"{','.join(names)!r} are not distinct seeds", allowed="e.g. 1111,1112")
    return [int(name) for name in names] or [1111]


@app.command()
def main(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A recipe (.yaml), run directory, folder, ORG/NAME or bare name"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Folder, ORG/NAME[@REVISION] or python:module:function [default: the recipe's]"),
    ] = None,
    compared: Annotated[
        str | None, typer.Option("--compare", metavar="OTHER", help="Another encoder, tested on the same rows")
    ] = None,
    pairs: PairsOption = None,
    queries: QueriesOption = None,
    corpus: CorpusOption = None,
    qrels: QrelsOption = None,
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
    settings: SetOption = [],  # noqa: B006
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score an encoder on tasks that state their protocol, with 95 % bootstrap intervals; scores are x 100.

    Groups of tasks: sts, sts-original, transfer, transfer-lbfgs, probing, probing-lbfgs, papers; the four of
    classifiers also with -validation, for choices without test rows. mteb/NAME is any task, benchmark or task type of
    MTEB.

    Examples:

      sts-dino score recipes/demo/demo-sts-dino.yaml

      sts-dino score ORG/NAME@v1.0.0 --tasks sts,transfer --skip snli/senteval --senteval-data DIR

      sts-dino score ORG/NAME --pairs mine.csv --compare all-MiniLM-L6-v2
    """
    own = read_own(pairs, queries, corpus, qrels)
    request = Request(
        source=Source(senteval_data, sts_data, Repository.parse(hub_data) if hub_data else None, own=own),
        recipe=recipe,
        model=model,
        compared=compared,
        tasks=tuple(split_names(tasks)),
        skip=tuple(split_names(skip)),
        out=out,
        cache=cache,
        keeps_embeddings=not no_cache,
        limit=limit,
        seeds=tuple(read_seeds(seeds)),
        overrides=tuple(settings),
    )
    evaluate(request, dry_run, as_json)


def evaluate(request: Request, dry_run: bool, as_json: bool = False) -> None:
    """Check what is asked for, then print the plan or the scores. Raises RunError when a task could not be scored."""
    job = prepare(request)
    data = TaskData(request.source, job.settings.limit, job.settings.seed)
    check(job, data)
    if dry_run:
        lines = list(plan(job, data))
        answer("\n".join(lines), {"plan": lines}, as_json)
        return
    for model in filter(None, (job.model, job.base, job.control, job.compared)):
        require_model(model)
    import torch  # it and transformers cost seconds
    import transformers

    from eval.compare.tables import compared, own_words, result_tables, text
    from eval.runs.score import score
    from eval.runs.table import table

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    results, failures = score(job, data)
    then = [f"sts-dino card {quote(job.model)}"] if job.results else []
    parts, facts, verdicts = [table(results, job.start)], results.model_dump(mode="json"), tuple[Verdict, ...]()
    if job.compared and results.scores:
        folder = job.records.folder
        comparison = compared([read_evaluation(place) for place in (folder, folder / COMPARED)])
        sheets, verdicts = result_tables(comparison), comparison.verdicts
        parts = [*(parts if results.base_scores else []), *map(text, sheets)]
        facts |= {sheet.title: [sheet.header, *sheet.rows] for sheet in sheets}
    own = own_words(data.source.own.tasks, results.scores, verdicts)
    answer("\n\n".join([*parts, *filter(None, ["\n".join(own)])]), facts | {"own": own}, as_json, then)
    if failures:
        raise RunError("evaluation", f"{len(failures)} not scored, see above", hint="the others are written")
    if job.left_out:
        names = ",".join(job.left_out)
        hint = f"the others are written; name their data (--senteval-data, --sts-data, --hub-data), or --skip {names}"
        raise RunError("evaluation", f"left out, because no source of their data is given: {names}", hint=hint)
