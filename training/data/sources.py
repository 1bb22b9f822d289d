"""Training data as found: a pinned Hub dataset, a finished run directory, or a file; whole or streamed.

Nothing is checked here but that the place is what the recipe says; the rows are checked by ``training_sets``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset, IterableDataset

from hub.client.dataset_reader import hub_dataset, local_run, require_known
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE
from hub.contract.shards import sha256_file
from hub.errors import InputError
from hub.row_errors import reading_rows, unreadable

FILES = {".txt": "text", ".jsonl": "json", ".parquet": "parquet"}  # ending → reader of ``datasets``; .txt: a line each
CONFIG, SPLIT = "default", "train"  # what a file has of them


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
    loaded = found.load(_config(config, found.configs(), place), **options)
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
    return Origin(load_files("parquet", files, streaming, place), None, digest.hexdigest(), licence)


def is_file(path: Path) -> bool:
    """Whether ``path`` names a file of rows rather than a run directory."""
    return path.is_file() or path.suffix in FILES


def from_file(path: Path, config: str, split: str, streaming: bool, place: str) -> Origin:
    """The rows of a file, as its one split. Raises InputError when it is not there or not of a known kind."""
    if path.suffix not in FILES:
        raise InputError(place, f"has the ending {path.suffix!r}", allowed=list(FILES))
    if not path.is_file():
        raise InputError(place, "no such file", allowed=f"a run directory, or a file ending in {', '.join(FILES)}")
    if (config, split) != (CONFIG, SPLIT):
        raise InputError(place, f"is one file, without config {config!r} and split {split!r}", allowed=(CONFIG, SPLIT))
    if path.stat().st_size == 0:
        raise InputError(place, "is empty", allowed="at least one document")
    loaded = load_files(FILES[path.suffix], {SPLIT: [str(path.resolve())]}, streaming, place)
    return Origin(loaded, None, sha256_file(path), None)


def load_files(kind: str, files: dict[str, list[str]], streaming: bool, place: str) -> Any:
    """Files of a kind that ``datasets`` reads, by split. Raises InputError when their bytes are not of that kind."""
    with reading_rows(place):
        try:
            return datasets.load_dataset(kind, data_files=files, streaming=streaming)
        except ValueError as error:  # of the JSON reader, for what is nested too deep
            raise unreadable(error, place) from error


def _config(given: str | None, configs: list[str], place: str) -> str:
    if given is None and len(configs) > 1 and "default" not in configs:
        raise InputError(place, "has several configs", allowed=configs, hint="name one: config")
    config = given or ("default" if "default" in configs else configs[0])
    return require_known(config, configs, place, "config")
