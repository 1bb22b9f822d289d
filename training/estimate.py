"""What a training takes: the plan of ``--dry-run``, and time, memory and disk for a dataset that does not exist yet.

The plan reads recipe and configs and loads no weights. The estimate times training steps on source sentences, as
triplets of the recipe's batch or of a part of it, and the embedding of sentences that are scored. Nothing is written.
"""

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Annotated, Any

import typer

from hub import cli
from hub.assets import asset
from hub.contract.recipe import PROMPT_TEXT, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError
from hub.process import peak_rss_mb, seconds_since_start
from hub.untrusted import NO_CODE, reading_model
from training.data.example_types import DOCUMENTS
from training.loop.distributed import process_count
from training.loop.job import TrainingJob

STEPS, MOST_STEPS, PROBE = 2, 50, 6.0  # timed after a slow first one: at least, at most; seconds that they may take
SCORED = 64  # texts that the encoder is timed on
SMALLEST = 8  # rows of the first step, and of all where a whole batch takes longer than the probe
TEXTS, BASELINE_TEXTS = 3, 2  # of a triplet; of the SimCSE baseline: a text and itself
ENCODERS, ALLOCATOR = 3, 1.4  # that scoring holds; resident memory of batches of many lengths, over that of tensors
MIB, GIB = 1 << 20, 1 << 30

app = cli.new_app(__doc__)


def plan(job: TrainingJob) -> list[str]:
    """The plan of a training, line by line: base, prompt in tokens, data, batch, steps, checkpoint choice, memory."""
    recipe = job.recipe
    shape: str = recipe.base.modules
    if shape in ("transformer", "static"):
        shape += f", {recipe.base.pooling} pooling, at most {recipe.base.max_seq_length} tokens"
    lines = [f"model      {recipe.name} v{recipe.version} -> {job.out}"]
    lines.append(f"base       {recipe.base.repo_id or recipe.base.path}, {shape}")
    if recipe.base.prompt is not None:
        lines.append(f"prompt     {_prompt_tokens(job)}")
    if recipe.is_baseline:
        return [*lines, "training   none: a baseline is the base as it is"]
    from training.memory import build_meta_encoder, memory_estimate

    if lora := recipe.lora:
        encoder = build_meta_encoder(recipe, job.base, job.arguments)
        paths = [path for path, module in encoder.named_modules() if hasattr(module, "lora_A")]
        names = ", ".join(sorted({path.rsplit(".", 1)[-1] for path in paths}))
        lines.append(f"adapter    rank {lora.r} on {len(paths)} layers ({names}); released: {lora.release}")
    for item in job.sets:
        origin = f"{item.spec.repo_id or item.spec.path} {item.spec.revision or ''}".strip()
        rows = "streamed" if item.rows is None else f"{item.rows:,} train"
        held_out = "" if item.validation is None else f", {len(item.validation):,} validation"
        lines.append(f"dataset    {origin} {item.spec.config}: {rows}{held_out}; {item.spec.loss}")
    size, accumulated = job.arguments.per_device_train_batch_size, job.arguments.gradient_accumulation_steps
    parts = [f"{size} a device", *([f"{accumulated} accumulated"] if accumulated > 1 else [])]
    parts += [f"{process_count()} processes"] if process_count() > 1 else []
    lines.append(f"batch      {recipe.batch_size} rows a step: {' x '.join(parts)}")
    passed_over = any(item.spec.example_type == DOCUMENTS.name for item in job.sets) and job.arguments.max_steps <= 0
    at_most = "at most " if passed_over else ""  # documents that are too short
    lines.append(f"steps      {at_most}{planned_steps(job):,} of {recipe.batch_size} rows")
    lines.append(f"checkpoint {_choice(job)}")
    found = memory_estimate(recipe, job.base, size, job.arguments)
    share = found.trainable / found.parameters
    kinds = ("weights", "gradients", "optimizer", "activations")
    listed = ", ".join(f"{name} {_size(getattr(found, name))}" for name in kinds)
    lines.append(f"parameters {found.parameters:,}, of which {found.trainable:,} are trained ({share:.1%})")
    lines.append(f"memory     about {_size(found.total)} a device ({listed}), and what the libraries take")
    return lines


def planned_steps(job: TrainingJob) -> int:
    """Optimiser steps of the whole run. Datasets take turns by their sizes, or until the first one is used up."""
    from sentence_transformers.base.training_args import MultiDatasetBatchSamplers

    if job.arguments.max_steps > 0:
        return job.arguments.max_steps
    size, drops = job.recipe.batch_size, job.arguments.dataloader_drop_last
    rows = [item.rows or 0 for item in job.sets]
    batches = [count // size if drops else math.ceil(count / size) for count in rows]
    in_turn = job.arguments.multi_dataset_batch_sampler == MultiDatasetBatchSamplers.ROUND_ROBIN
    per_epoch = min(batches) * len(batches) if in_turn else sum(batches)
    return math.ceil(max(1, per_epoch) * job.arguments.num_train_epochs)


def _prompt_tokens(job: TrainingJob) -> str:
    """The prompt with [X] in the sentence's place, as tokens: they show how spaces and quotation marks are read."""
    from transformers import AutoTokenizer

    from training.encoder.encoder import whole_ids

    spec = job.recipe.base
    with reading_model(f"base: {spec.repo_id or spec.path}", "its tokenizer cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(job.base.folder, **NO_CODE)
    return " | ".join(tokenizer.convert_ids_to_tokens(whole_ids(tokenizer, spec.prompt or "", PROMPT_TEXT)))


def _choice(job: TrainingJob) -> str:
    if job.evaluator is None:
        return "the last one: there are no validation data"
    steps = f"every {job.arguments.eval_steps} steps and at the last"
    cadence = steps if job.arguments.eval_strategy == "steps" else "after every epoch"
    return f"the best by {job.evaluator.metric} on {len(job.evaluator.evaluators)} set(s), evaluated {cadence}"


def _size(count: int) -> str:
    unit, name = (GIB, "GiB") if count >= GIB else (MIB, "MiB")
    return f"{count / unit:,.1f} {name}"


@dataclass(frozen=True)
class TrainingEstimate:
    """Predicted cost of a training on this machine; memory and disk in bytes.

    start_seconds: until the encoder is there. load_seconds: to load it once libraries are imported.
    step_seconds: an optimiser step on a batch of triplets. control_seconds: of the SimCSE baseline, 0.0 without one.
    texts_per_second: embedded, as in scoring. disk: of both encoders, the baseline and a checkpoint.
    """

    steps: int
    start_seconds: float
    load_seconds: float
    step_seconds: float
    training_seconds: float
    control_seconds: float
    texts_per_second: float
    memory: int
    disk: int

    def __str__(self) -> str:
        return (
            f"{self.steps} steps of {self.step_seconds:.2f} s: {self.training_seconds / 60:.1f} min, SimCSE baseline "
            f"{self.control_seconds / 60:.1f} min; scoring: {self.texts_per_second:.0f} texts/s; "
            f"memory {self.memory / GIB:.1f} GiB, disk {self.disk / GIB:.1f} GiB"
        )


@app.command()
def main(
    recipe: cli.RecipeArgument,
    texts: Annotated[Path, typer.Option(metavar="FILE", help="Texts to time it on, one a line")],
    longest: Annotated[int, typer.Option(help="Tokens of the longest generated text")] = 0,
    settings: cli.SetOption = [],  # noqa: B006 - typer copies it
    as_json: cli.JsonOption = False,
) -> None:
    """Time training steps of RECIPE's encoder on the texts of FILE, and predict the run from them.

    Example:

      sts-dino estimate-training recipes/small/prompteol-gemma-sts-dino.yaml --texts assets/demo-data/premises.txt
    """
    try:
        lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError as error:
        raise InputError(texts, "no such file", hint="give a file of texts, one a line") from error
    if not lines:
        raise InputError(texts, "holds no text", allowed="at least one line")
    found = estimate(load_recipe(recipe, ModelRecipe, settings), texts, lines, str(recipe), longest)
    cli.answer(str(found), asdict(found), as_json)


def estimate(recipe: ModelRecipe, file: Path, texts: list[str], place: str, longest: int = 0) -> TrainingEstimate:
    """Time some steps of a recipe with ``arguments.max_steps`` on the ``texts`` of a file, repeated if few.

    ``longest``: tokens of a generated text, for the memory. A vocabulary is cut to these texts. Raises InputError
    without that key and where the base cannot be loaded.
    """
    steps = int(recipe.arguments.get("max_steps", 0))
    if steps <= 0:
        hint = "its dataset is not there to count; sts-dino check RECIPE counts it later"
        raise InputError(f"{place}:arguments.max_steps", "is not given", allowed="a number of steps", hint=hint)
    import torch
    from sentence_transformers.util import batch_to_device

    from training.encoder.bases import find_base
    from training.encoder.encoder import build_encoder
    from training.loop.arguments import check_together, trainer_arguments, typed_arguments
    from training.memory import memory_estimate

    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    spec = recipe.base
    if spec.vocabulary is not None:
        origin = {"path": str(file), "repo_id": None, "revision": None, "config": "default", "columns": None}
        spec = spec.model_copy(update={"vocabulary": spec.vocabulary.model_copy(update=origin)})
    base, loaded = find_base(spec), int(peak_rss_mb() * MIB)
    given = typed_arguments(recipe.arguments, place)
    given |= {"per_device_train_batch_size": check_together(recipe, given, place)}
    arguments, _ = trainer_arguments(given, Path("checkpoints"), 1, False, place)
    loading = time.monotonic()
    encoder: Any = build_encoder(spec, base, recipe.lora)
    load, start = time.monotonic() - loading, seconds_since_start()
    random, trained = Random(recipe.seed), [one for one in encoder.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    half = torch.autocast(encoder.device.type, torch.bfloat16) if arguments.bf16 else nullcontext()

    def step(rows: int) -> float:
        """Seconds of a step on a whole batch, from one of ``rows``."""
        started = time.monotonic()
        with half:
            batches = (random.choices(texts, k=rows) for _ in range(TEXTS))  # lengths as in the corpus
            read = (dict(batch_to_device(encoder.preprocess(batch), encoder.device)) for batch in batches)
            torch.cat([encoder(features)["sentence_embedding"] for features in read]).float().pow(2).sum().backward()
        passes = time.monotonic() - started
        optimizer.step()
        encoder.zero_grad()
        return passes * recipe.batch_size / rows + time.monotonic() - started - passes

    few = min(SMALLEST, recipe.batch_size)
    step(few)
    size = recipe.batch_size if step(few) < PROBE / STEPS else few
    if size > few:
        step(size)
    took = list[float]()
    while len(took) < STEPS or (sum(took) < PROBE and len(took) < min(steps, MOST_STEPS)):
        took.append(step(size))
    rows = asset("stsb/sts-dev.csv").read_text(encoding="utf-8").splitlines()  # what is scored
    batch = [row.split("\t")[5] for row in random.choices(rows, k=SCORED)]
    started = time.monotonic()
    encoder.encode(batch, show_progress_bar=False)
    embedded = len(batch) / max(time.monotonic() - started, 1e-9)
    weights = list(encoder.parameters())
    whole = sum(parameter.numel() * parameter.element_size() for parameter in weights)
    if spec.modules != "static":  # batches are padded to their longest text
        frame, own = (max(map(len, encoder.preprocess(some)["input_ids"])) for some in ([""], texts))
        length = min(spec.max_seq_length, max(own, frame + longest))
        spec = spec.model_copy(update={"max_seq_length": length})
    needed = memory_estimate(recipe.model_copy(update={"base": spec}), base, recipe.batch_size, arguments).total
    needed = max(int(ALLOCATOR * needed), ENCODERS * whole)
    state = sum(3 * 4 * parameter.numel() for parameter in weights if parameter.requires_grad)  # and two moments
    return TrainingEstimate(
        steps=steps,
        start_seconds=start,
        load_seconds=load,
        step_seconds=fmean(took),
        training_seconds=fmean(took) * steps,
        control_seconds=fmean(took) * BASELINE_TEXTS / TEXTS * steps if recipe.control else 0.0,
        texts_per_second=embedded,
        memory=needed + (loaded if encoder.device.type == "cpu" else 0),
        disk=(3 if recipe.control else 2) * whole + state,
    )
