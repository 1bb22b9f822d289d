"""What an evaluation is about to do: the recipe and the command line resolved, the data read, nothing scored yet."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from eval.encoders.embeddings import CACHE
from eval.encoders.load import FUNCTION, named
from eval.runs.records import BASE, RESULTS, Records, beside, slug
from eval.statistics.bootstrap import EvaluationSettings
from eval.tasks.registry import GROUPS, find_tasks
from eval.tasks.sources import Entry, Source, TaskData
from eval.tasks.task import Task
from hub.cli import SetOption
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import apply_overrides, load_recipe
from hub.contract.run_dir import ARTIFACTS, MANIFEST
from hub.errors import InputError

COPIES = "copies"
EVALUATIONS = ARTIFACTS / "evaluations"
LONGEST = 120  # characters of a model's name in its folder's
WITHOUT_RECIPE = ("bootstrap_samples", "seed")  # what --set can name


@dataclass(frozen=True)
class EvaluationJob:
    """``records`` is where the evaluation is written, ``results`` where a recipe's scores go beside it.

    left_out: tasks of the named groups that no source of data is given for and that ``--skip`` did not name.
    start: what tables call the base.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]
    settings: EvaluationSettings
    model: str
    base: str | None
    control: str | None
    compared: str | None
    records: Records
    results: Path | None
    cache: Path | None
    threads: int | None = None
    start: str = "base encoder"


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of ``sts-dino score`` by those names. Without any, a recipe's own tasks on the data it names."""

    tasks: Annotated[
        list[str], typer.Option(metavar="TASK,GROUP", help="Score these [default: the recipe's]; repeatable")
    ] = field(default_factory=list)
    skip: Annotated[list[str], typer.Option(metavar="TASK,GROUP", help="Tasks to leave out of a group; repeatable")] = (
        field(default_factory=list)
    )
    senteval_data: Annotated[Path | None, typer.Option(metavar="DIR", help="SentEval's directory")] = None
    sts_data: Annotated[Path | None, typer.Option(metavar="DIR", help="The STS organisers' files")] = None
    hub_data: Annotated[
        str | None, typer.Option(metavar="REPO@REVISION", help="A pinned Hub dataset of evaluation data")
    ] = None


@dataclass(frozen=True)
class Request(EvaluationOptions):
    """What a command line asks for. ``tasks`` are names of tasks and groups; without them the recipe's are meant."""

    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="A recipe (.yaml), run directory, folder, ORG/NAME or bare name"),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Folder, ORG/NAME[@REVISION] or python:module:function [default: the recipe's]")
    ] = None
    compared: Annotated[
        str | None, typer.Option("--compare", metavar="OTHER", help="Another encoder, tested on the same rows")
    ] = None
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="[default: beside a run directory, or artifacts/evaluations]")
    ] = None
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where embeddings are kept")] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no embeddings")] = False
    limit: Annotated[int | None, typer.Option(min=1, help="A trial on N rows of each split, drawn by the seed")] = None
    seeds: Annotated[list[str], typer.Option(help="Seeds of the probes [default: 1111]")] = field(default_factory=list)
    settings: SetOption = field(default_factory=list)


def split_names(values: list[str]) -> list[str]:
    """Options given more than once, or with commas, as one list."""
    names = (name for value in values for name in re.split(r",(?![^(]*\))", value))  # not within MTEB(eng, v2)
    return [name.strip() for name in names if name.strip()]


def read_seeds(values: list[str]) -> tuple[int, ...]:
    """Seeds of the probes. Raises InputError for anything else."""
    names = split_names(values)
    if len(set(names)) < len(names) or not all(name.isascii() and name.isdigit() for name in names):
        raise InputError("--seeds", f"{','.join(names)!r} are not distinct seeds", allowed="e.g. 1111,1112")
    return tuple(map(int, names)) or (1111,)


def prepare(request: Request, source: Source) -> EvaluationJob:
    """Resolve a command line. Raises InputError for anything that does not fit together."""
    recipe = load_recipe(request.recipe, ModelRecipe, request.settings) if request.recipe else None
    if request.model is None and recipe is None:
        raise InputError("--model", "names no encoder", hint="give --model, or a recipe whose model is to be scored")
    model = request.model or str(ARTIFACTS / "models" / (recipe.name if recipe else ""))
    settings = _settings(request, recipe)
    folder = _folder(model, request.out, settings, of_recipe=recipe is not None)
    is_whole = recipe is not None and request.out is None and request.limit is None and Path(model).is_dir()
    kept_in = request.cache or (CACHE if folder.parent == EVALUATIONS else folder / "embeddings")
    entries, left_out = _entries(request, recipe, source)
    return EvaluationJob(
        entries=entries,
        left_out=left_out,
        settings=settings,
        model=model,
        base=beside_model(model, BASE),
        control=beside_model(model, COPIES),
        compared=named(request.compared) if request.compared else None,
        records=Records(folder),
        results=Path(model) / RESULTS if is_whole else None,
        cache=None if request.no_cache else kept_in,
        threads=recipe.threads if recipe else None,
        **({"start": recipe.base.start} if recipe else {}),
    )


def _entries(request: Request, recipe: ModelRecipe | None, source: Source) -> tuple[tuple[Entry, ...], tuple[str, ...]]:
    """What is scored, and the names of what is left out for want of data."""
    own, names = own_entries(source), split_names(request.tasks)
    if recipe is None or names:
        found, absent = find_entries(names, source)
    else:
        found, absent = _of_recipe(recipe, str(request.recipe)) if recipe.evaluation or not own else (), ()
    found = (*found, *own)
    skipped = set(find_tasks(split_names(request.skip)))
    found = tuple(entry for entry in found if entry.task not in skipped)
    absent = tuple(task for task in absent if task not in skipped)
    if not found:
        without = f"; no data are given for {', '.join(task.name for task in absent)}" if absent else ""
        where = "give where they are: --senteval-data, --sts-data or --hub-data"
        raise InputError("--tasks", f"names no task{without}", hint=where if absent else "e.g. --tasks stsb/cosine")
    return found, tuple(task.name for task in absent)


def check(job: EvaluationJob, data: TaskData) -> None:
    """Before anything is encoded: all of the data are there, MTEB knows its names, and the folder is not another's.

    Raises InputError.
    """
    for record in job.records.all():  # a trial would replace whole evaluations
        if record.settings.part != job.settings.part:
            problem = f"holds an evaluation of {record.settings.rows}, this one is of {job.settings.rows}"
            raise InputError(job.records.folder, problem, hint="give another --out")
    absent: dict[str, InputError] = {}
    for entry in job.entries:
        if entry.task.is_of_mteb:
            from eval.mteb_bridge.run import find_mteb  # importing mteb costs seconds

            find_mteb(entry.task.dataset, job.settings)
            continue
        try:
            data.rows(entry)
        except InputError as error:
            absent[entry.task.name] = error
    if absent:
        first = next(iter(absent.values()))
        if len(absent) == 1:
            raise first
        hint = f"or leave out what lacks its data: --skip {','.join(absent)}"
        raise InputError("--tasks", f"{len(absent)} tasks lack their data, the first: {first}", hint=hint)


def plan(job: EvaluationJob, data: TaskData) -> Iterator[str]:
    """What would be scored, line by line; the data are read, no model is."""
    for entry in job.entries:
        rows = "" if entry.task.is_of_mteb else f": {len(data.rows(entry)[entry.split])} {entry.task.unit}"
        yield f"{entry}{rows}" + (f" of {entry.path}" if entry.path else "")
    if job.left_out:
        yield f"left out, because no source of their data is given: {', '.join(job.left_out)}"
    if job.settings.part:
        yield f"{job.settings.part}: a trial, no scores of the tasks"
    beside = {"base": job.base or "none", "control": job.control, "compared with": job.compared}
    others = "; ".join(f"{name} {place}" for name, place in beside.items() if place)
    yield f"model {job.model}; {others}; results to {job.results or job.records.folder / RESULTS}"


def beside_model(model: str, kind: str) -> str | None:
    """What training left beside a model folder, if it is there: the untrained ``base``, the ``copies`` control."""
    path = Path(model)
    beside_it = path.with_name(f"{path.name}.{kind}") if path.name else path
    return str(beside_it) if beside_it.is_dir() and beside_it != path else None


def own_entries(source: Source) -> tuple[Entry, ...]:
    """What is scored of a user's own files."""
    return tuple(Entry(task, task.default_split) for task in source.own.tasks)


def find_entries(names: Sequence[str], source: Source) -> tuple[tuple[Entry, ...], tuple[Task, ...]]:
    """Every split of the named tasks, and of a group's tasks that have a source of data; then those that have none."""
    entries, absent = list[Entry](), list[Task]()
    for name in names:
        for task in find_tasks([name]):
            if name in GROUPS and not all(source.has(task.dataset, split) for split in task.reads(task.default_split)):
                absent.append(task)
            else:
                entries += [Entry(task, split) for split in task.splits]
    return tuple(dict.fromkeys(entries)), tuple(dict.fromkeys(absent))


def _of_recipe(recipe: ModelRecipe, place: str) -> tuple[Entry, ...]:
    """The recipe's tasks. A group, and a task that cuts its own folds, needs no split."""
    if not recipe.evaluation:
        raise InputError(f"{place}:evaluation", "names no task", hint="add e.g. task: stsb/cosine")
    entries = []
    for item in recipe.evaluation:
        for task in find_tasks([item.task]):
            split = item.split if item.split in task.splits else task.default_split
            if item.split == "validation" and not task.on_validation:
                task.reads(split := item.split)  # refused where the task does not score it
            entries.append(Entry(task, split, Path(item.path) if item.path else None))
    return tuple(dict.fromkeys(entries))


def _settings(request: Request, recipe: ModelRecipe | None) -> EvaluationSettings:
    """The evaluation's settings. Raises InputError for one that needs a recipe or has no such value."""
    if recipe is not None:
        values: dict[str, Any] = {"bootstrap_samples": recipe.bootstrap_samples, "seed": recipe.seed}
    else:
        values = apply_overrides({}, request.settings)
        unknown = next((key for key in values if key not in WITHOUT_RECIPE), None)
        if unknown:
            raise InputError(f"--set {unknown}", "needs a recipe", allowed=", ".join(WITHOUT_RECIPE))
    values |= {"probe_seeds": read_seeds(request.seeds), "limit": request.limit}
    try:
        return EvaluationSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--set {first['loc'][0]}", f"{first['msg']} (found {first['input']!r})") from error


def _folder(model: str, out: Path | None, settings: EvaluationSettings, of_recipe: bool) -> Path:
    """Where the records go: ``out``; next to a run directory; else in artifacts/evaluations under the model's name.

    That is ORG--NAME@REVISION as asked for, or PARENT--NAME and a hash of the path: many a folder is called model.
    """
    if out is not None:
        if out.is_file() or out.suffix == ".json":
            raise InputError(out, "is a file", allowed="a folder, which gets results.json and the scored rows")
        return out
    path = Path(model)
    if path.is_dir() and (of_recipe or (path / MANIFEST).is_file()):
        folder = beside(path)
    else:
        place = str(path.resolve()) if path.is_dir() else model
        name = "/".join(path.resolve().parts[-2:]) if path.is_dir() else model.removeprefix(FUNCTION)
        plain = slug(name, safe="/@")
        if path.is_dir() or len(plain) > LONGEST:
            plain = f"{plain[:LONGEST]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
        folder = EVALUATIONS / plain
    if settings.part is None:
        return folder
    return folder.with_name(f"{folder.name}.limit-{settings.limit}-seed-{settings.seed}")
