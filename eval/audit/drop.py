"""A dataset without the rows that stand in evaluation data: a run directory to be trained on, carded and published.

Only finished configs are written: raw rows, rejects and first texts stay with the dataset that was checked. The new
run has the recipe of the old one under a name or version of its own; what was dropped and why
(``hub.contract.decontamination``) stands in its manifest and is one of its inputs.
"""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from eval.audit.ledger import Bookkeeper, Hits
from eval.audit.source import BATCH
from hub.contract.decontamination import INPUT, KINDS, PROVENANCE, Dropped, Kind, Origin, SplitRows
from hub.contract.published_paths import is_outside, published_path
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import checked, fingerprint, load_recipe, resolved
from hub.contract.run_dir import (
    ARTIFACTS,
    RECIPE,
    File,
    Manifest,
    describe,
    locked,
    require_complete,
    text_sha256,
    write_manifest,
)
from hub.contract.shards import Parts, parquet_schema, shard_tables, write_text
from hub.durable import make_folder, rename_folder
from hub.errors import InputError

SUFFIX = "-without-evaluation-texts"


@dataclass(frozen=True)
class Target:
    """Where the rest is written, and what it is to be called; without a name, the dataset's with ``SUFFIX``."""

    out: Path
    command: str = ""
    name: str | None = None
    version: str | None = None


def require_new(out: Path) -> None:
    """Raise InputError when something is at ``out`` already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(out, "is there already", hint="choose another --drop, or remove it")


def dropped_recipe(directory: Path, target: Target) -> DatasetRecipe:
    """The recipe of the rest. Raises InputError for a name or version that it cannot have."""
    from hub.client.ownership import is_later

    recipe = load_recipe(directory / RECIPE, DatasetRecipe)
    name, version = target.name or recipe.name + SUFFIX, target.version or recipe.version
    if name == recipe.name and not is_later(version, recipe.version):
        problem = f"is the version of what is checked, or an earlier one ({recipe.name} v{recipe.version})"
        hint = "published rows are never changed: give a later one, or another --drop-name"
        raise InputError(f"--drop-version {version}", problem, hint=hint)
    told = {"name": name, "version": version, "pretty_name": f"{recipe.pretty_name} (without evaluation texts)"}
    return checked(Path("--drop-name, --drop-version"), DatasetRecipe, {**recipe.model_dump(mode="json"), **told})


def command_of(place: str, options: Mapping[str, Path | str | float | None]) -> str:
    """The command that drops the same rows, for the card: the options that were given, and no path of this machine."""
    run = f"{ARTIFACTS}/datasets/{published_path(place)}" if is_outside(place) else place
    words = ["python", "-m", "eval.decontaminate", run]
    for option, value in options.items():
        if value not in (None, ""):
            words += [option, published_path(value.as_posix()) if isinstance(value, Path) else str(value)]
    return shlex.join([*words, "--drop", "OUT"])


def drop(directory: Path, target: Target, books: Bookkeeper) -> Manifest:
    """Write the run in ``directory`` without the rows in ``books.hits``.

    Raises InputError when ``target.out`` is not new, or a config's split has no row left; RunError while another
    process writes it.
    """
    with locked(target.out):
        require_new(target.out)
        before = require_complete(directory)
        recipe = dropped_recipe(directory, target)
        _require_rows(directory, books.hits)
        staging = target.out.with_name(f"{target.out.name}.partial")  # OUT is there when it is whole
        shutil.rmtree(staging, ignore_errors=True)
        make_folder(staging)
        files = [file for name, hits in books.hits.items() for file in _config(directory, staging, before, name, hits)]
        write_text(staging / RECIPE, resolved(recipe))
        manifest = _manifest(before, recipe, _dropped(before, books), target.command).with_files(files)
        write_manifest(staging, manifest)
        rename_folder(staging, target.out)
        return manifest


def _dropped(before: Manifest, books: Bookkeeper) -> Dropped:
    ledger = books.ledger()
    return Dropped(
        dataset=Origin(name=before.name, version=before.version, fingerprint=before.fingerprint),
        kinds=books.kinds,
        evaluation_splits=books.splits,
        evaluation={place: one.sha256 for place, one in ledger.checked.items()},
        not_checked=ledger.not_checked,
        settings=ledger.settings,
        rows={
            config: {split: _counted(reasons, books.kinds) for split, reasons in hits.items()}
            for config, hits in books.hits.items()
        },
    )


def _counted(reasons: np.ndarray, kinds: Sequence[Kind]) -> SplitRows:
    found: dict[str, int] = {kind: int((reasons == 1 + KINDS.index(kind)).sum()) for kind in kinds}
    return SplitRows(kept=int((reasons == 0).sum()), dropped=found)


def _manifest(before: Manifest, recipe: DatasetRecipe, told: Dropped, command: str) -> Manifest:
    """The manifest without its files. What is counted is what the generation wrote; the splits are what is kept."""
    inputs = {**before.inputs, INPUT: told.digest()}
    kept = {config: {split: rows.kept for split, rows in found.items()} for config, found in told.rows.items()}
    commands = [line for line in (before.provenance.get("command"), command) if line]
    changes = {
        "name": recipe.name,
        "version": recipe.version,
        "inputs": inputs,
        "fingerprint": fingerprint(recipe, inputs),
        "recipe_sha256": text_sha256(resolved(recipe)),
        "counts": {**before.counts, "splits": kept},
        "provenance": {**before.provenance, "command": "\n".join(commands), PROVENANCE: told.model_dump(mode="json")},
        "files": (),
    }
    return before.model_copy(update=changes)


def _require_rows(directory: Path, hits: dict[str, Hits]) -> None:
    for config, found in hits.items():
        for split, reasons in found.items():
            if reasons.all():
                hint = "use other first texts, or check and drop less: --sets, --drop-kinds, --drop-splits"
                raise InputError(f"{directory} ({config})", f"every row of {split} is in evaluation data", hint=hint)


def _config(directory: Path, out: Path, manifest: Manifest, config: str, hits: Hits) -> list[File]:
    """Write the kept rows of a config, split by split; their manifest entries."""
    from datasets import Features

    shards = [file for file in manifest.shards(config) if file.rows]
    features = Features.from_arrow_schema(parquet_schema(directory / shards[0].path))
    written = []
    for split, reasons in hits.items():
        parts, start = Parts(out, config, split, features), 0
        try:
            for shard in (one for one in shards if (one.split or "train") == split):
                for batch in shard_tables(directory / shard.path, BATCH):
                    kept = reasons[start : start + len(batch)] == 0
                    parts.add(batch.filter(pa.array(kept)).to_pylist())
                    start += len(batch)
            written += [describe(out, path, config=config, split=split, rows=rows) for path, rows in parts.finish()]
        finally:
            parts.discard()
    return written
