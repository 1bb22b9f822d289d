"""Publish a run directory: sts-dino publish artifacts/datasets/sts-dino-x2 --org ORG --yes

One atomic commit on the parent it was planned on, and the tag v<version>. A dataset's loading script, for old versions
of ``datasets``, goes to the branch ``script``.
"""

import shlex
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.assets import dataset_scripts
from hub.client.connection import hub_errors
from hub.contract.measured import PROVENANCE
from hub.contract.recipe import DatasetRecipe, config_columns
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from release.options import PublishOptions, patient

if TYPE_CHECKING:
    from hub.client.plan import Plan

app = cli.new_app(__doc__)


@app.command()
@cli.option_groups
def main(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished run directories")],
    options: PublishOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Publish finished runs to the Hub that HF_ENDPOINT names. Without --yes only the plan is printed.

    New repositories are private; --public makes them public. Files that the Hub has are not sent again, a tag never
    moves, and changes made by hand stay. A run without a card for this owner gets it first.

    Examples:

      sts-dino publish artifacts/datasets/sts-dino-x2 --org my-org

      sts-dino publish artifacts/datasets/sts-dino-x2 artifacts/models/demo-sts-dino --org my-org --yes
    """
    for directory in directories:
        require_complete(directory)
    plans = []
    for directory in directories:
        write_card(directory, options)
        plans.append(publish_run(directory, options))
    org = ["--org", options.org] if options.org else []
    again = [] if options.public is None else ["--public" if options.public else "--private"]
    then = [] if options.yes else [shlex.join(["sts-dino", "publish", *map(str, directories), *org, *again, "--yes"])]
    facts, shown = [plan.facts() for plan in plans], "\n\n".join(plan.shown(options.yes) for plan in plans)
    cli.answer(shown, facts if len(facts) > 1 else facts[0], as_json, then)


def write_card(directory: Path, options: PublishOptions, anew: bool = False) -> None:
    """Write the card of a finished run for the place it goes to, unless it is there; with ``anew``, in any case.

    One that a person edited stays: the publication refuses it. Raises RunError where the Hub does not say whose the
    token is.
    """
    from huggingface_hub import HfApi

    from hub.client.connection import account
    from hub.client.plan import read_stamp
    from model_cards.render import CARD, render, write

    with hub_errors("ask who the token belongs to"):
        owner = options.org or account(HfApi()).name
    card, repo_id = directory / CARD, f"{owner}/{require_complete(directory).name}"
    stamp = read_stamp(card.read_text(encoding="utf-8")) if card.is_file() else None
    if not card.is_file() or (stamp is not None and (anew or stamp.repo_id != repo_id)):
        write(directory, render(directory, repo_id))


def publish_run(directory: Path, options: PublishOptions) -> "Plan":
    """Plan the publication of a finished run and, with ``options.yes``, carry it out."""
    from huggingface_hub import HfApi

    from hub.client.publish import Options, publish

    require_complete(directory)
    patience = patient(options.longest)
    with hub_errors(f"publish {directory}"):
        publication = Options(options.public, options.force, loading_script(directory), patience)
        return publish(HfApi(), directory, options.org, options.yes, publication)


def loading_script(directory: Path) -> dict[str, str]:
    """Name → text of the files that a finished run adds to the branch ``script``.

    None for a model, for a decontaminated dataset, and for a dataset whose name no Python module can have.
    """
    manifest = require_complete(directory)
    if manifest.kind == "model" or PROVENANCE in manifest.provenance:
        return {}
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.has_script:
        cli.say(f"warning: no loading script for datasets below 4: {recipe.name!r} has a dot, which no module can have")
        return {}
    return script_files(recipe)


def script_files(recipe: DatasetRecipe) -> dict[str, str]:
    """Name → text of the loading script of a recipe's dataset and the table of its configs beside it."""
    configs = {config: config_columns(config, recipe) for config in recipe.configs}
    table = f"CONFIGS = {pformat(configs, width=120, sort_dicts=False)}\n"
    return {
        f"{recipe.name}.py": (dataset_scripts() / "loading_script.py").read_text(encoding="utf-8"),
        "published_configs.py": f'"""Config → column → type; the first config is the default."""\n\n{table}',
    }
