"""A dataset run from start to end: first texts, shards of pairs, finished configs, and the manifest's entries."""

import hashlib
import json
from pathlib import Path

from generation.backends.registry import with_dtype
from generation.inputs import examples, sources
from generation.inputs.prompts import load_prompts
from generation.pipeline.executor import Executor, ExecutorSpec, StartExecutor, local_executor
from generation.pipeline.finish import finish
from generation.pipeline.first_texts import prepare
from generation.pipeline.model_files import model_files
from generation.pipeline.progress import Progress
from generation.pipeline.provenance import provenance
from generation.pipeline.worker import text_length
from generation.run_state.base_run import BaseRun
from generation.run_state.code_digest import ROOT, versions
from generation.run_state.directory import DatasetRun
from generation.run_state.scratch import FirstTexts, Scratch
from generation.run_state.tasks import WriteShard
from hub import cli
from hub.contract import run_dir
from hub.contract.published_paths import clone_of, published_path, remember
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import new_manifest, resolved
from hub.contract.run_dir import Manifest
from hub.durable import sha256_file
from hub.errors import InputError


def generate(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    start: StartExecutor = local_executor,
    base: BaseRun | None = None,
) -> Manifest:
    """Make or finish the run in ``directory``; a finished run is left as it is. Call it with the directory locked.

    ``start`` starts the workers; who they are changes no byte.
    ``command`` and the clone's commit are kept from the first start: a resumed run may be asked for in other words and
    from another commit of the same code, and ends in the same bytes.
    ``base``: a run of the first of these first texts; those after them alone are worked on (``pipeline.append``).

    Raises InputError when the directory holds another run, or one that rows were appended to and that is damaged.
    """
    recipe = with_dtype(recipe)
    inputs = input_hashes(recipe) | (base.inputs if base else run_dir.base_inputs(run_dir.read_manifest(directory)))
    manifest = run_dir.begin(directory, new_manifest(recipe, inputs, versions(recipe)), resolved(recipe))
    remember(directory, recipe)
    scratch = Scratch(directory, run_key(manifest))
    if manifest.complete:
        scratch.clear()  # a start that was killed right after its last word did not come to it
        cli.say(f"{directory}: already complete, nothing to do")
        return manifest
    if base is None and run_dir.base_inputs(manifest):
        problem = "files of a dataset that rows were appended to are missing or damaged: one run cannot make them again"
        hint = "remove the directory and take it from the Hub again: sts-dino release RECIPE --append --yes"
        raise InputError(directory, problem, hint=hint)
    if not manifest.provenance:  # a fresh start trusts nothing that an earlier run left
        scratch.clear()
    command = manifest.provenance.get("command", command)
    code = manifest.provenance.get("code", {}) if manifest.provenance else clone_of(ROOT)
    prompts = load_prompts(recipe)
    with start(ExecutorSpec(recipe, prompts, directory, scratch.notes.key)) as executor:
        run = DatasetRun(directory, recipe, manifest, scratch.journal, base)
        run.record([], provenance=provenance(recipe, executor, prompts, inputs, command, code))
        firsts = prepare(run, scratch, executor, prompts)
        write_shards(run, executor, firsts)
        finish(run, firsts.blocks, firsts.total, text_length(recipe, executor.count_tokens), executor)
    scratch.clear()
    return run.manifest


def write_shards(run: DatasetRun, executor: Executor, firsts: FirstTexts) -> None:
    """Write every shard that is missing, in the order of work."""
    shards = run.shards(firsts.blocks)
    missing = run.missing(shards)
    run.count(shards_done=len(shards) - len(missing), shards_total=len(shards))
    wanted = run.recipe.texts_per_first_text
    total = firsts.total * len(run.recipe.variants) * wanted
    left = wanted * sum(firsts.size(shard.block) for shard in missing)
    tasks = (WriteShard(shard, tuple(firsts.block(shard.block))) for shard in missing)
    with Progress(run.recipe.name, total, total - left, run.directory) as progress:
        for result in executor.run_tasks(tasks, progress.tick):
            run.add_shard(result, firsts.blocks)
            progress.shard(result, firsts.size(result.task.shard.block) * wanted)  # type: ignore[union-attr]
    if missing:
        run.show_progress(firsts.blocks)


def run_key(manifest: Manifest) -> str:
    """Which run and which code a scratch folder belongs to."""
    return hashlib.sha256(json.dumps([manifest.fingerprint, manifest.versions], sort_keys=True).encode()).hexdigest()


def input_files(recipe: DatasetRecipe) -> dict[Path, str]:
    """SHA-256 of every local file the run depends on (Hub inputs are pinned by revision). Raises InputError."""
    paths = sources.local_files(recipe.source)
    paths += examples.local_files(recipe.few_shot.examples) if recipe.few_shot else []
    paths += model_files(recipe.model)
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
    """The published name of an input: a file of the model, or of a run with examples, keeps its folder's name."""
    own = Path(recipe.few_shot.examples.path or "") if recipe.few_shot else None
    if own and own.is_dir() and path.is_relative_to(own):
        return f"{published_path(str(own))}/{path.relative_to(own).as_posix()}"
    folder = recipe.model.path
    if folder and path in model_files(recipe.model):
        return f"{published_path(folder)}/{path.relative_to(folder).as_posix()}"
    return published_path(str(path))
