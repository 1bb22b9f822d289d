"""A dataset without the rows that stand in evaluation data, in the layout of a run directory, to be trained on.

Only finished configs are written: raw rows, rejects and first texts stay with the dataset that was checked. The new
directory has a name and a fingerprint of its own, and its manifest says what was dropped and why.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Features

from eval.dataset_rows import BATCH
from eval.decontamination import Kind
from eval.decontamination_ledger import Hits, Ledger
from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe, resolved
from hub.run_dir import RECIPE, File, Manifest, describe, require_complete, write_manifest
from hub.shards import Parts, parquet_schema, shard_tables, write_text

SUFFIX = "-without-evaluation-texts"


def require_new(out: Path) -> None:
    """Raise InputError when something is at ``out`` already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(out, "is there already", hint="choose another --drop, or remove it")


def drop(
    directory: Path, out: Path, hits: dict[str, Hits], ledger: Ledger, kinds: Sequence[Kind], splits: Sequence[str]
) -> Manifest:
    """Write the run in ``directory`` to ``out`` without the rows in ``hits`` (config → split → whether to drop).

    Raises InputError when ``out`` is not new, or a config's split has no row left.
    """
    require_new(out)
    before = require_complete(directory)
    _require_rows(directory, hits)
    staging = out.with_name(f"{out.name}.partial")  # OUT is there when it is whole
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    if (directory / RECIPE).is_file():
        recipe = load_recipe(directory / RECIPE, DatasetRecipe)
        write_text(staging / RECIPE, resolved(recipe.model_copy(update={"name": recipe.name + SUFFIX})))
    files = [file for config, found in hits.items() for file in _config(directory, staging, before, config, found)]
    rows = {
        config: {
            split: {"kept": int((~dropped).sum()), "dropped": int(dropped.sum())} for split, dropped in found.items()
        }
        for config, found in hits.items()
    }
    reason = {
        "dataset": {"name": before.name, "version": before.version, "fingerprint": before.fingerprint},
        "kinds": list(kinds),
        "evaluation_splits": list(splits),
        "evaluation": {place: one.sha256 for place, one in ledger.checked.items()},
        "not_checked": list(ledger.not_checked),
        "settings": ledger.settings,
        "rows": rows,
    }
    manifest = before.model_copy(
        update={
            "name": before.name + SUFFIX,
            "fingerprint": hashlib.sha256(json.dumps(reason, sort_keys=True).encode()).hexdigest(),
            "counts": {"splits": {config: _kept(found) for config, found in rows.items()}},
            "provenance": {**before.provenance, "decontamination": reason},
            "files": (),
        }
    ).with_files(files)
    write_manifest(staging, manifest)
    staging.replace(out)
    return manifest


def _require_rows(directory: Path, hits: dict[str, Hits]) -> None:
    for config, found in hits.items():
        for split, dropped in found.items():
            if dropped.all():
                hint = "use other first texts, or check and drop less: --sets, --drop-kinds, --drop-splits"
                raise InputError(f"{directory} ({config})", f"every row of {split} is in evaluation data", hint=hint)


def _kept(rows: dict[str, dict[str, int]]) -> dict[str, int]:
    return {split: counts["kept"] for split, counts in rows.items()}


def _config(directory: Path, out: Path, manifest: Manifest, config: str, hits: Hits) -> list[File]:
    """Write the kept rows of a config, split by split; their manifest entries."""
    shards = [file for file in manifest.shards(config) if file.rows]
    features = Features.from_arrow_schema(parquet_schema(directory / shards[0].path))
    written = []
    for split, dropped in hits.items():
        parts, start = Parts(out, config, split, features), 0
        try:
            for shard in (one for one in shards if (one.split or "train") == split):
                for batch in shard_tables(directory / shard.path, BATCH):
                    kept = ~dropped[start : start + len(batch)]
                    parts.add(_rows(batch, kept))
                    start += len(batch)
            written += [describe(out, path, config=config, split=split, rows=rows) for path, rows in parts.finish()]
        finally:
            parts.discard()
    return written


def _rows(batch: pa.Table, kept: np.ndarray) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.filter(pa.array(kept)).to_pylist()
    return rows
