"""Finishes a run: the model moves into the run directory, the manifest last; timing is written beside it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hub.contract.published_paths import clone_of
from hub.contract.run_dir import Manifest, describe, write_manifest
from hub.durable import atomic_path, fsync, make_folder, write_text
from hub.errors import RunError
from hub.process import peak_rss_mb
from training.encoder.encoder import save_encoder, save_release
from training.loop.arguments import reported
from training.loop.distributed import process_count
from training.loop.job import TrainingJob
from training.loop.trainer import EncoderTrainer

ROOT = Path(__file__).resolve().parents[2]  # of the clone or installation
NOT_PARTS = frozenset(
    ("loss", "grad_norm", "learning_rate", "epoch", "step", "train_loss", "total_flos", "num_input_tokens_seen")
)
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the trained weights, which ``merge: auto`` chooses among
LITTLE_ROOM = 4 << 20  # bytes; torch.save says only "unexpected pos" when it runs out


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Translate a full disk into RunError: safetensors and torch.save raise errors of their own, without an errno."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        room = shutil.disk_usage(out.parent).free
        if "No space left" not in str(error) and room > LITTLE_ROOM:
            if "I/O error" in str(error):  # a quota, a limit on the size of files
                hint = "choose another --out, and run the same command again"
                raise RunError(out.parent, f"cannot be written: {error}", hint=hint) from error
            raise
        hint = "free some and run the same command again: it resumes from the last whole checkpoint"
        raise RunError(out.parent, f"no space left on the disk ({room:,} bytes free)", hint=hint) from error


def finish(
    job: TrainingJob, manifest: Manifest, encoder: SentenceTransformer, trainer: EncoderTrainer | None, command: str
) -> Manifest:
    """Write the model and its facts into the run directory; ``trainer`` None: an untrained baseline."""
    merged: dict[str, Any] = {}
    counts: dict[str, Any] = {"dimensions": encoder.get_embedding_dimension()}
    layers = encoder.transformers_model
    parameters = sum(parameter.numel() for parameter in encoder.parameters())
    if layers is not None:  # a base in 4 bits has two weights in a tensor's element
        parameters += layers.num_parameters() - sum(parameter.numel() for parameter in layers.parameters())
    if trainer is None:
        built = job.beside("building")
        save_encoder(encoder, built)
    else:
        built = job.checkpoints / "model"
        save_release(encoder, built, job.recipe.base, job.base, job.recipe.lora)
        merged = {"merge": merge_with_start(job, built, str(encoder.device))} if job.recipe.merge else {}
        trained = sum(parameter.numel() for parameter in trainer.encoder_parameters.values())
        if job.recipe.lora is not None and job.recipe.lora.release == "merged":
            parameters -= trained  # the adapter is in the base's weights now
        found = [item.rows for item in job.sets]
        rows = None if None in found else sum(filter(None, found))
        counts |= {"trained_parameters": trained, "training_rows": rows, "seen_rows": trainer.rows_seen()}
        counts |= {"passed_over": trainer.passed_over} if trainer.passed_over else {}
    code = clone_of(ROOT)  # commit and public address; nothing outside of a clone
    provenance = {
        "datasets": [item.describe() for item in job.sets],
        "validation": job.evaluator.sources if job.evaluator else [],
        "base": job.base.describe(job.recipe.base),
        "training": None if trainer is None else training_facts(job, trainer) | merged,
        **({"code": code} if code else {}),
        "command": command,
    }
    finished = complete(job.out, manifest, built, {"parameters": parameters, **counts}, provenance)
    shutil.rmtree(job.checkpoints, ignore_errors=True)
    return finished


def merge_with_start(job: TrainingJob, built: Path, device: str) -> dict[str, Any]:
    """Merge the weights in ``built`` with those of the start, in float32; return the share and the scores it had.

    share: of the trained weights (LM-Cocktail, WiSE-FT). With ``merge: auto`` the best on validation, the smallest of
    equal ones. Every call begins with weights that the trainer has just written, so a killed one is repeated.
    """
    start, wanted = job.beside("base"), job.recipe.merge
    trained = {path.relative_to(built): load_file(path) for path in sorted(built.rglob("*.safetensors"))}

    def write(share: float) -> float:
        for name, tensors in trained.items():
            with safe_open(built / name, "pt") as file:
                metadata = file.metadata()
            before = load_file(start / name)
            merged = {
                key: ((1 - share) * before[key].float() + share * tensor.float()).to(tensor.dtype)
                if tensor.is_floating_point()
                else tensor
                for key, tensor in tensors.items()
            }
            with atomic_path(built / name) as temporary:  # ``trained`` maps the file that it replaces
                save_file(merged, temporary, metadata)
        return share

    if wanted != "auto":
        return {"share": write(float(wanted or 1))}
    assert job.evaluator is not None
    scores = dict[str, float]()
    for share in SHARES:
        write(share)
        encoder = SentenceTransformer(str(built), device=device, local_files_only=True, trust_remote_code=False)
        scores[f"{share:g}"] = round(job.evaluator(encoder)["sequential_score"], 6)
    return {"share": write(float(max(scores, key=lambda share: scores[share]))), "validation_scores": scores}


def complete(
    out: Path, manifest: Manifest, built: Path, counts: dict[str, Any], provenance: dict[str, Any]
) -> Manifest:
    """Move the finished model into ``out`` and write the complete manifest, last."""
    files = tuple(describe(out, path) for path in move_into_place(built, out))
    changes = {"files": files, "counts": counts, "provenance": provenance, "complete": True}
    finished = manifest.model_copy(update=changes)
    write_manifest(out, finished)
    return finished


def move_into_place(built: Path, out: Path) -> list[str]:
    """Move every file of the finished model into ``out``; return their paths inside it, sorted.

    A kill in between leaves files that the manifest does not name yet; the next run moves the same bytes again.
    """
    paths = sorted(path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file())
    for path in paths:
        make_folder((out / path).parent)
        fsync(built / path)
        (built / path).replace(out / path)
        fsync((out / path).parent)
    shutil.rmtree(built)
    return paths


def training_facts(job: TrainingJob, trainer: EncoderTrainer) -> dict[str, Any]:
    """Steps, chosen checkpoint, curves and arguments, for the manifest.

    A curve is [[step, value]], steps ascending; ``loss_parts``: name → curve, only for losses of several parts.
    """
    state = trainer.state

    def curve(name: str) -> list[list[float]]:
        return [[entry["step"], round(entry[name], 6)] for entry in state.log_history if name in entry]

    parts = dict.fromkeys(name for entry in state.log_history if "loss" in entry for name in entry)
    return {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0, 4),
        "best_step": state.best_global_step,
        "validation_metric": job.evaluator.metric if job.evaluator else None,
        "validation_score": state.best_metric,
        "loss_curve": curve("loss"),
        "validation_curve": curve("eval_sequential_score"),
        "loss_parts": {name: curve(name) for name in parts if name not in NOT_PARTS},
        "arguments": reported(job.arguments, job.recipe),
        "batch_size": job.recipe.batch_size,
        "processes": process_count(),
        "seed": job.recipe.seed,
        "threads": job.recipe.threads,
    }


def write_timing(job: TrainingJob, seconds: float, trainer: EncoderTrainer) -> None:
    """Write seconds, throughput and peak memory of this process beside the run directory; they are not published.

    ``samples_per_second``: rows of the steps since the run was resumed, over training with evaluations and checkpoints.
    """
    rows = (trainer.state.global_step - trainer.first_step) * job.recipe.batch_size
    timing = {
        "seconds": round(seconds, 2),
        "training_seconds": round(trainer.seconds, 2),
        "samples_per_second": round(rows / trainer.seconds, 1),
        "peak_rss_mb": peak_rss_mb(),
        "peak_gpu_mb": round(torch.cuda.max_memory_allocated() / 2**20, 1) if torch.cuda.is_available() else None,
        "resumed_from_step": trainer.first_step,
    }
    write_text(job.beside("timing.json"), json.dumps(timing, indent=2) + "\n")
