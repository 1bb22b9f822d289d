"""What an evaluation is about to do: the recipe and the command line resolved, the data read, nothing scored yet."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from eval.data.sources import Source
from eval.embeddings import CACHE
from eval.encoders import FUNCTION
from eval.records import Records, beside, is_run_directory
from eval.registry import GROUPS, find_task, find_tasks
from eval.scores import Settings
from eval.task_data import Entry
from hub.cli import say
from hub.errors import InputError
from hub.recipe import ModelRecipe
from hub.recipe_file import apply_overrides, load_recipe
from hub.results import Method
from hub.run_dir import ARTIFACTS

EVALUATIONS = ARTIFACTS / "evaluations"
LONGEST = 120  # characters of a model's name in its folder's
WITHOUT_RECIPE = ("bootstrap_samples", "seed")  # what --set can name


@dataclass(frozen=True)
class Job:
    """``records`` is where the evaluation is written, ``results`` where a recipe's scores go beside it."""

    entries: tuple[Entry, ...]
    settings: Settings
    model: str
    base: str | None
    records: Records
    results: Path | None
    cache: Path | None
    threads: int | None = None


def prepare(
    source: Source,
    recipe: Path | None,
    model: str | None,
    base: str | None,
    tasks: Sequence[str],
    skip: Sequence[str],
    out: Path | None,
    cache: Path | None,
    no_cache: bool,
    limit: int | None,
    seeds: Sequence[int],
    interval: Method,
    overrides: list[str],
) -> Job:
    """Resolve a command line. Raises InputError for anything that does not fit together."""
    loaded = load_recipe(recipe, ModelRecipe, overrides) if recipe else None
    if model is None:
        if loaded is None:
            raise InputError(
                "--model", "names no encoder", hint="give --model, or a recipe whose model is to be scored"
            )
        model = str(ARTIFACTS / "models" / loaded.name)
    entries = _named(tasks, source) if tasks or loaded is None else _of_recipe(loaded, str(recipe))
    left_out = set(find_tasks(skip))
    entries = tuple(entry for entry in entries if entry.task not in left_out)
    if not entries:
        raise InputError("--tasks", "names no task", hint="e.g. --tasks sts,transfer or --tasks stsb/cosine")
    chosen = {"bootstrap_samples": loaded.bootstrap_samples, "seed": loaded.seed} if loaded else _overridden(overrides)
    settings = _settings({**chosen, "interval": interval, "probe_seeds": tuple(seeds), "limit": limit})
    folder = _folder(model, out, settings, of_recipe=loaded is not None)
    is_whole = loaded is not None and out is None and limit is None and Path(model).is_dir()
    return Job(
        entries=entries,
        settings=settings,
        model=model,
        base=base or default_base(model),
        records=Records(folder),
        results=Path(model) / "results.json" if is_whole else None,
        cache=None if no_cache else cache or (CACHE if folder.parent == EVALUATIONS else folder / "embeddings"),
        threads=loaded.threads if loaded else None,
    )


def require_alike(job: Job) -> None:
    """Raise InputError when the folder holds records of other rows: a trial would replace whole evaluations."""
    for record in job.records.all():
        if record.settings.part != job.settings.part:
            problem = f"holds an evaluation of {record.settings.rows}, this one is of {job.settings.rows}"
            raise InputError(job.records.folder, problem, hint="give another --out")


def default_base(model: str) -> str | None:
    """The untrained student that training left beside a model folder, if it is there."""
    path = Path(model)
    beside_it = path.with_name(f"{path.name}.base") if path.name else path
    return str(beside_it) if beside_it.is_dir() and beside_it != path else None


def _named(names: Sequence[str], source: Source) -> tuple[Entry, ...]:
    """Every split of the named tasks and groups; of a group, what there is a source for, and the rest is told."""
    entries, absent = list[Entry](), list[str]()
    for name in names:
        for task in find_tasks([name]):
            if name in GROUPS and not all(source.has(task.dataset, split) for split in task.reads(task.default_split)):
                absent.append(task.name)
            else:
                entries += [Entry(task, split) for split in task.splits]
    if absent:
        say(f"left out, because no source of their data is given: {', '.join(dict.fromkeys(absent))}")
    return tuple(dict.fromkeys(entries))


def _of_recipe(recipe: ModelRecipe, place: str) -> tuple[Entry, ...]:
    """The recipe's tasks. A group, and a task that cuts its own folds, needs no split."""
    if not recipe.evaluation:
        raise InputError(f"{place}:evaluation", "names no task", hint="add e.g. task: stsb/cosine")
    entries = []
    for item in recipe.evaluation:
        for task in find_tasks([item.task]):
            split = item.split if item.split in task.splits else task.default_split
            if item.split == "validation":
                task.reads(split := item.split)  # refused where the task does not score it
            entries.append(Entry(task, split, Path(item.path) if item.path else None))
    return tuple(dict.fromkeys(entries))


def _overridden(overrides: list[str]) -> dict[str, Any]:
    """``--set`` without a recipe."""
    tree = apply_overrides({}, overrides)
    unknown = next((key for key in tree if key not in WITHOUT_RECIPE), None)
    if unknown:
        raise InputError(f"--set {unknown}", "needs a recipe", allowed=", ".join(WITHOUT_RECIPE))
    return tree


def _settings(values: dict[str, Any]) -> Settings:
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--set {first['loc'][0]}", f"{first['msg']} (found {first['input']!r})") from error


def _folder(model: str, out: Path | None, settings: Settings, of_recipe: bool) -> Path:
    """Where the records go: ``out``; next to a run directory; else in artifacts/evaluations under the model's name.

    That is ORG--NAME@REVISION as asked for, or PARENT--NAME and a hash of the path: many a folder is called model.
    """
    if out is not None:
        if out.is_file() or out.suffix == ".json":
            raise InputError(out, "is a file", allowed="a folder, which gets results.json and the scored rows")
        return out
    path = Path(model)
    if path.is_dir() and (of_recipe or is_run_directory(path)):
        folder = beside(path)
    elif path.is_dir():
        where = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
        folder = EVALUATIONS / f"{_slug('/'.join(path.resolve().parts[-2:]))}-{where}"
    else:
        folder = EVALUATIONS / _slug(model.removeprefix(FUNCTION))
    if settings.part is None:
        return folder
    return folder.with_name(f"{folder.name}.limit-{settings.limit}-seed-{settings.seed}")


def _slug(name: str) -> str:
    """A model's name as a folder's: different names stay different, long ones are cut."""
    plain = quote(name, safe="/@").strip("/").replace("/", "--")
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[:LONGEST]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def one_task(name: str, split: str | None = None) -> Entry:
    """An entry by name, on the task's default split unless another is given."""
    task = find_task(name)
    return Entry(task, split or task.default_split)
