"""Train one sentence encoder: ``python -m training.run RECIPE [--out --limit --set KEY.KEY=VALUE --dry-run]``.

Reads the recipe's pinned datasets and base, writes ``artifacts/models/NAME``: the model as plain SentenceTransformer
files, ``recipe.yaml`` and, last, ``manifest.json``. Beside it lie ``NAME.base`` (the untrained student, for the score
before), ``NAME.timing.json`` and, while it runs, ``NAME.checkpoints``. Killed and started again, it goes on from its
newest whole checkpoint; finished, it is not trained again.
"""

import shutil
import time
from typing import Any

import torch
import transformers

from hub.cli import DryRunOption, LimitOption, OutOption, RecipeArgument, SetOption, command_line, new_app, run, say
from hub.errors import RunError
from hub.recipe_file import resolved
from hub.run_dir import Manifest, begin, locked, write_manifest
from training.arguments import reported
from training.checkpoints import newest_whole
from training.job import Job, prepare, print_plan
from training.models import build_student, save_student
from training.publication import describe_files, disk_errors, move_into_place, write_timing
from training.trainer import StudentTrainer, make_trainer

app = new_app("Train a sentence encoder from a model recipe.")


def train(job: Job, run_fingerprint: str) -> tuple[StudentTrainer, int]:
    """Train, or go on from the newest whole checkpoint; returns the trainer holding the chosen weights and the step
    it went on from (0: new). Raises RunError when training diverges.
    """
    if job.recipe.threads is not None:
        torch.set_num_threads(job.recipe.threads)
    student = build_student(job.recipe.base, job.base)
    save_student(student, job.untrained)
    trainer = make_trainer(student, job.sets, job.arguments, job.evaluator, run_fingerprint)
    checkpoint = newest_whole(job.checkpoints, run_fingerprint)
    if checkpoint is not None:
        say(f"going on from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    _verify(trainer, job)
    return trainer, int(checkpoint.name.rsplit("-", 1)[1]) if checkpoint else 0


def _verify(trainer: StudentTrainer, job: Job) -> None:
    """The weights must be finite and, where a checkpoint was chosen, score what it scored (upstream only logs it when
    loading the best checkpoint fails).
    """
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trainer.model.parameters()):
        raise RunError("training", "the weights are no longer finite", hint="lower arguments.learning_rate")
    if job.evaluator is None or trainer.state.best_metric is None:
        return
    score = job.evaluator(trainer.model)["sequential_score"]
    if abs(score - trainer.state.best_metric) > 1e-4:
        found = f"the saved weights score {score:.4f} on validation, not {trainer.state.best_metric:.4f}"
        raise RunError(job.checkpoints, found, hint=f"remove it and {job.out}, and run the same command again")


def provenance(job: Job, trainer: StudentTrainer, command: str) -> dict[str, Any]:
    """Where the weights come from: data, base and training, for the manifest."""
    state = trainer.state
    curve = [[entry["step"], round(entry["loss"], 6)] for entry in state.log_history if "loss" in entry]
    scores = [entry for entry in state.log_history if "eval_sequential_score" in entry]
    return {
        "datasets": [item.describe() for item in job.sets],
        "base": job.base.describe(job.recipe.base),
        "training": {
            "steps": state.global_step,
            "epochs": round(state.epoch or 0, 4),
            "best_step": state.best_global_step,
            "validation_spearman": state.best_metric,
            "validation_curve": [[entry["step"], round(entry["eval_sequential_score"], 6)] for entry in scores],
            "loss_curve": curve,
            "arguments": reported(job.arguments),
            "seed": job.recipe.seed,
            "threads": job.recipe.threads,
        },
        "command": command,
    }


def finish(job: Job, manifest: Manifest, trainer: StudentTrainer, command: str) -> Manifest:
    """Move the model into the run directory and write the complete manifest, last."""
    built = job.checkpoints / "model"
    save_student(trainer.model, built)
    paths = move_into_place(built, job.out)
    counts = {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "dimensions": trainer.model.get_embedding_dimension(),
        "training_pairs": sum(len(item.train) for item in job.sets),
    }
    complete = manifest.model_copy(
        update={
            "files": tuple(describe_files(job.out, paths)),
            "counts": counts,
            "provenance": provenance(job, trainer, command),
            "complete": True,
        }
    )
    write_manifest(job.out, complete)
    shutil.rmtree(job.checkpoints)
    return complete


@app.command()
def main(
    recipe: RecipeArgument,
    out: OutOption = None,
    limit: LimitOption = None,
    settings: SetOption = [],  # noqa: B006 - typer copies it
    dry_run: DryRunOption = False,
) -> None:
    """Train the encoder of RECIPE on its pinned datasets; the untrained one is kept beside its run directory.

    A killed run goes on from its last whole checkpoint. Datasets named by repo id come from the Hub of HF_ENDPOINT.

    Examples:

      python -m training.run recipes/demo/demo-sts-dino.yaml --dry-run

      python -m training.run recipes/demo/demo-sts-dino.yaml --limit 500 --set arguments.learning_rate=1e-3 --out /tmp/m
    """
    transformers.logging.set_verbosity_error()  # it reports the language-model head, which an encoder leaves out
    transformers.logging.disable_progress_bar()
    job = prepare(recipe, out, limit, settings)
    if dry_run:
        print_plan(job)
        return
    with locked(job.out):
        manifest = begin(job.out, job.manifest(), resolved(job.recipe))
        if manifest.complete:
            say(f"{job.out}: already trained; nothing to do")
        else:
            started = time.monotonic()
            with disk_errors(job.out):
                trainer, first_step = train(job, manifest.fingerprint)
                manifest = finish(job, manifest, trainer, command_line("training.run", recipe, limit, settings))
            write_timing(job.out, time.monotonic() - started, trainer, first_step)
    print_result(job, manifest)


def print_result(job: Job, manifest: Manifest) -> None:
    """Where the model lies and how it was chosen, on stdout."""
    training = manifest.provenance["training"]
    chosen = "last step" if training["best_step"] is None else f"step {training['best_step']}"
    score = training["validation_spearman"]
    print(f"{job.out}: {manifest.counts['training_pairs']:,} pairs, {training['steps']} steps, kept {chosen}")
    if score is not None:
        print(f"validation Spearman {100 * score:.2f}")


if __name__ == "__main__":
    run(app)
