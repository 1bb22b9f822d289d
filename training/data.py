"""Training data: the pinned datasets of a recipe, from the Hub that HF_ENDPOINT names or from local run directories.

Only the columns of the dataset's form are kept: the trainer feeds every other column (seeds, log-probabilities) to the
model as text.
"""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from huggingface_hub import HfApi

from hub.errors import InputError, RunError, nearest
from hub.recipe import DatasetRecipe, TrainingData
from hub.recipe_file import load_recipe
from hub.remote import reading
from hub.run_dir import RECIPE, changed_files, require_complete
from hub.schema import FORMS


@dataclass(frozen=True)
class TrainingSet:
    """One dataset, ready to train on: only its form's columns, only checked rows.

    ``commit`` is the Hub commit its revision stood for (None: local); ``sha256`` identifies the rows' origin;
    ``license`` is what its card or recipe says (None: it says nothing).
    """

    name: str
    spec: TrainingData
    train: Dataset
    validation: Dataset | None
    commit: str | None
    sha256: str
    license: str | None

    def describe(self) -> dict[str, object]:
        """Its provenance entry for the manifest."""
        splits = {"train": len(self.train)}
        if self.validation is not None:
            splits["validation"] = len(self.validation)
        origin = {"repo_id": self.spec.repo_id, "revision": self.spec.revision, "path": self.spec.path}
        kept = {key: value for key, value in origin.items() if value is not None}
        spec = {"config": self.spec.config, "form": self.spec.form, "loss": self.spec.loss}
        return {**kept, "commit": self.commit, **spec, "splits": splits, "license": self.license}


@dataclass(frozen=True)
class _Origin:
    """A dataset as found: every split with all its columns, and what pins it."""

    splits: DatasetDict
    commit: str | None
    sha256: str
    license: str | None


def load_all(specs: tuple[TrainingData, ...], limit: int | None) -> list[TrainingSet]:
    """Every dataset of a recipe under a name of its own, at most ``limit`` training pairs of each.

    Raises InputError for data that cannot be trained on, RunError when the Hub cannot be read.
    """
    return [_load(spec, limit, index) for index, spec in enumerate(specs)]


def _load(spec: TrainingData, limit: int | None, index: int) -> TrainingSet:
    place = f"datasets.{index}: {spec.repo_id or spec.path} ({spec.config})"
    origin = _from_hub(spec, place) if spec.repo_id is not None else _from_directory(spec, place)
    if "train" not in origin.splits:
        raise InputError(place, "has no split 'train'", allowed=sorted(origin.splits))
    train = checked(origin.splits["train"], spec.form, f"{place}, train")
    if limit is not None:
        train = train.select(range(min(limit, len(train))))
    held_out = origin.splits.get("validation")
    validation = None if held_out is None else checked(held_out, spec.form, f"{place}, validation")
    name = f"{Path(spec.repo_id or spec.path or '').name}-{spec.config}-{index}"
    return TrainingSet(name, spec, train, validation, origin.commit, origin.sha256, origin.license)


def _from_hub(spec: TrainingData, place: str) -> _Origin:
    """All splits of a Hub dataset at the commit that its revision (a tag) stands for now."""
    assert spec.repo_id is not None
    with reading(spec.repo_id, spec.revision):
        info = HfApi().dataset_info(spec.repo_id, revision=spec.revision)
        commit, card = info.sha, info.card_data
        assert commit is not None
        licence = None if card is None else card.get("license")
        if card is not None and licence == "other":
            licence = card.get("license_name")
        try:
            configs = datasets.get_dataset_config_names(spec.repo_id, revision=commit)
            _check_config(spec, list(configs), place)
            return _Origin(datasets.load_dataset(spec.repo_id, spec.config, revision=commit), commit, commit, licence)
        except DatasetNotFoundError as error:  # between the two requests
            raise RunError(place, "is no longer on the Hub", hint="run the same command again") from error
        except DatasetsError as error:
            raise _unreadable(error, place) from error


def _from_directory(spec: TrainingData, place: str) -> _Origin:
    """All splits of a finished local run directory: the shards its manifest names for the config."""
    directory = Path(spec.path or "")
    if not directory.is_dir():
        raise InputError(place, "no such directory", hint="make the dataset first: python -m generation.run RECIPE")
    manifest = require_complete(directory)
    _check_config(spec, sorted({file.config for file in manifest.files if file.config}), place)
    shards = manifest.shards(spec.config)
    damaged = changed_files(directory, manifest.model_copy(update={"files": tuple(shards)}))
    if damaged:
        hint = "run the stage that makes it again"
        raise InputError(place, f"{damaged[0]} is missing or not what its manifest says", hint=hint)
    files: dict[str, list[str]] = {}
    for shard in shards:
        if shard.rows != 0:  # the parquet reader fails on a file without rows
            files.setdefault(shard.split or "train", []).append(str((directory / shard.path).resolve()))
    if not files:
        raise InputError(place, "has no rows", hint="generate more, or take another config")
    digest = hashlib.sha256("".join(f"{shard.path} {shard.sha256}\n" for shard in shards).encode())
    try:
        recipe = directory / RECIPE
        licence = load_recipe(recipe, DatasetRecipe).license if recipe.is_file() else None
        return _Origin(datasets.load_dataset("parquet", data_files=files), None, digest.hexdigest(), licence)
    except DatasetsError as error:
        raise _unreadable(error, place) from error


def _unreadable(error: DatasetsError, place: str) -> InputError:
    reason = str(error.__cause__ or error).splitlines()[0]
    return InputError(place, f"cannot be read: {reason}")


def _check_config(spec: TrainingData, configs: list[str], place: str) -> None:
    if spec.config not in configs:
        guess = nearest(spec.config, configs)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(place, f"has no config {spec.config!r}", allowed=configs, hint=hint)


def checked(rows: Dataset, form: str, place: str) -> Dataset:
    """``rows`` with the form's columns only. Raises InputError unless the trainer can learn from every one of them."""
    columns = FORMS[form].columns
    for column in columns:
        if column not in rows.column_names:
            raise InputError(place, f"has no column {column!r}, which the {form} form needs", allowed=rows.column_names)
    if len(rows) == 0:
        raise InputError(place, "has no rows", hint="generate more, or take another config")
    rows = rows.select_columns(list(columns))
    for column, wanted in columns.items():
        _check_column(rows, column, getattr(wanted, "dtype", None) == "string", place)
    return rows


def _check_column(rows: Dataset, column: str, is_text: bool, place: str) -> None:
    dtype = str(getattr(rows.features[column], "dtype", rows.features[column]))
    fits = "string" in dtype if is_text else dtype.startswith(("float", "int"))
    if not fits:
        raise InputError(place, f"column {column!r} holds {dtype}", allowed="text" if is_text else "numbers")
    values = rows[column][:]
    bad = next((row for row, value in enumerate(values) if value is None or (not is_text and math.isnan(value))), None)
    if bad is not None:
        raise InputError(place, f"row {bad} of column {column!r} is empty")
    if column == "score":
        _check_scores(values, place)


def _check_scores(scores: list[float], place: str) -> None:
    low, high = min(scores), max(scores)
    if low == high:
        raise InputError(place, f"every score is {low:g}: there is nothing to learn from", hint="mix the labels")
    if not 0 <= low <= high <= 1:
        raise InputError(place, f"scores run from {low:g} to {high:g}", allowed="0 to 1 (cosine similarities)")
