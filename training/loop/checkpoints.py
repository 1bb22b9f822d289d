"""Checkpoints: the trained weights by name, a completeness mark, and the newest complete one to resume from.

The trainer writes a checkpoint file by file. A mark with the hash of every file is written last; without it, or with
other hashes, a checkpoint does not count. Trained weights are kept by parameter name: those of the encoder or its
adapter in ``student.safetensors``, those of the losses, e.g. a masked-language-model head, in ``loss.safetensors``.
Reading them back needs no second model, no base and no Hub.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hub.durable import sha256_file, write_text
from hub.errors import RunError

MARK = "whole.json"
ENCODER, LOSS = "student.safetensors", "loss.safetensors"


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name; a shared one once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def own_parameters(losses: Mapping[str, nn.Module], encoder: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters of the losses beyond the encoder's, as LOSS.NAME; tied ones are left out.

    Call it before the encoder in the losses is wrapped for several processes: names would change.
    """
    known = {id(parameter) for parameter in encoder.parameters()}
    found = trained(nn.ModuleDict(losses))
    return {name: parameter for name, parameter in found.items() if id(parameter) not in known}


def save_weights(checkpoint: Path, parameters: Mapping[str, nn.Parameter], file: str) -> None:
    """Write ``parameters`` to ``file`` of the checkpoint, if there are any."""
    if parameters:
        checkpoint.mkdir(parents=True, exist_ok=True)
        tensors = {name: parameter.detach().contiguous().cpu() for name, parameter in parameters.items()}
        save_file(tensors, checkpoint / file)


def load_weights(checkpoint: Path, parameters: Mapping[str, nn.Parameter], file: str) -> None:
    """Give ``parameters`` the values in ``file``. Raises RunError unless these are just the ones it holds."""
    path = checkpoint / file
    saved = load_file(path) if path.is_file() else {}
    if saved.keys() != parameters.keys():
        differ = sorted(saved.keys() ^ parameters.keys())
        raise RunError(path, f"holds other parameters than are trained ({differ[0]})", hint="remove the checkpoints")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def mark_whole(checkpoint: Path, fingerprint: str, processes: int = 1) -> None:
    """Mark ``checkpoint``, of the run with this fingerprint, as complete; after a power cut its hashes may differ."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.name != MARK)
    hashes = {str(path.relative_to(checkpoint)): sha256_file(path) for path in files}
    mark = {"fingerprint": fingerprint, "processes": processes, "files": hashes}
    write_text(checkpoint / MARK, json.dumps(mark, indent=2))


def is_whole(checkpoint: Path, fingerprint: str) -> bool:
    """Whether ``checkpoint`` is of this run, and complete: every file has the hash it was marked with."""
    try:
        mark = json.loads((checkpoint / MARK).read_text(encoding="utf-8"))
        files = {checkpoint / name: sha256 for name, sha256 in mark["files"].items()}
        return mark["fingerprint"] == fingerprint and all(sha256_file(path) == files[path] for path in files)
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return False


def newest_whole(directory: Path, fingerprint: str) -> Path | None:
    """The checkpoint to resume from, or None to start anew; those without their best one so far are removed."""
    found = _newest_first(directory)
    whole = [checkpoint for checkpoint in found if is_whole(checkpoint, fingerprint)]
    usable = [checkpoint for checkpoint in whole if (best := _best(checkpoint)) is None or best in whole]
    for checkpoint in found:
        if checkpoint not in usable:
            shutil.rmtree(checkpoint)
    return usable[0] if usable else None


def remove_old(directory: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints and the best ones that these name, when the newest is marked.

    Upstream removes them before that, so a kill in between could leave none of use.
    """
    found = _newest_first(directory)
    needed = set(found[:keep])
    needed |= {best for checkpoint in needed if (best := _best(checkpoint)) is not None}
    for checkpoint in found:
        if checkpoint not in needed:
            shutil.rmtree(checkpoint)


def _newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)


def _best(checkpoint: Path) -> Path | None:
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    named = state["best_model_checkpoint"]
    return checkpoint.with_name(Path(named).name) if named else None
