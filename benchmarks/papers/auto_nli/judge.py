"""A small NLI classifier where no cross-encoder is at hand: all-MiniLM-L6-v2's embeddings, a network fit to SNLI.

Features of a pair are those of Conneau et al. 2017: both embeddings, their absolute difference and their product. It
is far weaker than the papers' judge, so its accuracy on people's pairs stands beside what it says of others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.auto_nli.people import LabelledPair, labelled_pairs

Embed = Callable[[Sequence[str]], NDArray[np.float32]]
HIDDEN, SEED = 256, 42
TRAINED, TESTED = 6000, 2000  # of SNLI's pairs: embedding them is what costs


def unit_embeddings(texts: Sequence[str]) -> NDArray[np.float32]:
    """all-MiniLM-L6-v2's embeddings of texts, of length 1."""
    from eval.encoders.load import load_encoder, minilm

    found = np.asarray(load_encoder(str(minilm())).embed(list(texts)), dtype=np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


@dataclass(frozen=True)
class Hypothesis:
    """A hypothesis and where it stands; ``own``: what its label's prompt has of the two labels' likelihood."""

    premise: str
    text: str
    label: str
    source: str
    example_set: int
    own: float | None = None

    @property
    def pair(self) -> LabelledPair:
        """As people's pairs are given."""
        return self.premise, self.text, self.label


@dataclass(frozen=True)
class Told:
    """What judges say of a hypothesis: its class, and its cosine to the premise."""

    name: str
    cosine: float


class Judge:
    """Classes and cosines of pairs; every text is embedded once. ``embed``: texts to unit vectors."""

    def __init__(self, embed: Embed = unit_embeddings):
        from sklearn.neural_network import MLPClassifier

        self._embed, self._known = embed, dict[str, NDArray[np.float32]]()
        self._model = MLPClassifier((HIDDEN,), early_stopping=True, random_state=SEED)

    def train(self, pairs: Sequence[LabelledPair]) -> "Judge":
        """Fit to people's pairs; a tenth of them, held out, says when to stop."""
        self._model.fit(self._features(pairs), [label for *_, label in pairs])
        return self

    def classes(self, pairs: Sequence[LabelledPair]) -> list[str]:
        """The likeliest class of every pair; the label that it has is not looked at."""
        return [str(name) for name in self._model.predict(self._features(pairs))] if pairs else []

    def cosines(self, pairs: Sequence[LabelledPair]) -> list[float]:
        """The cosine of every pair's texts."""
        first, second = self._sides(pairs)
        return [float(value) for value in np.einsum("ij,ij->i", first, second)]

    def accuracy(self, pairs: Sequence[LabelledPair]) -> float:
        """The share of people's labels that the classes are."""
        return float(np.mean([found == pair[2] for found, pair in zip(self.classes(pairs), pairs, strict=True)]))

    def _sides(self, pairs: Sequence[LabelledPair]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        new = [text for text in dict.fromkeys(text for pair in pairs for text in pair[:2]) if text not in self._known]
        new.sort(key=len)  # little padding
        if new:
            self._known.update(zip(new, self._embed(new), strict=True))
        first, second = (np.stack([self._known[pair[side]] for pair in pairs]) for side in (0, 1))
        return first, second

    def _features(self, pairs: Sequence[LabelledPair]) -> NDArray[np.float32]:
        first, second = self._sides(pairs)
        return np.hstack([first, second, np.abs(first - second), first * second])


def trained_judge(snli: Path) -> tuple[Judge, str]:
    """The judge, trained on the first pairs of SNLI's development part, and a sentence on how right it is."""
    judge = Judge().train(labelled_pairs(snli / "dev")[:TRAINED])
    share = judge.accuracy(labelled_pairs(snli / "test")[:TESTED])
    return judge, f"Of SNLI's first {TESTED:,} test pairs the classifier gives {share:.1%} their label, one of three."
