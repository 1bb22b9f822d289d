"""The plan that ``--dry-run`` prints: data, steps and memory, from recipe and configs without loading weights."""

import math

from sentence_transformers.base.training_args import MultiDatasetBatchSamplers
from transformers import AutoTokenizer

from hub.contract.sections.model import PROMPT_TEXT
from hub.model_folder import NO_CODE, reading_model
from training.data.example_types import DOCUMENTS
from training.dry_run.memory import memory_estimate
from training.dry_run.meta_encoder import build_meta_encoder
from training.loop.distributed import process_count
from training.loop.job import TrainingJob
from training.model.prompts import whole_ids

MIB, GIB = 1 << 20, 1 << 30


def planned_steps(job: TrainingJob) -> int:
    """Optimiser steps of the whole run. Datasets take turns by their sizes, or until the first one is used up."""
    if job.arguments.max_steps > 0:
        return job.arguments.max_steps
    batches = [_batches(item.rows or 0, job) for item in job.sets]
    in_turn = job.arguments.multi_dataset_batch_sampler == MultiDatasetBatchSamplers.ROUND_ROBIN
    per_epoch = min(batches) * len(batches) if in_turn else sum(batches)
    return math.ceil(max(1, per_epoch) * job.arguments.num_train_epochs)


def _steps(job: TrainingJob) -> str:
    documents = any(item.spec.example_type == DOCUMENTS.name for item in job.sets)  # short ones are skipped
    at_most = "at most " if documents and job.arguments.max_steps <= 0 else ""
    return f"{at_most}{planned_steps(job):,}"


def _batches(rows: int, job: TrainingJob) -> int:
    size = job.recipe.batch_size
    return rows // size if job.arguments.dataloader_drop_last else math.ceil(rows / size)


def print_plan(job: TrainingJob) -> None:
    """Print the plan to stdout."""
    recipe = job.recipe
    print(f"model      {recipe.name} v{recipe.version} -> {job.out}")
    print(f"base       {recipe.base.repo_id or recipe.base.path}, {_shape(job)}")
    if recipe.base.prompt is not None:
        print(f"prompt     {prompt_tokens(job)}")
    if recipe.is_baseline:
        print("training   none: a baseline is the base as it is")
        return
    if recipe.lora is not None:
        print(f"adapter    rank {recipe.lora.r} on {adapted(job)}; released: {recipe.lora.release}")
    for line in _data(job):
        print(f"dataset    {line}")
    print(f"batch      {_batch(job)}")
    print(f"steps      {_steps(job)} of {recipe.batch_size} rows")
    print(f"checkpoint {_choice(job)}")
    for line in _memory(job):
        print(line)


def _shape(job: TrainingJob) -> str:
    spec = job.recipe.base
    if spec.modules in ("transformer", "static"):
        return f"{spec.modules}, {spec.pooling} pooling, at most {spec.max_seq_length} tokens"
    return spec.modules


def prompt_tokens(job: TrainingJob) -> str:
    """The prompt with [X] in the sentence's place, as tokens: whether spaces and quotation marks are what one meant."""
    spec = job.recipe.base
    with reading_model(f"base: {spec.repo_id or spec.path}", "its tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(job.base.folder, **NO_CODE)
    prompt = spec.prompt or ""
    return " | ".join(tokenizer.convert_ids_to_tokens(whole_ids(tokenizer, prompt, PROMPT_TEXT)))


def adapted(job: TrainingJob) -> str:
    """The number of layers that get a LoRA adapter, and their names."""
    encoder = build_meta_encoder(job.recipe, job.base, job.arguments)
    paths = [path for path, module in encoder.named_modules() if hasattr(module, "lora_A")]
    return f"{len(paths)} layers ({', '.join(sorted({path.rsplit('.', 1)[-1] for path in paths}))})"


def _data(job: TrainingJob) -> list[str]:
    lines = []
    for item in job.sets:
        origin = f"{item.spec.repo_id or item.spec.path} {item.spec.revision or ''}".strip()
        rows = "streamed" if item.rows is None else f"{item.rows:,} train"
        held_out = "" if item.validation is None else f", {len(item.validation):,} validation"
        lines.append(f"{origin} {item.spec.config}: {rows}{held_out}; {item.spec.loss}")
    return lines


def _batch(job: TrainingJob) -> str:
    parts = [f"{job.arguments.per_device_train_batch_size} a device"]
    if job.arguments.gradient_accumulation_steps > 1:
        parts.append(f"{job.arguments.gradient_accumulation_steps} accumulated")
    if process_count() > 1:
        parts.append(f"{process_count()} processes")
    return f"{job.recipe.batch_size} rows a step: {' x '.join(parts)}"


def _choice(job: TrainingJob) -> str:
    if job.evaluator is None:
        return "the last one: there are no validation data"
    cadence = "after every epoch"
    if job.arguments.eval_strategy == "steps":
        cadence = f"every {job.arguments.eval_steps:g} steps and at the last"
    return f"the best by {job.evaluator.metric} on {len(job.evaluator.evaluators)} set(s), evaluated {cadence}"


def _memory(job: TrainingJob) -> list[str]:
    found = memory_estimate(job.recipe, job.base, job.arguments.per_device_train_batch_size, job.arguments)
    parts = ("weights", "gradients", "optimizer", "activations")
    listed = ", ".join(f"{name} {size(getattr(found, name))}" for name in parts)
    share = found.trainable / found.parameters
    return [
        f"parameters {found.parameters:,}, of which {found.trainable:,} are trained ({share:.1%})",
        f"memory     about {size(found.total)} a device ({listed}), and what the libraries take",
    ]


def size(count: int) -> str:
    """A number of bytes in MiB or GiB."""
    unit, name = (GIB, "GiB") if count >= GIB else (MIB, "MiB")
    return f"{count / unit:,.1f} {name}"
