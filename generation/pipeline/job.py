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
from sts_dino.generation.pipeline.reporting import Progress, make_provenance, report_cost
from sts_dino.generation.pipeline.source_sentences import (
    Scratch,
    SourceSentences,
    prepare_sentences,
)
from sts_dino.generation.pipeline.tasks import (
    Executor,
    ExecutorSpec,
    StartExecutor,
    WriteShard,
    list_shards,
)
from sts_dino.generation.pipeline.worker import (
    choose_text_length,
    get_pilot_path,
    start_local_executor,
)
from sts_dino.generation.rows.selection import find_selector, list_selector_files
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.published_paths import describe_clone, hide_folders, store_input_paths
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel
from sts_dino.hub.contract.recipe_file import begin_run
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.untrusted import require_safetensors

logger = logging.getLogger(__name__)

# the suffixes of the files that transformers reads from a model's folder
_MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")


def generate(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    start: StartExecutor = start_local_executor,
    base: BaseRun | None = None,
) -> Manifest:
    """Generate the dataset in ``directory``, or resume it; return its manifest.

    A finished run generates nothing. The caller holds the lock of the directory.

    Args:
        recipe: the dataset's recipe.
        directory: the run directory.
        command: the command line, for the manifest; a resumed run keeps that of its first start.
        start: starts the executor; every executor generates the same bytes.
        base: a finished run of the first source sentences, to which rows are appended: only the
            source sentences after those are used (``pipeline.append``). None: all are used.

    Raises InputError when the directory holds another run, or a damaged dataset that rows were
    appended to. Raises it, too, for an unusable model, source or few-shot example. Raises the
    errors of the executor and of ``finish``, and OSError when the disk fails.
    """
    # open the run directory
    recipe = resolve_model_dtype(recipe)
    inputs = hash_inputs(recipe)
    if base is not None:
        inputs |= base.inputs
    else:
        inputs |= run_dir.get_base_inputs(run_dir.read_manifest(directory))
    manifest = begin_run(directory, recipe, inputs, get_versions(recipe))
    store_input_paths(directory, recipe.collect_local_paths())
    scratch = Scratch(directory, compute_run_key(manifest.fingerprint, manifest.versions))
    if manifest.complete:
        scratch.clear()  # an earlier start may have been killed just before it did this
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

    # a run gets its provenance when its model is loaded; before, no scratch file can be its own
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
            # a fresh start with an unusable model or examples leaves no run directory
            if is_fresh:
                run_dir.remove_empty_run(directory)
            raise

        # prepare the source sentences, then generate and finish the rows
        run = DatasetRun(directory, recipe, manifest, scratch.journal, base)
        provenance = make_provenance(recipe, executor, prompts, inputs, command, code)
        run.update_manifest(provenance=provenance)
        sentences = prepare_sentences(run, scratch, executor, prompts)
        first_block = sentences.read_block(0) if sentences.total else []
        usage = getattr(executor.model, "usage", {})
        report_cost(prompts, first_block, sentences.total, usage)
        generate_missing_shards(run, executor, sentences)
        length = choose_text_length(recipe, executor.model.count_tokens)
        finish(run, sentences.blocks, sentences.total, length, executor)
    scratch.clear()
    get_pilot_path(directory).unlink(missing_ok=True)
    return run.manifest


def generate_missing_shards(
    run: DatasetRun, executor: Executor, sentences: SourceSentences
) -> None:
    """Generate every missing shard, and show the progress.

    Args:
        run: the run directory, to which shards and manifest are written.
        executor: generates the shards.
        sentences: the source sentences of all shards.

    Raises InputError for a damaged record of seconds (``Progress``), the errors of the executor,
    and OSError when the disk fails.
    """
    # find the missing shards
    shards = list_shards(run.recipe, sentences.blocks)
    missing = run.find_missing_shards(shards)
    run.set_counts(shards_done=len(shards) - len(missing), shards_total=len(shards))

    # count the texts of the whole run and those of earlier starts, for the progress bar
    texts_per_sentence = run.recipe.texts_per_source_sentence
    total = sentences.total * len(run.recipe.variants) * texts_per_sentence
    missing_sentences = sum(sentences.count_block(shard.block) for shard in missing)
    done_texts = total - missing_sentences * texts_per_sentence
    # workers in other processes report no unfinished texts
    measure_in_progress = getattr(executor, "measure_texts_in_progress", lambda: 0.0)

    # generate them
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

    A run uses no unfinished results that have another key.
    """
    identity = json.dumps([fingerprint, versions], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def hash_inputs(recipe: DatasetRecipe) -> dict[str, str]:
    """Return published path → SHA-256 of every local file that the run depends on.

    Inputs on the Hub are not among them: the recipe pins these. Three kinds of files have the
    folder's name in their published path: files of the model, of the encoder of ``selection``, and
    of another run that few-shot examples are drawn from. A missing source or file of examples is
    left out.

    Raises InputError for a missing or unusable model or encoder, for an unfinished run that
    examples would be drawn from, and for two different files with one published path.
    """
    hashes: dict[str, str] = {}
    _add_hashes(hashes, sources.list_source_files(recipe.source))
    if recipe.few_shot is not None:
        section = recipe.few_shot.examples
        run_folder = None
        if section.path and Path(section.path).is_dir():
            run_folder = str(Path(section.path))
        _add_hashes(hashes, examples.list_example_files(section), run_folder)
    _add_hashes(hashes, list_model_files(recipe.model), recipe.model.path)
    if recipe.selection is not None:
        selector = find_selector(recipe)
        if selector is not None:
            _add_hashes(hashes, list_selector_files(selector), str(selector))
    return hashes


def _add_hashes(hashes: dict[str, str], paths: list[Path], folder: str | None = None) -> None:
    """Add the SHA-256 of each existing file to ``hashes``, by its published path.

    ``folder``: a folder with all these files, whose name is kept in the path; None: the files have
    no such folder. Raises InputError when ``hashes`` has another file of the same published path.
    """
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
    """Return the local files of a model: its GGUF file, or those that transformers reads, sorted.

    The list is empty for a model without ``model.path``. Raises InputError in these cases:

    - The folder or the GGUF file is missing, or ``model.path`` names a GGUF file.
    - The folder holds GGUF files and no config.json, and ``model.gguf_file`` is not set.
    - The folder of a model of transformers has no safetensors, or a folder in it only a pickle.
    """
    if not model.path:
        return []

    # check the folder
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

    # list its GGUF file, or the files of a transformers model
    gguf_names = sorted(path.name for path in folder.glob("*.gguf"))
    if model.gguf_file:
        file = folder / model.gguf_file
        if not file.is_file():
            raise InputError(
                f"model.gguf_file {file}", "no such file", allowed=", ".join(gguf_names) or None
            )
        return [file]
    if model.is_local:
        if gguf_names and not (folder / "config.json").is_file():
            raise InputError(
                location, "holds GGUF files alone", hint=f"set model.gguf_file={gguf_names[0]}"
            )
        require_safetensors(folder, location, "transformers")
    return sorted(path for path in folder.iterdir() if path.suffix in _MODEL_SUFFIXES)
