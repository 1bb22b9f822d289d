"""Finish the rows of a run again, under other settings: python -m benchmarks.better_pairs.refinish RUN_DIR --out DIR

The texts that a finished run wrote are kept or dropped, scored and sampled anew, as if its recipe had the settings of
``--set``: no language model is asked. With ``--as-many-as`` no filter chooses: so many of each label's kept texts as
another run keeps are drawn at random, by a seed.
"""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer

from generation.pipeline import tasks as layout
from generation.pipeline.directory import DatasetRun
from generation.pipeline.finish import finish
from generation.pipeline.tasks import Shard, WriteShard, shard_files
from generation.rows.filters import sifted
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import apply_overrides, checked, load_recipe, new_manifest, read_yaml, resolved
from hub.contract.run_dir import RECIPE, Manifest
from hub.contract.schema import OVER_CAP, SIFT
from hub.contract.shards import read_shard
from hub.errors import InputError

SIFTED = {reason.name for reason in SIFT}
Row = dict[str, Any]

app = cli.new_app(__doc__)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished dataset")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The run directory to write")],
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    like: Annotated[
        Path | None, typer.Option("--as-many-as", metavar="RUN_DIR", help="Keep as many of each label as this run")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of --as-many-as")] = 0,
) -> None:
    """Write a run directory of the same texts under other settings of verification and postprocess.

    Examples:

      python -m benchmarks.better_pairs.refinish RUN --set "verification={drop: true}" --out DIR
    """
    before = run_dir.require_complete(directory)
    recipe = checked(directory / RECIPE, DatasetRecipe, apply_overrides(read_yaml(directory / RECIPE), settings))
    caps = None if like is None else kept_by_label(like)
    inputs = {**before.inputs, **({} if caps is None else {"drawn": f"{json.dumps(caps, sort_keys=True)} by {seed}"})}
    manifest = new_manifest(recipe, inputs, before.versions)
    with run_dir.locked(out):
        run = DatasetRun(out, recipe, run_dir.begin(out, manifest, resolved(recipe)))
        if not run.manifest.complete:
            refinish(run, directory, before, caps, seed)
    print(json.dumps({"directory": str(out), **run.manifest.counts}, ensure_ascii=False))


def kept_by_label(directory: Path) -> dict[str, int]:
    """How many texts of each label a finished run keeps."""
    return {name: found["kept"] for name, found in run_dir.require_complete(directory).counts["by_label"].items()}


def refinish(run: DatasetRun, directory: Path, before: Manifest, caps: dict[str, int] | None, seed: int) -> None:
    """Sift and finish the texts of the run in ``directory`` under the recipe of ``run``."""
    sources = before.counts["sources"]
    old = load_recipe(directory / RECIPE, DatasetRecipe)
    shards = layout.shards(old, -(-sources // old.shard_size))
    texts = [_texts(directory, old, before, shard) for shard in shards]
    if caps is not None:
        texts = _drawn(texts, run.recipe, caps, Random(seed))
    run.record([], provenance=before.provenance, counts={"sources": sources})
    for shard, (raw, failed) in zip(shards, texts, strict=True):
        run.add_shard(shard_files(run.recipe, WriteShard(shard, ()), raw, failed), shard.blocks)
    run.show_progress(shards[0].blocks)
    finish(run, shards[0].blocks, sources)


def _texts(directory: Path, recipe: DatasetRecipe, manifest: Manifest, shard: Shard) -> tuple[list[Row], list[Row]]:
    """A shard's raw rows, and the rejected ones that are no usable text whatever the settings."""
    there = {file.path for file in manifest.files}
    raw, rejected = ([*read_shard(directory / path)] if path in there else [] for path in layout.paths(recipe, shard))
    return raw, [row for row in rejected if row["reason"] not in SIFTED]


def _drawn(
    texts: list[tuple[list[Row], list[Row]]], recipe: DatasetRecipe, caps: dict[str, int], random: Random
) -> list[tuple[list[Row], list[Row]]]:
    """Of each label so many of the kept rows as ``caps`` says, drawn from all shards; the others count as over_cap.

    Raises InputError when a label has fewer.
    """
    sift = [sifted(raw, recipe) for raw, _ in texts]
    kept = [(number, row) for number, (rows, _) in enumerate(sift) for row in rows]
    there = Counter(row["target"] for _, row in kept)
    chosen = set[int]()
    for label, wanted in caps.items():
        if there[label] < wanted:
            raise InputError(f"label {label!r}", f"{there[label]} texts are kept, fewer than {wanted}")
        of_label = [place for place, (_, row) in enumerate(kept) if row["target"] == label]
        chosen.update(random.sample(of_label, wanted))
    # rows that sifting dropped leave raw, too: in the place of one that is not drawn, they would be kept
    result: list[tuple[list[Row], list[Row]]] = [
        ([], [*failed, *dropped]) for (_, failed), (_, dropped) in zip(texts, sift, strict=True)
    ]
    for place, (number, row) in enumerate(kept):
        raw, failed = result[number]
        if place in chosen:
            raw.append(row)
        else:
            failed.append({**row, "reason": OVER_CAP.name})
    return result


if __name__ == "__main__":
    cli.run(app)
