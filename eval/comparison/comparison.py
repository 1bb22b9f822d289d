"""What a comparison of evaluations holds; ``eval.comparison.assemble`` makes it, ``eval.compare`` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from eval.statistics.bootstrap import Resampling
from eval.statistics.verdicts import Measurement, Verdict
from hub.contract.results import TaskScore
from hub.papers.tables import Column, Paper, Table

Pair = tuple[str, str]  # labels of two models


@dataclass(frozen=True)
class ScoreRow:
    """One measurement and its score by model; a model that was not measured so is absent."""

    measurement: Measurement
    scores: Mapping[str, TaskScore]


@dataclass(frozen=True)
class AverageLine:
    """A paper's average by model, over the same measurements; ``whole`` if none of them is of a part of the data."""

    name: str
    definition: str
    scores: Mapping[str, float]
    whole: bool


@dataclass(frozen=True)
class SkippedTest:
    """Two scores of one measurement whose difference could not be tested, and why."""

    first: str
    second: str
    measurement: Measurement
    difference: float
    why: str


@dataclass(frozen=True)
class PaperTable:
    """A paper's table, the columns that have our protocol, and our models' numbers in them (column → value)."""

    paper: Paper
    table: Table
    columns: tuple[Column, ...]
    ours: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Everything the tables and plots of a comparison show. ``models`` are distinct labels, in the order given.

    ``resampling`` says by pair of models how the intervals of their differences were made, ``versions`` which libraries
    were not the same for all scores, each with its versions.
    """

    models: tuple[str, ...]
    lines: tuple[ScoreRow, ...]
    averages: tuple[AverageLine, ...]
    verdicts: tuple[Verdict, ...]
    untested: tuple[SkippedTest, ...]
    beside: tuple[PaperTable, ...]
    resampling: Mapping[Pair, Resampling]
    versions: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of models that share a measurement."""
        tested = [(one.first, one.second) for one in self.verdicts]
        found = {*tested, *((one.first, one.second) for one in self.untested)}
        return [pair for pair in combinations(self.models, 2) if pair in found]

    def unlike(self) -> list[str]:
        """What tells apart the measurements that share task and split, in words."""
        told = []
        for one, other in combinations([line.measurement for line in self.lines], 2):
            if (one.task, one.split) == (other.task, other.split):
                told.append(f"{one.task} {one.split} stands in two rows: {one.unlike(other)}")
        return told
