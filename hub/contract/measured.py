"""Measurements of a run's rows, each in a JSON file beside the run's manifest.

The measurements are decontamination, label agreement, repeated trainings and downstream gain. A
file holds the fingerprint of the rows that were measured, and is refused beside other rows.
"""

import hashlib
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import BaseModel, Field, computed_field, model_validator

from sts_dino.hub.contract.results import Finite, Frozen, Results, read_json
from sts_dino.hub.contract.run_dir import REPORT, Manifest, lock_run, require_complete
from sts_dino.hub.durable import write_text
from sts_dino.hub.errors import InputError, RunError

# least Spearman correlation of label score and cosine, and least mean cosine of the highest label.
# docs/better_pairs.md measured 0.18 without few-shot examples and 0.8 with them
LEAST_AGREEMENT = 0.5
REPORT_HEAD_CHARACTERS = 20_000  # a report's first characters hold its runs' fingerprints
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Measured(Frozen):
    """Base of the measurements of a run's rows, in one file of the run directory.

    ``file``: the file's name. ``measured_by``: the command that makes the file.
    """

    file: ClassVar[str]
    measured_by: ClassVar[str]

    # the key with the fingerprint of the run that was measured
    rows_key: ClassVar[str] = "fingerprint"

    @classmethod
    def read(cls, directory: Path, manifest: Manifest) -> Self | None:
        """Read the measurements from a run directory; None where the file is missing.

        ``manifest``: that of the run directory. Raises InputError, naming the command that measures
        again, for a file of another form and for a file of another run's rows; OSError for a file
        that cannot be opened.
        """
        hint = f"measure again: {cls.measured_by.format(directory=directory)}"
        path = directory / cls.file
        measured = read_json(cls, path, "has another form than expected", hint)
        if measured is not None and getattr(measured, cls.rows_key) != manifest.fingerprint:
            raise InputError(
                path, "was measured on other rows than the run directory holds", hint=hint
            )
        return measured

    def write(self, directory: Path) -> Path:
        """Write the file into a run directory, atomically, and return the file's path.

        Raises RunError when the run's rows are no longer the measured rows, and when another
        process holds the run's lock; InputError when the run is not finished.
        """
        with lock_run(directory):
            self.require_rows(directory, require_complete(directory))
            write_json(directory / self.file, self)
        return directory / self.file

    def require_rows(self, directory: Path, manifest: Manifest) -> None:
        """Raise RunError when ``manifest`` has another fingerprint than the measured rows."""
        if manifest.fingerprint != getattr(self, self.rows_key):
            raise RunError(
                directory, "its rows changed while they were measured", hint="measure again"
            )


def has_report(directory: Path, manifest: Manifest) -> bool:
    """Return whether a run directory holds a report.

    Raises InputError when the report's head does not name the fingerprint of ``manifest``: the
    report then shows other rows or weights.
    """
    path = directory / REPORT
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as page:
        head = page.read(REPORT_HEAD_CHARACTERS)
    fingerprints = re.search(r'<meta name="fingerprints" content="([0-9a-f ]*)">', head)
    if fingerprints is None or manifest.fingerprint not in fingerprints[1].split():
        raise InputError(
            path,
            "shows other rows or weights than the run directory holds",
            hint=f"write it again: sts-dino report {directory}, or remove it",
        )
    return True


def write_json(path: Path, value: BaseModel) -> None:
    """Write a model as JSON, atomically."""
    text = json.dumps(value.model_dump(mode="json"), indent=2, ensure_ascii=False)
    write_text(path, text + "\n")


# keys of a manifest's provenance and inputs for the rows that a decontamination dropped
DROPPED_ROWS_PROVENANCE = "decontamination"
DROPPED_ROWS_INPUT = "rows dropped"
LEDGER = "decontamination.json"
# kinds of matches, strongest first (sts_dino.eval.audit.evaluation_sentences)
MatchKind = Literal["exact", "normal", "near", "short"]
MATCH_KINDS: tuple[MatchKind, ...] = get_args(MatchKind)


class Origin(Frozen):
    """The run whose rows were partly dropped."""

    name: str
    version: str
    fingerprint: str


class SplitRows(Frozen):
    """Numbers of rows of one split of a config: those kept, and kind of match → those dropped."""

    kept: Count
    dropped: dict[str, Count]

    @property
    def before(self) -> int:
        """The number of rows before the decontamination."""
        return self.kept + sum(self.dropped.values())


class Dropped(Frozen):
    """Provenance of a decontaminated dataset: data, settings, and rows by config and split."""

    dataset: Origin
    kinds: tuple[str, ...]  # of matches that a row was dropped for
    evaluation_splits: tuple[str, ...]  # that a row was dropped for
    # every split compared with, e.g. stsb/test: text form → SHA-256 of its rows
    evaluation: dict[str, dict[str, str]]
    not_checked: tuple[str, ...]
    settings: dict[str, float | int | dict[str, int]]
    rows: dict[str, dict[str, SplitRows]]

    def compute_digest(self) -> str:
        """Return the SHA-256 of all values, as canonical JSON."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def total(self) -> int:
        """The number of rows dropped, summed over configs; a text may stand in several configs."""
        total = 0
        for splits in self.rows.values():
            total += sum(sum(split.dropped.values()) for split in splits.values())
        return total


class Checked(Frozen):
    """A split of evaluation data, and the matches with it.

    ``rows``: the dataset's rows that match the split, by their strongest kind. ``found``: the
    split's distinct sentences that a text matches, by kind; a sentence may count in several kinds.
    """

    texts: int
    sha256: dict[str, str]
    rows: dict[MatchKind, int]
    found: dict[MatchKind, int]


class ConfigCount(BaseModel, extra="forbid"):
    """Rows of one config that match evaluation data.

    ``kinds``: by a row's strongest match with a split that scores come from; ``train_only``: rows
    that match train splits alone (exact, normal or near).
    """

    splits: dict[str, int]
    kinds: dict[MatchKind, int]
    train_only: int
    columns: dict[str, dict[MatchKind, int]]  # texts of a column by their strongest match
    labels: dict[str, dict[MatchKind, int]]


class Example(Frozen):
    """One match; rows count from 0."""

    config: str
    split: str
    row: int
    column: str
    text_sha256: str
    kind: MatchKind
    similarity: float
    place: str  # e.g. sts12/test
    place_row: int
    place_side: int


class Ledger(Measured):
    """The matches of a dataset's rows with evaluation data.

    ``revision``: the Hub commit or the run's fingerprint. ``not_checked``: splits whose files were
    not given. ``settings``: thresholds, the parameters of the search for near matches, and
    ``recall``: the expected share of pairs at the threshold that the search finds.
    """

    file = LEDGER
    rows_key = "revision"
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
# least word overlap of a near-copy in this measurement; the recipe's filter has its own
NEAR_COPY_OVERLAP = 0.8


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
    """Measures of one label's texts: cosine with x1, copies of x1, and an NLI judge's classes.

    ``nli``: class → share of the pairs (x1, text) that the NLI judge puts into the class; None
    without an NLI judge. ``fitting``: share of the pairs that have the judge's label; None unless
    all labels have scores and at least two distinct scores occur, and in files of earlier versions.
    The judge orders all pairs by cosine and gives each label, from the lowest score on, to as many
    pairs as have it.
    """

    texts: Positive
    cosine: Interval
    identical: Share
    near_copies: Share
    word_overlap: Share
    nli: dict[str, Share] | None = None
    fitting: Share | None = None

    def __str__(self) -> str:
        fitting = "" if self.fitting is None else f" ({self.fitting:.0%} of its pairs fit)"
        return f"{self.cosine}{fitting}"


class PersonAgreement(Frozen):
    """The agreement of one person's blind answers with the labels of the finished rows.

    ``same``: percent of equal labels. ``kappa``: Cohen's κ, None where it is not defined.
    """

    answers: Positive
    same: Interval
    kappa: Interval | None


class Fidelity(Measured):
    """Label fidelity of one config of a dataset's run.

    ``source_sentences`` of ``all_source_sentences`` were drawn by ``seed``. ``requested`` and
    ``kept`` count texts of the whole config. ``spearman``: of label score and cosine, None for
    labels without scores.
    """

    file = FIDELITY
    measured_by = "sts-dino fidelity {directory}"

    dataset: str
    config: str
    fingerprint: str
    judge: Judge
    nli_judge: Judge | None
    source_sentences: Positive
    all_source_sentences: Positive
    seed: Count
    requested: Positive
    kept: Count
    spearman: Interval | None
    near_copies: Share
    labels: dict[str, LabelFidelity]
    people: tuple[PersonAgreement, ...] = ()
    versions: dict[str, str]

    def describe_agreement(self) -> str:
        """Return one clause with each label's mean cosine and share of fitting pairs.

        Spearman's correlation of label score and cosine follows, where labels have scores.
        """
        labels = ", ".join(f"label {name} {label}" for name, label in self.labels.items())
        agreement = f"label agreement by {self.judge.name}: mean cosine of {labels}"
        if self.spearman:
            agreement += f"; Spearman of score and cosine {self.spearman}"
        return agreement

    def describe_doubt(self) -> str | None:
        """Return a warning about weak labels; None when labels are not weak or have no scores.

        Labels are weak when the interval of Spearman's correlation reaches below
        ``LEAST_AGREEMENT``, or the interval of every label's mean cosine does.
        """
        if self.spearman is None:
            return None
        best_cosine = max(label.cosine.low for label in self.labels.values())
        if min(self.spearman.low, best_cosine) >= LEAST_AGREEMENT:
            return None
        return (
            f"warning: below {LEAST_AGREEMENT} labels mean little, and an encoder learns little "
            "from them; give examples of the corpus's kind, or another language model"
        )


REPEATS = "repeats.json"


class RepeatScore(Frozen):
    """One task's main score (x 100) in one run."""

    task: str
    split: str
    main_score: Finite


class Run(Frozen):
    """One training: its seed or example set (``value``), and its scores.

    ``validation_score``: the score that chose the checkpoint; None where the last one was kept.
    """

    value: Count
    fingerprint: str
    version: str
    scores: tuple[RepeatScore, ...]
    validation_score: Finite | None = None


class Summary(Frozen):
    """Statistics of one task over all runs; ``sd``: sample standard deviation, None of one run."""

    task: str
    split: str
    runs: int
    mean: float
    sd: float | None
    low: float  # the worst run
    high: float  # the best


class Repeats(BaseModel, frozen=True):
    """Several trainings of one recipe that differ in the recipe's key ``over`` alone.

    ``summaries`` are computed from ``runs``; a file's own summaries are ignored.
    """

    model: str
    over: Literal["seed", "example_set"]
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_comparable(self) -> Self:
        """Raise ValueError unless seeds or example sets are distinct and all tasks are equal."""
        values = [run.value for run in self.runs]
        if len(set(values)) != len(values):
            raise ValueError(f"two runs have the same {self.over}: {values}")
        summarize_runs(self.runs)  # it raises ValueError for different tasks
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summaries(self) -> tuple[Summary, ...]:
        """Mean, sample standard deviation and range of every task."""
        return summarize_runs(self.runs)


def summarize_runs(runs: Sequence[Run]) -> tuple[Summary, ...]:
    """Return mean, sample standard deviation and range of every task, in the first run's order.

    ``runs``: at least one. Raises ValueError when two runs were scored on different tasks.
    """
    tasks = _list_tasks(runs[0])
    for run in runs:
        if _list_tasks(run) != tasks:
            raise ValueError(
                f"run {run.value} was scored on {_list_tasks(run)}, run {runs[0].value} on {tasks}"
            )
    summaries = []
    for index, (task, split) in enumerate(tasks):
        scores = [run.scores[index].main_score for run in runs]
        summary = Summary(
            task=task,
            split=split,
            runs=len(scores),
            mean=statistics.fmean(scores),
            sd=statistics.stdev(scores) if len(scores) > 1 else None,
            low=min(scores),
            high=max(scores),
        )
        summaries.append(summary)
    return tuple(summaries)


def _list_tasks(run: Run) -> list[tuple[str, str]]:
    return [(score.task, score.split) for score in run.scores]


def make_run(value: int, manifest: Manifest, results: Results) -> Run:
    """Return the record of one training, for ``repeats.json``.

    Args:
        value: the training's seed or example set.
        manifest: the manifest of the trained run.
        results: the scores of the trained encoder.
    """
    scores = [
        RepeatScore(task=score.task, split=score.split, main_score=score.main_score)
        for score in results.scores
    ]
    training = manifest.provenance.get("training") or {}
    return Run(
        value=value,
        fingerprint=manifest.fingerprint,
        version=manifest.version,
        scores=tuple(scores),
        validation_score=training.get("validation_score"),
    )


def read_repeats(path: Path) -> Repeats:
    """Read repeats.json. Raises InputError when it is missing or has another form."""
    command = "sts-dino repeat RECIPE --seeds 42,43,44"
    repeats = read_json(Repeats, path, "not a file of repeats", f"train again: {command}")
    if repeats is None:
        raise InputError(path, "no repeated trainings yet", hint=f"run: {command}")
    return repeats


VALUE = "value.json"
Split = Literal["validation", "test"]
TrainedOn = Literal["untrained", "copies", "shuffled", "dataset", "people"]


class Estimate(Frozen):
    """A score in points (Spearman x 100) with its 95 % interval.

    The interval is over sentence pairs and, where there are several, over seeds.
    """

    score: Finite
    low: Finite
    high: Finite

    def __str__(self) -> str:
        return f"{self.score:.2f} [{self.low:.2f}, {self.high:.2f}]"


class VariantScore(Frozen):
    """Scores of one variant: the mean over tasks and seeds, and each task's mean over seeds.

    ``over_simcse``: the paired difference to the unsupervised SimCSE baseline; None for the
    baseline itself.
    """

    average: Estimate
    tasks: dict[str, Finite]
    over_simcse: Estimate | None = None


class VariantPlan(Frozen):
    """The evaluations to compare.

    ``variants``: variant → the folders of its evaluations, one for each seed. Variants with several
    folders have the same seeds in the same order. ``data_seeds``: the number of datasets behind the
    folders of a variant; the folders of one dataset are neighbours. ``control``: the variant that
    all others are compared with. ``differences``: further pairs of variants to compare.
    """

    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    split: Split
    samples: Positive
    variants: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]]
    control: str
    data_seeds: Positive = 1
    differences: tuple[tuple[str, str], ...] = ()

    @model_validator(mode="after")
    def _check_variants(self) -> Self:
        """Raise ValueError for an unknown variant, and for unequal numbers of folders.

        ``control`` and ``differences`` must name variants. Variants with several folders must have
        equally many, a multiple of ``data_seeds``. A variant with one folder has no seed, e.g. the
        untrained encoder.
        """
        names = [self.control]
        for pair in self.differences:
            names += pair
        for name in names:
            if name not in self.variants:
                raise ValueError(f"{name!r} is not one of the variants")
        seed_counts = {len(folders) for folders in self.variants.values()} - {1}
        if len(seed_counts) > 1:
            raise ValueError("variants differ in their number of seeds")
        if any(count % self.data_seeds for count in seed_counts):
            raise ValueError(
                f"{max(seed_counts)} folders are not equally many of {self.data_seeds} datasets"
            )
        return self


class VariantScores(Frozen):
    """The comparison of ``sts_dino.eval.compare.seeds``, by variant.

    ``differences``: the first variant's score minus the second's, of ``pairs``.
    """

    variants: dict[str, VariantScore]
    pairs: tuple[tuple[str, str], ...] = ()
    differences: tuple[Estimate, ...] = ()


class TrainingValue(Measured):
    """Downstream gain of a dataset: one evaluation encoder, equal numbers of pairs and steps.

    ``fingerprint``: of the dataset's run. ``student``: name of the evaluation encoder's recipe.
    ``student_sha256``: digest of the recipe's values that decide a training, apart from pairs and
    seed. ``over``: variant → the dataset's paired difference to the variant, for shuffled labels
    and human-annotated pairs. ``skipped``: variant → the reason why it was not trained.
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
    variants: dict[TrainedOn, VariantScore]
    start: str = "before training"  # words for the untrained encoder (``Encoder.start``)
    over: dict[TrainedOn, Estimate] = Field(default_factory=dict)
    skipped: dict[TrainedOn, str] = Field(default_factory=dict)
    versions: dict[str, str]

    @model_validator(mode="after")
    def _check_variants(self) -> Self:
        """Raise ValueError unless dataset, SimCSE baseline and their difference are there."""
        has_both = {"dataset", "copies"} <= self.variants.keys()
        if not has_both or self.variants["dataset"].over_simcse is None:
            raise ValueError("the dataset and the SimCSE baseline are always measured")
        return self

    @property
    def names(self) -> dict[TrainedOn, str]:
        """Variant → its training data in words, in the order of tables."""
        return {
            "untrained": f"nothing ({self.start})",
            "copies": "source sentences alone (unsupervised SimCSE baseline)",
            "shuffled": "pairs of this dataset, their scores shuffled (shuffled-label baseline)",
            "dataset": "pairs of this dataset",
            "people": "human-annotated pairs",
        }

    @property
    def gain(self) -> Estimate:
        """Score of the dataset minus score of the SimCSE baseline, in points (Spearman x 100)."""
        gain = self.variants["dataset"].over_simcse
        assert gain is not None
        return gain


def require_value(directory: Path, manifest: Manifest, least: float) -> None:
    """Require a downstream gain of at least ``least`` points over the SimCSE baseline.

    Raises InputError when the gain was not measured on the run's rows, RunError when it is lower.
    """
    value = TrainingValue.read(directory, manifest)
    if value is None:
        raise InputError(
            directory,
            f"its downstream gain is not measured (no {VALUE})",
            hint=f"measure it: sts-dino value {directory}",
        )
    if not value.gain.score >= least:  # also for the option's value nan
        raise RunError(
            directory,
            f"its downstream gain, {value.gain} points over the SimCSE baseline, is below "
            f"--min-value {least:g}",
            hint="write better pairs, or lower --min-value",
        )
