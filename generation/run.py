"""Write a dataset from its recipe: python -m generation.run recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A killed run goes on at
the first missing shard when the same command is given again, and ends in the same bytes.
"""

import json
from pathlib import Path

from transformers.utils import logging as transformers_logging

from generation.job import generate
from generation.prompts import load_prompts
from generation.sources import given_texts
from generation.writer import load_writer
from hub import cli, run_dir
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe

app = cli.new_app(__doc__)


@app.command()
def main(
    recipe_path: cli.RecipeArgument,
    out: cli.OutOption = None,
    limit: cli.LimitOption = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it, nobody writes it
    dry_run: cli.DryRunOption = False,
) -> None:
    """Write the pairs of a dataset recipe into a run directory: raw, rejected and finished rows, with a manifest.

    Examples:

      python -m generation.run recipes/demo/sts-dino-x2.yaml --dry-run

      python -m generation.run recipes/demo/sts-dino-x2.yaml --limit 20 --set decoding.decay_constant=0 --out /tmp/x2
    """
    overrides = settings + ([f"source.limit={limit}"] if limit else [])
    recipe = load_recipe(recipe_path, DatasetRecipe, overrides)
    directory = out or run_dir.ARTIFACTS / "datasets" / recipe.name
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if dry_run:
        print(plan(recipe, directory))
        return
    with run_dir.locked(directory):
        manifest = generate(recipe, directory, f"python -m generation.run {recipe_path}")
    print(json.dumps({"directory": str(directory), **manifest.counts}, ensure_ascii=False))


def plan(recipe: DatasetRecipe, directory: Path) -> str:
    """What a run would do, with one rendered prompt per label. Checks the source and loads the model."""
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    lines = [f"{recipe.name} v{recipe.version} -> {directory}"]
    if recipe.source.kind == "model":
        example, count = "<a first text written by the model>", recipe.source.limit or 0
        lines += [f"first texts: {count}, written by the model from:"]
        lines += [f"  {prompts.first_text_prefix(label)!r}" for label in recipe.labels]
    else:
        firsts, skipped = given_texts(recipe, writer.count_tokens)
        example, count = firsts[0].text, len(firsts)
        lines += [f"first texts: {count} (passed over: {skipped})"]
    wanted = count * recipe.decoding.samples
    lines += [f"shards: {-(-count // recipe.shard_size)}; texts to write: {wanted * len(recipe.labels)}"]
    for label in recipe.labels:
        prompt, counters = prompts.of(label, example, recipe.variants[0])
        lines += [f"--- label {label.name}: {wanted} texts, {writer.count_tokens(prompt)} prompt tokens", prompt]
        lines += [f"    not also: {counter!r}" for counter in counters]
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(app)
