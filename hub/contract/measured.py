"""Measurements beside a run's manifest: decontamination, label fidelity, repeated trainings, downstream gain.

Each file is made for the rows of one fingerprint and is refused for any other. No measurement decides a row.
"""

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AliasChoices, BaseModel, Field, computed_field, model_validator

from hub.contract.results import Finite, Frozen, Results, read_json
from hub.contract.run_dir import REPORT, Manifest, locked, require_complete
from hub.durable import write_text
from hub.errors import InputError, RunError

AGREES = 0.5  # least Spearman and cosine of the highest label; without examples 0.18, else 0.8 (docs/better_pairs.md)
HEAD = 20_000  # characters of a report, in which its runs' fingerprints stand
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def was(old: str, name: str, **more: Any) -> Any:
    """A field that files of version 0.1 call ``old``."""
    return Field(validation_alias=AliasChoices(name, old), **more)


class Measured(Frozen):
    """Measurements of a run's rows, in a file of its directory; ``measured_by`` is the command that makes the file."""

    file: ClassVar[str]
    measured_by: ClassVar[str]

    rows_key: ClassVar[str] = "fingerprint"  # the key with the fingerprint of the run that was measured

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self | None:
        """The measurements in a run directory, or None.

        Raises InputError, naming the command that measures again, for another form and for the rows of another run.
        """
        hint = f"measure again: {cls.measured_by.format(directory=directory)}"
        found = read_json(cls, directory / cls.file, "has another form than expected", hint)
        if found is not None and getattr(found, cls.rows_key) != manifest.fingerprint:
            raise InputError(directory / cls.file, "was measured on other rows than the run directory holds", hint=hint)
        return found

    def write(self, directory: Path) -> Path:
        """Write the file into a run directory, atomically. Raises RunError when the rows are no longer the same."""
        with locked(directory):
            if require_complete(directory).fingerprint != getattr(self, self.rows_key):
                raise RunError(directory, "its rows changed while they were measured", hint="measure again")
            write_json(directory / self.file, self)
        return directory / self.file


def has_report(directory: Path, manifest: Manifest) -> bool:
    """Whether a run directory holds a report. Raises InputError when it tells of other rows or weights."""
    path = directory / REPORT
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as page:
        found = re.search(r'<meta name="fingerprints" content="([0-9a-f ]*)">', page.read(HEAD))
    if found is None or manifest.fingerprint not in found[1].split():
        hint = f"write it again: sts-dino report {directory}, or remove it"
        raise InputError(path, "shows other rows or weights than the run directory holds", hint=hint)
    return True


def write_json(path: Path, value: BaseModel) -> None:
    """Write a form atomically."""
    write_text(path, json.dumps(value.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")


PROVENANCE, INPUT = "decontamination", "rows dropped"
LEDGER = "decontamination.json"  # of a run directory
Kind = Literal["exact", "normal", "near", "short"]  # of a match, strongest first: eval.audit.evaluation_sentences
KINDS: tuple[Kind, ...] = get_args(Kind)


class Origin(Frozen):
    """The run that rows were dropped from."""

    name: str
    version: str
    fingerprint: str


class SplitRows(Frozen):
    """Rows of one split of a config: those kept, and those dropped by the kind of their strongest match."""

    kept: Count
    dropped: dict[str, Count]

    @property
    def before(self) -> int:
        """The rows there were."""
        return self.kept + sum(self.dropped.values())


class Dropped(Frozen):
    """What was compared, under which settings, and the rows of every config and split."""

    dataset: Origin
    kinds: tuple[str, ...]  # of matches that a row was dropped for
    evaluation_splits: tuple[str, ...]  # that a row was dropped for
    evaluation: dict[str, dict[str, str]]  # every split compared with, e.g. stsb/test: text form → SHA-256 of its rows
    not_checked: tuple[str, ...]
    settings: dict[str, float | int | dict[str, int]]
    rows: dict[str, dict[str, SplitRows]]

    def digest(self) -> str:
        """SHA-256 of all of it."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()

    @property
    def total(self) -> int:
        """Rows dropped of all configs; a text may stand in several."""
        return sum(sum(split.dropped.values()) for splits in self.rows.values() for split in splits.values())


class Checked(Frozen):
    """A split of evaluation data: the dataset's ``rows`` that match it, by the strongest kind, and the split's distinct
    sentences that some text matches (``found``), by kind: a sentence may count in several.
    """

    texts: int
    sha256: dict[str, str]
    rows: dict[Kind, int]
    found: dict[Kind, int]


class ConfigCount(BaseModel, extra="forbid"):
    """Rows of one config. ``kinds``: by a row's strongest match with a split that scores come from; ``train_only``:
    rows that match train splits alone (exact, normal or near)."""

    splits: dict[str, int]
    kinds: dict[Kind, int]
    train_only: int
    columns: dict[str, dict[Kind, int]]  # texts of a column, likewise
    labels: dict[str, dict[Kind, int]]


class Example(Frozen):
    """One match; rows count from 0."""

    config: str
    split: str
    row: int
    column: str
    text_sha256: str
    kind: Kind
    similarity: float
    place: str  # e.g. sts12/test
    place_row: int
    place_side: int


class Ledger(Measured):
    """What was checked and found. ``revision``: the Hub commit or the run's fingerprint.

    ``not_checked``: splits without files in what was given. ``settings``: thresholds, the look-up of near matches, and
    ``recall``, the expected share of the near pairs just at the threshold that it finds.
    """

    file, rows_key = LEDGER, "revision"
    measured_by = "sts-dino decontaminate {directory} --card"

    dataset: str
    revision: str
    settings: dict[str, float | int | dict[str, int]]
    sentences: int  # distinct normal forms of all evaluation data
    checked: dict[str, Checked]
    not_checked: tuple[str, ...]
    configs: dict[str, ConfigCount]
    examples: tuple[Example, ...]


FIDELITY = "fidelity.json"
NEAR_COPY = 0.8  # a word overlap from which a text counts as a near-copy here, whatever the recipe filters by


class Interval(Frozen):
    """A value and its 95 % bootstrap interval over source sentences."""

    value: Finite
    low: Finite
    high: Finite

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class Judge(Frozen):
    """A model that measured; ``revision`` is its commit or a hash of its files."""

    name: str
    revision: str


class LabelFidelity(Frozen):
    """The texts of one label: their cosine with x1, the shares that copy x1 or nearly do, and what an NLI judge says.

    ``nli``: class → share of the pairs (x1, text) that the NLI judge puts there; None where there was none.
    """

    texts: Positive
    cosine: Interval
    identical: Share
    near_copies: Share
    word_overlap: Share
    nli: dict[str, Share] | None = None


class PersonAgreement(Frozen):
    """How one person's blind answers agree with the labels of the finished rows: percent, and Cohen's κ if defined."""

    answers: Positive
    same: Interval
    kappa: Interval | None


class Fidelity(Measured):
    """Label fidelity of one config of a dataset's run.

    ``source_sentences`` of ``all_source_sentences`` were drawn by ``seed``. ``requested`` and ``kept`` count texts of
    the whole config. ``spearman``: of label score and cosine, None for labels without scores.
    """

    file = FIDELITY
    measured_by = "sts-dino fidelity {directory}"

    dataset: str
    config: str
    fingerprint: str
    judge: Judge
    nli_judge: Judge | None
    source_sentences: Positive = was("first_texts", "source_sentences")
    all_source_sentences: Positive = was("all_first_texts", "all_source_sentences")
    seed: Count
    requested: Positive
    kept: Count
    spearman: Interval | None
    near_copies: Share
    labels: dict[str, LabelFidelity]
    people: tuple[PersonAgreement, ...] = ()
    versions: dict[str, str]

    def doubt(self) -> str | None:
        """A warning when Spearman's correlation, or the highest mean cosine of a label, may be below ``AGREES``."""
        if self.spearman is None:
            return None
        if min(self.spearman.low, max(label.cosine.low for label in self.labels.values())) >= AGREES:
            return None
        hint = "give examples of the corpus's kind, or another language model"
        return f"warning: below {AGREES} labels mean little, and an encoder learns little from them; {hint}"


REPEATS = "repeats.json"


class RepeatScore(Frozen):
    """One task's main score (x 100) in one run."""

    task: str
    split: str
    main_score: Finite


class Run(Frozen):
    """One training: the seed or example set (``value``) that it differs in, and its scores.

    ``validation_score`` is what its checkpoint was chosen by (None: the last one was kept).
    """

    value: Count
    fingerprint: str
    version: str
    scores: tuple[RepeatScore, ...]
    validation_score: Finite | None = None


class Summary(Frozen):
    """One task over all runs; ``sd`` is the sample standard deviation, None of a single run."""

    task: str
    split: str
    runs: int
    mean: float
    sd: float | None
    low: float  # the worst run
    high: float  # the best


class Repeats(BaseModel, frozen=True):
    """Several trainings of one recipe that differ in ``over`` alone. A file's own summaries are not read."""

    model: str
    over: Literal["seed", "example_set"]
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        values = [run.value for run in self.runs]
        if len(set(values)) != len(values):
            raise ValueError(f"a {self.over} stands twice: {values}")
        summarised(self.runs)
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summaries(self) -> tuple[Summary, ...]:
        """Mean, sample standard deviation and range of every task."""
        return summarised(self.runs)


def summarised(runs: Sequence[Run]) -> tuple[Summary, ...]:
    """Mean, sample standard deviation and range of every task, in the order of the first run's scores.

    Raises ValueError when the runs were not scored on the same tasks: their means would not compare.
    """
    tasks = [[(score.task, score.split) for score in run.scores] for run in runs]
    for run, found in zip(runs, tasks, strict=True):
        if found != tasks[0]:
            raise ValueError(f"run {run.value} was scored on {found}, run {runs[0].value} on {tasks[0]}")
    summaries = []
    for place, (task, split) in enumerate(tasks[0]):
        scores = [run.scores[place].main_score for run in runs]
        sd, ends = statistics.stdev(scores) if len(scores) > 1 else None, {"low": min(scores), "high": max(scores)}
        mean = statistics.fmean(scores)
        summaries.append(Summary(task=task, split=split, runs=len(scores), mean=mean, sd=sd, **ends))
    return tuple(summaries)


def run_of(value: int, manifest: Manifest, results: Results) -> Run:
    """What a finished run directory says of its training and its scores."""
    scores = [RepeatScore(task=score.task, split=score.split, main_score=score.main_score) for score in results.scores]
    chosen = (manifest.provenance.get("training") or {}).get("validation_score")
    known: Any = {"fingerprint": manifest.fingerprint, "version": manifest.version, "validation_score": chosen}
    return Run(value=value, scores=tuple(scores), **known)


def read_repeats(path: Path) -> Repeats:
    """Read repeats.json. Raises InputError when it is missing or has another form."""
    found = read_json(Repeats, path, "not a file of repeats", "train again: sts-dino repeat RECIPE --seeds 42,43,44")
    if found is None:
        raise InputError(path, "no repeated trainings yet", hint="run: sts-dino repeat RECIPE --seeds 42,43,44")
    return found


VALUE = "value.json"
Split = Literal["validation", "test"]
TrainedOn = Literal["untrained", "copies", "shuffled", "dataset", "people"]


class Estimate(Frozen):
    """Points (Spearman x 100) with a 95 % interval, over sentence pairs and, where there are several, seeds."""

    score: Finite
    low: Finite
    high: Finite

    def __str__(self) -> str:
        return f"{self.score:.2f} [{self.low:.2f}, {self.high:.2f}]"


class VariantScore(Frozen):
    """Scores of one variant: the mean over tasks and seeds, and each task's mean over seeds.

    ``over_simcse``: the paired difference to the unsupervised SimCSE baseline (None: that baseline itself).
    """

    average: Estimate
    tasks: dict[str, Finite]
    over_simcse: Estimate | None = was("over_copies", "over_simcse", default=None)


class VariantPlan(Frozen):
    """The evaluations to compare: variant → their folders by seed. Variants of several seeds share them, in this order.

    ``data_seeds``: the folders of a variant are of so many datasets, generated with as many seeds; those of the
    first come first. ``differences``: pairs of variants to compare beside each with the control.
    """

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split
    samples: Positive
    variants: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]]
    control: str
    data_seeds: Positive = 1
    differences: tuple[tuple[str, str], ...] = ()

    @model_validator(mode="after")
    def _paired(self) -> Self:
        for name in (self.control, *(name for pair in self.differences for name in pair)):
            if name not in self.variants:
                raise ValueError(f"{name!r} is not one of the variants")
        sizes = {len(places) for places in self.variants.values()} - {1}
        if len(sizes) > 1:
            raise ValueError("variants differ in their number of seeds")
        if any(size % self.data_seeds for size in sizes):
            raise ValueError(f"{max(sizes)} folders are not equally many of {self.data_seeds} datasets")
        return self


class VariantScores(Frozen):
    """What ``eval.compare.seeds`` found, by variant; ``differences``: the first's minus the second's, of ``pairs``."""

    variants: dict[str, VariantScore] = was("arms", "variants")
    pairs: tuple[tuple[str, str], ...] = ()
    differences: tuple[Estimate, ...] = ()


class TrainingValue(Measured):
    """Downstream gain of a dataset, under one student, one number of pairs and the same steps for every variant.

    ``fingerprint`` is that of the dataset's run (of the rows that were measured), ``student`` the recipe's name,
    ``student_sha256`` a digest of all that decides a training but its pairs and seed. ``over``: variant → the
    paired difference of the dataset to it, for shuffled labels and human-annotated pairs. ``skipped``: variant → why
    it was not trained.
    """

    file = VALUE
    measured_by = "sts-dino value {directory}"

    dataset: str
    config: str
    fingerprint: str
    student: str
    student_sha256: str
    base: str
    pairs: Positive
    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split
    samples: Positive
    variants: dict[TrainedOn, VariantScore] = was("arms", "variants")
    start: str = "before training"  # what the encoder is called before it (``Encoder.start``)
    over: dict[TrainedOn, Estimate] = Field(default_factory=dict)
    skipped: dict[TrainedOn, str] = Field(default_factory=dict)
    versions: dict[str, str]

    @model_validator(mode="after")
    def _measured(self) -> Self:
        if not {"dataset", "copies"} <= self.variants.keys() or self.variants["dataset"].over_simcse is None:
            raise ValueError("the dataset and the SimCSE baseline are always measured")
        return self

    @property
    def names(self) -> dict[TrainedOn, str]:
        """Variant → what it was trained on, in words; in the order of tables."""
        return {
            "untrained": f"nothing ({self.start})",
            "copies": "source sentences alone (unsupervised SimCSE baseline)",
            "shuffled": "pairs of this dataset, their scores shuffled (shuffled-label baseline)",
            "dataset": "pairs of this dataset",
            "people": "human-annotated pairs",
        }

    @property
    def gain(self) -> Estimate:
        """Points by which the dataset is above the SimCSE baseline."""
        found = self.variants["dataset"].over_simcse
        assert found is not None
        return found


def require_value(directory: Path, manifest: Manifest, least: float) -> None:
    """Raise InputError when the gain over the SimCSE baseline was not measured, RunError when it is below ``least``."""
    value = TrainingValue.read(directory, manifest)
    if value is None:
        hint = f"measure it: sts-dino value {directory}"
        raise InputError(directory, f"its downstream gain is not measured (no {VALUE})", hint=hint)
    if value.gain.score < least:
        found = f"its downstream gain, {value.gain} points over the SimCSE baseline, is below --min-value {least:g}"
        raise RunError(directory, found, hint="write better pairs, or lower --min-value")
