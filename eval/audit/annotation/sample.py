"""What people are asked: labelled texts of a dataset, the answers they may give, and which of the texts are drawn.

DINO's human evaluation (Schick & Schütze 2021, section 4, Table 3): 100 text pairs are drawn at random from the data as
trained on, with smoothed labels and sampled negatives, and annotated with the data's own scores {0, 0.1, 0.5, 0.9};
"0.9 when x1 and x2 mean (almost) the same thing", "0.1 when they are on different topics, but still show a weak
similarity in some aspect". 0.5 and 0 are worded as in its instructions to the language model. Both texts are shown in
the order they have in the data: entailment is not symmetric, and x1 comes first in DINO. A recipe's own words for its
labels (``labels[].meaning``) stand in place of these.
"""

import hashlib
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from eval.audit.label_meanings import score_label
from eval.audit.rows import NO_LABEL, Batch, DatasetRows
from hub.contract.recipe import NLI_LABELS
from hub.errors import InputError

SIMILARITY = "How similar are the two sentences in meaning?"
INFERENCE = "If the premise is true, what about the hypothesis?"
CLASS = "Which label fits the text?"
NLI_MEANINGS = {  # the question that SNLI's annotators were asked (Bowman et al. 2015, section 2)
    "entailment": "the hypothesis is definitely true",
    "neutral": "the hypothesis might be true",
    "contradiction": "the hypothesis is definitely false",
}
HEADINGS = {"sts": ("Sentence 1", "Sentence 2"), "text": ("Text",)}
TRIPLET = {"positive": "entailment", "negative": "contradiction"}  # a triplet is two questions
MOST_LABELS = 9  # one digit key each


@dataclass(frozen=True)
class Scale:
    """The question and its possible answers, in order, with their meanings ("" where the label says it all).

    ``ordered``: a distance between labels means something, so disagreements can be weighted.
    """

    question: str
    labels: tuple[str, ...]
    meanings: tuple[str, ...]
    ordered: bool


@dataclass(frozen=True)
class Examples:
    """All rows of a dataset's split as they can be asked about; ``labels`` are the generator's and stay hidden.

    ``sha256`` is of the texts and labels: the same for a run directory and its copy on a Hub.
    """

    name: str
    config: str
    split: str
    headings: tuple[str, ...]  # what the texts of a row are called, e.g. ("premise", "hypothesis")
    scale: Scale
    texts: tuple[tuple[str, ...], ...]  # (rows, len(headings))
    labels: tuple[str, ...]  # (rows,)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def sha256(self) -> str:
        """Fingerprint of all rows, in order."""
        digest = hashlib.sha256()
        for texts, label in zip(self.texts, self.labels, strict=True):
            digest.update(repr((texts, label)).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Sample:
    """Rows drawn from a dataset, in the order in which they are asked about."""

    examples: Examples
    seed: int
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)


def draw(examples: Examples, count: int, seed: int) -> Sample:
    """A simple random sample without replacement, in random order.

    Rows are ordered by a hash of (seed, row), so a larger sample of the same seed begins with the smaller one.
    Raises InputError when there are fewer than ``count`` rows.
    """
    if count > len(examples):
        place = f"{examples.name} ({examples.config}, {examples.split})"
        raise InputError(place, f"has {len(examples)} rows, {count} are asked for", hint=f"--sample {len(examples)}")
    rows = heapq.nsmallest(count, range(len(examples)), key=lambda row: _order(seed, row))
    return Sample(examples, seed, tuple(rows))


def _order(seed: int, row: int) -> bytes:
    return hashlib.blake2b(f"{seed} {row}".encode(), digest_size=16).digest()


def similarity_scale(scores: Iterable[float], place: str) -> Scale:
    """The scale of a scored dataset: the scores it holds. Raises InputError when they are too many to choose from."""
    labels = {score_label(score): score for score in sorted(set(scores))}
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} distinct scores", allowed=f"2 to {MOST_LABELS}")
    meanings = tuple(_similarity(score, 0 in labels.values()) for score in labels.values())
    return Scale(SIMILARITY, tuple(labels), meanings, ordered=True)


def _similarity(score: float, has_zero: bool) -> str:
    if score == 0:
        return "on completely different topics"
    if score <= 0.25:
        return "on different topics" + (", but with a weak similarity in some aspect" if has_zero else "")
    return "somewhat similar" if score < 0.75 else "mean (almost) the same thing"


def inference_scale() -> Scale:
    """Entailment, neutral, contradiction. All three can be answered, also where the generator writes only two."""
    return Scale(INFERENCE, NLI_LABELS, tuple(NLI_MEANINGS[label] for label in NLI_LABELS), ordered=False)


def class_scale(labels: Sequence[str], place: str) -> Scale:
    """The classes of single texts. Raises InputError when they are too many to choose from."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} labels", allowed=f"2 to {MOST_LABELS}")
    return Scale(CLASS, tuple(labels), ("",) * len(labels), ordered=False)


def in_words(scale: Scale, meanings: Mapping[str, str]) -> Scale:
    """The scale with a recipe's own words for its labels; those that have none keep theirs."""
    own = tuple(meanings.get(label, usual) for label, usual in zip(scale.labels, scale.meanings, strict=True))
    return replace(scale, meanings=own)


def read_examples(rows: DatasetRows) -> Examples:
    """All rows of a split. Raises InputError for labels that are none, too many, or not those of NLI pairs."""
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    for batch in rows.batches():
        found, given = _asked(batch)
        texts += found
        labels += given
    split = " + ".join(rows.splits)
    place = f"{rows.name} ({rows.config}, {split})"
    scale = in_words(_scale(rows, labels, place), rows.meanings())
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(f"{place} row {row}", f"has the label {label!r}", allowed=list(scale.labels))
    headings = HEADINGS.get(rows.example_type, ("Premise", "Hypothesis"))
    return Examples(rows.name, rows.config, split, headings, scale, tuple(texts), tuple(labels))


def _asked(batch: Batch) -> tuple[list[tuple[str, ...]], list[str]]:
    first, second, labels = batch.pairs()
    if not first:
        return [(text,) for text in batch.texts["text"]], batch.labels
    given = [score_label(score) for score in batch.scores] or [TRIPLET.get(label, label) for label in labels]
    return list(zip(first, second, strict=True)), given


def _scale(rows: DatasetRows, labels: list[str], place: str) -> Scale:
    if rows.example_type == "sts":
        return similarity_scale(map(float, labels), place)
    if rows.example_type == "text":
        return class_scale(rows.class_names or sorted({*labels} - {NO_LABEL}), place)
    return inference_scale()
