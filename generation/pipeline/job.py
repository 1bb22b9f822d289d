"""A dataset run from start to end: source sentences, shards of pairs, finished configs, and the manifest's entries."""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path

from generation.backends.registry import with_dtype
from generation.inputs import examples, sources
from generation.inputs.prompts import load_prompts
from generation.pipeline.code_digest import ROOT, versions
from generation.pipeline.directory import BaseRun, DatasetRun
from generation.pipeline.finish import finish
from generation.pipeline.reporting import Progress, provenance
from generation.pipeline.source_sentences import Scratch, SourceSentences, prepare
from generation.pipeline.tasks import Executor, ExecutorSpec, StartExecutor, WriteShard
from generation.pipeline.worker import local_executor, text_length
from hub import cli
from hub.contract import run_dir
from hub.contract.published_paths import clone_of, published_path, remember
from hub.contract.recipe import DatasetRecipe, LanguageModel
from hub.contract.recipe_file import begin_run
from hub.contract.run_dir import Manifest
from hub.durable import sha256_file
from hub.errors import InputError
from hub.untrusted import require_safetensors

_READ = (".json", ".safetensors", ".txt", ".model", ".jinja")  # what transformers reads of a folder


def generate(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    start: StartExecutor = local_executor,
    base: BaseRun | None = None,
) -> Manifest:
    """Generate the dataset in ``directory``, or finish it; a finished run stays as it is. Lock the directory first.

    ``start`` starts the executor, which changes no byte. ``command`` and the clone's commit are those of the first
    start. ``base``: a finished run of the first of these source sentences; only those after them are used
    (``pipeline.append``).

    Raises InputError when the directory holds another run, or one that rows were appended to and that is damaged.
    """
    recipe = with_dtype(recipe)
    inputs = input_hashes(recipe) | (base.inputs if base else run_dir.base_inputs(run_dir.read_manifest(directory)))
    manifest = begin_run(directory, recipe, inputs, versions(recipe))
    remember(directory, recipe.local_paths())
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
    with ExitStack() as stack:
        try:
            prompts = load_prompts(recipe)
            executor = stack.enter_context(start(ExecutorSpec(recipe, prompts, directory, scratch.notes.key)))
        except InputError:
            if not manifest.provenance:  # a fresh start leaves nothing of a model or of examples that cannot serve
                run_dir.withdraw(directory)
            raise
        run = DatasetRun(directory, recipe, manifest, scratch.journal, base)
        run.record([], provenance=provenance(recipe, executor, prompts, inputs, command, code))
        firsts = prepare(run, scratch, executor, prompts)
        write_shards(run, executor, firsts)
        finish(run, firsts.blocks, firsts.total, text_length(recipe, executor.model.count_tokens), executor)
    scratch.clear()
    return run.manifest


def write_shards(run: DatasetRun, executor: Executor, firsts: SourceSentences) -> None:
    """Write every shard that is missing, in the order of work."""
    shards = run.shards(firsts.blocks)
    missing = run.missing(shards)
    run.count(shards_done=len(shards) - len(missing), shards_total=len(shards))
    wanted = run.recipe.texts_per_source_sentence
    total = firsts.total * len(run.recipe.variants) * wanted
    left = wanted * sum(firsts.size(shard.block) for shard in missing)
    tasks = (WriteShard(shard, tuple(firsts.block(shard.block))) for shard in missing)
    in_progress = getattr(executor, "in_progress", lambda: 0.0)  # texts of other processes come with their shard
    with Progress(run.recipe.name, total, total - left, run.directory, in_progress) as progress:
        for result in executor.run_tasks(tasks, progress.tick):
            run.add_shard(result, firsts.blocks)
            progress.shard(result)
    if missing:
        run.show_progress(firsts.blocks)


def run_key(manifest: Manifest) -> str:
    """Which run and which code a scratch folder belongs to."""
    return hashlib.sha256(json.dumps([manifest.fingerprint, manifest.versions], sort_keys=True).encode()).hexdigest()


def input_hashes(recipe: DatasetRecipe) -> dict[str, str]:
    """SHA-256 of every local file the run depends on (Hub inputs are pinned), by its published path.

    A file of the model, or of a run with examples, keeps its folder's name. Raises InputError for a missing model and
    for two files of one published path.
    """
    shown = recipe.few_shot.examples if recipe.few_shot else None
    own = str(Path(shown.path)) if shown and shown.path and Path(shown.path).is_dir() else None
    hashes: dict[str, str] = {}
    for folder, paths in (
        (None, sources.local_files(recipe.source)),
        (own, examples.local_files(shown) if shown else []),
        (recipe.model.path, model_files(recipe.model)),
    ):
        for path in filter(Path.is_file, paths):
            inside = f"/{path.relative_to(folder).as_posix()}" if folder else ""
            name, digest = published_path(folder or str(path)) + inside, sha256_file(path)
            if hashes.setdefault(name, digest) != digest:
                hint = "rename one: of paths that lead out of this folder, names alone are published"
                raise InputError(path, f"has the name of another input, {name}", hint=hint)
    return hashes


def model_files(model: LanguageModel) -> list[Path]:
    """The local files that are the model: of a folder what transformers reads, or its ``gguf_file`` alone.

    Raises InputError when they are not there, named in another way, or hold their weights as a pickle.
    """
    if not model.path:
        return []
    folder = Path(model.path)
    if folder.suffix == ".gguf" and folder.is_file():
        hint = f"set model.path={folder.parent} and model.gguf_file={folder.name}"
        raise InputError(f"model.path {folder}", "is a GGUF file, not a folder", hint=hint)
    if not folder.is_dir():
        raise InputError(f"model.path {folder}", "no such folder", hint="give the folder of a transformers model")
    if model.gguf_file:
        file = folder / model.gguf_file
        if not file.is_file():
            raise InputError(f"model.gguf_file {file}", "no such file", allowed=", ".join(_ggufs(folder)) or None)
        return [file]
    files = sorted(path for path in folder.iterdir() if path.suffix in _READ)
    if model.facts.local and not (folder / "config.json").is_file() and (held := _ggufs(folder)):
        raise InputError(f"model.path {folder}", "holds GGUF files alone", hint=f"set model.gguf_file={held[0]}")
    if model.facts.local:
        require_safetensors(folder, f"model.path {folder}", "transformers")
    return files


def _ggufs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.gguf"))
