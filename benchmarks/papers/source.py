"""The source file of a module that an experiment runs: what it does decides its step."""

import re
from importlib.util import find_spec
from pathlib import Path

from hub.contract.shards import sha256_file


def source_of(place: str) -> str | None:
    """SHA-256 of the source file of ``MODULE`` or ``python:MODULE:FUNCTION``; None for anything else."""
    module = place.removeprefix("python:").split(":")[0]
    try:
        found = find_spec(module) if re.fullmatch(r"[a-z_][\w.]*", module) else None
    except ModuleNotFoundError:  # the step itself says so
        return None
    return sha256_file(Path(found.origin)) if found and found.origin else None
