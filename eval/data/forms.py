"""The forms of evaluation data. Texts are what the encoder is given, joined and in the data set's own text form.

Every form knows the SHA-256 of its rows, which is the same wherever they were read from.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ScoredPairs:
    """Sentence pairs with people's scores. ``subsets`` are (name, start, stop) of consecutive rows, if any."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: Vector  # (n,)
    sha256: str
    subsets: tuple[tuple[str, int, int], ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.first + self.second


@dataclass(frozen=True)
class LabelledTexts:
    """Single texts with a class, an index into ``classes``."""

    text: tuple[str, ...]
    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.text


@dataclass(frozen=True)
class LabelledPairs:
    """Text pairs with a class, an index into ``classes``."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    labels: Labels  # (n,)
    classes: tuple[str, ...]
    sha256: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, in order, repeats included."""
        return self.first + self.second


@dataclass(frozen=True)
class Captions:
    """Images as feature vectors and their captions; caption i describes image ``image_of[i]``."""

    features: NDArray[np.float32] = field(repr=False)  # (images, 2048)
    text: tuple[str, ...]
    image_of: Labels  # (captions,)
    sha256: str

    def __len__(self) -> int:
        return len(self.text)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every caption, in order, repeats included."""
        return self.text


Rows = ScoredPairs | LabelledTexts | LabelledPairs | Captions
