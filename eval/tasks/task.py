"""Types of datasets and tasks: a split's files and reader, its score, and a probe's design."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sts_dino.eval.tasks.rows import DataFile, Rows, join_tokens
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

    def find_part(self, split: str) -> Part:
        """Return the split's files and reader. Raises InputError for an unknown split."""
        if split not in self.parts:
            raise InputError(self.name, f"has no split {split!r}", allowed=", ".join(self.parts))
        return self.parts[split]


def make_parts(folder: str, files: Mapping[str, Sequence[str]], reader: Reader) -> dict[str, Part]:
    """Make split → ``Part`` from ``files``, split → file names in ``folder``, with one reader."""
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
    the regularisation, which reads no test row; None: this is such a design.
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
        """Whether the score is the one that chooses the regularisation and reads no test row."""
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
