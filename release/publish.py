"""Publish a run directory: python -m release.publish artifacts/datasets/sts-dino-x2 --org ORG --yes

One atomic commit on the parent it was planned on, and the tag v<version>. A dataset's loading script, for old versions
of ``datasets``, goes to the branch ``script``.
"""

from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub import HfApi

from hub import cli
from hub.dropped import PROVENANCE
from hub.patience import LONGEST_SECONDS, Patience, use_patient_client
from hub.publish import Options, publish
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.remote import hub_errors
from hub.run_dir import RECIPE, require_complete
from release.scripts import script_text

app = cli.new_app(__doc__)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run directory with its card")],
    org: Annotated[str | None, typer.Option("--org", help="User or organisation [default: the token's user]")] = None,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Act, or only print the plan")] = False,
    private: Annotated[bool, typer.Option("--private", help="Create the repository as a private one")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what was changed by hand on the Hub")] = False,
    longest: cli.PatienceOption = LONGEST_SECONDS,
) -> None:
    """Publish a finished dataset or model to the Hub that HF_ENDPOINT names. Without --yes only the plan is printed.

    What the Hub has already is not sent again, a tag is never moved, and what a person changed there is not replaced.

    Examples:

      python -m release.publish artifacts/datasets/sts-dino-x2 --org my-org

      python -m release.publish artifacts/datasets/sts-dino-x2 --org my-org --yes
    """
    patience = Patience(longest)
    use_patient_client(patience)
    with hub_errors(f"publish {directory}"):
        print(publish(HfApi(), directory, org, yes, Options(private, force, loading_script(directory), patience)))


def loading_script(directory: Path) -> str | None:
    """The loading script of a finished run's own recipe; None for a model, for a dataset without rows of another,
    and for a name no script can have.
    """
    manifest = require_complete(directory)
    if manifest.kind == "model" or PROVENANCE in manifest.provenance:  # a script makes finished rows from raw ones
        return None
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    if not recipe.has_script:
        cli.say(f"warning: no loading script for datasets below 4: {recipe.name!r} has a dot, which no module can have")
        return None
    return script_text(recipe)


if __name__ == "__main__":
    cli.run(app)
