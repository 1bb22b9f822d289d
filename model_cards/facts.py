"""The facts of a run for its card and report, read from its directory and checked once.

``DatasetFacts`` and ``ModelFacts`` collect recipe, manifest, verdict on the licence, results and
measurements. ``Manifest.counts`` and ``Manifest.provenance`` are free mappings; the sections here
name and type the keys that a page prints, and ignore all others. Numbers that disagree stop the
page:

requested = kept + rejected             in total, for every label and for every shot count
totals    = the sums over the labels, and over the shot counts
reasons   = the rejected of a label     and their sums over the labels, where they are recorded
lengths   = the kept of a label         where they are recorded
splits    = the rows of the shards that the manifest names
versions  = the whole dataset           their sums, where rows were appended
shards    = the bytes that the manifest names
dropped   = the digest in the inputs    and kept = the rows of the files
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sts_dino.hub.client.plan import MEASURED, hash_facts
from sts_dino.hub.contract.licences import Verdict, check_dataset, check_model
from sts_dino.hub.contract.measured import (
    DROPPED_ROWS_INPUT,
    DROPPED_ROWS_PROVENANCE,
    REPEATS,
    Dropped,
    Fidelity,
    Ledger,
    Repeats,
    TrainingValue,
    has_report,
    read_repeats,
)
from sts_dino.hub.contract.published_paths import name_origin
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import Results, read_results
from sts_dino.hub.contract.run_dir import (
    MANIFEST,
    RECIPE,
    Manifest,
    find_changed_files,
    format_manifest,
    require_manifest,
)
from sts_dino.hub.errors import InputError

RESULTS = "results.json"
SCORE_HINT = "run: sts-dino score RECIPE"


class ManifestSection(BaseModel):
    """Base of the typed sections of a manifest: immutable; keys without a field are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class Counts(ManifestSection):
    """Numbers of texts of one label or shot count.

    ``reasons``: rejection reason → texts; recorded for labels only.
    """

    requested: int
    kept: int
    rejected: int
    reasons: dict[str, int] = {}


class GenerationProgress(ManifestSection):
    """Counts of a generation that is still running."""

    shards_done: int = 0
    shards_total: int | None = None  # not known before the source sentences are


class TextLengths(ManifestSection):
    """Lengths of the kept texts, ``by_label``: label → length in ``unit`` → number of texts.

    ``unit`` is words, or tokens of ``tokenizer``.
    """

    unit: str
    tokenizer: str | None = None
    by_label: dict[str, dict[int, int]]


class DatasetCounts(ManifestSection):
    """Counts of a finished generation."""

    sources: int
    sources_skipped: dict[str, int] = {}  # given texts passed over
    sources_rejected: dict[str, int] = {}  # generated source sentences that the filters rejected
    requested: int
    kept: int
    rejected: dict[str, int]
    sampled_negatives: int = 0
    by_label: dict[str, Counts]
    # label asked for → label that fits best → raw texts; {}: not scored
    likeliest: dict[str, dict[str, int]] = {}
    variants: dict[str, Counts] = {}  # shot count (e.g. 5shot) → texts of all its example sets
    splits: dict[str, dict[str, int]]  # config → split → rows
    token_lengths: TextLengths | None = None  # None: made before lengths were counted


class Upstream(ManifestSection):
    """The origin that a language model's folder records (``untrusted.read_upstream``)."""

    model: str
    made_by: str
    packages: dict[str, str]
    license: str | None = None
    sha256: str | None = None  # of the weights as published
    revision: str | None = None  # None: from packages
    converted_from: str | None = None  # e.g. weights of 4 bits; None: the published weights


class CodeFacts(ManifestSection):
    """The clone that a run was made in."""

    commit: str
    url: str | None = None


class UsedModel(ManifestSection):
    """A model that made a dataset: the language model, or the encoder that chose among texts."""

    id: str
    revision: str | None = None  # None: a local folder
    license: str | None = None  # of the encoder; None: its card names none
    sha256: str | None = None  # None: a Hub model, pinned by its revision
    parameters: int | None = None  # of the language model; None: a server does not say
    upstream: Upstream | None = None  # None: a Hub model, or nothing says where a folder is from


class Origin(ManifestSection):
    """The origin of source sentences, of few-shot examples, or of the pretrained model."""

    sha256: str | None = None
    upstream: Upstream | None = None


class VersionFacts(ManifestSection):
    """One version of a dataset: its own source sentences, texts and rows, and its command."""

    version: str
    source_sentences: int
    requested: int
    kept: int
    rows: dict[str, int]  # by config
    command: str


class DatasetProvenance(ManifestSection):
    """How a dataset was made."""

    model: UsedModel
    source: Origin
    examples: Origin | None = None  # None: no few-shot examples
    # None: no encoder chose, or a manifest of an earlier version
    selection: UsedModel | None = None
    # of a dataset without another's rows that occur in evaluation data
    decontamination: Dropped | None = None
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str
    history: tuple[VersionFacts, ...] = ()  # the oldest first; (): no rows were appended


class TrainingDataFacts(ManifestSection):
    """One dataset a model was trained on."""

    repo_id: str | None = None
    path: str | None = None
    revision: str | None = None
    commit: str | None = None
    config: str
    example_type: str
    loss: str
    example_set: int | None = None  # None: all rows
    splits: dict[str, int | None]  # split → rows; None: streamed, and not counted
    license: str | None = None  # what its own card or recipe says; None: the model's recipe does


Curve = tuple[tuple[int, float], ...]  # (step, value)


class MergeFacts(ManifestSection):
    """What ``merge`` did to the trained weights.

    ``share`` multiplies what the training changed: below 1 it is the share of the trained weights
    beside the base's. ``validation_scores``: share → score, where validation chose the share.
    """

    share: float
    validation_scores: dict[str, float] = {}


class TrainingFacts(ManifestSection):
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


class ModelProvenance(ManifestSection):
    """How an encoder was made."""

    datasets: tuple[TrainingDataFacts, ...]
    base: Origin
    training: TrainingFacts | None  # None: a baseline
    code: CodeFacts | None = None  # None: made outside of a clone
    command: str


Section = TypeVar("Section", bound=ManifestSection)


def read_section(
    directory: Path, key: str, mapping: dict[str, Any], section: type[Section]
) -> Section:
    """Read ``mapping``, the value of the manifest's ``key``, as the class ``section``.

    Raises InputError for a key that is missing or has a wrong value; it names the first such key of
    the manifest in ``directory``.
    """
    try:
        return section.model_validate(mapping)
    except ValidationError as error:
        first = error.errors()[0]
        full_key = ".".join([key, *(str(part) for part in first["loc"])])
        hint = "the card needs it: run the stage that made the directory again"
        raise InputError(
            directory / MANIFEST, f"{full_key}: {first['msg'].lower()}", hint=hint
        ) from error


def _check_identity(directory: Path, manifest: Manifest, name: str, version: str) -> None:
    """Raise InputError when the manifest has another name or version than the recipe.

    Args:
        directory: the run directory, for the message.
        manifest: the manifest of the run directory.
        name: the recipe's name.
        version: the recipe's version.
    """
    if (manifest.name, manifest.version) != (name, version):
        recorded = f"{manifest.name} v{manifest.version}"
        problem = f"is the recipe of {name} v{version}, but the manifest is of {recorded}"
        raise InputError(directory / RECIPE, problem)


def _check_files(directory: Path, manifest: Manifest) -> None:
    """Raise InputError when a file in ``directory`` is missing or is not the manifest's.

    A file of a finished run must have the manifest's SHA-256. The files of a growing run are not
    read; they must have the manifest's sizes.
    """
    if manifest.complete:
        changed = find_changed_files(directory, manifest)
    else:
        changed = []
        for file in manifest.files:
            path = directory / file.path
            if not path.is_file() or path.stat().st_size != file.bytes:
                changed.append(file.path)
    if changed:
        problem = "is missing or is not the file the manifest names"
        raise InputError(directory / changed[0], problem, hint="run the stage again")


def _check_training(directory: Path, is_trained: bool, recipe: ModelRecipe) -> None:
    """Raise InputError when manifest and recipe disagree on whether the model was trained.

    Args:
        directory: the run directory, for the message.
        is_trained: whether the manifest records a training.
        recipe: the recipe; that of a baseline has no training.
    """
    # They agree on a trained model whose recipe is no baseline, and on an untrained baseline.
    if is_trained != recipe.is_baseline:
        return
    recorded = "a training" if is_trained else "no training"
    problem = f"records {recorded}, and the recipe does not fit that"
    raise InputError(directory / MANIFEST, problem, hint="run the stage again")


def _check_sums(directory: Path, counts: DatasetCounts) -> None:
    """Raise InputError for the first sum of ``counts`` that does not hold; it names both sides.

    Checked are requested = kept + rejected, the sums over labels and over shot counts and, where
    they are recorded, the sums of lengths and of reasons (the module's docstring has them).
    """
    # every requested text was kept or rejected
    path = directory / MANIFEST
    processed = counts.kept + sum(counts.rejected.values())
    _require_equal(path, "requested", counts.requested, "kept + rejected", processed)

    # every text has one label, and one shot count
    _check_partition(path, "by_label", counts.by_label, counts)
    if counts.variants:
        _check_partition(path, "variants", counts.variants, counts)

    # where they are recorded, every kept text has a length, and every rejected text a reason
    lengths = counts.token_lengths.by_label if counts.token_lengths else {}
    for label, texts_by_length in lengths.items():
        kept = counts.by_label[label].kept if label in counts.by_label else 0
        summed = sum(texts_by_length.values())
        sum_name = f"the sum of token_lengths.by_label.{label}"
        _require_equal(path, f"by_label.{label}.kept", kept, sum_name, summed)
    _check_reasons(path, counts)


def _check_partition(
    path: Path, name: str, parts: Mapping[str, Counts], counts: DatasetCounts
) -> None:
    """Raise InputError when the texts of the parts do not add up.

    In each part, requested = kept + rejected. Summed over all parts, each of these three numbers
    is that of ``counts``.

    Args:
        path: the manifest, for the message.
        name: the manifest's key of the parts: by_label or variants.
        parts: label or shot count → its texts.
        counts: the texts of all parts.
    """
    for key, part in parts.items():
        processed = part.kept + part.rejected
        _require_equal(
            path, f"{name}.{key}.requested", part.requested, "its kept + rejected", processed
        )
    totals = {
        "requested": counts.requested,
        "kept": counts.kept,
        "rejected": sum(counts.rejected.values()),
    }
    for key, total in totals.items():  # the keys are fields of ``Counts``
        summed = sum(getattr(part, key) for part in parts.values())
        _require_equal(path, key, total, f"the sum over {name}", summed)


def _check_reasons(path: Path, counts: DatasetCounts) -> None:
    """Raise InputError when the reasons by label do not add up to the rejected texts.

    The reasons of a label add up to its rejected texts, and the labels' texts with a reason to all
    texts with this reason. Manifests of earlier versions, without reasons by label, pass. ``path``:
    the manifest, for the message.
    """
    totals: Counter[str] = Counter()
    for label_counts in counts.by_label.values():
        totals.update(label_counts.reasons)
    if not totals:
        return
    for label, label_counts in counts.by_label.items():
        summed = sum(label_counts.reasons.values())
        key = f"by_label.{label}.rejected"
        _require_equal(path, key, label_counts.rejected, "the sum of its reasons", summed)
    for reason in sorted({*totals, *counts.rejected}):
        rejected = counts.rejected.get(reason, 0)
        key = f"rejected.{reason}"
        _require_equal(path, key, rejected, "the sum over by_label", totals[reason])


def _check_history(directory: Path, counts: DatasetCounts, history: Sequence[VersionFacts]) -> None:
    """Raise InputError when the versions of a dataset do not add up to ``counts``.

    Args:
        directory: the run directory, for the message.
        counts: the counts of the whole dataset.
        history: the versions; empty passes, because no rows were appended.
    """
    if not history:
        return
    path = directory / MANIFEST
    totals = {
        "source_sentences": counts.sources,
        "requested": counts.requested,
        "kept": counts.kept,
    }
    for key, total in totals.items():
        summed = sum(getattr(version, key) for version in history)
        _require_equal(path, f"history.{key}", summed, "that of the whole", total)
    for config, splits in counts.splits.items():
        summed = sum(version.rows.get(config, 0) for version in history)
        total = sum(splits.values())
        _require_equal(path, f"history.rows.{config}", summed, "the rows of the whole", total)


def _check_dropped(directory: Path, dropped: Dropped, manifest: Manifest) -> None:
    """Raise InputError when the record of dropped rows does not fit the manifest.

    Its digest must be the one in the manifest's inputs, and its kept rows those of the manifest's
    files.
    """
    path = directory / MANIFEST
    if manifest.inputs.get(DROPPED_ROWS_INPUT) != dropped.compute_digest():
        problem = f"provenance.{DROPPED_ROWS_PROVENANCE} differs from the digest in inputs"
        raise InputError(path, problem, hint="drop again: sts-dino decontaminate RUN --drop DIR")
    kept_rows = {
        config: {split: rows.kept for split, rows in splits.items()}
        for config, splits in dropped.rows.items()
    }
    _require_equal_rows(path, DROPPED_ROWS_PROVENANCE, kept_rows, manifest)


def _require_equal_rows(
    path: Path, key: str, claimed_rows: Mapping[str, Mapping[str, int]], manifest: Manifest
) -> None:
    """Raise InputError when claimed rows are not those of the shards that the manifest names.

    Args:
        path: the manifest, for the message.
        key: the manifest's key of the claim.
        claimed_rows: config → split → rows.
        manifest: names the shards and their rows.
    """
    claimed: dict[tuple[str, str], int] = {}
    for config, splits in claimed_rows.items():
        for split, rows in splits.items():
            claimed[config, split] = rows
    counted: Counter[tuple[str, str]] = Counter()
    for file in manifest.files:
        if file.config is not None and file.split is not None:
            counted[file.config, file.split] += file.rows or 0
    for config, split in sorted({*claimed, *counted}):
        rows = claimed.get((config, split), 0)
        full_key = f"{key}.{config}.{split}"
        _require_equal(path, full_key, rows, "the rows of its files", counted[config, split])


def _require_equal(path: Path, name: str, number: int, other_name: str, other_number: int) -> None:
    """Raise InputError when two numbers differ; its message has both names and numbers.

    ``path``: the file with the numbers, for the message.
    """
    if number != other_number:
        problem = f"{name} is {number}, but {other_name} is {other_number}"
        hint = "numbers that disagree stop the card: run the stage again"
        raise InputError(path, problem, hint=hint)


@dataclass(frozen=True)
class DatasetFacts:
    """The facts of a dataset's run.

    A growing run has ``progress`` instead of ``counts``, and a ``provenance`` once the generator is
    loaded. Only a finished run has measurements: ``value``, ``fidelity``, ``ledger``, ``report``.
    """

    directory: Path
    manifest: Manifest
    recipe: DatasetRecipe
    verdict: Verdict
    provenance: DatasetProvenance | None
    counts: DatasetCounts | None
    progress: GenerationProgress | None
    value: TrainingValue | None = None
    fidelity: Fidelity | None = None
    ledger: Ledger | None = None
    report: bool = False  # whether report.html shows this run

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> DatasetFacts:
        """Read the facts of a run directory, and check them; ``read_run`` checks the files.

        Args:
            directory: the run directory.
            manifest: its manifest, or a snapshot of a growing run's.

        Raises InputError for a recipe that cannot be read, for a name or version that differs from
        the recipe's, for a manifest's key that is missing, for a licence that does not follow from
        the parts, for numbers that disagree, and for a measurement or report of other rows.
        """
        # The recipe, and its licence.
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        _check_identity(directory, manifest, recipe.name, recipe.version)
        verdict = check_dataset(recipe)

        # The manifest's sections; a growing run has no provenance at first, and progress only.
        provenance = None
        if manifest.complete or manifest.provenance:
            provenance = read_section(
                directory, "provenance", manifest.provenance, DatasetProvenance
            )
        counts = None
        progress = None
        if manifest.complete:
            counts = read_section(directory, "counts", manifest.counts, DatasetCounts)
        else:
            progress = read_section(directory, "counts", manifest.counts, GenerationProgress)
        facts = cls(directory, manifest, recipe, verdict, provenance, counts, progress)
        facts._check_counts()

        # The measurements of a finished run.
        if not manifest.complete:
            return facts
        return replace(
            facts,
            value=TrainingValue.read(directory, manifest),
            fidelity=Fidelity.read(directory, manifest),
            ledger=Ledger.read(directory, manifest),
            report=has_report(directory, manifest),
        )

    def _check_counts(self) -> None:
        """Raise InputError when the counts of a finished run disagree with its other facts."""
        if self.counts is None:
            return
        _check_sums(self.directory, self.counts)
        _require_equal_rows(self.directory / MANIFEST, "splits", self.counts.splits, self.manifest)
        if self.dropped:
            _check_dropped(self.directory, self.dropped, self.manifest)
        elif self.provenance:
            _check_history(self.directory, self.counts, self.provenance.history)

    @property
    def dropped(self) -> Dropped | None:
        """The record of the rows that ``sts-dino decontaminate --drop`` removed; None without."""
        return self.provenance.decontamination if self.provenance else None

    @property
    def label_names(self) -> list[str]:
        """The names of the labels that have counts: the recipe's in its order, then others by name.

        Empty for a growing run.
        """
        counted = self.counts.by_label if self.counts else {}
        names = [label.name for label in self.recipe.labels if label.name in counted]
        return names + sorted(counted.keys() - set(names))


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model's run; an unfinished run has recipe and manifest alone."""

    directory: Path
    manifest: Manifest
    recipe: ModelRecipe
    verdict: Verdict | None = None
    provenance: ModelProvenance | None = None
    results: Results | None = None
    repeats: Repeats | None = None
    report: bool = False  # whether report.html shows this run

    @classmethod
    def read(
        cls, directory: Path, manifest: Manifest, evaluation: Path | None = None
    ) -> ModelFacts:
        """Read the facts of a run directory, and check them; ``read_run`` checks the files.

        Args:
            directory: the run directory.
            manifest: its manifest. Of an unfinished run only the recipe is read.
            evaluation: a folder whose results.json, if it has one, is read instead of the run
                directory's; None: no other folder.

        Raises InputError for a recipe that cannot be read, for a name or version that differs from
        the recipe's, for a manifest's key that is missing, for a training or number of datasets
        that recipe and manifest do not agree on, and for a licence that does not follow from the
        parts. Raises InputError, too, for results, repeats or a report of other weights, and for
        results of a part of the data.
        """
        # The recipe and, of a finished run, how it was made.
        recipe = load_recipe(directory / RECIPE, ModelRecipe)
        _check_identity(directory, manifest, recipe.name, recipe.version)
        if not manifest.complete:
            return cls(directory, manifest, recipe)
        provenance = read_section(directory, "provenance", manifest.provenance, ModelProvenance)
        _check_training(directory, provenance.training is not None, recipe)

        # The results; those of ``evaluation`` come first.
        results = None
        if evaluation:
            results = _read_run_results(evaluation, manifest)
        return cls(
            directory,
            manifest,
            recipe,
            check_model(recipe, list_dataset_licences(recipe, provenance)),
            provenance,
            results or _read_run_results(directory, manifest),
            _read_run_repeats(directory, manifest),
            has_report(directory, manifest),
        )

    @property
    def training(self) -> TrainingFacts | None:
        """The training; None for a baseline and for an unfinished run."""
        return self.provenance.training if self.provenance else None

    def list_unscored_tasks(self) -> list[str]:
        """List the recipe's evaluation tasks that the results lack, each as "TASK SPLIT".

        Groups of tasks, whose names have no "/", are left out. Without results the list is empty.
        """
        if self.results is None:
            return []
        scored = set()
        for score in self.results.scores:
            scored.add((score.task, score.split))
            # A task with folds of its own has a score with the split "all"; a recipe says "test".
            if score.split not in ("train", "validation"):
                scored.add((score.task, "test"))
        unscored = []
        for item in self.recipe.evaluation:
            is_group = "/" not in item.task
            if not is_group and (item.task, item.split) not in scored:
                unscored.append(f"{item.task} {item.split}")
        return unscored


def read_run(directory: Path, manifest: Manifest | None = None) -> DatasetFacts | ModelFacts:
    """Read and check all facts of a run directory, its files included.

    Args:
        directory: a run directory.
        manifest: a snapshot of a growing run (default: the manifest on disk).

    Raises InputError when the directory is not a run directory, when a file is missing or is not
    the manifest's, when a recipe or measurement cannot be read, when facts disagree, and for an
    unfinished model.
    """
    manifest = manifest or require_manifest(directory)
    facts: DatasetFacts | ModelFacts
    if manifest.kind == "dataset":
        facts = DatasetFacts.read(directory, manifest)
    elif manifest.complete:
        facts = ModelFacts.read(directory, manifest)
    else:
        hint = "run the same stage again: it resumes"
        raise InputError(directory, "the run is not finished", hint=hint)
    _check_files(directory, manifest)
    return facts


def compute_facts_digest(facts: DatasetFacts | ModelFacts) -> str:
    """Return the SHA-256 (hex) over the manifest, the measurements and the report of a run.

    The measurements are the files of ``MEASURED`` that the directory has, e.g. results.json. For a
    growing run the digest is over the manifest alone. A card's stamp has the digest, so a
    publication recognises a card that was made of other facts.
    """
    contents: list[bytes | None] = []
    if facts.manifest.complete:
        for name in MEASURED:
            path = facts.directory / name
            contents.append(path.read_bytes() if path.exists() else None)
    return hash_facts(format_manifest(facts.manifest).encode(), *contents)


def list_dataset_licences(
    recipe: ModelRecipe, provenance: ModelProvenance
) -> list[tuple[str, str]]:
    """List (name, licence id) of each training dataset, in the recipe's order.

    The id is the one that the provenance records, else the recipe's, else empty. Raises InputError
    for a recipe with another number of datasets than the provenance.
    """
    counts = (len(recipe.datasets), len(provenance.datasets))
    if counts[0] != counts[1]:
        raise InputError(
            f"recipe {recipe.name}: datasets",
            f"has {counts[0]} datasets, and the run's manifest {counts[1]}",
            hint="restore the recipe.yaml that the run was made with",
        )
    licences = []
    for recorded, data in zip(provenance.datasets, recipe.datasets, strict=True):
        name = name_origin(recorded.repo_id, recorded.path)
        licences.append((name, recorded.license or data.license or ""))
    return licences


def _read_run_results(directory: Path, manifest: Manifest) -> Results | None:
    """Read results.json of ``directory``, or return None without one.

    Results without a fingerprint, of an encoder outside a run directory, are accepted. Raises
    InputError for a file of another form, for results of other weights than the manifest's, and for
    results of a part of the data.
    """
    path = directory / RESULTS
    if not path.exists():
        return None
    results = read_results(path)
    if results.limit is not None:
        raise InputError(
            path, f"is a trial: {results.limit}", hint=f"{SCORE_HINT}, without --limit"
        )
    if results.fingerprint not in (None, manifest.fingerprint):
        raise InputError(path, "was measured on another version of this model", hint=SCORE_HINT)
    return results


def _read_run_repeats(directory: Path, manifest: Manifest) -> Repeats | None:
    """Read repeats.json of ``directory``, or return None without one.

    Trainings of the manifest's name and version are accepted. When a training has another name or
    version, the manifest's run itself must be among the trainings; else InputError is raised, as
    for a file of another form.
    """
    path = directory / REPEATS
    if not path.exists():
        return None
    repeats = read_repeats(path)
    # the names and versions of the trainings, without the manifest's own
    other_versions = {(repeats.model, run.version) for run in repeats.runs}
    other_versions -= {(manifest.name, manifest.version)}
    fingerprints = {run.fingerprint for run in repeats.runs}
    if other_versions and manifest.fingerprint not in fingerprints:
        model, version = min(other_versions)
        problem = (
            f"has trainings of {model} v{version}, this is {manifest.name} v{manifest.version}"
        )
        raise InputError(path, problem, hint="run: sts-dino repeat RECIPE")
    return repeats
