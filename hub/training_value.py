"""value.json: what an encoder gains from a dataset, beside what it gains from controls that cost no language model.

Also the two files by which ``release.value`` asks ``eval.compare.seeds`` for scores: stages meet on disk.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hub.contract.measured import Frozen, read_measured
from hub.contract.results import Finite
from hub.contract.run_dir import Manifest
from hub.errors import InputError, RunError

VALUE = "value.json"
Count = Annotated[int, Field(ge=1)]
Split = Literal["validation", "test"]
Arm = Literal["untrained", "copies", "shuffled", "dataset", "people"]


class Estimate(Frozen):
    """Points (Spearman x 100) with a 95 % interval, over sentence pairs and, where there are several, seeds."""

    score: Finite
    low: Finite
    high: Finite

    def __str__(self) -> str:
        return f"{self.score:.2f} [{self.low:.2f}, {self.high:.2f}]"


class ArmScore(Frozen):
    """What one arm of the experiment scored: the mean over tasks and seeds, and each task's mean over seeds.

    ``over_copies``: the paired difference to the copies control (None: that control itself).
    """

    average: Estimate
    tasks: dict[str, Finite]
    over_copies: Estimate | None = None


class ArmPlan(Frozen):
    """The evaluations to compare: arm → their folders by seed. Arms of several seeds share them, in this order.

    ``data_seeds``: the folders of an arm are of so many datasets, written with as many seeds; those of the first stand
    first. ``differences``: pairs of arms to compare beside each with the control.
    """

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split
    samples: Count
    arms: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]]
    control: str
    data_seeds: Count = 1
    differences: tuple[tuple[str, str], ...] = ()

    @model_validator(mode="after")
    def _paired(self) -> Self:
        for name in (self.control, *(name for pair in self.differences for name in pair)):
            if name not in self.arms:
                raise ValueError(f"{name!r}, which is to be compared with, is none of the arms")
        sizes = {len(places) for places in self.arms.values()} - {1}
        if len(sizes) > 1:
            raise ValueError("arms differ in their number of seeds")
        if any(size % self.data_seeds for size in sizes):
            raise ValueError(f"{max(sizes)} folders are not equally many of {self.data_seeds} datasets")
        return self


class ArmScores(Frozen):
    """What ``eval.compare.seeds`` found, by arm; ``differences``: the first arm's minus the second's, of ``pairs``."""

    arms: dict[str, ArmScore]
    pairs: tuple[tuple[str, str], ...] = ()
    differences: tuple[Estimate, ...] = ()


class TrainingValue(Frozen):
    """The training value of a dataset, under one student, one number of pairs and the same steps for every arm.

    ``fingerprint`` is that of the dataset's run (of the rows that were measured), ``student`` the recipe's name,
    ``student_sha256`` a digest of all that decides a training but its pairs and seed. ``over``: arm → the paired
    difference of the dataset's arm to it, of shuffled scores and of people's pairs. ``skipped``: arm → why it was not
    trained.
    """

    dataset: str
    config: str
    fingerprint: str
    student: str
    student_sha256: str
    base: str
    pairs: Count
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split
    samples: Count
    arms: dict[Arm, ArmScore]
    over: dict[Arm, Estimate] = Field(default_factory=dict)
    skipped: dict[Arm, str] = Field(default_factory=dict)
    versions: dict[str, str]

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if not {"dataset", "copies"} <= self.arms.keys() or self.arms["dataset"].over_copies is None:
            raise ValueError("the dataset and the copies control are always measured")
        return self

    @property
    def gain(self) -> Estimate:
        """Points by which the dataset's arm is above the copies control."""
        found = self.arms["dataset"].over_copies
        assert found is not None
        return found


def read_value(directory: Path, manifest: Manifest) -> TrainingValue | None:
    """value.json of a run directory, or None when there is none.

    Raises InputError when it has another form or was measured on other rows than the run's.
    """
    command = f"python -m release.value {directory}"
    return read_measured(directory, manifest, VALUE, TrainingValue, "fingerprint", command)


def require_value(directory: Path, manifest: Manifest, least: float) -> None:
    """Raise InputError when the gain over the copies control was not measured, RunError when it is below ``least``."""
    value = read_value(directory, manifest)
    if value is None:
        hint = f"measure it: python -m release.value {directory}"
        raise InputError(directory, f"its training value is not measured (no {VALUE})", hint=hint)
    if value.gain.score < least:
        found = f"its training value, {value.gain} points over the copies control, is below --min-value {least:g}"
        raise RunError(directory, found, hint="write better pairs, or lower --min-value")
