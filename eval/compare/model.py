"""What a comparison of evaluations holds; ``eval.compare.model`` makes it, ``eval.compare.run`` writes it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from eval.runs.records import FinishedEvaluation
from eval.statistics.bootstrap import Resampling
from eval.statistics.paired import Measurement, Resampled, Verdict, adjusted, resampled
from eval.tasks.registry import find_task
from hub.contract.results import Average, TaskScore
from hub.errors import InputError
from hub.markdown import visible_line
from hub.papers.tables import Column, Paper, Table, papers

Pair = tuple[str, str]  # labels of two models


@dataclass(frozen=True)
class ScoreRow:
    """One measurement and its score by model; a model that was not measured so is absent."""

    measurement: Measurement
    scores: Mapping[str, TaskScore]


@dataclass(frozen=True)
class AverageLine:
    """A paper's average by model, over the same measurements; ``whole`` if none of them is of a part of the data."""

    name: str
    definition: str
    scores: Mapping[str, float]
    whole: bool


@dataclass(frozen=True)
class SkippedTest:
    """Two scores of one measurement whose difference could not be tested, and why."""

    first: str
    second: str
    measurement: Measurement
    difference: float
    why: str


@dataclass(frozen=True)
class PaperTable:
    """A paper's table, the columns that have our protocol, and our models' numbers in them (column → value)."""

    paper: Paper
    table: Table
    columns: tuple[Column, ...]
    ours: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Everything the tables and plots of a comparison show. ``models`` are distinct labels, in the order given.

    ``resampling`` says by pair of models how the intervals of their differences were made, ``versions`` which libraries
    were not the same for all scores, each with its versions.
    """

    models: tuple[str, ...]
    lines: tuple[ScoreRow, ...]
    averages: tuple[AverageLine, ...]
    verdicts: tuple[Verdict, ...]
    untested: tuple[SkippedTest, ...]
    beside: tuple[PaperTable, ...]
    resampling: Mapping[Pair, Resampling]
    versions: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of models that share a measurement."""
        tested = [(one.first, one.second) for one in self.verdicts]
        found = {*tested, *((one.first, one.second) for one in self.untested)}
        return [pair for pair in combinations(self.models, 2) if pair in found]

    def unlike(self) -> list[str]:
        """What tells apart the measurements that share task and split, in words."""
        told = []
        for one, other in combinations([line.measurement for line in self.lines], 2):
            if (one.task, one.split) == (other.task, other.split):
                told.append(f"{one.task} {one.split} stands in two rows: {one.unlike(other)}")
        return told


def compared(evaluations: Sequence[FinishedEvaluation]) -> Comparison:
    """Compare evaluations. Raises InputError naming both protocols when no two of them share a measurement."""
    named = dict(zip(labels(evaluations), evaluations, strict=True))
    lines = _lines(named)
    if not any(len(line.scores) > 1 for line in lines):
        raise _nothing_in_common(named)
    how = {pair: _resampling(named[pair[0]], named[pair[1]]) for pair in combinations(named, 2)}
    found = [one for line in lines if len(line.scores) > 1 for one in _judged(line, named, how)]
    verdicts: list[Verdict] = []
    for pair in how:
        verdicts += adjusted([one for one in found if isinstance(one, Verdict) and (one.first, one.second) == pair])
    untested = tuple(one for one in found if isinstance(one, SkippedTest))
    averages = _averages(named, lines)
    beside = tuple(_beside(lines, averages, tuple(named)))
    return Comparison(tuple(named), lines, averages, tuple(verdicts), untested, beside, how, _versions(named))


def labels(evaluations: Sequence[FinishedEvaluation]) -> list[str]:
    """A distinct name of one line for each: the model's, with its revision or a number where names repeat."""
    names = [visible_line(one.results.model) for one in evaluations]
    told: list[str] = []
    for name, one in zip(names, evaluations, strict=True):
        label = name if names.count(name) == 1 else f"{name}@{one.results.revision[:8]}"
        repeats = sum(other == label or other.startswith(f"{label} (") for other in told)
        told.append(f"{label} ({repeats + 1})" if repeats else label)
    return told


def _versions(named: Mapping[str, FinishedEvaluation]) -> tuple[str, ...]:
    """``library: version (models), version (models)`` for every library that not all scores were made with alike."""
    made: dict[str, dict[str, dict[str, None]]] = {}
    for label, one in named.items():
        for score in one.results.scores:
            for library, version in (one.results.versions | score.versions).items():
                made.setdefault(library, {}).setdefault(version, {})[label] = None
    return tuple(
        f"{library}: " + ", ".join(f"{version} ({', '.join(models)})" for version, models in found.items())
        for library, found in made.items()
        if len(found) > 1
    )


def _lines(named: Mapping[str, FinishedEvaluation]) -> tuple[ScoreRow, ...]:
    """Every measurement, in the order of the first model that has its task, unlike ones of a task side by side."""
    found: dict[Measurement, dict[str, TaskScore]] = {}
    for label, one in named.items():
        for score in one.results.scores:
            found.setdefault(Measurement.of(score), {})[label] = score
    order = list(dict.fromkeys((measurement.task, measurement.split) for measurement in found))
    kept = sorted(found, key=lambda measurement: order.index((measurement.task, measurement.split)))
    return tuple(ScoreRow(measurement, found[measurement]) for measurement in kept)


def _nothing_in_common(named: Mapping[str, FinishedEvaluation]) -> InputError:
    """The error that names, for the first two models, protocols that differ under one name, else what each has."""
    (first, one), (second, two) = list(named.items())[:2]
    theirs = {(score.task, score.split): score for score in two.results.scores}
    hint = "score both under one protocol: python -m eval.run --tasks TASK"
    for score in one.results.scores:
        other = theirs.get((score.task, score.split))
        if other is not None:
            why = Measurement.of(score).unlike(Measurement.of(other))
            return InputError(
                f"{first} and {second}", f"share no measurement: {score.task} {score.split}: {why}", hint=hint
            )
    told = [f"{label} has {_scores_in_words(one)}" for label, one in list(named.items())[:2]]
    return InputError(f"{first} and {second}", f"share no task: {'; '.join(told)}", hint=hint)


def _scores_in_words(one: FinishedEvaluation) -> str:
    scores = one.results.scores
    shown = ", ".join(f"{score.task} {score.split} ({score.protocol})" for score in scores[:2])
    return shown + (f" and {len(scores) - 2} more" if len(scores) > 2 else "") if scores else "no score"


def _resampling(one: FinishedEvaluation, other: FinishedEvaluation) -> Resampling:
    """How two evaluations were resampled, so that a model's gain on its base is here what its card says; the default
    where they were not resampled alike.
    """
    own = Resampling.of(one.results)
    return own if own == Resampling.of(other.results) else Resampling()


def _judged(
    line: ScoreRow, named: Mapping[str, FinishedEvaluation], how: Mapping[Pair, Resampling]
) -> Iterator[Verdict | SkippedTest]:
    """Every pair of a line's models; those that are resampled alike are so together."""
    what, together = line.measurement, dict[Resampling, Resampled]()
    records = {label: named[label].records.find(what.task, what.split) for label in line.scores}
    kept = {label: record for label, record in records.items() if record is not None and record.metric is not None}
    place = {label: index for index, label in enumerate(kept)}
    for one, other in combinations(line.scores, 2):
        scores = line.scores[one], line.scores[other]
        if one not in kept or other not in kept:
            points = scores[0].main_score - scores[1].main_score
            yield SkippedTest(one, other, what, points, "the scored rows of one were not kept")
            continue
        used, metric = how[one, other], kept[one].metric
        if used not in together:
            assert metric is not None
            rows = [named[label].outcomes(what.task, what.split) for label in kept]
            together[used] = resampled(rows, metric, kept[one].aggregation, used)
        yield Verdict(one, other, what, together[used].difference(place[one], place[other], scores))


def _averages(named: Mapping[str, FinishedEvaluation], lines: tuple[ScoreRow, ...]) -> tuple[AverageLine, ...]:
    """Averages by model; a model whose tasks were measured otherwise than the first model's is left out."""
    kept: dict[str, tuple[Average, frozenset[Measurement], dict[str, float]]] = {}
    for label, one in named.items():
        measured = {
            line.measurement.task: line.measurement
            for line in lines
            if label in line.scores and line.measurement.split in ("test", "all")
        }
        for average in one.results.averages:
            parts = frozenset(measured[task] for task in average.tasks if task in measured)
            _, first_parts, scores = kept.setdefault(average.name, (average, parts, {}))
            if parts == first_parts:
                scores[label] = average.score
    return tuple(
        AverageLine(name, average.definition, scores, all(_is_whole(part) for part in parts))
        for name, (average, parts, scores) in kept.items()
    )


def _beside(
    lines: tuple[ScoreRow, ...], averages: tuple[AverageLine, ...], models: tuple[str, ...]
) -> list[PaperTable]:
    whole = [line for line in lines if _is_whole(line.measurement)]
    found = []
    for paper in papers().values():
        for table in paper.tables:
            ours = {label: _numbers(table, label, whole, averages) for label in models}
            columns = tuple(c for c in table.columns if any(c.name in numbers for numbers in ours.values()))
            if any(column.task for column in columns):
                found.append(
                    PaperTable(paper, table, columns, {label: numbers for label, numbers in ours.items() if numbers})
                )
    return found


def _is_whole(measurement: Measurement) -> bool:
    """Whether a measurement is the task's as declared: its protocol, all of its data, not a validation split."""
    task = find_task(measurement.task)
    return measurement.protocol == task.protocol and measurement.split == task.default_split


def _numbers(table: Table, label: str, lines: list[ScoreRow], averages: tuple[AverageLine, ...]) -> dict[str, float]:
    scores = {line.measurement.task: line.scores[label] for line in lines if label in line.scores}
    means = {line.name: line.scores[label] for line in averages if line.whole and label in line.scores}
    found = {column.name: _number(column, scores, means) for column in table.columns}
    return {name: value for name, value in found.items() if value is not None}


def _number(column: Column, scores: Mapping[str, TaskScore], means: Mapping[str, float]) -> float | None:
    if column.average is not None:
        return means.get(column.average)
    score = scores.get(column.task or "")
    if score is None:
        return None
    return score.main_score if score.main_metric == column.metric else score.other.get(column.metric)
