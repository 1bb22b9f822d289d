"""The unsupervised SimCSE baseline of an encoder: the same base and steps, without labels.

Each source sentence is its own positive, the others of its batch are negatives (Gao et al. 2021).
The gain over this baseline comes from the generated texts and their labels. The baseline's run
directory, ``NAME.copies``, lies beside the model, is scored with it, and is not published.
"""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from sts_dino.hub import cli
from sts_dino.hub.client.fetch import is_run_of
from sts_dino.hub.contract.licences import choose_untaught_licence
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import Manifest, require_complete
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError
from sts_dino.release.stages import run_stage

SIMCSE_LOSS = "MultipleNegativesRankingLoss"  # InfoNCE
# Arguments that decide how long a training takes and when it saves and evaluates; the last three
# choose a checkpoint by labels
LEFT_OUT_ARGUMENTS = (
    "num_train_epochs",
    "eval_strategy",
    "eval_steps",
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
)
# Keys of training data that decide which rows are read
SOURCE_KEYS = (
    "repo_id",
    "revision",
    "path",
    "config",
    "split",
    "license",
    "example_set",
    "columns",
)

app = cli.make_app(__doc__)


@app.command()
def main(
    recipe_path: cli.RecipeArgument,
    directory: Annotated[
        Path,
        typer.Option(
            "--model",
            metavar="MODEL_DIR",
            help="Run directory of the encoder trained from the recipe",
        ),
    ],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Train the SimCSE baseline of a trained encoder beside it, or resume its training.

    Example:

      sts-dino simcse-baseline recipes/my-encoder.yaml --model artifacts/models/my-encoder
    """
    recipe = load_recipe(recipe_path, ModelRecipe, settings)
    if recipe.control is None:
        raise InputError(f"{recipe_path}:control", "is missing", allowed="simcse")
    train_baseline(directory, recipe)


def train_baseline(directory: Path, recipe: ModelRecipe) -> None:
    """Train the SimCSE baseline of a trained model, if its recipe asks for one.

    The baseline's recipe is written beside its run directory. An unfinished training resumes.

    Args:
        directory: the model's finished run directory; the baseline's lies beside it.
        recipe: the model's recipe.

    Raises InputError for a model that is unfinished, that another recipe trained, or that has no
    record of its steps, typer.Exit with the training's exit code when it fails, RunError when it is
    killed.
    """
    if recipe.control is None:
        return
    manifest = require_complete(directory)
    if not is_run_of(manifest, recipe):
        problem = "holds a run of another recipe or of other settings"
        hint = "give the recipe and the --set of its training"
        raise InputError(directory, problem, hint=hint)
    baseline = locate_baseline(directory)
    steps = read_steps(manifest, directory)
    tree = make_baseline_recipe(recipe, steps).model_dump(mode="json")
    path = baseline.with_name(f"{baseline.name}.yaml")
    write_text(path, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    run_stage("train", str(path), "--out", str(baseline))


def locate_baseline(directory: Path) -> Path:
    """Return the run directory of the baseline beside the model in ``directory``."""
    return directory.with_name(f"{directory.name}.copies")


def read_steps(manifest: Manifest, directory: Path) -> int:
    """Read the optimiser steps of a finished training from its manifest.

    Raises InputError, which names ``directory``, when the manifest has none.
    """
    steps = (manifest.provenance.get("training") or {}).get("steps")
    if not isinstance(steps, int):
        problem = "its manifest does not say how many steps it was trained"
        raise InputError(directory, problem, hint="train it again")
    return steps


def make_baseline_recipe(recipe: ModelRecipe, steps: int) -> ModelRecipe:
    """Make the baseline's recipe: SimCSE on the same source sentences.

    Args:
        recipe: the model's recipe.
        steps: optimiser steps of the model's training, which the baseline repeats.

    The last checkpoint is kept, because choosing one needs labels.
    """
    # Read each dataset once, even if the model trains on it under two losses. A teacher's pairs
    # repeat the texts of the dataset beside them, so they are left out.
    untaught = [item for item in recipe.datasets if item.teacher is None]
    datasets: list[TrainingData] = []
    for item in untaught or recipe.datasets:
        keys = {name: getattr(item, name) for name in SOURCE_KEYS}
        data = TrainingData(**keys, example_type="self-pair", loss=SIMCSE_LOSS)
        if data not in datasets:
            datasets.append(data)

    # "auto" chooses the merge by validation, which needs labelled pairs. A factor above 1 goes
    # beyond the trained weights; it was chosen for the model's data, and published SimCSE has none.
    merge = recipe.merge
    if merge == "auto" or (merge is not None and merge > 1):
        merge = None

    # Train as many steps as the model, without validation
    kept_arguments = {
        key: value for key, value in recipe.arguments.items() if key not in LEFT_OUT_ARGUMENTS
    }
    changes = {
        "name": f"{recipe.name}-copies",
        "pretty_name": f"{recipe.pretty_name}: SimCSE baseline",
        "license": choose_untaught_licence(recipe),
        "datasets": tuple(datasets),
        "validation": (),
        "arguments": {**kept_arguments, "max_steps": str(steps)},
        "control": None,
        "merge": merge,
    }
    return recipe.model_copy(update=changes)
