"""A trained adapter as a whole model: ``sts-dino merge RUN_DIR [--out DIR]``.

Reads a finished run directory with ``lora.release: adapter`` and writes ``NAME-merged`` beside it: the same recipe with
``lora.release: merged``, the base's weights with the adapter added, the provenance of the training. A killed merge
resumes and ends in the same bytes.
"""

import shlex
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from hub.cli import new_app, say
from hub.contract.published_paths import published_path
from hub.contract.recipe import Lora, ModelRecipe
from hub.contract.recipe_file import begin_run, load_recipe
from hub.contract.run_dir import ARTIFACTS, RECIPE, Manifest, changed_files, locked, require_complete
from hub.errors import InputError
from training.encoder.bases import ADAPTER_WEIGHTS, Base, find_base

SUFFIX = "-merged"
LIBRARIES = ("torch", "transformers", "sentence-transformers", "peft")

app = new_app("Merge a trained adapter into its base.")


def merged_recipe(recipe: ModelRecipe) -> ModelRecipe:
    """The recipe of the merged model: another name and another form of release, else the same."""
    assert recipe.lora is not None
    lora = Lora.model_validate({**recipe.lora.model_dump(), "release": "merged"})
    changes = {"name": recipe.name + SUFFIX, "pretty_name": f"{recipe.pretty_name} (merged)", "lora": lora}
    return ModelRecipe.model_validate({**dict(recipe), **changes})


def read_run(directory: Path) -> tuple[ModelRecipe, Manifest]:
    """Recipe and manifest of a finished adapter run. Raises InputError when the directory holds something else."""
    manifest = require_complete(directory)
    if manifest.kind != "model":
        raise InputError(directory, "holds a dataset", allowed="the run directory of a model")
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    if recipe.lora is None or recipe.lora.release == "merged":
        problem = "holds whole weights already" if recipe.lora else "holds a model without an adapter"
        raise InputError(directory, problem, allowed="a run with lora.release: adapter")
    if changed := changed_files(directory, manifest):
        problem = f"{changed[0]} is missing or is not the file that the manifest names"
        raise InputError(directory, problem, hint="run sts-dino train again")
    return recipe, manifest


def find_same_base(recipe: ModelRecipe, manifest: Manifest) -> Base:
    """The base that the adapter was trained on. Raises InputError when what its name stands for has changed."""
    base = find_base(recipe.base)
    trained_on = manifest.provenance["base"]["sha256"]
    if base.sha256 != trained_on:
        place = f"base: {recipe.base.repo_id or recipe.base.path}"
        problem = f"its files (SHA-256 {base.sha256[:12]}) are not those of the training ({trained_on[:12]})"
        raise InputError(place, problem, hint="restore the base that the run was trained on")
    return base


def merge_into(out: Path, directory: Path, recipe: ModelRecipe, manifest: Manifest, adapter: Manifest) -> Manifest:
    """Write the untrained encoder that ``sts-dino score`` compares with, the merged model, and the manifest."""
    from training.encoder.encoder import merged_encoder, save_encoder
    from training.loop.finish import complete

    base = find_same_base(recipe, adapter)
    built = out.with_name(f"{out.name}.building")
    encoder = merged_encoder(recipe.base, base, directory)
    save_encoder(encoder, built)
    untrained, copied = directory.with_name(f"{directory.name}.base"), out.with_name(f"{out.name}.base")
    if untrained.is_dir():
        shutil.rmtree(copied, ignore_errors=True)  # of a killed merge
        shutil.copytree(untrained, copied)
    path = directory.as_posix()
    path = path if published_path(path) == path else f"{ARTIFACTS}/models/{adapter.name}"
    commands = f"{adapter.provenance['command']}\n{shlex.join(['sts-dino', 'merge', path])}"
    merged_from = {"name": adapter.name, "version": adapter.version, "fingerprint": adapter.fingerprint}
    counts = {**adapter.counts, "parameters": sum(parameter.numel() for parameter in encoder.parameters())}
    provenance = {**adapter.provenance, "merged_from": merged_from, "command": commands}
    return complete(out, manifest, built, counts, provenance)


@app.command()
def main(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run directory of an adapter")],
    out: Annotated[Path | None, typer.Option(help="Run directory [default: RUN_DIR-merged]")] = None,
) -> None:
    """Add the adapter of RUN_DIR to the weights of its base, and write a run directory that can be published.

    The base is read as the recipe pins it, in the recipe's dtype, and is never rounded by a quantization.

    Example:

      sts-dino merge artifacts/models/prompteol-auto-nli-0shot
    """
    trained, adapter = read_run(directory)
    recipe = merged_recipe(trained)
    from training.loop.finish import disk_errors  # its libraries take seconds
    from training.loop.job import quiet_libraries

    quiet_libraries()
    out = (out or directory.with_name(directory.name + SUFFIX)).resolve()
    weights = next(file.sha256 for file in adapter.files if file.path == ADAPTER_WEIGHTS)
    inputs = {**adapter.inputs, f"adapter:{adapter.name}": weights}
    versions = {**adapter.versions, **{library: version(library) for library in LIBRARIES}}
    with locked(out):
        manifest = begin_run(out, recipe, inputs, versions)
        if manifest.complete:
            say(f"{out}: already merged; nothing to do")
        else:
            with disk_errors(out):
                manifest = merge_into(out, directory, recipe, manifest, adapter)
    print(f"{out}: {manifest.counts['parameters']:,} parameters, no adapter needed")
