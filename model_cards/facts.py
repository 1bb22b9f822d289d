"""The facts of a run that its card and its report print: recipe, manifest, results and measurements.

``Manifest.counts`` and ``Manifest.provenance`` are free mappings; the models here are strict about the keys that a page
prints, and ignore all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from hub.contract.decontamination import Dropped, Ledger, read_ledger
from hub.contract.label_fidelity import Fidelity, read_fidelity
from hub.contract.licences import Verdict, check, check_model
from hub.contract.measured import has_report
from hub.contract.published_paths import origin_name
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.repeats import REPEATS, Repeats, read_repeats
from hub.contract.results import Results, read_results
from hub.contract.run_dir import MANIFEST, RECIPE, Manifest, read_manifest
from hub.errors import InputError
from hub.training_value import TrainingValue, read_value
from model_cards import checks

RESULTS = "results.json"
EVALUATE = "run: sts-dino score RECIPE"


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
    shards_total: int | None = None  # not known before the first texts are


class TextLengths(Facts):
    """Label → length → kept texts of that length, in ``unit`` (tokens of ``tokenizer``, or words)."""

    unit: str
    tokenizer: str | None = None
    by_label: dict[str, dict[int, int]]


class DatasetCounts(Facts):
    """Counts of a finished generation."""

    sources: int
    sources_skipped: dict[str, int] = {}  # given texts passed over
    sources_rejected: dict[str, int] = {}  # first texts that the model wrote and the filters rejected
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
    """What a folder of a language model says it was made from (``hub.model_folder``)."""

    model: str
    made_by: str
    packages: dict[str, str]


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


class SourceFacts(Facts):
    """Where the first texts come from, beyond the recipe."""

    sha256: str | None = None


class ExampleFacts(Facts):
    """Where few-shot examples come from. ``rows``: shot count → example set → row numbers in that dataset, from 0."""

    repo_id: str | None = None
    revision: str | None = None
    sha256: str | None = None
    rows: dict[str, tuple[dict[str, tuple[int, ...]], ...]] = {}  # the sets of a shot count: label → rows


class VersionFacts(Facts):
    """What one version of a dataset brought: its own first texts, texts and rows, and the command that wrote them."""

    version: str
    first_texts: int
    requested: int
    kept: int
    rows: dict[str, int]  # by config
    command: str


class DatasetProvenance(Facts):
    """How a dataset was made."""

    model: Generator
    source: SourceFacts
    examples: ExampleFacts | None = None
    decontamination: Dropped | None = None  # of a dataset without the rows of another that stand in evaluation data
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
    form: str
    loss: str
    example_set: int | None = None  # None: all rows
    splits: dict[str, int | None]  # rows; None: streamed, and not counted
    license: str | None = None  # what its own card or recipe says; None: the model's recipe does


class BaseFacts(Facts):
    """The pretrained model before training."""

    sha256: str | None = None
    upstream: Upstream | None = None


Curve = tuple[tuple[int, float], ...]  # (step, value)


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


class ModelProvenance(Facts):
    """How an encoder was made."""

    datasets: tuple[TrainedOn, ...]
    base: BaseFacts
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


def require_manifest(directory: Path) -> Manifest:
    """The manifest of a run directory. Raises InputError where there is none."""
    manifest = read_manifest(directory)
    if manifest is None:
        hint = "name the output of a stage, e.g. artifacts/datasets/NAME"
        raise InputError(directory, "is not a run directory (no manifest.json)", hint=hint)
    return manifest


@dataclass(frozen=True)
class Measured:
    """The measurements in a dataset's run directory; None: not measured."""

    value: TrainingValue | None = None
    fidelity: Fidelity | None = None
    ledger: Ledger | None = None
    report: bool = False

    @classmethod
    def of(cls, directory: Path, manifest: Manifest) -> Measured:
        """Those of a finished run. Raises InputError when one is damaged or of other rows."""
        return cls(
            read_value(directory, manifest),
            read_fidelity(directory, manifest),
            read_ledger(directory, manifest),
            has_report(directory, manifest),
        )


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset's run: everything that its card and its report print. A growing run has ``progress`` and no counts."""

    directory: Path
    manifest: Manifest
    recipe: DatasetRecipe
    verdict: Verdict
    provenance: DatasetProvenance | None
    counts: DatasetCounts | None
    progress: GenerationProgress | None
    measured: Measured

    @classmethod
    def read(cls, directory: Path, manifest: Manifest, measured: bool = True) -> DatasetFacts:
        """The facts of a run directory; ``manifest`` may be a snapshot, of which nothing else is ``measured``.

        Raises InputError for a licence that does not follow, damaged files and numbers that disagree.
        """
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        checks.check_identity(directory, manifest, recipe.name, recipe.version)
        verdict = check(recipe)
        counts = progress = provenance = None
        if manifest.complete or manifest.provenance:
            provenance = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance)
        if not manifest.complete:
            progress = read_facts(directory, "counts", manifest.counts, GenerationProgress)
        else:
            counts = read_facts(directory, "counts", manifest.counts, DatasetCounts)
            checks.check_counts(directory, counts)
            checks.check_splits(directory, counts, manifest)
            if provenance and provenance.decontamination:
                checks.check_dropped(directory, provenance.decontamination, manifest)
            elif provenance:
                checks.check_history(directory, counts, provenance.history)
        found = Measured.of(directory, manifest) if measured and manifest.complete else Measured()
        return cls(directory, manifest, recipe, verdict, provenance, counts, progress, found)

    @property
    def dropped(self) -> Dropped | None:
        """The rows of another dataset that were dropped to make this one."""
        return self.provenance.decontamination if self.provenance else None

    @property
    def label_names(self) -> list[str]:
        """The counted labels: the recipe's in its order, then any it does not name."""
        counted = self.counts.by_label if self.counts else {}
        names = [label.name for label in self.recipe.labels if label.name in counted]
        return names + sorted(counted.keys() - set(names))


@dataclass(frozen=True)
class ModelFacts:
    """A model's run: everything that its card and its report print. A run that trains has no verdict, no provenance."""

    directory: Path
    manifest: Manifest
    recipe: ModelRecipe
    verdict: Verdict | None = None
    provenance: ModelProvenance | None = None
    results: Results | None = None
    repeats: Repeats | None = None
    report: bool = False

    @classmethod
    def read(cls, directory: Path, manifest: Manifest, evaluation: Path | None = None) -> ModelFacts:
        """The facts of a run directory; results in the folder ``evaluation`` come first.

        Raises InputError for a licence that does not follow, and for results of other weights or of part of the data.
        """
        recipe = load_recipe(directory / RECIPE, ModelRecipe)
        checks.check_identity(directory, manifest, recipe.name, recipe.version)
        if not manifest.complete:
            return cls(directory, manifest, recipe)
        provenance = read_facts(directory, "provenance", manifest.provenance, ModelProvenance)
        checks.check_training(directory, provenance.training is not None, recipe)
        results = read_own_results(evaluation, manifest) if evaluation else None
        return cls(
            directory,
            manifest,
            recipe,
            check_model(recipe, licensed(recipe, provenance)),
            provenance,
            results or read_own_results(directory, manifest),
            read_own_repeats(directory, manifest),
            has_report(directory, manifest),
        )

    @property
    def training(self) -> TrainingFacts | None:
        """The training; None of a baseline and of an unfinished run."""
        return self.provenance.training if self.provenance else None


def licensed(recipe: ModelRecipe, provenance: ModelProvenance) -> list[tuple[str, str]]:
    """The datasets with their licences: those of their own cards, else those of the recipe."""
    pairs = zip(provenance.datasets, recipe.datasets, strict=True)
    return [(origin_name(item.repo_id, item.path), item.license or spec.license or "") for item, spec in pairs]


def read_own_results(directory: Path, manifest: Manifest) -> Results | None:
    """results.json, or None without one. Raises InputError when it is of other weights or part of the data."""
    if not (directory / RESULTS).exists():
        return None
    results = read_results(directory / RESULTS)
    if results.limit is not None:
        raise InputError(directory / RESULTS, f"is a trial: {results.limit}", hint=f"{EVALUATE}, without --limit")
    if results.fingerprint not in (None, manifest.fingerprint):
        raise InputError(directory / RESULTS, "was measured on another version of this model", hint=EVALUATE)
    return results


def read_own_repeats(directory: Path, manifest: Manifest) -> Repeats | None:
    """repeats.json, or None without one. Raises InputError when it is of another model or version."""
    if not (directory / REPEATS).exists():
        return None
    repeats = read_repeats(directory / REPEATS)
    others = {(repeats.model, run.version) for run in repeats.runs} - {(manifest.name, manifest.version)}
    if others and manifest.fingerprint not in {run.fingerprint for run in repeats.runs}:
        model, version = min(others)
        found = f"has trainings of {model} v{version}, this is {manifest.name} v{manifest.version}"
        raise InputError(directory / REPEATS, found, hint="run: sts-dino repeats RECIPE")
    return repeats
