"""The declared evaluation task: what is scored on which data, how, and which family of scores it belongs to."""

from dataclasses import dataclass
from typing import Literal

from hub.errors import InputError

Metric = Literal["spearman", "pearson", "accuracy", "f1", "recall"]
Aggregation = Literal["all", "mean", "wmean"]
Family = Literal["sts", "transfer", "probing", "relatedness", "retrieval", "mteb"]
Design = Literal["kfold", "cross-validated", "held-out"]
Mode = Literal["senteval", "lbfgs"]
Unit = Literal["pairs", "sentences", "captions", "documents", "queries"]


@dataclass(frozen=True)
class Task:
    """A declared evaluation; a score under its name is always the same measurement.

    ``dataset`` is what ``eval.tasks.sources.Source.load`` reads (MTEB's name of an MTEB task), ``splits`` what is
    scored and ``fitted_on`` the further splits that a head is fitted or chosen on. ``family`` says which scores may
    stand in one table with this one. ``metric`` is None for MTEB, whose tasks have their own main score.

    ``design``, ``mode``, ``as_snli`` and ``with_f1`` are a probe's: how the regularisation is chosen, by which
    optimiser, whether rows, features and training are those of the toolkit's SNLI task, whether F1 is told as well.
    ``on_validation``: the score is the one that the regularisation is chosen by; no test row is read.
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
    on_validation: bool = False

    @property
    def default_split(self) -> str:
        """The split of a task named without one: test, or all rows where the protocol cuts its own folds."""
        return "test" if "test" in self.splits else self.splits[0]

    @property
    def is_of_mteb(self) -> bool:
        """Whether MTEB reads its data and measures it."""
        return self.family == "mteb"

    def reads(self, split: str) -> tuple[str, ...]:
        """The splits that scoring ``split`` needs. Raises InputError when the task does not score it."""
        if split not in self.splits:
            raise InputError(self.name, f"has no split {split!r}", allowed=list(self.splits))
        return (*self.fitted_on, split)
