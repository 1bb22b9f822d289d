"""A comparison as tables: what each shows. ``eval.comparison.formats`` writes them as text, Markdown, LaTeX and CSV."""

from collections.abc import Sequence
from dataclasses import dataclass

from eval.comparison.comparison import Comparison, PaperTable, SkippedTest
from eval.statistics.verdicts import Measurement, Verdict
from hub.contract.results import RULE, TaskScore

ABSENT = "–"
REVISION = 7  # characters of a commit, as git shortens it
SCORES, AVERAGES, DIFFERENCES = "Scores", "Averages", "Differences: "  # titles


@dataclass(frozen=True)
class ResultTable:
    """A table of untrusted, unescaped text; ``text_columns`` are the first ones, the rest is aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int
    notes: tuple[str, ...] = ()


def result_tables(comparison: Comparison) -> list[ResultTable]:
    """Scores with intervals, averages, verdicts pair by pair, and our numbers beside each paper's, in this order."""
    found = [_scores(comparison)]
    if comparison.averages:
        found.append(_averages(comparison))
    found += [_verdicts(comparison, *pair) for pair in comparison.pairs]
    return found + [_beside(one) for one in comparison.beside]


def _scores(comparison: Comparison) -> ResultTable:
    rows = tuple(
        (*_fixed(line.measurement), *(_score(line.scores.get(model)) for model in comparison.models))
        for line in comparison.lines
    )
    notes = ("95 % bootstrap intervals in brackets; scores x 100", *_trials(comparison), *comparison.unlike())
    if comparison.versions:
        notes = (*notes, f"not made with the same libraries: {'; '.join(comparison.versions)}")
    short = short_names(comparison.models)
    notes = (*notes, *(f"{name}: {model}" for model, name in short.items() if name != model))
    return ResultTable(SCORES, ("task", "split", "metric", "rows", *short.values()), rows, 3, notes)


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
    if score is None:
        return ABSENT
    around = score.interval()
    return f"{score.main_score:.2f}" + (f" [{around[0]:.2f}, {around[1]:.2f}]" if around else "")


def _fixed(measurement: Measurement) -> tuple[str, str, str, str]:
    rows = f"{measurement.n} drawn" if measurement.limit else str(measurement.n)
    return measurement.task, measurement.split, measurement.metric, rows


def _averages(comparison: Comparison) -> ResultTable:
    rows = tuple(
        (line.name, *(f"{line.scores[model]:.2f}" if model in line.scores else ABSENT for model in comparison.models))
        for line in comparison.averages
    )
    notes = tuple(f"{line.name}: {line.definition}" for line in comparison.averages)
    return ResultTable(AVERAGES, ("average", *short_names(comparison.models).values()), rows, 1, notes)


def _verdicts(comparison: Comparison, first: str, second: str) -> ResultTable:
    header = ("task", "split", "first is", "difference", "test", "p", "p (Holm)")
    tested = [one for one in comparison.verdicts if (one.first, one.second) == (first, second)]
    untested = [one for one in comparison.untested if (one.first, one.second) == (first, second)]
    used = comparison.resampling[first, second]
    how = f"differences in points, paired 95 % intervals ({used.method}, {used.samples} resamples, seed {used.seed})"
    why = sorted({f"not tested: {one.why}" for one in untested})
    if any(len(score.seeds) > 1 for line in comparison.lines for score in line.scores.values()):
        why.append("a mean over several seeds is tested on the rows of its first seed")
    rows = (*map(_verdict, tested), *map(_untested, untested))
    return ResultTable(
        f"{DIFFERENCES}{first} minus {second}",
        header,
        rows,
        3,
        (how, RULE, *_trials(comparison, (first, second)), *why),
    )


def _verdict(one: Verdict) -> tuple[str, ...]:
    around, test = one.difference.around, one.difference.test
    shown = f"{one.difference.points:+.2f} [{around.low:+.2f}, {around.high:+.2f}]"
    return (one.measurement.task, one.measurement.split, one.word, shown, test.name, _p(test.p), _p(one.adjusted))


def _untested(one: SkippedTest) -> tuple[str, ...]:
    what = one.measurement
    return (what.task, what.split, "not tested", f"{one.difference:+.2f}", ABSENT, ABSENT, ABSENT)


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def _beside(one: PaperTable) -> ResultTable:
    names = [column.name for column in one.columns]
    rows = [
        ("here", label, *(f"{numbers[name]:.2f}" if name in numbers else ABSENT for name in names))
        for label, numbers in one.ours.items()
    ]
    for row in one.table.rows:
        printed = one.table.printed(row)
        name = f"{row.name} (doubtful)" if row.doubt else row.name
        rows.append((one.paper.cite, name, *(f"{printed[key]:.2f}" if key in printed else ABSENT for key in names)))
    doubts = tuple(f"{row.name}: {row.doubt}" for row in one.table.rows if row.doubt)
    tasks = ", ".join(f"{column.name} is {column.task or column.average} ({column.metric})" for column in one.columns)
    notes = (f"{one.table.caption}. {one.table.note}".strip(), f"columns of our protocols: {tasks}", *doubts)
    return ResultTable(one.paper.source(one.table), ("from", "model", *names), tuple(rows), 2, notes)
