"""Write a dataset from its recipe: sts-dino write recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A killed run goes on at
the first missing shard when the same command is given again, and ends in the same bytes.
"""

from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from generation.cluster.options import ClusterOptions, check
from generation.inputs.sources import require_file
from generation.pipeline.append import append as append_rows
from generation.pipeline.append import appendable, appending
from generation.pipeline.job import generate, run_key
from generation.pipeline.model_files import model_files
from generation.plan import estimate, plan
from hub import cli
from hub.contract import licences, run_dir
from hub.contract.published_paths import command_line, require_inputs
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest
from hub.errors import InputError

app = cli.new_app(__doc__)
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate", help="Predict rows/s, hours and keep rates from a pilot of 64 first texts, write nothing"
    ),
]

AppendOption = Annotated[
    bool,
    typer.Option(
        "--append", help="Add the rows of a longer source to the finished run, whose files stay, as a version"
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
    append: AppendOption = False,
    as_json: cli.JsonOption = False,
    ray: cli.RayOption = None,
    workers: cli.WorkersOption = None,
    store: cli.StoreOption = None,
    cpus: cli.CpusOption = None,
    gpus: cli.GpusOption = None,
) -> None:
    """Write the pairs of a dataset recipe into a run directory: raw, rejected and finished rows, with a manifest.

    Examples:

      sts-dino write recipes/demo/sts-dino-x2.yaml --dry-run

      sts-dino write recipes/demo/sts-dino-x2.yaml --estimate

      sts-dino write recipes/demo/sts-dino-x2.yaml --workers 2

      sts-dino write recipes/demo/sts-dino-x2.yaml --append --limit 500 --set version=0.2.0

      sts-dino write recipes/demo/sts-dino-x2.yaml --limit 20 --set decoding.decay_constant=0 --out /tmp/x2
    """
    options = ClusterOptions(ray, workers, store, cpus, gpus)
    recipe, directory = checked_recipe(recipe_path, out, limit, settings, options)
    if dry_run and pilot:
        raise InputError("--dry-run --estimate", "are two questions", hint="ask them one after the other")
    if append and pilot:
        raise InputError(
            "--append --estimate", "cannot be told apart from the whole", hint="ask with --append --dry-run"
        )
    if dry_run or pilot:
        _answer_question(recipe, directory, pilot, append, as_json)
        return
    command = command_line("write", recipe_path, limit, settings) + " --append" * append
    manifest = write(recipe, directory, command, options, append)
    facts = {"directory": str(directory), **manifest.counts}
    cli.answer(summary(directory, manifest), facts, as_json, [f"sts-dino card {quote(str(directory))}"])


def checked_recipe(
    path: Path, out: Path | None, limit: int | None, settings: list[str], options: ClusterOptions
) -> tuple[DatasetRecipe, Path]:
    """The recipe and its run directory, after all that can be refused before a model is loaded."""
    recipe = load_recipe(path, DatasetRecipe, settings + ([f"source.limit={limit}"] if limit else []))
    licences.check(recipe)  # or all that is written here could not be published
    require_inputs(path, recipe)
    check(options, recipe)
    require_file(recipe.source)
    model_files(recipe.model)
    return recipe, out or run_dir.ARTIFACTS / "datasets" / recipe.name


def write(
    recipe: DatasetRecipe, directory: Path, command: str, options: ClusterOptions, append: bool = False
) -> Manifest:
    """Write the dataset, or what is missing of it; ``command``: the line that the manifest keeps.

    ``append``: add the rows of further first texts to the finished run that is there.
    """
    with run_dir.locked(directory):
        if options.spread:
            return _spread(recipe, directory, command, options, append)
        return (append_rows if append else generate)(recipe, directory, command)


def _answer_question(recipe: DatasetRecipe, directory: Path, pilot: bool, append: bool, as_json: bool) -> None:
    """The plan of a run, or what a pilot predicts of it."""
    if pilot:
        predicted = estimate(recipe)
        cli.answer(str(predicted), asdict(predicted), as_json)
    else:
        text = plan(recipe, directory, appendable(recipe, directory) if append else None)
        cli.answer(text, {"directory": str(directory), "plan": text.splitlines()}, as_json)


def summary(directory: Path, manifest: Manifest) -> str:
    """The finished run as a small table: of each label the texts kept and asked for, and why most were dropped."""
    rows = [("label", "kept", "asked for", "", "dropped most often")]
    for label, of in manifest.counts["by_label"].items():
        often = sorted(of["reasons"].items(), key=lambda item: -item[1])[:3]
        share = f"{of['kept'] / of['requested']:.0%}" if of["requested"] else ""
        shown = ", ".join(f"{reason} {count:,}" for reason, count in often)
        rows.append((label, f"{of['kept']:,}", f"{of['requested']:,}", share, shown))
    head = f"{directory}: {manifest.name} v{manifest.version}, {manifest.counts['sources']:,} first texts"
    return f"{head}\n\n{cli.aligned(rows, right=(1, 2, 3))}"


def _spread(recipe: DatasetRecipe, directory: Path, command: str, options: ClusterOptions, append: bool) -> Manifest:
    """Write the dataset with the workers that ``options`` ask for; what they left in a store is cleared."""
    from generation.cluster.executor import ray_executor  # with torch and ray
    from generation.cluster.result_store import ResultStore, store_folder

    found = run_dir.read_manifest(directory)
    manifest = (append_rows if append else generate)(recipe, directory, command, ray_executor(options))
    if options.store is not None:
        used = found is None or not found.complete or append  # else nobody knows yet whether its address is right
        place = appending(directory) if append else directory
        ResultStore(options.store, store_folder(run_key(manifest), place), proven=used).clear()
    return manifest
