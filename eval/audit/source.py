"""A dataset that is looked at (quality, decontaminate, annotate): its configs, and their rows batch by batch.

``hub.client.dataset_reader`` finds it: a finished run directory, or ``ORG/NAME[@REVISION]`` of a Hub.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import pyarrow as pa

from eval.audit.label_meanings import LabelMeanings, published_meanings
from eval.audit.rows import BATCH, DatasetRows, Read, example_type_of
from hub.client.dataset_reader import FinishedRun, HubDataset, hub_dataset, local_run, published_run, require_known
from hub.contract.run_dir import ARTIFACTS, File
from hub.contract.schema import SCHEMAS, base_config, is_finished
from hub.contract.shards import parquet_schema, shard_tables
from hub.errors import InputError
from hub.row_errors import reading_rows

if TYPE_CHECKING:
    from datasets import Features

FIRST = (  # of several finished configs, the first is read: a form's labelled one before its others
    *(schema.labelled for schema in SCHEMAS.values()),
    *(config for schema in SCHEMAS.values() for config in schema.finished),
)
HUB_ID = re.compile(r"(?!artifacts/|\.)[\w.-]+/[\w.-]+(@.+)?")


@dataclass(frozen=True)
class ConfigTable:
    """The columns of a config, its splits with their rows, and how they are read."""

    features: Features
    splits: dict[str, int]
    read: Read


@dataclass(frozen=True)
class Dataset:
    """A dataset and its configs. ``finished``: those that one trains on; ``usual``: the one it declares, if any.

    ``meanings``: of ``DatasetRows``.
    """

    place: str
    name: str
    revision: str
    configs: tuple[str, ...]
    finished: tuple[str, ...]
    usual: str | None
    table: Callable[[str], ConfigTable] = field(repr=False)
    meanings: Callable[[], LabelMeanings] = LabelMeanings

    def rows(self, config: str | None = None, split: str | None = None) -> DatasetRows:
        """The rows of a config; None is the one that one trains on. ``split`` None: of all splits.

        Raises InputError when there is no such config or split, several could be meant, there are no rows, the columns
        are of no form, or a shard is damaged.
        """
        config = config or self._config()
        require_known(config, self.configs, self.place, "config")
        table = self.table(config)
        splits = {name: rows for name, rows in table.splits.items() if rows}
        place = f"{self.place} ({config})" if config else self.place
        if not splits:
            raise InputError(place, "has no rows")
        if split is not None:
            splits = {split: splits[require_known(split, splits, place, "split")]}
        form, labelled_by, names = example_type_of(table.features, place)
        return DatasetRows(
            self.name, self.revision, config, form, splits, names, labelled_by, table.read, self.meanings
        )

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

    Raises InputError when there is none or it is not finished, RunError when the Hub cannot be read.
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


def default_folder(kind: str, name: str, config: str) -> Path:
    """Where what is found out about a dataset lies unless told otherwise: ``artifacts/KIND/...``, plain characters.

    It is outside of the run directory, which is published.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}--{config}").strip("-")
    return ARTIFACTS / kind / plain[:100]


def made_folder(folder: Path, option: str = "--out") -> Path:
    """The folder, made now: one that cannot be written is told before hours of work. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror}", hint=f"choose another {option}") from error


def _of_run(run: FinishedRun, name: str) -> Dataset:
    if run.manifest.kind != "dataset":
        raise InputError(run.place, f"is the run of a {run.manifest.kind}", allowed="the run of a dataset")
    finished = tuple(config for config in run.configs if is_finished(config))
    return Dataset(
        run.place,
        name,
        run.revision,
        tuple(run.configs),
        finished,
        None,
        lambda config: _shards(*run.shards(config)),
        lambda: published_meanings(run.recipe()),
    )


def _shards(directory: Path, shards: Sequence[File]) -> ConfigTable:
    from datasets import Features

    splits: dict[str, int] = {}
    for shard in shards:
        splits[shard.split or "train"] = splits.get(shard.split or "train", 0) + (shard.rows or 0)

    def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
        for shard in shards:
            if (shard.split or "train") == split:
                yield from shard_tables(directory / shard.path, BATCH, columns)

    columns = Features.from_arrow_schema(parquet_schema(directory / shards[0].path)) if shards else Features()
    return ConfigTable(columns, splits, read)


def _of_others(found: HubDataset) -> Dataset:
    """A dataset of a Hub that is no published run."""

    def table(config: str) -> ConfigTable:
        loaded = found.load(config)

        def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
            with reading_rows(found.place, hint=None):
                yield from loaded[split].select_columns(columns).with_format("arrow").iter(BATCH)

        splits = {name: len(rows) for name, rows in loaded.items()}
        return ConfigTable(next(iter(loaded.values())).features, splits, read)

    configs, usual = tuple(found.configs()), found.default_config()
    return Dataset(found.place, found.repo_id, found.commit, configs, (usual,) if usual else configs, usual, table)
