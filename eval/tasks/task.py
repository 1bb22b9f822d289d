"""Types of datasets, tasks and their outcomes: files and readers, a probe's design, scored rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sts_dino.eval.tasks.rows import DataFile, Indices, Rows, Vector, join_tokens
from sts_dino.hub.errors import InputError

Layout = Literal["senteval", "originals"]
Reader = Callable[[Sequence[DataFile]], Rows]


@dataclass(frozen=True)
class Files:
    """The layout of files in a directory.

    ``option``: the command's option for the directory. ``form``: function that converts a text to
    the layout's text form. ``year``: the folder of a year of STS, with ``{}`` for the year.
    ``prefix_of_2016``: the start of STS16's file names.
    """

    option: str
    form: Callable[[str], str]
    year: str
    prefix_of_2016: str = "STS"


LAYOUTS: dict[Layout, Files] = {
    "senteval": Files("--senteval-data DIR", join_tokens, "downstream/STS/STS{}-en-test"),
    # every character stays, as at MTEB
    "originals": Files("--sts-data DIR", str, "STS{}", prefix_of_2016="STS2016"),
}


@dataclass(frozen=True)
class Part:
    """A split of a dataset: its files in the reader's order, and their reader."""

    files: tuple[str, ...]
    reader: Reader


@dataclass(frozen=True)
class DataSet:
    """A dataset: its layout, and split → files.

    ``sentences``: the name of its set of sentences, the same for all text forms. None: a
    decontamination reads the dataset only when a user names it. ``shipped``: the splits whose files
    ship with the project.
    """

    name: str
    layout: Layout
    parts: Mapping[str, Part]
    sentences: str | None = None
    shipped: tuple[str, ...] = ()


def make_parts(folder: str, files: Mapping[str, Sequence[str]], reader: Reader) -> dict[str, Part]:
    """Make split → ``Part``; ``reader`` reads every split.

    ``files``: split → names of its files in ``folder``.
    """
    return {
        split: Part(tuple(f"{folder}/{name}" for name in names), reader)
        for split, names in files.items()
    }


Metric = Literal["spearman", "pearson", "accuracy", "f1", "ndcg@10", "recall@10"]
Aggregation = Literal["all", "mean", "wmean"]
Family = Literal["sts", "transfer", "probing", "relatedness", "search", "mteb"]
Mode = Literal["senteval", "lbfgs"]
Side = Literal["query", "document"]  # of a search, for which an encoder may have prompts
Unit = Literal["pairs", "sentences", "documents", "queries"]


@dataclass(frozen=True)
class Design:
    """The design of a probe: how its regularisation is chosen, and which rows are scored.

    ``words``: the design in words. ``probe``: the name of a function of
    ``sts_dino.eval.scoring.probe``. ``rows``: the splits that the function takes, in this order.
    ``scored``: the split of the scored rows. ``validation``: the design of the score that chooses
    the regularisation, which reads no test row; None: this is itself the design of such a score.
    """

    words: str
    probe: str
    rows: tuple[str, ...]
    scored: str
    validation: "Design | None" = None


_INNER_FOLDS = (
    "the mean, over the 10 test folds of nested cross-validation, of the best mean accuracy on the "
    "inner folds; no test fold is scored"
)
KFOLD = Design(
    "nested 10-fold cross-validation over all rows",
    "score_nested_folds",
    ("all",),
    "all",
    Design(_INNER_FOLDS, "validate_nested_folds", ("all",), "all"),
)
CROSS_VALIDATED = Design(
    "regularisation chosen by 10-fold cross-validation on train, scored on test",
    "score_cross_validated",
    ("train", "test"),
    "test",
    Design(
        "the best mean accuracy over 10 folds of train", "validate_by_folds", ("train",), "train"
    ),
)
HELD_OUT = Design(
    "regularisation chosen on validation, scored on test",
    "score_held_out",
    ("train", "validation", "test"),
    "test",
    # The validation rows take the place of the test rows
    Design(
        "the best accuracy on validation",
        "score_held_out",
        ("train", "validation", "validation"),
        "validation",
    ),
)


@dataclass(frozen=True)
class Task:
    """A declared evaluation; a score under its name is always the same measurement.

    ``dataset``: the name that ``Source.load`` reads; for an MTEB task MTEB's name. ``protocol``:
    the measurement in words. ``splits``: the splits that can be scored. ``fitted_on``: the splits
    on which a head is fitted or chosen. ``family``: scores of one family may share a table.
    ``metric``: None for MTEB tasks, which have their own main score. ``design``, ``mode``,
    ``as_snli`` (SentEval's rows, features and training for SNLI) and ``with_f1`` are settings of a
    probe. ``sides``: which of an encoder's prompts the first and the second text get.
    """

    name: str
    dataset: str
    group: str
    family: Family
    protocol: str
    metric: Metric | None
    aggregation: Aggregation = "all"
    unit: Unit = "pairs"
    splits: tuple[str, ...] = ("test",)
    fitted_on: tuple[str, ...] = ()
    design: Design | None = None
    mode: Mode | None = None
    as_snli: bool = False
    with_f1: bool = False
    sides: tuple[Side, Side] | None = None

    @property
    def default_split(self) -> str:
        """The split that is scored by default: test, else the first of ``splits``."""
        return "test" if "test" in self.splits else self.splits[0]

    @property
    def on_validation(self) -> bool:
        """Whether the score is that of a probe's validation task, which reads no test row."""
        return self.design is not None and self.design.validation is None

    @property
    def is_of_mteb(self) -> bool:
        """Whether the library mteb reads the data and measures the score."""
        return self.family == "mteb"

    def list_splits(self, split: str) -> tuple[str, ...]:
        """List the splits whose rows the score of ``split`` needs; ``split`` is the last.

        Raises InputError when ``split`` is not one of ``splits``.
        """
        if split not in self.splits:
            raise InputError(self.name, f"has no split {split!r}", allowed=list(self.splits))
        return (*self.fitted_on, split)


# Function from n texts, and the side of a search if they have one, to embeddings (n, dimension)
Embed = Callable[..., NDArray[np.float32]]


@dataclass(frozen=True)
class Outcomes:
    """Gold and predicted values of the scored rows, in the order of the data.

    ``gold``: human score, index of the class, or a query's number of relevant documents.
    ``predicted``: similarity, predicted score, index of the predicted class, or a query's score.
    ``part``: the name of each row's subset, (n,); empty: all rows are one part.
    """

    gold: Vector  # (n,)
    predicted: Vector  # (n,)
    part: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    def list_parts(self, aggregation: Aggregation) -> list[tuple[Indices, float]]:
        """List (row indices, weight) of the parts whose weighted scores add up to the task's score.

        ``all``, and rows without subsets, make one part of all rows. ``mean`` weights the subsets
        equally, ``wmean`` by their number of rows. The weights sum to 1.
        """
        if aggregation == "all" or not self.part:
            return [(np.arange(len(self)), 1.0)]
        names = np.asarray(self.part)
        subsets = list(dict.fromkeys(self.part))
        parts = []
        for subset in subsets:
            rows = np.flatnonzero(names == subset)
            weight = len(rows) / len(self) if aggregation == "wmean" else 1 / len(subsets)
            parts.append((rows, weight))
        return parts


@dataclass(frozen=True)
class Measured:
    """A task's score x 100 by the task's protocol, with the outcomes of the rows.

    ``other``: name of a further metric → value. ``parts``: subset → (score x 100, number of rows).
    ``seconds``: phase of the work → seconds. ``seeds``: the seeds of a probe; empty without one.
    """

    outcomes: Outcomes
    score: float
    other: dict[str, float] = field(default_factory=dict)
    parts: dict[str, tuple[float, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()
