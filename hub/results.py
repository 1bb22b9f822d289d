"""results.json: what an evaluation wrote down, in the form that cards and tables read."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hub.errors import InputError
from hub.shards import write_text


class TaskScore(BaseModel):
    """One score. ``main_score``, ``low`` and ``high`` are correlations x 100; the interval is a 95 % bootstrap one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    protocol: str
    split: str
    main_metric: str
    main_score: float
    low: float
    high: float
    pairs: int
    data_sha256: str
    other: dict[str, float] = {}


class Gain(BaseModel):
    """After minus before on one task, both scored on the same bootstrap resamples (a paired 95 % interval)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    split: str
    difference: float
    low: float
    high: float


class Results(BaseModel):
    """All scores of one encoder: after training and, under the same protocol, of its untrained base.

    ``fingerprint`` is that of the evaluated run directory's manifest (None: not a run directory), so that results of
    other weights can be told.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    bootstrap_samples: int
    seed: int
    versions: dict[str, str]
    scores: tuple[TaskScore, ...]
    base_scores: tuple[TaskScore, ...] = ()
    gains: tuple[Gain, ...] = ()
    fingerprint: str | None = None

    def pairs_of_scores(self) -> list[tuple[TaskScore | None, TaskScore]]:
        """(before, after) for every task, in the order of ``scores``."""
        before = {(score.task, score.split): score for score in self.base_scores}
        return [(before.get((score.task, score.split)), score) for score in self.scores]


def write_results(path: Path, results: Results) -> None:
    """Write results.json atomically."""
    write_text(path, json.dumps(results.model_dump(mode="json"), indent=2) + "\n")


def read_results(path: Path) -> Results:
    """Read results.json. Raises InputError when it is missing or has another form."""
    try:
        return Results.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(path, "no results yet", hint="run: python -m eval.run RECIPE") from error
    except ValidationError as error:
        raise InputError(path, f"not a results file: {error.errors()[0]['msg']}") from error
