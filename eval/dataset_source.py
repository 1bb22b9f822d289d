"""Where a dataset's rows come from: a finished run directory, or ``ORG/NAME[@REVISION]`` of a Hub.

One reader for the commands that look at a dataset (quality, decontaminate, annotate). A published run is read as its
run directory is: its manifest says what is finished, and shards are checked by SHA-256. Any other dataset of a Hub is
read by ``datasets``, whose scripts are never run.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import datasets
import pyarrow as pa
from datasets import Features
from datasets.data_files import EmptyDatasetError
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from eval.dataset_rows import BATCH, Read, Rows, form_of
from hub.errors import InputError, nearest
from hub.remote import reading
from hub.row_errors import UNREADABLE, reading_rows, unreadable
from hub.run_dir import ARTIFACTS, MANIFEST, File, Manifest, changed_files, read_manifest, require_complete
from hub.schema import base_config
from hub.shards import AGAIN, parquet_schema, shard_tables
from hub.stranger_card import check_dataset_card

UNFINISHED = {"raw", "rejected", "sources"}  # configs that nobody trains on
FIRST = ("pair-class", "postprocessed", "triplet")  # of several finished configs, the first kind is read
HUB_ID = re.compile(r"(?!artifacts/|\.)[\w.-]+/[\w.-]+(@.+)?")


@dataclass(frozen=True)
class Table:
    """The columns of a config, its splits with their rows, and how they are read."""

    features: Features
    splits: dict[str, int]
    read: Read


@dataclass(frozen=True)
class Dataset:
    """A dataset and its configs. ``finished``: those that one trains on; ``usual``: the one it declares, if any."""

    place: str
    name: str
    revision: str
    configs: tuple[str, ...]
    finished: tuple[str, ...]
    usual: str | None
    table: Callable[[str], Table] = field(repr=False)

    def rows(self, config: str | None = None, split: str | None = None) -> Rows:
        """The rows of a config; None is the one that one trains on. ``split`` None: of all splits.

        Raises InputError when there is no such config or split, several could be meant, there are no rows, the columns
        are of no form, or a shard is damaged.
        """
        config = config or self._config()
        _require(config, self.configs, self.place, "config")
        table = self.table(config)
        splits = {name: rows for name, rows in table.splits.items() if rows}
        place = f"{self.place} ({config})" if config else self.place
        if not splits:
            raise InputError(place, "has no rows")
        if split is not None:
            _require(split, tuple(splits), place, "split")
            splits = {split: splits[split]}
        form, labelled_by, names = form_of(table.features, place)
        return Rows(self.name, self.revision, config, form, splits, names, labelled_by, table.read)

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
        return _of_directory(place)
    return _of_hub(place)


def find_rows(place: str, config: str | None = None, split: str | None = None) -> Rows:
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


def _require(name: str, allowed: Sequence[str], place: str, what: str) -> None:
    if name not in allowed:
        guess = nearest(name, allowed)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(place, f"has no {what} {name!r}", allowed=list(allowed), hint=hint)


def _of_directory(place: str) -> Dataset:
    if not Path(place).is_dir():
        hint = "make the dataset first (python -m generation.run RECIPE), or name a Hub dataset ORG/NAME@REVISION"
        raise InputError(place, "no such directory", hint=hint)
    manifest = require_complete(Path(place))
    return _run(place, manifest.name, manifest.fingerprint, manifest, lambda files: Path(place))


def _of_hub(place: str) -> Dataset:
    repo_id, _, revision = place.partition("@")
    with reading(repo_id, revision or None):
        if not constants.HF_HUB_OFFLINE:  # the client gives what it has when the Hub does not answer
            HfApi().dataset_info(repo_id, revision=revision or None)
        try:
            found = Path(hf_hub_download(repo_id, MANIFEST, repo_type="dataset", revision=revision or None))
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            return _of_others(place)
    commit = found.parent.name
    options: dict[str, Any] = {"repo_type": "dataset", "revision": commit}

    def download(files: Sequence[File]) -> Path:
        with reading(repo_id, commit):
            for file in files:
                try:
                    hf_hub_download(repo_id, file.path, **options)
                except LocalEntryNotFoundError:
                    raise
                except EntryNotFoundError:
                    raise InputError(place, f"{file.path} is named by its manifest and not there") from None
        return found.parent

    try:
        manifest = read_manifest(found.parent)
    except InputError:  # somebody else's file of that name
        return _of_others(place)
    assert manifest is not None
    if not manifest.complete:
        raise InputError(place, "the run is not finished", hint="publish it again when it is")
    return _run(place, repo_id, commit, manifest, download)


def _run(
    place: str, name: str, revision: str, manifest: Manifest, directory_of: Callable[[Sequence[File]], Path]
) -> Dataset:
    """A finished run, whose shards ``directory_of`` brings."""
    if manifest.kind != "dataset":
        raise InputError(place, f"is the run of a {manifest.kind}", allowed="the run of a dataset")
    configs = tuple(sorted({file.config for file in manifest.files if file.config}))
    finished = tuple(config for config in configs if base_config(config) not in UNFINISHED)

    def table(config: str) -> Table:
        shards = [file for file in manifest.shards(config) if file.rows]
        if not shards:
            return Table(Features(), {}, lambda split, columns: iter(()))
        directory = directory_of(shards)
        damaged = changed_files(directory, manifest.model_copy(update={"files": tuple(shards)}))
        if damaged:
            raise InputError(place, f"{damaged[0]} is missing or not what its manifest says", hint=AGAIN)
        return _shards(directory, shards)

    return Dataset(place, name, revision, configs, finished, None, table)


def _shards(directory: Path, shards: Sequence[File]) -> Table:
    splits: dict[str, int] = {}
    for shard in shards:
        splits[shard.split or "train"] = splits.get(shard.split or "train", 0) + (shard.rows or 0)

    def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
        for shard in shards:
            if (shard.split or "train") == split:
                yield from shard_tables(directory / shard.path, BATCH, columns)

    return Table(Features.from_arrow_schema(parquet_schema(directory / shards[0].path)), splits, read)


def _of_others(place: str) -> Dataset:
    """A dataset of a Hub that is no published run."""
    repo_id, _, revision = place.partition("@")
    commit = HfApi().dataset_info(repo_id, revision=revision or None).sha
    assert commit is not None
    with reading(repo_id, commit):
        check_dataset_card(repo_id, commit)

    def asked(function: Callable[..., Any], *arguments: str) -> Any:
        with reading(repo_id, commit):
            try:
                return function(repo_id, *arguments, revision=commit)
            except (*UNREADABLE, EmptyDatasetError, RuntimeError, ValueError) as error:  # RuntimeError: of a script
                raise unreadable(error, place, hint=None) from None

    def table(config: str) -> Table:
        loaded = asked(datasets.load_dataset, config)

        def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
            with reading_rows(place, hint=None):
                yield from loaded[split].select_columns(columns).with_format("arrow").iter(BATCH)

        splits = {name: len(rows) for name, rows in loaded.items()}
        return Table(next(iter(loaded.values())).features, splits, read)

    configs = tuple(asked(datasets.get_dataset_config_names))
    usual = asked(datasets.get_dataset_default_config_name)
    return Dataset(place, repo_id, commit, configs, (usual,) if usual else configs, usual, table)
