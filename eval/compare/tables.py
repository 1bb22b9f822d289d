"""Results of one evaluation, and a comparison of several, as text, Markdown and CSV."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.scoring.paired import Measurement, Verdict
from sts_dino.eval.tasks.registry import compute_averages
from sts_dino.eval.tasks.task import Task
from sts_dino.hub.contract.results import VERDICT_RULE, Average, Results, TaskScore, map_by_task
from sts_dino.hub.scores import (
    ABSENT,
    FEW_ROWS,
    align_columns,
    describe_power,
    describe_public_gains,
    format_difference,
    format_interval,
    format_number,
    format_score,
)
from sts_dino.hub.untrusted import Markdown, escape_inline, format_table, make_visible_line

SECONDARY_METRICS = ("pearson", "f1")  # metrics that papers report beside the main metric
# Indices of the columns of the base encoder and of the SimCSE baseline, in the table of scores and
# in the table of gains (``_make_compared_tables``)
BASE_COLUMN = 3
CONTROL_COLUMN = 4
# Header of differences.csv, which stays when no difference was tested
VERDICT_COLUMNS = (
    "model",
    "against",
    "task",
    "split",
    "metric",
    "rows",
    "difference",
    "low",
    "high",
    "test",
    "statistic",
    "p",
    "p_holm",
    "verdict",
    "limit",
)
Cells = tuple[str, ...]  # one row of a table


def format_results(results: Results, start: str = "base encoder") -> str:
    """Return the tables of an evaluation as text: a line for each task and average.

    Scores have 95 % intervals in brackets. With a base or a SimCSE baseline, the first table has
    their scores, too, and a second table has the differences. Without both, there is one table,
    whose lines end with further metrics and the seconds that probes took. A dash stands for a
    missing value. Notes and the definition of each average follow.

    Args:
        results: the scores.
        start: name of the base encoder in the tables.
    """
    has_base = any(base for base, _ in results.list_score_pairs())
    if has_base or results.control_scores:
        tables = _make_compared_tables(results, start if has_base else None)
    else:
        tables = [_make_single_table(results)]
    lines = ["\n\n".join(align_columns(table) for table in tables), *_list_notes(results)]
    if gains := describe_public_gains(results, start):
        lines.append(gains)
    if results.averages:
        lines += ["", *(f"{item.name}: {item.definition}" for item in results.averages)]
    return "\n".join(lines)


def _make_single_table(results: Results) -> list[Cells]:
    """Return the table of one encoder, the header first: a row for each score and average."""
    rows: list[Cells] = [("task", "split", "metric", "rows", "score", "also", "probing s")]
    for score in results.scores:
        metrics = [name for name in SECONDARY_METRICS if name in score.other]
        also = ", ".join(f"{name} {format_number(score.other[name])}" for name in metrics)
        seconds = ABSENT
        if "probing" in score.seconds:
            seconds = f"{score.seconds['probing']:.1f}"
        task = (score.task, score.split, score.main_metric, _format_row_count(score))
        rows.append((*task, format_score(score), also or ABSENT, seconds))
    for item in results.averages:
        task = (item.name, "", "mean", f"{len(item.tasks)} tasks")
        rows.append((*task, format_number(item.score), ABSENT, ABSENT))
    return rows


def _make_compared_tables(results: Results, start: str | None) -> list[list[Cells]]:
    """Return two tables, each with its header first: scores, and the encoder's gains.

    The scores are those of base encoder, SimCSE baseline and encoder. The gains are the encoder's
    over the two others. The columns of a missing base or baseline are left out.

    Args:
        results: the scores.
        start: name of the base encoder in the table; None: there is no base encoder.
    """
    trained = "trained" if start else "score"
    scores: list[Cells] = [("task", "split", "rows", start or "", "SimCSE baseline", trained)]
    differences: list[Cells] = [("task", "split", "metric", "gain", "over SimCSE")]

    # Add the rows of the tasks
    gains = map_by_task(results.gains)
    control_scores = map_by_task(results.control_scores)
    control_gains = map_by_task(results.over_control)
    for base, score in results.list_score_pairs():
        key = (score.task, score.split)
        baseline = format_score(control_scores.get(key))
        others = (format_score(base), baseline)
        scores.append((*key, _format_row_count(score), *others, format_score(score)))
        gain = format_difference(gains.get(key))
        control_gain = format_difference(control_gains.get(key))
        differences.append((*key, score.main_metric, gain, control_gain))

    # Add the rows of the averages, which have no intervals
    base_means = {item.name: item.score for item in compute_averages(results.base_scores)}
    control_means = {item.name: item.score for item in compute_averages(results.control_scores)}
    for item in results.averages:
        means = (base_means.get(item.name), control_means.get(item.name))
        cells = (item.name, "", f"{len(item.tasks)} tasks", *map(format_number, means))
        scores.append((*cells, format_number(item.score)))
        mean_gains = [None if mean is None else item.score - mean for mean in means]
        formatted = (format_number(gain, signed=True) for gain in mean_gains)
        differences.append((item.name, "", "mean", *formatted))

    # Hide the columns of a missing base or baseline
    is_hidden = {BASE_COLUMN: start is None, CONTROL_COLUMN: not control_scores}
    return [_drop_columns(scores, is_hidden), _drop_columns(differences, is_hidden)]


def _drop_columns(rows: list[Cells], is_hidden: Mapping[int, bool]) -> list[Cells]:
    """Return the rows without hidden columns.

    ``is_hidden``: index of a column → whether it is hidden; the columns that it lacks stay.
    """
    remaining = [index for index in range(len(rows[0])) if not is_hidden.get(index)]
    return [tuple(row[index] for index in remaining) for row in rows]


def _format_row_count(score: TaskScore) -> str:
    """Return the number of scored rows with their unit, e.g. "1379 pairs".

    "drawn" follows when only a part of the data was scored.
    """
    count = f"{score.n} {score.unit}"
    return f"{count} drawn" if score.limit else count


def _list_notes(results: Results) -> list[str]:
    """Return the lines below a table: an empty line and the notes; [] without a note.

    The notes are the rule of the verdicts, the limit of a trial, and the scores that were made with
    other library versions than ``results`` names.
    """
    notes = []
    if any(gain.verdict for gain in (*results.gains, *results.over_control)):
        notes.append(VERDICT_RULE)
    if results.limit:
        notes.append(f"{results.limit}: a trial, no scores of the tasks")
    tasks_of_libraries: dict[str, list[str]] = {}
    for score in results.scores:
        if score.versions:
            libraries = ", ".join(f"{name} {version}" for name, version in score.versions.items())
            tasks_of_libraries.setdefault(libraries, []).append(f"{score.task} {score.split}")
    for libraries, tasks in tasks_of_libraries.items():
        notes.append(f"made with {libraries}: {', '.join(tasks)}")
    return ["", *notes] if notes else []


@dataclass(frozen=True)
class ScoreRow:
    """A measurement and its scores, model → score; models without the measurement are absent."""

    measurement: Measurement
    scores: dict[str, TaskScore]


@dataclass(frozen=True)
class AverageRow:
    """An average that a paper defines, and its values, model → score x 100.

    All values are over the same measurements; models without these are absent.
    """

    average: Average
    scores: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """A comparison of models, as its tables and plots show it.

    ``models`` are distinct labels, in the order given. ``versions`` has a line for each library
    whose version differs between scores.
    """

    models: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    averages: tuple[AverageRow, ...]
    verdicts: tuple[Verdict, ...]
    settings: EvaluationSettings
    versions: tuple[str, ...] = ()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of models that share a measurement."""
        return list(dict.fromkeys((verdict.first, verdict.second) for verdict in self.verdicts))

    def describe_mismatches(self) -> list[str]:
        """Return a note for each two measurements of one task and split, on how they differ."""
        notes = []
        for first, second in combinations([row.measurement for row in self.rows], 2):
            task = f"{first.task} {first.split}"
            if task == f"{second.task} {second.split}":
                notes.append(f"{task} stands in two rows: {first.describe_mismatch(second)}")
        return notes


@dataclass(frozen=True)
class ResultTable:
    """A table of untrusted, unescaped text.

    The first ``text_columns`` columns are aligned to the left, the others to the right.
    """

    title: str
    header: Cells
    rows: tuple[Cells, ...]
    text_columns: int
    notes: tuple[str, ...] = ()


COMMIT_CHARACTERS = 7  # as git shortens a commit
# The characters of numbers and intervals, which need no escaping
PLAIN_CHARACTERS = set("0123456789+-. [],")


def make_result_tables(comparison: Comparison) -> list[ResultTable]:
    """Return the tables of scores, of averages if any, and of verdicts for each pair of models."""
    tables = [_make_score_table(comparison)]
    if comparison.averages:
        tables.append(_make_average_table(comparison))
    for first, second in comparison.pairs:
        tables.append(_make_verdict_table(comparison, first, second))
    return tables


def _make_score_table(comparison: Comparison) -> ResultTable:
    """Return the table of scores, a row for each measurement and a column for each model."""
    names = shorten_models(comparison.models)
    rows = []
    for row in comparison.rows:
        measurement = row.measurement
        count = f"{measurement.n} drawn" if measurement.limit else str(measurement.n)
        scores = (format_score(row.scores.get(model)) for model in comparison.models)
        rows.append((measurement.task, measurement.split, measurement.metric, count, *scores))
    notes = [
        "95 % bootstrap intervals in brackets; scores x 100",
        *_describe_trials(comparison),
        *comparison.describe_mismatches(),
    ]
    if comparison.versions:
        notes.append(f"not made with the same libraries: {'; '.join(comparison.versions)}")
    notes += [f"{name}: {model}" for model, name in names.items() if name != model]
    header = ("task", "split", "metric", "rows", *names.values())
    return ResultTable("Scores", header, tuple(rows), text_columns=3, notes=tuple(notes))


def shorten_models(models: Sequence[str]) -> dict[str, str]:
    """Return model → header of its column, in the order of ``models``.

    The header is the model's name after the last slash, with the first ``COMMIT_CHARACTERS`` of a
    revision. Models that would have the same header keep their full names.
    """
    names: dict[str, str] = {}
    for model in models:
        name = model
        revision = ""
        if "@" in model:
            name, _, commit = model.rpartition("@")
            revision = f"@{commit[:COMMIT_CHARACTERS]}"
        names[model] = name.rpartition("/")[2] + revision
    used = list(names.values())
    for model, name in names.items():
        if used.count(name) > 1:
            names[model] = model
    return names


def _describe_trials(comparison: Comparison, pair: Sequence[str] = ()) -> list[str]:
    """Return a note for each limit on rows: the tasks that were scored on a part of their data.

    pair: two models; only tasks that both were scored on are listed. Empty: all tasks are.
    """
    tasks_of_limit: dict[str, list[str]] = {}
    for row in comparison.rows:
        measurement = row.measurement
        if measurement.limit and row.scores.keys() >= set(pair):
            tasks_of_limit.setdefault(str(measurement.limit), []).append(
                f"{measurement.task} {measurement.split}"
            )
    return [
        f"{limit}, a trial and no scores of the tasks: {', '.join(tasks)}"
        for limit, tasks in tasks_of_limit.items()
    ]


def _make_average_table(comparison: Comparison) -> ResultTable:
    """Return the table of averages, with a note that defines each average."""
    rows = []
    notes = []
    for row in comparison.averages:
        scores = (format_number(row.scores.get(model)) for model in comparison.models)
        rows.append((row.average.name, *scores))
        notes.append(f"{row.average.name}: {row.average.definition}")
    header = ("average", *shorten_models(comparison.models).values())
    return ResultTable("Averages", header, tuple(rows), text_columns=1, notes=tuple(notes))


def _make_verdict_table(comparison: Comparison, first: str, second: str) -> ResultTable:
    """Return the table of the differences, tests and verdicts of ``first`` against ``second``."""
    # Explain the differences, and what they leave out
    pair = (first, second)
    settings = comparison.settings
    resamples = f"{settings.bootstrap_samples} resamples, seed {settings.seed}"
    notes = [
        f"differences in points, paired 95 % percentile intervals ({resamples})",
        VERDICT_RULE,
        *_describe_trials(comparison, pair),
    ]
    verdicts = [
        verdict for verdict in comparison.verdicts if (verdict.first, verdict.second) == pair
    ]
    if any(verdict.difference.tested is None for verdict in verdicts):
        notes.append("not tested: the scored rows of one were not kept")
    scores: list[TaskScore] = []
    for row in comparison.rows:
        if row.scores.keys() >= set(pair):
            scores += [row.scores[first], row.scores[second]]
    if any(len(score.seeds) > 1 for score in scores):
        notes.append("a mean over several seeds is tested on the rows of its first seed")
    return ResultTable(
        title=f"Differences: {first} minus {second}",
        header=("task", "split", "first is", "difference", "test", "p", "p (Holm)"),
        rows=tuple(_format_verdict(verdict) for verdict in verdicts),
        text_columns=3,
        notes=tuple(notes),
    )


def _format_verdict(verdict: Verdict) -> Cells:
    """Return the table row of a verdict; dashes stand for a test that was not made."""
    measurement = verdict.measurement
    points = format_number(verdict.difference.points, signed=True)
    if verdict.difference.tested is None:
        return (measurement.task, measurement.split, "not tested", points, ABSENT, ABSENT, ABSENT)
    ends, test = verdict.difference.tested
    points += f" {format_interval(ends.low, ends.high, signed=True)}"
    p_values = (_format_p(test.p), _format_p(verdict.adjusted))
    return (measurement.task, measurement.split, verdict.word, points, test.name, *p_values)


def _format_p(value: float) -> str:
    """Return a p-value with four decimals; a smaller one as "< 0.0001"."""
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def describe_own_scores(
    tasks: Sequence[Task], scores: Sequence[TaskScore], verdicts: Sequence[Verdict], other: str = ""
) -> list[str]:
    """Describe the verdict on each task of a user's own files, and the rows that it would need.

    Args:
        tasks: the tasks of the user's files. A task without a score is left out, and so is the
            recall of a search, because its nDCG is described.
        scores: scores of the encoder.
        verdicts: verdicts on the encoder against another encoder; may lack some tasks.
        other: name of the other encoder in the lines; empty: its name in the verdict.

    Returns lines in the order of the tasks. A tested verdict has a line. A second line says how
    many rows a difference that is not significant needs. A score of fewer than ``FEW_ROWS`` rows
    that lacks this second line has a line about the width of the interval.
    """
    score_of_task = {score.task: score for score in scores}
    verdict_of_task = {verdict.measurement.task: verdict for verdict in verdicts}
    lines = []
    for task in tasks:
        score = score_of_task.get(task.name)
        if score is None or task.metric == "recall@10":
            continue

        # Describe the verdict; the interval is that of its difference, without one the score's
        verdict = verdict_of_task.get(task.name)
        low, high = score.interval() or (0.0, 0.0)
        hint = "--compare sees smaller differences"
        power = ""
        if verdict is not None and verdict.difference.tested is not None:
            interval = verdict.difference.tested.interval
            low, high = interval.low, interval.high
            hint = "a smaller difference cannot be seen"
            lines.append(_describe_own_verdict(verdict, score, other))
            power = describe_power(verdict.gain, score)

        # Few rows cannot show small differences
        if power:
            lines.append(power)
        elif score.n < FEW_ROWS:
            half = format_number((high - low) / 2)
            lines.append(
                f"{score.n} {score.unit} are few: the interval reaches {half} points to each side; "
                f"{hint}"
            )
    return lines


def _describe_own_verdict(verdict: Verdict, score: TaskScore, other: str) -> str:
    """Describe the difference between an encoder and another one on the user's rows.

    The sentence advises to keep the other encoder unless this one is significantly better.

    Args:
        verdict: a tested verdict on the encoder against the other one.
        score: the score of the encoder.
        other: name of the other encoder in the sentence; empty: its name in the verdict.
    """
    assert verdict.difference.tested is not None
    interval = verdict.difference.tested.interval
    points = format_number(verdict.difference.points, signed=True)
    difference = f"{points} {format_interval(interval.low, interval.high, signed=True)}"
    name = other or verdict.second
    rows = f"on your {score.n} {score.unit}"
    if verdict.word == "not significant":
        return (
            f"not decided {rows}: {difference} over {name}; "
            f"keep that one until more {score.unit} decide"
        )
    if verdict.word == "worse":
        difference += f"; keep {name}"
    return f"{verdict.word} than {name} {rows}: {difference}"


def format_text(table: ResultTable) -> str:
    """Return a table as text without hidden characters: title, aligned columns, notes."""
    cells = [list(map(make_visible_line, row)) for row in (table.header, *table.rows)]
    lines = align_columns(cells, right=range(table.text_columns, len(table.header)))
    return "\n".join([table.title, lines, *map(make_visible_line, table.notes)])


def format_markdown(tables: Sequence[ResultTable], pictures: Sequence[tuple[str, str]]) -> str:
    """Return a Markdown document with a section for each table.

    Args:
        tables: the tables; at least one.
        pictures: (description, file name) of the images that follow the first table.
    """
    sections = [_format_section(table) for table in tables]
    images = [f"![{escape_inline(description)}]({file})" for description, file in pictures]
    return "\n\n".join(["# Comparison", sections[0], *images, *sections[1:]]) + "\n"


def _format_section(table: ResultTable) -> str:
    """Return a table as a Markdown section: heading, table, list of notes."""
    rows = [list(map(_format_cell, row)) for row in table.rows]
    return "\n\n".join(
        [
            f"## {escape_inline(table.title)}",
            format_table([*table.header], rows),
            "\n".join(f"- {escape_inline(note)}" for note in table.notes),
        ]
    )


def _format_cell(cell: str) -> Markdown:
    """Return a cell as Markdown; numbers and intervals stay as they are."""
    return Markdown(cell) if set(cell) <= PLAIN_CHARACTERS else escape_inline(cell)


def format_scores_csv(comparison: Comparison) -> str:
    """Return a CSV document with a row for each score, numbers in full precision.

    A score without an interval has empty ends.
    """
    rows = []
    for row in comparison.rows:
        measurement = row.measurement
        for model, score in row.scores.items():
            low, high = score.interval() or (None, None)
            cells = {
                "task": measurement.task,
                "split": measurement.split,
                "metric": measurement.metric,
                "rows": measurement.n,
                "model": model,
                "score": score.main_score,
                "low": low,
                "high": high,
                "protocol": measurement.protocol,
                "data": measurement.data,
                "limit": measurement.limit,
            }
            rows.append(cells)
    return _format_csv(rows)


def format_verdicts_csv(comparison: Comparison) -> str:
    """Return a CSV document with a row for each tested difference, numbers in full precision.

    Without a tested difference the document has only its header.
    """
    rows = []
    for verdict in comparison.verdicts:
        if verdict.difference.tested is None:
            continue
        measurement = verdict.measurement
        interval, test = verdict.difference.tested
        cells = {
            "model": verdict.first,
            "against": verdict.second,
            "task": measurement.task,
            "split": measurement.split,
            "metric": measurement.metric,
            "rows": measurement.n,
            "difference": verdict.difference.points,
            "low": interval.low,
            "high": interval.high,
            "test": test.name,
            "statistic": test.statistic,
            "p": test.p,
            "p_holm": verdict.adjusted,
            "verdict": verdict.word,
            "limit": measurement.limit,
        }
        rows.append(cells)
    return _format_csv(rows, VERDICT_COLUMNS)


def _format_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return rows (column → value) as CSV with a header; None is an empty cell.

    Text is escaped by ``escape_csv_cell``. ``columns``: the header; None: the keys of the rows.
    """
    import pandas

    table = pandas.DataFrame(rows, columns=columns, dtype=object).map(escape_csv_cell)
    return table.to_csv(index=False, lineterminator="\n")


def escape_csv_cell(value: Any) -> Any:
    """Return text as one line; an apostrophe precedes text that a spreadsheet reads as a formula.

    Hidden characters become U+FFFD. A value that is not text is returned unchanged.
    """
    if not isinstance(value, str):
        return value
    line = make_visible_line(value)
    return f"'{line}" if line.lstrip()[:1] in ("=", "+", "-", "@") else line
