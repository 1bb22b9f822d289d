"""Write a dataset from its recipe: python -m generation.run recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A killed run goes on at
the first missing shard when the same command is given again, and ends in the same bytes.
"""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from generation.attempts import write_first_texts, write_pairs
from generation.dataset_run import DatasetRun
from generation.engine import Engine
from generation.prompts import first_text_prefix, prompts
from generation.sources import FirstText, given_texts
from hub import cli, run_dir
from hub.errors import InputError
from hub.memory import peak_rss_mb
from hub.recipe import DatasetRecipe
from hub.recipe_file import fingerprint, load_recipe, resolved
from hub.run_dir import Manifest
from hub.shards import sha256_file, write_text

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
    if recipe.model.threads:
        torch.set_num_threads(recipe.model.threads)
    if dry_run:
        print(plan(recipe, directory))
        return
    with run_dir.locked(directory):
        manifest = generate(recipe, directory, f"python -m generation.run {recipe_path}")
    print(json.dumps({"directory": str(directory), **manifest.counts}, ensure_ascii=False))


def generate(recipe: DatasetRecipe, directory: Path, command: str) -> Manifest:
    """Make or finish the run in ``directory``; a finished run is left as it is. Call it with the directory locked."""
    inputs = input_hashes(recipe)
    manifest = Manifest(
        kind="dataset",
        name=recipe.name,
        version=recipe.version,
        fingerprint=fingerprint(recipe, inputs),
        inputs=inputs,
        versions={name: importlib.metadata.version(name) for name in ("torch", "transformers", "datasets", "pyarrow")},
    )
    manifest = run_dir.begin(directory, manifest, resolved(recipe))
    if manifest.complete:
        cli.say(f"{directory}: already complete, nothing to do")
        return manifest
    engine = load_engine(recipe)
    run = DatasetRun(directory, recipe, manifest)
    run.record([], provenance=provenance(recipe, engine, inputs, command))
    firsts = first_texts(run, engine)
    shards = run.shards(firsts)
    wanted = len(recipe.labels) * recipe.decoding.samples
    timing = Timing(directory)
    with tqdm(total=len(firsts) * wanted, unit="text", desc=recipe.name, file=sys.stderr) as bar:
        for index, shard in enumerate(shards):
            if not run.has_shard(index, len(shards)):
                started = time.monotonic()
                raw, rejected = write_pairs(engine, recipe, shard, bar.update)
                run.write_shard(index, len(shards), raw, rejected)
                timing.add(time.monotonic() - started, len(raw))
            done = sum(len(earlier) for earlier in shards[: index + 1])
            bar.update(done * wanted - bar.n)  # what was not accepted in the end counts as dealt with
    run.finish(len(shards), len(firsts))
    return run.manifest


def first_texts(run: DatasetRun, engine: Engine) -> list[FirstText]:
    """The first texts of the run: given by a source, or written by the model once and kept in the run directory."""
    recipe = run.recipe
    if recipe.source.kind != "model":
        firsts, skipped = given_texts(recipe, engine.count_tokens)
        run.record([], counts={**run.manifest.counts, "sources": len(firsts), "sources_skipped": skipped})
        return firsts
    kept = run.first_texts()
    if kept is None:
        with tqdm(total=recipe.source.limit, unit="text", desc=f"{recipe.name} x1", file=sys.stderr) as bar:
            rows, rejected = write_first_texts(engine, recipe, lambda count: bar.update(count - bar.n))
        if not rows:
            raise InputError("source", f"the model wrote no usable first text (rejected: {rejected})")
        run.write_first_texts(rows, rejected)
        kept = run.first_texts() or []
    run.record([], counts={**run.manifest.counts, "sources": len(kept)})
    return kept


def load_engine(recipe: DatasetRecipe) -> Engine:
    """The recipe's generator."""
    model = recipe.model
    return Engine.load(model.path or model.repo_id or "", model.revision, model.dtype, model.device)


def input_hashes(recipe: DatasetRecipe) -> dict[str, str]:
    """SHA-256 of every local file the run depends on (Hub inputs are pinned by revision). Raises InputError."""
    paths = []
    if recipe.source.path:
        paths.append(Path(recipe.source.path))
    if recipe.model.path:
        folder = Path(recipe.model.path)
        if not folder.is_dir():
            raise InputError(f"model.path {folder}", "no such folder", hint="give the folder of a transformers model")
        paths += sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".txt", ".model"))
    return {str(path): sha256_file(path) for path in paths if path.is_file()}


def provenance(recipe: DatasetRecipe, engine: Engine, inputs: dict[str, str], command: str) -> dict[str, Any]:
    """What the card says about where the data came from."""
    model = recipe.model
    weights = [digest for path, digest in inputs.items() if path.endswith(".safetensors")]
    return {
        "command": command,
        "model": {
            "id": model.repo_id or model.path,
            "revision": model.revision,
            "sha256": weights[0] if weights else None,
            "parameters": engine.model.num_parameters(),
            "license": model.license,
        },
        "source": {
            "description": recipe.source.description,
            "license": recipe.source.license,
            "sha256": inputs.get(str(recipe.source.path)),
        },
    }


def plan(recipe: DatasetRecipe, directory: Path) -> str:
    """What a run would do, with one rendered prompt per label. Checks the source and loads the model."""
    engine = load_engine(recipe)
    lines = [f"{recipe.name} v{recipe.version} -> {directory}"]
    if recipe.source.kind == "model":
        example, count = "<a first text written by the model>", recipe.source.limit or 0
        lines += [f"first texts: {count}, written by the model from:"]
        lines += [f"  {first_text_prefix(label)!r}" for label in recipe.labels]
    else:
        firsts, skipped = given_texts(recipe, engine.count_tokens)
        example, count = firsts[0].text, len(firsts)
        lines += [f"first texts: {count} (passed over: {skipped})"]
    wanted = count * recipe.decoding.samples
    lines += [f"shards: {-(-count // recipe.shard_size)}; texts to write: {wanted * len(recipe.labels)}"]
    for label in recipe.labels:
        prompt, counters = prompts(label, recipe.labels, example)
        lines += [f"--- label {label.name}: {wanted} texts, {engine.count_tokens(prompt)} prompt tokens", prompt]
        lines += [f"    not also: {counter!r}" for counter in counters]
    return "\n".join(lines)


class Timing:
    """Seconds and rows of generation, kept beside the run directory: two equal runs differ in nothing published."""

    def __init__(self, directory: Path):
        self.path = directory.parent / f"{directory.name}.timing.json"
        self.seconds, self.rows = 0.0, 0
        if self.path.is_file():
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self.seconds, self.rows = found["seconds"], found["rows"]

    def add(self, seconds: float, rows: int) -> None:
        """Count one shard's work and save the sums."""
        self.seconds += seconds
        self.rows += rows
        record = {"seconds": round(self.seconds, 3), "rows": self.rows, "peak_rss_mb": peak_rss_mb()}
        write_text(self.path, json.dumps(record) + "\n")


if __name__ == "__main__":
    cli.run(app)
