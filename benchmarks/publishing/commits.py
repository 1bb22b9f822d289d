"""What publishing costs: python -m benchmarks.publishing.commits --shards 100 --megabytes 5

A finished dataset of random rows is published to an embedded Hub, once over Xet (the client's default) and once over
LFS, each time by a fresh process into an empty Hub, and once more unchanged. In turn with them its files are copied and
hashed, which no way of publishing can avoid. Sent bytes are those that the Hub received, by its log.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

from benchmarks.trials import spread, turned, write_results
from hub.cli import new_app, run, say
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe, config_features
from hub.contract.recipe_file import fingerprint, load_recipe, resolved
from hub.contract.run_dir import Manifest, describe, text_sha256, write_manifest
from hub.contract.shards import shard_path
from hub.durable import atomic_path, write_text
from hub_server.process import LocalHub

app = new_app(__doc__)
RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
CONFIG, SPLIT, NAME, ORG = "postprocessed", "train", "publishing-load", "acme"
TEXT_BYTES = 600  # random bytes of a sentence; base64 makes 800 characters of them, which zstd undoes
WAYS = {"xet": "0", "lfs": "1"}  # HF_HUB_DISABLE_XET


@app.command(no_args_is_help=False)
def main(
    shards: Annotated[int, typer.Option(min=1, help="Parquet files")] = 100,
    megabytes: Annotated[float, typer.Option(min=0.01, help="Size of each, 10^6 bytes")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way takes its turn")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Where to work; needs three times the data")] = None,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/publishing.json"),
) -> None:
    """Publish, publish again unchanged, copy and hash, in turns; write a JSON file."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        directory = make_run(Path(work) / NAME, shards, megabytes)
        size = sum(file.bytes for file in run_dir.require_complete(directory).files)
        say(f"{shards} shards, {size:,} bytes")
        load = os.getloadavg()[0]  # of others: this command has not begun
        found = [one_round(directory, Path(work) / f"round-{number}", number) for number in range(rounds)]
    result = {
        "shards": shards,
        "bytes": size,
        "load_average_before": round(load, 2),
        "summary": summary(found),
        "rounds": found,
    }
    print(json.dumps(result["summary"], indent=2))
    write_results(out, result, ("huggingface_hub", "hf_xet", "uvicorn", "starlette"))


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
    provenance = {
        "command": "python -m benchmarks.publishing.commits",
        "model": {"id": "random bytes"},
        "source": {},
    }
    return Manifest(
        kind="dataset",
        name=NAME,
        version=recipe.version,
        fingerprint=fingerprint(recipe, {}),
        recipe_sha256=text_sha256(resolved(recipe)),
        complete=True,
        counts=counts,
        provenance=provenance,
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


def one_round(directory: Path, work: Path, number: int) -> dict[str, Any]:
    """Every way once, in an order that turns with the rounds."""
    work.mkdir()
    done: dict[str, Any] = {}
    for name in turned(["copy", *WAYS], number):
        copy = name == "copy"
        done[name] = copy_and_hash(directory, work / name) if copy else published(directory, work / name, WAYS[name])
        subprocess.run(["rm", "-rf", str(work / name)], check=True)  # noqa: S603, S607 - half a gigabyte
        say(f"round {number + 1}, {name}: {done[name]}")
    return done


def copy_and_hash(directory: Path, target: Path) -> dict[str, Any]:
    """Copy the files and hash the copies; the same with a flush of each copy to the disk, as the Hub does it."""
    seconds = {}
    for name, flush in (("seconds", False), ("seconds_flushed", True)):
        started = time.perf_counter()
        for path in (path for path in sorted(directory.rglob("*")) if path.is_file()):
            copy = target / name / path.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes()
            with copy.open("wb") as file:
                file.write(content)
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
            hashlib.sha256(content).hexdigest()
        seconds[name] = round(time.perf_counter() - started, 2)
    return seconds


def published(directory: Path, work: Path, without_xet: str) -> dict[str, Any]:
    """Publish into an empty Hub, then again: seconds of each (imports left out) and the bytes that the Hub received."""
    with LocalHub(work / "hub", orgs=[ORG], options=["--verbose"]) as hub:
        environment = hub.client_environment(work / "home")
        environment |= {"HF_HUB_DISABLE_XET": without_xet, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        first, again = (_publish(directory, hub, environment) for _ in range(2))
    return {"seconds": first[0], "sent": first[1], "again_seconds": again[0], "again_sent": again[1]}


_TIMED = """
import sys, time
from release.publish import app
started = time.perf_counter()
app(sys.argv[1:], standalone_mode=False)
print(time.perf_counter() - started)
"""


def _publish(directory: Path, hub: LocalHub, environment: dict[str, str]) -> tuple[float, int]:
    before = hub.log_file.stat().st_size
    command = [sys.executable, "-c", _TIMED, str(directory), "--org", ORG, "--yes"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
    log = hub.log_file.read_bytes()[before:].decode()
    return round(float(done.stdout.split()[-1]), 2), sum(map(int, re.findall(r", (\d+) bytes received$", log, re.M)))


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spread of the seconds, and medians over rounds of the ratio to copying and hashing in that round."""
    found: dict[str, Any] = {"copy_and_hash_seconds": spread([one["copy"]["seconds"] for one in rounds])}
    found["copy_hash_and_flush_seconds"] = spread([one["copy"]["seconds_flushed"] for one in rounds])
    for way in WAYS:
        found[way] = {
            "seconds": spread([one[way]["seconds"] for one in rounds]),
            "times_copy_and_hash": spread([one[way]["seconds"] / one["copy"]["seconds"] for one in rounds]),
            "sent_bytes": spread([one[way]["sent"] for one in rounds]),
            "again_seconds": spread([one[way]["again_seconds"] for one in rounds]),
            "again_sent_bytes": max(one[way]["again_sent"] for one in rounds),
        }
    return found


if __name__ == "__main__":
    run(app)
