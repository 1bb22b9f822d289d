"""Reader of datasets to measure: run directories, published runs, datasets of a Hub."""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sts_dino.hub.client.fetch import (
    FinishedRun,
    HubDataset,
    open_hub_dataset,
    open_local_run,
    open_published_run,
    require_known,
)
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import File
from sts_dino.hub.contract.schema import (
    ROW_SCHEMAS,
    SCHEMAS,
    RowSchema,
    get_base_config,
    is_finished,
    make_text_schema,
)
from sts_dino.hub.contract.shards import (
    convert_reader_errors,
    iter_shard_tables,
    read_parquet_schema,
)
from sts_dino.hub.errors import InputError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from datasets import Features

BATCH_ROWS = 4096  # rows of a batch or table at most
SCORE_COLUMN = "score"
TARGET_LABEL_COLUMN = "target"  # provenance of a row: the label whose prompt the generator read
NO_LABEL = "no label"  # the label of a row without a label


_SCHEMAS = {**ROW_SCHEMAS, "text": make_text_schema(())}  # example type → columns
# Kind of a column → prefixes of its allowed types: "float" also allows float32
_ALLOWED_TYPES: dict[Any, tuple[str, ...]] = {
    "string": ("string", "large_string"),
    "float32": ("float", "int", "double"),
}

# Function of a split and its columns that yields tables of at most ``BATCH_ROWS`` rows
ReadTables = Callable[[str, list[str]], Iterator[pa.Table]]


class Pairs(NamedTuple):
    """Columns of n pairs: two texts and a label; ``labels`` is empty without labels."""

    first: list[str]
    second: list[str]
    labels: list[str]


@dataclass(frozen=True)
class Batch:
    """Consecutive rows of a split; of a random sample, the drawn rows among them.

    ``rows`` are the row numbers in the split, from 0. ``labels`` is empty for rows without labels
    (e.g. triplets), ``scores`` for rows without scores.
    """

    split: str
    rows: NDArray[np.int64]  # (n,)
    texts: dict[str, list[str]]  # column → n texts
    labels: list[str]  # (n,) or ()
    scores: list[float]  # (n,) or ()

    def __len__(self) -> int:
        return len(self.rows)

    def to_pairs(self) -> Pairs:
        """Return the pairs of the batch with their labels, in the order of the rows.

        A triplet gives two pairs: anchor and positive with the label "positive", anchor and
        negative with the label "negative". Single texts give three empty lists, without their
        labels.
        """
        columns = list(self.texts.values())
        if len(columns) == 1:
            return Pairs([], [], [])
        if len(columns) == 2:
            return Pairs(columns[0], columns[1], self.labels)
        pairs = Pairs([], [], ["positive", "negative"] * len(self))
        for anchor, positive, negative in zip(*columns, strict=True):
            pairs.first.extend((anchor, anchor))
            pairs.second.extend((positive, negative))
        return pairs


@dataclass(frozen=True)
class DatasetRows:
    """The rows of one config of a dataset.

    ``revision`` is the Hub commit or the run's fingerprint. ``class_names`` are the labels' names
    by class index, empty where labels are texts or scores. ``label_column`` is None without labels.
    ``read_recipe`` reads the recipe of the run; it returns None for other datasets, and when the
    recipe cannot be read.
    """

    name: str
    revision: str
    config: str
    example_type: str
    splits: dict[str, int]  # split → rows
    class_names: tuple[str, ...]
    label_column: str | None
    read_tables: ReadTables
    read_recipe: Callable[[], DatasetRecipe | None] = lambda: None

    @property
    def location(self) -> str:
        """The dataset's name and config, for messages."""
        return f"{self.name} ({self.config})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns, in the order of the example type."""
        columns = _SCHEMAS[self.example_type].columns
        return tuple(column for column, kind in columns.items() if kind == "string")

    @property
    def is_scored(self) -> bool:
        """Whether rows have a similarity score."""
        return SCORE_COLUMN in _SCHEMAS[self.example_type].columns

    @property
    def total(self) -> int:
        """Number of rows of all splits."""
        return sum(self.splits.values())

    def read_batches(self, sample: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """Yield the rows in batches of one split each, in the order of the dataset.

        Args:
            sample: the number of rows to draw at random from all splits, without replacement;
                None, or more than there are: all rows.
            seed: seed of the draw.

        Raises InputError for a scored pair whose score is not a finite number, and for a damaged
        shard; OSError for a shard that cannot be opened.
        """
        # Draw rows, which are numbered over all splits
        chosen = np.arange(self.total)
        if sample is not None and sample < self.total:
            chosen = np.sort(np.random.default_rng(seed).choice(self.total, sample, replace=False))

        # Choose the columns; the label of a scored pair may be its score
        columns = list(self.columns)
        if self.label_column:
            columns.append(self.label_column)
        if self.is_scored and SCORE_COLUMN not in columns:
            columns.append(SCORE_COLUMN)

        # Read the tables of each split, and keep their drawn rows
        split_start = 0
        for split, rows in self.splits.items():
            table_start = split_start
            for table in self.read_tables(split, columns):
                low, high = np.searchsorted(chosen, [table_start, table_start + len(table)])
                drawn = chosen[low:high]
                if len(drawn):
                    drawn_table = table.take(drawn - table_start)
                    yield self._make_batch(split, drawn - split_start, drawn_table)
                table_start += len(table)
            split_start += rows

    def _make_batch(self, split: str, rows: NDArray[np.int64], table: pa.Table) -> Batch:
        """Return rows of a split as a batch.

        Args:
            split: the split.
            rows: the numbers of the rows in the split, (n,).
            table: the n rows.

        Raises InputError for a score that is not a finite number.
        """
        texts = {column: _read_texts(table, column) for column in self.columns}
        scores = table[SCORE_COLUMN].to_pylist() if self.is_scored else []
        # Rows without scores have nothing to check: ``scores`` is then empty
        for row, score in zip(rows, scores, strict=False):
            if score is None or not math.isfinite(score):
                raise InputError(
                    f"{self.location}, {split} row {row}",
                    f"has the score {score}",
                    allowed="a finite number",
                    hint="drop the row",
                )
        labels: list[str] = []
        if self.label_column:
            labels = [self._format_label(value) for value in table[self.label_column].to_pylist()]
        return Batch(split, rows, texts, labels, scores)

    def _format_label(self, value: object) -> str:
        """Return a label as text.

        A float is a score and is rounded to one decimal. An index of ``class_names`` becomes that
        name. None becomes ``NO_LABEL``, and so does the integer -1, with which SNLI marks pairs
        without a label. Any other value becomes its ``str``.
        """
        if isinstance(value, float):
            return f"{round(value, 1):zg}"  # z: no negative zero
        if value is None or value == -1:
            return NO_LABEL
        if isinstance(value, int) and 0 <= value < len(self.class_names):
            return self.class_names[value]
        return str(value)


def _read_texts(table: pa.Table, column: str) -> list[str]:
    """Return the texts of a column, (n,); a missing text becomes empty."""
    return [text or "" for text in table[column].to_pylist()]


def infer_example_type(features: Features, location: str) -> str:
    """Return the first example type of ``_SCHEMAS`` all of whose columns ``features`` has.

    Args:
        features: the columns of a config and their types.
        location: the dataset and config, for errors.

    Raises InputError when no example type has these columns, a text column does not hold strings,
    or a score column does not hold numbers.
    """
    for name, schema in _SCHEMAS.items():
        if features.keys() >= schema.columns.keys():
            _require_column_types(features, schema, location)
            return name
    raise InputError(
        location,
        f"has the columns {sorted(features)}",
        allowed=" | ".join(", ".join(schema.columns) for schema in _SCHEMAS.values()),
    )


def _require_column_types(features: Features, schema: RowSchema, location: str) -> None:
    """Raise InputError unless the text columns hold strings and a score column holds numbers.

    Args:
        features: the columns of a config and their types; it has all columns of ``schema``.
        schema: the columns of the example type.
        location: the dataset and config, for the error.
    """
    from datasets import Value

    for column, kind in schema.columns.items():
        feature = features[column]
        dtype = feature.dtype if isinstance(feature, Value) else type(feature).__name__
        prefixes = _ALLOWED_TYPES.get(kind, ("",))  # a class label may have any type
        if not dtype.startswith(prefixes):
            raise InputError(
                location,
                f"its column {column!r} is of the type {dtype}",
                allowed=" or ".join(prefixes[:2]),  # "double" is another name of "float"
            )


# Of several finished configs the first one here is read: labelled configs before others
CONFIG_PREFERENCE = (
    *(schema.labelled for schema in SCHEMAS.values()),
    *chain.from_iterable(schema.finished for schema in SCHEMAS.values()),
)
# ORG/NAME[@REVISION]; artifacts/NAME and ./NAME are folders
HUB_ID_PATTERN = re.compile(r"(?!artifacts/|\.)[\w.-]+/[\w.-]+(@.+)?")


class OpenConfig(NamedTuple):
    """An opened config: its columns, split → number of rows, and the reader of the rows."""

    features: Features
    splits: dict[str, int]
    read_tables: ReadTables


@dataclass(frozen=True)
class Dataset:
    """A dataset and its configs.

    ``location`` is the dataset as the user named it. ``finished`` are the configs that hold
    training rows, or the only one that the dataset declares as its default.
    """

    location: str
    name: str
    revision: str
    configs: tuple[str, ...]
    finished: tuple[str, ...]
    open_config: Callable[[str], OpenConfig]
    read_recipe: Callable[[], DatasetRecipe | None] = lambda: None

    def find_rows(self, config: str | None = None, split: str | None = None) -> DatasetRows:
        """Return the rows of a config; splits without rows are left out.

        Args:
            config: the config; None: the config that ``_choose_config`` finds, to train on.
            split: the only split to read; None: all splits.

        Raises InputError for an unknown config or split, when ``config`` is None and none or
        several configs could be meant, when there are no rows, when the columns are of no example
        type, and for a damaged shard. Raises RunError when the Hub cannot be read.
        """
        from datasets import ClassLabel

        # Open the config, and list its splits with rows
        config = require_known(
            config or self._choose_config(), self.configs, self.location, "config"
        )
        location = f"{self.location} ({config})"
        features, rows_of_split, read_tables = self.open_config(config)
        splits = {name: rows for name, rows in rows_of_split.items() if rows}
        if not splits:
            raise InputError(location, "has no rows")
        if split is not None:
            splits = {split: splits[require_known(split, splits, location, "split")]}

        # Find the label column: the column of the example type that is not a text. A generated pair
        # with a score also has the label of its prompt, which is taken instead of the score
        example_type = infer_example_type(features, location)
        kinds = _SCHEMAS[example_type].columns
        label_column = next((column for column in kinds if kinds[column] != "string"), None)
        if label_column == SCORE_COLUMN and TARGET_LABEL_COLUMN in features:
            label_column = TARGET_LABEL_COLUMN
        label = features.get("label")
        return DatasetRows(
            name=self.name,
            revision=self.revision,
            config=config,
            example_type=example_type,
            splits=splits,
            class_names=tuple(label.names) if isinstance(label, ClassLabel) else (),
            label_column=label_column,
            read_tables=read_tables,
            read_recipe=self.read_recipe,
        )

    def _choose_config(self) -> str:
        """Return the config to train on.

        It is the first finished config of ``CONFIG_PREFERENCE``, else the only finished config.
        Raises InputError when no config is finished, when several configs have the preferred name
        with different shot counts, and when several configs have names of their own.
        """
        # This project's own configs
        for base in CONFIG_PREFERENCE:
            candidates = [name for name in self.finished if get_base_config(name) == base]
            if len(candidates) > 1:
                raise InputError(
                    self.location,
                    "has several configs",
                    allowed=candidates,
                    hint="name one: --config",
                )
            if candidates:
                return candidates[0]

        # Configs under other names
        if len(self.finished) == 1:
            return self.finished[0]
        problem = "has several configs" if self.finished else "has no finished config"
        raise InputError(
            self.location, problem, allowed=list(self.configs), hint="name one: --config"
        )


def find_dataset(location: str) -> Dataset:
    """Return a dataset by its location: a run directory, a published run, or any Hub dataset.

    ``location`` is a run directory or ORG/NAME[@REVISION]. Raises InputError when the dataset is
    missing, damaged or not finished, or is the run of a model. Raises RunError when the Hub cannot
    be read.
    """
    # What cannot be a Hub id counts as a path, so that the error names the missing directory
    if Path(location).is_dir() or not HUB_ID_PATTERN.fullmatch(location):
        run = open_local_run(Path(location), location)
        return _convert_run(run, run.manifest.name)
    repo_id, _, revision = location.partition("@")
    published = open_published_run(repo_id, revision or None, location)
    if published:
        return _convert_run(published, repo_id)
    return _convert_hub_dataset(open_hub_dataset(repo_id, revision or None, location))


def find_rows(location: str, config: str | None = None, split: str | None = None) -> DatasetRows:
    """Return the rows of one config of the dataset at ``location``.

    Args:
        location: a run directory or ORG/NAME[@REVISION].
        config: the config; None: the config to train on.
        split: the only split to read; None: all splits.

    Raises the errors of ``find_dataset`` and ``Dataset.find_rows``: InputError for a dataset,
    config or split that cannot be used, RunError when the Hub cannot be read.
    """
    return find_dataset(location).find_rows(config, split)


def _convert_run(run: FinishedRun, name: str) -> Dataset:
    """Return the dataset of a run; ``name`` is the dataset's name in measurements.

    Raises InputError for the run of a model.
    """
    if run.manifest.kind != "dataset":
        raise InputError(
            run.place, f"is the run of a {run.manifest.kind}", allowed="the run of a dataset"
        )
    return Dataset(
        location=run.place,
        name=name,
        revision=run.revision,
        configs=tuple(run.configs),
        finished=tuple(config for config in run.configs if is_finished(config)),  # to train on
        open_config=partial(_open_run_config, run),
        read_recipe=partial(_read_run_recipe, run),
    )


def _open_run_config(run: FinishedRun, config: str) -> OpenConfig:
    """Open a config of a run, after fetching and checking its shards.

    Shards without a split belong to "train". A config without rows has no columns. Raises
    InputError for a damaged or missing shard, RunError when the Hub cannot be read.
    """
    from datasets import Features

    directory, shards = run.fetch_shards(config)
    shards_of_split = defaultdict[str, list[File]](list)
    rows_of_split = defaultdict[str, int](int)
    for shard in shards:
        split = shard.split or "train"
        shards_of_split[split].append(shard)
        rows_of_split[split] += shard.rows or 0

    def read_tables(split: str, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the rows of a split in tables of at most ``BATCH_ROWS`` rows.

        Raises InputError for a damaged shard, OSError for a shard that cannot be opened.
        """
        for shard in shards_of_split[split]:
            yield from iter_shard_tables(directory / shard.path, BATCH_ROWS, columns)

    schema = read_parquet_schema(directory / shards[0].path) if shards else pa.schema([])
    return OpenConfig(Features.from_arrow_schema(schema), rows_of_split, read_tables)


def _read_run_recipe(run: FinishedRun) -> DatasetRecipe | None:
    """Return the recipe of a run; None, with a log message, when it is missing or cannot be read.

    Raises RunError when the Hub refuses the file.
    """
    try:
        path = run.fetch_recipe()
        if path is None:
            raise InputError("recipe.yaml", "is not published with the dataset, or not downloaded")
        return load_recipe(path, DatasetRecipe)
    except InputError as error:  # e.g. another version of this project wrote the recipe
        logger.info(f"labels are shown in the default words: {error}")
        return None


def _convert_hub_dataset(dataset: HubDataset) -> Dataset:
    """Return a dataset of a Hub that is not a published run.

    Its finished config is the default that it declares; without a default, all are finished.
    Raises InputError when the dataset cannot be read, RunError when the Hub does not answer.
    """
    configs = tuple(dataset.call("get_dataset_config_names"))
    default_config = dataset.call("get_dataset_default_config_name")
    return Dataset(
        location=dataset.place,
        name=dataset.repo_id,
        revision=dataset.commit,
        configs=configs,
        finished=(default_config,) if default_config else configs,
        open_config=partial(_open_hub_config, dataset),
    )


def _open_hub_config(dataset: HubDataset, config: str) -> OpenConfig:
    """Open a config of a Hub dataset with the datasets library.

    Raises InputError when the config cannot be read, RunError when the Hub does not answer. The
    reader of the rows raises InputError for damaged rows.
    """
    splits = dataset.call("load_dataset", config)

    def read_tables(split: str, columns: list[str]) -> Iterator[pa.Table]:
        """Yield the rows of a split in tables of at most ``BATCH_ROWS`` rows."""
        with convert_reader_errors(dataset.place, hint=None):
            yield from splits[split].select_columns(columns).with_format("arrow").iter(BATCH_ROWS)

    features = next(iter(splits.values())).features
    return OpenConfig(features, {name: len(rows) for name, rows in splits.items()}, read_tables)
