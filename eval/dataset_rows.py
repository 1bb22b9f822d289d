"""A dataset's rows, batch by batch: of a finished run directory, or of a Hub dataset at a pinned revision.

No more than one batch of texts is held. Rows that are drawn at random come in the dataset's order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import ClassLabel, Features
from datasets.exceptions import DatasetsError
from huggingface_hub import HfApi
from numpy.typing import NDArray

from hub.errors import InputError, nearest
from hub.remote import reading
from hub.run_dir import Manifest, changed_files, require_complete
from hub.schema import FORMS, base_config

BATCH = 4096  # rows
TEXTS = {  # form → its text columns
    "sts": ("sentence1", "sentence2"),
    "pair-class": ("premise", "hypothesis"),
    "triplet": ("anchor", "positive", "negative"),
    "text": ("text",),
}
LABELS = {"sts": "score", "pair-class": "label", "text": "label"}  # form → the column of its label
UNFINISHED = {"raw", "rejected", "sources"}  # configs that nobody trains on
TARGET = "target"  # provenance: the label whose instruction was given


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a split; those not drawn are left out. ``labels`` is empty for triplets."""

    split: str
    rows: NDArray[np.int64]  # (n,) their numbers in the split, from 0
    texts: dict[str, list[str]]  # column → n texts
    labels: list[str]
    scores: list[float]  # of the sts form, else empty

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self) -> tuple[list[str], list[str], list[str]]:
        """First texts, second texts and labels of the batch's pairs: a triplet is a positive pair and a negative one.

        Single texts are no pairs: three empty lists.
        """
        columns = list(self.texts.values())
        if len(columns) == 3:
            count = len(self)
            labels = ["positive"] * count + ["negative"] * count
            return columns[0] * 2, columns[1] + columns[2], labels
        return (columns[0], columns[1], self.labels) if len(columns) == 2 else ([], [], [])


@dataclass(frozen=True)
class Rows:
    """One config of a dataset. ``revision`` is the Hub commit or the run's fingerprint."""

    name: str
    revision: str
    config: str
    form: str
    splits: dict[str, int]  # split → rows
    class_names: tuple[str, ...]
    labelled_by: str | None  # column
    read: Callable[[str, list[str]], Iterator[pa.Table]]  # split, columns → tables of at most ``BATCH`` rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns, in the form's order."""
        return TEXTS[self.form]

    @property
    def total(self) -> int:
        """Rows of all splits."""
        return sum(self.splits.values())

    def drawn(self, limit: int | None, seed: int) -> NDArray[np.int64]:
        """Numbers (over all splits, in order) of ``limit`` rows drawn without replacement, sorted; all when None."""
        if limit is None or limit >= self.total:
            return np.arange(self.total)
        return np.sort(np.random.default_rng(seed).choice(self.total, limit, replace=False))

    def batches(self, limit: int | None = None, seed: int = 0) -> Iterator[Batch]:
        """All rows, or ``limit`` of them drawn at random, split by split."""
        chosen, first = self.drawn(limit, seed), 0
        asked = dict.fromkeys([*self.columns, *([self.labelled_by] if self.labelled_by else [])])
        if self.form == "sts":
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
        scores = table["score"].to_pylist() if self.form == "sts" else []
        if None in scores:
            row = rows[scores.index(None)]
            raise InputError(f"{self.name} ({self.config}), {split} row {row}", "has no score", hint="drop the row")
        labels = [self._label(value) for value in table[self.labelled_by].to_pylist()] if self.labelled_by else []
        return Batch(split, rows, texts, labels, scores)

    def _label(self, value: object) -> str:
        if isinstance(value, float):
            return f"{round(value, 1):g}"  # people's scores: one group a tenth
        if isinstance(value, int) and 0 <= value < len(self.class_names):
            return self.class_names[value]
        return "no label" if value is None or value == -1 else str(value)


def find_rows(place: str, config: str | None = None, split: str | None = None) -> Rows:
    """The rows of a run directory, or of the Hub dataset ``ORG/NAME[@REVISION]``.

    ``config`` None: the config that one trains on (the dataset's first finished one).
    Raises InputError when there is no such dataset, config or split, or its columns are of no form; RunError when the
    Hub cannot be read.
    """
    path = Path(place)
    found = _of_directory(path, config) if path.is_dir() or not _is_hub_id(place) else _of_hub(place, config)
    if split is None:
        return found
    _require(split, tuple(found.splits), place, "split")
    return replace(found, splits={split: found.splits[split]})


def finished_configs(manifest: Manifest) -> tuple[str, ...]:
    """The configs of a run that one trains on, pair classes and scored pairs before triplets."""
    configs = {file.config for file in manifest.files if file.config and base_config(file.config) not in UNFINISHED}
    return tuple(sorted(configs))


def _is_hub_id(place: str) -> bool:
    parts = Path(place).parts
    return not Path(place).is_absolute() and len(parts) == 2 and parts[0] not in (".", "..", "artifacts")


def _require(name: str, allowed: tuple[str, ...], place: str, what: str) -> None:
    if name not in allowed:
        guess = nearest(name, allowed)
        hint = f"did you mean {guess!r}?" if guess else None
        raise InputError(place, f"has no {what} {name!r}", allowed=list(allowed), hint=hint)


def _of_directory(directory: Path, config: str | None) -> Rows:
    if not directory.is_dir():
        hint = "make the dataset first (python -m generation.run RECIPE), or name a Hub dataset ORG/NAME@REVISION"
        raise InputError(directory, "no such directory", hint=hint)
    manifest = require_complete(directory)
    if manifest.kind != "dataset":
        raise InputError(directory, f"is the run of a {manifest.kind}", allowed="a dataset")
    configs = finished_configs(manifest)
    everything = tuple(sorted({file.config for file in manifest.files if file.config}))
    config = config or (configs or everything or ("",))[0]
    _require(config, everything, str(directory), "config")
    shards = [file for file in manifest.shards(config) if file.rows]
    damaged = changed_files(directory, manifest.model_copy(update={"files": tuple(shards)}))
    if damaged:
        hint = "run the stage that makes it again"
        raise InputError(directory, f"{damaged[0]} is missing or not what its manifest says", hint=hint)
    splits: dict[str, int] = {}
    for shard in shards:
        splits[shard.split or "train"] = splits.get(shard.split or "train", 0) + (shard.rows or 0)
    if not shards:
        raise InputError(directory, f"config {config!r} has no rows", allowed=list(configs))

    def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
        for shard in shards:
            if (shard.split or "train") == split:
                with pq.ParquetFile(directory / shard.path) as file:
                    for batch in file.iter_batches(BATCH, columns=columns):
                        yield pa.Table.from_batches([batch])

    features = Features.from_arrow_schema(pq.read_schema(directory / shards[0].path))
    return _rows(manifest.name, manifest.fingerprint, config, features, splits, read, str(directory))


def _of_hub(place: str, config: str | None) -> Rows:
    repo_id, _, revision = place.partition("@")
    with reading(repo_id, revision or None):
        commit = HfApi().dataset_info(repo_id, revision=revision or None).sha
        assert commit is not None
        try:
            configs = tuple(datasets.get_dataset_config_names(repo_id, revision=commit))
            usual = [name for name in configs if base_config(name) not in UNFINISHED]
            usual_one = datasets.get_dataset_default_config_name(repo_id, revision=commit)
            config = config or usual_one or (usual or list(configs))[0]
            _require(config, configs, place, "config")
            loaded = datasets.load_dataset(repo_id, config, revision=commit)
        except (DatasetsError, pa.ArrowException, UnicodeDecodeError) as error:
            reason = (str(error.__cause__ or error).splitlines() or [type(error).__name__])[0]
            raise InputError(place, f"cannot be read: {reason}") from None

    def read(split: str, columns: list[str]) -> Iterator[pa.Table]:
        yield from loaded[split].select_columns(columns).with_format("arrow").iter(BATCH)

    splits = {name: len(rows) for name, rows in loaded.items()}
    features = next(iter(loaded.values())).features
    return _rows(repo_id, commit, config, features, splits, read, place)


def _rows(
    name: str,
    revision: str,
    config: str,
    features: Features,
    splits: dict[str, int],
    read: Callable[[str, list[str]], Iterator[pa.Table]],
    place: str,
) -> Rows:
    forms = [form for form in (*FORMS, "text") if {*TEXTS[form], LABELS.get(form, TEXTS[form][0])} <= features.keys()]
    if not forms:
        wanted = [", ".join((*TEXTS[form], *((LABELS[form],) if form in LABELS else ()))) for form in TEXTS]
        raise InputError(f"{place} ({config})", f"has the columns {sorted(features)}", allowed=" | ".join(wanted))
    form = forms[0]
    labelled_by = TARGET if form == "sts" and TARGET in features else LABELS.get(form)
    kind = features.get("label")
    names = tuple(kind.names) if isinstance(kind, ClassLabel) else ()
    return Rows(name, revision, config, form, splits, names, labelled_by, read)
