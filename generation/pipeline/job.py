"""A dataset run from start to end: source sentences, shards, finished configs, manifest."""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from sts_dino.generation.backends.registry import resolve_model_dtype
from sts_dino.generation.inputs import examples, sources
from sts_dino.generation.inputs.prompts import load_prompts
from sts_dino.generation.pipeline.code_digest import CODE_ROOT, get_versions
from sts_dino.generation.pipeline.directory import BaseRun, DatasetRun
from sts_dino.generation.pipeline.finish import finish
from sts_dino.generation.pipeline.pilot_texts import get_pilot_path
from sts_dino.generation.pipeline.reporting import Progress, make_provenance
from sts_dino.generation.pipeline.server_cost import report_cost
from sts_dino.generation.pipeline.source_sentences import (
    Scratch,
    SourceSentences,
    prepare_sentences,
)
from sts_dino.generation.pipeline.tasks import Executor, ExecutorSpec, StartExecutor, WriteShard
from sts_dino.generation.pipeline.worker import choose_text_length, start_local_executor
from sts_dino.generation.rows.selection import find_selector, list_selector_files
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.published_paths import describe_clone, hide_folders, store_input_places
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.recipe_file import begin_run
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import require_safetensors

logger = logging.getLogger(__name__)

# the suffixes of the files that transformers reads of a folder
_MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")


def generate(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    start: StartExecutor = start_local_executor,
    base: BaseRun | None = None,
) -> Manifest:
    """Generate the dataset in ``directory``, or finish it; a finished run stays as it is.

    Lock the directory first. Raises InputError when it holds another run, or one that rows were
    appended to and that is damaged.

    Args:
        recipe: the dataset's recipe.
        directory: the run directory.
        command: the command line, for the manifest; a resumed run keeps that of its first start.
        start: starts the executor, which changes no byte.
        base: a finished run of the first of these source sentences; only those after them are used
            (``pipeline.append``).
    """
    # open the run directory
    recipe = resolve_model_dtype(recipe)
    inputs = hash_inputs(recipe)
    if base is not None:
        inputs |= base.inputs
    else:
        inputs |= run_dir.get_base_inputs(run_dir.read_manifest(directory))
    manifest = begin_run(directory, recipe, inputs, get_versions(recipe))
    store_input_places(directory, recipe.collect_local_paths())
    scratch = Scratch(directory, compute_run_key(manifest.fingerprint, manifest.versions))
    if manifest.complete:
        scratch.clear()  # a start that was killed at its very end did not come to it
        logger.info(f"{directory}: already complete, nothing to do")
        return manifest
    if base is None and run_dir.get_base_inputs(manifest):
        raise InputError(
            directory,
            "files of a dataset that rows were appended to are missing or damaged: "
            "one run cannot make them again",
            hint="remove the directory and take it from the Hub again: "
            "sts-dino release RECIPE --append --yes",
        )

    # a fresh start trusts nothing that an earlier run left
    is_fresh = not manifest.provenance
    if is_fresh:
        scratch.clear()
        code = describe_clone(CODE_ROOT)
    else:
        command = manifest.provenance.get("command", command)
        code = manifest.provenance.get("code", {})

    with ExitStack() as stack:
        # start the executor
        try:
            prompts = load_prompts(recipe)
            spec = ExecutorSpec(recipe, prompts, directory, scratch.notes.key)
            executor = stack.enter_context(start(spec))
        except InputError:
            # a fresh start leaves nothing of a model or of examples that cannot serve
            if is_fresh:
                run_dir.remove_empty_run(directory)
            raise

        # generate and finish the rows
        run = DatasetRun(directory, recipe, manifest, scratch.journal, base)
        provenance = make_provenance(recipe, executor, prompts, inputs, command, code)
        run.update_manifest(provenance=provenance)
        sentences = prepare_sentences(run, scratch, executor, prompts)
        first_block = sentences.read_block(0) if sentences.total else []
        usage = getattr(executor.model, "usage", {})
        report_cost(prompts, first_block, sentences.total, usage)
        write_missing_shards(run, executor, sentences)
        length = choose_text_length(recipe, executor.model.count_tokens)
        finish(run, sentences.blocks, sentences.total, length, executor)
    scratch.clear()
    get_pilot_path(directory).unlink(missing_ok=True)
    return run.manifest


def write_missing_shards(run: DatasetRun, executor: Executor, sentences: SourceSentences) -> None:
    """Generate every missing shard in the order of work, and show the progress.

    Args:
        run: the run directory, to which shards and manifest are written.
        executor: generates the shards.
        sentences: the source sentences of all shards.
    """
    shards = run.list_shards(sentences.blocks)
    missing = run.find_missing_shards(shards)
    run.set_counts(shards_done=len(shards) - len(missing), shards_total=len(shards))

    # the texts of the whole run and those that are missing, for the progress bar
    texts_per_sentence = run.recipe.texts_per_source_sentence
    total = sentences.total * len(run.recipe.variants) * texts_per_sentence
    missing_sentences = sum(sentences.count_block(shard.block) for shard in missing)
    done_texts = total - missing_sentences * texts_per_sentence
    # texts of other processes come with their shard
    measure_in_progress = getattr(executor, "in_progress", lambda: 0.0)

    shard_tasks = (WriteShard(shard, tuple(sentences.read_block(shard.block))) for shard in missing)
    with Progress(
        run.recipe.name, total, done_texts, run.directory, measure_in_progress
    ) as progress:
        for result in executor.run_tasks(shard_tasks, progress.count_texts):
            run.add_shard(result, sentences.blocks)
            progress.add_shard(result)
    if missing:
        run.write_progress(sentences.blocks)


def compute_run_key(fingerprint: str, versions: Mapping[str, str]) -> str:
    """Return the SHA-256 of a run's fingerprint and of the versions of libraries and code.

    Unfinished results belong to the run with this key alone.
    """
    identity = json.dumps([fingerprint, versions], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def hash_inputs(recipe: DatasetRecipe) -> dict[str, str]:
    """Return the SHA-256 of every local file the run depends on, by its published path.

    Inputs on the Hub are pinned. A file of the model, or of a run with examples, keeps its folder's
    name. Raises InputError for a missing model and for two files of one published path.
    """
    hashes: dict[str, str] = {}
    _add_hashes(hashes, sources.list_source_files(recipe.source))
    if recipe.few_shot is not None:
        origin = recipe.few_shot.examples
        folder = None
        if origin.path and Path(origin.path).is_dir():
            folder = str(Path(origin.path))
        _add_hashes(hashes, examples.list_example_files(origin), folder)
    _add_hashes(hashes, list_model_files(recipe.model), recipe.model.path)
    if recipe.selection is not None:
        selector = find_selector(recipe)
        if selector is not None:
            _add_hashes(hashes, list_selector_files(selector), str(selector))
    return hashes


def _add_hashes(hashes: dict[str, str], paths: list[Path], folder: str | None = None) -> None:
    """Add the hash of each file; those in ``folder`` are named by its published path."""
    for path in paths:
        if not path.is_file():
            continue
        if folder is None:
            name = hide_folders(str(path))
        else:
            name = f"{hide_folders(folder)}/{path.relative_to(folder).as_posix()}"
        digest = hash_file(path)
        if hashes.setdefault(name, digest) != digest:
            raise InputError(
                path,
                f"has the name of another input, {name}",
                hint="rename one: of paths that lead out of this folder, names alone are published",
            )


def list_model_files(model: LanguageModel) -> list[Path]:
    """Return the local files of a model: those that transformers reads, or its GGUF file alone.

    A model of the Hub or of a server has none. Raises InputError when the folder or GGUF file is
    missing, when ``model.path`` names a GGUF file, or when weights are a pickle.
    """
    if not model.path:
        return []

    # the folder
    folder = Path(model.path)
    location = f"model.path {folder}"
    if folder.suffix == ".gguf" and folder.is_file():
        raise InputError(
            location,
            "is a GGUF file, not a folder",
            hint=f"set model.path={folder.parent} and model.gguf_file={folder.name}",
        )
    if not folder.is_dir():
        raise InputError(location, "no such folder", hint="give the folder of a transformers model")

    # its GGUF file, or the files of a transformers model
    gguf_names = sorted(path.name for path in folder.glob("*.gguf"))
    if model.gguf_file:
        file = folder / model.gguf_file
        if not file.is_file():
            allowed = ", ".join(gguf_names) or None
            raise InputError(f"model.gguf_file {file}", "no such file", allowed=allowed)
        return [file]
    if model.facts.local:
        if gguf_names and not (folder / "config.json").is_file():
            hint = f"set model.gguf_file={gguf_names[0]}"
            raise InputError(location, "holds GGUF files alone", hint=hint)
        require_safetensors(folder, location, "transformers")
    return sorted(path for path in folder.iterdir() if path.suffix in _MODEL_SUFFIXES)
