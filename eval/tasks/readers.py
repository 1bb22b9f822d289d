"""Readers of SentEval's transfer and probing files: the toolkit's encodings, row order and class numbers.

Facts from the toolkit's readers (facebookresearch/SentEval, ``senteval/*.py``): texts are tokens split at white space;
the file that is read first has class 1 in the two-file tasks (SUBJ: ``objective``); blank lines are rows. The toolkit
then sorts rows by length before it cuts folds; here they stay in the files' order, sorting is the probe's.
"""

import io
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.tasks.rows import DataFile, Rows, Subset, index, number, tokens
from hub.errors import InputError

BINARY = ("0", "1")
FINE = ("0", "1", "2", "3", "4")
TREC = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SICK = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
SNLI = ("entailment", "neutral", "contradiction")
PARTS = {"train": "tr", "validation": "va", "test": "te"}


TextForm = Callable[[str], str]


def two_classes(files: Sequence[DataFile]) -> Rows:
    """MR, CR, SUBJ, MPQA: one text a line, Latin-1; the first file's class is 1, and its rows come first."""
    rows = [(tokens(line), 1 - number) for number, file in enumerate(files) for line in file.lines("latin-1")]
    return Rows.of(rows, BINARY)


def table(
    files: Sequence[DataFile],
    columns: int,
    texts: Sequence[int],
    target: int,
    classes: Sequence[str] = (),
    span: tuple[float, float] = (0, 5),
    header: bool = False,
    form: TextForm = tokens,
) -> Rows:
    """Tab-separated files of at least so many ``columns``, one after the other.

    ``texts`` and ``target`` are the columns of the texts and of the class or, without ``classes``, of a score in
    ``span``. Raises InputError naming the line that is not in this form.
    """
    rows = [
        (
            *(form(cells[text]) for text in texts),
            index(place, cells[target], classes) if classes else number(place, cells[target], *span),
        )
        for file in files
        for place, cells in file.cells(columns, header=header)
    ]
    return Rows.of(rows, classes)


def label_first(files: Sequence[DataFile], classes: Sequence[str], encoding: str = "utf-8") -> Rows:
    """SST5 and TREC: the class, in TREC with a subclass behind a colon, a space and the text."""
    rows = []
    for place, (line, *_) in files[0].cells(1, encoding):
        label, _, text = line.strip().partition(" ")
        rows.append((tokens(text), index(place, label.partition(":")[0], classes)))
    return Rows.of(rows, classes)


def snli(files: Sequence[DataFile]) -> Rows:
    """SNLI: classes, first and second texts in three parallel files; the texts are read as Latin-1, as SentEval does.

    Raises InputError when the files have different numbers of lines.
    """
    lines = files[0].lines(), files[1].lines("latin-1"), files[2].lines("latin-1")
    parallel(files, lines)
    labels = [index(f"{files[0].place}:{number}", label, SNLI) for number, label in enumerate(lines[0], start=1)]
    return Rows.of(list(zip(map(tokens, lines[1]), map(tokens, lines[2]), labels, strict=True)), SNLI)


def probing(files: Sequence[DataFile], split: str) -> Rows:
    """A probing task: part, class, …, text. One file holds all parts; the classes are those of its train part, sorted
    as text (tree depth: ``10`` before ``5``).
    """
    found: dict[str, list[tuple[str, str, str]]] = {part: [] for part in PARTS.values()}
    for place, (part, label, *_, text) in files[0].cells(3):
        if part not in found:
            raise InputError(place, f"unknown part {part!r}", allowed="tr, va, te", hint="restore the file")
        found[part].append((place, label, text))
    classes = sorted({label for _, label, _ in found["tr"]})
    return Rows.of(
        [(tokens(text), index(place, label, classes)) for place, label, text in found[PARTS[split]]], classes
    )


def parallel(files: Sequence[DataFile], lines: Sequence[Sequence[str]]) -> None:
    """Raises InputError when files that belong together have different numbers of lines."""
    for file, content in zip(files, lines, strict=True):
        if len(content) != len(lines[0]):
            problem = f"has {len(content)} lines, {files[0].place} has {len(lines[0])}"
            raise InputError(file.place, problem, hint="restore both files")


def sts_year(files: Sequence[DataFile], subsets: Sequence[str], form: TextForm) -> Rows:
    """A year's subsets in the toolkit's order; ``files``: input and gold file of each. An empty line of a gold file
    means that the pair was not scored: it is left out.

    Raises InputError when a pair of files differs in length, or a score is not within 0 … 5.
    """
    rows: list[tuple[str, str, float]] = []
    bounds: list[Subset] = []
    for name, texts, gold in zip(subsets, files[::2], files[1::2], strict=True):
        start, pairs, scores = len(rows), list(texts.cells(2)), gold.lines()
        parallel((texts, gold), (texts.lines(), scores))
        for line, ((_, cells), score) in enumerate(zip(pairs, scores, strict=True), start=1):
            if score:
                rows.append((form(cells[0]), form(cells[1]), number(f"{gold.place}:{line}", score, 0, 5)))
        bounds.append((name, start, len(rows)))
    return Rows.of(rows, subsets=bounds)


CAPTIONS_PER_IMAGE = 5
_NUMBERS = re.compile(r"[<>=|]?[biuf][1248]")


class _Known:
    """What a pickle may name. A class, so that the pickle cannot change its attributes: it would call this."""

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a state where none belongs")


class _Dtype(_Known):
    """A number's type; NumPy's own, never sees the untrusted state."""

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

    def __array__(self, *_: object, **__: object) -> NDArray[Any]:
        return self.values


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


class ArrayUnpickler(pickle.Unpickler):  # noqa: S301 - it looks up what is in _KNOWN alone
    """Containers, numbers, texts and arrays of numbers. Everything else is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        """Our class for a name in the pickle. Raises UnpicklingError for everything but the parts of an array."""
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
        problem = f"is not a safe pickle of features: {' '.join(str(error).split())}"
        raise InputError(file.place, problem, hint=hint) from error


def coco(files: Sequence[DataFile]) -> Rows:
    """One split's images and captions, image by image.

    Raises InputError when the file is not in the toolkit's form or an image has fewer than five captions.
    """
    file = files[0]
    content = load_arrays(file)
    try:
        features = np.ascontiguousarray(content["features"], dtype=np.float32)
        if features.ndim != 2 or not np.isfinite(features).all():
            raise ValueError(f"features of shape {features.shape}, or not finite")
        texts, ids = content["captions"], content["image_to_caption_ids"]
        of_image = [np.asarray(ids[image], dtype=int).tolist()[:CAPTIONS_PER_IMAGE] for image in range(len(features))]
        rows = [
            (tokens(f"{texts[key]['cleaned_caption']} ."), image) for image, keys in enumerate(of_image) for key in keys
        ]
    except (LookupError, TypeError, ValueError) as error:
        problem = f"is not in the form of SentEval's COCO files: {type(error).__name__} {error}"
        raise InputError(file.place, problem, hint="restore the file") from error
    if len(rows) != CAPTIONS_PER_IMAGE * len(features):
        few = next(image for image, keys in enumerate(of_image) if len(keys) < CAPTIONS_PER_IMAGE)
        raise InputError(file.place, f"image {few} has {len(of_image[few])} captions", allowed="at least five an image")
    return Rows.of(rows, features=features)
