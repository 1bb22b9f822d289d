"""Row types of evaluation data. Texts are what the encoder is given, joined and in the data set's own text form.

Every form knows the SHA-256 of its rows, which is the same wherever they were read from.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class _Pairs:
    first: tuple[str, ...]
    second: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.first)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.first + self.second


@dataclass(frozen=True)
class _Texts:
    text: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.text


@dataclass(frozen=True)
class ScoredPairs(_Pairs):
    """Sentence pairs with people's scores. ``subsets`` are (name, start, stop) of consecutive rows, if any."""

    gold: Vector  # (n,)
    sha256: str
    subsets: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class LabelledTexts(_Texts):
    """Single texts with a class, an index into ``classes``."""

    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class LabelledPairs(_Pairs):
    """Text pairs with a class, an index into ``classes``."""

    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str


@dataclass(frozen=True)
class Captions(_Texts):
    """Images as feature vectors and their captions; caption i describes image ``image_of[i]``."""

    features: NDArray[np.float32] = field(repr=False)  # (images, 2048)
    image_of: Labels  # (captions,)
    sha256: str


Rows = ScoredPairs | LabelledTexts | LabelledPairs | Captions
