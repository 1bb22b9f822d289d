"""Recipe arguments, which are text, under the type that a signature declares for them."""

import math
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from hub.errors import InputError


def typed_argument(text: str, declared: Any, place: str) -> Any:
    """``text`` as a value of the type ``declared``. Raises InputError naming ``place``."""
    try:
        return TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(text)
    except ValidationError as error:
        raise InputError(place, f"{error.errors()[0]['msg']} (found {text!r})") from error


def require_positive(value: float, place: str, zero: bool = False, infinity: bool = False) -> None:
    """Raise InputError unless ``value`` is above 0; or 0, or infinite, where these are allowed."""
    if not (value >= 0 if zero else value > 0) or (math.isinf(value) and not infinity):
        allowed = "0 or a positive number" if zero else "a positive number"
        raise InputError(place, f"is {value:g}", allowed=allowed)
