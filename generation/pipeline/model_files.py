"""Which local files are the language model of a recipe."""

from pathlib import Path

from hub.contract.recipe import LanguageModel
from hub.errors import InputError
from hub.untrusted import require_safetensors

_READ = (".json", ".safetensors", ".txt", ".model", ".jinja")  # what transformers reads of a folder


def model_files(model: LanguageModel) -> list[Path]:
    """The local files that are the model: of a folder what transformers reads, or its ``gguf_file`` alone.

    Raises InputError when they are not there, named in another way, or hold their weights as a pickle.
    """
    if not model.path:
        return []
    folder = Path(model.path)
    if folder.suffix == ".gguf" and folder.is_file():
        hint = f"set model.path={folder.parent} and model.gguf_file={folder.name}"
        raise InputError(f"model.path {folder}", "is a GGUF file, not a folder", hint=hint)
    if not folder.is_dir():
        raise InputError(f"model.path {folder}", "no such folder", hint="give the folder of a transformers model")
    if model.gguf_file:
        file = folder / model.gguf_file
        if not file.is_file():
            raise InputError(f"model.gguf_file {file}", "no such file", allowed=", ".join(_ggufs(folder)) or None)
        return [file]
    files = sorted(path for path in folder.iterdir() if path.suffix in _READ)
    if model.facts.local and not (folder / "config.json").is_file() and (held := _ggufs(folder)):
        raise InputError(f"model.path {folder}", "holds GGUF files alone", hint=f"set model.gguf_file={held[0]}")
    if model.facts.local:
        require_safetensors(folder, f"model.path {folder}", "transformers")
    return files


def _ggufs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.gguf"))
