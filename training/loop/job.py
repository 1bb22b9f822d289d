"""A training job: the recipe and all its inputs, read and checked before anything is written."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from hub.contract.licences import check_model
from hub.contract.published_paths import origin_name, published_path, require_inputs
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import begin_run, load_recipe
from hub.contract.run_dir import ARTIFACTS, Manifest
from hub.errors import InputError
from training.encoder.bases import Base, find_base
from training.loop.arguments import check_texts, check_together, trainer_arguments, typed_arguments
from training.loop.distributed import process_count
from training.losses.losses import LOSSES, check_losses

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformerTrainingArguments

    from training.data.training_sets import TrainingSet
    from training.loop.validation import ValidationEvaluator

LIBRARIES = ("torch", "transformers", "sentence-transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class TrainingJob:
    """Everything a training run needs, checked: recipe, inputs on this disk, and trainer arguments.

    ``guides``: the named encoders of guided losses, by the dataset's place in the recipe. ``reporters``: by name.
    """

    recipe: ModelRecipe
    out: Path
    sets: list[TrainingSet]
    base: Base
    evaluator: ValidationEvaluator | None
    arguments: SentenceTransformerTrainingArguments
    reporters: list[str]
    guides: dict[int, Base] = field(default_factory=dict)

    def beside(self, ending: str) -> Path:
        """A path beside the run directory, which is never published: checkpoints, logs, the untrained encoder."""
        return self.out.with_name(f"{self.out.name}.{ending}")

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.beside("checkpoints")

    def begin(self) -> Manifest:
        """Start or resume the run; its lock is held."""
        base = self.recipe.base
        named = [(f"base:{base.repo_id or published_path(base.path or '')}", self.base.sha256)]
        if base.vocabulary is not None and self.base.corpus is not None:
            name = origin_name(base.vocabulary.repo_id, base.vocabulary.path)
            named += [(f"vocabulary:{name}:{base.vocabulary.config}", self.base.corpus.sha256)]
        for item in self.sets:
            name = item.spec.repo_id or published_path(item.spec.path or "")
            named += [(f"dataset:{name}:{item.spec.config}", item.sha256)]
        for index, guide in self.guides.items():
            spec = self.recipe.datasets[index].guide
            assert spec is not None
            named += [(f"guide:{origin_name(spec.repo_id, spec.path)}", guide.sha256)]
        inputs, seen = dict[str, str](), Counter[str]()
        for name, sha256 in named:  # folders of one name may lie in different places: they are numbered
            seen[name] += 1
            inputs[name if seen[name] == 1 else f"{name}#{seen[name]}"] = sha256
        inputs |= {} if self.evaluator is None else self.evaluator.inputs
        libraries = (*LIBRARIES, *(("peft",) if self.recipe.lora else ()))
        versions = {"python": sys.version.split()[0], **{library: version(library) for library in libraries}}
        return begin_run(self.out, self.recipe, inputs, versions)


def prepare(path: Path, out: Path | None, limit: int | None, settings: list[str]) -> TrainingJob:
    """Read and check everything a run needs, the cheap things first; nothing is written.

    Joins the group of processes, when there are several. Raises InputError or RunError.
    """
    recipe = load_recipe(path, ModelRecipe, settings)
    recipe = recipe if limit is None else recipe.model_copy(update={"limit": limit})
    place = f"{path}:arguments"
    check_model(recipe, ())
    check_texts(recipe.arguments, place)
    check_losses(recipe, str(path))
    require_inputs(path, {key: one for key, one in recipe.local_paths().items() if not key.startswith("evaluation.")})

    from training.data.training_sets import load_all  # libraries that take seconds: all above needs none
    from training.encoder.encoder import check_base_branch
    from training.loop.validation import validation_evaluator

    quiet_libraries()
    given = typed_arguments(recipe.arguments, place)
    given |= {"seed": recipe.seed, "per_device_train_batch_size": check_together(recipe, given, str(path))}
    out = (out or ARTIFACTS / "models" / recipe.name).resolve()
    base = find_base(recipe.base)
    named = [(index, item.guide) for index, item in enumerate(recipe.datasets) if item.guide is not None]
    guides = {index: find_base(guide, f"datasets.{index}.guide") for index, guide in named}
    if recipe.lora is not None and recipe.lora.release == "adapter":
        check_base_branch(recipe.base, "base")
    sets = load_all(recipe.datasets, recipe.limit, recipe.seed, own_validation=not recipe.validation)
    for index, item in enumerate(sets):
        if item.license is None:
            where = f"datasets.{index}: {item.spec.repo_id or item.spec.path}"
            raise InputError(where, "does not say its licence", hint=f"write it to datasets.{index}.license")
    check_rows(sets, recipe.batch_size, bool(given.get("dataloader_drop_last")))
    check_model(recipe, [(origin_name(item.spec.repo_id, item.spec.path), item.license or "") for item in sets])
    evaluator = validation_evaluator(recipe.validation, sets, given.get("per_device_eval_batch_size", 64))
    if recipe.merge == "auto" and evaluator is None:
        problem = "auto is chosen on validation pairs, and the data have none"
        hint = "or give validation, or a dataset that keeps some (postprocess.validation_fraction)"
        raise InputError(f"{path}:merge", problem, allowed="a number above 0, up to 1", hint=hint)
    checkpoints = out.with_name(f"{out.name}.checkpoints")
    arguments, reporters = trainer_arguments(given, checkpoints, process_count(), evaluator is not None, place)
    return TrainingJob(recipe, out, sets, base, evaluator, arguments, reporters, guides)


def check_rows(sets: list[TrainingSet], batch_size: int, drop_last: bool) -> None:
    """Raise InputError for one distinct row under an in-batch loss, or for a dataset that ``drop_last`` drops whole."""
    for index, item in enumerate(sets):
        place = f"datasets.{index}: {item.spec.repo_id or item.spec.path}"
        if item.all_equal and LOSSES[item.spec.loss].in_batch:
            problem = f"has 1 distinct row, and {item.spec.loss} compares the rows of a batch with one another"
            raise InputError(place, problem, allowed="at least 2 distinct rows", hint="give more, or take another loss")
        if drop_last and item.rows is not None and item.rows < batch_size:
            found = f"drops all {item.rows:,} rows of {place}: they are fewer than a batch of {batch_size}"
            raise InputError("arguments.dataloader_drop_last", found, hint="lower batch_size, or leave it out")


def quiet_libraries() -> None:
    """Silence progress bars and warnings that libraries address to each other."""
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()  # it reports the language-model head, which an encoder leaves out
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for message in (
        "`broadcast_buffers` is deprecated",  # accelerate to torch
        "torch.distributed.nn.functional.all_gather is deprecated",  # sentence-transformers to torch, at every step
        ".*only defines `gradient_checkpointing_enable`",  # transformers to sentence-transformers
        "`(is_gradient_checkpointing|gradient_checkpointing_enable)` is deprecated",  # to peft, sentence-transformers
    ):
        warnings.filterwarnings("ignore", message, FutureWarning)
