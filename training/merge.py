"""A trained adapter as a whole model: ``sts-dino merge RUN_DIR [--out DIR]``.

Reads a finished run directory with ``lora.release: adapter`` and writes ``NAME-merged`` beside it:
the same recipe with ``lora.release: merged``, the base's weights with the adapter added, and the
provenance of the training. A killed merge, repeated, ends in the same bytes.
"""

import logging
import shlex
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.hub.cli import make_app
from sts_dino.hub.contract.published_paths import hide_folders
from sts_dino.hub.contract.recipe import Lora, ModelRecipe
from sts_dino.hub.contract.recipe_file import begin_run, load_recipe
from sts_dino.hub.contract.run_dir import (
    ARTIFACTS,
    RECIPE,
    Manifest,
    find_changed_files,
    give_name,
    lock_run,
    require_complete,
)
from sts_dino.hub.errors import InputError
from sts_dino.training.encoder.bases import ADAPTER_WEIGHTS, Base, find_base

logger = logging.getLogger(__name__)

MERGED_SUFFIX = "-merged"
LIBRARIES = ("torch", "transformers", "sentence-transformers", "peft")

app = make_app("Merge a trained adapter into its base.")


@app.command()
def main(
    directory: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A finished run directory of an adapter")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Run directory [default: RUN_DIR-merged]")
    ] = None,
) -> None:
    """Add the adapter of RUN_DIR to the weights of its base, and write a run directory that can be
    published.

    The base is read as the recipe pins it, in the recipe's dtype, and is never rounded by a
    quantization.

    Example:

      sts-dino merge artifacts/models/prompteol-auto-nli-0shot
    """
    directory = give_name(directory)  # the merged run is named after it
    trained, adapter = read_adapter_run(directory)
    recipe = make_merged_recipe(trained)
    # The libraries of these modules take seconds to import.
    from sts_dino.training.loop.files import convert_disk_errors
    from sts_dino.training.loop.job import silence_libraries

    silence_libraries()
    out = (out or directory.with_name(directory.name + MERGED_SUFFIX)).resolve()

    # The merged run has the training's inputs and the adapter's weights.
    adapter_hash = next(file.sha256 for file in adapter.files if file.path == ADAPTER_WEIGHTS)
    inputs = {**adapter.inputs, f"adapter:{adapter.name}": adapter_hash}
    versions = {**adapter.versions, **{library: version(library) for library in LIBRARIES}}
    with lock_run(out):
        manifest = begin_run(out, recipe, inputs, versions)
        if manifest.complete:
            logger.info(f"{out}: already merged; nothing to do")
        else:
            with convert_disk_errors(out):
                manifest = merge_run(out, directory, recipe, manifest, adapter)
    print(f"{out}: {manifest.counts['parameters']:,} parameters, no adapter needed")


def read_adapter_run(directory: Path) -> tuple[ModelRecipe, Manifest]:
    """Return recipe and manifest of an adapter's finished run; check the hashes of its files.

    Raises InputError for a folder without a finished run, for a dataset, for a model without an
    adapter or with merged weights, and for a file that is missing or differs from the manifest.
    """
    manifest = require_complete(directory)
    if manifest.kind != "model":
        raise InputError(directory, "holds a dataset", allowed="the run directory of a model")
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    problem = None
    if recipe.lora is None:
        problem = "holds a model without an adapter"
    elif recipe.lora.release == "merged":
        problem = "holds whole weights already"
    if problem is not None:
        raise InputError(directory, problem, allowed="a run with lora.release: adapter")
    changed = find_changed_files(directory, manifest)
    if changed:
        raise InputError(
            directory,
            f"{changed[0]} is missing or is not the file that the manifest names",
            hint="run sts-dino train again",
        )
    return recipe, manifest


def make_merged_recipe(recipe: ModelRecipe) -> ModelRecipe:
    """Return a copy of an adapter's recipe with other names and ``lora.release: merged``.

    The suffix ``MERGED_SUFFIX`` makes the merged model's name.
    """
    assert recipe.lora is not None
    changes = {
        "name": recipe.name + MERGED_SUFFIX,
        "pretty_name": f"{recipe.pretty_name} (merged)",
        "lora": Lora.model_validate({**recipe.lora.model_dump(), "release": "merged"}),
    }
    return ModelRecipe.model_validate({**dict(recipe), **changes})


def find_same_base(recipe: ModelRecipe, adapter: Manifest) -> Base:
    """Find the base that the adapter was trained on; download it when it is on the Hub.

    ``recipe`` names the base, and ``adapter``, the manifest of the training, has its hash. Raises
    InputError when the base is absent or its files are not those of the training, RunError when the
    Hub cannot be read.
    """
    base = find_base(recipe.base)
    trained_on = adapter.provenance["base"]["sha256"]
    if base.sha256 != trained_on:
        where = f"base: {recipe.base.repo_id or recipe.base.path}"
        raise InputError(
            where,
            f"its files (SHA-256 {base.sha256[:12]}) "
            f"are not those of the training ({trained_on[:12]})",
            hint="restore the base that the run was trained on",
        )
    return base


def merge_run(
    out: Path, directory: Path, recipe: ModelRecipe, manifest: Manifest, adapter: Manifest
) -> Manifest:
    """Write the merged model into its run directory; write and return its complete manifest.

    The untrained encoder ``directory``.base, if it exists, is copied to ``out``.base.

    Args:
        out: the run directory of the merged model, locked.
        directory: the run directory of the adapter.
        recipe: the recipe of the merged model.
        manifest: the merged model's manifest, not complete yet.
        adapter: the adapter's manifest.

    Raises InputError when the base cannot be found or has changed since the training, RunError when
    the Hub cannot be read or the saved tokenizer gives other ids.
    """
    from sts_dino.training.encoder.encoder import merge_adapter, save_encoder
    from sts_dino.training.loop.files import complete_run

    # The merged model, in a folder of its own until it is complete.
    base = find_same_base(recipe, adapter)
    built = out.with_name(f"{out.name}.building")
    encoder = merge_adapter(recipe.base, base, directory)
    save_encoder(encoder, built)

    # The untrained encoder, which ``sts-dino score`` compares with.
    untrained = directory.with_name(f"{directory.name}.base")
    copied = out.with_name(f"{out.name}.base")
    if untrained.is_dir():
        shutil.rmtree(copied, ignore_errors=True)  # a killed merge leaves a part of the copy
        shutil.copytree(untrained, copied)

    # The adapter's provenance with this command. A path with private folders is replaced by the
    # default path of the run directory.
    path = directory.as_posix()
    if hide_folders(path) != path:
        path = f"{ARTIFACTS}/models/{adapter.name}"
    command = shlex.join(["sts-dino", "merge", path])
    provenance = {
        **adapter.provenance,
        "merged_from": {
            "name": adapter.name,
            "version": adapter.version,
            "fingerprint": adapter.fingerprint,
        },
        "command": f"{adapter.provenance['command']}\n{command}",
    }
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    counts = {**adapter.counts, "parameters": parameters}
    return complete_run(out, manifest, built, counts, provenance)
