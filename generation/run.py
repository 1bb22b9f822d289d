"""Generate a dataset from its recipe: sts-dino write recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A killed run resumes at
the first missing shard when the same command is given again, and ends in the same bytes.
"""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from shlex import quote
from typing import Annotated

import typer

from generation.executors.options import ClusterOptions, check
from generation.inputs.sources import passed_over, require_file
from generation.pipeline.append import append as append_rows
from generation.pipeline.append import appendable, appending
from generation.pipeline.job import generate, model_files, run_key
from generation.pipeline.worker import local_executor
from generation.plan import estimate, plan
from hub import cli
from hub.assets import BRING, asset
from hub.contract import licences, run_dir
from hub.contract.published_paths import command_line, require_inputs
from hub.contract.recipe import DatasetRecipe, config_columns
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import Manifest
from hub.contract.schema import PROVENANCE, base_config
from hub.contract.shards import read_shard
from hub.errors import InputError
from hub.untrusted import one_line

PAIRS, SHARDS, SHOWN = 10, 8, 70  # shown rows of a label; shards that they are drawn from; characters of a text
ASKED = 0.75  # least share of questions among the texts for questions, under the label of the highest score
app = cli.new_app(__doc__)
EstimateOption = Annotated[
    bool,
    typer.Option("--estimate", help="Predict rows/s, hours and keep rates from a pilot of at most 64 source sentences"),
]
AppendOption = Annotated[
    bool, typer.Option("--append", help="Append the rows of a longer source to the finished run, as a new version")
]


@app.command()
@cli.option_groups
def main(
    recipe_path: cli.RecipeArgument,
    options: ClusterOptions,
    out: cli.OutOption = None,
    limit: cli.LimitOption = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it
    dry_run: cli.DryRunOption = False,
    pilot: EstimateOption = False,
    append: AppendOption = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate the pairs of a dataset recipe into a run directory: raw, rejected and finished rows, with a manifest.

    Examples:

      sts-dino write recipes/demo/sts-dino-x2.yaml --dry-run

      sts-dino write recipes/demo/sts-dino-x2.yaml --estimate

      sts-dino write recipes/demo/sts-dino-x2.yaml --workers 2

      sts-dino write recipes/demo/sts-dino-x2.yaml --append --limit 500 --set version=0.2.0

      sts-dino write recipes/demo/sts-dino-x2.yaml --limit 20 --set decoding.decay_constant=0 --out /tmp/x2
    """
    recipe, directory = checked_recipe(recipe_path, out, limit, settings, options)
    if pilot and (dry_run or append):
        other = "--dry-run" if dry_run else "--append"
        raise InputError(f"{other} --estimate", "do not go together", hint="give one; --append goes with --dry-run")
    if pilot:
        predicted = estimate(recipe)
        for line in predicted.read:
            cli.say(line)
        cli.answer(str(predicted), asdict(predicted), as_json)
    elif dry_run:
        text = plan(recipe, directory, appendable(recipe, directory) if append else None)
        cli.answer(text, {"directory": str(directory), "plan": text.splitlines()}, as_json)
    else:
        command = command_line("write", recipe_path, limit, settings) + " --append" * append
        manifest = write(recipe, directory, command, options, append)
        facts = {"directory": str(directory), **manifest.counts}
        then, own = [f"sts-dino card {quote(str(directory))}"], recipe_path.with_suffix(".encoder.yaml")
        if out is None and own.is_file():
            then.append(f"sts-dino train {quote(str(own))}")
        text = f"{summary(directory, manifest)}\n\n{random_pairs(directory, manifest, recipe)}"
        if recipe.dataset_schema.pairs:
            judge = "all-MiniLM-L6-v2 for English, another by --encoder"
            text += f"\nlabel agreement: sts-dino fidelity {quote(str(directory))} measures it (judge: {judge})"
        cli.answer(text, facts, as_json, then)


def checked_recipe(
    path: Path, out: Path | None, limit: int | None, settings: list[str], options: ClusterOptions
) -> tuple[DatasetRecipe, Path]:
    """The recipe and its run directory, after all checks that need no model."""
    recipe = load_recipe(path, DatasetRecipe, settings + ([f"source.limit={limit}"] if limit else []))
    licences.check(recipe)  # else the dataset could not be published
    require_inputs(path, recipe.local_paths())
    check(options, recipe)
    built_in = recipe.model.path and Path(recipe.model.path).resolve() == asset("demo-lm").resolve()
    if built_in and recipe.language != "en":
        problem = f"is {recipe.language!r}; the built-in model writes English sentences alone"
        raise InputError(f"{path}: language", problem, hint=BRING)
    require_file(recipe.source)
    model_files(recipe.model)
    return recipe, out or run_dir.ARTIFACTS / "datasets" / recipe.name


def write(
    recipe: DatasetRecipe, directory: Path, command: str, options: ClusterOptions, append: bool = False
) -> Manifest:
    """Generate the dataset, or finish it; ``command``: the line that the manifest keeps.

    ``append``: add the rows of further source sentences to the finished run. On several workers, the results that they
    left in a store are removed at the end.
    """
    run, start = append_rows if append else generate, partial(local_executor, workers=options.workers or 1)
    if options.on_ray(recipe):
        from generation.executors.ray_executor import ray_executor

        start = partial(ray_executor, options)
    with run_dir.locked(directory):
        found = run_dir.read_manifest(directory)
        manifest = run(recipe, directory, command, start)
        if options.store is not None:
            from generation.executors.store import ResultStore, store_folder

            used = found is None or not found.complete or append  # else its address was never tried
            folder = store_folder(run_key(manifest), appending(directory) if append else directory)
            ResultStore(options.store, folder, proven=used).clear()
    return manifest


def random_pairs(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> str:
    """Ten random rows of each label, from at most ``SHARDS`` random shards.

    A warning follows where too few texts for questions are questions (``ASKED``).
    """
    random, parts = Random(recipe.seed), list[str]()
    shards = [one for one in manifest.files if base_config(one.config or "") == recipe.dataset_schema.labelled]
    by_label: dict[str, list[list[str]]] = {label.name: [] for label in recipe.written_labels}
    for shard in random.sample(shards, min(len(shards), SHARDS)):
        columns = config_columns(shard.config or "", recipe)
        texts = [name for name in columns if columns[name] == "string" and name not in PROVENANCE][:2]
        for row in read_shard(directory / shard.path, [*texts, "target"]):
            by_label.get(row["target"], []).append([row[name] for name in texts])
    for label, rows in by_label.items():
        chosen = random.sample(rows, min(len(rows), PAIRS))
        shown = [f"  {' | '.join(one_line(text, SHOWN) for text in texts)}" for texts in chosen]
        parts.append("\n".join([f"{len(shown)} random rows of label {label}:", *shown]))
    if recipe.dataset_schema.scored:
        highest = max(recipe.written_labels, key=lambda label: label.score or 0.0).name
        asked = [second for first, second in by_label[highest] if is_question(first)]
        if len(asked) >= PAIRS and (found := sum(map(is_question, asked))) < ASKED * len(asked):
            hint = "give examples of questions (few_shot.examples)"
            said = f"{len(asked)} source sentences are questions, {found} texts of label {highest}"
            parts.append(f"warning: {said}; {hint}")
    return "\n".join(parts)


def is_question(text: str) -> bool:
    """Whether a text ends with a question mark."""
    return text.rstrip().endswith(("?", "？", "؟"))


def summary(directory: Path, manifest: Manifest) -> str:
    """The finished run as a small table: texts kept and requested of each label, and the most frequent rejections."""
    rows = [("label", "kept", "requested", "", "rejected most often")]
    for label, of in manifest.counts["by_label"].items():
        often = sorted(of["reasons"].items(), key=lambda item: -item[1])[:3]
        share = f"{of['kept'] / of['requested']:.0%}" if of["requested"] else ""
        shown = ", ".join(f"{reason} {count:,}" for reason, count in often)
        rows.append((label, f"{of['kept']:,}", f"{of['requested']:,}", share, shown))
    head = f"{directory}: {manifest.name} v{manifest.version}, {manifest.counts['sources']:,} source sentences"
    if skipped := manifest.counts.get("sources_skipped"):
        head += f"\npassed over: {passed_over(manifest.counts['sources'], skipped)}"
    return f"{head}\n\n{cli.aligned(rows, right=(1, 2, 3))}"
