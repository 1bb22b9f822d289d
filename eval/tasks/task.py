"""Data sets and tasks: files and readers of a split, what is scored on it, and how a probe is fitted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from eval.tasks.rows import DataFile, Rows, tokens
from hub.errors import InputError

Layout = Literal["senteval", "originals"]
Reader = Callable[[Sequence[DataFile]], Rows]


@dataclass(frozen=True)
class Files:
    """How files lie in a directory: the option that names it, their text form, and folder and prefix of STS files."""

    option: str
    form: Callable[[str], str]
    year: str
    prefix_of_2016: str = "STS"


LAYOUTS: dict[Layout, Files] = {
    "senteval": Files("--senteval-data DIR", tokens, "downstream/STS/STS{}-en-test"),
    "originals": Files("--sts-data DIR", str, "STS{}", prefix_of_2016="STS2016"),  # every character stays, as at MTEB
}


@dataclass(frozen=True)
class Part:
    """A split: the files it is read from, in the reader's order."""

    files: tuple[str, ...]
    reader: Reader


@dataclass(frozen=True)
class DataSet:
    """A data set's layout and splits; ``sentences`` is the set of sentences it holds, whatever their text form.

    ``sentences`` is None where a decontamination reads the data set only when it is named. ``shipped`` are the splits
    whose files the project carries.
    """

    name: str
    layout: Layout
    parts: Mapping[str, Part]
    sentences: str | None = None
    shipped: tuple[str, ...] = ()

    def part(self, split: str) -> Part:
        """The split's files and reader. Raises InputError when there is no such split."""
        if split not in self.parts:
            raise InputError(self.name, f"has no split {split!r}", allowed=", ".join(self.parts))
        return self.parts[split]


def parts(folder: str, files: Mapping[str, Sequence[str]], reader: Reader) -> dict[str, Part]:
    """Splits that one reader reads from files of one folder."""
    return {split: Part(tuple(f"{folder}/{file}" for file in names), reader) for split, names in files.items()}


Metric = Literal["spearman", "pearson", "accuracy", "f1", "ndcg@10", "recall@10"]
Aggregation = Literal["all", "mean", "wmean"]
Family = Literal["sts", "transfer", "probing", "relatedness", "search", "mteb"]
Mode = Literal["senteval", "lbfgs"]
Side = Literal["query", "document"]  # of a search, for which an encoder may have prompts
Unit = Literal["pairs", "sentences", "documents", "queries"]


@dataclass(frozen=True)
class Design:
    """How a probe chooses its regularisation and is scored.

    ``probe`` is a function of ``eval.scoring.probe`` and ``rows`` the splits whose rows it takes, in this order.
    ``validation`` is the design of the score that the choice is made by, which reads no test row; ``scored`` the split
    of the scored rows.
    """

    words: str
    probe: str
    rows: tuple[str, ...]
    scored: str
    validation: "Design | None" = None


_INNER_FOLDS = (
    "the mean, over the 10 test folds of nested cross-validation, of the best mean accuracy on the inner folds; no "
    "test fold is scored"
)
KFOLD = Design(
    "nested 10-fold cross-validation over all rows",
    "nested_kfold",
    ("all",),
    "all",
    Design(_INNER_FOLDS, "nested_validation", ("all",), "all"),
)
CROSS_VALIDATED = Design(
    "regularisation chosen by 10-fold cross-validation on train, scored on test",
    "cross_validated",
    ("train", "test"),
    "test",
    Design("the best mean accuracy over 10 folds of train", "cross_validation", ("train",), "train"),
)
HELD_OUT = Design(
    "regularisation chosen on validation, scored on test",
    "held_out",
    ("train", "validation", "test"),
    "test",
    Design("the best accuracy on validation", "held_out", ("train", "validation", "validation"), "validation"),
)


@dataclass(frozen=True)
class Task:
    """A declared evaluation; a score under its name is always the same measurement.

    ``dataset`` is what ``Source.load`` reads (MTEB's name of an MTEB task), ``splits`` what is scored, ``fitted_on``
    the further splits that a head is fitted or chosen on. ``family`` says which scores may share a table. ``metric`` is
    None for MTEB, whose tasks have their own main score. ``design``, ``mode``, ``as_snli`` (the toolkit's rows,
    features and training for SNLI) and ``with_f1`` are a probe's. ``sides``: of the first and the second text.
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
        """The split of a task named without one: test, or all rows where the protocol cuts its own folds."""
        return "test" if "test" in self.splits else self.splits[0]

    @property
    def on_validation(self) -> bool:
        """Whether the score is the one that the regularisation is chosen by: no test row is read."""
        return self.design is not None and self.design.validation is None

    @property
    def is_of_mteb(self) -> bool:
        """Whether MTEB reads its data and measures it."""
        return self.family == "mteb"

    def reads(self, split: str) -> tuple[str, ...]:
        """The splits that scoring ``split`` needs. Raises InputError when the task does not score it."""
        if split not in self.splits:
            raise InputError(self.name, f"has no split {split!r}", allowed=list(self.splits))
        return (*self.fitted_on, split)
