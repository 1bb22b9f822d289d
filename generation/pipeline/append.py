"""Rows of more source sentences for a finished dataset: its next version, in which every earlier file is unchanged.

The new sentences are a run in a folder beside the run directory, resumable like any other. When it is finished, its
files are copied under new names, and one manifest names both: until then the directory holds the earlier version.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

from generation.backends.registry import with_dtype
from generation.pipeline.directory import BaseRun
from generation.pipeline.job import generate, input_hashes
from generation.pipeline.tasks import StartExecutor
from generation.pipeline.worker import local_executor
from hub.client.plan import MEASURED
from hub.client.publish import is_later
from hub.contract import run_dir
from hub.contract.measured import PROVENANCE as DECONTAMINATION
from hub.contract.published_paths import published_path, remember
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import deciding, fingerprint, load_recipe, resolved
from hub.contract.run_dir import Manifest
from hub.durable import atomic_path
from hub.errors import InputError

GROWING = ("limit", "path", "revision", "splits")  # keys of `source` that may add sentences after the existing ones
HISTORY = "history"  # of a manifest's provenance: what each version brought, the oldest first
BESIDE = (".timing.json", ".places.json")  # notes on the new rows' run, for people


def append(recipe: DatasetRecipe, directory: Path, command: str, start: StartExecutor = local_executor) -> Manifest:
    """Generate the rows of further source sentences for a finished run and add them. Lock the directory first.

    Interrupted at any place, the same call goes on. Raises InputError when the directory holds no finished run, or when
    anything but the source's length differs from it.
    """
    recipe, found = with_dtype(recipe), run_dir.require_complete(directory)
    new, inputs = appending(directory), input_hashes(recipe)
    if (known := run_dir.base_inputs(found)) and fingerprint(recipe, inputs | known) == found.fingerprint:
        whole = generate(recipe, directory, command, start)  # says that it is complete
    else:
        base = appendable(recipe, directory)
        whole = joined(base, new, generate(recipe, new, command, start, base), recipe)
        remember(directory, recipe.local_paths())
    shutil.rmtree(new, ignore_errors=True)
    for name in BESIDE:
        new.with_name(new.name + name).unlink(missing_ok=True)
    return whole


def appending(directory: Path) -> Path:
    """The run directory of the new rows, until they are added to ``directory``."""
    return directory.with_name(f"{directory.name}.appending")


def appendable(recipe: DatasetRecipe, directory: Path) -> BaseRun:
    """The finished run in ``directory``.

    Raises InputError unless ``recipe`` is a later version of it that differs in nothing but a longer source.
    """
    recipe, base = with_dtype(recipe), run_dir.require_complete(directory)
    inputs = input_hashes(recipe)
    there, growing = load_recipe(directory / run_dir.RECIPE, DatasetRecipe), ", ".join(f"source.{k}" for k in GROWING)
    allowed = f"{growing}, version and keys of the card may change"
    hint = "give it the value it had, or make a dataset of another name"
    if DECONTAMINATION in base.provenance:
        problem = "rows were left out of it, which appended ones would not be"
        raise InputError(directory, problem, hint="append to its origin")
    for key, words in run_dir.changed_values(_fixed(there), _fixed(recipe)).items():
        raise InputError(f"{directory}: {key}", f"{words}, which no append can mix", allowed=allowed, hint=hint)
    before = {name: digest for name, digest in base.inputs.items() if not name.startswith(run_dir.APPENDED)}
    sources = {published_path(one.source.path) for one in (there, recipe) if one.source.path}
    for name in sorted((before.keys() | inputs.keys()) - sources):
        if before.get(name) != inputs.get(name):
            problem = "is another file than it was written with"
            raise InputError(f"{directory}: {name}", problem, hint="put that one back")
    if base.fingerprint == fingerprint(recipe, inputs | run_dir.base_inputs(base)):
        hint = f"raise source.limit, or append rows to the source; it has {base.counts['sources']:,} source sentences"
        raise InputError(directory, "has all rows of this recipe: there is nothing to append", hint=hint)
    if not is_later(recipe.version, base.version):
        problem = f"{recipe.version} is not later than {base.version}, to which rows are appended"
        raise InputError(f"{directory}: version", problem, hint="raise `version` in the recipe")
    if recipe.source.facts.generated and (recipe.source.limit or 0) <= base.counts["sources"]:
        problem = f"{recipe.source.limit} is not above the {base.counts['sources']:,} source sentences that are there"
        hint = "raise it: it counts all source sentences, old and new"
        raise InputError(f"{directory}: source.limit", problem, hint=hint)
    return BaseRun(directory, base)


def _fixed(recipe: DatasetRecipe) -> dict[str, Any]:
    """What decides rows and may not grow, as JSON has it."""
    tree = deciding(recipe)
    return {**tree, "source": {key: value for key, value in tree["source"].items() if key not in GROWING}}


def joined(base: BaseRun, new: Path, manifest: Manifest, recipe: DatasetRecipe) -> Manifest:
    """Add the finished run in the folder ``new`` to ``base``, the manifest last; what was measured of it goes."""
    whole = with_new_rows(base.manifest, manifest)
    for file in manifest.files:
        with atomic_path(base.directory / new_path(file.path, manifest.version)) as temporary:
            shutil.copyfile(new / file.path, temporary)
    for name in MEASURED:
        (base.directory / name).unlink(missing_ok=True)
    run_dir.write_manifest(base.directory, whole)
    return run_dir.rewrite_recipe(base.directory, whole, recipe.version, resolved(recipe))


def new_path(path: str, version: str) -> str:
    """Where a file of the new rows stands: data/raw/train-v1.1.0-00000-of-00004.parquet, after those without one."""
    folder, slash, name = path.rpartition("/")
    split, dash, rest = name.partition("-")
    return f"{folder}{slash}{split}{dash}v{version}{dash}{rest}"


def with_new_rows(base: Manifest, new: Manifest) -> Manifest:
    """The manifest of a version: files, counts and history of ``base`` with those of ``new``, whose recipe it has."""
    added = [dataclasses.replace(file, path=new_path(file.path, new.version)) for file in new.files]
    renamed = (new_path(path, new.version) for path in new.counts.get("empty_shards", ()))
    empty = [*base.counts.get("empty_shards", ()), *renamed]
    counts = _sum(base.counts, new.counts) | ({"empty_shards": empty} if empty else {})
    if "sources_skipped" in new.counts:  # of the whole source, which was read from its beginning
        counts["sources_skipped"] = new.counts["sources_skipped"]
    history = [*base.provenance.get(HISTORY, [_entry(base)]), _entry(new)]
    contents = {f"{name} of v{new.version}": digest for name, digest in new.contents.items()}
    return new.model_copy(update={"files": base.files}).with_files(
        added, counts=counts, provenance={**new.provenance, HISTORY: history}, contents={**base.contents, **contents}
    )


def _sum(one: Any, other: Any) -> Any:
    """Two trees of counts as one; what is not a number is the other's."""
    if isinstance(one, dict) and isinstance(other, dict):
        both = {key: _sum(one[key], other[key]) for key in one.keys() & other.keys()}
        return {**one, **other, **both}
    return one + other if isinstance(one, int) and isinstance(other, int) else other


def _entry(manifest: Manifest) -> dict[str, Any]:
    """What a version brought: the run of its own rows."""
    counts = manifest.counts
    return {
        "version": manifest.version,
        "source_sentences": counts["sources"],
        **{name: counts[name] for name in ("requested", "kept")},
        "rows": {config: sum(splits.values()) for config, splits in counts["splits"].items()},
        "command": manifest.provenance["command"],
        "fingerprint": manifest.fingerprint,
        "inputs": manifest.inputs,
        "versions": manifest.versions,
    }
