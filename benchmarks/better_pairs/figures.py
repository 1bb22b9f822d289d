"""The figures of an arm as one row of the results file: from what its steps found, pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from pydantic import Field

from benchmarks.better_pairs.arms import Arm, Stage
from hub.contract.measured import ArmScores, Estimate, Fidelity, Frozen, Interval

HOUR = 3600


class FidelityOfSeeds(Frozen):
    """How well kept texts fit their labels, means over data seeds; ``near_copies``: label → share of the kept."""

    asked: int
    kept: int
    keep_rate: float
    spearman: Interval
    cosine: dict[str, Interval]
    near_copies: dict[str, float]


class Cost(Frozen):
    """CPU seconds of all data seeds' pairs (as if this arm had written its texts alone), and of one training."""

    pairs: float
    training: float | None
    pairs_per_second: float
    points_per_hour: float | None  # gained over the copies control: of the pairs and one training


class Reference(Frozen):
    """The paired difference to another arm's pairs."""

    arm: str
    difference: Estimate


class Row(Frozen):
    """One arm of one stage. ``scores``: of each training arm; ``gains``: the dataset's paired differences to them."""

    stage: str
    arm: str
    group: str
    varies: str
    commands: tuple[str, ...]
    first_texts: str
    texts: int
    data_seeds: tuple[int, ...]
    pairs: int
    training_seeds: int
    split: str
    student: str
    student_settings: tuple[str, ...]
    fidelity: FidelityOfSeeds
    cost: Cost
    scores: dict[str, Estimate]
    tasks: dict[str, dict[str, float]]
    gains: dict[str, Estimate]
    against: Reference | None = None
    skipped: dict[str, str] = Field(default_factory=dict)

    @property
    def told(self) -> str:
        """The row in a line, for whoever watches the search."""
        over = self.gains["copies"]
        return (
            f"{self.arm} ({self.stage}): kept {self.fidelity.keep_rate:.0%}, Spearman {self.fidelity.spearman}, "
            f"over copies {over}, {self.cost.pairs_per_second:.1f} pairs a CPU second"
        )


@dataclass(frozen=True)
class Measured:
    """What the steps of an arm found, by data seed; ``scores`` are over all of them."""

    seconds: Sequence[float]
    training_seconds: Sequence[float | None]
    fidelity: Sequence[Fidelity]
    values: Sequence[dict[str, Any]]
    scores: ArmScores
    against: str | None


def row_of(
    arm: Arm,
    stage_name: str,
    stage: Stage,
    commands: Sequence[str],
    first_texts: str,
    student: Sequence[str],
    of: Measured,
) -> Row:
    """The row of an arm."""
    gains = {name: difference for (_, name), difference in zip(of.scores.pairs, of.scores.differences, strict=True)}
    other = gains.pop("reference", None)
    fidelity = judged(of.fidelity)
    trained = [seconds for seconds in of.training_seconds if seconds is not None]
    training = mean(trained) if trained else None
    pairs = math.fsum(of.seconds)
    hours = (pairs / len(of.seconds) + (training or 0.0)) / HOUR
    return Row(
        stage=stage_name,
        arm=arm.name,
        group=arm.group,
        varies=arm.varies,
        commands=tuple(commands),
        first_texts=first_texts,
        texts=stage.texts,
        data_seeds=stage.data_seeds,
        pairs=stage.pairs,
        training_seeds=stage.training_seeds,
        split=stage.split,
        student=of.values[0]["student"],
        student_settings=tuple(student),
        fidelity=fidelity,
        cost=Cost(
            pairs=round(pairs, 1),
            training=None if training is None else round(training, 1),
            pairs_per_second=round(fidelity.kept / pairs, 3) if pairs else 0.0,
            points_per_hour=round(gains["copies"].score / hours, 2) if hours else None,
        ),
        scores={name: found.average for name, found in of.scores.arms.items() if name != "reference"},
        tasks={name: found.tasks for name, found in of.scores.arms.items() if name != "reference"},
        gains=gains,
        against=Reference(arm=of.against, difference=other) if of.against and other else None,
        skipped=of.values[0].get("skipped", {}),
    )


def judged(runs: Sequence[Fidelity]) -> FidelityOfSeeds:
    """Fidelity over data seeds: counts are added; figures are means, whose first texts are independent."""
    labels = list(runs[0].labels)
    asked, kept = sum(run.requested for run in runs), sum(run.kept for run in runs)
    return FidelityOfSeeds(
        asked=asked,
        kept=kept,
        keep_rate=round(kept / asked, 4),
        spearman=pooled([run.spearman for run in runs if run.spearman]),
        cosine={label: pooled([run.labels[label].cosine for run in runs]) for label in labels},
        near_copies={label: round(mean(run.labels[label].near_copies for run in runs), 4) for label in labels},
    )


def pooled(found: Sequence[Interval]) -> Interval:
    """The mean of independent estimates; its interval's sides are roots of their summed squares, over their number."""
    centre = mean(one.value for one in found)
    below, above = (
        math.sqrt(math.fsum((one.value - end) ** 2 for one, end in zip(found, ends, strict=True))) / len(found)
        for ends in ([one.low for one in found], [one.high for one in found])
    )
    return Interval(value=round(centre, 4), low=round(centre - below, 4), high=round(centre + above, 4))
