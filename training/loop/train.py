"""One training run, from an untrained encoder or its newest whole checkpoint to a finished run directory.

Progress is one bar at a terminal and a plain line now and then in a log file: steps, time left, loss, learning rate,
and the validation score with the best so far. TensorBoard's event files go to ``NAME.logs``; any other reporter of
transformers writes where its own environment variables say.
"""

import io
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
import transformers
from datasets import DatasetDict, IterableDataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.distributed import distributed_evaluation
from torch import nn
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.integrations import TensorBoardCallback

from hub.cli import say
from hub.contract.recipe import Spans
from hub.contract.run_dir import Manifest, locked
from hub.errors import RunError
from training.data.example_types import DOCUMENTS, EXAMPLE_TYPES, SELF_PAIR
from training.data.rows import endless, stream_errors
from training.data.spans import TrainerRows, span_rows
from training.data.training_sets import TrainingSet
from training.encoder.encoder import PROBES, build_encoder, has_dropout, require_trainable, save_release
from training.loop.arguments import TENSORBOARD
from training.loop.checkpoints import MARK, newest_whole
from training.loop.distributed import is_main, on_main, process_count
from training.loop.finish import disk_errors, finish, write_timing
from training.loop.job import TrainingJob
from training.loop.trainer import DIVERGED, Checks, EncoderTrainer, TextCollator, TokenDropout, require_finite
from training.losses.losses import LOSSES, build_loss

SAME, SAME_IN_HALF = 1e-4, 5e-3  # scores of the same weights; half: another number of processes batches texts otherwise
SECONDS = 30.0  # between two lines of a log file
LINE = "{desc}: step {n_fmt} of {total_fmt}, {remaining} left{postfix}"


def work(job: TrainingJob, command: str) -> Manifest:
    """Make what is missing of the run, under its lock; return its manifest, complete on the main process.

    Raises InputError when the run directory holds another run, RunError when training or the disk fails.
    """
    if job.recipe.threads is not None:
        torch.set_num_threads(job.recipe.threads)
    with locked(job.out) if is_main() else nullcontext():
        manifest = on_main(lambda: job.begin())
        if manifest.complete:
            if is_main():
                shutil.rmtree(job.checkpoints, ignore_errors=True)  # of a process killed at the very end
                say(f"{job.out}: already made; nothing to do")
            return manifest
        started = time.monotonic()
        with disk_errors(job.out), memory_errors():
            if job.recipe.is_baseline:
                return finish(job, manifest, untrained_encoder(job), None, command) if is_main() else manifest
            trainer = train(job, manifest.fingerprint)
            verify(trainer, job)
            if is_main():
                manifest = finish(job, manifest, trainer.model, trainer, command)
                write_timing(job, time.monotonic() - started, trainer)
    return manifest


def untrained_encoder(job: TrainingJob) -> SentenceTransformer:
    """The untrained encoder; its random weights come from the recipe's seed."""
    transformers.set_seed(job.recipe.seed)
    spec = job.recipe.base
    encoder = build_encoder(spec, job.base, job.recipe.lora)
    if not job.recipe.is_baseline and spec.modules == "sentence-transformer":
        require_trainable(encoder, f"base: {spec.repo_id or spec.path}")
    return encoder


def train(job: TrainingJob, fingerprint: str) -> EncoderTrainer:
    """Train, or resume from the newest whole checkpoint. Raises RunError when training diverges."""
    encoder = untrained_encoder(job)
    if is_main():
        save_release(encoder, job.beside("base"), job.recipe.base, job.base, job.recipe.lora)
        pairs = [item.name for item in job.sets if item.spec.example_type == SELF_PAIR.name]
        if pairs and not has_dropout(encoder) and not job.recipe.token_dropout:
            why = "the encoder has no dropout, so nothing distinguishes a text from itself: only negatives teach it"
            say(f"warning: {pairs[0]}: {why} (the recipe's token_dropout would)")
    checkpoint = on_main(lambda: newest_whole(job.checkpoints, fingerprint))
    step = int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0
    with stream_errors(job.sets[0].spec):  # a stream is trained on alone
        trainer = make_trainer(job, encoder, fingerprint, step)
        if checkpoint is not None and is_main():
            say(f"resuming from {checkpoint}")
            before = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))["processes"]
            if before != process_count():
                change = f"{before} processes wrote it, now there are {process_count()}"
                say(f"warning: {change}: the same batches, other dropout")
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.seconds = time.monotonic() - started
    return trainer


def make_trainer(
    job: TrainingJob, encoder: SentenceTransformer, fingerprint: str, first_step: int = 0
) -> EncoderTrainer:
    """A trainer over all datasets, each with its own loss; ``first_step``: where a resumed run stands."""
    rows = {item.name: read_rows(item, encoder, job) for item in job.sets}
    losses: dict[str, nn.Module] = {
        item.name: build_loss(item.spec, encoder, job.base, process_count(), _guide(index, encoder, job))
        for index, item in enumerate(job.sets)
    }
    first, noise = next(iter(rows.values())), None
    if job.recipe.token_dropout:
        pad = getattr(encoder.tokenizer, "pad_token_id", None) or 0  # static encoders, never padded, have none
        noise = TokenDropout(encoder.preprocess, job.recipe.token_dropout, job.recipe.seed, pad)
    arguments = copy(job.arguments)
    arguments.save_total_limit = None  # upstream would remove old checkpoints before the new one is marked
    callbacks = [Checks(fingerprint, job.arguments.save_total_limit), *first.callbacks]
    if is_main():
        callbacks.append(ProgressReporter(job.evaluator.metric if job.evaluator else ""))
        if TENSORBOARD in job.reporters:
            from torch.utils.tensorboard import SummaryWriter  # its import is slow, and only the main process writes

            events = SummaryWriter(str(job.beside("logs")), purge_step=first_step + 1)  # no points of a killed run
            callbacks.append(TensorBoardCallback(events))
    streamed = isinstance(first.rows, IterableDataset)
    trainer = EncoderTrainer(
        model=encoder,
        args=arguments,
        train_dataset=first.rows if streamed else DatasetDict({name: found.rows for name, found in rows.items()}),
        losses=losses,
        slanted=job.recipe.slanted_triangular,
        evaluator=job.evaluator,
        data_collator=first.collator or TextCollator(encoder.preprocess, token_dropout=noise),
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.passed_over = {name: found.passed_over for name, found in rows.items() if found.passed_over}
    trainer.first_step = first_step
    return trainer


def read_rows(item: TrainingSet, encoder: SentenceTransformer, job: TrainingJob) -> TrainerRows:
    """A dataset's rows: texts as they are, documents as spans of ids. Raises InputError when no document is usable."""
    if EXAMPLE_TYPES[item.spec.example_type] == DOCUMENTS:
        limit = job.recipe.base.max_seq_length
        return span_rows(item.train, encoder.tokenizer, item.spec.spans or Spans(), job.recipe.seed, limit)
    if isinstance(item.train, IterableDataset):
        return TrainerRows(endless(item.train, item.name), passed_over=None)
    return TrainerRows(item.train, passed_over=item.passed_over)


def _guide(index: int, encoder: SentenceTransformer, job: TrainingJob) -> SentenceTransformer | None:
    """The guide of a dataset's loss, if it takes one: the named encoder, else a copy of the untrained one."""
    spec = job.sets[index].spec
    if not LOSSES[spec.loss].guided:
        return None
    if spec.guide is None:
        return deepcopy(encoder)
    return build_encoder(spec.guide, job.guides[index], key=f"datasets.{index}.guide")


def verify(trainer: EncoderTrainer, job: TrainingJob) -> None:
    """Weights and embeddings must be finite and, where a checkpoint was chosen, score what it scored.

    All processes take part: in half precision an embedding depends on the other texts of its batch.
    """
    require_finite(list(trainer.model.parameters()), "training")
    if not torch.isfinite(trainer.model.encode(list(PROBES), convert_to_tensor=True)).all():
        raise RunError("training", "the embeddings are not finite", hint=DIVERGED)  # of weights that are, but large
    best = trainer.state.best_metric
    if job.evaluator is None or best is None:
        return
    with distributed_evaluation(trainer.model) as evaluates:
        score = job.evaluator(trainer.model)["sequential_score"] if evaluates else best
    half = job.arguments.bf16 or job.arguments.fp16 or job.recipe.base.dtype != "float32"
    if abs(score - best) > (SAME_IN_HALF if half else SAME):
        found = f"the saved weights score {score:.4f} on validation, not {best:.4f}"
        raise RunError(job.checkpoints, found, hint=f"remove it and {job.out}, and run the same command again")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Translate an out-of-memory GPU into RunError."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        problem = "the device's memory is full (--dry-run estimates what is needed)"
        hint = "use a loss that caches gradients, arguments.activation_checkpointing, bf16, or more processes"
        raise RunError("training", problem, hint=hint) from error


class ProgressReporter(TrainerCallback):
    """Callback that shows progress on stderr; ``metric`` names the validation score."""

    def __init__(self, metric: str):
        self.metric = metric
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Begin where a resumed run stands."""
        self.to_file, self.printed = not sys.stderr.isatty(), time.monotonic()
        form: dict[str, Any] = {"file": io.StringIO(), "bar_format": LINE} if self.to_file else {}
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, unit="step", desc="training", **form)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Advance to the state's step."""
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Show the newest numbers, and the best validation score with its step."""
        logs = logs or {}
        if "loss" in logs:
            self.shown |= {"loss": f"{logs['loss']:.4f}", "learning rate": f"{logs['learning_rate']:.2e}"}
        if (score := logs.get("eval_sequential_score")) is not None:
            earlier = [item for item in state.log_history if "eval_sequential_score" in item]
            best = max(earlier, key=lambda item: float(item["eval_sequential_score"]))
            self.shown[self.metric] = f"{score:.4f}"
            self.shown["best"] = f"{best['eval_sequential_score']:.4f} at step {best['step']:,}"
        self.bar.set_postfix(self.shown)
        if self.to_file and time.monotonic() - self.printed >= SECONDS:
            self.printed = time.monotonic()
            say(str(self.bar))

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Close the bar, or print the last line."""
        if self.to_file:
            say(str(self.bar))
        self.bar.close()
