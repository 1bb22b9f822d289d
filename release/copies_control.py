"""The copies control of a trained encoder: the same base and as many steps on the first texts alone, without labels.

Each first text is its own positive, the others of its batch are negatives (unsupervised SimCSE, Gao et al. 2021). So no
language model's work is in it: what an encoder has over its control is what the written texts and their labels taught.
It lies beside the model (``NAME.copies``), is scored with it, and is not published.
"""

from pathlib import Path

import yaml

from hub.contract.recipe import ModelRecipe, TrainingData
from hub.contract.run_dir import Manifest, require_complete
from hub.contract.shards import write_text
from hub.errors import InputError
from release.child_process import run_stage

LOSS = "MultipleNegativesRankingLoss"  # InfoNCE
OF_EPOCHS = ("num_train_epochs", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit")
OF_CHOICE = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")  # of a checkpoint, by labels


def train_control(directory: Path, recipe: ModelRecipe) -> None:
    """Train the control of the model in ``directory`` beside it, unless it is there or the recipe names none.

    Raises what ``release.child_process.run_stage`` does when that fails.
    """
    if recipe.control is None:
        return
    place = directory.with_name(f"{directory.name}.copies")
    path = place.with_name(f"{place.name}.yaml")
    found = copies_recipe(recipe, steps_of(require_complete(directory), directory))
    write_text(path, yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    run_stage("training.run", str(path), "--out", str(place))


def steps_of(manifest: Manifest, directory: Path) -> int:
    """The optimiser steps of a finished training. Raises InputError when its manifest does not say."""
    steps = (manifest.provenance.get("training") or {}).get("steps")
    if not isinstance(steps, int):
        raise InputError(directory, "its manifest does not say how many steps it was trained", hint="train it again")
    return steps


def copies_recipe(recipe: ModelRecipe, steps: int) -> ModelRecipe:
    """The control's recipe: the model's, but for what it is trained on, for how long, and what chooses a checkpoint."""
    datasets: list[TrainingData] = []
    for item in recipe.datasets:
        kept = {name: getattr(item, name) for name in ("repo_id", "revision", "path", "config", "split", "license")}
        one = TrainingData(**kept, example_set=item.example_set, columns=item.columns, form="self-pair", loss=LOSS)
        datasets += [one] if one not in datasets else []
    kept_arguments = {key: value for key, value in recipe.arguments.items() if key not in (*OF_EPOCHS, *OF_CHOICE)}
    changes = {
        "name": f"{recipe.name}-copies",
        "pretty_name": f"{recipe.pretty_name}: copies control",
        "datasets": tuple(datasets),
        "validation": (),
        "arguments": {**kept_arguments, "max_steps": str(steps)},
        "control": None,
    }
    return recipe.model_copy(update=changes)
