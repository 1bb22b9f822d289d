"""The work of a dataset run: first texts, shards of pairs, finished configs, and what the manifest says of them."""

import hashlib
import json
from pathlib import Path

from generation.crew import Contract, Crew, Hire, one_process
from generation.dataset_run import DatasetRun
from generation.finish import finish
from generation.first_texts import prepare
from generation.progress import Progress
from generation.prompts import load_prompts
from generation.provenance import provenance
from generation.scratch import FirstTexts, Scratch
from generation.tasks import WriteShard
from generation.timing import Timing
from generation.versions import versions
from generation.worker import text_length
from hub import cli, run_dir
from hub.errors import InputError
from hub.places import remember
from hub.published_paths import published_path
from hub.recipe import DatasetRecipe, Examples, Source
from hub.recipe_file import fingerprint, resolved
from hub.run_dir import Manifest
from hub.shards import sha256_file

_MODEL_FILES = (".json", ".safetensors", ".txt", ".model", ".jinja")


def generate(recipe: DatasetRecipe, directory: Path, command: str, hire: Hire = one_process) -> Manifest:
    """Make or finish the run in ``directory``; a finished run is left as it is. Call it with the directory locked.

    ``hire`` gets the workers; who they are changes no byte.
    ``command`` is kept from the first start: a resumed run may be asked for in other words and ends in the same bytes.
    """
    inputs = input_hashes(recipe)
    manifest = Manifest(
        kind="dataset",
        name=recipe.name,
        version=recipe.version,
        fingerprint=fingerprint(recipe, inputs),
        inputs=inputs,
        versions=versions(),
    )
    manifest = run_dir.begin(directory, manifest, resolved(recipe))
    remember(directory, recipe)
    scratch = Scratch(directory, run_key(manifest))
    if manifest.complete:
        scratch.clear()  # a start that was killed right after its last word did not come to it
        cli.say(f"{directory}: already complete, nothing to do")
        return manifest
    if not manifest.provenance:  # a fresh start trusts nothing that an earlier run left
        scratch.clear()
    command = manifest.provenance.get("command", command)
    prompts = load_prompts(recipe)
    with hire(Contract(recipe, prompts, directory, scratch.notes.key)) as crew:
        run = DatasetRun(directory, recipe, manifest, scratch.journal)
        run.record([], provenance=provenance(recipe, crew, prompts, inputs, command))
        firsts = prepare(run, scratch, crew)
        write_shards(run, crew, firsts)
        finish(run, firsts.blocks, firsts.total, text_length(recipe, crew), crew)
    scratch.clear()
    return run.manifest


def write_shards(run: DatasetRun, crew: Crew, firsts: FirstTexts) -> None:
    """Write every shard that is missing, in the order of work."""
    shards = run.shards(firsts.blocks)
    missing, timing = run.missing(shards), Timing(run.directory)
    run.count(shards_done=len(shards) - len(missing), shards_total=len(shards))
    wanted = len(run.recipe.labels) * run.recipe.decoding.samples
    total = firsts.total * len(run.recipe.variants) * wanted
    left = wanted * sum(firsts.size(shard.block) for shard in missing)
    tasks = (WriteShard(shard, tuple(firsts.block(shard.block))) for shard in missing)
    with Progress(run.recipe.name, total, total - left) as progress:
        for made in crew.work(tasks, progress.tick):
            run.add_shard(made, firsts.blocks)
            timing.add(made.seconds, made.rows)
            progress.shard(made, firsts.size(made.task.shard.block) * wanted)  # type: ignore[union-attr]
    timing.save()
    if missing:
        run.show_progress(firsts.blocks)


def run_key(manifest: Manifest) -> str:
    """Which run and which code a scratch folder belongs to."""
    return hashlib.sha256(json.dumps([manifest.fingerprint, manifest.versions], sort_keys=True).encode()).hexdigest()


def input_files(recipe: DatasetRecipe) -> dict[Path, str]:
    """SHA-256 of every local file the run depends on (Hub inputs are pinned by revision). Raises InputError."""
    examples = recipe.few_shot.examples if recipe.few_shot else None
    sections: list[Source | Examples] = [recipe.source, *([examples] if examples else [])]
    paths = [Path(section.path) for section in sections if section.kind == "file" and section.path]
    if recipe.model.path:
        folder = Path(recipe.model.path)
        if not folder.is_dir():
            raise InputError(f"model.path {folder}", "no such folder", hint="give the folder of a transformers model")
        paths += sorted(path for path in folder.iterdir() if path.suffix in _MODEL_FILES)
    return {path: sha256_file(path) for path in paths if path.is_file()}


def input_hashes(recipe: DatasetRecipe) -> dict[str, str]:
    """SHA-256 of every local file the run depends on, by what is published of its path. Raises InputError."""
    hashes: dict[str, str] = {}
    for path, digest in input_files(recipe).items():
        name = _published_input(path, recipe)
        if hashes.setdefault(name, digest) != digest:
            hint = "rename one: of paths that lead out of this folder, names alone are published"
            raise InputError(path, f"has the name of another input, {name}", hint=hint)
    return hashes


def _published_input(path: Path, recipe: DatasetRecipe) -> str:
    """A file of the model keeps its folder's name."""
    folder = recipe.model.path
    if folder and path.parent == Path(folder):
        return f"{published_path(folder)}/{path.name}"
    return published_path(str(path))
