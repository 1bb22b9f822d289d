"""Check recipes and show what each would make; nothing is written."""

from pathlib import Path
from shlex import join
from typing import Annotated

import typer

from sts_dino.generation.executors.cluster import ClusterOptions
from sts_dino.generation.plan import SHOWN_PROMPTS, describe_plan
from sts_dino.generation.run import load_checked_recipe
from sts_dino.hub import cli
from sts_dino.release.options import format_settings, is_model, list_recipes
from sts_dino.training.loop.job import prepare
from sts_dino.training.run import describe_plan as describe_training

app = cli.make_app(__doc__)


@app.command()
def main(
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files, or folders of them")
    ],
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    more_prompts: Annotated[
        bool,
        typer.Option(
            "--more-prompts",
            help=f"Show {SHOWN_PROMPTS} prompts of each label and shot count [default: one]",
        ),
    ] = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Check recipes and show what each would make; nothing is written.

    With --json, a line for each recipe. The plan of an encoder is that of train --dry-run. The plan
    of a dataset is that of write --dry-run with one prompt of each label and shot count.

    Examples:

      sts-dino check recipes/demo/sts-dino-x2.yaml

      sts-dino check recipes/demo/demo-sts-dino.yaml --set batch_size=64
    """
    for recipe_path in list_recipes(recipes):
        if is_model(recipe_path):
            command = "train"
            job = prepare(recipe_path, out=None, limit=None, settings=settings)
            directory = job.out
            lines = describe_training(job)
        else:
            command = "write"
            recipe, directory = load_checked_recipe(
                recipe_path, out=None, limit=None, settings=settings, options=ClusterOptions()
            )
            prompts_per_label = SHOWN_PROMPTS if more_prompts else 1
            plan = describe_plan(recipe, directory, prompts_per_label=prompts_per_label)
            lines = plan.splitlines()
        next_command = join(["sts-dino", command, str(recipe_path), *format_settings(settings)])
        facts = {"directory": str(directory), "plan": lines}
        cli.print_answer("\n".join(lines), facts, as_json, [next_command])
