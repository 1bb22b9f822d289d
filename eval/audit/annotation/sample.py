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

from eval.audit.annotation.words import ENGLISH, words_in
from eval.audit.label_meanings import score_label
from eval.audit.rows import NO_LABEL, Batch, DatasetRows
from hub.contract.recipe import NLI_LABELS
from hub.errors import InputError

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
    language: str = ENGLISH  # that people are asked in, where the page speaks it

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


def similarity_scale(scores: Iterable[float], place: str, language: str = ENGLISH) -> Scale:
    """The scale of a scored dataset: the scores it holds. Raises InputError when they are too many to choose from."""
    labels = {score_label(score): score for score in sorted(set(scores))}
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} distinct scores", allowed=f"2 to {MOST_LABELS}")
    words = words_in(language)
    meanings = tuple(words.meanings[_similarity(score, 0 in labels.values())] for score in labels.values())
    return Scale(words.similarity, tuple(labels), meanings, ordered=True)


def _similarity(score: float, has_zero: bool) -> str:
    if score == 0:
        return "completely"
    if score <= 0.25:
        return "weakly" if has_zero else "different"
    return "somewhat" if score < 0.75 else "same"


def inference_scale(language: str = ENGLISH) -> Scale:
    """Entailment, neutral, contradiction. All three can be answered, also where the generator writes only two."""
    words = words_in(language)
    return Scale(words.inference, NLI_LABELS, tuple(words.meanings[label] for label in NLI_LABELS), ordered=False)


def class_scale(labels: Sequence[str], place: str, language: str = ENGLISH) -> Scale:
    """The classes of single texts. Raises InputError when they are too many to choose from."""
    if not 2 <= len(labels) <= MOST_LABELS:
        raise InputError(place, f"has {len(labels)} labels", allowed=f"2 to {MOST_LABELS}")
    return Scale(words_in(language).which_class, tuple(labels), ("",) * len(labels), ordered=False)


def in_words(scale: Scale, meanings: Mapping[str, str]) -> Scale:
    """The scale with a recipe's own words for its labels; those that have none keep theirs."""
    own = tuple(meanings.get(label, usual) for label, usual in zip(scale.labels, scale.meanings, strict=True))
    return replace(scale, meanings=own)


def read_examples(rows: DatasetRows, language: str | None = None) -> Examples:
    """All rows of a split, asked about in a ``language``; None: in the dataset's.

    Raises InputError for labels that are none, too many, or not those of NLI pairs.
    """
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    for batch in rows.batches():
        found, given = _asked(batch)
        texts += found
        labels += given
    split = " + ".join(rows.splits)
    place = f"{rows.name} ({rows.config}, {split})"
    meanings = rows.meanings()
    spoken = language or meanings.language or ENGLISH
    scale = in_words(_scale(rows, labels, place, spoken), meanings.of)
    for row, label in enumerate(labels):
        if label not in scale.labels:
            raise InputError(f"{place} row {row}", f"has the label {label!r}", allowed=list(scale.labels))
    headings = words_in(spoken).headings(rows.example_type)
    return Examples(rows.name, rows.config, split, headings, scale, tuple(texts), tuple(labels), spoken)


def _asked(batch: Batch) -> tuple[list[tuple[str, ...]], list[str]]:
    first, second, labels = batch.pairs()
    if not first:
        return [(text,) for text in batch.texts["text"]], batch.labels
    given = [score_label(score) for score in batch.scores] or [TRIPLET.get(label, label) for label in labels]
    return list(zip(first, second, strict=True)), given


def _scale(rows: DatasetRows, labels: list[str], place: str, language: str) -> Scale:
    if rows.example_type == "sts":
        return similarity_scale(map(float, labels), place, language)
    if rows.example_type == "text":
        return class_scale(rows.class_names or sorted({*labels} - {NO_LABEL}), place, language)
    return inference_scale(language)
