"""Reader of datasets to be measured: run directories, published runs and other datasets of a Hub."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hub import cli
from hub.client.fetch import FinishedRun, HubDataset, hub_dataset, local_run, published_run, require_known
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import File
from hub.contract.schema import ROW_SCHEMAS, SCHEMAS, base_config, is_finished, text_schema
from hub.contract.shards import parquet_schema, reading_rows, shard_tables
from hub.errors import InputError

if TYPE_CHECKING:
    from datasets import Features

BATCH = 4096  # rows
_SCHEMAS = {**ROW_SCHEMAS, "text": text_schema(())}
_COLUMNS = [(name, column, of) for name, schema in _SCHEMAS.items() for column, of in schema.columns.items()]
TEXTS = {name: tuple(column for one, column, of in _COLUMNS if one == name and of == "string") for name in _SCHEMAS}
LABELS = {name: column for name, column, of in _COLUMNS if of != "string"}  # of its label or score
SCORE = "score"
TARGET = "target"  # provenance: the label whose instruction was given
NO_LABEL = "no label"

Read = Callable[[str, list[str]], Iterator[pa.Table]]  # split, columns → tables of at most ``BATCH`` rows


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a split; those not drawn are left out. ``labels`` is empty for triplets."""

    split: str
    rows: NDArray[np.int64]  # (n,) their numbers in the split, from 0
    texts: dict[str, list[str]]  # column → n texts
    labels: list[str]
    scores: list[float]  # of scored pairs, else empty

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> tuple[list[str], list[str], list[str]]:
        """Both sides and labels of the batch's pairs: a triplet is a positive pair, then a negative one.

        Single texts give three empty lists.
        """
        columns = list(self.texts.values())
        if len(columns) == 3:
            anchors = [anchor for anchor in columns[0] for _ in range(2)]
            others = [text for both in zip(*columns[1:], strict=True) for text in both]
            return anchors, others, ["positive", "negative"] * len(self)
        return (columns[0], columns[1], self.labels) if len(columns) == 2 else ([], [], [])


@dataclass(frozen=True)
class DatasetRows:
    """One config of a dataset. ``revision`` is the Hub commit or the run's fingerprint.

    ``recipe`` reads the recipe of the run, or None.
    """

    name: str
    revision: str
    config: str
    example_type: str
    splits: dict[str, int]  # split → rows
    class_names: tuple[str, ...]
    labelled_by: str | None  # column
    read: Read
    recipe: Callable[[], DatasetRecipe | None] = lambda: None

    @property
    def place(self) -> str:
        """Name and config, for messages."""
        return f"{self.name} ({self.config})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns, in the example type's order."""
        return TEXTS[self.example_type]

    @property
    def is_scored(self) -> bool:
        """Whether rows have a similarity score."""
        return LABELS.get(self.example_type) == SCORE

    @property
    def total(self) -> int:
        """Rows of all splits."""
        return sum(self.splits.values())

    def batches(self, sample: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """All rows, or ``sample`` of them drawn at random without replacement, split by split.

        Raises InputError for a scored pair whose score is not a number.
        """
        chosen, first = np.arange(self.total), 0  # numbers over all splits, in order
        if sample is not None and sample < self.total:
            chosen = np.sort(np.random.default_rng(seed).choice(self.total, sample, replace=False))
        labelled_by = [self.labelled_by] if self.labelled_by else []
        asked = list(dict.fromkeys([*self.columns, *labelled_by, *([SCORE] if self.is_scored else [])]))
        for split, rows in self.splits.items():
            start = first
            for table in self.read(split, asked):
                low, high = np.searchsorted(chosen, [start, start + len(table)])
                kept = chosen[low:high] - start
                if len(kept):
                    yield self._batch(split, kept + start - first, table.take(kept))
                start += len(table)
            first += rows

    def _batch(self, split: str, rows: NDArray[np.int64], table: pa.Table) -> Batch:
        texts = {column: [text or "" for text in table[column].to_pylist()] for column in self.columns}
        scores = table[SCORE].to_pylist() if self.is_scored else []
        for row, score in zip(rows, scores, strict=False):
            if score is None or not math.isfinite(score):
                place = f"{self.place}, {split} row {row}"
                raise InputError(place, f"has the score {score}", allowed="a number", hint="drop the row")
        labels = [self._label(value) for value in table[self.labelled_by].to_pylist()] if self.labelled_by else []
        return Batch(split, rows, texts, labels, scores)

    def _label(self, value: object) -> str:
        if isinstance(value, float):
            return f"{round(value, 1):g}"  # human scores: one group a tenth
        if isinstance(value, int) and 0 <= value < len(self.class_names):
            return self.class_names[value]
        return NO_LABEL if value is None or value == -1 else str(value)


def example_type_of(features: Features, place: str) -> str:
    """The example type of a config with these columns.

    Raises InputError when no example type has them, or texts or scores have another type.
    """
    from datasets import Value

    needed = {name: [*texts, LABELS[name]] if name in LABELS else [*texts] for name, texts in TEXTS.items()}
    found = next((name for name, columns in needed.items() if features.keys() >= {*columns}), None)
    if found is None:
        allowed = " | ".join(map(", ".join, needed.values()))
        raise InputError(place, f"has the columns {sorted(features)}", allowed=allowed)
    for column in needed[found]:
        allowed_types = ("string", "large_string") if column in TEXTS[found] else ("float", "int", "double")
        kind = features[column]
        dtype = kind.dtype if isinstance(kind, Value) else type(kind).__name__
        if column in (*TEXTS[found], SCORE) and not dtype.startswith(allowed_types):
            problem = f"its column {column!r} is of the type {dtype}"
            raise InputError(place, problem, allowed=" or ".join(allowed_types[:2]))
    return found


FIRST = (  # of several finished configs, the first is read: a schema's labelled one before its others
    *(schema.labelled for schema in SCHEMAS.values()),
    *(config for schema in SCHEMAS.values() for config in schema.finished),
)
HUB_ID = re.compile(r"(?!artifacts/|\.)[\w.-]+/[\w.-]+(@.+)?")


@dataclass(frozen=True)
class Dataset:
    """A dataset and its configs. ``finished``: those that one trains on; ``usual``: the one it declares, if any.

    ``table``: config → its columns, the rows of each split, and how they are read.
    """

    place: str
    name: str
    revision: str
    configs: tuple[str, ...]
    finished: tuple[str, ...]
    usual: str | None
    table: Callable[[str], tuple[Features, dict[str, int], Read]]
    recipe: Callable[[], DatasetRecipe | None] = lambda: None

    def rows(self, config: str | None = None, split: str | None = None) -> DatasetRows:
        """The rows of a config; None is the one that one trains on. ``split`` None: of all splits.

        Raises InputError when there is no such config or split, several could be meant, there are no rows, the columns
        are of no example type, or a shard is damaged.
        """
        from datasets import ClassLabel

        config = require_known(config or self._config(), self.configs, self.place, "config")
        features, counts, read = self.table(config)
        splits, place = {name: rows for name, rows in counts.items() if rows}, f"{self.place} ({config})"
        if not splits:
            raise InputError(place, "has no rows")
        if split is not None:
            splits = {split: splits[require_known(split, splits, place, "split")]}
        kind = example_type_of(features, place)
        label, column = features.get("label"), LABELS.get(kind)
        names = tuple(label.names) if isinstance(label, ClassLabel) else ()
        labelled_by = TARGET if column == SCORE and TARGET in features else column
        return DatasetRows(self.name, self.revision, config, kind, splits, names, labelled_by, read, self.recipe)

    def _config(self) -> str:
        for base in FIRST:
            found = [name for name in self.finished if base_config(name) == base]
            if len(found) > 1:
                raise InputError(self.place, "has several configs", allowed=found, hint="name one: --config")
            if found:
                return found[0]
        if self.usual is not None or len(self.finished) == 1:
            return self.usual or self.finished[0]
        problem = "has several configs" if self.finished else "has no finished config"
        raise InputError(self.place, problem, allowed=list(self.configs), hint="name one: --config")


def find_dataset(place: str) -> Dataset:
    """The dataset in a run directory or of a Hub.

    Raises InputError when it is missing or not finished, RunError when the Hub cannot be read.
    """
    if Path(place).is_dir() or not HUB_ID.fullmatch(place):
        run = local_run(Path(place), place)
        return _of_run(run, run.manifest.name)
    repo_id, _, revision = place.partition("@")
    published = published_run(repo_id, revision or None, place)
    return _of_run(published, repo_id) if published else _of_others(hub_dataset(repo_id, revision or None, place))


def find_rows(place: str, config: str | None = None, split: str | None = None) -> DatasetRows:
    """The rows of one config of the dataset at ``place``; raises what ``find_dataset`` and ``Dataset.rows`` raise."""
    return find_dataset(place).rows(config, split)


def _of_run(run: FinishedRun, name: str) -> Dataset:
    from datasets import Features

    if run.manifest.kind != "dataset":
        raise InputError(run.place, f"is the run of a {run.manifest.kind}", allowed="the run of a dataset")

    def table(config: str) -> tuple[Features, dict[str, int], Read]:
        directory, shards = run.shards(config)
        splits = defaultdict[str, list[File]](list)
        for shard in shards:
            splits[shard.split or "train"].append(shard)

        def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
            for shard in splits[split]:
                yield from shard_tables(directory / shard.path, BATCH, columns)

        schema = parquet_schema(directory / shards[0].path) if shards else pa.schema([])
        counts = {split: sum(shard.rows or 0 for shard in of) for split, of in splits.items()}
        return Features.from_arrow_schema(schema), counts, read

    def recipe() -> DatasetRecipe | None:
        try:
            path = run.recipe()
            if path is None:
                raise InputError("recipe.yaml", "is not published with the dataset, or not downloaded")
            return load_recipe(path, DatasetRecipe)
        except InputError as error:  # perhaps of another version of this project
            cli.say(f"labels are shown in the default words: {error}")
            return None

    finished = tuple(config for config in run.configs if is_finished(config))
    return Dataset(run.place, name, run.revision, tuple(run.configs), finished, None, table, recipe)


def _of_others(found: HubDataset) -> Dataset:
    """A dataset of a Hub that is not a published run."""

    def table(config: str) -> tuple[Features, dict[str, int], Read]:
        loaded = found.ask("load_dataset", config)

        def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
            with reading_rows(found.place, hint=None):
                yield from loaded[split].select_columns(columns).with_format("arrow").iter(BATCH)

        return next(iter(loaded.values())).features, {name: len(rows) for name, rows in loaded.items()}, read

    configs, usual = tuple(found.ask("get_dataset_config_names")), found.ask("get_dataset_default_config_name")
    return Dataset(found.place, found.repo_id, found.commit, configs, (usual,) if usual else configs, usual, table)
