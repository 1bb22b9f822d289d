"""Files of a training run: checkpoints while it trains, and the finished model in its directory.

The trainer writes a checkpoint file by file. A mark with the hash of every file is written last;
without it, or with other hashes, a checkpoint does not count. Trained weights are kept by parameter
name: those of the encoder or its adapter in ``student.safetensors``, those of the losses, e.g. a
masked-language-model head, in ``loss.safetensors``. Reading them back needs no second model, no
base and no Hub.
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

MARK = "whole.json"
ENCODER, LOSS = "student.safetensors", "loss.safetensors"
FULL_DISK_BYTES = 4 << 20  # free at most; torch.save says only "unexpected pos" then

Parameters = Mapping[str, nn.Parameter]


def collect_trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name; a shared one once."""
    parameters = module.named_parameters()
    return {name: parameter for name, parameter in parameters if parameter.requires_grad}


def collect_loss_parameters(
    losses: Mapping[str, nn.Module], encoder: nn.Module
) -> dict[str, nn.Parameter]:
    """Return the losses' trained parameters beyond the encoder's, as LOSS.NAME; without tied ones.

    Call it before the encoder in the losses is wrapped for several processes: names would change.
    """
    of_encoder = {id(parameter) for parameter in encoder.parameters()}
    trained = collect_trained(nn.ModuleDict(losses))
    return {
        name: parameter for name, parameter in trained.items() if id(parameter) not in of_encoder
    }


def save_weights(checkpoint: Path, parameters: Parameters, file: str) -> None:
    """Write ``parameters`` to ``file`` of the checkpoint, if there are any."""
    if not parameters:
        return
    checkpoint.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: parameter.detach().contiguous().cpu() for name, parameter in parameters.items()
    }
    save_file(tensors, checkpoint / file)


def load_weights(checkpoint: Path, parameters: Parameters, file: str) -> None:
    """Copy the values in ``file`` of a checkpoint into ``parameters``.

    Raises RunError unless the file holds the same names; a missing file holds none.
    """
    path = checkpoint / file
    saved = load_file(path) if path.is_file() else {}
    if saved.keys() != parameters.keys():
        different = min(saved.keys() ^ parameters.keys())
        raise RunError(
            path,
            f"holds other parameters than are trained ({different})",
            hint="remove the checkpoints",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def mark_whole(checkpoint: Path, fingerprint: str, processes: int = 1) -> None:
    """Mark ``checkpoint``, of the run with this fingerprint, as complete.

    After a power cut its hashes may differ.
    """
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MARK)
    hashes = {str(path.relative_to(checkpoint)): hash_file(path) for path in files}
    mark = {"fingerprint": fingerprint, "processes": processes, "files": hashes}
    write_text(checkpoint / MARK, json.dumps(mark, indent=2))


def is_whole(checkpoint: Path, fingerprint: str) -> bool:
    """Return whether ``checkpoint`` is of this run, and every file has the hash of its mark."""
    try:
        mark = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))
        return mark["fingerprint"] == fingerprint and all(
            hash_file(checkpoint / name) == sha256 for name, sha256 in mark["files"].items()
        )
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False


def find_newest_whole(directory: Path, fingerprint: str) -> Path | None:
    """Return the newest checkpoint that a run can resume from; None where there is none.

    A usable checkpoint is whole, and so is the best checkpoint that its state names. All other
    checkpoints are removed.
    """
    checkpoints = _list_newest_first(directory)
    complete = [checkpoint for checkpoint in checkpoints if is_whole(checkpoint, fingerprint)]
    usable: list[Path] = []
    for checkpoint in checkpoints:
        if checkpoint in complete and _find_best(checkpoint) in (None, *complete):
            usable.append(checkpoint)
        else:
            shutil.rmtree(checkpoint)
    return usable[0] if usable else None


def remove_old(directory: Path, keep: int) -> None:
    """Remove all checkpoints but the newest ``keep`` and the best checkpoints that these name.

    Call it after the newest checkpoint is marked. Upstream removes checkpoints before that, so a
    kill in between could leave no usable checkpoint.
    """
    checkpoints = _list_newest_first(directory)
    needed = {*checkpoints[:keep], *map(_find_best, checkpoints[:keep])}
    for checkpoint in checkpoints:
        if checkpoint not in needed:
            shutil.rmtree(checkpoint)


def _list_newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("checkpoint-*"), key=get_step, reverse=True)


def get_step(checkpoint: Path) -> int:
    """Return the optimiser step after which a checkpoint was written."""
    return int(checkpoint.name.rsplit("-", 1)[1])


def _find_best(checkpoint: Path) -> Path | None:
    """Return the best checkpoint at the time of this one, if validation chose any."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    best = state["best_model_checkpoint"]
    return checkpoint.with_name(Path(best).name) if best else None


@contextmanager
def convert_disk_errors(out: Path) -> Iterator[None]:
    """Translate a full disk into RunError.

    safetensors and torch.save raise errors of their own, without an errno.
    """
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        room = shutil.disk_usage(out.parent).free
        if "No space left" in str(error) or room <= FULL_DISK_BYTES:
            raise RunError(
                out.parent,
                f"no space left on the disk ({room:,} bytes free)",
                hint="free some and run the same command again: "
                "it resumes from the last whole checkpoint",
            ) from error
        if "I/O error" in str(error):  # a quota, a limit on the size of files
            raise RunError(
                out.parent,
                f"cannot be written: {error}",
                hint="choose another --out, and run the same command again",
            ) from error
        raise


def complete_run(
    out: Path, manifest: Manifest, built: Path, counts: dict[str, Any], provenance: dict[str, Any]
) -> Manifest:
    """Move the finished model in ``built`` into ``out`` and write the complete manifest, last."""
    files = tuple(describe_file(out, path) for path in move_into_place(built, out))
    changes = {"files": files, "counts": counts, "provenance": provenance, "complete": True}
    finished = manifest.model_copy(update=changes)
    write_manifest(out, finished)
    return finished


def move_into_place(built: Path, out: Path) -> list[str]:
    """Move every file of the finished model into ``out``; return their paths inside it, sorted.

    A kill in between leaves files that the manifest does not name yet; the next run moves the same
    bytes again.
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
