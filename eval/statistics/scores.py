"""From what was measured to what is written: a score with its interval."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from eval.scoring.outcomes import Measured, Outcomes
from eval.statistics.bootstrap import Interval, Resampling, interval, resample, score
from eval.statistics.paired import influence
from eval.tasks.task import Aggregation, Metric, Task
from hub.contract.results import Limit, Method, Part, TaskScore


class EvaluationSettings(BaseModel):
    """What decides a score and its interval beside encoder and data. ``limit`` is rows per split (None: all).

    ``seed`` is that of the bootstrap, and draws the rows of a limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_samples: Annotated[int, Field(ge=1)] = 1000
    interval: Method = "percentile"
    seed: Annotated[int, Field(ge=0)] = 42
    probe_seeds: tuple[int, ...] = (1111,)
    limit: int | None = None

    @property
    def resampling(self) -> Resampling:
        """How intervals are made."""
        return Resampling(self.bootstrap_samples, self.interval, self.seed)

    def protocol(self, task: Task) -> str:
        """The task's protocol in words, which says so when only part of the data is scored."""
        return task.protocol if self.part is None else f"{task.protocol}; {self.part}"

    @property
    def part(self) -> Limit | None:
        """The part of the data that is scored; None: all of it."""
        return None if self.limit is None else Limit(rows=self.limit, seed=self.seed)

    @property
    def rows(self) -> str:
        """The same in words."""
        return "all rows" if self.limit is None else f"{self.limit} rows of each split, drawn with seed {self.seed}"


@dataclass(frozen=True)
class NewScore:
    """A score as it is written, its task, and the rows behind it (None where MTEB tells none: it has no interval)."""

    task: Task
    score: TaskScore
    outcomes: Outcomes | None


def task_score(
    task: Task,
    split: str,
    measured: Measured,
    data_sha256: str,
    settings: EvaluationSettings,
    seconds: Mapping[str, float],
) -> TaskScore:
    """The score of a task with its interval. Raises RunError when it cannot be resampled.

    The score is the mean over seeds; the interval is how far sampling the rows moves the first seed's score, set around
    that mean. How far seeds move it is ``other["sd_over_seeds"]``.
    """
    assert task.metric is not None, task.name
    score = TaskScore(
        task=task.name,
        protocol=settings.protocol(task),
        split=split,
        main_metric=task.metric,
        main_score=measured.score,
        n=len(measured.outcomes),
        unit=task.unit,
        family=task.family,
        data_sha256=data_sha256,
        other=measured.other,
        parts={name: Part(score=score, n=n) for name, (score, n) in measured.parts.items()},
        seeds=measured.seeds,
        seconds={name: round(value, 6) for name, value in {**measured.seconds, **seconds}.items()},
        limit=settings.part,
    )
    around = task_interval(score, measured.outcomes, task.metric, task.aggregation, settings)
    return score.model_copy(update={"low": around.low, "high": around.high})


def task_interval(
    told: TaskScore, outcomes: Outcomes, metric: Metric, aggregation: Aggregation, settings: EvaluationSettings
) -> Interval:
    """The interval of a score whose rows are ``outcomes``; of a mean over seeds that of the first, moved to the mean.

    BCa's bias is that of the resamples against the same rows' score, not against a mean over seeds. Raises RunError
    when the rows cannot be resampled.
    """
    drawn = resample([outcomes], metric, aggregation, settings.bootstrap_samples, settings.seed)[0]
    point = score(outcomes, metric, aggregation)
    if len(told.seeds) > 1:
        drawn, point = drawn + (told.main_score - point), told.main_score
    by_row = influence(outcomes, metric, aggregation) if settings.interval == "bca" else None
    return interval(drawn, settings.interval, point=point, influence=by_row)
