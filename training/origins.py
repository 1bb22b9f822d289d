"""Where rows are found: a pinned Hub dataset, a finished run directory, or a file of documents; whole or as a stream.

Nothing is checked here but that the place is what the recipe says; the rows are ``training.data``'s to check.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import httpx2
from datasets import Dataset, IterableDataset
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import DatasetCardData, HfApi

from hub.errors import InputError, RunError, nearest
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.remote import reading
from hub.row_errors import UNREADABLE, reading_rows, unreadable
from hub.run_dir import RECIPE, changed_files, require_complete
from hub.shards import AGAIN, sha256_file
from hub.stranger_card import check_dataset_card

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
        if name not in self.splits:
            guess = nearest(name, self.splits)
            hint = f"did you mean {guess!r}?" if guess else None
            raise InputError(place, f"has no split {name!r}", allowed=sorted(self.splits), hint=hint)
        return self.splits[name]


def from_hub(repo_id: str, revision: str | None, config: str | None, streaming: bool, place: str) -> Origin:
    """All splits of a Hub dataset at the commit that its revision (a tag) stands for now.

    ``config`` None: the dataset's only one, or its ``default``. Raises InputError when there is no such repository,
    revision or config, or it cannot be read; RunError when the Hub does not answer.
    """
    with reading(repo_id, revision):
        info = HfApi().dataset_info(repo_id, revision=revision)
        commit, card = info.sha, info.card_data
        assert commit is not None
        licence = None if card is None else _licence(card)
        check_dataset_card(repo_id, commit)
        try:
            config = _config(config, list(datasets.get_dataset_config_names(repo_id, revision=commit)), place)
            options = {"streaming": True} if streaming else {}
            return Origin(datasets.load_dataset(repo_id, config, revision=commit, **options), commit, commit, licence)
        except DatasetNotFoundError as error:  # between the two requests
            raise RunError(place, "is no longer on the Hub", hint="run the same command again") from error
        except (*UNREADABLE, RuntimeError) as error:  # RuntimeError: it is made by a script, which nobody runs any more
            if isinstance(error.__cause__, httpx2.HTTPError | ConnectionError):
                raise error.__cause__ from None  # the Hub's failure, and its words hold signed addresses
            raise unreadable(error, place, hint=None) from error


def _licence(card: DatasetCardData) -> str | None:
    """The licence that a card names, in either of the Hub's forms; None when it is no text."""
    licence = card.get("license_name") if card.get("license") == "other" else card.get("license")
    several = licence if isinstance(licence, list) else [licence]
    return ", ".join(several) if several and all(isinstance(one, str) for one in several) else None


def from_directory(directory: Path, config: str, streaming: bool, place: str) -> Origin:
    """All splits of a finished local run directory: the shards its manifest names for the config.

    Raises InputError when it is none, has no such config, or a shard is not what the manifest says.
    """
    if not directory.is_dir():
        raise InputError(place, "no such directory", hint="make the dataset first: python -m generation.run RECIPE")
    manifest = require_complete(directory)
    _config(config, sorted({file.config for file in manifest.files if file.config}), place)
    shards = manifest.shards(config)
    damaged = changed_files(directory, manifest.model_copy(update={"files": tuple(shards)}))
    if damaged:
        raise InputError(place, f"{damaged[0]} is missing or not what its manifest says", hint=AGAIN)
    files: dict[str, list[str]] = {}
    for shard in shards:
        if shard.rows != 0:  # the parquet reader fails on a file without rows
            files.setdefault(shard.split or "train", []).append(str((directory / shard.path).resolve()))
    if not files:
        raise InputError(place, "has no rows", hint="generate more, or take another config")
    digest = hashlib.sha256("".join(f"{shard.path} {shard.sha256}\n" for shard in shards).encode())
    recipe = directory / RECIPE
    licence = load_recipe(recipe, DatasetRecipe).license if recipe.is_file() else None
    return Origin(load_files("parquet", files, streaming, place), None, digest.hexdigest(), licence)


def is_file(path: Path) -> bool:
    """Whether ``path`` names a file of documents (DeCLUTR) rather than a run directory."""
    return path.is_file() or path.suffix in FILES


def from_file(path: Path, config: str, split: str, streaming: bool, place: str) -> Origin:
    """The documents of a file, as its one split. Raises InputError when it is not there or not of a known kind."""
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
    if config not in configs:
        guess = nearest(config, configs)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(place, f"has no config {config!r}", allowed=configs, hint=hint)
    return config
