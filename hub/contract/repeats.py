"""repeats.json: what several trainings of one recipe scored, by seed or by set of few-shot examples, and their mean.

The spread is the sample standard deviation (n - 1): between trainings, not the bootstrap's between sentence pairs.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hub.contract.results import Results
from hub.contract.run_dir import Manifest
from hub.contract.shards import write_text
from hub.errors import InputError

REPEATS = "repeats.json"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RepeatScore(_Frozen):
    """One task's main score (x 100) in one run."""

    task: str
    split: str
    main_score: Annotated[float, Field(allow_inf_nan=False)]


class Run(_Frozen):
    """One training: what told it from the others (``value`` of the seed or example set), and what it scored.

    ``validation_score`` is what its checkpoint was chosen by (None: the last one was kept).
    """

    value: Annotated[int, Field(ge=0)]
    fingerprint: str
    version: str
    scores: tuple[RepeatScore, ...]
    validation_score: Annotated[float, Field(allow_inf_nan=False)] | None = None


class Summary(_Frozen):
    """One task over all runs; ``sd`` is the sample standard deviation, None of a single run."""

    task: str
    split: str
    runs: int
    mean: float
    sd: float | None
    low: float  # the worst run
    high: float  # the best


class Repeats(_Frozen):
    """Several trainings of one recipe that differ in ``over`` alone. The summaries follow from the runs."""

    model: str
    over: Literal["seed", "example_set"]
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    summaries: tuple[Summary, ...]

    @model_validator(mode="after")
    def _adds_up(self) -> "Repeats":
        values = [run.value for run in self.runs]
        if len(set(values)) != len(values):
            raise ValueError(f"a {self.over} stands twice: {values}")
        if self.summaries != summarised(self.runs):
            raise ValueError("the summaries are not those of the runs")
        return self


def repeats_of(model: str, over: Literal["seed", "example_set"], runs: Sequence[Run]) -> Repeats:
    """The runs with their summaries. Raises ValueError when they were not scored on the same tasks."""
    return Repeats(model=model, over=over, runs=tuple(runs), summaries=summarised(runs))


def summarised(runs: Sequence[Run]) -> tuple[Summary, ...]:
    """Mean, sample standard deviation and range of every task, in the order of the first run's scores.

    Raises ValueError when the runs were not scored on the same tasks: their means would not compare.
    """
    tasks = [[(score.task, score.split) for score in run.scores] for run in runs]
    for run, found in zip(runs, tasks, strict=True):
        if found != tasks[0]:
            raise ValueError(f"run {run.value} was scored on {found}, run {runs[0].value} on {tasks[0]}")
    return tuple(_summary(*task, [run.scores[place].main_score for run in runs]) for place, task in enumerate(tasks[0]))


def _summary(task: str, split: str, values: list[float]) -> Summary:
    sd = statistics.stdev(values) if len(values) > 1 else None
    mean = statistics.fmean(values)
    return Summary(task=task, split=split, runs=len(values), mean=mean, sd=sd, low=min(values), high=max(values))


def run_of(value: int, manifest: Manifest, results: Results) -> Run:
    """What a finished run directory says of its training and its scores."""
    scores = [RepeatScore(task=score.task, split=score.split, main_score=score.main_score) for score in results.scores]
    chosen = (manifest.provenance.get("training") or {}).get("validation_score")
    return Run(
        value=value,
        fingerprint=manifest.fingerprint,
        version=manifest.version,
        scores=tuple(scores),
        validation_score=chosen,
    )


def write_repeats(path: Path, repeats: Repeats) -> None:
    """Write repeats.json atomically."""
    write_text(path, json.dumps(repeats.model_dump(mode="json"), indent=2) + "\n")


def read_repeats(path: Path) -> Repeats:
    """Read repeats.json. Raises InputError when it is missing or has another form."""
    try:
        return Repeats.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        hint = "run: sts-dino repeat RECIPE --seeds 42,43,44"
        raise InputError(path, "no repeated trainings yet", hint=hint) from error
    except ValidationError as error:
        raise InputError(path, f"not a file of repeats: {error.errors()[0]['msg']}") from error
