"""From what was measured to what is written: a score with its interval, and the paired gain on another encoder."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from eval.jackknife import influence
from eval.outcomes import Aggregation, Measured, Metric, Outcomes
from eval.registry import Task
from eval.significance import Interval, interval, resample, score
from hub.results import Gain, Method, Part, TaskScore


class Settings(BaseModel):
    """What decides a score and its interval beside encoder and data. ``limit`` is rows per split (None: all)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_samples: Annotated[int, Field(ge=1)] = 1000
    interval: Method = "percentile"
    seed: Annotated[int, Field(ge=0)] = 42  # of the bootstrap
    probe_seeds: tuple[int, ...] = (1111,)
    limit: int | None = None

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
    around = _around((measured.outcomes,), task.metric, task.aggregation, settings, mean)
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


def gain(
    after: TaskScore,
    before: TaskScore,
    outcomes: tuple[Outcomes, Outcomes],
    metric: Metric,
    aggregation: Aggregation,
    settings: Settings,
) -> Gain:
    """After minus before, both resampled alike; ``outcomes`` are theirs, on the same rows."""
    difference = after.main_score - before.main_score
    mean = difference if len(after.seeds) > 1 else None
    around = _around(outcomes, metric, aggregation, settings, mean)
    return Gain(task=after.task, split=after.split, difference=difference, low=around.low, high=around.high)


def _around(
    outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, settings: Settings, mean: float | None
) -> Interval:
    """The interval of one system's score on these rows, or of the first system's minus the second's; moved to ``mean``.

    BCa's bias is that of the resamples against the same rows' score, not against a mean over seeds.
    """
    samples = resample(outcomes, metric, aggregation, settings.bootstrap_samples, settings.seed)
    drawn = samples[0] if len(samples) == 1 else samples[0] - samples[1]
    points = [score(one, metric, aggregation) for one in outcomes]
    point = points[0] if len(points) == 1 else points[0] - points[1]
    if mean is not None:
        drawn, point = drawn + (mean - point), mean
    if settings.interval == "percentile":
        return interval(drawn)
    values = [influence(one, metric, aggregation) for one in outcomes]
    moved = values[0] if len(values) == 1 else values[0] - values[1]
    return interval(drawn, "bca", point=point, influence=moved)
