"""Files of a training run: checkpoints while it trains, and the finished model in its directory.

The trainer writes a checkpoint file by file. Last comes ``MARK_FILE``, with the hash of every other
file. A checkpoint without this file, or with other hashes, is incomplete. Trained weights are saved
by parameter name: those of the encoder or its adapter in ``student.safetensors``, those of the
losses, e.g. a masked-language-model head, in ``loss.safetensors``. Loading them needs no second
model, no base and no Hub.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sts_dino.hub.contract.run_dir import Manifest, describe_file, write_manifest
from sts_dino.hub.durable import hash_file, make_folder, sync_to_disk, write_text
from sts_dino.hub.errors import RunError

MARK_FILE = "whole.json"
ENCODER_FILE = "student.safetensors"
LOSS_FILE = "loss.safetensors"
# with fewer free bytes the disk counts as full: torch.save says only "unexpected pos"
FULL_DISK_BYTES = 4 << 20
# what safetensors and torch.save say of a file that a quota or a limit on file sizes cuts
CUT_FILE_MESSAGES = ("I/O error", "unexpected pos", "iostream error")
# errors over a missing file, and over a mark that is not JSON, not UTF-8 or of another form
DAMAGED_MARK_ERRORS = (
    *(FileNotFoundError, NotADirectoryError),
    *(ValueError, AttributeError, KeyError, TypeError),
)

Parameters = Mapping[str, nn.Parameter]


def collect_trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return name → parameter that is not frozen; a shared parameter has its first name alone."""
    parameters = module.named_parameters()
    return {name: parameter for name, parameter in parameters if parameter.requires_grad}


def collect_loss_parameters(
    losses: Mapping[str, nn.Module], encoder: nn.Module
) -> dict[str, nn.Parameter]:
    """Return DATASET.NAME → parameter: the losses' own trained parameters, e.g. of a classifier.

    Parameters that a loss shares with the encoder are left out. Call it before the encoder in the
    losses is wrapped for several processes, which changes names. ``losses``: dataset name → loss.
    """
    encoder_ids = {id(parameter) for parameter in encoder.parameters()}
    trained = collect_trained(nn.ModuleDict(losses)).items()
    return {name: parameter for name, parameter in trained if id(parameter) not in encoder_ids}


def save_weights(checkpoint: Path, parameters: Parameters, file: str) -> None:
    """Write ``parameters`` to the safetensors file ``file`` of a checkpoint.

    Makes the checkpoint's folder. Without parameters, nothing is written.
    """
    if not parameters:
        return
    checkpoint.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().contiguous().cpu() for name, parameter in parameters.items()
    }
    save_file(tensors, checkpoint / file)


def load_weights(checkpoint: Path, parameters: Parameters, file: str) -> None:
    """Copy the values in ``file`` of a checkpoint into ``parameters``, in place.

    Raises RunError unless the file holds the same names with the same shapes. A missing file counts
    as a file without parameters.
    """
    path = checkpoint / file
    saved = load_file(path) if path.is_file() else {}
    saved_shapes = {name: tensor.shape for name, tensor in saved.items()}
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    if saved_shapes != shapes:
        different = min(name for name, _ in saved_shapes.items() ^ shapes.items())
        raise RunError(
            path,
            f"holds other parameters than are trained ({different})",
            hint="remove the checkpoints",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def mark_complete(checkpoint: Path, fingerprint: str, processes: int = 1) -> None:
    """Mark a checkpoint as complete: write its run's fingerprint and the hashes of its files.

    The files are not synced to the disk, so after a power cut the hashes may differ.
    ``processes``: the number of processes that trained.
    """
    hashes = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != MARK_FILE:
            hashes[path.relative_to(checkpoint).as_posix()] = hash_file(path)
    mark = {"fingerprint": fingerprint, "processes": processes, "files": hashes}
    write_text(checkpoint / MARK_FILE, json.dumps(mark, indent=2))


def is_complete(checkpoint: Path, fingerprint: str) -> bool:
    """Return whether ``mark_complete`` marked a checkpoint, and its files are still the same.

    ``fingerprint``: the run's fingerprint; a checkpoint of another run is not complete. Neither is
    one with a damaged mark.
    """
    try:
        mark = json.loads((checkpoint / MARK_FILE).read_text(encoding="utf-8"))
        if mark["fingerprint"] != fingerprint:
            return False
        hashes = mark["files"].items()
        return all(hash_file(checkpoint / name) == sha256 for name, sha256 in hashes)
    except DAMAGED_MARK_ERRORS:  # a kill or a power cut left the checkpoint unfinished
        return False


def find_newest_usable(directory: Path, fingerprint: str) -> Path | None:
    """Return the newest checkpoint in ``directory`` that the run can resume from; None without one.

    A checkpoint is usable if it is complete, and so is the best checkpoint that its state names, if
    any. Checkpoints that are not usable are removed.
    """
    checkpoints = _list_newest_first(directory)
    complete = [checkpoint for checkpoint in checkpoints if is_complete(checkpoint, fingerprint)]
    usable: list[Path] = []
    for checkpoint in checkpoints:
        if checkpoint in complete and _read_best_checkpoint(checkpoint) in (None, *complete):
            usable.append(checkpoint)
        else:
            shutil.rmtree(checkpoint)
    return usable[0] if usable else None


def remove_old_checkpoints(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep`` and the best checkpoints that these name.

    The state of a checkpoint names the best checkpoint up to its step.

    Call it after the newest checkpoint is marked. Upstream removes checkpoints before that, so a
    kill in between could leave no usable checkpoint.
    """
    checkpoints = _list_newest_first(directory)
    newest = checkpoints[:keep]
    needed = {*newest, *map(_read_best_checkpoint, newest)}
    for checkpoint in checkpoints:
        if checkpoint not in needed:
            shutil.rmtree(checkpoint)


def _list_newest_first(directory: Path) -> list[Path]:
    """List the checkpoints in ``directory``, the latest step first; other folders are left out."""
    paths = directory.glob("checkpoint-*")
    checkpoints = (path for path in paths if path.name.removeprefix("checkpoint-").isdecimal())
    return sorted(checkpoints, key=get_step, reverse=True)


def get_step(checkpoint: Path) -> int:
    """Return the optimiser step (from 1) after which a checkpoint was written."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def _read_best_checkpoint(checkpoint: Path) -> Path | None:
    """Return the best checkpoint that the state of ``checkpoint`` names; None without validation.

    The returned path lies beside ``checkpoint``, also when the run was moved; it may be missing.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best = state["best_model_checkpoint"]
    return checkpoint.with_name(Path(best).name) if best else None


@contextmanager
def convert_disk_errors(out: Path) -> Iterator[None]:
    """Convert errors of safetensors and torch.save over a full disk or a quota into RunError.

    These errors have no errno: their messages and the free space decide. All other errors pass
    unchanged, OSError included. ``out``: the run directory.
    """
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        free_bytes = shutil.disk_usage(out.parent).free
        if "No space left" in str(error) or free_bytes <= FULL_DISK_BYTES:
            raise RunError(
                out.parent,
                f"no space left on the disk ({free_bytes:,} bytes free)",
                hint="free some and run the same command again: "
                "it resumes from the last whole checkpoint",
            ) from error
        if any(message in str(error) for message in CUT_FILE_MESSAGES):
            raise RunError(
                out.parent,
                f"cannot be written: {error}",
                hint="raise the quota or the limit on file sizes and run the same command again, "
                "or choose another --out",
            ) from error
        raise


def complete_run(
    out: Path, manifest: Manifest, built: Path, counts: dict[str, Any], provenance: dict[str, Any]
) -> Manifest:
    """Move the finished model in ``built`` into ``out``; write and return the complete manifest.

    It is ``manifest`` with the model's files, ``counts`` and ``provenance``. ``out``: the run
    directory. ``built``, the model's folder, is removed.
    """
    files = tuple(describe_file(out, path) for path in move_into_place(built, out))
    changes = {"files": files, "counts": counts, "provenance": provenance, "complete": True}
    finished = manifest.model_copy(update=changes)
    write_manifest(out, finished)
    return finished


def move_into_place(built: Path, out: Path) -> list[str]:
    """Move every file of the folder ``built`` into ``out``, and remove ``built``.

    Returns the files' paths relative to ``out``, with slashes, sorted. After a kill in between,
    files in ``out`` are not in the manifest yet; the next run replaces them by the same bytes.
    """
    files = [path for path in built.rglob("*") if path.is_file()]
    paths = sorted(path.relative_to(built).as_posix() for path in files)
    for path in paths:
        make_folder((out / path).parent)
        sync_to_disk(built / path)
        (built / path).replace(out / path)
        sync_to_disk((out / path).parent)
    shutil.rmtree(built)
    return paths
