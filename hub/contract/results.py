"""results.json: the scores of one evaluation, read by cards, tables and comparisons."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from sts_dino.hub.durable import require_regular_file, write_text
from sts_dino.hub.errors import InputError

if TYPE_CHECKING:
    import pandas

Finite = Annotated[float, Field(allow_inf_nan=False)]
Method = Literal["percentile", "bca"]
VerdictWord = Literal["better", "worse", "not significant"]
SIGNIFICANCE_LEVEL = 0.05  # of the adjusted p-value; the intervals are 95 % ones
VERDICT_RULE = (
    "better or worse: the paired 95 % interval of the difference excludes 0 and the p-value of a "
    "paired test, adjusted by Holm's method over all tasks on which the two are compared, is below "
    f"{SIGNIFICANCE_LEVEL:g}; otherwise not significant"
)


Form = TypeVar("Form", bound=BaseModel)


class Frozen(BaseModel):
    """Base of all forms of measurements: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_json(form: type[Form], path: Path, problem: str, hint: str) -> Form | None:
    """Read a JSON file as the model ``form``; None when the file is missing.

    Raises InputError for any other content, and for a pipe, a socket or a device; OSError for a
    file that cannot be opened.

    Args:
        form: the pydantic model.
        path: the file.
        problem: the problem in the error; the first wrong key follows it.
        hint: the remedy in the error.
    """
    try:
        return form.model_validate_json(require_regular_file(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = f"{key}: {first['msg']}" if key else first["msg"]
        raise InputError(path, f"{problem}: {message}", hint=hint) from error


class Part(Frozen):
    """The score (x 100) of one part of a task, e.g. an STS subset, over ``n`` rows."""

    score: Finite
    n: Annotated[int, Field(ge=1)]


class Limit(Frozen):
    """The limit of a trial: at most ``rows`` rows of each split, drawn with ``seed``."""

    rows: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]

    def __str__(self) -> str:
        return f"ONLY {self.rows} rows of each split, drawn with seed {self.seed}"


class TaskScore(Frozen):
    """The score (x 100) of one task on one split, over ``n`` rows.

    ``task``: dataset and protocol, e.g. ``sts12/mean``; ``protocol``: both in words.
    ``low``, ``high``: the 95 % bootstrap interval over the rows; None where the outcome of single
    rows is unknown (most MTEB tasks). ``family``: scores of one family may share a table; None in
    files from before there were families. ``data_sha256``: the hash of the rows; ``data_revision``:
    ``ORG/NAME@REVISION`` of a Hub dataset; at least one of the two is set. ``other``: further
    metrics, x 100 where they are shares or correlations. ``seconds``: run time by phase
    (``encoding``, ``probing``). ``seeds``: the random starts whose mean the score is. ``versions``:
    library → version, where they differ from the file's. ``limit``: set when only part of the data
    was scored.
    """

    task: str
    protocol: str
    split: str
    main_metric: str
    main_score: Finite
    low: Finite | None = None
    high: Finite | None = None
    n: Annotated[int, Field(ge=1)]
    unit: Literal["pairs", "sentences", "captions", "documents", "queries"] = "pairs"
    family: str | None = None
    data_sha256: str | None = None
    data_revision: str | None = None
    other: dict[str, Finite] = {}
    parts: dict[str, Part] = {}
    seeds: tuple[int, ...] = ()
    seconds: dict[str, Finite] = {}
    versions: dict[str, str] = {}
    limit: Limit | None = None

    @model_validator(mode="after")
    def _check_facts(self) -> Self:
        """Raise ValueError for an interval with one end, and for data without hash and revision."""
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.task}: an interval has both ends or none")
        if self.data_sha256 is None and self.data_revision is None:
            raise ValueError(
                f"{self.task}: neither a hash nor a revision says which data were scored"
            )
        return self

    def interval(self) -> tuple[float, float] | None:
        """Return (low, high), or None where no interval is known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Gain(Frozen):
    """The score of a trained encoder minus its base's or its control's, on one task.

    ``low``, ``high``: the paired 95 % interval, on common bootstrap resamples. ``p``: the p-value
    of ``test``. ``p_holm``: ``p`` adjusted over all gains of the encoder. ``verdict``: the outcome
    of ``VERDICT_RULE``. These four are None in files from before there were verdicts.
    """

    task: str
    split: str
    difference: float
    low: float
    high: float
    test: str | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: VerdictWord | None = None


class Average(Frozen):
    """A mean of task scores as a paper defines it; every one of its tasks has a score."""

    name: str
    definition: str
    score: Finite
    tasks: tuple[str, ...]


class Results(Frozen):
    """All scores of one encoder, and of its untrained base and its control under one protocol.

    ``gains``: the encoder over its base. ``control_scores``, ``over_control``: of the unsupervised
    SimCSE baseline, the same base trained for as many steps on the source sentences alone; the file
    leaves both out without a baseline. ``fingerprint``: of the evaluated run directory's manifest;
    None for an encoder outside a run directory. ``revision``: the Hub commit, or the hash of the
    model's files.
    """

    model: str
    revision: str
    bootstrap_samples: int
    interval: Method = "percentile"
    seed: int
    versions: dict[str, str]
    scores: tuple[TaskScore, ...]
    averages: tuple[Average, ...] = ()
    base_scores: tuple[TaskScore, ...] = ()
    gains: tuple[Gain, ...] = ()
    control_scores: tuple[TaskScore, ...] = ()
    over_control: tuple[Gain, ...] = ()
    fingerprint: str | None = None

    @property
    def limit(self) -> Limit | None:
        """The part of the data that was scored; None: all of it."""
        return next((score.limit for score in self.scores if score.limit is not None), None)

    def list_score_pairs(self) -> list[tuple[TaskScore | None, TaskScore]]:
        """Return (score of the base, score of the encoder) for every task, in order of ``scores``.

        The first is None for a task on which the base was not scored.
        """
        base_scores = map_by_task(self.base_scores)
        return [(base_scores.get((score.task, score.split)), score) for score in self.scores]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each task and split: score x 100, its interval, and rows scored.

        The columns ``base`` and ``control`` are there when a task has such a score; NaN elsewhere.
        """
        import pandas

        references = {"base": self.base_scores, "control": self.control_scores}
        rows = []
        for score in self.scores:
            row = {
                "task": score.task,
                "split": score.split,
                "metric": score.main_metric,
                "score": score.main_score,
                "low": score.low,
                "high": score.high,
                "n": score.n,
            }
            for name, scores in references.items():
                reference = map_by_task(scores).get((score.task, score.split))
                if reference is not None:
                    row[name] = reference.main_score
            rows.append(row)
        return pandas.DataFrame(rows)

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the control's scores where there are none."""
        values = handler(self)
        for name in ("control_scores", "over_control"):
            if not getattr(self, name):
                values.pop(name, None)
        return values


Scored = TypeVar("Scored", TaskScore, Gain)


def map_by_task(scores: Iterable[Scored]) -> dict[tuple[str, str], Scored]:
    """Map (task, split) to its score or gain."""
    return {(score.task, score.split): score for score in scores}


def write_results(path: Path, results: Results) -> None:
    """Write results.json atomically."""
    write_text(path, json.dumps(results.model_dump(mode="json"), indent=2) + "\n")


def read_results(path: Path) -> Results:
    """Read results.json. Raises InputError when it is missing or has another form."""
    results = read_json(Results, path, "not a results file", "evaluate again: sts-dino score")
    if results is None:
        raise InputError(path, "no results yet", hint="run: sts-dino score RECIPE")
    return results
