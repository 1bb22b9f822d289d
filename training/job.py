"""A training job: the recipe with everything it needs read and checked, before anything is written."""

import math
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.base.evaluation import SequentialEvaluator

from hub.recipe import ModelRecipe
from hub.recipe_file import fingerprint, load_recipe
from hub.run_dir import ARTIFACTS, Manifest
from training.arguments import trainer_arguments, typed_arguments
from training.data import TrainingSet, load_all
from training.losses import check_loss
from training.models import Base, build_student, find_base
from training.trainer import validation_evaluator

LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class Job:
    """Everything a training run needs, checked: recipe, inputs on this disk, and trainer arguments."""

    recipe: ModelRecipe
    out: Path
    sets: list[TrainingSet]
    base: Base
    evaluator: SequentialEvaluator | None
    arguments: SentenceTransformerTrainingArguments

    @property
    def checkpoints(self) -> Path:
        """Beside the run directory: checkpoints are never published."""
        return self.out.with_name(f"{self.out.name}.checkpoints")

    @property
    def untrained(self) -> Path:
        """Where the student before training is kept."""
        return self.out.with_name(f"{self.out.name}.base")

    def manifest(self) -> Manifest:
        """The manifest of this run before anything is trained."""
        inputs = {f"base:{self.recipe.base.repo_id or self.recipe.base.path}": self.base.sha256}
        inputs |= {
            f"dataset:{item.spec.repo_id or item.spec.path}:{item.spec.config}": item.sha256 for item in self.sets
        }
        return Manifest(
            kind="model",
            name=self.recipe.name,
            version=self.recipe.version,
            fingerprint=fingerprint(self.recipe, inputs),
            inputs=inputs,
            versions={"python": sys.version.split()[0], **{library: version(library) for library in LIBRARIES}},
        )


def prepare(recipe_path: Path, out: Path | None, limit: int | None, settings: list[str]) -> Job:
    """Read and check everything a run needs; nothing is written. Raises InputError or RunError."""
    recipe = load_recipe(recipe_path, ModelRecipe, settings)
    if limit is not None:
        recipe = recipe.model_copy(update={"limit": limit})
    given = typed_arguments(recipe.arguments, f"{recipe_path}:arguments")
    for index, spec in enumerate(recipe.datasets):
        check_loss(spec.loss, spec.form, f"{recipe_path}:datasets.{index}")
    out = (out or ARTIFACTS / "models" / recipe.name).resolve()
    base = find_base(recipe.base)
    sets = load_all(recipe.datasets, recipe.limit)
    evaluator = validation_evaluator(sets, given.get("per_device_eval_batch_size", 64))
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    place = f"{recipe_path}:arguments"
    arguments = trainer_arguments(given, checkpoints, recipe.seed, evaluator is not None, place)
    return Job(recipe, out, sets, base, evaluator, arguments)


def planned_steps(job: Job) -> int:
    """Optimiser steps of the whole run."""
    if job.arguments.max_steps > 0:
        return job.arguments.max_steps
    batches = sum(math.ceil(len(item.train) / job.arguments.train_batch_size) for item in job.sets)
    per_epoch = max(1, math.ceil(batches / job.arguments.gradient_accumulation_steps))
    return math.ceil(per_epoch * job.arguments.num_train_epochs)


def print_plan(job: Job) -> None:
    """What would be trained on what, on stdout."""
    student = build_student(job.recipe.base, job.base)
    size = sum(parameter.numel() for parameter in student.parameters())
    kind = f"{job.recipe.base.modules}, {job.recipe.base.pooling} pooling"
    print(f"model      {job.recipe.name} v{job.recipe.version} -> {job.out}")
    print(f"student    {size:,} parameters, {student.get_embedding_dimension()} dimensions, {kind}")
    for item in job.sets:
        held_out = f"{len(item.validation):,} validation" if item.validation is not None else "no validation split"
        origin = f"{item.spec.repo_id or item.spec.path} {item.spec.revision or ''}".strip()
        print(f"dataset    {origin} {item.spec.config}: {len(item.train):,} train, {held_out}; {item.spec.loss}")
    print(f"steps      {planned_steps(job):,} of {job.arguments.train_batch_size} pairs")
    print(f"checkpoint {'by validation Spearman' if job.evaluator else 'the last one (no sts validation split)'}")
