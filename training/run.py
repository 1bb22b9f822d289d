"""Train one sentence encoder: ``python -m training.run RECIPE [--out --limit --set KEY.KEY=VALUE --dry-run]``.

Reads the recipe's pinned datasets and base, writes ``artifacts/models/NAME``: the model as plain SentenceTransformer
files, ``recipe.yaml`` and, last, ``manifest.json``. Beside it lie ``NAME.base`` (the untrained student, for the score
before), ``NAME.logs`` (TensorBoard), ``NAME.timing.json`` and, while it runs, ``NAME.checkpoints``. Killed and started
again, it goes on from its newest whole checkpoint; finished, it is not trained again. On several devices the batch of a
step stays the recipe's: ``torchrun --nproc-per-node 4 -m training.run RECIPE``, or ``accelerate launch``.
"""

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

from hub.cli import DryRunOption, LimitOption, OutOption, RecipeArgument, SetOption, command_line, new_app, run, say
from hub.errors import RunError
from hub.recipe_file import resolved
from hub.run_dir import Manifest, begin, locked
from training.checkpoints import newest_whole, processes_of
from training.distributed import is_main, leave_group, on_main, one_voice, process_count
from training.job import Job, prepare
from training.models import build_student, save_release
from training.plan import print_plan
from training.publication import disk_errors, finish, finish_baseline, write_timing
from training.session import Trained, make_trainer, read_rows
from training.streams import stream_errors
from training.trainer import StudentTrainer, require_finite

app = new_app("Train a sentence encoder from a model recipe.")

SAME, SAME_IN_HALF = 1e-4, 5e-3  # scores of the same weights; half: another number of processes batches texts otherwise


def new_student(job: Job) -> SentenceTransformer:
    """The untrained student; what is random in it comes from the recipe's seed."""
    transformers.set_seed(job.recipe.seed)
    return build_student(job.recipe.base, job.base, job.recipe.lora)


def train(job: Job, fingerprint: str) -> Trained:
    """Train, or go on from the newest whole checkpoint. Raises RunError when training diverges."""
    student = new_student(job)
    if is_main():
        save_release(student, job.untrained, job.recipe.base, job.base, job.recipe.lora)
    checkpoint = on_main(lambda: newest_whole(job.checkpoints, fingerprint))
    with stream_errors(job.sets[0].spec):  # a stream is trained on alone
        rows = {item.name: read_rows(item, student, job) for item in job.sets}
        trainer = make_trainer(job, student, rows, fingerprint, _step(checkpoint))
        if checkpoint is not None and is_main():
            _tell_resumption(checkpoint)
        started = time.monotonic()
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return Trained(trainer, rows, _step(checkpoint), time.monotonic() - started)


def _step(checkpoint: Path | None) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0


def _tell_resumption(checkpoint: Path) -> None:
    before = processes_of(checkpoint)
    say(f"going on from {checkpoint}")
    if before != process_count():
        say(f"warning: {before} processes wrote it, now there are {process_count()}: the same batches, other dropout")


def verify(trainer: StudentTrainer, job: Job) -> None:
    """The weights must be finite and, where a checkpoint was chosen, score what it scored.

    All processes take part, as they did when it was chosen: in half precision, what a text is given depends on the
    texts that are read beside it.
    """
    require_finite(list(trainer.model.parameters()), "training")
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
    """Tell a full GPU as what it is."""
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


def work(job: Job, command: str) -> Manifest:
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
            return finish_baseline(job, manifest, new_student(job), command) if is_main() else manifest
        trained = train(job, manifest.fingerprint)
        verify(trained.trainer, job)
        if is_main():
            manifest = finish(job, manifest, trained, command)
            write_timing(job, time.monotonic() - started, trained)
    return manifest


@app.command()
def main(
    recipe: RecipeArgument,
    out: OutOption = None,
    limit: LimitOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
) -> None:
    """Train the encoder of RECIPE on its pinned datasets; the untrained one is kept beside its run directory.

    A killed run goes on from its last whole checkpoint. Datasets named by repo id come from the Hub of HF_ENDPOINT. On
    several devices, start it with torchrun or accelerate launch: the batch of a step stays the recipe's.

    Examples:

      python -m training.run recipes/demo/demo-sts-dino.yaml --dry-run

      python -m training.run recipes/demo/demo-sts-dino.yaml --limit 500 --set arguments.learning_rate=1e-3 --out /tmp/m

      torchrun --nproc-per-node 4 -m training.run recipes/models/sroberta-sts-dino-x2.yaml
    """
    quiet_libraries()
    with one_voice():
        job = prepare(recipe, out, limit, settings)
        if dry_run:
            if is_main():
                print_plan(job)
            return
        with held(job.out):
            manifest = work(job, command_line("training.run", recipe, limit, settings))
    leave_group()
    if is_main():
        print_result(job, manifest)


def quiet_libraries() -> None:
    """Leave out what the libraries say to themselves or to each other."""
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


def print_result(job: Job, manifest: Manifest) -> None:
    """Where the model lies and how it was chosen, on stdout."""
    training = manifest.provenance["training"]
    if training is None:
        print(f"{job.out}: a baseline, the base as it is")
        return
    chosen = "last step" if training["best_step"] is None else f"step {training['best_step']}"
    rows = manifest.counts["training_rows"]
    read = "a stream" if rows is None else f"{rows:,} rows"
    print(f"{job.out}: {read}, {training['steps']} steps, kept {chosen}")
    if training["validation_score"] is not None:
        print(f"validation: {training['validation_metric']} {100 * training['validation_score']:.2f}")


if __name__ == "__main__":
    run(app)
