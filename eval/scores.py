"""From what was measured to what is written: a score with its interval."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from eval.jackknife import influence
from eval.outcomes import Aggregation, Measured, Metric, Outcomes
from eval.registry import Task
from eval.significance import Interval, Resampling, interval, resample, score
from hub.results import Method, Part, TaskScore


class Settings(BaseModel):
    """What decides a score and its interval beside encoder and data. ``limit`` is rows per split (None: all)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_samples: Annotated[int, Field(ge=1)] = 1000
    interval: Method = "percentile"
    seed: Annotated[int, Field(ge=0)] = 42  # of the bootstrap
    probe_seeds: tuple[int, ...] = (1111,)
    limit: int | None = None

    @property
    def resampling(self) -> Resampling:
        """How intervals are made."""
        return Resampling(self.bootstrap_samples, self.interval, self.seed)

    def protocol(self, task: Task) -> str:
        """The task's protocol in words, which says so when only part of the data is scored."""
        return task.protocol if self.limit is None else f"{task.protocol}; ONLY {self.limit} rows of each split"


def task_score(
    task: Task, split: str, measured: Measured, data_sha256: str, settings: Settings, seconds: Mapping[str, float]
) -> TaskScore:
    """The score of a task with its interval. Raises RunError when it cannot be resampled.

    The score is the mean over seeds; the interval is how far sampling the rows moves the first seed's score, set around
    that mean. How far seeds move it is ``other["sd_over_seeds"]``.
    """
    assert task.metric is not None, task.name
    mean = measured.score if len(measured.seeds) > 1 else None
    around = _around(measured.outcomes, task.metric, task.aggregation, settings, mean)
    return TaskScore(
        task=task.name,
        protocol=settings.protocol(task),
        split=split,
        main_metric=task.metric,
        main_score=measured.score,
        low=around.low,
        high=around.high,
        n=len(measured.outcomes),
        unit=task.unit,
        data_sha256=data_sha256,
        other=measured.other,
        parts={name: Part(score=score, n=n) for name, (score, n) in measured.parts.items()},
        seeds=measured.seeds,
        seconds={name: round(value, 3) for name, value in {**measured.seconds, **seconds}.items()},
    )


def _around(
    outcomes: Outcomes, metric: Metric, aggregation: Aggregation, settings: Settings, mean: float | None
) -> Interval:
    """The interval of a system's score on these rows, moved to ``mean``.

    BCa's bias is that of the resamples against the same rows' score, not against a mean over seeds.
    """
    drawn = resample([outcomes], metric, aggregation, settings.bootstrap_samples, settings.seed)[0]
    point = score(outcomes, metric, aggregation)
    if mean is not None:
        drawn, point = drawn + (mean - point), mean
    by_row = influence(outcomes, metric, aggregation) if settings.interval == "bca" else None
    return interval(drawn, settings.interval, point=point, influence=by_row)
