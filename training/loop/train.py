"""One training run, from an untrained encoder or its newest whole checkpoint to a finished run directory."""

import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import datasets
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.distributed import distributed_evaluation

from hub.cli import say
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest, begin, locked
from hub.errors import RunError
from training.data.example_types import SELF_PAIR
from training.data.streams import stream_errors
from training.loop.build import Trained, make_trainer, read_rows
from training.loop.checkpoints import newest_whole, processes_of
from training.loop.distributed import is_main, on_main, process_count
from training.loop.finish import disk_errors, finish, finish_baseline, write_timing
from training.loop.job import TrainingJob
from training.loop.trainer import DIVERGED, EncoderTrainer, require_finite
from training.model.encoder import build_encoder, has_dropout, save_release
from training.model.prompts import PROBES

SAME, SAME_IN_HALF = 1e-4, 5e-3  # scores of the same weights; half: another number of processes batches texts otherwise


def untrained_encoder(job: TrainingJob) -> SentenceTransformer:
    """The untrained encoder; what is random in it comes from the recipe's seed."""
    transformers.set_seed(job.recipe.seed)
    return build_encoder(job.recipe.base, job.base, job.recipe.lora)


def train(job: TrainingJob, fingerprint: str) -> Trained:
    """Train, or go on from the newest whole checkpoint. Raises RunError when training diverges."""
    encoder = untrained_encoder(job)
    if is_main():
        save_release(encoder, job.untrained, job.recipe.base, job.base, job.recipe.lora)
        _tell_without_dropout(encoder, job)
    checkpoint = on_main(lambda: newest_whole(job.checkpoints, fingerprint))
    with stream_errors(job.sets[0].spec):  # a stream is trained on alone
        rows = {item.name: read_rows(item, encoder, job) for item in job.sets}
        trainer = make_trainer(job, encoder, rows, fingerprint, _step(checkpoint))
        if checkpoint is not None and is_main():
            _tell_resumption(checkpoint)
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return Trained(trainer, rows, _step(checkpoint), time.monotonic() - started)


def _tell_without_dropout(encoder: SentenceTransformer, job: TrainingJob) -> None:
    names = [item.name for item in job.sets if item.spec.example_type == SELF_PAIR.name]
    if names and not has_dropout(encoder) and not job.recipe.token_dropout:
        told = "the encoder has no dropout, so nothing tells a text from itself: it learns from negatives alone"
        say(f"warning: {names[0]}: {told} (the recipe's token_dropout would)")


def _step(checkpoint: Path | None) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0


def _tell_resumption(checkpoint: Path) -> None:
    before = processes_of(checkpoint)
    say(f"going on from {checkpoint}")
    if before != process_count():
        say(f"warning: {before} processes wrote it, now there are {process_count()}: the same batches, other dropout")


def verify(trainer: EncoderTrainer, job: TrainingJob) -> None:
    """Weights and embeddings must be finite and, where a checkpoint was chosen, score what it scored.

    All processes take part, as they did when it was chosen: in half precision, what a text is given depends on the
    texts that are read beside it.
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


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """The lock on the run directory, which the main process holds for all."""
    with locked(directory) if is_main() else nullcontext():
        yield


def work(job: TrainingJob, command: str) -> Manifest:
    """Make what is missing of the run; returns its manifest, complete on the main process.

    Raises InputError when the run directory holds another run, RunError when training or the disk fails.
    """
    if job.recipe.threads is not None:
        torch.set_num_threads(job.recipe.threads)
    manifest = on_main(lambda: begin(job.out, job.manifest(), resolved(job.recipe)))
    if manifest.complete:
        if is_main():
            shutil.rmtree(job.checkpoints, ignore_errors=True)  # of a process killed at the very end
            say(f"{job.out}: already made; nothing to do")
        return manifest
    started = time.monotonic()
    with disk_errors(job.out), memory_errors():
        if job.recipe.is_baseline:
            return finish_baseline(job, manifest, untrained_encoder(job), command) if is_main() else manifest
        trained = train(job, manifest.fingerprint)
        verify(trained.trainer, job)
        if is_main():
            manifest = finish(job, manifest, trained, command)
            write_timing(job, time.monotonic() - started, trained)
    return manifest


def quiet_libraries() -> None:
    """Silence progress bars and warnings that libraries address to each other."""
    transformers.logging.set_verbosity_error()  # it reports the language-model head, which an encoder leaves out
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for message in (
        "`broadcast_buffers` is deprecated",  # accelerate to torch
        "torch.distributed.nn.functional.all_gather is deprecated",  # sentence-transformers to torch, at every step
        ".*only defines `gradient_checkpointing_enable`",  # transformers to sentence-transformers
        "`(is_gradient_checkpointing|gradient_checkpointing_enable)` is deprecated",  # to peft, sentence-transformers
    ):
        warnings.filterwarnings("ignore", message, FutureWarning)
