"""SentEval's COCO features, which are pickles: read by an unpickler that makes plain arrays and calls nothing else.

A file holds ``features`` (images, 2048), ``image_to_caption_ids`` and ``captions`` (id → ``cleaned_caption``). As in
the toolkit, an image's first five captions count, and every caption gets a full stop as its last token.
"""

import io
import pickle
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.tasks.files import DataFile
from eval.tasks.rows import Captions, captions, tokens
from hub.errors import InputError

CAPTIONS_PER_IMAGE = 5
_NUMBERS = re.compile(r"[<>=|]?[biuf][1248]")


class _Known:
    """What a pickle may name. A class, so that the pickle cannot change its attributes: it would call this."""

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a state where none belongs")


class _Dtype(_Known):
    """A number's type; NumPy's own, built from a stranger's state, is not asked."""

    def __init__(self, code: str, *_flags: object):
        self.code, self.order = code, "|"

    def __setstate__(self, state: object) -> None:
        assert isinstance(state, tuple) and len(state) > 1
        self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        name = f"{self.order}{self.code}"
        if not _NUMBERS.fullmatch(name):
            raise pickle.UnpicklingError(f"an array of {name!r}, not of numbers")
        return np.dtype(name)


class _Array(_Known):
    """An array on its way in: its state is (version, shape, type, whether columns come first, bytes)."""

    values: NDArray[Any]

    def __setstate__(self, state: object) -> None:
        assert isinstance(state, tuple) and len(state) == 5
        _, shape, kind, columns_first, data = state
        content = data.encode("latin1") if isinstance(data, str) else data
        self.values = np.frombuffer(content, kind.numpy()).reshape(shape, order="F" if columns_first else "C")


class _Reconstruct(_Known):
    """NumPy's maker of an empty array, whatever shape it is asked for."""

    def __new__(cls, *_arguments: object) -> Any:
        return _Array()


class _Scalar(_Known):
    """A NumPy number, as Python's."""

    def __new__(cls, kind: _Dtype, data: str | bytes) -> Any:
        return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, kind.numpy())[0].item()


class _Encode(_Known):
    """How protocol 2 writes bytes: as text and the name of an encoding."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes in {encoding!r}")
        return text.encode("latin1")


_KNOWN: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encode,
}
for _home in ("numpy.core.multiarray", "numpy._core.multiarray"):  # before and since NumPy 2
    _KNOWN |= {(_home, "_reconstruct"): _Reconstruct, (_home, "scalar"): _Scalar}


class ArrayUnpickler(pickle.Unpickler):
    """Containers, numbers, texts and arrays of numbers. Everything else is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in for what the pickle names. Raises UnpicklingError for everything but the parts of an array."""
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which features do not need")
        return _KNOWN[module, name]


def load_arrays(file: DataFile) -> Any:
    """A pickle of containers and arrays. Raises InputError when it is damaged or asks for anything else."""
    damaged = (ValueError, TypeError, AttributeError, AssertionError, LookupError, EOFError, MemoryError, OverflowError)
    try:
        return ArrayUnpickler(io.BytesIO(file.content), encoding="latin1").load()
    except (pickle.UnpicklingError, *damaged) as error:
        hint = "restore the file; SentEval's COCO pickles hold arrays, texts and numbers only"
        problem = f"is no safe pickle of features: {' '.join(str(error).split())}"
        raise InputError(file.place, problem, hint=hint) from error


def coco(files: Sequence[DataFile]) -> Captions:
    """One split's images and captions, image by image.

    Raises InputError when the file is not in the toolkit's form or an image has fewer than five captions.
    """
    file = files[0]
    content = load_arrays(file)
    try:
        features = _matrix(content["features"])
        texts, ids = content["captions"], content["image_to_caption_ids"]
        of_image = [[int(key) for key in _list(ids[image])[:CAPTIONS_PER_IMAGE]] for image in range(len(features))]
        rows = [
            (tokens(f"{texts[key]['cleaned_caption']} ."), image) for image, keys in enumerate(of_image) for key in keys
        ]
    except (LookupError, TypeError, ValueError) as error:
        problem = f"is not in the form of SentEval's COCO files: {type(error).__name__} {error}"
        raise InputError(file.place, problem, hint="restore the file") from error
    if len(rows) != CAPTIONS_PER_IMAGE * len(features):
        few = next(image for image, keys in enumerate(of_image) if len(keys) < CAPTIONS_PER_IMAGE)
        raise InputError(file.place, f"image {few} has {len(of_image[few])} captions", allowed="at least five an image")
    return captions(features, rows)


def _list(values: Any) -> list[Any]:
    return values.values.tolist() if isinstance(values, _Array) else list(values)


def _matrix(values: Any) -> NDArray[np.float32]:
    """Features (images, dimension) from one array or a list of rows. Raises ValueError for anything else."""
    if isinstance(values, _Array):
        matrix = values.values
    else:
        matrix = np.array([row.values if isinstance(row, _Array) else row for row in values], dtype=np.float32)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ValueError(f"features of shape {matrix.shape}, or not finite")
    return np.ascontiguousarray(matrix, dtype=np.float32)
