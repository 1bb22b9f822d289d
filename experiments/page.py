"""The pages of kept results: effects and readings (``docs/results.md``), tables, and power.

Power: by what factor the seeds would have to grow to decide an effect that is not reproduced.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from sts_dino.experiments.plan import Effect, Experiment, Plan
from sts_dino.experiments.runner import Difference, Result, read_result
from sts_dino.experiments.speed.trials import format_table
from sts_dino.hub.contract.measured import Estimate
from sts_dino.hub.durable import write_text
from sts_dino.hub.papers import find_paper
from sts_dino.hub.plot_style import COLOURS, draw_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INTRODUCTION = Path(__file__).parent / "plans" / "introduction.md"
SECONDS_PER_HOUR = 3600
POWER_PAGE = """# Seeds that would decide

`sts-dino experiment run --page` writes this table from the JSON files.

How many times the seeds of an experiment would separate an effect as large as the paper's from 0, \
for the effects that
are not reproduced and whose size the paper prints. \
The interval narrows with the root of the seeds. The test rows stay
the same, so both last columns are lower bounds."""
# Size of an effect, in standard errors, that is significant at 95 % in four of five repetitions
STANDARD_ERRORS_AT_POWER = 1.96 + 0.84
MOST_NUMBER_COLUMNS = 9  # columns of numbers that a page shows side by side
SEPARATOR = "\n\n"
UNDECIDED_COLOUR = "#767676"
VERDICT_MARKS = {
    "reproduced": ("^", COLOURS[0]),
    "contradicted": ("v", COLOURS[5]),
    "not significant": ("o", UNDECIDED_COLOUR),
}
LINEAR_POINTS = 5.0  # points to either side of zero; beyond them the scale is logarithmic
BELOW_PAPER_SIZE = "below the paper's size"
FRAME_INCHES = 1.4  # height of axis and legend
LINE_INCHES = 0.3  # height of an effect
NAME_LINE_CHARACTERS = 62  # characters of a line of a name


class RunExperiment(NamedTuple):
    """An experiment of a plan that has run."""

    experiment: Experiment
    result: Result


class MeasuredEffect(NamedTuple):
    """A declared effect of an experiment, and the difference that was measured for it.

    ``paper_difference``: the paper's difference; None if the paper does not print it.
    """

    experiment: Experiment
    result: Result
    effect: Effect
    difference: Difference
    paper_difference: float | None


def write_pages(page: Path, plan: Plan, kept_results: Path) -> None:
    """Write the page of effects, the tables, the power analysis, and the plots.

    The plots go to the subfolder ``results`` of the page's folder. The tables (``README.md``) and
    the power analysis (``power.md``) go to the folder of the kept results.

    Args:
        page: the page of effects.
        plan: the plan.
        kept_results: the folder of the kept results, a JSON file per experiment.

    Raises InputError for a file that is not a valid result, and for an unknown paper, table or row
    of a paper.
    """
    run_experiments = list_run_experiments(plan, kept_results)
    for name, svg in draw_plots(run_experiments).items():
        write_text(page.parent / "results" / f"{name}.svg", svg)
    write_text(page, format_summary(plan, run_experiments))
    write_text(kept_results / "README.md", format_tables(plan, run_experiments))
    write_text(kept_results / "power.md", format_power(run_experiments))


def list_run_experiments(plan: Plan, results: Path) -> list[RunExperiment]:
    """List the experiments of a plan that have a result in the folder ``results``.

    Raises InputError for a file that is not a valid result.
    """
    run_experiments = []
    for experiment in plan.experiments:
        result = read_result(results / f"{experiment.name}.json")
        if result is not None:
            run_experiments.append(RunExperiment(experiment, result))
    return run_experiments


def list_effects(run_experiments: Sequence[RunExperiment]) -> list[MeasuredEffect]:
    """List the measured effects of all experiments, in the order of the experiments.

    Raises InputError as ``match_effects``.
    """
    effects: list[MeasuredEffect] = []
    for experiment, result in run_experiments:
        effects += match_effects(experiment, result)
    return effects


def draw_plots(run_experiments: Sequence[RunExperiment]) -> dict[str, str]:
    """Return name → SVG of the plots of the pages.

    They are the kept plots of results, ``effects`` if there are effects, and a plot by size of each
    experiment whose result has a row of its ``parameters``.
    """
    plots: dict[str, str] = {}
    for experiment, result in run_experiments:
        plots |= result.measured.plots
        if has_sizes(experiment, result):
            plots[experiment.name] = plot_sizes(experiment, result)
    effects = list_effects(run_experiments)
    if effects:
        plots["effects"] = plot_effects(effects)
    return plots


def format_power(run_experiments: Sequence[RunExperiment]) -> str:
    """Format the page of power: a row for each effect that is not reproduced.

    A row has the factor by which the seeds would have to grow to separate the paper's difference
    from 0, and the CPU-hours of as many seeds. An effect whose difference the paper does not print,
    or prints as 0, is left out.
    """
    rows = []
    for experiment, result, effect, difference, paper_difference in list_effects(run_experiments):
        if difference.verdict == "reproduced" or not paper_difference:
            continue
        estimate = difference.difference
        # The half-width, 1.96 standard errors, narrows with the root of the number of seeds.
        half_width = (estimate.high - estimate.low) / 2
        times = (STANDARD_ERRORS_AT_POWER / 1.96 * half_width / paper_difference) ** 2
        # At least the cost of the experiment itself, also where fewer seeds would do
        hours = max(1.0, times) * result.seconds / SECONDS_PER_HOUR
        names = [experiment.name, effect.says, effect.column]
        numbers = [format_estimate(estimate), f"{paper_difference:+z.1f}"]
        rows.append([*names, *numbers, f"{times:,.2f}", f"{hours:,.1f}"])
    columns = ["experiment", "effect", "column", "here", "paper", "times the seeds", "CPU-hours"]
    return SEPARATOR.join([POWER_PAGE, format_table(columns, rows, names=3)]) + "\n"


def format_summary(plan: Plan, run_experiments: Sequence[RunExperiment]) -> str:
    """Format the page of effects: tally, a line for each effect, experiments not run, readings."""
    # The effects
    effects = list_effects(run_experiments)
    parts = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), "## Effects"]
    if effects:
        plot = "![Effects with intervals, ours and the papers'](results/effects.svg)"
        parts += [format_tally(effects), plot]
    parts.append(format_effects(effects))

    # The experiments without a result, and the readings of the others
    names = [experiment.name for experiment, _ in run_experiments]
    waiting = [
        f"`{experiment.name}`: {experiment.title}"
        for experiment in plan.experiments
        if experiment.name not in names
    ]
    if waiting:
        parts.append("Not run yet: " + "; ".join(waiting) + ".")
    parts.append("## Readings")
    for experiment, result in run_experiments:
        if experiment.reading:
            parts.append(f"**{experiment.name}**: {experiment.title}. {experiment.reading}")
        if has_sizes(experiment, result):
            parts.append(f"![{experiment.title}](results/{experiment.name}.svg)")
    return SEPARATOR.join(parts) + "\n"


def format_tables(plan: Plan, run_experiments: Sequence[RunExperiment]) -> str:
    """Format every table beside the paper's numbers, with deviations, cost and command."""
    command = "`sts-dino experiment run --page` writes them from the JSON files."
    parts = [f"# Tables of experiments\n\n{command}"]
    for experiment, result in run_experiments:
        parts.append(format_section(plan, experiment, result))
    return SEPARATOR.join(parts) + "\n"


def format_tally(effects: Sequence[MeasuredEffect]) -> str:
    """Format a table: how many effects of a paper are reproduced, not significant, contradicted.

    Repetitions with a larger language model (1.5B) have a line of their own.
    """
    counts_by_paper: dict[str, Counter[str]] = {}
    for experiment, _, _, difference, _ in effects:
        name = find_paper(experiment.paper).cite if experiment.paper else experiment.name
        if experiment.repeats:
            name = f"{name}, 1.5B"
        # "same direction, not significant" and "opposite direction, not significant" count together
        kind = difference.verdict.rpartition(", ")[2]
        counts_by_paper.setdefault(name, Counter())[kind] += 1
    kinds = ("reproduced", "not significant", "contradicted")
    rows = [
        [paper, *(str(counts[kind]) for kind in kinds)] for paper, counts in counts_by_paper.items()
    ]
    return format_table(["effects of", *kinds], rows)


def format_effects(effects: Sequence[MeasuredEffect]) -> str:
    """Format a table with a line for each effect: the paper's difference, then ours.

    Our difference is given for the plan's language model and for a larger one (1.5B), each with
    interval, seeds (data seeds x training seeds) and verdict. A missing difference is empty.
    """
    columns = ["experiment", "effect", "column", "paper"]
    columns += ["here", "n", "verdict", "1.5B", "n", "verdict"]
    # A repetition with a larger language model shares the lines of the experiment that it repeats.
    rows: dict[tuple[str, str, str], list[str]] = {}
    for experiment, result, effect, difference, paper_difference in effects:
        seeds = str(result.data_seeds)
        if experiment.rows:  # of trained encoders
            seeds = f"{result.data_seeds} x {result.training_seeds}"
        paper = "" if paper_difference is None else f"{paper_difference:+z.1f}"
        key = (experiment.repeats or experiment.name, effect.says, effect.column)
        row = rows.setdefault(key, [*key, paper, *[""] * 6])
        first = columns.index("1.5B" if experiment.repeats else "here")
        verdict = format_verdict(difference, paper_difference)
        row[first : first + 3] = [format_estimate(difference.difference), seeds, verdict]
    return format_table(columns, rows.values(), names=len(columns))  # all columns are text


def format_verdict(difference: Difference, paper_difference: float | None) -> str:
    """Format a verdict: bold where the interval decides.

    A verdict that is not significant also says when the whole interval lies below the paper's
    difference. ``paper_difference``: None if the paper does not print it.
    """
    if difference.verdict in ("reproduced", "contradicted"):
        return f"**{difference.verdict}**"
    if paper_difference is not None and difference.difference.high < paper_difference:
        return f"{BELOW_PAPER_SIZE}, {difference.verdict}"
    return difference.verdict


def match_effects(experiment: Experiment, result: Result) -> list[MeasuredEffect]:
    """Return each declared effect that has a measured difference, with that difference.

    The order is that of the plan. Raises InputError for an unknown paper, table or row of the
    paper.
    """
    measured = {
        (difference.better, difference.than, difference.column): difference
        for difference in result.measured.differences
    }
    effects = []
    for effect in experiment.effects:
        difference = measured.get((effect.better, effect.than, effect.column))
        if difference is not None:
            paper_difference = get_paper_difference(experiment, effect)
            effects.append(MeasuredEffect(experiment, result, effect, difference, paper_difference))
    return effects


def get_paper_difference(experiment: Experiment, effect: Effect) -> float | None:
    """Return the paper's difference of an effect; None if the paper does not print it.

    It is ``effect.paper``, or else the printed number of ``better`` minus that of ``than``. Raises
    InputError as ``get_paper_row``.
    """
    if effect.paper is not None:
        return effect.paper
    better = get_paper_row(experiment, effect.better).get(effect.column)
    than = get_paper_row(experiment, effect.than).get(effect.column)
    if better is None or than is None:
        return None
    return better - than


def get_paper_row(experiment: Experiment, name: str) -> dict[str, float]:
    """Return column → number that the paper prints beside our row ``name``; shares are x 100.

    The result is empty when the experiment has no table of a paper, or when its plan names no row
    of the paper beside ours. Raises InputError for an unknown paper, table or row of the paper.
    """
    row = {**experiment.rows, **experiment.beside}.get(name)
    if experiment.printed is None or row is None:
        return {}
    columns = experiment.printed.columns
    shares = {column.name for column in columns if column.metric == "share"}
    values = experiment.printed.get_values(experiment.printed.find_row(row))
    return {column: 100 * value if column in shares else value for column, value in values.items()}


def format_section(plan: Plan, experiment: Experiment, result: Result) -> str:
    """Format an experiment as a section of Markdown.

    The section has the paper, the table of our scores with the paper's numbers, plots, notes and
    further pages, differences from the paper, cost and command. The links to plots fit the page
    experiments/results/NAME/README.md.
    """
    parts = [f"## {experiment.name}: {experiment.title}"]
    if experiment.paper:
        parts.append(f"*{name_source(experiment)}.*")
    if result.measured.rows:
        parts.append(format_scores(plan, experiment, result))
    parts += [f"![{name}](../../../docs/results/{name}.svg)" for name in result.measured.plots]
    parts += [*result.measured.notes, *result.measured.pages]
    if experiment.deviations:
        deviations = "\n".join(f"- {deviation}" for deviation in experiment.deviations)
        parts.append(f"Differences from the paper:\n\n{deviations}")
    parts.append(format_cost(experiment, result))
    return SEPARATOR.join(parts)


def name_source(experiment: Experiment) -> str:
    """Name the paper of an experiment, with its table or figure; the experiment has a paper."""
    assert experiment.paper is not None
    paper = find_paper(experiment.paper)
    if experiment.printed:
        return paper.name_source(experiment.printed)
    if experiment.figure:
        return f"{paper.cite}, figure {experiment.figure}"
    return paper.cite


def format_scores(plan: Plan, experiment: Experiment, result: Result) -> str:
    """Format the table of our scores; the paper's number, if any, stands below ours in italics.

    A wide table is transposed: a row for each column of the scores.
    """
    # Choose the columns, and the names of the rows
    columns: dict[str, None] = {}
    for row in result.measured.rows.values():
        columns |= dict.fromkeys(row)
    labels = {encoder.name: encoder.says for encoder in plan.encoders} | dict(experiment.labels)

    # Fill the rows
    rows = []
    for name, estimates in result.measured.rows.items():
        label = labels.get(name, name)
        paper_row = {**experiment.rows, **experiment.beside}.get(name)
        if paper_row:
            label += f"<br>*{paper_row}*"
        paper_numbers = get_paper_row(experiment, name)
        cells = [label]
        for column in columns:
            cell = ""
            if column in estimates:
                cell = format_estimate(estimates[column])
                if column in paper_numbers:
                    cell += f"<br>*{paper_numbers[column]:g}*"
            cells.append(cell)
        rows.append(cells)

    head = ["here<br>*row of the paper*", *columns]
    # A table that is too wide, and wider than long, is transposed: a column for each row.
    is_wide = len(columns) > MOST_NUMBER_COLUMNS and len(rows) < len(columns)
    if is_wide:
        head, *rows = [list(cells) for cells in zip(head, *rows, strict=True)]
    return format_table(head, rows)


def format_estimate(estimate: Estimate) -> str:
    """Format a score in points with its 95 % interval; an exact number has none."""
    if estimate.low == estimate.high:
        return f"{estimate.score:z.1f}"
    return f"{estimate.score:z.1f} [{estimate.low:z.1f}, {estimate.high:z.1f}]"


def format_cost(experiment: Experiment, result: Result) -> str:
    """Format CPU-hours, hardware, seeds, sizes of the datasets and the command as one line."""
    machine = f"{result.hardware.get('processor', '')}, {result.hardware.get('cores', '?')} cores"
    costs = [
        f"{result.seconds / SECONDS_PER_HOUR:.2f} CPU-hours ({machine}), shared steps included"
    ]
    # An experiment without rows trains no encoders, so it has no seeds to report.
    if experiment.rows:
        costs.append(
            f"data seeds: {result.data_seeds}, training seeds of each: {result.training_seeds}"
        )
    # The sizes are those of the first data seed.
    seed_note = " under the first data seed" if result.data_seeds > 1 else ""
    for name, size in result.sizes.items():
        sentences = f"{size['source sentences']:,} source sentences"
        costs.append(f"`{name}` {size['rows']:,} rows of {sentences}{seed_note}")
    command = f"`sts-dino experiment run {experiment.name}`"
    if experiment.finished:
        command += f" at revision {experiment.finished}"
    return f"Cost: {'; '.join(costs)}. {command}"


def plot_effects(effects: Sequence[MeasuredEffect]) -> str:
    """Return an SVG with a row for each effect: interval, estimate, and the paper's difference."""

    def draw(figure: "Figure", axes: "Axes") -> None:
        """Draw the effects, from top to bottom, and the legend."""
        names = []
        for line, (experiment, _, effect, difference, paper_difference) in enumerate(effects):
            name = f"{experiment.name}: {effect.says}, {effect.column}"
            names.append("\n".join(wrap(name, NAME_LINE_CHARACTERS)))
            estimate = difference.difference
            # The mark of "same direction, not significant" is that of "not significant".
            mark, colour = VERDICT_MARKS[difference.verdict.rpartition(", ")[2]]
            axes.plot([estimate.low, estimate.high], [line, line], color=colour, linewidth=2)
            face_colour = "white" if mark == "o" else colour
            style: Any = {"marker": mark, "color": colour, "markerfacecolor": face_colour}
            axes.plot(estimate.score, line, markersize=7, **style)
            if paper_difference is not None:
                axes.plot(paper_difference, line, marker="x", color="black", markersize=6)

        # Draw the scale of points, and the names of the effects.
        axes.axvline(0, color="black", linewidth=1)
        axes.set_xscale("symlog", linthresh=LINEAR_POINTS)
        ticks = [-20, -5, -2, 0, 2, 5, 20, 50]
        axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axes.set_yticks(range(len(effects)), names, fontsize=8)
        axes.set(xlabel="points; logarithmic beyond 5", ylim=(len(effects) - 0.5, -0.5))

        # Draw the legend, by marks without points.
        for name, (mark, colour) in {**VERDICT_MARKS, "the paper": ("x", "black")}.items():
            face_colour = "white" if mark == "o" else colour
            axes.plot([], [], mark, label=name, color=colour, markerfacecolor=face_colour)
        figure.legend(loc="outside lower center", ncols=len(VERDICT_MARKS) + 1, frameon=False)

    height = FRAME_INCHES + LINE_INCHES * len(effects)
    return draw_picture(draw, (10, height), "svg").decode()


def has_sizes(experiment: Experiment, result: Result) -> bool:
    """Return whether a result has a row of the experiment's ``parameters``, for ``plot_sizes``."""
    return not result.measured.rows.keys().isdisjoint(experiment.parameters)


def plot_sizes(experiment: Experiment, result: Result) -> str:
    """Return an SVG of scores by the parameters of the language model, a panel for each column.

    The rows are those of ``experiment.parameters`` that the result has, at least one. Cosines of
    labels, ``own_columns``, and columns that one of the rows lacks are left out.
    """
    scores_by_row = result.measured.rows
    sizes = {name: size for name, size in experiment.parameters.items() if name in scores_by_row}
    rows = [scores_by_row[name] for name in sizes]
    millions = [*sizes.values()]
    columns = []
    for name in rows[0]:
        is_shown = not name.startswith("cosine of") and name not in experiment.own_columns
        if is_shown and all(name in row for row in rows):
            columns.append(name)

    def draw(figure: "Figure", *panels: "Axes") -> None:
        """Draw the scores and intervals of each column into its panel."""
        for axes, name in zip(panels, columns, strict=True):
            # Draw the scores. An error bar has a length: matplotlib refuses a negative one, which a
            # score just outside its interval, by rounding, would give
            estimates = [row[name] for row in rows]
            scores = [estimate.score for estimate in estimates]
            below = [max(0.0, estimate.score - estimate.low) for estimate in estimates]
            above = [max(0.0, estimate.high - estimate.score) for estimate in estimates]
            style: Any = {"marker": "o", "capsize": 4, "color": COLOURS[0]}
            axes.errorbar(millions, scores, [below, above], **style)

            # Label the sizes alone: a short logarithmic axis would label minor ticks, too
            labels = [f"{size:g}" for size in millions]
            axes.set(title=name, xscale="log", xticks=millions, xticklabels=labels)
            axes.tick_params(axis="x", which="minor", labelbottom=False)
        panels[-1].set(xlabel="parameters of the language model, millions")

    return draw_picture(draw, (7, 2 * len(columns)), "svg", rows=len(columns)).decode()
