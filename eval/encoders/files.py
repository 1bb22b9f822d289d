"""What a model's folder is: the hash over the files that decide its embeddings, and the weights it must have."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hub.contract.run_dir import MANIFEST, RECIPE, REPORT
from hub.contract.shards import sha256_file
from hub.errors import InputError
from hub.model_folder import NO_PICKLES, read_object

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.h5", "*.ot", "*.msgpack", "*.onnx", "onnx/*", "openvino/*")
"""What is not downloaded with a model: pickles, and weights for other libraries."""
_DESCRIPTIONS = {
    "README.md",
    "results.json",
    MANIFEST,
    RECIPE,
    REPORT,
    ".gitattributes",
}  # what is written about a model
_DESCRIPTION_FOLDERS = {"assets", "onnx", "openvino"}
_DESCRIPTION_SUFFIXES = {".md", ".png", ".svg", ".pdf", ".csv"}


def content_hash(folder: Path) -> str:
    """SHA-256 over the files of a model folder that decide its embeddings, the same wherever the folder lies.

    Cards, results, plots and hidden files are left out, so that evaluating or publishing a model changes nothing; an
    unknown file counts. It takes as long as reading the files.
    """
    lines = [f"{path}\0{sha256_file(folder / path)}\n" for path in deciding_files(folder)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def deciding_files(folder: Path) -> list[PurePosixPath]:
    """Paths inside a model folder, in order of their text, of the files that decide its embeddings."""
    found = (PurePosixPath(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if path.is_file())
    return sorted((path for path in found if not _is_description(path)), key=str)


def _is_description(path: PurePosixPath) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return hidden or path.parts[0] in _DESCRIPTION_FOLDERS | _DESCRIPTIONS or path.suffix in _DESCRIPTION_SUFFIXES


def require_all_weights(encoder: SentenceTransformer, folder: Path, model: str) -> None:
    """Raise InputError for weights that the files lack: transformers makes them at random, and only warns.

    The names are compared once more on the meta device, where no weight is read. A pooler is no part of an embedding.
    """
    network: Any = encoder.transformers_model
    if network is None or getattr(network, "_hf_peft_config_loaded", False) or getattr(network, "is_quantized", False):
        return
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    settings = {"device_map": "meta", "output_loading_info": True}
    _, found = type(network).from_pretrained(folder / modules[0]["path"], **settings, **NO_PICKLES)
    missing = sorted(name for name in found["missing_keys"] if "pooler" not in name)
    if missing:
        raise InputError(model, f"its weights lack {missing[0]} ({len(missing)} in all), which its config asks for")


def adapted_revision(folder: Path, model: str) -> str:
    """What an adapter's base adds to the revision, as the adapter's own files do not hold its weights; else nothing.

    sentence-transformers reads the base at its branch main, so that is downloaded here and its commit returned.
    """
    from huggingface_hub import snapshot_download

    from hub.client.failures import reading

    added = ""
    for config in sorted(folder.rglob("adapter_config.json")):
        base = read_object(config, model).get("base_model_name_or_path") or ""
        if base and Path(base).is_dir():
            added += f"+{content_hash(Path(base))}"
        elif not base or Path(base).is_absolute():
            hint = "evaluate its merged form"
            raise InputError(model, f"is an adapter for {base!r}, which is not here and not on the Hub", hint=hint)
        else:
            with reading(base, "main"):
                added += f"+{Path(snapshot_download(base, ignore_patterns=list(OTHER_WEIGHTS))).name}"
    return added
