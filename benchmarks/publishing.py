"""Publishing to the embedded Hub over Xet and over LFS, and once more unchanged, beside copying and hashing the files.

The dataset is random, so nothing compresses or repeats. Each round starts with an empty Hub and empty client caches.
Sent bytes are the request bodies in the Hub's log. *Copy* reads each file, writes it elsewhere and hashes it.
"""

import base64
import hashlib
import re
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.trials import cost_of, interleaved, ratios, spread, table, write_results
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.run_dir import Manifest, describe, text_sha256, write_manifest
from hub.contract.shards import shard_path
from hub.durable import atomic_path, write_text
from hub.errors import RunError
from hub_server.process import LocalHub

RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
CONFIG, SPLIT, NAME, ORG = "postprocessed", "train", "publishing-load", "acme"
TEXT_BYTES = 600  # random bytes of a sentence; base64 makes 800 characters of them, which zstd undoes
WAYS = {"copy": "", "xet": "0", "lfs": "1"}  # HF_HUB_DISABLE_XET

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    shards: Annotated[int, typer.Option(min=1, help="Parquet files")] = 100,
    megabytes: Annotated[float, typer.Option(min=0.01, help="Size of each, 10^6 bytes")] = 5,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    folder: Annotated[Path | None, typer.Option(help="Where to work; needs three times the data")] = None,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/publishing.json"),
) -> None:
    """Publish, publish again unchanged, copy and hash, in turns; write a JSON file."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        directory = make_run(Path(work) / NAME, shards, megabytes)

        def trial(way: str, number: int) -> dict[str, float]:
            with tempfile.TemporaryDirectory(dir=work) as place:
                return copied(directory, Path(place)) if way == "copy" else published(directory, Path(place), WAYS[way])

        runs = interleaved(list(WAYS), rounds, trial)
    seconds = {way: [run["seconds"] for run in of] for way, of in runs.items()}
    summary = {way: {key: spread([run[key] for run in of]) for key in of[0]} for way, of in runs.items()}
    for way in WAYS:
        summary[way]["times_copy"] = ratios(seconds[way], seconds["copy"])
    write_results(out, {"shards": shards, "megabytes": megabytes, "summary": summary, "rounds": runs}, LIBRARIES)
    rows = [[way, one["seconds"]["median"], one["times_copy"]["median"]] for way, one in summary.items()]
    print(table(["way", "seconds", "times copying"], rows))


LIBRARIES = ("huggingface_hub", "hf_xet", "uvicorn", "starlette")


def make_run(directory: Path, shards: int, megabytes: float) -> Path:
    """A finished run directory with its card: ``shards`` files of random rows, ``megabytes`` each."""
    from model_cards import render

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
        provenance={"command": "sts-dino benchmark publishing", "model": {"id": "random bytes"}, "source": {}},
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


def copied(directory: Path, target: Path) -> dict[str, float]:
    """Seconds to copy and hash the files."""
    started = time.perf_counter()
    for path in (path for path in sorted(directory.rglob("*")) if path.is_file()):
        content = path.read_bytes()
        (target / hashlib.sha256(content).hexdigest()).write_bytes(content)
    return {"seconds": round(time.perf_counter() - started, 2)}


def published(directory: Path, work: Path, without_xet: str) -> dict[str, float]:
    """Seconds and sent bytes of a publication to an empty Hub, and of a second one without changes."""
    found: dict[str, Any] = {}
    with LocalHub(work / "hub", orgs=[ORG], options=["--verbose"]) as hub:
        environment = hub.client_environment(work / "home") | {"HF_HUB_DISABLE_XET": without_xet}
        for prefix in ("", "again_"):
            before = hub.log_file.stat().st_size
            done = cost_of("publish", directory, "--org", ORG, "--yes", environment=environment)
            if done.code:
                raise RunError("sts-dino publish", f"ended with exit code {done.code}")
            log = hub.log_file.read_bytes()[before:].decode()
            sent = sum(map(int, re.findall(r", (\d+) bytes received$", log, re.M)))
            found |= {f"{prefix}seconds": done.wall_s, f"{prefix}sent_bytes": sent}
    return found
