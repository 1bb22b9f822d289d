"""What a run's recipe says its labels mean to people (``labels[].meaning``), under the labels that its rows have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hub import cli
from hub.client.fetch import FinishedRun, HubDataset, hub_dataset, local_run, published_run, require_known
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS, File
from hub.contract.schema import ROW_SCHEMAS, SCHEMAS, base_config, is_finished, text_schema
from hub.contract.shards import parquet_schema, reading_rows, shard_tables
from hub.errors import InputError

if TYPE_CHECKING:
    from datasets import Features


@dataclass(frozen=True)
class LabelMeanings:
    """Label → what it means in words, and the dataset's language (ISO 639); None where no recipe tells."""

    of: Mapping[str, str] = field(default_factory=dict)
    language: str | None = None


def score_label(score: float) -> str:
    """A similarity score as people see it: 0.9 for the float32 0.89999998."""
    return f"{score:g}"


def label_meanings(recipe: DatasetRecipe) -> dict[str, str]:
    """Label → meaning, for the labels that have one: a class's name, or a score as rows have it, smoothed.

    Labels of one score share their words.
    """
    found = dict[str, list[str]]()
    for label in recipe.written_labels:
        if label.meaning is not None:
            score = recipe.postprocess.smoothed(label.score or 0.0)
            name = score_label(score) if recipe.dataset_schema.scored else label.name
            found.setdefault(name, []).append(label.meaning)
    return {name: "; ".join(meanings) for name, meanings in found.items()}


def published_meanings(path: Path | None) -> LabelMeanings:
    """The meanings in a run's recipe.yaml; none where there is no recipe, or one of another version of this project."""
    try:
        if path is None:
            raise InputError("recipe.yaml", "is not published with the dataset, or not downloaded")
        recipe = load_recipe(path, DatasetRecipe)
        return LabelMeanings(label_meanings(recipe), recipe.language)
    except InputError as error:
        cli.say(f"labels are shown in the default words: {error}")
        return LabelMeanings()


BATCH = 4096  # rows
_SCHEMAS = {**ROW_SCHEMAS, "text": text_schema(())}
TEXTS = {  # example type → its text columns
    name: tuple(column for column, of in schema.columns.items() if of == "string") for name, schema in _SCHEMAS.items()
}
LABELS = {  # example type → the column of its label
    name: column for name, schema in _SCHEMAS.items() for column, of in schema.columns.items() if of != "string"
}
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
    scores: list[float]  # of the sts type, else empty

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> tuple[list[str], list[str], list[str]]:
        """Both sides and labels of the batch's pairs: a triplet is a positive pair, then a negative one.

        Single texts are no pairs: three empty lists.
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

    ``meanings`` reads what its labels mean in its recipe's words, and in which language.
    """

    name: str
    revision: str
    config: str
    example_type: str
    splits: dict[str, int]  # split → rows
    class_names: tuple[str, ...]
    labelled_by: str | None  # column
    read: Read
    meanings: Callable[[], LabelMeanings] = LabelMeanings

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns, in the example type's order."""
        return TEXTS[self.example_type]

    @property
    def total(self) -> int:
        """Rows of all splits."""
        return sum(self.splits.values())

    def drawn(self, sample: int | None, seed: int) -> NDArray[np.int64]:
        """Numbers (over all splits, in order) of ``sample`` rows drawn without replacement, sorted; all when None."""
        if sample is None or sample >= self.total:
            return np.arange(self.total)
        return np.sort(np.random.default_rng(seed).choice(self.total, sample, replace=False))

    def batches(self, sample: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """All rows, or ``sample`` of them drawn at random, split by split.

        Raises InputError for a scored pair whose score is no number.
        """
        chosen, first = self.drawn(sample, seed), 0
        asked = dict.fromkeys([*self.columns, *([self.labelled_by] if self.labelled_by else [])])
        if self.example_type == "sts":
            asked["score"] = None
        for split, rows in self.splits.items():
            start = first
            for table in self.read(split, list(asked)):
                low, high = np.searchsorted(chosen, [start, start + len(table)])
                kept = chosen[low:high] - start
                if len(kept):
                    yield self._batch(split, kept + start - first, table.take(kept))
                start += len(table)
            first += rows

    def _batch(self, split: str, rows: NDArray[np.int64], table: pa.Table) -> Batch:
        texts = {column: [text or "" for text in table[column].to_pylist()] for column in self.columns}
        scores = table["score"].to_pylist() if self.example_type == "sts" else []
        for row, score in zip(rows, scores, strict=False):
            if score is None or not math.isfinite(score):
                place = f"{self.name} ({self.config}), {split} row {row}"
                raise InputError(place, f"has the score {score}", allowed="a number", hint="drop the row")
        labels = [self._label(value) for value in table[self.labelled_by].to_pylist()] if self.labelled_by else []
        return Batch(split, rows, texts, labels, scores)

    def _label(self, value: object) -> str:
        if isinstance(value, float):
            return f"{round(value, 1):g}"  # human scores: one group a tenth
        if isinstance(value, int) and 0 <= value < len(self.class_names):
            return self.class_names[value]
        return NO_LABEL if value is None or value == -1 else str(value)


def example_type_of(features: Features, place: str) -> tuple[str, str | None, tuple[str, ...]]:
    """The example type of a config with these columns, the column that labels its rows, and the names of its classes.

    Raises InputError when the columns are of no example type, or texts or scores of another type.
    """
    from datasets import ClassLabel

    needed = {form: [*texts, LABELS[form]] if form in LABELS else texts for form, texts in TEXTS.items()}
    form = next((form for form, columns in needed.items() if features.keys() >= {*columns}), None)
    if form is None:
        allowed = " | ".join(map(", ".join, needed.values()))
        raise InputError(place, f"has the columns {sorted(features)}", allowed=allowed)
    for column in TEXTS[form]:
        _require_type(features, column, ("string", "large_string"), place)
    if form == "sts":
        _require_type(features, "score", ("float", "int", "double"), place)
    kind = features.get("label")
    names = tuple(kind.names) if isinstance(kind, ClassLabel) else ()
    return form, TARGET if form == "sts" and TARGET in features else LABELS.get(form), names


def _require_type(features: Features, column: str, allowed: tuple[str, ...], place: str) -> None:
    from datasets import Value

    kind = features[column]
    dtype = kind.dtype if isinstance(kind, Value) else type(kind).__name__
    if not dtype.startswith(allowed):
        raise InputError(place, f"its column {column!r} is of the type {dtype}", allowed=" or ".join(allowed[:2]))


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
    """The default folder of measurements on a dataset: ``artifacts/KIND/...``, plain characters.

    It is outside of the run directory, which is published.
    """
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{name}--{config}").strip("-")
    return ARTIFACTS / kind / plain[:100]


def made_folder(folder: Path, option: str = "--out") -> Path:
    """The folder, made now: fails before hours of work when it cannot be written. Raises InputError."""
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
