"""Rows of any finished form as people are asked about them.

A triplet is two questions: anchor and positive (entailment), anchor and negative (contradiction).
"""

from eval.annotation_sample import Examples, Scale, class_scale, inference_scale, score_label, similarity_scale
from eval.dataset_rows import NO_LABEL, Batch, Rows
from hub.errors import InputError

HEADINGS = {"sts": ("Sentence 1", "Sentence 2"), "text": ("Text",)}
TRIPLET = {"positive": "entailment", "negative": "contradiction"}


def read_examples(rows: Rows) -> Examples:
    """All rows of a split. Raises InputError for labels that are none, too many, or not those of NLI pairs."""
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    for batch in rows.batches():
        found, given = _asked(batch)
        texts += found
        labels += given
    split = " + ".join(rows.splits)
    place = f"{rows.name} ({rows.config}, {split})"
    scale = _scale(rows, labels, place)
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(f"{place} row {row}", f"has the label {label!r}", allowed=list(scale.labels))
    headings = HEADINGS.get(rows.form, ("Premise", "Hypothesis"))
    return Examples(rows.name, rows.config, split, headings, scale, tuple(texts), tuple(labels))


def _asked(batch: Batch) -> tuple[list[tuple[str, ...]], list[str]]:
    first, second, labels = batch.pairs()
    if not first:
        return [(text,) for text in batch.texts["text"]], batch.labels
    given = [score_label(score) for score in batch.scores] or [TRIPLET.get(label, label) for label in labels]
    return list(zip(first, second, strict=True)), given


def _scale(rows: Rows, labels: list[str], place: str) -> Scale:
    if rows.form == "sts":
        return similarity_scale(map(float, labels), place)
    if rows.form == "text":
        return class_scale(rows.class_names or sorted({*labels} - {NO_LABEL}), place)
    return inference_scale()
