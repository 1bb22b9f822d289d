"""Plan of an evaluation: the options of the command line, resolved with a recipe and checked."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from sts_dino.eval.encoders.embeddings import CACHE_FOLDER
from sts_dino.eval.encoders.load import (
    FUNCTION_PREFIX,
    can_change_embeddings,
    find_local_encoder,
    resolve_encoder,
)
from sts_dino.eval.runs.records import (
    BASE_FOLDER,
    RESULTS_FILE,
    Records,
    get_records_folder,
    make_file_name,
)
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.registry import GROUPS, find_tasks
from sts_dino.eval.tasks.sources import Entry, Source, TaskReader
from sts_dino.eval.tasks.task import Task
from sts_dino.hub.cli import SetOption
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import apply_overrides, load_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS, MANIFEST, find_beside
from sts_dino.hub.errors import InputError

SIMCSE_SUFFIX = "copies"  # MODEL.copies: the SimCSE baseline that training leaves beside MODEL
EVALUATIONS_FOLDER = ARTIFACTS / "evaluations"
MAX_FOLDER_CHARACTERS = 120  # of a model's name in the name of its folder
SETTINGS_WITHOUT_RECIPE = ("bootstrap_samples", "seed")  # keys of --set without a recipe
DEFAULT_PROBE_SEEDS = (1111,)  # SentEval's seed
MAX_PROBE_SEED = 2**32 - 1  # the largest seed of numpy's RandomState


@dataclass(frozen=True)
class EvaluationJob:
    """An evaluation whose options are resolved, and which ``check_job`` then checks.

    ``model`` is the encoder; ``base``, ``control`` and ``compared`` are the untrained encoder, the
    SimCSE baseline and the encoder of ``--compare``, or None. ``entries`` are the task splits to
    score. ``left_out`` are the names of tasks that are not scored, because no source of their data
    is given; tasks of ``--skip`` are not among them. ``records`` are those of the model, in the
    folder of the evaluation. ``results`` is a second results.json to write, in the run directory;
    None: only that of the folder is written. ``cache`` is the folder of embeddings; None:
    embeddings are not kept. ``threads`` is the recipe's number of threads; None: torch's default.
    ``start`` is the name of the base in tables.
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
    """Options of ``sts-dino score`` that choose tasks and data.

    Without any, a recipe's own tasks are scored on the data that it names.
    """

    tasks: Annotated[
        list[str],
        typer.Option(metavar="TASK,GROUP", help="Score these [default: the recipe's]; repeatable"),
    ] = field(default_factory=list)
    skip: Annotated[
        list[str],
        typer.Option(metavar="TASK,GROUP", help="Tasks to leave out of a group; repeatable"),
    ] = field(default_factory=list)
    senteval_data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="SentEval's directory")
    ] = None
    sts_data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The STS organisers' files")
    ] = None
    hub_data: Annotated[
        str | None,
        typer.Option(metavar="REPO@REVISION", help="A pinned Hub dataset of evaluation data"),
    ] = None


@dataclass(frozen=True)
class Request(EvaluationOptions):
    """The options of ``sts-dino score``.

    ``recipe`` is the argument: a recipe, run directory, folder, Hub id or bare name.
    """

    recipe: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]", help="A recipe (.yaml), run directory, folder, ORG/NAME or bare name"
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder, ORG/NAME[@REVISION] or python:module:function [default: the recipe's]"
        ),
    ] = None
    compared: Annotated[
        str | None,
        typer.Option("--compare", metavar="OTHER", help="Another encoder, tested on the same rows"),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="[default: beside a run directory, or artifacts/evaluations]"
        ),
    ] = None
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where embeddings are kept")] = (
        None
    )
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Keep no embeddings")] = False
    limit: Annotated[
        int | None, typer.Option(min=1, help="A trial on N rows of each split, drawn by the seed")
    ] = None
    seeds: Annotated[list[str], typer.Option(help="Seeds of the probes [default: 1111]")] = field(
        default_factory=list
    )
    settings: SetOption = field(default_factory=list)


def split_names(values: Sequence[str]) -> list[str]:
    """Return the names in the values of a repeatable option, separated by commas in a value."""
    # A comma within parentheses separates nothing: MTEB(eng, v2)
    names = re.split(r",(?![^(]*\))", ",".join(values))
    return [name.strip() for name in names if name.strip()]


def parse_seeds(values: Sequence[str]) -> tuple[int, ...]:
    """Return the seeds in the values of ``--seeds``; ``DEFAULT_PROBE_SEEDS`` without values.

    Raises InputError for values that are not distinct whole numbers from 0 to ``MAX_PROBE_SEED``.
    """
    names = split_names(values)
    numbers = [int(name) for name in names if re.fullmatch(r"[0-9]{1,10}", name)]
    seeds = {number for number in numbers if number <= MAX_PROBE_SEED}
    if len(seeds) < len(names):
        raise InputError(
            "--seeds",
            f"{','.join(names)!r} are not distinct seeds",
            allowed=f"e.g. 1111,1112; whole numbers from 0 to {MAX_PROBE_SEED}",
        )
    return tuple(numbers) or DEFAULT_PROBE_SEEDS


def prepare_job(request: Request, source: Source) -> EvaluationJob:
    """Resolve the options of a command line into a job.

    ``source``: the source of evaluation data. Models are not read. Raises InputError for an
    unreadable recipe, without an encoder or a task, for an unknown task or setting, for a name of
    ``--compare`` that is not an encoder, for an ``--out`` or ``--cache`` in the model folder, and
    for options that do not fit together.
    """
    # The encoder is that of --model, else that of the recipe
    _refuse_empty_names(request)
    recipe = None
    if request.recipe:
        recipe = load_recipe(request.recipe, ModelRecipe, request.settings)
    if request.model is not None:
        model = find_local_encoder(request.model) or request.model
    else:
        if recipe is None:
            raise InputError(
                "--model",
                "names no encoder",
                hint="give --model, or a recipe whose model is to be scored",
            )
        model = str(ARTIFACTS / "models" / recipe.name)

    # Choose the folders of records, results and embeddings. With a recipe, an evaluation on all
    # rows also writes results.json into the model's folder, for its card. Evaluations in
    # artifacts/evaluations share the embeddings of one folder.
    settings = _make_settings(request, recipe)
    folder = _choose_folder(model, request.out, settings, of_recipe=recipe is not None)
    results = None
    if recipe is not None and request.out is None and request.limit is None:
        results = Path(model) / RESULTS_FILE if Path(model).is_dir() else None
    cache = request.cache or (
        CACHE_FOLDER if folder.parent == EVALUATIONS_FOLDER else folder / "embeddings"
    )
    _require_outside("--out", request.out, Path(model))
    _require_outside("--cache", request.cache, Path(model))

    # Choose the tasks; base and SimCSE baseline lie beside the model
    entries, left_out = _choose_entries(request, recipe, source)
    job = EvaluationJob(
        entries=entries,
        left_out=tuple(task.name for task in left_out),
        settings=settings,
        model=model,
        base=find_sibling_model(model, BASE_FOLDER),
        control=find_sibling_model(model, SIMCSE_SUFFIX),
        compared=resolve_encoder(request.compared) if request.compared else None,
        records=Records(folder),
        results=results,
        cache=None if request.no_cache else cache,
    )
    if recipe is None:
        return job
    return replace(job, threads=recipe.threads, start=recipe.base.start)


def _refuse_empty_names(request: Request) -> None:
    """Raise InputError for an empty ``--model`` or ``--compare``."""
    for option, name in (("--model", request.model), ("--compare", request.compared)):
        if name is not None and not name.strip():
            hint = "is a variable of your shell unset?"
            raise InputError(option, "is empty", allowed="an encoder", hint=hint)


def _require_outside(option: str, path: Path | None, model: Path) -> None:
    """Raise InputError when files in the folder ``path`` would change the model's revision.

    ``path``: the value of ``option``, or None. A ``model`` without modules.json is not checked.
    """
    if path is None or not (model / "modules.json").is_file():
        return
    place = path.resolve()
    folder = model.resolve()
    if not place.is_relative_to(folder):
        return
    file_in_model = PurePosixPath(place.relative_to(folder).as_posix(), "file")
    if can_change_embeddings(file_in_model):
        problem = f"lies in the model folder {model}: its files would change the model's revision"
        raise InputError(f"{option} {path}", problem, hint="choose another folder")


# Task splits to score, and the absent tasks: named by a group, but without a source of data
ChosenEntries = tuple[tuple[Entry, ...], tuple[Task, ...]]


def _choose_entries(request: Request, recipe: ModelRecipe | None, source: Source) -> ChosenEntries:
    """Return the task splits to score, and the absent tasks (``find_entries``).

    The splits are those of ``--tasks``, else of the recipe, then those of a user's own files. A
    recipe without an evaluation adds no task to a user's own files. The tasks of ``--skip`` are
    left out. Raises InputError for an unknown name, when no task is left, and the errors of
    ``_list_recipe_entries``.
    """
    # Choose the tasks
    own_entries = list_own_entries(source)
    names = split_names(request.tasks)
    chosen: tuple[Entry, ...] = ()
    all_absent: tuple[Task, ...] = ()
    if recipe is None or names:
        chosen, all_absent = find_entries(names, source)
    elif recipe.evaluation or not own_entries:
        chosen = _list_recipe_entries(recipe, str(request.recipe))

    # Leave out the tasks of --skip; some task must remain
    skipped = set(find_tasks(split_names(request.skip)))
    entries = tuple(entry for entry in (*chosen, *own_entries) if entry.task not in skipped)
    absent = tuple(task for task in all_absent if task not in skipped)
    if entries:
        return entries, absent
    problem = "names no task that --skip leaves" if chosen or own_entries else "names no task"
    hint = "e.g. --tasks stsb/cosine"
    if absent:
        problem += f"; no data are given for {', '.join(task.name for task in absent)}"
        hint = "give where they are: --senteval-data, --sts-data or --hub-data"
    raise InputError("--tasks", problem, hint=hint)


def check_job(job: EvaluationJob, data: TaskReader) -> None:
    """Check the folder, the data and MTEB's names before anything is encoded.

    Raises InputError when the folder has an evaluation of another part of the data, when data are
    missing or altered, for an MTEB task that is unknown or needs more than text, and for a limit on
    MTEB's tasks; RunError when the Hub cannot be read.
    """
    # Refuse a folder with scores of other rows: a trial would replace a complete evaluation
    for record in job.records.list_records():
        if record.settings.data_limit != job.settings.data_limit:
            raise InputError(
                job.records.folder,
                f"holds an evaluation of {record.settings.rows}, "
                f"this one is of {job.settings.rows}",
                hint="give another --out",
            )

    # Read the data of every task, and collect the errors
    errors: dict[str, InputError] = {}
    for entry in job.entries:
        if entry.task.is_of_mteb:
            # Importing mteb takes seconds
            from sts_dino.eval.runs.mteb_bridge import find_mteb_tasks

            find_mteb_tasks(entry.task.dataset, job.settings)
            continue
        try:
            data.read(entry)
        except InputError as error:
            errors[entry.task.name] = error
    if errors:
        first = next(iter(errors.values()))
        if len(errors) == 1:
            raise first
        raise InputError(
            "--tasks",
            f"{len(errors)} tasks lack their data, the first: {first}",
            hint=f"or leave out the tasks that lack data: --skip {','.join(errors)}",
        )


def describe_job(job: EvaluationJob, data: TaskReader) -> list[str]:
    """Return the plan of a job in lines: each task split with its rows, then the encoders.

    The data are read, except for MTEB's; no model is loaded. Raises InputError for missing or
    altered data, RunError when the Hub cannot be read.
    """
    lines = []
    for entry in job.entries:
        line = str(entry)
        if not entry.task.is_of_mteb:
            line += f": {len(data.read(entry).scored)} {entry.task.unit}"
        if entry.path:
            line += f" of {entry.path}"
        lines.append(line)
    if job.left_out:
        names = ", ".join(job.left_out)
        lines.append(f"left out, because no source of their data is given: {names}")
    if job.settings.data_limit:
        lines.append(f"{job.settings.data_limit}: a trial, no scores of the tasks")
    encoders = f"model {job.model}; base {job.base or 'none'}"
    if job.control:
        encoders += f"; SimCSE baseline {job.control}"
    if job.compared:
        encoders += f"; compared with {job.compared}"
    lines.append(f"{encoders}; results to {job.results or job.records.folder / RESULTS_FILE}")
    return lines


def find_sibling_model(model: str, kind: str) -> str | None:
    """Return the folder MODEL.KIND that training left beside the folder MODEL, or None.

    kind: ``BASE_FOLDER`` for the untrained base, ``SIMCSE_SUFFIX`` for the SimCSE baseline.
    """
    sibling = find_beside(Path(model), kind)
    return str(sibling) if sibling is not None and sibling.is_dir() else None


def list_own_entries(source: Source) -> tuple[Entry, ...]:
    """Return an entry for each task of a user's own files: a task has one split."""
    return tuple(Entry(task, task.default_split) for task in source.own.tasks)


def find_entries(names: Sequence[str], source: Source) -> ChosenEntries:
    """Return every split of the named tasks and groups, and the absent tasks, without repeats.

    A task that a group names is absent when it has no source of data. A task with its own name in
    ``names`` is not: reading its data raises an error. Raises InputError for an unknown name.
    """
    entries: list[Entry] = []
    absent: list[Task] = []
    for name in names:
        for task in find_tasks([name]):
            if name in GROUPS and not _has_data(task, source):
                absent.append(task)
            else:
                entries += [Entry(task, split) for split in task.splits]
    return tuple(dict.fromkeys(entries)), tuple(dict.fromkeys(absent))


def _has_data(task: Task, source: Source) -> bool:
    """Return whether the source has every split that the task reads."""
    return all(source.has(task.dataset, split) for split in task.list_splits(task.default_split))


def _list_recipe_entries(recipe: ModelRecipe, location: str) -> tuple[Entry, ...]:
    """Return the task splits of a recipe's evaluation, without repeats.

    A task without the recipe's split is scored on its default split. For the split ``validation``
    this holds only for a probe's validation task, which reads no test row: test rows must not stand
    for validation rows. Raises InputError for any other task without a validation split, for an
    unknown task, and, naming the recipe ``location``, when the recipe names no task.
    """
    if not recipe.evaluation:
        raise InputError(
            f"{location}:evaluation", "names no task", hint="add e.g. task: stsb/cosine"
        )
    entries = []
    for item in recipe.evaluation:
        for task in find_tasks([item.task]):
            if item.split == "validation" and not task.on_validation:
                task.list_splits(item.split)  # raises InputError without a validation split
            split = item.split if item.split in task.splits else task.default_split
            entries.append(Entry(task, split, Path(item.path) if item.path else None))
    return tuple(dict.fromkeys(entries))


def _make_settings(request: Request, recipe: ModelRecipe | None) -> EvaluationSettings:
    """Return the evaluation's settings.

    Resamples and seed come from the recipe, else from ``--set``; the probes' seeds and the limit
    have their own options. Raises InputError for a key of ``--set`` that needs a recipe, for a
    setting or seed that cannot be read, and for a value out of range.
    """
    values: dict[str, Any]
    if recipe is not None:
        values = {"bootstrap_samples": recipe.bootstrap_samples, "seed": recipe.seed}
    else:
        values = apply_overrides({}, request.settings)
        for key in values:
            if key not in SETTINGS_WITHOUT_RECIPE:
                raise InputError(
                    f"--set {key}", "needs a recipe", allowed=", ".join(SETTINGS_WITHOUT_RECIPE)
                )
    values |= {"probe_seeds": parse_seeds(request.seeds), "limit": request.limit}
    try:
        return EvaluationSettings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"--set {first['loc'][0]}", f"{first['msg']} (found {first['input']!r})"
        ) from error


def _choose_folder(
    model: str, out: Path | None, settings: EvaluationSettings, of_recipe: bool
) -> Path:
    """Return the folder of the records.

    The folder is ``out``; else beside a run directory; else in artifacts/evaluations under the
    model's name. Without ``out`` a trial, on a part of the data, has a folder of its own.

    Args:
        model: the encoder.
        out: the folder of ``--out``; None: the option is not given.
        settings: the evaluation's settings.
        of_recipe: whether a recipe is given: then a folder ``model`` counts as a run directory.

    Raises InputError when ``out`` is a file or has the suffix .json.
    """
    if out is not None:
        if out.is_file() or out.suffix == ".json":
            raise InputError(
                out,
                "is a file, or named like one",
                allowed="a folder, which gets results.json and the scored rows",
            )
        return out

    # A run directory has a manifest; with a recipe, the model's folder counts without one
    path = Path(model)
    if path.is_dir() and (of_recipe or (path / MANIFEST).is_file()):
        folder = get_records_folder(path)
    else:
        folder = EVALUATIONS_FOLDER / _make_model_name(model)
    if settings.data_limit is None:
        return folder
    return folder.with_name(f"{folder.name}.limit-{settings.limit}-seed-{settings.seed}")


def _make_model_name(model: str) -> str:
    """Return the name of a model's evaluation folder.

    A Hub model gives ORG--NAME@REVISION, a function its name without the prefix. A folder gives
    PARENT--NAME and a hash of the path, because many folders have one name. Characters other than
    ASCII letters, digits and ``_.-~@`` are escaped. A name of more than ``MAX_FOLDER_CHARACTERS``
    is cut, and gets a hash.
    """
    if not Path(model).is_dir():
        name = model.removeprefix(FUNCTION_PREFIX)
        return make_file_name(name, MAX_FOLDER_CHARACTERS, safe="/@")
    folder = Path(model).resolve()
    name = make_file_name("/".join(folder.parts[-2:]), MAX_FOLDER_CHARACTERS, safe="/@")
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{name}-{digest}"
