"""Small labelled pairs for the annotation's tests."""

from collections.abc import Sequence
from pathlib import Path

from sts_dino.eval.audit.survey import AnswerStore, Examples, Scale, Survey, draw_rows, get_words

SCORES = ("0", "0.1", "0.5", "0.9")
SIMILARITY = Scale("How similar?", SCORES, ("", "", "", ""), ordered=True)
MEANINGS = get_words("en")["meanings"]
INFERENCE = Scale("What follows?", tuple(MEANINGS), tuple(MEANINGS.values()), ordered=False)


def examples(labels: Sequence[str], scale: Scale = SIMILARITY) -> Examples:
    """One pair per label, of DINO's scale or NLI's."""
    texts = tuple((f"first {row}", f"second {row}") for row in range(len(labels)))
    return Examples("pairs", "postprocessed", "train", ("A", "B"), scale, texts, tuple(labels))


def survey(examples: Examples, folder: Path, seed: int = 0) -> Survey:
    """A survey of all rows, in random order."""
    return Survey(
        examples, seed, draw_rows(examples, len(examples), seed), AnswerStore(folder, examples)
    )
