"""A training job: the recipe and all its inputs, read and checked before anything is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from hub.contract.licences import check_model
from hub.contract.published_paths import local_paths, origin_name, published_path, require_inputs
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe, new_manifest
from hub.contract.run_dir import ARTIFACTS, Manifest
from hub.errors import InputError
from training.data.example_types import DOCUMENTS, GRADED_PAIR, SELF_PAIR, STS
from training.loop.arguments import (
    check_texts,
    check_together,
    per_device_batch,
    trainer_arguments,
    typed_arguments,
)
from training.loop.distributed import process_count
from training.losses.losses import LOSSES, check_arguments, check_keys, check_loss
from training.model.bases import Base, find_base

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformerTrainingArguments

    from training.data.training_sets import TrainingSet
    from training.loop.validation import ValidationEvaluator

LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class TrainingJob:
    """Everything a training run needs, checked: recipe, inputs on this disk, and trainer arguments.

    ``guides`` are the encoders that the losses' guides are, by the dataset's place in the recipe, where it names one.
    ``reporters`` are the names that were asked for, TensorBoard among them.
    """

    recipe: ModelRecipe
    out: Path
    sets: list[TrainingSet]
    base: Base
    evaluator: ValidationEvaluator | None
    arguments: SentenceTransformerTrainingArguments
    reporters: list[str]
    guides: dict[int, Base] = field(default_factory=dict)

    @property
    def checkpoints(self) -> Path:
        """Beside the run directory: checkpoints are never published."""
        return self.out.with_name(f"{self.out.name}.checkpoints")

    @property
    def untrained(self) -> Path:
        """Folder of the untrained encoder."""
        return self.out.with_name(f"{self.out.name}.base")

    @property
    def logs(self) -> Path:
        """TensorBoard's event files."""
        return self.out.with_name(f"{self.out.name}.logs")

    def manifest(self) -> Manifest:
        """The manifest of this run before anything is trained."""
        base = self.recipe.base
        inputs = {f"base:{base.repo_id or published_path(base.path or '')}": self.base.sha256}
        if base.vocabulary is not None and self.base.corpus is not None:
            name = origin_name(base.vocabulary.repo_id, base.vocabulary.path)
            inputs[f"vocabulary:{name}:{base.vocabulary.config}"] = self.base.corpus.sha256
        for item in self.sets:
            name = item.spec.repo_id or published_path(item.spec.path or "")
            inputs[_new(f"dataset:{name}:{item.spec.config}", inputs)] = item.sha256
        for index, guide in self.guides.items():
            spec = self.recipe.datasets[index].guide
            assert spec is not None
            inputs[_new(f"guide:{origin_name(spec.repo_id, spec.path)}", inputs)] = guide.sha256
        inputs |= {} if self.evaluator is None else self.evaluator.inputs
        libraries = (*LIBRARIES, *(("peft",) if self.recipe.lora else ()))
        versions = {"python": sys.version.split()[0], **{library: version(library) for library in libraries}}
        return new_manifest(self.recipe, inputs, versions)


def _new(name: str, taken: Mapping[str, str]) -> str:
    """``name``, numbered when it is taken: folders of one name may lie in different places."""
    if name not in taken:
        return name
    return next(f"{name}#{number}" for number in count(2) if f"{name}#{number}" not in taken)


def checked_recipe(path: Path, limit: int | None, settings: list[str]) -> ModelRecipe:
    """The recipe, read; everything is checked that needs no library, so that a mistake is told at once."""
    recipe = load_recipe(path, ModelRecipe, settings)
    if limit is not None:
        recipe = recipe.model_copy(update={"limit": limit})
    check_model(recipe, ())
    check_texts(recipe.arguments, f"{path}:arguments")
    check_losses(recipe, str(path))
    of_scoring = [key for key in local_paths(recipe) if key.startswith("evaluation.")]
    require_inputs(path, recipe, unneeded=of_scoring)
    return recipe


def prepare(recipe_path: Path, out: Path | None, limit: int | None, settings: list[str]) -> TrainingJob:
    """Read and check everything a run needs, the cheap things first; nothing is written.

    Joins the group of processes, when there are several. Raises InputError or RunError.
    """
    recipe = checked_recipe(recipe_path, limit, settings)
    place = f"{recipe_path}:arguments"
    given = typed_arguments(recipe.arguments, place)
    check_together(recipe, given, place)
    check_batch(recipe, given.get("gradient_accumulation_steps", 1), str(recipe_path))
    out = (out or ARTIFACTS / "models" / recipe.name).resolve()
    base = find_base(recipe.base)
    guides = {
        index: find_base(item.guide, f"datasets.{index}.guide")
        for index, item in enumerate(recipe.datasets)
        if item.guide is not None
    }
    from training.data.training_sets import load_all  # these import their libraries, which takes seconds
    from training.loop.validation import validation_evaluator
    from training.model.adapters import check_base_branch

    if recipe.lora is not None and recipe.lora.release == "adapter":
        check_base_branch(recipe.base, "base")
    sets = load_all(recipe.datasets, recipe.limit, recipe.seed, own_validation=not recipe.validation)
    check_licences(recipe, sets)
    evaluator = validation_evaluator(recipe, sets, given.get("per_device_eval_batch_size", 64))
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    arguments, reporters = trainer_arguments(recipe, given, checkpoints, process_count(), evaluator is not None, place)
    return TrainingJob(recipe, out, sets, base, evaluator, arguments, reporters, guides)


def check_licences(recipe: ModelRecipe, sets: list[TrainingSet]) -> None:
    """Raise InputError when the model could not have its licence, given those of its data: it would get no card."""
    for index, item in enumerate(sets):
        if item.license is None:
            place = f"datasets.{index}: {item.spec.repo_id or item.spec.path}"
            raise InputError(place, "does not say its licence", hint=f"write it to datasets.{index}.license")
    check_model(recipe, [(origin_name(item.spec.repo_id, item.spec.path), item.license or "") for item in sets])


def check_losses(recipe: ModelRecipe, place: str) -> None:
    """Raise InputError when a loss does not learn from its dataset's example type, or not with this base or batch."""
    for index, spec in enumerate(recipe.datasets):
        loss = check_loss(spec.loss, spec.example_type, f"{place}:datasets.{index}")
        if DOCUMENTS in loss.examples and recipe.base.modules != "transformer":
            found = f"is {recipe.base.modules}, and documents train layers that read tokens in their places"
            raise InputError(f"{place}:base.modules", found, allowed="transformer")
        if spec.guide is not None and recipe.base.prompt is not None:
            found = "would read base.prompt around every text: it is given what the encoder reads"
            hint = "leave it out: the untrained encoder is the guide then"
            raise InputError(f"{place}:datasets.{index}.guide", found, hint=hint)
        alone = SELF_PAIR.name, GRADED_PAIR.name  # a row without negatives of its own
        if loss.in_batch and (STS in loss.examples or spec.example_type in alone) and recipe.batch_size == 1:
            found = f"is 1, and {spec.loss} compares pairs of a batch with one another: it would learn nothing"
            raise InputError(f"{place}:batch_size", found, allowed="at least 2")


def check_batch(recipe: ModelRecipe, accumulated: int, place: str) -> None:
    """Raise InputError for losses or their arguments that do not fit, or a batch that cannot be cut for them."""
    check_losses(recipe, place)
    for index, spec in enumerate(recipe.datasets):
        check_arguments(spec, f"{place}:datasets.{index}")
        check_keys(spec, f"{place}:datasets.{index}")
        if LOSSES[spec.loss].in_batch and accumulated > 1:
            raise InputError(
                f"{place}:arguments.gradient_accumulation_steps",
                f"{spec.loss} compares the rows of a batch with one another, and accumulated steps do not share theirs",
                allowed="1",
                hint=LOSSES[spec.loss].smaller,
            )
    per_device_batch(recipe.batch_size, process_count(), accumulated, f"{place}:batch_size")
