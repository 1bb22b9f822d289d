"""The manifest of a run as its page needs it: typed, and checked against itself and the files.

``Manifest.counts`` and ``Manifest.provenance`` are free mappings. The models here are strict about the keys that a page
prints, and ignore all others. Numbers that disagree stop the page:

requested = kept + rejected             in total, for every label and for every shot count
totals    = the sums over the labels, and over the shot counts
reasons   = the rejected of a label     and their sums over the labels, where they are recorded
lengths   = the kept of a label         where they are recorded
splits    = the rows of the shards that the manifest names
versions  = source sentences, texts and rows of the whole, where rows were appended
shards    = the bytes the manifest names
dropped   = the digest in the fingerprint, and kept = the rows of the files
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from hub.contract.measured import INPUT, PROVENANCE, Dropped
from hub.contract.recipe import ModelRecipe
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest, changed_files
from hub.errors import InputError


class Facts(BaseModel):
    """Base of the models here: immutable, extra keys ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Counts(Facts):
    """Texts of one shot count."""

    requested: int
    kept: int
    rejected: int


class LabelCounts(Counts):
    """Texts of one label; ``reasons`` says why its rejected ones were (empty: not recorded)."""

    reasons: dict[str, int] = {}


class GenerationProgress(Facts):
    """Counts of a generation that is still running."""

    shards_done: int = 0
    shards_total: int | None = None  # not known before the source sentences are


class TextLengths(Facts):
    """Label → length → kept texts of that length, in ``unit`` (tokens of ``tokenizer``, or words)."""

    unit: str
    tokenizer: str | None = None
    by_label: dict[str, dict[int, int]]


class DatasetCounts(Facts):
    """Counts of a finished generation."""

    sources: int
    sources_skipped: dict[str, int] = {}  # given texts passed over
    sources_rejected: dict[str, int] = {}  # generated source sentences that the filters rejected
    requested: int
    kept: int
    rejected: dict[str, int]
    sampled_negatives: int = 0
    by_label: dict[str, LabelCounts]
    likeliest: dict[str, dict[str, int]] = {}  # label asked for → label that fits best → raw texts; {}: not scored
    variants: dict[str, Counts] = {}  # shot count (e.g. 5shot) → texts of all its example sets
    splits: dict[str, dict[str, int]]  # config → split → rows
    token_lengths: TextLengths | None = None  # None: made before lengths were counted


class Upstream(Facts):
    """What a folder of a language model says it was made from (``hub.untrusted.upstream_of``)."""

    model: str
    made_by: str
    packages: dict[str, str]
    license: str | None = None
    sha256: str | None = None  # of the weights as published
    revision: str | None = None  # None: from packages


class CodeFacts(Facts):
    """The clone that a run was made in."""

    commit: str
    url: str | None = None


class Generator(Facts):
    """The language model that wrote the texts."""

    id: str
    revision: str | None = None
    sha256: str | None = None  # None: a Hub model, pinned by its revision
    parameters: int | None = None  # None: a server does not say
    upstream: Upstream | None = None  # None: a Hub model, or nothing says where a folder is from


class Origin(Facts):
    """The origin of the source sentences, or of the pretrained model before training."""

    sha256: str | None = None
    upstream: Upstream | None = None


class ExampleFacts(Facts):
    """Where few-shot examples come from. ``rows``: shot count → example set → row numbers in that dataset, from 0."""

    repo_id: str | None = None
    revision: str | None = None
    sha256: str | None = None
    rows: dict[str, tuple[dict[str, tuple[int, ...]], ...]] = {}  # the sets of a shot count: label → rows


class VersionFacts(Facts):
    """One version of a dataset: its own source sentences, texts and rows, and its command."""

    version: str
    source_sentences: int = Field(validation_alias=AliasChoices("source_sentences", "first_texts"))
    requested: int
    kept: int
    rows: dict[str, int]  # by config
    command: str


class DatasetProvenance(Facts):
    """How a dataset was made."""

    model: Generator
    source: Origin
    examples: ExampleFacts | None = None
    decontamination: Dropped | None = None  # of a dataset without another's rows that occur in evaluation data
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str
    history: tuple[VersionFacts, ...] = ()  # the oldest first; (): no rows were appended


class TrainedOn(Facts):
    """One dataset a model was trained on."""

    repo_id: str | None = None
    path: str | None = None
    revision: str | None = None
    commit: str | None = None
    config: str
    example_type: str = Field(validation_alias=AliasChoices("example_type", "form"))  # form: before version 0.2
    loss: str
    example_set: int | None = None  # None: all rows
    splits: dict[str, int | None]  # rows; None: streamed, and not counted
    license: str | None = None  # what its own card or recipe says; None: the model's recipe does


Curve = tuple[tuple[int, float], ...]  # (step, value)


class MergeFacts(Facts):
    """The share of the trained weights after a merge with the base's; share → validation score where it was chosen."""

    share: float
    validation_scores: dict[str, float] = {}


class TrainingFacts(Facts):
    """Length, outcome and arguments of a training."""

    steps: int
    epochs: float
    best_step: int | None = None  # the step kept; None: the last one
    validation_metric: str | None = None  # what the checkpoint was chosen by, in words
    validation_score: float | None = None  # at the step kept
    loss_curve: Curve = ()
    loss_parts: dict[str, Curve] = {}  # of a loss that is a sum: its parts by name
    validation_curve: Curve = ()
    arguments: dict[str, Any] = {}
    batch_size: int  # of one optimiser step
    processes: int
    seed: int
    merge: MergeFacts | None = None  # None: the trained weights as they are


class ModelProvenance(Facts):
    """How an encoder was made."""

    datasets: tuple[TrainedOn, ...]
    base: Origin
    training: TrainingFacts | None  # None: a baseline
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str


Model = TypeVar("Model", bound=Facts)


def read_facts(directory: Path, key: str, tree: dict[str, Any], model: type[Model]) -> Model:
    """One mapping of the manifest as ``model``. Raises InputError naming the key that is missing or wrong."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *(str(part) for part in first["loc"])])
        hint = "the card needs it: run the stage that made the directory again"
        raise InputError(directory / MANIFEST, f"{where}: {first['msg'].lower()}", hint=hint) from error


def check_identity(directory: Path, manifest: Manifest, name: str, version: str) -> None:
    """Manifest and recipe must speak of the same artefact."""
    if (manifest.name, manifest.version) != (name, version):
        problem = f"is the recipe of {name} v{version}, but the manifest is of {manifest.name} v{manifest.version}"
        raise InputError(directory / RECIPE, problem)


def check_files(directory: Path, manifest: Manifest) -> None:
    """Every file of the manifest has its SHA-256; of a growing run, whose files are not read, its size."""
    if manifest.complete:
        changed = changed_files(directory, manifest)
    else:
        found = {file: directory / file.path for file in manifest.files}
        changed = [file.path for file, path in found.items() if not path.is_file() or path.stat().st_size != file.bytes]
    if changed:
        problem = "is missing or is not the file the manifest names"
        raise InputError(directory / changed[0], problem, hint="run the stage again")


def check_training(directory: Path, trained: bool, recipe: ModelRecipe) -> None:
    """Manifest and recipe must agree on whether there was a training."""
    if trained == recipe.is_baseline:
        found = "records a training" if trained else "records no training"
        kind = "a baseline" if recipe.is_baseline else "a model to train"
        raise InputError(directory / MANIFEST, f"{found}, but the recipe is of {kind}", hint="run the stage again")


def check_counts(directory: Path, counts: DatasetCounts) -> None:
    """The sums of the counts. Raises InputError with both sides of the first sum that fails."""
    place = directory / MANIFEST
    rejected = sum(counts.rejected.values())
    _equal(place, "requested", counts.requested, "kept + rejected", counts.kept + rejected)
    parts: dict[str, Mapping[str, Counts]] = {"by_label": counts.by_label, "variants": counts.variants}
    for name, part in parts.items():
        for key, row in part.items():
            _equal(place, f"{name}.{key}.requested", row.requested, "its kept + rejected", row.kept + row.rejected)
        for key, total in (("requested", counts.requested), ("kept", counts.kept), ("rejected", rejected)):
            if part or name == "by_label":
                _equal(place, key, total, f"the sum over {name}", sum(getattr(row, key) for row in part.values()))
    for label, found in (counts.token_lengths.by_label if counts.token_lengths else {}).items():
        kept = counts.by_label[label].kept if label in counts.by_label else 0
        _equal(place, f"by_label.{label}.kept", kept, f"the sum of token_lengths.by_label.{label}", sum(found.values()))
    summed: Counter[str] = Counter()
    for row in counts.by_label.values():
        summed.update(row.reasons)
    if not summed:  # old manifests have no reasons by label
        return
    for label, row in counts.by_label.items():
        _equal(place, f"by_label.{label}.rejected", row.rejected, "the sum of its reasons", sum(row.reasons.values()))
    for reason in sorted({*summed, *counts.rejected}):
        _equal(place, f"rejected.{reason}", counts.rejected.get(reason, 0), "the sum over by_label", summed[reason])


def check_splits(directory: Path, counts: DatasetCounts, manifest: Manifest) -> None:
    """The rows of each config and split against the rows of its shards."""
    claimed = {(config, split): rows for config, splits in counts.splits.items() for split, rows in splits.items()}
    _same_rows(directory / MANIFEST, "splits", claimed, manifest)


def check_history(directory: Path, counts: DatasetCounts, history: Sequence[VersionFacts]) -> None:
    """The versions of a dataset add up to the whole."""
    place = directory / MANIFEST
    for name, whole in (("source_sentences", counts.sources), ("requested", counts.requested), ("kept", counts.kept)):
        if history:
            _equal(place, f"history.{name}", sum(getattr(one, name) for one in history), "that of the whole", whole)
    for config, splits in counts.splits.items() if history else ():
        added = sum(one.rows.get(config, 0) for one in history)
        _equal(place, f"history.rows.{config}", added, "the rows of the whole", sum(splits.values()))


def check_dropped(directory: Path, dropped: Dropped, manifest: Manifest) -> None:
    """The dropped rows are those of the run's fingerprint, and the kept rows are those of the files."""
    place = directory / MANIFEST
    if manifest.inputs.get(INPUT) != dropped.digest():
        found = f"provenance.{PROVENANCE} differs from the digest in inputs"
        raise InputError(place, found, hint="drop again: sts-dino decontaminate RUN --drop DIR")
    kept = {(config, split): rows.kept for config, splits in dropped.rows.items() for split, rows in splits.items()}
    _same_rows(place, PROVENANCE, kept, manifest)


def _same_rows(place: Path, key: str, claimed: dict[tuple[str, str], int], manifest: Manifest) -> None:
    """(config, split) → claimed rows, against those of the shards in the manifest."""
    found: Counter[tuple[str, str]] = Counter()
    for file in manifest.files:
        if file.config is not None and file.split is not None:
            found[file.config, file.split] += file.rows or 0
    for part in sorted({*claimed, *found}):
        _equal(place, f"{key}.{'.'.join(part)}", claimed.get(part, 0), "the rows of its files", found[part])


def _equal(place: Path, left: str, left_value: int, right: str, right_value: int) -> None:
    if left_value != right_value:
        problem = f"{left} is {left_value}, but {right} is {right_value}"
        raise InputError(place, problem, hint="numbers that disagree stop the card: run the stage again")
