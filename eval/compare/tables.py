"""A comparison of evaluations: what it holds, and its tables as text, Markdown and CSV."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from eval.runs.records import FinishedEvaluation
from eval.statistics.bootstrap import EvaluationSettings
from eval.statistics.paired import Difference, Measurement, Verdict, adjusted, resampled
from eval.tasks.task import Task
from hub import untrusted
from hub.cli import aligned
from hub.contract.results import RULE, Average, TaskScore
from hub.errors import InputError
from hub.scores import ABSENT, interval, number
from hub.untrusted import Markdown, inline, visible_line

Pair = tuple[str, str]  # labels of two models


@dataclass(frozen=True)
class ScoreRow:
    """One measurement and its score by model; a model that was not measured so is absent."""

    measurement: Measurement
    scores: Mapping[str, TaskScore]


@dataclass(frozen=True)
class AverageLine:
    """A paper's average by model, over the same measurements."""

    average: Average
    scores: Mapping[str, float]


@dataclass(frozen=True)
class ResultTable:
    """A table of untrusted, unescaped text; ``text_columns`` are the first ones, the rest is aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Everything the tables and plots of a comparison show. ``models`` are distinct labels, in the order given.

    ``versions`` are the libraries that were not the same for all scores.
    """

    models: tuple[str, ...]
    lines: tuple[ScoreRow, ...]
    averages: tuple[AverageLine, ...]
    verdicts: tuple[Verdict, ...]
    settings: EvaluationSettings
    versions: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """The pairs of models that share a measurement."""
        return list(dict.fromkeys((one.first, one.second) for one in self.verdicts))

    def unlike(self) -> list[str]:
        """What tells apart the measurements that share task and split, in words."""
        found = []
        for one, other in combinations([line.measurement for line in self.lines], 2):
            if (one.task, one.split) == (other.task, other.split):
                found.append(f"{one.task} {one.split} stands in two rows: {one.unlike(other)}")
        return found


def compared(evaluations: Sequence[FinishedEvaluation]) -> Comparison:
    """Compare evaluations. Raises InputError naming both protocols when no two of them share a measurement."""
    named = dict(zip(labels(evaluations), evaluations, strict=True))
    lines = _lines(named)
    if not any(len(line.scores) > 1 for line in lines):
        raise _nothing_in_common(named)
    made = [one.results for one in evaluations]
    used = {EvaluationSettings(bootstrap_samples=one.bootstrap_samples, seed=one.seed) for one in made}
    how = (
        used.pop() if len(used) == 1 else EvaluationSettings()
    )  # the evaluations' own, so that a gain is what the card says
    found = [one for line in lines for one in _judged(line, named, how)]
    pairs = [[one for one in found if (one.first, one.second) == pair] for pair in combinations(named, 2)]
    verdicts = tuple(one for pair in pairs for one in adjusted(pair))
    averages = _average_rows(named, lines)
    return Comparison(tuple(named), lines, averages, verdicts, how, _versions(named))


def labels(evaluations: Sequence[FinishedEvaluation]) -> list[str]:
    """A distinct name of one line for each: the model's, with its revision or a number where names repeat."""
    names = [visible_line(one.results.model) for one in evaluations]
    names_used: list[str] = []
    for name, one in zip(names, evaluations, strict=True):
        label = name if names.count(name) == 1 else f"{name}@{one.results.revision[:8]}"
        repeats = sum(other == label or other.startswith(f"{label} (") for other in names_used)
        names_used.append(f"{label} ({repeats + 1})" if repeats else label)
    return names_used


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
    found: dict[tuple[str, str], dict[Measurement, dict[str, TaskScore]]] = {}
    for label, one in named.items():
        for score in one.results.scores:
            measured = found.setdefault((score.task, score.split), {})
            measured.setdefault(Measurement.of(score), {})[label] = score
    return tuple(ScoreRow(what, scores) for measured in found.values() for what, scores in measured.items())


def _nothing_in_common(named: Mapping[str, FinishedEvaluation]) -> InputError:
    """The error that names, for the first two models, what differs under one task's name, else what each has."""
    pairs = product(*(one.results.scores for one in list(named.values())[:2]))
    alike = [(one, two) for one, two in pairs if (one.task, one.split) == (two.task, two.split)]
    words = [f"{one.task} {one.split}: {Measurement.of(one).unlike(Measurement.of(two))}" for one, two in alike[:1]]
    words = words or [f"{label} has {_in_words(one.results.scores)}" for label, one in list(named.items())[:2]]
    hint = "score both under one protocol: sts-dino score --tasks TASK"
    return InputError(" and ".join(list(named)[:2]), f"share no measurement: {'; '.join(words)}", hint=hint)


def _in_words(scores: Sequence[TaskScore]) -> str:
    shown = ", ".join(f"{score.task} {score.split} ({score.protocol})" for score in scores[:2])
    return shown + (f" and {len(scores) - 2} more" if len(scores) > 2 else "") if scores else "no score"


def _judged(line: ScoreRow, named: Mapping[str, FinishedEvaluation], how: EvaluationSettings) -> Iterator[Verdict]:
    """Every pair of a line's models, all on the same resamples; without a test where rows were not kept."""
    what, together = line.measurement, None
    records = {label: named[label].records.find(what.task, what.split) for label in line.scores}
    kept = {label: record for label, record in records.items() if record is not None and record.metric is not None}
    if len(kept) > 1:
        record = next(iter(kept.values()))
        assert record.metric is not None
        rows = [named[label].outcomes(what.task, what.split) for label in kept]
        together = resampled(rows, record.metric, record.aggregation, how)
    place = {label: index for index, label in enumerate(kept)}
    for one, other in combinations(line.scores, 2):
        scores = line.scores[one], line.scores[other]
        difference = Difference(scores[0].main_score - scores[1].main_score)
        if together is not None and one in kept and other in kept:
            difference = together.difference(place[one], place[other], scores)
        yield Verdict(one, other, what, difference)


def _average_rows(named: Mapping[str, FinishedEvaluation], lines: tuple[ScoreRow, ...]) -> tuple[AverageLine, ...]:
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
    return tuple(AverageLine(average, scores) for average, _, scores in kept.values())


REVISION = 7  # characters of a commit, as git shortens it
PLAIN = set("0123456789+-. [],")  # of a number, an interval or nothing, which need no escaping


def result_tables(comparison: Comparison) -> list[ResultTable]:
    """Scores with intervals, averages, and verdicts pair by pair, in this order."""
    found = [_scores(comparison)]
    if comparison.averages:
        found.append(_averages(comparison))
    return [*found, *(_verdicts(comparison, *pair) for pair in comparison.pairs)]


def _scores(comparison: Comparison) -> ResultTable:
    rows = []
    for line in comparison.lines:
        one, scores = line.measurement, (_score(line.scores.get(model)) for model in comparison.models)
        rows.append((one.task, one.split, one.metric, f"{one.n}{' drawn' if one.limit else ''}", *scores))
    notes = ["95 % bootstrap intervals in brackets; scores x 100", *_trials(comparison), *comparison.unlike()]
    if comparison.versions:
        notes.append(f"not made with the same libraries: {'; '.join(comparison.versions)}")
    short = short_names(comparison.models)
    notes += [f"{name}: {model}" for model, name in short.items() if name != model]
    return ResultTable("Scores", ("task", "split", "metric", "rows", *short.values()), tuple(rows), 3, tuple(notes))


def short_names(models: Sequence[str]) -> dict[str, str]:
    """Heads of columns: without the owner, and a revision's first seven characters; whole where two would be alike."""
    short = dict[str, str]()
    for model in models:
        name, at, revision = model.rpartition("@") if "@" in model else (model, "", "")
        short[model] = f"{name.rpartition('/')[2]}{at}{revision[:REVISION]}"
    return {model: name if list(short.values()).count(name) == 1 else model for model, name in short.items()}


def _trials(comparison: Comparison, pair: tuple[str, ...] = ()) -> list[str]:
    """Which rows are of a part of the data: those of all models, or those that a pair shares."""
    limited: dict[str, list[str]] = {}
    for line in comparison.lines:
        one = line.measurement
        if one.limit and all(model in line.scores for model in pair):
            limited.setdefault(str(one.limit), []).append(f"{one.task} {one.split}")
    return [f"{limit}, a trial and no scores of the tasks: {', '.join(tasks)}" for limit, tasks in limited.items()]


def _score(score: TaskScore | None) -> str:
    around = score.interval() if score else None
    return number(score.main_score if score else None) + (f" {interval(*around)}" if around else "")


def _averages(comparison: Comparison) -> ResultTable:
    lines = comparison.averages
    models = comparison.models
    rows = tuple((line.average.name, *(number(line.scores.get(model)) for model in models)) for line in lines)
    notes = tuple(f"{line.average.name}: {line.average.definition}" for line in lines)
    return ResultTable("Averages", ("average", *short_names(comparison.models).values()), rows, 1, notes)


def _verdicts(comparison: Comparison, first: str, second: str) -> ResultTable:
    found = [one for one in comparison.verdicts if (one.first, one.second) == (first, second)]
    used = comparison.settings
    resamples = f"{used.bootstrap_samples} resamples, seed {used.seed}"
    how = f"differences in points, paired 95 % percentile intervals ({resamples})"
    skipped = any(one.difference.tested is None for one in found)
    why = ["not tested: the scored rows of one were not kept"] if skipped else []
    if any(len(score.seeds) > 1 for line in comparison.lines for score in line.scores.values()):
        why.append("a mean over several seeds is tested on the rows of its first seed")
    return ResultTable(
        f"Differences: {first} minus {second}",
        ("task", "split", "first is", "difference", "test", "p", "p (Holm)"),
        tuple(map(_verdict, found)),
        3,
        (how, RULE, *_trials(comparison, (first, second)), *why),
    )


def _verdict(one: Verdict) -> tuple[str, ...]:
    what, points = (one.measurement.task, one.measurement.split), number(one.difference.points, signed=True)
    if one.difference.tested is None:
        return (*what, "not tested", points, ABSENT, ABSENT, ABSENT)
    around, test = one.difference.tested
    p = ["< 0.0001" if value < 0.0001 else f"{value:.4f}" for value in (test.p, one.adjusted)]
    return (*what, one.word, f"{points} {interval(around.low, around.high, signed=True)}", test.name, *p)


FEW = 30  # pairs or queries: below, words say what cannot be seen


def own_words(
    tasks: Sequence[Task], scores: Sequence[TaskScore], verdicts: Sequence[Verdict], other: str = ""
) -> list[str]:
    """What scores on a user's own rows say: a verdict a yardstick, and how little can be seen in few rows.

    verdicts: of the encoder on another one; ``other`` is what it is called, the download in place of the encoder.
    """
    found = list[str]()
    named, judged = {one.task: one for one in scores}, {one.measurement.task: one for one in verdicts}
    for task in tasks:
        score, verdict = named.get(task.name), judged.get(task.name)
        if score is None or task.metric == "recall@10":  # beside nDCG
            continue
        tested = verdict.difference.tested if verdict else None
        if verdict is not None and tested is not None:
            around = interval(tested[0].low, tested[0].high, signed=True)
            gain = f"{number(verdict.difference.points, signed=True)} {around}"
            word = {"not significant": "not better"}.get(verdict.word, verdict.word)
            keep = f"; keep {'the download' if other else verdict.second}" if verdict.word != "better" else ""
            against = other or verdict.second
            found.append(f"{word} than {against} on your {score.n} {score.unit}: {gain}{keep}")
        low, high = (tested[0].low, tested[0].high) if tested else score.interval() or (0.0, 0.0)
        if score.n < FEW:
            what = "a smaller difference cannot be seen" if tested else "--compare sees smaller differences"
            half = number((high - low) / 2)
            found.append(f"{score.n} {score.unit} are few: the interval reaches {half} points to each side; {what}")
    return found


def text(sheet: ResultTable) -> str:
    """Aligned columns under the title, notes below."""
    table = [tuple(visible_line(cell) for cell in row) for row in (sheet.header, *sheet.rows)]
    lines = aligned(table, right=range(sheet.text_columns, len(sheet.header)))
    return "\n".join([sheet.title, lines, *(visible_line(note) for note in sheet.notes)])


def as_markdown(found: Sequence[ResultTable], pictures: Sequence[tuple[str, str]]) -> str:
    """A document with one section a table; ``pictures`` are (description, file) and follow the first one."""
    sections = [_section(sheet) for sheet in found]
    shown = [f"![{markdown(words)}]({file})" for words, file in pictures]
    return "\n\n".join(["# Comparison", sections[0], *shown, *sections[1:]]) + "\n"


def _section(sheet: ResultTable) -> str:
    cells = [[Markdown(cell) if set(cell) <= PLAIN else markdown(cell) for cell in row] for row in sheet.rows]
    table = untrusted.table([markdown(cell) for cell in sheet.header], cells)
    return "\n\n".join([f"## {markdown(sheet.title)}", table, "\n".join(f"- {markdown(note)}" for note in sheet.notes)])


def markdown(text: str) -> Markdown:
    """Text for a cell or a paragraph: characters with a meaning become entities, which can never be structure."""
    return Markdown(inline(text).replace("@", "&#64;").replace(":", "&#58;"))


def scores_csv(comparison: Comparison) -> str:
    """One row for each score, numbers in full precision."""
    return _csv(
        {"task": one.task, "split": one.split, "metric": one.metric, "rows": one.n, "model": model}
        | dict(zip(("score", "low", "high"), (score.main_score, *(score.interval() or (None, None))), strict=True))
        | {"protocol": one.protocol, "data": one.data, "limit": one.limit}
        for line in comparison.lines
        for one in (line.measurement,)
        for model, score in line.scores.items()
    )


def verdicts_csv(comparison: Comparison) -> str:
    """One row for each tested difference, numbers in full precision."""
    return _csv(
        {"model": one.first, "against": one.second, "task": what.task, "split": what.split, "metric": what.metric}
        | {"rows": what.n, "difference": one.difference.points, "low": around.low, "high": around.high}
        | {"test": test.name, "statistic": test.statistic, "p": test.p, "p_holm": one.adjusted}
        | {"verdict": one.word, "limit": what.limit}
        for one in comparison.verdicts
        if one.difference.tested is not None
        for what, (around, test) in ((one.measurement, one.difference.tested),)
    )


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    import pandas

    cells = [{name: csv_cell(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows]
    return pandas.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def csv_cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula: one that begins like one gets an apostrophe."""
    plain = visible_line(text)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain
