"""What a report is about, read from run directories by the readers that cards use: strict about what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eval.audit.source import find_rows
from eval.runs.job import beside_model
from eval.runs.records import BASE, beside
from hub.contract.licences import Verdict, check, check_model
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.results import Results
from hub.contract.run_dir import RECIPE, Manifest, read_manifest
from hub.errors import InputError
from model_cards.dataset.measured import Measured
from model_cards.dataset.samples import first_rows, sample_config, targets_of
from model_cards.model.card import licensed, own_results
from model_cards.shared.checks import check_counts, check_identity
from model_cards.shared.configs import ordered_shards
from model_cards.shared.facts import (
    DatasetCounts,
    DatasetProvenance,
    GenerationProgress,
    ModelProvenance,
    read_facts,
)
from sts_dino.report.pairs import Cosines, Pair, Sample, cosines_of, draw

UNTRAINED, CONTROL, TRAINED = "untrained", "copies control", "trained"
SHOWN_OF_GROWING = 4  # rows a label, shards read


@dataclass(frozen=True)
class Correlation:
    """Spearman x 100 of an encoder's cosine with people's judgements, with its 95 % interval."""

    encoder: str
    spearman: float
    low: float
    high: float


@dataclass(frozen=True)
class Judgements:
    """How encoders agree with the judgements that people gave of ``pairs`` pairs. ``note``: what a reader must know."""

    pairs: int
    rows: tuple[Correlation, ...]
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """What stages noted beside a run directory; empty where nothing was noted."""

    timing: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path) -> Cost:
        """The cost of a run. Raises InputError for a note that is none."""
        return cls(_note(directory, "timing"), _note(directory, "usage"))


@dataclass(frozen=True)
class DatasetFacts:
    """A dataset's run. Of an unfinished one there are ``progress`` and perhaps ``sample``, and no ``counts``.

    ``cosines``: encoder → label → numbers, of the pairs of ``sample``; ``encoder``: the model whose they are, and
    whether it ``was_trained_on`` these pairs.
    """

    directory: Path
    manifest: Manifest
    recipe: DatasetRecipe
    verdict: Verdict
    provenance: DatasetProvenance | None
    counts: DatasetCounts | None
    progress: GenerationProgress | None
    measured: Measured
    cost: Cost
    sample: Sample | None
    cosines: dict[str, Cosines] = field(default_factory=dict)
    encoder: str = ""
    was_trained_on: bool = False


@dataclass(frozen=True)
class ModelFacts:
    """A model's run; of an unfinished one ``provenance`` and ``verdict`` are None."""

    directory: Path
    manifest: Manifest
    recipe: ModelRecipe
    verdict: Verdict | None
    provenance: ModelProvenance | None
    results: Results | None
    cost: Cost


@dataclass(frozen=True)
class Facts:
    """All that a report tells."""

    datasets: tuple[DatasetFacts, ...]
    models: tuple[ModelFacts, ...]
    commands: tuple[str, ...]
    judgements: Judgements | None

    @property
    def runs(self) -> tuple[DatasetFacts | ModelFacts, ...]:
        """Datasets, then models."""
        return (*self.datasets, *self.models)


def collect(runs: Sequence[Path], kept: Path, commands: Sequence[str], judgements: Judgements | None) -> Facts:
    """The facts of run directories of datasets and models. ``kept``: where similarities are kept.

    Raises InputError for what is no run directory, is damaged, or has numbers that do not agree.
    """
    found = [(directory, _manifest(directory)) for directory in runs]
    models = tuple(_model(directory, manifest) for directory, manifest in found if manifest.kind == "model")
    datasets = (_dataset(directory, manifest) for directory, manifest in found if manifest.kind == "dataset")
    compared = tuple(_with_cosines(one, models, kept) for one in datasets)
    facts = Facts(compared, models, tuple(commands), judgements)
    told = (one.provenance.command for one in facts.runs if one.provenance is not None)
    return facts if commands else replace(facts, commands=tuple(told))


def _manifest(directory: Path) -> Manifest:
    manifest = read_manifest(directory)
    if manifest is None:
        hint = "name what a stage made, e.g. artifacts/datasets/NAME"
        raise InputError(directory, "is not a run directory (no manifest.json)", hint=hint)
    return manifest


def _note(directory: Path, kind: str) -> Mapping[str, Any]:
    path = directory.with_name(f"{directory.resolve().name}.{kind}.json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InputError(path, "is not JSON", hint="remove it: nothing but the cost is in it") from error
    return found if isinstance(found, dict) else {}


def _dataset(directory: Path, manifest: Manifest) -> DatasetFacts:
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    check_identity(directory, manifest, recipe.name, recipe.version)
    counts = progress = provenance = None
    if manifest.complete:
        counts = read_facts(directory, "counts", manifest.counts, DatasetCounts)
        check_counts(directory, counts)
    else:
        progress = read_facts(directory, "counts", manifest.counts, GenerationProgress)
    if manifest.provenance:
        provenance = read_facts(directory, "provenance", manifest.provenance, DatasetProvenance)
    return DatasetFacts(
        directory=directory,
        manifest=manifest,
        recipe=recipe,
        verdict=check(recipe),
        provenance=provenance,
        counts=counts,
        progress=progress,
        measured=Measured.of(directory, manifest) if manifest.complete else Measured(),
        cost=Cost.of(directory),
        sample=_sample(directory, manifest, recipe),
    )


def _sample(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> Sample | None:
    config, labels = sample_config(manifest, recipe), targets_of(recipe)
    if config is None or not any(file.rows for file in manifest.shards(config)):
        return None
    if manifest.complete:
        return draw(find_rows(str(directory), config), labels)
    shards = [file for file in ordered_shards(manifest, config) if file.rows][:SHOWN_OF_GROWING]
    found = first_rows(directory, shards, "target", labels, SHOWN_OF_GROWING)
    pairs = {label: tuple(Pair(one["text1"], one["text2"] or "") for one in rows) for label, rows in found.items()}
    return Sample(config, {label: some for label, some in pairs.items() if some}, {}, drawn=False)


def _with_cosines(dataset: DatasetFacts, models: Sequence[ModelFacts], kept: Path) -> DatasetFacts:
    """A dataset with its pairs' similarities under the first encoder trained on it, else under the first there is."""
    trained = [model for model in models if model.manifest.complete and not model.recipe.is_baseline]
    names = {dataset.manifest.name, dataset.directory.resolve().name}
    own = [model for model in trained if names & _trained_on(model)]
    if dataset.sample is None or not dataset.sample.drawn or not dataset.sample.has_pairs or not trained:
        return dataset
    from eval.encoders.load import content_hash

    model = (own or trained)[0]
    base = beside_model(str(model.directory), BASE)
    encoders = {**({UNTRAINED: Path(base)} if base else {}), TRAINED: model.directory}
    cosines = cosines_of(dataset.sample, dataset.manifest.fingerprint, encoders, kept, content_hash)
    return replace(dataset, cosines=cosines, encoder=model.manifest.name, was_trained_on=bool(own))


def _trained_on(model: ModelFacts) -> set[str]:
    """The last names of what a model was trained on."""
    items = model.provenance.datasets if model.provenance else ()
    return {Path(item.path or item.repo_id or "").name for item in items}


def _model(directory: Path, manifest: Manifest) -> ModelFacts:
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    check_identity(directory, manifest, recipe.name, recipe.version)
    if not manifest.complete:
        return ModelFacts(directory, manifest, recipe, None, None, None, Cost.of(directory))
    provenance = read_facts(directory, "provenance", manifest.provenance, ModelProvenance)
    return ModelFacts(
        directory=directory,
        manifest=manifest,
        recipe=recipe,
        verdict=check_model(recipe, licensed(recipe, provenance)),
        provenance=provenance,
        results=own_results(beside(directory), manifest) or own_results(directory, manifest),
        cost=Cost.of(directory),
    )
