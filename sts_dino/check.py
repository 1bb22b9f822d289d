"""Check recipes without writing: the plans of ``sts-dino write --dry-run`` and ``sts-dino train --dry-run``."""

from pathlib import Path
from typing import Annotated

import typer

from generation.run import main as write
from hub import cli
from release.run import expanded, is_model
from training.run import main as train

app = cli.new_app(__doc__)


@app.command()
def main(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")],
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    as_json: cli.JsonOption = False,
) -> None:
    """Check recipes and show what each would make; nothing is written. With --json, a line for each recipe.

    Examples:

      sts-dino check recipes/demo/sts-dino-x2.yaml

      sts-dino check recipes/demo/demo-sts-dino.yaml --set batch_size=64
    """
    for recipe in expanded(recipes):
        if is_model(recipe):
            train(recipe, settings=settings, dry_run=True, as_json=as_json)
        else:
            write(recipe_path=recipe, settings=settings, dry_run=True, as_json=as_json)
