"""Small labelled pairs for the annotation's tests."""

from collections.abc import Sequence

from eval.audit.survey import Examples, Sample, Scale, draw, words_in

SCORES = (0.0, 0.1, 0.5, 0.9)
SIMILARITY = Scale("How similar?", tuple(f"{score:g}" for score in SCORES), ("", "", "", ""), ordered=True)
MEANINGS = words_in("en")["meanings"]
INFERENCE = Scale("What follows?", tuple(MEANINGS), tuple(MEANINGS.values()), ordered=False)


def examples(labels: Sequence[str], scale: Scale) -> Examples:
    """One pair per label."""
    texts = tuple((f"first {row}", f"second {row}") for row in range(len(labels)))
    return Examples("pairs", "postprocessed", "train", ("A", "B"), scale, texts, tuple(labels))


def scored(labels: Sequence[str]) -> Examples:
    """One pair per label of DINO's scale."""
    return examples(labels, SIMILARITY)


def inferred(labels: Sequence[str]) -> Examples:
    """One premise and hypothesis per label."""
    return examples(labels, INFERENCE)


def whole(examples: Examples) -> Sample:
    """All rows, in random order."""
    return draw(examples, len(examples), seed=0)
