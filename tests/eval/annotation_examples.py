"""Small labelled pairs for the annotation's tests."""

from collections.abc import Sequence

from eval.audit.survey import Examples, Sample, draw, inference_scale, similarity_scale

SCORES = (0.0, 0.1, 0.5, 0.9)


def scored(labels: Sequence[str]) -> Examples:
    """One pair per label of DINO's scale."""
    texts = tuple((f"first {row}", f"second {row}") for row in range(len(labels)))
    return Examples("pairs", "postprocessed", "train", ("A", "B"), similarity_scale(SCORES, "x"), texts, tuple(labels))


def inferred(labels: Sequence[str]) -> Examples:
    """One premise and hypothesis per label."""
    texts = tuple((f"premise {row}", f"hypothesis {row}") for row in range(len(labels)))
    return Examples("nli", "pair-class", "train", ("A", "B"), inference_scale(), texts, tuple(labels))


def whole(examples: Examples) -> Sample:
    """All rows, in random order."""
    return draw(examples, len(examples), seed=0)
