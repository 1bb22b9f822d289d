"""The unsupervised SimCSE baseline of an encoder: the same base and steps on the source sentences, without labels.

Each source sentence is its own positive, the others of its batch are negatives (Gao et al. 2021). The gain over this
baseline comes from the generated texts and their labels. The baseline's run directory, ``NAME.copies``, lies beside the
model, is scored with it, and is not published.
"""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from hub import cli
from hub.contract.recipe import ModelRecipe, TrainingData
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest, require_complete
from hub.durable import write_text
from hub.errors import InputError
from release.stages import run_stage

LOSS = "MultipleNegativesRankingLoss"  # InfoNCE
OF_EPOCHS = ("num_train_epochs", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit")
OF_CHOICE = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")  # of a checkpoint, by labels

app = cli.new_app(__doc__)


@app.command()
def main(
    recipe_path: cli.RecipeArgument,
    directory: Annotated[
        Path, typer.Option("--model", metavar="MODEL_DIR", help="Run directory of the encoder trained from the recipe")
    ],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Train the SimCSE baseline of a trained encoder beside it, or resume its training.

    Example:

      sts-dino simcse-baseline recipes/demo/demo-sts-dino.yaml --model artifacts/models/demo-sts-dino
    """
    recipe = load_recipe(recipe_path, ModelRecipe, settings)
    if recipe.control is None:
        raise InputError(f"{recipe_path}:control", "is missing", allowed="simcse")
    train_baseline(directory, recipe)


def train_baseline(directory: Path, recipe: ModelRecipe) -> None:
    """Train the baseline of the model in ``directory`` beside it; nothing for a recipe without ``control``.

    Raises what ``release.stages.run_stage`` does when the training fails.
    """
    if recipe.control is not None:
        path, place = places(directory)
        found = baseline_recipe(recipe, steps_of(require_complete(directory), directory))
        write_text(path, yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
        run_stage("train", str(path), "--out", str(place))


def places(directory: Path) -> tuple[Path, Path]:
    """The recipe and the run directory of a model's baseline."""
    place = directory.with_name(f"{directory.name}.copies")
    return place.with_name(f"{place.name}.yaml"), place


def steps_of(manifest: Manifest, directory: Path) -> int:
    """Optimiser steps of a finished training. Raises InputError when its manifest lacks them."""
    steps = (manifest.provenance.get("training") or {}).get("steps")
    if not isinstance(steps, int):
        raise InputError(directory, "its manifest does not say how many steps it was trained", hint="train it again")
    return steps


def baseline_recipe(recipe: ModelRecipe, steps: int) -> ModelRecipe:
    """The baseline's recipe: the model's with other training data, ``steps``, and no choice of a checkpoint."""
    datasets: list[TrainingData] = []
    for item in recipe.datasets:
        kept = {name: getattr(item, name) for name in ("repo_id", "revision", "path", "config", "split", "license")}
        kept |= {"example_set": item.example_set, "columns": item.columns}
        one = TrainingData(**kept, example_type="self-pair", loss=LOSS)
        datasets += [one] if one not in datasets else []
    kept_arguments = {key: value for key, value in recipe.arguments.items() if key not in (*OF_EPOCHS, *OF_CHOICE)}
    changes = {
        "name": f"{recipe.name}-copies",
        "pretty_name": f"{recipe.pretty_name}: SimCSE baseline",
        "datasets": tuple(datasets),
        "validation": (),
        "arguments": {**kept_arguments, "max_steps": str(steps)},
        "control": None,
        "merge": None if recipe.merge == "auto" else recipe.merge,  # there are no pairs to choose it on
    }
    return recipe.model_copy(update=changes)
