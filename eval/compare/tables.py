"""A comparison as tables: what each shows. ``eval.compare.tables`` writes them as text, Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eval.compare.model import Comparison, PaperTable, ScoreRow, SkippedTest
from eval.statistics.paired import Measurement, Verdict
from hub.cli import aligned
from hub.contract.results import RULE, Limit, TaskScore
from hub.markdown import inline, visible_line

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


Cell = str | float | int | Limit | None
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?( \[[+-]?[\d.]+, [+-]?[\d.]+\])?")


def text(sheet: ResultTable) -> str:
    """Aligned columns under the title, notes below."""
    table = [tuple(visible_line(cell) for cell in row) for row in (sheet.header, *sheet.rows)]
    lines = aligned(table, right=range(sheet.text_columns, len(sheet.header)))
    return "\n".join([sheet.title, lines, *(visible_line(note) for note in sheet.notes)])


def as_markdown(found: Sequence[ResultTable], pictures: Sequence[tuple[str, str]]) -> str:
    """A document with one section a sheet; ``pictures`` are (description, file) and follow the first one."""
    sections = [_markdown(sheet) for sheet in found]
    shown = [f"![{markdown(words)}]({file})" for words, file in pictures]
    return "\n\n".join(["# Comparison", sections[0], *shown, *sections[1:]]) + "\n"


def _markdown(sheet: ResultTable) -> str:
    rule = ["---"] * sheet.text_columns + ["---:"] * (len(sheet.header) - sheet.text_columns)
    rows = [[_cell(cell) for cell in row] for row in (sheet.header, *sheet.rows)]
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
    notes = [f"- {markdown(note)}" for note in sheet.notes]
    return "\n".join([f"## {markdown(sheet.title)}", "", *lines, "", *notes])


def _cell(text: str) -> str:
    """A cell: a number and its interval as they are, all else escaped."""
    return text if NUMBER.fullmatch(text) else markdown(text)


def as_latex(found: Sequence[ResultTable]) -> str:
    """One table environment a sheet, notes in the caption; for a document with booktabs and the T1 font encoding."""
    head = "% \\usepackage{booktabs} \\usepackage[T1]{fontenc}; names beyond Latin letters need XeLaTeX or LuaLaTeX"
    return "\n\n".join([head, *(_latex(sheet) for sheet in found)]) + "\n"


def _latex(sheet: ResultTable) -> str:
    columns = "l" * sheet.text_columns + "r" * (len(sheet.header) - sheet.text_columns)
    lines = [" & ".join(latex(cell) for cell in row) + r" \\" for row in (sheet.header, *sheet.rows)]
    caption = ". ".join(latex(part) for part in (sheet.title, *sheet.notes))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}.}}",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def scores_csv(comparison: Comparison) -> str:
    """One row a score: task, split, metric, rows, model, numbers in full precision, protocol, data, limit."""
    header = ("task", "split", "metric", "rows", "model", "score", "low", "high", "protocol", "data", "limit")
    return _csv(header, (row for line in comparison.lines for row in _score_rows(line)))


def _score_rows(line: ScoreRow) -> Iterable[tuple[Cell, ...]]:
    one = line.measurement
    for model, score in line.scores.items():
        numbers = (score.main_score, *(score.interval() or (None, None)))
        yield (one.task, one.split, one.metric, one.n, model, *numbers, one.protocol, one.data, one.limit)


def verdicts_csv(comparison: Comparison) -> str:
    """One row a tested difference, numbers in full precision."""
    measured = ("model", "against", "task", "split", "metric", "rows", "difference", "low", "high")
    tested = ("test", "statistic", "p", "p_holm", "verdict", "limit")
    return _csv((*measured, *tested), (_verdict_row(one) for one in comparison.verdicts))


def _verdict_row(one: Verdict) -> tuple[Cell, ...]:
    what, around, test = one.measurement, one.difference.around, one.difference.test
    measured = (what.task, what.split, what.metric, what.n, one.difference.points, around.low, around.high)
    tested = (test.name, test.statistic, test.p, one.adjusted, one.word, what.limit)
    return (one.first, one.second, *measured, *tested)


def papers_csv(comparison: Comparison) -> str:
    """One row a number of ours or of a paper: source, row, column, our task or average, metric, value, doubt."""
    header = ("source", "row", "column", "task", "metric", "value", "doubt")
    return _csv(header, (row for one in comparison.beside for row in _paper_rows(one)))


def _paper_rows(one: PaperTable) -> Iterable[tuple[Cell, ...]]:
    source = one.paper.source(one.table)
    theirs = [(source, row.name, one.table.printed(row), row.doubt) for row in one.table.rows]
    told = [*(("here", label, numbers, None) for label, numbers in one.ours.items()), *theirs]
    for origin, name, numbers, doubt in told:
        for column in one.columns:
            if column.name in numbers:
                ours = column.task or column.average
                yield origin, name, f"{source}: {column.name}", ours, column.metric, numbers[column.name], doubt


def _csv(header: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        '"': r"\textquotedbl{}",
        "`": r"\textasciigrave{}",
        "[": "{[}",
        "]": "{]}",
        "-": "{-}",
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
)
MATHS = {char: f"${name}$" for char, name in {"λ": r"\lambda", "ε": r"\varepsilon", "τ": r"\tau", "±": r"\pm"}.items()}


def markdown(text: str) -> str:
    """Text for a cell or a paragraph: characters with a meaning become entities, which can never be structure."""
    return inline(text).replace("@", "&#64;").replace(":", "&#58;")


def latex(text: str) -> str:
    """Text for a LaTeX table or caption."""
    return "".join(MATHS.get(char, char) for char in visible_line(text).translate(LATEX))


def csv_cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula: one that begins like one gets an apostrophe."""
    plain = visible_line(text)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain


def plotted(text: str, limit: int = 40) -> str:
    """A label in a plot: shortened in the middle; a leading underscore would hide it from matplotlib's legend."""
    plain = visible_line(text)
    if len(plain) > limit:
        plain = f"{plain[: limit // 2 - 1]}…{plain[-(limit // 2) :]}"
    return f" {plain}" if plain.startswith("_") else plain
