"""results.json: what an evaluation wrote down, in the form that cards, tables and comparisons read."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from hub.durable import regular, write_text
from hub.errors import InputError

if TYPE_CHECKING:
    import pandas

Finite = Annotated[float, Field(allow_inf_nan=False)]
Method = Literal["percentile", "bca"]
Word = Annotated[
    Literal["better", "worse", "not significant"],
    BeforeValidator(lambda word: "not significant" if word == "not separable" else word),  # results of version 0.1
]
LEVEL = 0.05  # of the adjusted p-value; the intervals are 95 % ones
RULE = (
    "better or worse: the paired 95 % interval of the difference excludes 0 and the p-value of a paired test, adjusted "
    f"by Holm's method over all tasks on which the two are compared, is below {LEVEL:g}; otherwise not significant"
)


Form = TypeVar("Form", bound=BaseModel)


class Frozen(BaseModel):
    """Base of what is measured and of its parts: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def read_json(form: type[Form], path: Path, problem: str, hint: str) -> Form | None:
    """A JSON file of a form, None when it is missing. Raises InputError, which begins with ``problem``, for another."""
    try:
        return form.model_validate_json(regular(path).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        words = filter(None, (problem, ".".join(map(str, first["loc"])), first["msg"]))
        raise InputError(path, ": ".join(words), hint=hint) from error


class Part(Frozen):
    """The score of one part of a task, e.g. an STS subset, x 100, with what it was counted over."""

    score: Finite
    n: Annotated[int, Field(ge=1)]


class Limit(Frozen):
    """Part of the data: at most so many ``rows`` of each split, drawn with ``seed``. A trial, no score of the task."""

    rows: Annotated[int, Field(ge=1)]
    seed: Annotated[int, Field(ge=0)]

    def __str__(self) -> str:
        return f"ONLY {self.rows} rows of each split, drawn with seed {self.seed}"


class TaskScore(Frozen):
    """One score, x 100; ``low`` and ``high`` are its 95 % bootstrap interval over the ``n`` rows that were scored.

    Both are None where the program that scored kept no outcome of a row (most MTEB tasks): then no interval is known.
    ``task`` names data set and protocol (``sts12/mean``), ``protocol`` says it in words, ``family`` which scores may
    share a table with it (None: written before there were families). ``data_sha256`` is the hash of
    the rows, ``data_revision`` the pinned revision of a Hub dataset, ``ORG/NAME@REVISION``; one of them is there.
    ``other`` are further metrics, x 100 where they are shares or correlations. ``seconds`` says where the time went
    (``encoding``, ``probing``), ``seeds`` which random starts the score is the mean of. ``versions`` are those of the
    libraries it was made with, where they are not the file's; ``limit`` is there when part of the data was scored.
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
    def _whole(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.task}: an interval has both ends or none")
        if self.data_sha256 is None and self.data_revision is None:
            raise ValueError(f"{self.task}: neither a hash nor a revision says which data were scored")
        return self

    def interval(self) -> tuple[float, float] | None:
        """(low, high), or None where no interval is known."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Gain(Frozen):
    """After minus before, or minus the control, on one task: a paired 95 % interval, on the same bootstrap resamples.

    ``p`` is the p-value of ``test``, ``p_holm`` the same adjusted over all gains on the same encoder, ``verdict`` what
    ``RULE`` makes of it. None: written before there were verdicts.
    """

    task: str
    split: str
    difference: float
    low: float
    high: float
    test: str | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: Word | None = None


class Average(Frozen):
    """A mean over tasks as a paper defines it, by name; only there when every one of its tasks is."""

    name: str
    definition: str
    score: Finite
    tasks: tuple[str, ...]


class Results(Frozen):
    """All scores of one encoder: after training and, under the same protocol, of its untrained base and its control.

    ``control_scores`` and ``over_control`` are of the unsupervised SimCSE baseline: the same base, trained for as many
    steps on the source sentences alone. The file leaves them out without a baseline.

    ``fingerprint`` is that of the evaluated run directory's manifest (None: not a run directory), so that results of
    other weights are recognised; ``revision`` is the Hub commit or the hash of the model's files.
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

    def pairs_of_scores(self) -> list[tuple[TaskScore | None, TaskScore]]:
        """(before, after) for every task, in the order of ``scores``."""
        before = by_task(self.base_scores)
        return [(before.get((score.task, score.split)), score) for score in self.scores]

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each task and split: score x 100, its interval, rows, and the base's and the control's scores."""
        import pandas

        before, control, rows = by_task(self.base_scores), by_task(self.control_scores), []
        for one in self.scores:
            found = {"task": one.task, "split": one.split, "metric": one.main_metric, "score": one.main_score}
            found |= {"low": one.low, "high": one.high, "n": one.n}
            sides = {"base": before.get((one.task, one.split)), "control": control.get((one.task, one.split))}
            rows.append(found | {name: other.main_score for name, other in sides.items() if other is not None})
        return pandas.DataFrame(rows)

    @model_serializer(mode="wrap")
    def _without_absent_control(self, serialised: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = {name for name in ("control_scores", "over_control") if not getattr(self, name)}
        return {name: value for name, value in serialised(self).items() if name not in absent}


Scored = TypeVar("Scored", TaskScore, Gain)


def by_task(scores: Iterable[Scored]) -> dict[tuple[str, str], Scored]:
    """Scores or gains by task and split."""
    return {(one.task, one.split): one for one in scores}


def write_results(path: Path, results: Results) -> None:
    """Write results.json atomically."""
    write_text(path, json.dumps(results.model_dump(mode="json"), indent=2) + "\n")


def read_results(path: Path) -> Results:
    """Read results.json. Raises InputError when it is missing or has another form."""
    found = read_json(Results, path, "not a results file", "evaluate again: sts-dino score")
    if found is None:
        raise InputError(path, "no results yet", hint="run: sts-dino score RECIPE")
    return found
