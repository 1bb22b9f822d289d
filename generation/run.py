"""Write a dataset from its recipe: python -m generation.run recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A killed run goes on at
the first missing shard when the same command is given again, and ends in the same bytes.
"""

import json
from typing import Annotated

import typer
from transformers.utils import logging as transformers_logging

from generation.cluster import hire
from generation.cluster_options import Options, check
from generation.crew import one_process
from generation.estimate import estimate
from generation.job import generate, run_key
from generation.plan import plan
from generation.store import Store, store_folder
from hub import cli, licences, run_dir
from hub.errors import InputError
from hub.places import require_inputs
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe

app = cli.new_app(__doc__)
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate", help="Predict rows/s, hours and keep rates from a pilot of 64 first texts, write nothing"
    ),
]


@app.command(cls=cli.RayCommand)
def main(
    recipe_path: cli.RecipeArgument,
    out: cli.OutOption = None,
    limit: cli.LimitOption = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    dry_run: cli.DryRunOption = False,
    pilot: EstimateOption = False,
    ray: cli.RayOption = None,
    workers: cli.WorkersOption = None,
    store: cli.StoreOption = None,
    cpus: cli.CpusOption = None,
    gpus: cli.GpusOption = None,
) -> None:
    """Write the pairs of a dataset recipe into a run directory: raw, rejected and finished rows, with a manifest.

    Examples:

      python -m generation.run recipes/demo/sts-dino-x2.yaml --dry-run

      python -m generation.run recipes/demo/sts-dino-x2.yaml --estimate

      python -m generation.run recipes/demo/sts-dino-x2.yaml --workers 2

      python -m generation.run recipes/demo/sts-dino-x2.yaml --limit 20 --set decoding.decay_constant=0 --out /tmp/x2
    """
    overrides = settings + ([f"source.limit={limit}"] if limit else [])
    recipe = load_recipe(recipe_path, DatasetRecipe, overrides)
    licences.check(recipe)  # or all that is written here could not be published
    require_inputs(recipe_path, recipe)
    directory = out or run_dir.ARTIFACTS / "datasets" / recipe.name
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    options = Options(ray, workers, store, cpus, gpus)
    check(options, recipe)
    if dry_run and pilot:
        raise InputError("--dry-run --estimate", "are two questions", hint="ask them one after the other")
    if dry_run or pilot:
        print(estimate(recipe) if pilot else plan(recipe, directory))
        return
    with run_dir.locked(directory):
        command = cli.command_line("generation.run", recipe_path, limit, settings)
        found = run_dir.read_manifest(directory)
        manifest = generate(recipe, directory, command, hire(options) if options.spread else one_process)
        if store is not None:
            used = found is None or not found.complete  # else nobody knows yet whether its address is right
            Store(store, store_folder(run_key(manifest), directory), proven=used).clear()
    print(json.dumps({"directory": str(directory), **manifest.counts}, ensure_ascii=False))


if __name__ == "__main__":
    cli.run(app, ends_on_sigterm=True)
