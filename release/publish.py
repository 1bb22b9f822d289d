"""Publish a run directory: python -m release.publish artifacts/datasets/sts-dino-x2 --org ORG --yes

One atomic commit on the parent it was planned on, and the tag v<version>. A dataset's loading script, for old versions
of ``datasets``, goes to the branch ``script``.
"""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from hub import cli
from hub.client.failures import hub_errors
from hub.contract.decontamination import PROVENANCE
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import RECIPE, require_complete
from release.options import PublishOptions, option_groups, patient

if TYPE_CHECKING:
    from hub.client.plan import Plan

app = cli.new_app(__doc__)


@app.command()
@option_groups
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run directory with its card")],
    options: PublishOptions,
    as_json: cli.JsonOption = False,
) -> None:
    """Publish a finished dataset or model to the Hub that HF_ENDPOINT names. Without --yes only the plan is printed.

    What the Hub has already is not sent again, a tag is never moved, and what a person changed there is not replaced.

    Examples:

      python -m release.publish artifacts/datasets/sts-dino-x2 --org my-org

      python -m release.publish artifacts/datasets/sts-dino-x2 --org my-org --yes
    """
    plan = publish_run(directory, options)
    words = f"{quote(str(directory))}{f' --org {quote(options.org)}' if options.org else ''}"
    cli.answer(str(plan), plan.facts(), as_json, [] if options.yes else [f"python -m release.publish {words} --yes"])


def publish_run(directory: Path, options: PublishOptions) -> "Plan":
    """Plan the publication of a finished run and, with ``options.yes``, carry it out."""
    from huggingface_hub import HfApi

    from hub.client.publish import Options, publish

    require_complete(directory)
    patience = patient(options.longest)
    with hub_errors(f"publish {directory}"):
        publication = Options(options.private, options.force, loading_script(directory), patience)
        return publish(HfApi(), directory, options.org, options.yes, publication)


def loading_script(directory: Path) -> dict[str, str]:
    """Name → text of the loading script and its modules, for a finished run's own recipe; none for a model, for a
    dataset without rows of another, and for a name no script can have.
    """
    manifest = require_complete(directory)
    if manifest.kind == "model" or PROVENANCE in manifest.provenance:  # a script makes finished rows from raw ones
        return {}
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.has_script:
        cli.say(f"warning: no loading script for datasets below 4: {recipe.name!r} has a dot, which no module can have")
        return {}
    from release.scripts import script_files

    return script_files(recipe)


if __name__ == "__main__":
    cli.run(app)
