"""Train one sentence encoder: ``sts-dino train RECIPE [--out --limit --set --dry-run]``.

Reads the recipe's pinned datasets and base, writes ``artifacts/models/NAME``: the model as plain
SentenceTransformer files, ``recipe.yaml`` and, last, ``manifest.json``. Beside this folder, a
training also writes ``NAME.base`` (the untrained encoder, for the score before training),
``NAME.logs`` (TensorBoard), ``NAME.timing.json`` and, while it runs, ``NAME.checkpoints``.
"""

import logging
import math
from pathlib import Path
from shlex import join

from sts_dino.hub.cli import (
    DryRunOption,
    JsonOption,
    LimitOption,
    OutOption,
    RecipeArgument,
    SetOption,
    make_app,
    print_answer,
)
from sts_dino.hub.contract.published_paths import format_command
from sts_dino.hub.contract.recipe import PROMPT_TEXT
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.hub.untrusted import NO_CODE, convert_model_errors
from sts_dino.training.data.objectives import DOCUMENTS
from sts_dino.training.loop.distributed import (
    get_process_count,
    is_main,
    leave_group,
    report_once,
)
from sts_dino.training.loop.job import TrainingJob, prepare

logger = logging.getLogger(__name__)

ROUND_ROBIN = "round_robin"  # value of arguments.multi_dataset_batch_sampler

app = make_app("Train a sentence encoder from a model recipe.")


@app.command()
def main(
    recipe: RecipeArgument,
    out: OutOption = None,
    limit: LimitOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the encoder of RECIPE on its pinned datasets; the untrained one is kept beside its run
    directory.

    A killed run resumes from its last whole checkpoint. Datasets named by repo id come from the Hub
    of HF_ENDPOINT. On several devices, start it with torchrun or accelerate launch: the batch of a
    step stays the recipe's.

    Examples:

      sts-dino train recipes/demo/demo-sts-dino.yaml --dry-run

      sts-dino train recipes/demo/demo-sts-dino.yaml --limit 500 --out /tmp/m

      torchrun --nproc-per-node 4 -m sts_dino train recipes/models/sroberta-sts-dino-x2.yaml
    """
    with report_once():
        job = prepare(recipe, out, limit, settings)
        if dry_run:
            if is_main():
                lines = describe_plan(job)
                print_answer("\n".join(lines), {"directory": job.out, "plan": lines}, as_json)
            return
        from sts_dino.training.loop.train import run_training  # its libraries take seconds

        manifest = run_training(job, format_command("train", recipe, limit, settings))
    leave_group()
    if not is_main():
        return

    # Print the result, and the command that comes next: the scores, else the card.
    training = manifest.provenance["training"]
    facts = {"directory": job.out, "training": training, **manifest.counts}
    next_command = ["sts-dino", "card", str(job.out)]
    if job.recipe.evaluation:
        next_command = ["sts-dino", "score", str(recipe), "--model", str(job.out)]
        for setting in settings:
            next_command += ["--set", setting]
    print_answer("\n".join(describe_run(job.out, manifest)), facts, as_json, [join(next_command)])
    logger.info(describe_usage(job.out))


def describe_usage(encoder: Path) -> str:
    """Return three lines of Python that encode sentences with the encoder in ``encoder``."""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        f"encoder = SentenceTransformer({str(encoder)!r})",
        'embeddings = encoder.encode(["A sentence.", "Another one."])',
    ]
    return "\n".join(lines)


def describe_run(out: Path, manifest: Manifest) -> list[str]:
    """Describe a finished run, line by line: rows, steps, checkpoint, merge, unused data, score.

    A dataset with fewer rows than a batch has a line, too. A baseline has one line in all. ``out``:
    the run directory. ``manifest``: its complete manifest.
    """
    training = manifest.provenance["training"]
    if training is None:
        return [f"{out}: a baseline, the base as it is"]

    # Rows, steps and the chosen checkpoint.
    rows = manifest.counts.get("training_rows")
    distinct_rows = manifest.counts.get("seen_rows")
    best_step = training["best_step"]
    size = "a stream" if rows is None else f"{rows:,} rows"
    distinct = "" if distinct_rows is None else f", {distinct_rows:,} distinct rows seen"
    chosen = "last step" if best_step is None else f"step {best_step}"
    lines = [f"{out}: {size}, {training['steps']} steps{distinct}, kept {chosen}"]

    # The merge with the base's weights, with the validation score of each share.
    merge = training.get("merge")
    if merge:
        line = f"merged: the base's weights plus {merge['share']:g} times what the training changed"
        for share, score in merge.get("validation_scores", {}).items():
            line += f"; validation with {share}: {100 * score:.2f}"
        lines.append(line)

    # Datasets smaller than a batch, data that make no row, and the validation score.
    batch_size = training["batch_size"]
    for dataset in manifest.provenance["datasets"]:
        row_count = next(iter(dataset["splits"].values()))  # of the training split; None: a stream
        if row_count is not None and row_count < batch_size:
            name = dataset.get("path") or dataset["repo_id"]
            problem = f"a batch has at most {row_count:,} rows, fewer than batch_size {batch_size}"
            lines.append(f"{name}: {problem}")
    for name, count in manifest.counts.get("passed_over", {}).items():
        problem = "source sentences or documents are passed over: no row can be made of them"
        lines.append(f"{name}: {count:,} {problem}")
    if training["validation_score"] is not None:
        score = 100 * training["validation_score"]
        lines.append(f"validation: {training['validation_metric']} {score:.2f}")
    return lines


def describe_plan(job: TrainingJob) -> list[str]:
    """Describe the plan of a training, line by line: base, prompt in tokens, data, batch, steps.

    For a prompt the base's tokenizer is loaded. Raises InputError when it cannot be loaded.
    """
    # The encoder.
    recipe = job.recipe
    base = recipe.base
    modules: str = base.modules
    if modules in ("transformer", "static"):
        modules += f", {base.pooling} pooling, at most {base.max_seq_length} tokens"
    lines = [f"model      {recipe.name} v{recipe.version} -> {job.out}"]
    lines.append(f"base       {base.repo_id or base.path}, {modules}")
    if base.prompt is not None:
        lines.append(f"prompt     {_show_prompt_tokens(job, base.prompt)}")
    if recipe.is_baseline:
        return [*lines, "training   none: a baseline is the base as it is"]
    if recipe.lora:
        layers = ", ".join(recipe.lora.target_modules) or "all linear layers"
        form = recipe.lora.release
        lines.append(f"adapter    rank {recipe.lora.r} on {layers}; released: {form}")

    # The data.
    for item in job.sets:
        spec = item.spec
        origin = f"{spec.repo_id or spec.path} {spec.revision or ''}".strip()
        rows = "streamed" if item.rows is None else f"{item.rows:,} train"
        if item.validation is not None:
            rows += f", {len(item.validation):,} validation"
        lines.append(f"dataset    {origin} {spec.config}: {rows}; {spec.loss}")

    # Batches, steps and the choice of the checkpoint.
    lines.append(f"batch      {recipe.batch_size} rows a step: {_describe_batch(job)}")
    # Documents are counted before those that are too short are skipped.
    has_documents = job.sets[0].spec.example_type == DOCUMENTS.name
    at_most = "at most " if has_documents and job.arguments.max_steps <= 0 else ""
    lines.append(f"steps      {at_most}{count_steps(job):,} of {recipe.batch_size} rows")
    lines.append(f"checkpoint {_describe_choice(job)}")
    return lines


def count_steps(job: TrainingJob) -> int:
    """Return the number of optimiser steps of the whole run: ``max_steps``, else from the epochs.

    Each batch has rows of one dataset. An epoch has all batches of all datasets. With round-robin
    sampling, an epoch has a batch of each dataset in turn, until the smallest dataset is used up.
    An epoch counts as one step at least. Documents that are too short still count as rows.
    """
    if job.arguments.max_steps > 0:
        return job.arguments.max_steps
    round_batches = math.floor if job.arguments.dataloader_drop_last else math.ceil
    # A stream has no number of rows, but ``prepare`` requires max_steps for it.
    counts = [round_batches((item.rows or 0) / job.recipe.batch_size) for item in job.sets]
    epoch_steps = sum(counts)
    if job.arguments.multi_dataset_batch_sampler == ROUND_ROBIN:
        epoch_steps = min(counts) * len(counts)
    return math.ceil(max(1, epoch_steps) * job.arguments.num_train_epochs)


def _show_prompt_tokens(job: TrainingJob, prompt: str) -> str:
    """Return the tokens of ``prompt``, [X] included, joined by " | ", special tokens included.

    They show how the base's tokenizer reads spaces and quotation marks. Raises InputError when the
    tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    from sts_dino.training.encoder.encoder import tokenize_prompted

    base = job.recipe.base
    with convert_model_errors(
        f"base: {base.repo_id or base.path}", "its tokenizer cannot be loaded"
    ):
        tokenizer = AutoTokenizer.from_pretrained(job.base.folder, **NO_CODE)
    ids = tokenize_prompted(tokenizer, prompt, PROMPT_TEXT)
    return " | ".join(tokenizer.convert_ids_to_tokens(ids))


def _describe_batch(job: TrainingJob) -> str:
    """Describe how a step's batch is divided: rows a device x accumulated steps x processes.

    Accumulated steps and processes are left out where there is 1.
    """
    parts = [f"{job.arguments.per_device_train_batch_size} a device"]
    if job.arguments.gradient_accumulation_steps > 1:
        parts.append(f"{job.arguments.gradient_accumulation_steps} accumulated")
    if get_process_count() > 1:
        parts.append(f"{get_process_count()} processes")
    return " x ".join(parts)


def _describe_choice(job: TrainingJob) -> str:
    """Describe how the checkpoint is chosen: by which score, on how many sets, how often.

    Without validation data the last checkpoint is chosen.
    """
    if job.evaluator is None:
        return "the last one: there are no validation data"
    cadence = "after every epoch"
    if job.arguments.eval_strategy == "steps":
        steps = job.arguments.eval_steps
        assert steps  # without a value, transformers' arguments take that of logging_steps
        # The trainer reads a number below 1 as a share of all steps.
        interval = f"{int(steps)} steps" if steps >= 1 else f"{100 * steps:g} % of the steps"
        cadence = f"every {interval} and at the last"
    count = len(job.evaluator.evaluators)
    return f"the best by {job.evaluator.metric} on {count} set(s), evaluated {cadence}"
