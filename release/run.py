"""Recipes to published artefacts: sts-dino release RECIPE --org ORG --yes

A dataset is generated and published while it grows; a model is trained and scored; each gets its
card, one atomic commit and its version's tag. A folder stands for its recipes, datasets before
models; baselines in a folder are scored and not published, because others own their weights. The
same command resumes after any interruption, on an empty disk too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.hub import cli
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml
from sts_dino.hub.errors import InputError
from sts_dino.release.options import ClusterWorkers, RecipeOverrides, ReleaseOptions

app = cli.make_app(__doc__)


@app.command()
@cli.unpack_option_groups
def main(
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")
    ],
    options: ReleaseOptions,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
    workers: ClusterWorkers,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate or train what recipes describe, and publish it to the Hub that HF_ENDPOINT names.

    Without --yes the plan of the publication is printed.

    Examples:

      sts-dino release recipes/demo --org my-org

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --again --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --append --yes

      sts-dino release recipes/datasets/sts-dino-x2.yaml --org my-org --yes --workers 8

      sts-dino release recipes/models --org my-org --tasks papers --senteval-data DIR --yes
    """
    # Refuse bad input; a baseline is refused only by its own name, not in a folder
    paths = list_recipes(recipes)
    refuse_baselines(path for path in paths if path in recipes)
    check_options(paths, options, overrides, evaluation)
    workers.require_datasets(sum(not is_model(path) for path in paths))

    # Make and publish the artefacts one after the other; these imports take seconds
    from sts_dino.release.artefact import DatasetArtefact, ModelArtefact, Request

    request = Request(options, overrides, evaluation, workers)
    plans = []
    for path in paths:
        kind = ModelArtefact if is_model(path) else DatasetArtefact
        plan = kind(path, request).release()
        if plan is None:  # a baseline, or no Hub was reached
            continue
        plans.append(plan)
        if not as_json:
            print(plan.format_text(options.yes))
    if as_json:
        cli.print_answer("", [plan.describe() for plan in plans], as_json)


def check_options(
    paths: list[Path],
    options: ReleaseOptions,
    overrides: RecipeOverrides,
    evaluation: EvaluationOptions,
) -> None:
    """Raise InputError for options that contradict one another or the recipes."""
    # Options that fit only some recipes or stages
    if len(paths) > 1 and overrides != RecipeOverrides():
        problem = f"apply to one recipe, but {len(paths)} are given"
        raise InputError("--limit and --set", problem, hint="give one recipe")
    if options.again and evaluation != EvaluationOptions():
        hint = "leave out --again, or leave out --tasks and the evaluation data"
        raise InputError("--again", "scores nothing", hint=hint)
    if options.min_value is not None and any(is_model(path) for path in paths):
        problem = "applies to datasets, but a model's recipe is given"
        raise InputError("--min-value", problem, hint="give recipes of datasets only")

    # --append needs one dataset, and excludes other ways to publish
    if not options.append:
        return
    if len(paths) > 1 or is_model(paths[0]):
        raise InputError("--append", "applies to one dataset", hint="give its recipe alone")
    for option in ("again", "fresh"):
        if getattr(options, option):
            problem = "contradict each other"
            raise InputError(f"--append --{option}", problem, hint=f"leave out --{option}")


def list_recipes(files_and_folders: list[Path]) -> list[Path]:
    """List the recipe files of files and folders: datasets before models, both in the given order.

    A folder stands for all *.yaml files below it, sorted by path.

    Raises InputError when there is no recipe.
    """
    paths: list[Path] = []
    for path in files_and_folders:
        if path.is_dir():
            paths += sorted(path.rglob("*.yaml"))
        else:
            paths.append(path)
    if not paths:
        places = ", ".join(str(path) for path in files_and_folders)
        raise InputError(places, "no recipe (*.yaml) is there")
    return sorted(paths, key=is_model)


def is_model(path: Path) -> bool:
    """Return whether a recipe file has the kind model; False for the kind dataset.

    Raises InputError for another kind.
    """
    kind = read_yaml(path).get("kind")
    if kind not in ("dataset", "model"):
        problem = f"unknown kind of recipe {kind!r}"
        raise InputError(f"{path}:kind", problem, allowed="dataset, model")
    return bool(kind == "model")


def refuse_baselines(paths: Iterable[Path]) -> None:
    """Raise InputError for the first recipe of a baseline: others own its weights."""
    for path in paths:
        if is_model(path) and load_recipe(path, ModelRecipe).is_baseline:
            from sts_dino.hub.client.publish import BASELINE_PROBLEM

            hint = f"sts-dino train {path} and sts-dino score {path} make and score it"
            raise InputError(path, BASELINE_PROBLEM, hint=hint)
