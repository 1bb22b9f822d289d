"""Recipes to published artefacts: sts-dino release recipes/datasets/sts-dino-x2.yaml --org ORG --yes

A dataset is generated and published while it grows; a model is trained and scored; each gets its card, one atomic
commit and its version's tag. A folder stands for its recipes, datasets before models; baselines in a folder are scored
and not published, because others own their weights. The same command resumes after any interruption, on an empty disk
too.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from eval.runs.job import EvaluationOptions
from hub import cli
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe, read_yaml
from hub.errors import InputError
from release.options import ClusterWorkers, RecipeOverrides, ReleaseOptions

app = cli.new_app(__doc__)


@app.command()
@cli.option_groups
def main(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")],
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
    paths = expanded(recipes)
    refuse_baselines(path for path in paths if path in recipes)
    if len(paths) > 1 and overrides != RecipeOverrides():
        raise InputError("--limit and --set", f"are of one recipe, but {len(paths)} are given", hint="give one recipe")
    if options.again and evaluation != EvaluationOptions():
        raise InputError("--again", "scores nothing", hint="leave out either it, or --tasks and the evaluation data")
    if options.min_value is not None and any(map(is_model, paths)):
        raise InputError("--min-value", "is of datasets, but a model's recipe is given", hint="give it alone")
    if options.append and (len(paths) > 1 or is_model(paths[0])):
        raise InputError("--append", "is of one dataset", hint="give its recipe alone")
    if options.append and (options.again or options.fresh):
        other = "--again" if options.again else "--fresh"
        raise InputError(f"--append {other}", "contradict each other", hint=f"leave out {other}")
    workers.require_datasets(sum(not is_model(path) for path in paths))
    from release.artefact import DatasetArtefact, ModelArtefact, Request  # here, for it takes long

    request = Request(options, overrides, evaluation, workers)
    plans = []
    for path in paths:
        artefact = ModelArtefact(path, request) if is_model(path) else DatasetArtefact(path, request)
        plan = artefact.release()
        if plan is not None:
            plans.append(plan)
            if not as_json:
                print(plan.shown(options.yes))
    if as_json:
        cli.answer("", [plan.facts() for plan in plans], as_json)


def expanded(given: list[Path]) -> list[Path]:
    """The recipe files that ``given`` files and folders stand for, datasets first, each part in the order of names."""
    paths = [path for item in given for path in (sorted(item.rglob("*.yaml")) if item.is_dir() else [item])]
    if not paths:
        raise InputError(", ".join(map(str, given)), "no recipe (*.yaml) is there")
    return sorted(paths, key=is_model)


def is_model(path: Path) -> bool:
    """Whether a recipe is a model's, else a dataset's. Raises InputError when it is neither."""
    kind = read_yaml(path).get("kind")
    if kind not in ("dataset", "model"):
        raise InputError(f"{path}:kind", f"unknown kind of recipe {kind!r}", allowed="dataset, model")
    return bool(kind == "model")


def refuse_baselines(paths: Iterable[Path]) -> None:
    """Raise InputError for a recipe that stands for nothing to publish; one that a folder has is made all the same."""
    for path in paths:
        if is_model(path) and load_recipe(path, ModelRecipe).is_baseline:
            from hub.client.publish import BASELINE

            hint = f"sts-dino train {path} and sts-dino score {path} make and score it"
            raise InputError(path, BASELINE, hint=hint)
