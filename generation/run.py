"""Generate a dataset from its recipe: sts-dino write recipes/demo/sts-dino-x2.yaml

Rows are streamed to parquet shards in artifacts/datasets/<name>, which is the Hub repository. A
killed run resumes at the first missing shard when the same command is given again, and ends in the
same bytes.
"""

import logging
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from shlex import quote
from typing import Annotated

import typer

from sts_dino.generation.executors.cluster import ClusterOptions, check_options
from sts_dino.generation.inputs.sources import describe_skipped, require_file
from sts_dino.generation.pipeline.append import (
    append_rows,
    get_new_rows_directory,
    require_appendable,
)
from sts_dino.generation.pipeline.job import compute_run_key, generate, list_model_files
from sts_dino.generation.pipeline.worker import start_local_executor
from sts_dino.generation.plan import describe_plan, estimate_run
from sts_dino.hub import cli
from sts_dino.hub.assets import HINT_ANOTHER_LANGUAGE_MODEL, find_asset
from sts_dino.hub.contract import licences, run_dir
from sts_dino.hub.contract.packaged import GENERATORS
from sts_dino.hub.contract.pair_quality import report_pair_quality
from sts_dino.hub.contract.published_paths import format_command, require_inputs
from sts_dino.hub.contract.recipe import DatasetRecipe, LanguageModel, get_config_columns
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.contract.schema import PROVENANCE, get_base_config
from sts_dino.hub.contract.shards import read_shard
from sts_dino.hub.errors import InputError
from sts_dino.hub.scores import align_columns
from sts_dino.hub.untrusted import join_lines

logger = logging.getLogger(__name__)

# the end of a question; Japanese questions often have no question mark
_QUESTION_END = re.compile(r"(?:[?？؟]|か。|(?:です|でした|でしょう|ます|ました|ません)か)$")
SHOWN_ROWS = 10  # of each label, and the fewest questions for a warning about them
SHOWN_CHARACTERS = 70  # of a text
MOST_DRAWN_SHARDS = 8  # from which the shown rows are drawn
# with a smaller share of questions among the texts for questions, a warning is shown
LEAST_QUESTION_SHARE = 0.75
WEIGHT_SUFFIXES = (".gguf", ".safetensors")
app = cli.make_app(__doc__)
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Predict rows/s, hours and keep rates from pilots of at most 84 source sentences "
        "in about 30 seconds; the run reuses their texts",
    ),
]
AppendOption = Annotated[
    bool,
    typer.Option(
        "--append", help="Append the rows of a longer source to the finished run, as a new version"
    ),
]


@app.command()
@cli.unpack_option_groups
def main(
    recipe_path: cli.RecipeArgument,
    options: ClusterOptions,
    out: cli.OutOption = None,
    limit: cli.LimitOption = None,
    settings: cli.SetOption = [],  # noqa: B006 - typer reads it
    dry_run: cli.DryRunOption = False,
    pilot: EstimateOption = False,
    append: AppendOption = False,
    as_json: cli.JsonOption = False,
) -> None:
    """Generate the pairs of a dataset recipe into a run directory: raw, rejected and finished rows,
    with a manifest.

    Examples:

      sts-dino write recipes/demo/sts-dino-x2.yaml --dry-run

      sts-dino write recipes/demo/sts-dino-x2.yaml --estimate

      sts-dino write recipes/demo/sts-dino-x2.yaml --workers 2

      sts-dino write recipes/demo/sts-dino-x2.yaml --append --limit 500 --set version=0.2.0

      sts-dino write recipes/demo/sts-dino-x2.yaml --limit 20 --out /tmp/x2
    """
    # Check the recipe and the options.
    recipe, directory = load_checked_recipe(recipe_path, out, limit, settings, options)
    if pilot and (dry_run or append):
        option = "--dry-run" if dry_run else "--append"
        raise InputError(
            f"{option} --estimate",
            "do not go together",
            hint="give one; --append goes with --dry-run",
        )

    # Predict the run, if asked to.
    if pilot:
        estimate = estimate_run(recipe, directory)
        for line in estimate.read:
            logger.info(line)
        cli.print_answer(str(estimate), asdict(estimate), as_json)
        return
    if dry_run:
        base = require_appendable(recipe, directory) if append else None
        plan = describe_plan(recipe, directory, base)
        cli.print_answer(plan, {"directory": str(directory), "plan": plan.splitlines()}, as_json)
        return

    # Generate the dataset, and name the next commands.
    report_pair_quality(recipe)
    command = format_command("write", recipe_path, limit, settings)
    if append:
        command += " --append"
    manifest = write_dataset(recipe, directory, command, options, append)
    next_commands = [f"sts-dino card {quote(str(directory))}"]
    encoder_recipe = recipe_path.with_suffix(".encoder.yaml")
    if out is None and encoder_recipe.is_file():
        next_commands.append(f"sts-dino train {quote(str(encoder_recipe))}")
    facts = {"directory": str(directory), **manifest.counts}
    cli.print_answer(describe_run(directory, manifest, recipe), facts, as_json, next_commands)


def load_checked_recipe(
    path: Path, out: Path | None, limit: int | None, settings: list[str], options: ClusterOptions
) -> tuple[DatasetRecipe, Path]:
    """Return the recipe and its run directory after all checks that do not load a model.

    A log message names the language model.

    Args:
        path: The recipe file.
        out: The run directory; None chooses the default.
        limit: Number of source sentences; None keeps the recipe's number.
        settings: Overrides of recipe keys, ``KEY.KEY=VALUE``.
        options: Ray options of the run.

    Raises InputError for an invalid recipe or option, an unknown licence, licences that do not
    allow to publish the dataset, a missing input or model file, and the built-in model with another
    language than English.
    """
    # load the recipe, and check its licences
    if limit:
        settings = [*settings, f"source.limit={limit}"]
    recipe = load_recipe(path, DatasetRecipe, settings)
    verdict = licences.check_dataset(recipe)
    generator = next(part for part in verdict.parts if part.role == licences.GENERATOR)
    terms = licences.describe_output_terms(generator.what, generator.licence)
    if recipe.model.server and terms is not None:
        logger.warning(terms)

    # check the inputs, the options and the model's files
    require_inputs(path, recipe.collect_local_paths())
    check_options(options, recipe)
    if recipe.language != "en" and is_built_in(recipe.model):
        raise InputError(
            f"{path}: language",
            f"is {recipe.language!r}; the built-in model writes English sentences alone",
            hint=HINT_ANOTHER_LANGUAGE_MODEL,
        )
    require_file(recipe.source)
    list_model_files(recipe.model)
    logger.info(f"language model: {describe_model(recipe.model)}, as {path} names it")
    # files beside the run directory are named after it
    return recipe, run_dir.give_name(out or run_dir.ARTIFACTS / "datasets" / recipe.name)


def is_built_in(model: LanguageModel) -> bool:
    """Return whether a language model is the built-in demonstration model."""
    return model.path is not None and Path(model.path).resolve() == find_asset("demo-lm").resolve()


def describe_model(model: LanguageModel) -> str:
    """Return the name of a language model, where it is, and the size of its weights, as a phrase.

    The size is that of the local files. For a model of the Hub it is the download's size, if
    it is one of ``GENERATORS``, else not known. Raises what ``list_model_files`` raises.
    """
    if is_built_in(model):
        return "the built-in demonstration model (4.5 million parameters)"
    if model.server:
        return f"{model.server.model} behind {model.server.base_url} (its size is not known here)"
    if model.path:
        files = list_model_files(model)
        weights = [file for file in files if file.suffix in WEIGHT_SUFFIXES]
        size = format_bytes(sum(file.stat().st_size for file in weights))
        return f"{model.gguf_file or Path(model.path).name} in {model.path} ({size} of weights)"
    name = f"{model.repo_id}@{model.revision}"
    for packaged in GENERATORS.values():
        # ``hub`` may end in @REVISION
        if model.repo_id in (packaged.hub.partition("@")[0], packaged.upstream):
            return f"{name} of the Hub ({format_bytes(packaged.bytes)} to download once)"
    return f"{name} of the Hub (its size is not known before the download)"


def format_bytes(size: int) -> str:
    """Return a number of bytes as text in MB, or in GB from 1 GB on (powers of 1000)."""
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB"


def write_dataset(
    recipe: DatasetRecipe,
    directory: Path,
    command: str,
    options: ClusterOptions,
    append: bool = False,
) -> Manifest:
    """Generate the dataset, or resume its run, and return its manifest.

    The run directory is locked meanwhile. Results that workers left in a store are removed at the
    end.

    Args:
        recipe: The checked recipe.
        directory: The run directory.
        command: The command line that the manifest keeps.
        options: Workers, their cluster, and their store.
        append: Add the rows of further source sentences to the finished run.

    Raises InputError or RunError for a run that cannot be started or finished, RunError when
    another process works on the directory.
    """
    # choose the executor
    start = partial(start_local_executor, workers=options.workers or 1)
    if options.needs_ray(recipe):
        from sts_dino.generation.executors.ray_executor import start_ray_executor

        start = partial(start_ray_executor, options)

    # generate the rows, then remove what workers left in the store
    with run_dir.lock_run(directory):
        earlier = run_dir.read_manifest(directory)
        generate_rows = append_rows if append else generate
        manifest = generate_rows(recipe, directory, command, start)
        if options.store is not None:
            from sts_dino.generation.executors.store import ResultStore, name_store_folder

            # A run that was already complete has not used the store: its address may be wrong.
            is_proven = earlier is None or not earlier.complete or append
            run_directory = get_new_rows_directory(directory) if append else directory
            run_key = compute_run_key(manifest.fingerprint, manifest.versions)
            folder = name_store_folder(run_key, run_directory)
            ResultStore(options.store, folder, proven=is_proven).clear()
    return manifest


def describe_run(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> str:
    """Describe a finished run: its counts, some rows, and how to measure label agreement."""
    rows = describe_random_rows(directory, manifest, recipe)
    text = f"{describe_counts(directory, manifest)}\n\n{rows}"
    if recipe.dataset_schema.pairs:
        text += (
            f"\nlabel agreement: sts-dino fidelity {quote(str(directory))} measures it "
            "(judge: all-MiniLM-L6-v2 for English, another by --encoder)"
        )
    return text


def describe_counts(directory: Path, manifest: Manifest) -> str:
    """Return a table of the kept and requested texts of each label, with the most frequent reasons
    of rejection.

    Lines above the table name the run directory, the number of source sentences and the skipped
    rows. A label has at most three reasons.
    """
    sources = manifest.counts["sources"]
    text = f"{directory}: {manifest.name} v{manifest.version}, {sources:,} source sentences"
    skipped = manifest.counts.get("sources_skipped")
    if skipped:
        text += f"\npassed over: {describe_skipped(sources, skipped)}"
    table = [("label", "kept", "requested", "", "rejected most often")]
    for label, counts in manifest.counts["by_label"].items():
        kept, requested = counts["kept"], counts["requested"]
        share = f"{kept / requested:.0%}" if requested else ""
        reasons = sorted(counts["reasons"].items(), key=lambda item: -item[1])
        frequent = ", ".join(f"{reason} {count:,}" for reason, count in reasons[:3])
        table.append((label, f"{kept:,}", f"{requested:,}", share, frequent))
    return f"{text}\n\n{align_columns(table, right=(1, 2, 3))}"


def describe_random_rows(directory: Path, manifest: Manifest, recipe: DatasetRecipe) -> str:
    """Return at most ``SHOWN_ROWS`` random rows of each label as text.

    The recipe's seed chooses the rows. For a scored dataset, a warning follows if the texts of
    the highest score for questions are too rarely questions (``make_question_warning``).
    """
    # show rows of each label
    random = Random(recipe.seed)
    texts_by_label = read_random_shards(directory, manifest, recipe, random)
    parts = list[str]()
    for label, rows in texts_by_label.items():
        shown_rows = random.sample(rows, min(len(rows), SHOWN_ROWS))
        parts.append(f"{len(shown_rows)} random rows of label {label}:")
        for texts in shown_rows:
            lines = [join_lines(text, SHOWN_CHARACTERS) for text in texts]
            parts.append(f"  {' | '.join(lines)}")

    # warn if texts of the most similar label lose the question
    if recipe.dataset_schema.scored:
        highest = max(recipe.written_labels, key=lambda label: label.score or 0.0).name
        warning = make_question_warning(highest, texts_by_label[highest])
        if warning and is_built_in(recipe.model):
            parts.append(
                f"{warning}; the built-in model reads no examples: take another one (--lm)"
            )
        elif warning:
            parts.append(f"{warning}; give examples of questions (few_shot.examples)")
    return "\n".join(parts)


def read_random_shards(
    directory: Path, manifest: Manifest, recipe: DatasetRecipe, random: Random
) -> dict[str, list[list[str]]]:
    """Return label → the texts of each row, from at most ``MOST_DRAWN_SHARDS`` random shards.

    A row has one or two texts: the leading text columns of its finished config. Rows of sampled
    negatives are left out: their target is not a label of the recipe. A label without rows in these
    shards has an empty list.
    """
    labelled = recipe.dataset_schema.labelled
    shards = [file for file in manifest.files if get_base_config(file.config or "") == labelled]
    by_label = {label.name: list[list[str]]() for label in recipe.written_labels}
    for shard in random.sample(shards, min(len(shards), MOST_DRAWN_SHARDS)):
        types = get_config_columns(shard.config or "", recipe)
        columns = [
            name for name, kind in types.items() if kind == "string" and name not in PROVENANCE
        ][:2]
        for row in read_shard(directory / shard.path, [*columns, "target"]):
            if row["target"] in by_label:
                by_label[row["target"]].append([row[name] for name in columns])
    return by_label


def make_question_warning(label: str, pairs: list[list[str]]) -> str | None:
    """Return a warning if too few texts for questions are questions, else None.

    Fewer than ``SHOWN_ROWS`` rows whose source sentence is a question give no warning.

    Args:
        label: name of the label with the highest score, whose texts should keep the question.
        pairs: source sentence and generated text of each row of the label.
    """
    texts = [text for sentence, text in pairs if is_question(sentence)]
    questions = sum(is_question(text) for text in texts)
    if len(texts) < SHOWN_ROWS or questions >= LEAST_QUESTION_SHARE * len(texts):
        return None
    return (
        f"warning: {len(texts)} source sentences are questions, {questions} texts of label {label}"
    )


def is_question(text: str) -> bool:
    """Return whether a text ends with a question mark, or as a Japanese question with か."""
    return _QUESTION_END.search(text.rstrip()) is not None
