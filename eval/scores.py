"""From what was measured to what is written: a score with its interval, and the paired gain on another encoder."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from eval.jackknife import influence
from eval.outcomes import Aggregation, Measured, Metric, Outcomes
from eval.registry import Task
from eval.significance import Interval, interval, resample
from hub.results import Gain, Method, Part, TaskScore


class Settings(BaseModel):
    """What decides a score and its interval beside encoder and data. ``limit`` is rows per split (None: all)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_samples: int = 1000
    interval: Method = "percentile"
    seed: int = 42  # of the bootstrap
    probe_seeds: tuple[int, ...] = (1111,)
    limit: int | None = None

    def protocol(self, task: Task) -> str:
        """The task's protocol in words, which says so when only part of the data is scored."""
        return task.protocol if self.limit is None else f"{task.protocol}; ONLY {self.limit} rows of each split"


def task_score(
    task: Task, split: str, measured: Measured, data_sha256: str, settings: Settings, seconds: Mapping[str, float]
) -> TaskScore:
    """The score of a task with its interval. Raises RunError when it cannot be resampled."""
    assert task.metric is not None, task.name
    around = _around((measured.outcomes,), task.metric, task.aggregation, measured.score, settings)
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
    around = _around(outcomes, metric, aggregation, difference, settings)
    return Gain(task=after.task, split=after.split, difference=difference, low=around.low, high=around.high)


def _around(
    outcomes: Sequence[Outcomes], metric: Metric, aggregation: Aggregation, point: float, settings: Settings
) -> Interval:
    """The interval of one system's score, or of the first system's minus the second's."""
    samples = resample(outcomes, metric, aggregation, settings.bootstrap_samples, settings.seed)
    drawn = samples[0] if len(samples) == 1 else samples[0] - samples[1]
    if settings.interval == "percentile":
        return interval(drawn)
    values = [influence(one, metric, aggregation) for one in outcomes]
    moved = values[0] if len(values) == 1 else values[0] - values[1]
    return interval(drawn, "bca", point=point, influence=moved)
