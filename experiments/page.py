"""The pages of kept results: ``docs/results.md`` (effects and readings), every table, and the power of each."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from benchmarks.trials import table
from experiments.plan import Effect, Experiment, Plan
from experiments.result import Difference, Result, read_result
from hub.contract.measured import Estimate
from hub.durable import write_text
from hub.papers import find_paper
from hub.plot_style import COLOURS, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INTRODUCTION = Path(__file__).parent / "plans" / "introduction.md"
TABLES = "experiments/results/papers/README.md"
HOUR = 3600
POWER_PAGE = """# Seeds that would decide

`sts-dino experiment run --page` writes this table from the JSON files.

How many times the seeds of an experiment would separate an effect as large as the paper's from 0, for the effects that
are not reproduced and whose size the paper prints. The interval narrows with the root of the seeds. The test rows stay
the same, so both last columns are lower bounds."""
POWER = 1.96 + 0.84  # standard errors that separate an effect from 0 at 95 % in four of five repetitions
WIDEST = 9  # columns of numbers that a page shows side by side
SEPARATOR = "\n\n"
OPEN = "#767676"
MARKS = {"reproduced": ("^", COLOURS[0]), "contradicted": ("v", COLOURS[5]), "not significant": ("o", OPEN)}
LINEAR = 5.0  # points to either side of zero; beyond them the scale is logarithmic
BELOW = "below the paper's size"
LINE_INCHES = 0.3
WIDTH = 62  # characters of a line of a name
Found = Sequence[tuple[Experiment, Result | None]]


def write_pages(page: Path, plan: Plan, results: Path) -> None:
    """Write the page with its plots in ``results/`` beside it, and all tables as ``README.md`` of ``results``."""
    found = [(one, read_result(results / f"{one.name}.json")) for one in plan.experiments]
    plots = {name: svg for _, result in found if result for name, svg in result.measured.plots.items()}
    shown = [
        (f"{one.name}: {effect.says}, {effect.column}", difference, printed_difference(one, effect))
        for one, result in found
        for effect, difference in (matched(one, result) if result else [])
    ]
    plots |= {"effects": effects_plot(shown)} if shown else {}
    plots |= {one.name: size_plot(one, result) for one, result in found if result and one.parameters}
    for name, svg in plots.items():
        write_text(page.parent / "results" / f"{name}.svg", svg)
    write_text(page, summary(found))
    write_text(results / "README.md", tables(plan, found))
    write_text(results / "power.md", power(found))


def power(found: Found) -> str:
    """A table of the effects that are not reproduced: how many times the seeds would separate the paper's from 0."""
    rows = []
    for one, result in found:
        for effect, difference in matched(one, result) if result else []:
            printed, around = printed_difference(one, effect), difference.difference
            if result is None or difference.verdict == "reproduced" or not printed:
                continue
            times = (POWER / 1.96 * (around.high - around.low) / 2 / printed) ** 2
            hours = max(1.0, times) * result.seconds / HOUR
            cells = [one.name, effect.says, effect.column, number(around), f"{printed:+z.1f}"]
            rows.append([*cells, f"{times:,.2f}", f"{hours:,.1f}"])
    columns = ["experiment", "effect", "column", "here", "paper", "times the seeds", "CPU-hours"]
    return SEPARATOR.join([POWER_PAGE, table(columns, rows, names=3)]) + "\n"


def summary(found: Found) -> str:
    """The page of effects: the tally, one line for each effect, and what each experiment shows."""
    run = [(one, result) for one, result in found if result]
    parts = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), "## Effects"]
    if run:
        parts += [tally(run), "![Effects with intervals, ours and the papers'](results/effects.svg)"]
    parts.append(effects(run))
    waiting = [f"`{one.name}`: {one.title}" for one, result in found if not result]
    if waiting:
        parts.append("Not run yet: " + "; ".join(waiting) + ".")
    parts.append("## Readings")
    for one, _ in run:
        parts += [f"**{one.name}**: {one.title}. {one.reading}"] if one.reading else []
        parts += [f"![{one.title}](results/{one.name}.svg)"] if one.parameters else []
    return SEPARATOR.join(parts) + "\n"


def tables(plan: Plan, found: Found) -> str:
    """Every table beside the paper's numbers, with deviations, cost and command."""
    head = "# Tables of experiments\n\n`sts-dino experiment run --page` writes them from the JSON files."
    return SEPARATOR.join([head, *(section(plan, one, result) for one, result in found if result)]) + "\n"


def tally(run: Sequence[tuple[Experiment, Result]]) -> str:
    """Effects of each paper by verdict, as a table."""
    verdicts = dict[str, Counter[str]]()
    for one, result in run:
        name = find_paper(one.paper).cite if one.paper else one.name
        found = verdicts.setdefault(f"{name}, 1.5B" if one.repeats else name, Counter())
        found.update(difference.verdict.rpartition(", ")[2] for _, difference in matched(one, result))
    kinds = ("reproduced", "not significant", "contradicted")
    rows = [[paper, *(str(found[kind]) for kind in kinds)] for paper, found in verdicts.items() if found]
    return table(["effects of", *kinds], rows)


def effects(run: Sequence[tuple[Experiment, Result]]) -> str:
    """One line for each effect: the paper's difference, and ours with seeds and verdict by language model."""
    rows = dict[tuple[str, str, str], list[str]]()
    for one, result in run:
        for effect, difference in matched(one, result):
            printed = printed_difference(one, effect)
            key = (one.repeats or one.name, effect.says, effect.column)
            row = rows.setdefault(key, [*key, "" if printed is None else f"{printed:+z.1f}", *[""] * 6])
            seeds = f"{result.data_seeds} x {result.training_seeds}" if one.rows else str(result.data_seeds)
            cells = [number(difference.difference), seeds, shown(difference, printed)]
            row[slice(7, 10) if one.repeats else slice(4, 7)] = cells
    columns = ["experiment", "effect", "column", "paper", *["here", "n", "verdict"], *["1.5B", "n", "verdict"]]
    return table(columns, rows.values(), names=10)


def shown(found: Difference, printed: float | None) -> str:
    """A verdict, bold where the interval decides; whether an interval that does not refutes the paper's size."""
    if found.verdict in ("reproduced", "contradicted"):
        return f"**{found.verdict}**"
    below = printed is not None and found.difference.high < printed
    return f"{BELOW}, {found.verdict}" if below else found.verdict


def matched(one: Experiment, result: Result) -> list[tuple[Effect, Difference]]:
    """The declared effects with their measured differences."""
    there = {(found.better, found.than, found.column): found for found in result.measured.differences}
    keys = [(effect, (effect.better, effect.than, effect.column)) for effect in one.effects]
    return [(effect, there[key]) for effect, key in keys if key in there]


def printed_difference(one: Experiment, effect: Effect) -> float | None:
    """The paper's number for ``better`` minus that for ``than``; None when it prints only one of them."""
    if effect.paper is not None:
        return effect.paper
    better, than = (printed_row(one, name).get(effect.column) for name in (effect.better, effect.than))
    return None if better is None or than is None else better - than


def printed_row(one: Experiment, name: str) -> dict[str, float]:
    """Column → the paper's number in the row that stands for one of ours, shares x 100."""
    row = {**one.rows, **one.beside}.get(name)
    if one.printed is None or row is None:
        return {}
    shares = {column.name for column in one.printed.columns if column.metric == "share"}
    printed = one.printed.printed(one.printed.row(row))
    return {column: 100 * value if column in shares else value for column, value in printed.items()}


def section(plan: Plan, one: Experiment, result: Result) -> str:
    """One experiment: its table beside the paper's, deviations, cost and command."""
    parts = [f"## {one.name}: {one.title}"]
    if one.paper:
        paper = find_paper(one.paper)
        source = paper.source(one.printed) if one.printed else paper.cite
        parts.append(f"*{source}{f', figure {one.figure}' if one.figure and not one.printed else ''}.*")
    if result.measured.rows:
        parts.append(scores(plan, one, result))
    parts += [f"![{name}](../../../docs/results/{name}.svg)" for name in result.measured.plots]
    parts += [*result.measured.notes, *result.measured.pages]
    if one.deviations:
        parts.append("Differences from the paper:\n\n" + "\n".join(f"- {line}" for line in one.deviations))
    return SEPARATOR.join([*parts, cost(one, result)])


def scores(plan: Plan, one: Experiment, result: Result) -> str:
    """Rows and columns of ours, under each number the paper's."""
    columns = list(dict.fromkeys(name for row in result.measured.rows.values() for name in row))
    says = {encoder.name: encoder.says for encoder in plan.encoders} | dict(one.labels)
    rows = []
    for name, found in result.measured.rows.items():
        of_paper, printed = {**one.rows, **one.beside}.get(name), printed_row(one, name)
        beside = {column: f"<br>*{value:g}*" for column, value in printed.items()}
        cells = [f"{number(found[column])}{beside.get(column, '')}" if column in found else "" for column in columns]
        rows.append([f"{says.get(name, name)}{f'<br>*{of_paper}*' if of_paper else ''}", *cells])
    head = ["here<br>*row of the paper*", *columns]
    if len(columns) > WIDEST and len(rows) < len(columns):  # transposed: a column for each row
        head, *rows = map(list, zip(head, *rows, strict=True))
    return table(head, rows)


def number(found: Estimate) -> str:
    """A score in points with its interval, if it has one."""
    around = "" if found.low == found.high else f" [{found.low:z.1f}, {found.high:z.1f}]"
    return f"{found.score:z.1f}{around}"


def cost(one: Experiment, result: Result) -> str:
    """CPU-hours, sizes, seeds, hardware and the command in a sentence."""
    of_first = " under the first data seed" if result.data_seeds > 1 else ""
    sizes = [
        f"`{name}` {size['rows']:,} rows of {size['source sentences']:,} source sentences{of_first}"
        for name, size in result.sizes.items()
    ]
    seeds = [f"data seeds: {result.data_seeds}, training seeds of each: {result.training_seeds}"] if one.rows else []
    machine = f"{result.hardware.get('processor', '')}, {result.hardware.get('cores', '?')} cores"
    hours = f"{result.seconds / HOUR:.2f} CPU-hours ({machine}), shared steps included"
    command = f"`sts-dino experiment run {one.name}`" + (f" at revision {one.finished}" if one.finished else "")
    return f"Cost: {'; '.join([hours, *seeds, *sizes])}. {command}"


def effects_plot(effects: Sequence[tuple[str, Difference, float | None]]) -> str:
    """A line for each effect (name, our difference, the paper's or None) with its interval."""

    def draw(figure: "Figure", axes: "Axes") -> None:
        for place, (_, found, printed) in enumerate(effects):
            one = found.difference
            mark, colour = MARKS.get(found.verdict, MARKS["not significant"])
            axes.plot([one.low, one.high], [place, place], color=colour, linewidth=2)
            filled = "white" if mark == "o" else colour
            axes.plot(one.score, place, marker=mark, color=colour, markerfacecolor=filled, markersize=7)
            if printed is not None:
                axes.plot(printed, place, marker="x", color="black", markersize=6)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_xscale("symlog", linthresh=LINEAR)
        ticks = [-20, -5, -2, 0, 2, 5, 20, 50]
        axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axes.set_yticks(range(len(effects)), ["\n".join(wrap(name, WIDTH)) for name, *_ in effects], fontsize=8)
        axes.set(xlabel="points; logarithmic beyond 5", ylim=(len(effects) - 0.5, -0.5))
        for name, (mark, colour) in {**MARKS, "the paper": ("x", "black")}.items():
            filled = "white" if mark == "o" else colour
            axes.plot([], [], mark, label=name, color=colour, markerfacecolor=filled)
        figure.legend(loc="outside lower center", ncols=len(MARKS) + 1, frameon=False)

    return picture(draw, (10, 1.4 + LINE_INCHES * len(effects)), "svg").decode()


def size_plot(one: Experiment, result: Result) -> str:
    """The measured columns by the parameters of the language model, a panel each."""
    rows, millions = [result.measured.rows[name] for name in one.parameters], [*one.parameters.values()]
    columns = [name for name in rows[0] if not name.startswith("cosine of") and name not in one.own_columns]

    def draw(figure: "Figure", *panels: "Axes") -> None:
        for axes, name in zip(panels, columns, strict=True):
            found = [row[name] for row in rows]
            around = [[at.score - at.low for at in found], [at.high - at.score for at in found]]
            axes.errorbar(millions, [at.score for at in found], around, marker="o", capsize=4, color=COLOURS[0])
            axes.set(title=name, xscale="log", xticks=millions, xticklabels=[f"{size:g}" for size in millions])
        panels[-1].set(xlabel="parameters of the language model, millions")

    return picture(draw, (7, 2 * len(columns)), "svg", rows=len(columns)).decode()
