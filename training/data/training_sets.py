"""Training data: pinned Hub datasets, finished run directories and files, whole or streamed.

Only the columns of the example type are kept: the trainer feeds every other column to the model as text. Rows that are
read whole stay on disk, memory-mapped. A stream (``streaming: true``) comes shuffled and is checked while it is read.
"""

import glob
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import Dataset, IterableDataset

from hub.client.connection import reading
from hub.client.fetch import hub_dataset, local_run, require_known
from hub.contract.recipe import MADE, PUBLISHED, DatasetRecipe, Grades, Spans, TrainingData
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE
from hub.contract.shards import reading_rows
from hub.durable import sha256_file
from hub.errors import InputError
from hub.text_files import READERS, as_text, kind_of, open_rows
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES, GRADED_TRIPLET, SELF_PAIR
from training.data.rows import (
    NO_ROWS,
    ROWS,
    SET,
    SOURCE_COLUMNS,
    RowChecks,
    all_equal,
    checked_stream,
    graded_rows,
    in_memory,
    self_pairs,
    text_columns,
)


@dataclass(frozen=True)
class Origin:
    """A dataset as found: every split with all its columns, and what pins it (commit of a Hub dataset, else None)."""

    splits: Mapping[str, Dataset | IterableDataset]
    commit: str | None
    sha256: str
    license: str | None

    def split(self, name: str, place: str) -> Dataset | IterableDataset:
        """The rows of one split. Raises InputError naming those there are."""
        return self.splits[require_known(name, sorted(self.splits), place, "split")]


def from_hub(repo_id: str, revision: str | None, config: str | None, streaming: bool, place: str) -> Origin:
    """All splits of a Hub dataset at the commit that its revision (a tag) stands for now.

    ``config`` None: the dataset's only one, or its ``default``. Raises InputError when there is no such repository,
    revision or config, or it cannot be read; RunError when the Hub does not answer.
    """
    found = hub_dataset(repo_id, revision, place)
    options = {"streaming": True} if streaming else {}
    loaded = found.ask("load_dataset", _config(config, found.ask("get_dataset_config_names"), place), **options)
    return Origin(loaded, found.commit, found.commit, found.license)


def from_directory(directory: Path, config: str, streaming: bool, place: str) -> Origin:
    """All splits of a finished local run directory: the shards its manifest names for the config.

    Raises InputError when it is none, has no such config, or a shard is not what the manifest says.
    """
    run = local_run(directory, place)
    _, shards = run.shards(_config(config, run.configs, place))
    if not shards:
        raise InputError(place, "has no rows", hint="generate more, or take another config")
    files: dict[str, list[str]] = {}
    for shard in shards:
        files.setdefault(shard.split or "train", []).append(str((directory / shard.path).resolve()))
    digest = hashlib.sha256("".join(f"{file.path} {file.sha256}\n" for file in run.manifest.shards(config)).encode())
    recipe = directory / RECIPE
    licence = load_recipe(recipe, DatasetRecipe).license if recipe.is_file() else None
    return Origin(load_shards(files, streaming, place), None, digest.hexdigest(), licence)


def from_file(path: Path, spec: TrainingData, place: str) -> Origin:
    """The rows of a file that ``hub.text_files`` reads, as its one split, with the columns that are trained on.

    Raises InputError when it is not there, of another kind, or holds something else than texts and numbers.
    """
    one = "default", "train"
    if not path.is_file():
        raise InputError(place, "no such file", allowed=f"a run directory, or a file ending in {', '.join(READERS)}")
    if (spec.config, spec.split) != one:
        raise InputError(place, f"is one file, without config {spec.config!r} and split {spec.split!r}", allowed=one)
    names, first = open_rows(path, place)
    if next(first, None) is None:
        raise InputError(place, "has no rows", hint="take a file with at least one")
    kinds = column_kinds(spec, names)
    sha256 = sha256_file(path)
    given = {"path": str(path.resolve()), "place": place, "kinds": kinds, "sha256": sha256}
    source: Any = IterableDataset if spec.streaming else Dataset  # which keeps the rows in the cache of ``datasets``
    features = datasets.Features({name: datasets.Value(kind) for name, kind in kinds.items()})
    with reading_rows(place):
        rows = source.from_generator(typed_rows, features=features, gen_kwargs=given)
    return Origin({"train": rows}, None, sha256, None)


def column_kinds(spec: TrainingData, names: list[str]) -> dict[str, str]:
    """The type of each column of a file: text, a number, or null for one that is not trained on."""
    examples = EXAMPLE_TYPES[spec.example_type]
    target = examples.read.target
    kinds = dict.fromkeys(SOURCE_COLUMNS if examples == SELF_PAIR else examples.read.columns, "string")
    kinds |= dict.fromkeys(spec.columns or (), "string")
    if spec.example_set is not None:
        kinds[SET] = "int64"
    if target is not None:
        kinds[target.column] = "int64" if target.integers else "float64"
    return {name: kinds.get(name, "null") for name in names}


def typed_rows(path: str, place: str, kinds: dict[str, str], sha256: str) -> Iterator[dict[str, Any]]:
    """The rows of a file with cells of these kinds; ``sha256`` is for the cache of ``datasets``, by the arguments."""
    wanted = [name for name, kind in kinds.items() if kind != "null"]
    for number, row in open_rows(Path(path), place, wanted)[1]:
        where = f"{place}:{number}"
        cells = {name: _cell(row.get(name), kinds[name], where, name) for name in wanted}
        yield dict.fromkeys(kinds) | cells


def _cell(cell: Any, kind: str, where: str, name: str) -> Any:
    if kind == "string":
        return as_text(cell, where, name)
    if cell is None or cell == "":
        raise InputError(where, f"column {name!r} is empty", allowed="a number")
    try:
        number = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        number = math.nan
    if kind == "int64" and number.is_integer():
        return int(number)
    if kind == "int64" or math.isnan(number):
        raise InputError(where, f"column {name!r} is {str(cell)[:40]!r}", allowed="a number")
    return number


def load_shards(files: dict[str, list[str]], streaming: bool, place: str) -> Any:
    """Shards of parquet by split, read by ``datasets``. Raises InputError when their bytes are not parquet."""
    if any("::" in path for paths in files.values() for path in paths):
        raise InputError(place, "its path has '::', by which datasets splits a path", hint="rename the folder")
    exact = {split: [glob.escape(path) for path in paths] for split, paths in files.items()}
    with reading_rows(place):
        return datasets.load_dataset("parquet", data_files=exact, streaming=streaming)


def _config(given: str | None, configs: list[str], place: str) -> str:
    if given is None and len(configs) > 1 and "default" not in configs:
        raise InputError(place, "has several configs", allowed=configs, hint="name one: config")
    config = given or ("default" if "default" in configs else configs[0])
    return require_known(config, configs, place, "config")


DESCRIBED = {  # of a spec, for the manifest
    *("repo_id", "revision", "path", "config", "example_type", "example_set", "loss"),
    *("columns", "grades"),
}
VALIDATION_ROWS = 10_000  # of a stream's validation split: they are kept in memory


@dataclass(frozen=True)
class TrainingSet:
    """A checked training dataset with the columns of its example type alone.

    ``commit``: of the Hub (None: local). ``sha256`` identifies the rows' origin. ``own_license``: that of its card or
    recipe. ``passed_over``: source sentences without a row. ``all_equal``: whether it has one distinct row.
    """

    name: str
    spec: TrainingData
    train: Dataset | IterableDataset
    validation: Dataset | None
    commit: str | None
    sha256: str
    own_license: str | None
    passed_over: int = 0
    all_equal: bool = False

    @property
    def rows(self) -> int | None:
        """Training rows of one epoch; None when they are streamed, and so not counted."""
        return len(self.train) if isinstance(self.train, Dataset) else None

    def describe(self) -> dict[str, Any]:
        """Its provenance entry for the manifest; the rows of a streamed split are None."""
        splits: dict[str, int | None] = {self.spec.split: self.rows}
        if self.validation is not None:
            splits["validation"] = len(self.validation)
        spec = self.spec.model_dump(context=PUBLISHED, include=DESCRIBED, exclude_none=True)
        return {**spec, "commit": self.commit, "splits": splits, "license": self.own_license}

    @property
    def license(self) -> str | None:
        """The licence that the data declare, else the one in the recipe; None if neither does."""
        return self.own_license or self.spec.license


def load_all(
    specs: tuple[TrainingData, ...], limit: int | None, seed: int = 42, own_validation: bool = True
) -> list[TrainingSet]:
    """Every dataset of a recipe under a name of its own, at most ``limit`` training rows of each, in file order.

    ``seed`` orders streams. ``own_validation``: whether the datasets' validation splits are wanted.
    Raises InputError for data that cannot be trained on, RunError when the Hub cannot be read.
    """
    streamed = [index for index, spec in enumerate(specs) if spec.streaming]
    if streamed and len(specs) > 1:
        problem = "a streamed dataset is trained on alone: the trainer mixes datasets by their lengths"
        hint = "remove it, or make the stream the only dataset"
        raise InputError(f"datasets.{streamed[0]}.streaming", problem, hint=hint)
    return [load(spec, f"datasets.{index}", limit, seed, own_validation) for index, spec in enumerate(specs)]


def load(
    spec: TrainingData, key: str, limit: int | None = None, seed: int = 42, own_validation: bool = False
) -> TrainingSet:
    """The dataset that a recipe names under ``key``, as ``load_all`` reads it."""
    place = f"{key}: {spec.repo_id or spec.path} ({spec.config})"
    origin = _find(spec, place)
    rows = origin.split(spec.split, place)
    part = f"{place}, {spec.split}"
    passed_over = 0
    with reading(spec.repo_id, spec.revision) if spec.repo_id is not None else nullcontext():
        train: Dataset | IterableDataset
        if isinstance(rows, IterableDataset):
            train, equal = checked_stream(rows, spec, part, limit, seed)
        elif spec.example_type in MADE:
            train, passed_over = _made(rows, spec, part, limit)
        else:
            checks = RowChecks(EXAMPLE_TYPES[spec.example_type], spec.example_set, part)
            train = checked(rows, checks, limit, spec.spans)
        equal = all_equal(train) if isinstance(train, Dataset) else equal
        validation = _validation(spec, origin, place) if own_validation else None
    stem = Path(spec.repo_id or spec.path or "").name.replace(".", "-")  # torch takes no dot in a module's name
    name = f"{stem}-{spec.config}-{key.rsplit('.', 1)[-1]}"
    return TrainingSet(name, spec, train, validation, origin.commit, origin.sha256, origin.license, passed_over, equal)


def _made(rows: Dataset, spec: TrainingData, place: str, limit: int | None) -> tuple[Dataset, int]:
    """The rows made from others, at most ``limit``, and the number of source sentences without any."""
    examples = EXAMPLE_TYPES[spec.example_type]
    read = examples.read
    if examples == SELF_PAIR:
        read = replace(read, columns=dict.fromkeys(text_columns(spec.columns, rows.column_names, place), "string"))
    found = checked(rows, RowChecks(read, spec.example_set, place, one_target=True))
    if examples == SELF_PAIR:
        made, without = self_pairs(found, limit), 0
    else:
        grades = spec.grades or Grades()
        made, without = graded_rows(found, grades, examples == GRADED_TRIPLET, limit)
    if len(made) == 0:
        wanted = {SELF_PAIR: "a text", GRADED_TRIPLET: "a positive and a negative"}
        hint = None if examples == SELF_PAIR else "look at datasets.N.grades"
        problem = f"no row can be made of it: no source sentence has {wanted.get(examples, 'a positive')}"
        raise InputError(place, problem, hint=hint)
    return made, without


def _find(spec: TrainingData, place: str) -> Origin:
    if spec.repo_id is not None:
        return from_hub(spec.repo_id, spec.revision, spec.config, spec.streaming, place)
    path = Path(spec.path or "")
    if path.is_file() or (kind_of(path) in READERS and not path.is_dir()):
        return from_file(path, spec, place)
    return from_directory(path, spec.config, spec.streaming, place)


def _validation(spec: TrainingData, origin: Origin, place: str) -> Dataset | None:
    """The validation split, as it is read, unless it is what is trained on; texts alone score nothing."""
    examples = EXAMPLE_TYPES[spec.example_type]
    if examples in (DOCUMENTS, SELF_PAIR) or spec.split == "validation" or "validation" not in origin.splits:
        return None
    rows = origin.split("validation", place)
    part = f"{place}, validation"
    if isinstance(rows, IterableDataset):
        rows = in_memory(rows.take(VALIDATION_ROWS), part)
    return checked(rows, RowChecks(examples.read, spec.example_set, part))


def checked(rows: Dataset, checks: RowChecks, limit: int | None = None, spans: Spans | None = None) -> Dataset:
    """The first ``limit`` rows (of one example set) with the columns of the example type only.

    Raises InputError unless the trainer can learn from every one of them.
    """
    place, example_set = checks.place, checks.example_set
    if len(rows) == 0:  # its columns may have no type
        raise InputError(place, "has no rows", hint=NO_ROWS)
    checks.require_columns(rows.features.arrow_schema)
    kept, first = [np.arange(0)], 0
    for table in rows.select_columns(checks.columns).with_format("arrow").iter(batch_size=ROWS):
        keep = checks.of_set(table)
        keep = keep if limit is None else keep[: limit - checks.rows]
        part = table.take(keep) if len(keep) < table.num_rows else table
        checks.require_cells(part, first + keep)
        checks.add(part)
        if example_set is not None:
            kept.append(first + keep)
        first += table.num_rows
        if limit is not None and checks.rows >= limit:
            break
    checks.require_rows(place)
    checks.require_long_enough(spans or Spans())
    rows = rows.select_columns(list(checks.examples.columns))
    if example_set is not None:
        return rows.select(np.concatenate(kept))
    return rows.select(range(checks.rows)) if checks.rows < len(rows) else rows
