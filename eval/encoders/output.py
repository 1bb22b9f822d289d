"""What an encoder may give: one finite vector of a fixed dimension for each text. Anything else is refused by name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hub.errors import InputError

SHOWN = 60  # characters of a text that an error shows


def checked(found: Any, texts: Sequence[str], name: str, dimension: int | None = None) -> NDArray[np.float32]:
    """The embeddings ``found`` for ``texts`` as float32 (n, d).

    Raises InputError naming the encoder, the text and what was found: no array of numbers, another number of rows,
    another dimension than before, or a value that is not finite in float32. A zero vector is allowed.
    """
    import torch

    first = f"the first of which is {shown(texts[0])}"
    if isinstance(found, torch.Tensor):
        found = found.detach().to("cpu", torch.float64).numpy()
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        kind = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
        raise InputError(name, f"gives {kind} for {len(texts)} texts, {first}", allowed="an array of numbers")
    if found.ndim != 2:
        problem = f"gives an array of shape {found.shape} for {len(texts)} texts, {first}"
        raise InputError(name, problem, allowed=f"({len(texts)}, dimension)")
    if len(found) != len(texts):
        problem = f"gives {len(found)} rows for {len(texts)} texts, {first}"
        raise InputError(name, problem, allowed="one row a text, in their order")
    if found.shape[1] == 0 or dimension not in (None, found.shape[1]):
        before = "" if dimension is None else f", after {dimension} before"
        problem = f"gives vectors of {found.shape[1]} numbers{before} for {len(texts)} texts, {first}"
        raise InputError(name, problem, allowed="one dimension for all texts")
    return _finite(found, texts, name)


def _finite(found: NDArray[Any], texts: Sequence[str], name: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        embeddings = found.astype(np.float32)
    finite = np.isfinite(embeddings)
    if not finite.all():
        row, column = (int(place) for place in np.argwhere(~finite)[0])
        problem = f"gives {found[row, column]} as number {column + 1} of the vector for {shown(texts[row])}"
        hint = "did its training diverge, or its precision overflow?"
        raise InputError(name, problem, allowed="finite float32 numbers", hint=hint)
    return embeddings


def shown(text: str) -> str:
    """A text as an error shows it: one line, shortened, control characters escaped."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
