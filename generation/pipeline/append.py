"""Rows of more source sentences for a finished dataset: its next version.

Every earlier file stays unchanged. The new sentences are a run in a folder beside the run
directory, resumable like any other. When it is finished, its files are copied under new names, and
one manifest names both: until then the directory holds the earlier version.
"""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sts_dino.generation.backends.registry import resolve_model_dtype
from sts_dino.generation.pipeline.directory import BaseRun
from sts_dino.generation.pipeline.job import generate, hash_inputs
from sts_dino.generation.pipeline.tasks import StartExecutor
from sts_dino.generation.pipeline.worker import start_local_executor
from sts_dino.hub.client.plan import MEASURED
from sts_dino.hub.client.publish import is_later
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.measured import DROPPED_ROWS_PROVENANCE
from sts_dino.hub.contract.published_paths import hide_folders, store_input_paths
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import (
    compute_fingerprint,
    format_recipe,
    get_deciding_values,
    load_recipe,
)
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.durable import write_atomically
from sts_dino.hub.errors import InputError

# keys of `source` that may add sentences after the existing ones
GROWING_SOURCE_KEYS = ("limit", "path", "revision", "splits")
HISTORY_KEY = "history"  # of a manifest's provenance: what each version brought, the oldest first
# suffixes of the files beside the run directory of the new rows that no later start needs
NOTE_SUFFIXES = (".timing.json", ".places.json")


def append_rows(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    start: StartExecutor = start_local_executor,
) -> Manifest:
    """Generate the rows of further source sentences, add them to a finished run, and return its
    new manifest.

    The caller holds the lock of the directory. The same call resumes after an interruption, and
    changes nothing when the rows are there.

    Args:
        recipe: a later version of the run's recipe, with a longer source.
        directory: the run directory of the finished dataset.
        command: the command line that the manifest keeps.
        start: starts the executor; every executor generates the same bytes.

    Raises InputError when the directory holds no finished run, or when nothing can be appended to
    it (``require_appendable``). Raises the errors of ``generate``, and OSError when the disk fails.
    """
    # find out whether the rows are there
    recipe = resolve_model_dtype(recipe)
    manifest = run_dir.require_complete(directory)
    base_inputs = run_dir.get_base_inputs(manifest)
    new_directory = get_new_rows_directory(directory)
    is_appended = bool(base_inputs) and manifest.fingerprint == compute_fingerprint(
        recipe, hash_inputs(recipe) | base_inputs
    )

    # append them, and remove the run of the new rows
    if is_appended:
        merged = generate(recipe, directory, command, start)  # logs that the run is complete
    else:
        base = require_appendable(recipe, directory)
        new_manifest = generate(recipe, new_directory, command, start, base)
        merged = add_new_rows(base, new_directory, new_manifest, recipe)
        store_input_paths(directory, recipe.collect_local_paths())
    shutil.rmtree(new_directory, ignore_errors=True)
    for suffix in NOTE_SUFFIXES:
        new_directory.with_name(new_directory.name + suffix).unlink(missing_ok=True)
    return merged


def get_new_rows_directory(directory: Path) -> Path:
    """Return the run directory of the new rows: ``directory`` with the suffix .appending."""
    return directory.with_name(f"{directory.name}.appending")


def require_appendable(recipe: DatasetRecipe, directory: Path) -> BaseRun:
    """Return the finished run in ``directory``, to which rows of ``recipe`` can be appended.

    Raises InputError in these cases:

    - The directory holds no complete run, or one that ``sts-dino decontaminate`` made.
    - ``recipe`` differs in more than version, keys of the card and ``GROWING_SOURCE_KEYS``.
    - A local input other than the source has changed.
    - The recipe's version is not later, or the recipe cannot have more source sentences.
    """
    recipe = resolve_model_dtype(recipe)
    base = BaseRun(directory, run_dir.require_complete(directory))
    base_recipe = load_recipe(directory / run_dir.RECIPE, DatasetRecipe)
    inputs = hash_inputs(recipe)
    if DROPPED_ROWS_PROVENANCE in base.manifest.provenance:
        raise InputError(
            directory,
            "was made by sts-dino decontaminate, and appended rows would not be checked",
            hint="append to the dataset that it was made from",
        )
    _require_same_keys(base, base_recipe, recipe)
    _require_same_files(base, base_recipe, recipe, inputs)
    _require_more_sentences(base, recipe, inputs)
    return base


def _require_same_keys(base: BaseRun, base_recipe: DatasetRecipe, recipe: DatasetRecipe) -> None:
    """Raise InputError for the first changed key that decides rows, ``GROWING_SOURCE_KEYS`` apart.

    ``base_recipe``: the recipe of ``base``. ``recipe``: its later version.
    """
    changed = run_dir.compare_values(_select_fixed_keys(base_recipe), _select_fixed_keys(recipe))
    growing = ", ".join(f"source.{key}" for key in GROWING_SOURCE_KEYS)
    for key, change in changed.items():
        raise InputError(
            f"{base.directory}: {key}",
            f"{change}, but appended rows need the earlier value",
            allowed=f"{growing}, version and keys of the card may change",
            hint="give it the value it had, or make a dataset of another name",
        )


def _select_fixed_keys(recipe: DatasetRecipe) -> dict[str, Any]:
    """Return the keys that decide rows, with their values as JSON.

    The ``GROWING_SOURCE_KEYS`` of the source are left out.
    """
    keys = get_deciding_values(recipe)
    source = {key: value for key, value in keys["source"].items() if key not in GROWING_SOURCE_KEYS}
    return {**keys, "source": source}


def _require_same_files(
    base: BaseRun, base_recipe: DatasetRecipe, recipe: DatasetRecipe, inputs: dict[str, str]
) -> None:
    """Raise InputError when a local input other than the source is not the same as in ``base``.

    It has other bytes, or only one of the two recipes has it. ``inputs``: published path → SHA-256
    of the local inputs of ``recipe``.
    """
    base_inputs = {
        name: digest
        for name, digest in base.manifest.inputs.items()
        if not name.startswith(run_dir.APPENDED_INPUT)
    }
    names = base_inputs.keys() | inputs.keys()
    for source in (base_recipe.source, recipe.source):
        if source.path:
            names.discard(hide_folders(source.path))
    for name in sorted(names):
        if base_inputs.get(name) != inputs.get(name):
            raise InputError(
                f"{base.directory}: {name}",
                "is not the file that the dataset was generated with",
                hint="put that file back",
            )


def _require_more_sentences(base: BaseRun, recipe: DatasetRecipe, inputs: dict[str, str]) -> None:
    """Raise InputError unless the recipe is a later version that may have more source sentences.

    A recipe has no more source sentences if the base already has all its rows. The same holds if
    the model generates the source sentences and the limit is not raised. ``inputs``: published path
    → SHA-256 of the local inputs of ``recipe``.
    """
    # the recipe asks for other rows than the base has
    manifest = base.manifest
    total = base.source_sentences
    if manifest.fingerprint == compute_fingerprint(
        recipe, inputs | run_dir.get_base_inputs(manifest)
    ):
        raise InputError(
            base.directory,
            "has all rows of this recipe: there is nothing to append",
            hint="raise source.limit, or append rows to the source; "
            f"it has {total:,} source sentences",
        )

    # it is a later version, with a higher limit if the model generates the source sentences
    if not is_later(recipe.version, manifest.version):
        raise InputError(
            f"{base.directory}: version",
            f"{recipe.version} is not later than {manifest.version}, to which rows are appended",
            hint="raise `version` in the recipe",
        )
    if recipe.source.is_generated and (recipe.source.limit or 0) <= total:
        raise InputError(
            f"{base.directory}: source.limit",
            f"{recipe.source.limit} is not above the {total:,} source sentences that are there",
            hint="raise it: it counts all source sentences, old and new",
        )


def add_new_rows(
    base: BaseRun, new_directory: Path, new: Manifest, recipe: DatasetRecipe
) -> Manifest:
    """Copy the files of the finished run in ``new_directory`` to the directory of ``base``.

    The manifest is written after them. Files with measurements of ``base`` are removed: they do not
    hold for the new version. Returns the merged manifest.

    Args:
        base: the finished run that rows are appended to.
        new_directory: the run directory of the new rows.
        new: the manifest in ``new_directory``.
        recipe: the recipe of the new version.

    Raises OSError when the disk fails.
    """
    merged = merge_manifests(base.manifest, new)
    for file in new.files:
        path = base.directory / rename_new_file(file.path, new.version)
        with write_atomically(path) as temporary:
            shutil.copyfile(new_directory / file.path, temporary)
    for name in MEASURED:
        (base.directory / name).unlink(missing_ok=True)
    run_dir.write_manifest(base.directory, merged)
    return run_dir.rewrite_recipe(base.directory, merged, recipe.version, format_recipe(recipe))


def rename_new_file(path: str, version: str) -> str:
    """Return the path that a file of the new rows gets in the dataset.

    Its name holds the version and sorts after the files of the first version, for example
    data/raw/train-v1.1.0-00000-of-00004.parquet.
    """
    folder, slash, name = path.rpartition("/")
    split, _, part = name.partition("-")
    return f"{folder}{slash}{split}-v{version}-{part}"


def merge_manifests(base: Manifest, new: Manifest) -> Manifest:
    """Return the manifest of the next version, with files, counts, contents and history of both.

    Recipe, inputs and the rest of the provenance are the new run's.

    Args:
        base: the manifest of the dataset.
        new: the manifest of the run of the new rows.
    """
    version = new.version
    new_files = [
        dataclasses.replace(file, path=rename_new_file(file.path, version)) for file in new.files
    ]

    # counts add up, except lists of files and the skipped rows of the source
    counts = _add_counts(base.counts, new.counts)
    empty_shards = list(base.counts.get("empty_shards", ()))
    empty_shards += [rename_new_file(path, version) for path in new.counts.get("empty_shards", ())]
    if empty_shards:
        counts["empty_shards"] = empty_shards
    # the new run has read the source from its beginning: its number, or none, holds for both
    counts.pop("sources_skipped", None)
    if "sources_skipped" in new.counts:
        counts["sources_skipped"] = new.counts["sources_skipped"]

    # a digest of the source's sentences for each version; that of the first has the plain name
    new_contents = {f"{name} of v{version}": digest for name, digest in new.contents.items()}

    # a base that nothing was appended to has no history yet
    history = base.provenance.get(HISTORY_KEY, [_make_history_entry(base)])
    return new.model_copy(
        update={
            "files": base.with_files(new_files).files,
            "counts": counts,
            "provenance": {**new.provenance, HISTORY_KEY: [*history, _make_history_entry(new)]},
            "contents": base.contents | new_contents,
        }
    )


def _add_counts(base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two trees of counts.

    Whole numbers that both have are added. Of other values that both have, the one of ``new`` is
    taken; a key of one tree keeps its value.
    """
    counts = {**base, **new}
    for key in base.keys() & new.keys():
        if isinstance(base[key], dict) and isinstance(new[key], dict):
            counts[key] = _add_counts(base[key], new[key])
        elif isinstance(base[key], int) and isinstance(new[key], int):
            counts[key] = base[key] + new[key]
    return counts


def _make_history_entry(manifest: Manifest) -> dict[str, Any]:
    """Return the history entry of a version: the counts and the origin of its own rows."""
    counts = manifest.counts
    return {
        "version": manifest.version,
        "source_sentences": counts["sources"],
        "requested": counts["requested"],
        "kept": counts["kept"],
        "rows": {config: sum(splits.values()) for config, splits in counts["splits"].items()},
        "command": manifest.provenance["command"],
        "fingerprint": manifest.fingerprint,
        "inputs": manifest.inputs,
        "versions": manifest.versions,
    }
