"""A comparison's tables as aligned text for the terminal, Markdown, LaTeX (booktabs), and CSV for programs."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from eval.comparison.comparison import Comparison, PaperTable, ScoreRow
from eval.comparison.escapes import csv_cell, latex, markdown
from eval.comparison.tables import ResultTable
from eval.statistics.verdicts import Verdict
from hub.cli import aligned
from hub.contract.results import Limit
from hub.markdown import visible_line

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
