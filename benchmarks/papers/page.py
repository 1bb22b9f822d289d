"""docs/results.md: every kept result beside its paper's numbers, made of data alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.effects_plot import effects_plot
from benchmarks.papers.plan import Effect, Experiment, Papers
from benchmarks.papers.result import Difference, Result, Verdict, read_result
from benchmarks.trials import table
from hub.contract.measured import Estimate
from hub.durable import write_text
from hub.papers import find_paper

INTRODUCTION = Path(__file__).with_name("introduction.md")
HOUR = 3600
EFFECTS = "![Effects with their intervals, and the papers' beside them](results/effects.svg)"
WIDEST = 9  # columns of numbers that a page takes side by side
SEPARATOR = "\n\n"


def write_page(path: Path, papers: Papers, results: Path) -> None:
    """Write the page, and all plots beside it in ``results/``."""
    found = [(one, read_result(results / f"{one.name}.json")) for one in papers.experiments]
    for _, result in found:
        for name, svg in (result.measured.plots if result else {}).items():
            write_text(path.parent / "results" / f"{name}.svg", svg)
    shown_effects = [
        (f"{one.name}: {effect.says}, {effect.column}", difference, printed_difference(one, effect))
        for one, result in found
        for effect, difference in (matched(one, result) if result else [])
    ]
    if shown_effects:
        write_text(path.parent / "results" / "effects.svg", effects_plot(shown_effects))
    write_text(path, page(papers, found))


def page(papers: Papers, found: Sequence[tuple[Experiment, Result | None]]) -> str:
    """The page as Markdown: the effects of all experiments first, then each experiment."""
    run = [(one, result) for one, result in found if result]
    parts = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), "## Effects", *([tally(run), EFFECTS] if run else [])]
    parts.append(effects(run))
    waiting = [f"`{one.name}`: {one.title}" for one, result in found if not result]
    if waiting:
        parts.append("Not run yet: " + "; ".join(waiting) + ".")
    parts += [section(papers, one, result) for one, result in run]
    return SEPARATOR.join(parts) + "\n"


def tally(run: Sequence[tuple[Experiment, Result]]) -> str:
    """How many effects of each paper are reproduced, not separable and contradicted, as a table."""
    verdicts = dict[str, Counter[str]]()
    for one, result in run:
        found = verdicts.setdefault(find_paper(one.paper).cite, Counter())
        found.update(difference.verdict.rpartition(", ")[2] for _, difference in matched(one, result))
    kinds = ("reproduced", "not separable", "contradicted")
    rows = [[paper, *(str(found[kind]) for kind in kinds)] for paper, found in verdicts.items() if found]
    return table(["effects of", *kinds], rows)


def effects(run: Sequence[tuple[Experiment, Result]]) -> str:
    """One line an effect: what the paper has, what is found here, and the verdict."""
    rows = []
    for one, result in run:
        for effect, difference in matched(one, result):
            printed = printed_difference(one, effect)
            cells = [f"[{one.name}](#{one.name})", effect.says, effect.column, signed(printed)]
            rows.append([*cells, told(difference.difference), shown(difference.verdict)])
    head = ["experiment", "effect", "column", "paper", "here", "reproduced?"]
    return table(head, rows, names=6)


def shown(verdict: Verdict) -> str:
    """A verdict in the table: bold where the interval decides."""
    return f"**{verdict}**" if verdict in ("reproduced", "contradicted") else verdict


def matched(one: Experiment, result: Result) -> list[tuple[Effect, Difference]]:
    """The declared effects with the differences that were measured for them."""
    there = {(found.better, found.than, found.column): found for found in result.measured.differences}
    keys = [(effect, (effect.better, effect.than, effect.column)) for effect in one.effects]
    return [(effect, there[key]) for effect, key in keys if key in there]


def printed_difference(one: Experiment, effect: Effect) -> float | None:
    """What the paper prints for ``better`` minus what it prints for ``than``; None when it lacks one of them."""
    if effect.paper is not None:
        return effect.paper
    better, than = (printed_row(one, name).get(effect.column) for name in (effect.better, effect.than))
    return None if better is None or than is None else better - than


def printed_row(one: Experiment, name: str) -> dict[str, float]:
    """Column → what the paper prints in the row that stands for one of ours, shares x 100; empty without such a row."""
    row = {**one.rows, **one.beside}.get(name)
    if one.printed is None or row is None:
        return {}
    shares = {column.name for column in one.printed.columns if column.metric == "share"}
    printed = one.printed.printed(one.printed.row(row))
    return {column: 100 * value if column in shares else value for column, value in printed.items()}


def section(papers: Papers, one: Experiment, result: Result) -> str:
    """One experiment: its table beside the paper's, what it says, deviations, cost and commands."""
    paper = find_paper(one.paper)
    source = (
        paper.source(one.printed) if one.printed else f"{paper.cite}, figure {one.figure}" if one.figure else paper.cite
    )
    parts = [f'<a id="{one.name}"></a>', f"## {one.title}", f"*{source}.* {one.reading}".rstrip()]
    if result.measured.rows:
        parts.append(scores(papers, one, result))
    parts += [f"![{name}](results/{name}.svg)" for name in result.measured.plots]
    parts += list(result.measured.notes) + list(result.measured.pages)
    if one.deviations:
        parts.append("Differences from the paper:\n\n" + "\n".join(f"- {line}" for line in one.deviations))
    parts.append(cost(one, result))
    return SEPARATOR.join(parts)


def scores(papers: Papers, one: Experiment, result: Result) -> str:
    """Rows and columns of ours; under each number the paper's, where it has that row and column."""
    columns = list(dict.fromkeys(name for row in result.measured.rows.values() for name in row))
    says = {encoder.name: encoder.says for encoder in papers.encoders}
    rows = []
    for name, found in result.measured.rows.items():
        of_paper = {**one.rows, **one.beside}.get(name)
        printed = printed_row(one, name)
        cells = [f"{told(found[column])}{beside(printed.get(column))}" if column in found else "" for column in columns]
        rows.append([f"{says.get(name, name)}{f'<br>*{of_paper}*' if of_paper else ''}", *cells])
    head = ["here<br>*row of the paper*", *columns]
    if len(columns) > WIDEST and len(rows) < len(columns):  # a column for each row in their place
        head, *rows = map(list, zip(head, *rows, strict=True))
    return table(head, rows)


def told(found: Estimate) -> str:
    """A number with its interval, in points; one that has none by itself."""
    if found.low == found.high:
        return f"{found.score:z.1f}"
    return f"{found.score:z.1f} [{found.low:z.1f}, {found.high:z.1f}]"


def beside(value: float | None) -> str:
    """The paper's number under ours."""
    return "" if value is None else f"<br>*{value:g}*"


def signed(value: float | None) -> str:
    """A difference of the paper's."""
    return "" if value is None else f"{value:+z.1f}"


def cost(one: Experiment, result: Result) -> str:
    """CPU-hours, sizes, seeds and the hardware in a sentence."""
    sizes = [
        f"`{arm}` {size['rows']:,} rows of {size['first texts']:,} first texts" for arm, size in result.sizes.items()
    ]
    of_first = " under the first data seed" if result.data_seeds > 1 else ""
    sizes = [f"{size}{of_first}" for size in sizes]
    seeds = f"data seeds: {result.data_seeds}, training seeds of each: {result.training_seeds}" if one.rows else ""
    machine = f"{result.hardware.get('processor', '')}, {result.hardware.get('cores', '?')} cores"
    told = [
        f"{result.seconds / HOUR:.2f} CPU-hours ({machine}), steps that other experiments share included",
        seeds,
        *sizes,
    ]
    return "Cost: " + "; ".join(filter(None, told)) + f". `python -m benchmarks.papers {one.name}`"
