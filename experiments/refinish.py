"""Filter and score the texts of a finished run again, without a language model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.generation.pipeline import tasks as layout
from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import finish
from sts_dino.generation.pipeline.tasks import WriteShard, make_shard_result
from sts_dino.hub import cli
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import (
    apply_overrides,
    begin_run,
    load_recipe,
    read_yaml,
    validate_recipe,
)
from sts_dino.hub.contract.run_dir import RECIPE, Manifest
from sts_dino.hub.contract.schema import ROW_FILTERS
from sts_dino.hub.contract.shards import read_shard


def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run directory to write")],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
) -> None:
    """Write a run directory of the same texts under other settings of verification and postprocess.

    Examples:

      sts-dino experiment refinish RUN --set "verification={drop: true}" --out DIR
    """
    manifest = run_dir.require_complete(directory)
    tree = apply_overrides(read_yaml(directory / RECIPE), settings)
    recipe = validate_recipe(directory / RECIPE, DatasetRecipe, tree)
    with run_dir.lock_run(out):
        first_manifest = begin_run(out, recipe, manifest.inputs, manifest.versions)
        run = DatasetRun(out, recipe, first_manifest)
        if not run.manifest.complete:
            write_again(run, directory, manifest)
    print(json.dumps({"directory": str(out), **run.manifest.counts}, ensure_ascii=False))


def write_again(run: DatasetRun, directory: Path, manifest: Manifest) -> None:
    """Filter and finish the texts of a finished run under the recipe of ``run``.

    Args:
        run: the run to write.
        directory: the finished run.
        manifest: its manifest.
    """
    source_count = manifest.counts["sources"]
    paths = {file.path for file in manifest.files}
    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    shards = layout.list_shards(recipe, -(-source_count // recipe.shard_size))
    run.update_manifest(provenance=manifest.provenance, counts={"sources": source_count})
    for shard in shards:
        raw_path, rejected_path = layout.make_shard_paths(recipe, shard)
        raw = list(read_shard(directory / raw_path)) if raw_path in paths else []
        rejected = list(read_shard(directory / rejected_path)) if rejected_path in paths else []
        # whatever the settings
        unusable = [row for row in rejected if row["reason"] not in ROW_FILTERS]
        result = make_shard_result(run.recipe, WriteShard(shard, ()), raw, unusable)
        run.add_shard(result, shard.blocks)
    run.write_progress(shards[0].blocks)
    finish(run, shards[0].blocks, source_count)
