"""One training run, from an untrained encoder or its newest usable checkpoint to a finished run
directory.

Progress is one bar at a terminal and a plain line now and then in a log file: steps, time left,
loss, learning rate, the newest and the best validation score. TensorBoard's event files go to
``NAME.logs`` beside the run directory. The environment variables of any other reporter say where
it writes.
"""

import json
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import IterableDataset
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.distributed import distributed_evaluation
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.integrations import TensorBoardCallback

from sts_dino.hub.contract.published_paths import describe_clone
from sts_dino.hub.contract.recipe import Spans
from sts_dino.hub.contract.run_dir import Manifest, lock_run
from sts_dino.hub.durable import write_atomically, write_text
from sts_dino.hub.errors import RunError
from sts_dino.hub.messages import ProgressBar
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.hub.untrusted import warn_of_cut_texts
from sts_dino.training.data.objectives import DOCUMENTS, EXAMPLE_TYPES, LOSSES, SELF_PAIR
from sts_dino.training.data.rows import convert_stream_errors, read_endlessly
from sts_dino.training.data.spans import SpanRows, make_span_rows
from sts_dino.training.data.training_sets import TrainingSet
from sts_dino.training.encoder.encoder import (
    PROBES,
    build_encoder,
    get_default_prompt,
    has_dropout,
    require_trainable,
    save_encoder,
    save_release,
)
from sts_dino.training.loop.distributed import get_process_count, is_main, run_on_main
from sts_dino.training.loop.files import (
    MARK_FILE,
    complete_run,
    convert_disk_errors,
    find_newest_usable,
    get_step,
)
from sts_dino.training.loop.job import TENSORBOARD, TrainingJob, describe_arguments
from sts_dino.training.loop.losses import build_loss
from sts_dino.training.loop.trainer import (
    DIVERGED_HINT,
    CheckpointCallback,
    EncoderTrainer,
    TextCollator,
    TokenDropout,
    require_finite,
)

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]  # of the clone or installation
# Largest difference between two validation scores of the same weights. In half precision a score
# depends on the batches, and another number of processes makes other batches.
SCORE_TOLERANCE = 1e-4
HALF_SCORE_TOLERANCE = 5e-3
COUNTED_ROWS = 20_000  # first rows of a dataset in which long texts are counted
PILOT_SECONDS = 6.0  # a pilot with enough steps stops after this time
LOG_LINE_FORMAT = "{desc}: step {n_fmt} of {total_fmt}, {remaining} left{postfix}"
MERGE_FACTORS = (0.25, 0.5, 0.75, 1.0)  # the factors that ``merge: auto`` chooses from
# A log entry with a loss also has the parts of that loss. These keys of the entry are not parts.
OTHER_LOG_KEYS = frozenset(
    [
        "loss",
        "grad_norm",
        "learning_rate",
        "epoch",
        "step",
        "train_loss",
        "total_flos",
        "num_input_tokens_seen",
    ]
)


def run_training(job: TrainingJob, command: str) -> Manifest:
    """Train the encoder of a job, or resume its training, under the lock of its run directory.

    The main process returns the complete manifest; any other process returns the manifest that the
    run had at its start. A finished run is not trained again.

    Args:
        job: the checked job.
        command: the command line that the manifest records.

    Raises InputError when the run directory cannot be used (``TrainingJob.begin``), or base, data
    and loss cannot be trained together. Raises RunError when another process holds the run, the
    Hub stops answering, training diverges, a GPU's memory or the disk is full, or the saved encoder
    differs from the trained one. Errors that the operating system reports pass as OSError.
    """
    if job.recipe.threads is not None:
        torch.set_num_threads(job.recipe.threads)
    with lock_run(job.out) if is_main() else nullcontext():
        # Start or resume the run, unless it is finished.
        manifest = run_on_main(job.begin)
        if manifest.complete:
            if is_main():
                # A process that was killed at the very end leaves its checkpoints.
                shutil.rmtree(job.checkpoints, ignore_errors=True)
                logger.info(f"{job.out}: already finished; nothing to do")
            return manifest

        # Train; a baseline is only written.
        started = time.monotonic()
        with convert_disk_errors(job.out), convert_memory_errors():
            if job.recipe.is_baseline:
                if is_main():
                    manifest = finish_baseline(job, manifest, command)
                return manifest
            trainer = train(job, manifest.fingerprint)
            verify_encoder(trainer, job)
            if is_main():
                manifest = finish_training(job, manifest, trainer, command)
                write_timing(job, time.monotonic() - started, trainer)
    return manifest


@contextmanager
def convert_memory_errors() -> Iterator[None]:
    """Convert torch's out-of-memory error of a GPU into RunError; other errors pass unchanged."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            "training",
            "the device's memory is full (sts-dino estimate-training measures a pilot)",
            hint="use a loss that caches gradients, arguments.activation_checkpointing, bf16, "
            "or more processes",
        ) from error


def build_untrained_encoder(job: TrainingJob) -> SentenceTransformer:
    """Build the recipe's encoder as it is before training.

    Sets the seed of Python, numpy and torch to the recipe's, because random weights (e.g. of an
    adapter) depend on it. Raises InputError for a base or adapter that cannot be built as the
    recipe says and, unless the recipe is a baseline, for a base that cannot be trained.
    """
    transformers.set_seed(job.recipe.seed)
    spec = job.recipe.base
    encoder = build_encoder(spec, job.base, job.recipe.lora)
    # Only a finished encoder has modules that the recipe did not choose.
    if not job.recipe.is_baseline and spec.modules == "sentence-transformer":
        require_trainable(encoder, f"base: {spec.repo_id or spec.path}")
    return encoder


def train(job: TrainingJob, fingerprint: str) -> EncoderTrainer:
    """Train the encoder, or resume from the newest usable checkpoint; return the trainer.

    The trainer's model has the weights of the best checkpoint; without validation data, those of
    the last step. The main process writes the untrained encoder to OUT.base. ``fingerprint``: the
    run's fingerprint, which its checkpoints must have.

    Raises InputError when base, data and loss cannot be trained together, ``dataloader_drop_last``
    leaves no batch, or a row of a stream is bad. Raises RunError when training diverges, the Hub
    stops answering, the saved tokenizer gives other ids, or the checkpoint holds other parameters.
    """
    # Build the untrained encoder.
    encoder = build_untrained_encoder(job)
    if is_main():
        save_release(encoder, job.get_path("base"), job.recipe.base, job.base, job.recipe.lora)
        _warn_without_dropout(job, encoder)
        _warn_of_cut_texts(job, encoder)

    # Train from the step of the newest usable checkpoint on.
    checkpoint = run_on_main(lambda: find_newest_usable(job.checkpoints, fingerprint))
    first_step = get_step(checkpoint) if checkpoint else 0
    with convert_stream_errors(job.sets[0].spec):  # a stream is trained on alone
        trainer = make_trainer(job, encoder, fingerprint, first_step)
        if checkpoint is not None and is_main():
            logger.info(f"resuming from {checkpoint}")
            mark = json.loads((checkpoint / MARK_FILE).read_text(encoding="utf-8"))
            if mark["processes"] != get_process_count():
                change = (
                    f"{mark['processes']} processes wrote it, now there are {get_process_count()}"
                )
                logger.warning(f"{change}: the same batches, other dropout")
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        # When a moved run resumes, upstream forgets the path of its best checkpoint until the next
        # checkpoint is saved. The step of the best checkpoint is still known.
        if trainer.state.best_model_checkpoint is None:
            trainer._load_best_model()
        trainer.seconds = time.monotonic() - started
    return trainer


def _warn_without_dropout(job: TrainingJob, encoder: SentenceTransformer) -> None:
    """Log a warning when a text is its own positive, and both would have the same embedding.

    The embeddings are equal when neither the encoder nor the recipe (``token_dropout``) has
    dropout. The warning names the first such dataset.
    """
    names = [
        item.name
        for item in job.sets
        if item.spec.example_type == SELF_PAIR.name
        or (item.spec.grades is not None and item.spec.grades.positives == "itself")
    ]
    if names and not has_dropout(encoder) and not job.recipe.token_dropout:
        logger.warning(
            f"{names[0]}: the encoder has no dropout, so nothing distinguishes a text from itself: "
            "only negatives teach it (the recipe's token_dropout would)"
        )


def _warn_of_cut_texts(job: TrainingJob, encoder: SentenceTransformer) -> None:
    """Log a warning for each dataset with texts that are longer than the encoder reads.

    The warning has their number among the distinct texts of the dataset's first ``COUNTED_ROWS``
    rows. Documents, which are cut into spans, and streams are not checked.
    """
    for item in job.sets:
        example_type = EXAMPLE_TYPES[item.spec.example_type]
        if example_type == DOCUMENTS or isinstance(item.train, IterableDataset):
            continue
        rows = item.train.select(range(min(len(item.train), COUNTED_ROWS)))
        distinct_texts: set[str] = set()
        for column in example_type.text_columns:
            distinct_texts.update(rows[column])
        warn_of_cut_texts(encoder, list(distinct_texts), item.name, "texts")


def make_trainer(
    job: TrainingJob, encoder: SentenceTransformer, fingerprint: str, first_step: int = 0
) -> EncoderTrainer:
    """Make a trainer over all datasets, each with its own loss.

    Args:
        job: the training job.
        encoder: the encoder to train; the trainer loads the weights of a checkpoint into it later.
        fingerprint: the run's fingerprint, which checkpoints are marked with.
        first_step: the step of the checkpoint that the run resumes from; 0: a new run.

    Raises InputError when no document is long enough, spans are longer than the encoder reads, a
    guide cannot be loaded, or a loss does not fit the encoder. Errors over reading a stream pass
    unchanged.
    """
    recipe = job.recipe

    # Rows and their collator: spans of documents, which are trained on alone, or texts.
    spans = _cut_documents(job, encoder)
    if spans is not None:
        sets = [replace(job.sets[0], train=spans.rows, passed_over=spans.passed_over)]
        collator: Any = spans.collator
    else:
        sets = [_make_endless(item) for item in job.sets]
        token_dropout = None
        prompt = get_default_prompt(encoder)
        if recipe.token_dropout:
            # A static encoder's tokenizer has no padding id, and its texts are never padded.
            pad = getattr(encoder.tokenizer, "pad_token_id", None) or 0
            preprocess = partial(encoder.preprocess, prompt=prompt)
            token_dropout = TokenDropout(preprocess, recipe.token_dropout, recipe.seed, pad)
        collator = TextCollator(encoder.preprocess, prompts=prompt, token_dropout=token_dropout)

    # A loss for each dataset.
    losses: dict[str, nn.Module] = {}
    for index, item in enumerate(sets):
        guide = _build_guide(index, encoder, job)
        losses[item.name] = build_loss(
            item.spec.loss, job.loss_arguments[index], encoder, job.base, get_process_count(), guide
        )

    # Callbacks. ``CheckpointCallback`` removes old checkpoints, because upstream would remove them
    # before the new one is marked.
    arguments = copy(job.arguments)
    arguments.save_total_limit = None
    callbacks: list[TrainerCallback] = [
        CheckpointCallback(fingerprint, job.arguments.save_total_limit)
    ]
    if spans is not None:
        callbacks.append(spans.cutter)
    if is_main():
        callbacks.append(ProgressReporter(job.evaluator.metric if job.evaluator else ""))
    if is_main() and TENSORBOARD in job.reporters:
        # The import is slow.
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides the points that a killed run wrote after its checkpoint.
        events = SummaryWriter(str(job.get_path("logs")), purge_step=first_step + 1)
        callbacks.append(TensorBoardCallback(events))

    trainer = EncoderTrainer(
        model=encoder,
        args=arguments,
        sets=sets,
        losses=losses,
        slanted=recipe.slanted_triangular,
        first_step=first_step,
        evaluator=job.evaluator,
        data_collator=collator,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _cut_documents(job: TrainingJob, encoder: SentenceTransformer) -> SpanRows | None:
    """Cut the recipe's documents into DeCLUTR's rows of spans; return None if it has no documents.

    Raises InputError when no document is long enough, or spans are longer than the encoder reads.
    """
    item = job.sets[0]  # documents are trained on alone
    if item.spec.example_type != DOCUMENTS.name:
        return None
    spans = item.spec.spans or Spans()
    max_seq_length = job.recipe.base.max_seq_length
    return make_span_rows(item.train, encoder.tokenizer, spans, job.recipe.seed, max_seq_length)


def _make_endless(item: TrainingSet) -> TrainingSet:
    """Return a copy of a streamed training set whose stream has one epoch after another, endlessly.

    A training set without a stream is returned unchanged. Reading the stream raises RunError when
    an epoch has no rows.
    """
    if not isinstance(item.train, IterableDataset):
        return item
    return replace(item, train=read_endlessly(item.train, item.name))


def _build_guide(
    index: int, encoder: SentenceTransformer, job: TrainingJob
) -> SentenceTransformer | None:
    """Build the guide of a dataset's loss: the recipe's, else a copy of ``encoder``.

    Returns None for a loss without a guide. ``index``: the dataset's index in the recipe.
    ``encoder``: still untrained. Raises InputError when the recipe's guide cannot be loaded.
    """
    spec = job.sets[index].spec
    if not LOSSES[spec.loss].guided:
        return None
    if spec.guide is None:
        return deepcopy(encoder)
    return build_encoder(spec.guide, job.guides[index], key=f"datasets.{index}.guide")


def verify_encoder(trainer: EncoderTrainer, job: TrainingJob) -> None:
    """Raise RunError unless weights and embeddings are finite, and the checkpoint's score recurs.

    The score is the validation score of the chosen checkpoint, measured again; without validation
    data it is not checked. All processes call this function and share the texts, as in the
    trainer's evaluations: in half precision an embedding depends on the other texts of its batch.
    """
    # Large finite weights can give infinite embeddings.
    require_finite(list(trainer.model.parameters()), "training")
    embeddings = trainer.model.encode(list(PROBES), convert_to_tensor=True)
    if not torch.isfinite(embeddings).all():
        raise RunError("training", "the embeddings are not finite", hint=DIVERGED_HINT)

    # Measure the validation score again. A process that does not evaluate keeps ``best_score``.
    best_score = trainer.state.best_metric
    if job.evaluator is None or best_score is None:
        return
    score = best_score
    with distributed_evaluation(trainer.model) as evaluates:
        if evaluates:
            score = job.evaluator(trainer.model)["sequential_score"]
    is_half = job.arguments.bf16 or job.arguments.fp16 or job.recipe.base.dtype != "float32"
    tolerance = HALF_SCORE_TOLERANCE if is_half else SCORE_TOLERANCE
    if abs(score - best_score) > tolerance:
        raise RunError(
            job.checkpoints,
            f"the saved weights score {score:.4f} on validation, not {best_score:.4f}",
            hint=f"remove it and {job.out}, and run the same command again",
        )


def finish_baseline(job: TrainingJob, manifest: Manifest, command: str) -> Manifest:
    """Write the untrained encoder into the run directory; write and return the complete manifest.

    ``manifest``: the manifest that the run had at its start. ``command``: the command line that the
    manifest records. Raises InputError when the base cannot be loaded, RunError when the saved
    tokenizer gives other ids.
    """
    encoder = build_untrained_encoder(job)
    built = job.get_path("building")
    save_encoder(encoder, built)
    counts = {
        "parameters": count_parameters(encoder),
        "dimensions": encoder.get_embedding_dimension(),
    }
    return _complete(job, manifest, built, counts, None, command)


def finish_training(
    job: TrainingJob, manifest: Manifest, trainer: EncoderTrainer, command: str
) -> Manifest:
    """Write the trained encoder into the run directory; write and return the complete manifest.

    An adapter is merged with its base if ``lora.release`` says so; then the weights are mixed with
    the untrained ones if the recipe has ``merge``. Removes the checkpoints.
    ``manifest``: the manifest that the run had at its start. ``command``: the command line that the
    manifest records. Raises InputError when an adapter's base cannot be loaded again, RunError when
    the saved tokenizer gives other ids.
    """
    # The model, in a folder of its own until it is complete.
    encoder = trainer.model
    lora = job.recipe.lora
    built = job.checkpoints / "model"
    save_release(encoder, built, job.recipe.base, job.base, lora)
    facts = describe_training(job, trainer)
    if job.recipe.merge:
        facts["merge"] = merge_with_base(job, built, str(encoder.device))

    # The counts of the manifest.
    parameters = count_parameters(encoder)
    trained = sum(parameter.numel() for parameter in trainer.encoder_parameters.values())
    if lora is not None and lora.release == "merged":
        parameters -= trained  # the adapter is in the base's weights now
    is_streamed = any(item.rows is None for item in job.sets)
    counts: dict[str, Any] = {
        "parameters": parameters,
        "dimensions": encoder.get_embedding_dimension(),
        "trained_parameters": trained,
        "training_rows": None if is_streamed else sum(item.rows or 0 for item in job.sets),
        "seen_rows": trainer.count_seen_rows(),
    }
    if trainer.passed_over:
        counts["passed_over"] = trainer.passed_over
    return _complete(job, manifest, built, counts, facts, command)


def count_parameters(encoder: SentenceTransformer) -> int:
    """Count the encoder's parameters; two 4-bit parameters packed in one byte count as two."""
    count = sum(parameter.numel() for parameter in encoder.parameters())
    model = encoder.transformers_model
    if model is not None:
        # transformers' num_parameters counts unpacked weights.
        elements = sum(parameter.numel() for parameter in model.parameters())
        count += model.num_parameters() - elements
    return count


def _complete(
    job: TrainingJob,
    manifest: Manifest,
    built: Path,
    counts: dict[str, Any],
    training: dict[str, Any] | None,
    command: str,
) -> Manifest:
    """Move the model in ``built`` into the run directory; write and return the complete manifest.

    Removes ``built`` and the checkpoints.

    Args:
        job: the job of the run.
        manifest: the manifest that the run had at its start.
        built: the folder of the finished model.
        counts: the manifest's counts, name → number; None: not known.
        training: the result of ``describe_training``; None: a baseline.
        command: the command line that the manifest records.
    """
    provenance: dict[str, Any] = {
        "datasets": [item.describe() for item in job.sets],
        "validation": job.evaluator.sources if job.evaluator else [],
        "base": job.base.describe(job.recipe.base),
        "training": training,
    }
    code = describe_clone(ROOT)  # commit and public address; nothing outside of a clone
    if code:
        provenance["code"] = code
    provenance["command"] = command
    finished = complete_run(job.out, manifest, built, counts, provenance)
    shutil.rmtree(job.checkpoints, ignore_errors=True)
    return finished


def merge_with_base(job: TrainingJob, built: Path, device: str) -> dict[str, Any]:
    """Multiply the training's change of the weights in ``built`` by the recipe's ``merge`` factor.

    Merged = untrained + factor * (trained - untrained). It is computed in float32, as
    (1 - factor) * untrained + factor * trained. A factor up to 1 gives a weighted mean of both
    (WiSE-FT, LM-Cocktail). A factor above 1 is an extrapolation (task arithmetic, Ilharco et al.
    2023). With ``merge: auto`` the factor is the best of ``MERGE_FACTORS`` on validation, and of
    equal ones the smallest.

    Returns the factor as ``share`` and, for auto, ``validation_scores`` (factor → score). After a
    kill, the next run merges unmerged weights, because ``finish_training`` writes ``built`` anew.

    Args:
        job: the job, whose untrained encoder lies in OUT.base.
        built: the folder of the trained encoder; its safetensors files are replaced.
        device: the device on which the merged encoders are evaluated, e.g. ``cuda:0``.
    """
    untrained_folder = job.get_path("base")
    trained = {path: load_file(path) for path in sorted(built.rglob("*.safetensors"))}

    def write_merged(factor: float) -> None:
        """Replace the weights in ``built`` by those merged with this factor."""
        for path, tensors in trained.items():
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            untrained = load_file(untrained_folder / path.relative_to(built))
            merged = dict(tensors)
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    changed = (1 - factor) * untrained[name].float() + factor * tensor.float()
                    merged[name] = changed.to(tensor.dtype)
            # Not in place: the tensors of ``trained`` are memory-mapped from the file.
            with write_atomically(path) as temporary:
                save_file(merged, temporary, metadata)

    # The recipe's factor; ``or 1`` is for the type alone, a recipe without ``merge`` is not merged.
    if job.recipe.merge != "auto":
        factor = float(job.recipe.merge or 1)
        write_merged(factor)
        return {"share": factor}

    # The best factor on validation; ``max`` takes the first of equal scores, the smallest factor.
    assert job.evaluator is not None
    scores: dict[str, float] = {}
    for factor in MERGE_FACTORS:
        write_merged(factor)
        encoder = SentenceTransformer(
            str(built), device=device, local_files_only=True, trust_remote_code=False
        )
        scores[f"{factor:g}"] = round(job.evaluator(encoder)["sequential_score"], 6)
    best = float(max(scores, key=scores.__getitem__))
    write_merged(best)
    return {"share": best, "validation_scores": scores}


def describe_training(job: TrainingJob, trainer: EncoderTrainer) -> dict[str, Any]:
    """Return what the manifest records of the training: steps, checkpoint, curves, arguments.

    A curve is a list of [step, value] by ascending step. ``loss_parts``: name → curve, empty for a
    loss without parts. Without validation data, best step, metric and score are None, and the
    validation curve is empty. ``batch_size``: the rows of an optimiser step.
    """
    state = trainer.state

    def get_curve(name: str) -> list[list[float]]:
        """Return [[step, value]] of the log entries that have ``name``."""
        entries = [entry for entry in state.log_history if name in entry]
        return [[entry["step"], round(entry[name], 6)] for entry in entries]

    # The names of the loss's parts, in the order of the log: a dict is an ordered set here.
    logged: dict[str, None] = {}
    for entry in state.log_history:
        if "loss" in entry:
            logged |= dict.fromkeys(entry)
    parts = [name for name in logged if name not in OTHER_LOG_KEYS]
    return {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0, 4),
        "best_step": state.best_global_step,
        "validation_metric": job.evaluator.metric if job.evaluator else None,
        "validation_score": state.best_metric,
        "loss_curve": get_curve("loss"),
        "validation_curve": get_curve("eval_sequential_score"),
        "loss_parts": {name: get_curve(name) for name in parts},
        "arguments": describe_arguments(job.arguments, job.recipe),
        "batch_size": job.recipe.batch_size,
        "processes": get_process_count(),
        "seed": job.recipe.seed,
        "threads": job.recipe.threads,
    }


def write_timing(job: TrainingJob, seconds: float, trainer: EncoderTrainer) -> None:
    """Write OUT.timing.json, which is not published: seconds, throughput and peak memory.

    ``seconds``: from building the encoder to the finished run, in this process. The key
    ``samples_per_second`` has the rows of all processes since this start of the run, counting each
    step as a whole batch, divided by ``training_seconds``, which include evaluations and
    checkpoints. The peaks are those of this process in MiB; ``peak_gpu_mb`` is None without a GPU.
    ``resumed_from_step`` is 0 for a run that was not resumed.
    """
    rows = (trainer.state.global_step - trainer.first_step) * job.recipe.batch_size
    timing: dict[str, Any] = {
        "seconds": round(seconds, 2),
        "training_seconds": round(trainer.seconds, 2),
        "samples_per_second": round(rows / trainer.seconds, 1),
        "peak_rss_mb": measure_peak_rss_mb(),
        "peak_gpu_mb": None,
        "resumed_from_step": trainer.first_step,
    }
    if torch.cuda.is_available():
        timing["peak_gpu_mb"] = round(torch.cuda.max_memory_allocated() / 2**20, 1)
    write_text(job.get_path("timing.json"), json.dumps(timing, indent=2) + "\n")


class ProgressReporter(TrainerCallback):
    """Callback that shows progress on stderr.

    ``metric``: the name of the validation score; "" without validation data. ``shown``: name →
    formatted number, shown beside the bar.
    """

    def __init__(self, metric: str):
        self.metric = metric
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the bar, at the step that a resumed run has reached."""
        self.bar = ProgressBar(
            total=state.max_steps,
            initial=state.global_step,
            unit="step",
            desc="training",
            line_format=LOG_LINE_FORMAT,
        )

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Advance the bar to the trainer's step ``state.global_step``."""
        self.bar.update(state.global_step - self.bar.n)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any
    ) -> None:
        """Show the newest loss, learning rate and validation score, and the best with its step."""
        logs = logs or {}
        if "loss" in logs:
            self.shown["loss"] = f"{logs['loss']:.4f}"
            self.shown["learning rate"] = f"{logs['learning_rate']:.2e}"
        score = logs.get("eval_sequential_score")
        if score is not None:
            evaluated = [entry for entry in state.log_history if "eval_sequential_score" in entry]
            best = max(evaluated, key=lambda entry: float(entry["eval_sequential_score"]))
            self.shown[self.metric] = f"{score:.4f}"
            self.shown["best"] = f"{best['eval_sequential_score']:.4f} at step {best['step']:,}"
        self.bar.set_postfix(self.shown)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        self.bar.close()


class StepTimer(TrainerCallback):
    """Callback of a pilot: times each optimiser step, shows progress and ends the training early.

    The training ends once at least ``fewest_steps`` steps have taken more than ``PILOT_SECONDS``
    together. ``seconds``: one value for each step, reading the batch included.
    """

    def __init__(self, fewest_steps: int):
        self.fewest_steps = fewest_steps
        self.seconds: list[float] = []

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock and the progress bar."""
        self.bar = ProgressBar(total=self.fewest_steps, unit="step", desc="pilot")
        self.started = time.monotonic()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Record the step's seconds; end the training when enough steps are timed."""
        ended = time.monotonic()
        self.seconds.append(ended - self.started)
        self.started = ended
        if len(self.seconds) <= self.fewest_steps:
            self.bar.update()
        if len(self.seconds) >= self.fewest_steps and sum(self.seconds) > PILOT_SECONDS:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the progress bar."""
        self.bar.close()
