"""The work of a dataset run: first texts, shards of pairs, finished configs, and what the manifest says of them."""

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from generation.attempts import write_first_texts, write_pairs
from generation.dataset_run import DatasetRun
from generation.prompts import load_prompts
from generation.sources import FirstText, given_texts
from generation.writer import Writer, load_writer
from hub import cli, run_dir
from hub.errors import InputError
from hub.memory import peak_rss_mb
from hub.recipe import DatasetRecipe
from hub.recipe_file import fingerprint, resolved
from hub.run_dir import Manifest
from hub.shards import sha256_file, write_text


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
    if recipe.model.threads:
        torch.set_num_threads(recipe.model.threads)
    writer = load_writer(recipe.model)
    run = DatasetRun(directory, recipe, manifest)
    run.record([], provenance=provenance(recipe, writer, inputs, command))
    firsts = first_texts(run, writer)
    shards = run.shards(firsts)
    prompts = load_prompts(recipe)
    wanted = len(recipe.labels) * recipe.decoding.samples
    timing = Timing(directory)
    with tqdm(total=len(firsts) * wanted, unit="text", desc=recipe.name, file=sys.stderr) as bar:
        for index, shard in enumerate(shards):
            if not run.has_shard(index, len(shards)):
                started = time.monotonic()
                raw, rejected = write_pairs(writer, prompts, recipe, shard, bar.update)
                run.write_shard(index, len(shards), raw, rejected)
                timing.add(time.monotonic() - started, len(raw))
            done = sum(len(earlier) for earlier in shards[: index + 1])
            bar.update(done * wanted - bar.n)  # what was not accepted in the end counts as dealt with
    run.finish(len(shards), len(firsts))
    return run.manifest


def first_texts(run: DatasetRun, writer: Writer) -> list[FirstText]:
    """The first texts of the run: given by a source, or written by the model once and kept in the run directory."""
    recipe = run.recipe
    if recipe.source.kind != "model":
        firsts, skipped = given_texts(recipe, writer.count_tokens)
        run.record([], counts={**run.manifest.counts, "sources": len(firsts), "sources_skipped": skipped})
        return firsts
    kept = run.first_texts()
    if kept is None:
        with tqdm(total=recipe.source.limit, unit="text", desc=f"{recipe.name} x1", file=sys.stderr) as bar:
            rows, rejected = write_first_texts(
                writer, load_prompts(recipe), recipe, lambda count: bar.update(count - bar.n)
            )
        if not rows:
            raise InputError("source", f"the model wrote no usable first text (rejected: {rejected})")
        run.write_first_texts(rows, rejected)
        kept = run.first_texts() or []
    run.record([], counts={**run.manifest.counts, "sources": len(kept)})
    return kept


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


def provenance(recipe: DatasetRecipe, writer: Writer, inputs: dict[str, str], command: str) -> dict[str, Any]:
    """What the card says about where the data came from."""
    model = recipe.model
    weights = [digest for path, digest in inputs.items() if path.endswith(".safetensors")]
    return {
        "command": command,
        "model": {
            "id": model.repo_id or model.path,
            "revision": model.revision,
            "sha256": weights[0] if weights else None,
            **writer.describe(),
            "license": model.license,
        },
        "source": {
            "description": recipe.source.description,
            "license": recipe.source.license,
            "sha256": inputs.get(str(recipe.source.path)),
        },
    }


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
