"""Safe loading of untrusted model folders: no remote code, no pickles, and one line for a damaged file.

Whatever loads a model, a tokenizer or a config passes ``NO_CODE`` and stands within ``reading_model``; a layout test
holds the first.
"""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hub import safe_yaml
from hub.errors import InputError, StsDinoError
from hub.printable import first_line

NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For every ``from_pretrained``: left out, transformers asks on the terminal, and a ``y`` runs the folder's files."""
NO_PICKLES: dict[str, Any] = {**NO_CODE, "use_safetensors": True, "allow_all_kernels": False}
"""For everything that loads weights; a saved config could ask for pickles and for kernels from any repository."""
ORIGIN = "provenance.yaml"  # what a folder was made from: those of generation.fetch_lm, and the built-in model's
_PICKLES = ("pytorch_model*.bin", "adapter_model*.bin")  # the ones that would be loaded
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_INSTALL = "install what the quantization needs, or what the message names"


@contextmanager
def reading_model(
    place: object,
    problem: str = "cannot be loaded",
    *,
    allowed: object = None,
    hint: str | None = None,
    passes: Callable[[Exception], bool] = lambda error: False,
) -> Iterator[None]:
    """Turn what the libraries raise over a model's files into InputError: ``place: problem: their first line``.

    They raise anything: tokenizers ``Exception`` itself, architectures AttributeError. A disk or memory that fails, and
    what ``passes`` says is not the model's fault, is not translated.
    """
    try:
        yield
    except (StsDinoError, MemoryError):
        raise
    except Exception as error:
        if _is_of_the_machine(error) or passes(error):
            raise
        needs = _INSTALL if isinstance(error, ImportError) else hint
        raise InputError(place, f"{problem}: {first_line(error)}", allowed=allowed, hint=needs) from error


def _is_of_the_machine(error: Exception) -> bool:
    """A full disk, no permission, no memory on the device (torch's error, which this package does not import)."""
    number = error.errno if isinstance(error, OSError) else None
    return type(error).__name__ == "OutOfMemoryError" or (number is not None and number not in _ABSENT)


def read_object(path: Path, model: object) -> dict[str, Any]:
    """A JSON file of a model. Raises InputError when it is not an object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(model, f"its {path.name} is not JSON: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise InputError(model, f"its {path.name} is a {type(found).__name__}", allowed="a JSON object")
    return found


def require_safetensors(folder: Path, model: object, loaded_by: str = "sentence-transformers") -> None:
    """Raise InputError when there are no safetensors, or naming a pickle that would be loaded for the lack of them."""
    hint = f"convert it: load it with {loaded_by} where you trust its author, and save_pretrained(FOLDER)"
    for pattern in _PICKLES:
        for path in sorted(folder.rglob(pattern)):
            if not list(path.parent.glob("*.safetensors")):
                problem = f"its weights are a pickle ({path.relative_to(folder).as_posix()}), which can run code"
                raise InputError(model, problem, allowed="*.safetensors", hint=hint)
    if not list(folder.rglob("*.safetensors")):
        raise InputError(model, "has no weights in safetensors", allowed="*.safetensors", hint=hint)


def upstream_of(folder: str | Path | None) -> dict[str, Any]:
    """``{"upstream": {"model", "made_by", "packages"}}``; empty where the folder says nothing that can be read."""
    place = Path(folder or "") / ORIGIN
    if folder is None or not place.is_file():
        return {}
    try:
        told = safe_yaml.load(place.read_text(encoding="utf-8"), max_bytes=1 << 16, max_depth=5, max_nodes=1_000)
        packages = {str(name): str(version) for name, version in told["packages"].items()}
        return {"upstream": {"model": str(told["model"]), "made_by": str(told["made_by"]), "packages": packages}}
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError):  # somebody else's file
        return {}
