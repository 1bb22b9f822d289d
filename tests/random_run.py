"""A finished dataset run of random rows, which do not compress: large enough to be uploaded in parts."""

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.run_dir import Manifest, describe, text_sha256, write_manifest
from hub.contract.shards import shard_path
from hub.durable import atomic_path, write_text
from model_cards import render

RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
CONFIG, SPLIT, NAME, ORG = "postprocessed", "train", "random-run", "acme"
TEXT_BYTES = 600  # random bytes of a sentence; base64 makes 800 characters of them, which zstd undoes


def make_run(directory: Path, shards: int, megabytes: float) -> Path:
    """A finished run directory with its card: ``shards`` files of random rows, ``megabytes`` each."""

    recipe = load_recipe(RECIPE, DatasetRecipe, [f"name={NAME}"])
    rows = max(1, round(megabytes * 1e6 / (2 * TEXT_BYTES)))
    files = []
    for index in range(shards):
        path = shard_path(CONFIG, SPLIT, index, shards)
        with atomic_path(directory / path) as temporary:
            pq.write_table(random_table(recipe, rows, index), temporary, compression="zstd")
        files.append(describe(directory, path, config=CONFIG, split=SPLIT, rows=rows))
    write_text(directory / run_dir.RECIPE, resolved(recipe))
    write_manifest(directory, manifest_of(recipe, rows * shards).with_files(files))
    render.write(directory, render.render(directory, f"{ORG}/{NAME}"))
    return directory


def manifest_of(recipe: DatasetRecipe, rows: int) -> Manifest:
    """The manifest of a finished run of so many rows, without its files."""
    labels = {label.name: rows // len(recipe.labels) for label in recipe.labels}
    labels[recipe.labels[0].name] += rows - sum(labels.values())
    counts = {
        "sources": rows,
        "requested": rows,
        "kept": rows,
        "rejected": {},
        "by_label": {name: {"requested": n, "kept": n, "rejected": 0} for name, n in labels.items()},
        "splits": {CONFIG: {SPLIT: rows}},
    }
    return Manifest(
        kind="dataset",
        name=NAME,
        version=recipe.version,
        fingerprint=fingerprint(recipe, {}),
        recipe_sha256=text_sha256(resolved(recipe)),
        complete=True,
        counts=counts,
        provenance={"command": "none", "model": {"id": "random bytes"}, "source": {}},
    )


def random_table(recipe: DatasetRecipe, rows: int, seed: int) -> pa.Table:
    """Rows that do not compress."""
    random = np.random.default_rng(seed)
    schema = config_features(CONFIG, recipe).arrow_schema

    def column(field: pa.Field) -> pa.Array:
        if field.name in ("sentence1", "sentence2"):
            return pa.array([base64.b64encode(random.bytes(TEXT_BYTES)).decode() for _ in range(rows)], field.type)
        if pa.types.is_string(field.type):
            return pa.array(["1"] * rows, field.type)
        return pa.array(np.ones(rows), pa.float64()).cast(field.type)

    return pa.table([column(field) for field in schema], schema=schema)
