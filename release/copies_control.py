"""The copies control of a trained encoder: the same base and as many steps on the first texts alone, without labels.

Each first text is its own positive, the others of its batch are negatives (unsupervised SimCSE, Gao et al. 2021). So no
language model's work is in it: what an encoder has over its control is what the written texts and their labels taught.
It lies beside the model (``NAME.copies``), is scored with it, and is not published: python -m release.copies_control
RECIPE --model MODEL_DIR makes it for a trained model whose recipe has ``control: simcse``.
"""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from hub import cli
from hub.contract.recipe import ModelRecipe, TrainingData
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest, require_complete
from hub.contract.shards import write_text
from hub.errors import InputError
from release.child_process import run_stage

LOSS = "MultipleNegativesRankingLoss"  # InfoNCE
OF_EPOCHS = ("num_train_epochs", "eval_strategy", "eval_steps", "save_strategy", "save_steps", "save_total_limit")
OF_CHOICE = ("load_best_model_at_end", "metric_for_best_model", "greater_is_better")  # of a checkpoint, by labels


app = cli.new_app(__doc__)


@app.command()
def main(
    recipe_path: cli.RecipeArgument,
    directory: Annotated[
        Path, typer.Option("--model", metavar="MODEL_DIR", help="The run directory of the encoder trained from it")
    ],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Train the copies control of a trained encoder beside it, or what is missing of it.

    Example:

      python -m release.copies_control recipes/demo/demo-sts-dino.yaml --model artifacts/models/demo-sts-dino
    """
    recipe = load_recipe(recipe_path, ModelRecipe, settings)
    if recipe.control is None:
        raise InputError(f"{recipe_path}:control", "is not given", allowed="simcse")
    train_control(directory, recipe)


def train_control(directory: Path, recipe: ModelRecipe) -> None:
    """Train the control of the model in ``directory`` beside it, unless it is there or the recipe names none.

    Raises what ``release.child_process.run_stage`` does when that fails.
    """
    if recipe.control is not None:
        path, place = write_recipe(directory, recipe)
        run_stage("training.run", str(path), "--out", str(place))


def places(directory: Path) -> tuple[Path, Path]:
    """Where the recipe of a model's control and its run directory are."""
    place = directory.with_name(f"{directory.name}.copies")
    return place.with_name(f"{place.name}.yaml"), place


def write_recipe(directory: Path, recipe: ModelRecipe) -> tuple[Path, Path]:
    """Write the recipe of a trained model's control; ``places`` of it. Raises InputError for a model not trained."""
    path, place = places(directory)
    found = copies_recipe(recipe, steps_of(require_complete(directory), directory))
    write_text(path, yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
    return path, place


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
        one = TrainingData(
            **kept, example_set=item.example_set, columns=item.columns, example_type="self-pair", loss=LOSS
        )
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


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)
