"""A comparison as tables: aligned text for the terminal, Markdown, LaTeX (booktabs), and CSV for programs.

Names and protocols are untrusted: every format shows them as they are, and none lets them be structure or a formula.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eval.compare.model import Comparison, PaperTable, SkippedTest
from eval.statistics.paired import Measurement, Verdict
from hub.cli import aligned
from hub.contract.results import RULE, TaskScore
from hub.scores import ABSENT, interval, number
from hub.untrusted import inline, visible_line

REVISION = 7  # characters of a commit, as git shortens it
SCORES, AVERAGES, DIFFERENCES = "Scores", "Averages", "Differences: "  # titles
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?( \[[+-]?[\d.]+, [+-]?[\d.]+\])?")
_WORDS = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater"}
_WORDS |= {"|": "textbar", '"': "textquotedbl", "`": "textasciigrave"}
_LATEX = str.maketrans(
    {char: rf"\{word}{{}}" for char, word in _WORDS.items()}
    | {char: f"{{{char}}}" for char in "[]-"}
    | {char: f"\\{char}" for char in "&%$#_{}"}
    | {char: f"$\\{name}$" for char, name in {"λ": "lambda", "ε": "varepsilon", "τ": "tau", "±": "pm"}.items()}
)


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
    notes = ["95 % bootstrap intervals in brackets; scores x 100", *_trials(comparison), *comparison.unlike()]
    if comparison.versions:
        notes.append(f"not made with the same libraries: {'; '.join(comparison.versions)}")
    short = short_names(comparison.models)
    notes += [f"{name}: {model}" for model, name in short.items() if name != model]
    return ResultTable(SCORES, ("task", "split", "metric", "rows", *short.values()), rows, 3, tuple(notes))


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


def _fixed(measurement: Measurement) -> tuple[str, str, str, str]:
    rows = f"{measurement.n} drawn" if measurement.limit else str(measurement.n)
    return measurement.task, measurement.split, measurement.metric, rows


def _averages(comparison: Comparison) -> ResultTable:
    lines = comparison.averages
    rows = tuple((line.name, *(number(line.scores.get(model)) for model in comparison.models)) for line in lines)
    notes = tuple(f"{line.name}: {line.definition}" for line in lines)
    return ResultTable(AVERAGES, ("average", *short_names(comparison.models).values()), rows, 1, notes)


def _verdicts(comparison: Comparison, first: str, second: str) -> ResultTable:
    tested = [one for one in comparison.verdicts if (one.first, one.second) == (first, second)]
    untested = [one for one in comparison.untested if (one.first, one.second) == (first, second)]
    used = comparison.resampling[first, second]
    how = f"differences in points, paired 95 % percentile intervals ({used.samples} resamples, seed {used.seed})"
    why = sorted({f"not tested: {one.why}" for one in untested})
    if any(len(score.seeds) > 1 for line in comparison.lines for score in line.scores.values()):
        why.append("a mean over several seeds is tested on the rows of its first seed")
    return ResultTable(
        f"{DIFFERENCES}{first} minus {second}",
        ("task", "split", "first is", "difference", "test", "p", "p (Holm)"),
        (*map(_verdict, tested), *map(_untested, untested)),
        3,
        (how, RULE, *_trials(comparison, (first, second)), *why),
    )


def _verdict(one: Verdict) -> tuple[str, ...]:
    around, test = one.difference.around, one.difference.test
    shown = f"{number(one.difference.points, signed=True)} {interval(around.low, around.high, signed=True)}"
    p = ["< 0.0001" if value < 0.0001 else f"{value:.4f}" for value in (test.p, one.adjusted)]
    return (one.measurement.task, one.measurement.split, one.word, shown, test.name, *p)


def _untested(one: SkippedTest) -> tuple[str, ...]:
    difference = number(one.difference, signed=True)
    return (one.measurement.task, one.measurement.split, "not tested", difference, ABSENT, ABSENT, ABSENT)


def _beside(one: PaperTable) -> ResultTable:
    names = [column.name for column in one.columns]
    rows = [("here", label, *(number(numbers.get(name)) for name in names)) for label, numbers in one.ours.items()]
    for row in one.table.rows:
        printed = one.table.printed(row)
        name = f"{row.name} (doubtful)" if row.doubt else row.name
        rows.append((one.paper.cite, name, *(number(printed.get(key)) for key in names)))
    doubts = tuple(f"{row.name}: {row.doubt}" for row in one.table.rows if row.doubt)
    tasks = ", ".join(f"{column.name} is {column.task or column.average} ({column.metric})" for column in one.columns)
    notes = (f"{one.table.caption}. {one.table.note}".strip(), f"columns of our protocols: {tasks}", *doubts)
    return ResultTable(one.paper.source(one.table), ("from", "model", *names), tuple(rows), 2, notes)


def text(sheet: ResultTable) -> str:
    """Aligned columns under the title, notes below."""
    table = [tuple(visible_line(cell) for cell in row) for row in (sheet.header, *sheet.rows)]
    lines = aligned(table, right=range(sheet.text_columns, len(sheet.header)))
    return "\n".join([sheet.title, lines, *(visible_line(note) for note in sheet.notes)])


def as_markdown(found: Sequence[ResultTable], pictures: Sequence[tuple[str, str]]) -> str:
    """A document with one section a table; ``pictures`` are (description, file) and follow the first one."""
    sections = [_markdown(sheet) for sheet in found]
    shown = [f"![{markdown(words)}]({file})" for words, file in pictures]
    return "\n\n".join(["# Comparison", sections[0], *shown, *sections[1:]]) + "\n"


def _markdown(sheet: ResultTable) -> str:
    rule = ["---"] * sheet.text_columns + ["---:"] * (len(sheet.header) - sheet.text_columns)
    plain = (sheet.header, *sheet.rows)
    rows = [[cell if cell == ABSENT or _NUMBER.fullmatch(cell) else markdown(cell) for cell in row] for row in plain]
    lines = ["| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([f"## {markdown(sheet.title)}", "", *lines, "", *(f"- {markdown(note)}" for note in sheet.notes)])


def markdown(text: str) -> str:
    """Text for a cell or a paragraph: characters with a meaning become entities, which can never be structure."""
    return inline(text).replace("@", "&#64;").replace(":", "&#58;")


def as_latex(found: Sequence[ResultTable]) -> str:
    """One table environment a table, notes in the caption; for a document with booktabs and the T1 font encoding."""
    head = "% \\usepackage{booktabs} \\usepackage[T1]{fontenc}; names beyond Latin letters need XeLaTeX or LuaLaTeX"
    return "\n\n".join([head, *(_latex(sheet) for sheet in found)]) + "\n"


def _latex(sheet: ResultTable) -> str:
    columns = "l" * sheet.text_columns + "r" * (len(sheet.header) - sheet.text_columns)
    head, *body = [" & ".join(latex(cell) for cell in row) + r" \\" for row in (sheet.header, *sheet.rows)]
    caption = ". ".join(latex(part) for part in (sheet.title, *sheet.notes))
    top = [r"\begin{table}", r"\centering", rf"\caption{{{caption}.}}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    return "\n".join([*top, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def latex(text: str) -> str:
    """Text for a LaTeX table or caption."""
    return visible_line(text).translate(_LATEX)


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
        | {"rows": what.n, "difference": found.points, "low": found.around.low, "high": found.around.high}
        | {"test": found.test.name, "statistic": found.test.statistic, "p": found.test.p, "p_holm": one.adjusted}
        | {"verdict": one.word, "limit": what.limit}
        for one in comparison.verdicts
        for what, found in ((one.measurement, one.difference),)
    )


def _csv(rows: Iterable[dict[str, Any]]) -> str:
    import pandas

    cells = [{name: csv_cell(cell) if isinstance(cell, str) else cell for name, cell in row.items()} for row in rows]
    return pandas.DataFrame(cells, dtype=object).to_csv(index=False, lineterminator="\n")


def csv_cell(text: str) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula: one that begins like one gets an apostrophe."""
    plain = visible_line(text)
    return f"'{plain}" if plain.lstrip()[:1] in ("=", "+", "-", "@") else plain
