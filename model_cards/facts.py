"""The facts of a run that its card and its report print: recipe, manifest, results and measurements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hub.contract.licences import Verdict, check, check_model
from hub.contract.measured import REPEATS, Dropped, Fidelity, Ledger, Repeats, TrainingValue, has_report, read_repeats
from hub.contract.published_paths import origin_name
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.results import Results, read_results
from hub.contract.run_dir import RECIPE, Manifest
from hub.errors import InputError
from model_cards import manifest as checks
from model_cards.manifest import (
    DatasetCounts,
    DatasetProvenance,
    GenerationProgress,
    ModelProvenance,
    TrainingFacts,
    read_facts,
)

RESULTS = "results.json"
EVALUATE = "run: sts-dino score RECIPE"


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset's run, as its card and its report print it. A growing run has ``progress`` and no counts."""

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
    report: bool = False

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
        found = cls(directory, manifest, recipe, verdict, provenance, counts, progress)
        if not (measured and manifest.complete):
            return found
        of_rows: dict[str, Any] = {"value": TrainingValue, "fidelity": Fidelity, "ledger": Ledger}
        measurements = {name: kind.read(directory, manifest) for name, kind in of_rows.items()}
        return replace(found, **measurements, report=has_report(directory, manifest))

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
        raise InputError(directory / REPEATS, found, hint="run: sts-dino repeat RECIPE")
    return repeats
