"""Filter and score the texts of a finished run again under other settings, without a language model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from generation.pipeline import tasks as layout
from generation.pipeline.directory import DatasetRun
from generation.pipeline.finish import finish
from generation.pipeline.tasks import WriteShard, shard_files
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import apply_overrides, begin_run, checked, load_recipe, read_yaml
from hub.contract.run_dir import RECIPE, Manifest
from hub.contract.schema import ROW_FILTERS
from hub.contract.shards import read_shard


def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run directory to write")],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Write a run directory of the same texts under other settings of verification and postprocess.

    Examples:

      sts-dino experiment refinish RUN --set "verification={drop: true}" --out DIR
    """
    before = run_dir.require_complete(directory)
    recipe = checked(directory / RECIPE, DatasetRecipe, apply_overrides(read_yaml(directory / RECIPE), settings))
    with run_dir.locked(out):
        run = DatasetRun(out, recipe, begin_run(out, recipe, before.inputs, before.versions))
        if not run.manifest.complete:
            refinish(run, directory, before)
    print(json.dumps({"directory": str(out), **run.manifest.counts}, ensure_ascii=False))


def refinish(run: DatasetRun, directory: Path, before: Manifest) -> None:
    """Filter and finish the texts of the run in ``directory`` under the recipe of ``run``."""
    sources, there = before.counts["sources"], {file.path for file in before.files}
    old = load_recipe(directory / RECIPE, DatasetRecipe)
    shards = layout.shards(old, -(-sources // old.shard_size))
    run.record([], provenance=before.provenance, counts={"sources": sources})
    for shard in shards:
        raw, rejected = ([*read_shard(directory / path)] if path in there else [] for path in layout.paths(old, shard))
        unusable = [row for row in rejected if row["reason"] not in ROW_FILTERS]  # whatever the settings
        run.add_shard(shard_files(run.recipe, WriteShard(shard, ()), raw, unusable), shard.blocks)
    run.show_progress(shards[0].blocks)
    finish(run, shards[0].blocks, sources)
