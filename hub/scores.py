"""Scores (x 100) as text for cards, reports, comparisons and the terminal; aligned columns."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import ceil, floor, hypot, inf, log10
from statistics import NormalDist, fmean

from sts_dino.hub.contract.recipe import START_OF_FINISHED_ENCODER
from sts_dino.hub.contract.results import Gain, Results, TaskScore, map_by_task

ABSENT = "-"
NO_INTERVAL = "no interval"
MOST_LISTED_TASKS = 2  # of a family; ``describe_public_gains`` gives the mean of more tasks
FEW_ROWS = 30  # fewer pairs or queries show neither small differences nor a reliable interval
OWN_PROTOCOL = "own "  # first characters of the protocol of a task on a user's own files
MOST_NEEDED_ROWS = 100_000  # nobody judges more
# half the width of a 95 % interval, in standard errors: 1.96
INTERVAL_ERRORS = NormalDist().inv_cdf(0.975)
# the true difference that a two-sided test at the 5 % level finds with a power of 80 %, in standard
# errors: 2.80
RESOLVED_ERRORS = INTERVAL_ERRORS + NormalDist().inv_cdf(0.8)


def format_number(value: float | None, signed: bool = False) -> str:
    """Return a score or a difference with two decimals, with ``+`` if ``signed``; None: a dash."""
    if value is None:
        return ABSENT
    return f"{value:+.2f}" if signed else f"{value:.2f}"


def format_interval(low: float, high: float, signed: bool = False) -> str:
    """Return a 95 % interval in brackets, ``[69.12, 71.12]``; with ``+`` if ``signed``."""
    return f"[{format_number(low, signed)}, {format_number(high, signed)}]"


def format_score(task: TaskScore | None) -> str:
    """Return a score with its interval, ``70.12 [69.12, 71.12]``; a dash without the task."""
    if task is None:
        return ABSENT
    ends = task.interval()
    interval = format_interval(*ends) if ends else f"[{NO_INTERVAL}]"
    return f"{format_number(task.main_score)} {interval}"


def format_difference(gain: Gain | None) -> str:
    """Return a paired difference with interval and verdict, ``+1.00 [+0.10, +1.90] better``.

    None as ``gain`` gives a dash; a gain without a verdict gives none.
    """
    if gain is None:
        return ABSENT
    difference = format_number(gain.difference, signed=True)
    verdict = f" {gain.verdict}" if gain.verdict else ""
    return f"{difference} {format_interval(gain.low, gain.high, signed=True)}{verdict}"


def compute_resolution(low: float, high: float) -> float:
    """Return the smallest difference, in points, that the rows of an interval can show.

    Of true differences of this size, 80 % get a p-value below 0.05 in a two-sided test. The
    standard error is that of a normal distribution with the 95 % interval.

    ``low``, ``high``: the paired 95 % interval of a difference on these rows, in points.
    """
    return RESOLVED_ERRORS * (high - low) / (2 * INTERVAL_ERRORS)


def compute_needed_rows(gain: Gain, rows: int) -> float:
    """Return the number of rows that make a gain significant; infinite for a gain of 0.

    The power is 80 %, as in ``compute_resolution``. The result rests on three assumptions:

    - The true difference is the measured one.
    - Further rows resemble the measured ones, so the width of the interval shrinks with the square
      root of their number.
    - No other task is tested: with Holm's method more rows are needed.

    ``rows``: the number of rows that the gain's interval is from.
    """
    if gain.difference == 0:
        return inf
    return rows * (compute_resolution(gain.low, gain.high) / gain.difference) ** 2


def describe_power(gain: Gain, score: TaskScore) -> str:
    """Describe how many rows would make a gain significant, as part of a sentence.

    A gain near 0 is described by the smallest difference that the rows can show.

    Args:
        gain: the gain of an encoder over another one.
        score: the encoder's score on the same rows.

    Returns:
        The text; empty for a significant or untested gain, and for an interval of width 0. Empty,
        too, where the rows are enough by ``compute_needed_rows``: the correction for other tasks,
        or a skewed interval, then hides the gain.
    """
    if gain.verdict != "not significant" or gain.high <= gain.low:
        return ""
    needed = compute_needed_rows(gain, score.n)
    if needed <= score.n:
        return ""
    about = "about" if score.n >= FEW_ROWS else "very roughly"
    difference = format_number(gain.difference, signed=True)
    if needed > MOST_NEEDED_ROWS or float(difference) == 0:
        resolution = format_number(compute_resolution(gain.low, gain.high))
        return (
            f"{score.n:,} judged {score.unit} can show a difference of {about} {resolution} "
            "(80 % power); the one seen is smaller"
        )
    return (
        f"a difference of {difference} needs {about} {_round_up(needed):,} judged {score.unit} to "
        f"be significant (80 % power); there are {score.n:,}"
    )


def _round_up(number: float) -> int:
    """Round a number of 1 or more up to two significant digits, below 10 to a whole number."""
    unit = 10 ** max(0, floor(log10(number)) - 1)
    return ceil(number / unit) * unit


def describe_own_power(gains: Sequence[Gain], scores: Sequence[TaskScore]) -> list[str]:
    """Describe the power of each gain on a user's own files, with the name of the task.

    Gains without a description (``describe_power``) are left out, and so is the recall of a search,
    because its nDCG is described. The order is that of ``scores``.

    Args:
        gains: the gains of an encoder over another one.
        scores: the encoder's scores, at least of the tasks of the gains.
    """
    gains_by_task = map_by_task(gains)
    sentences = []
    for score in scores:
        gain = gains_by_task.get((score.task, score.split))
        if gain is None or not is_own_score(score) or score.main_metric == "recall@10":
            continue
        power = describe_power(gain, score)
        if power:
            sentences.append(f"{score.task}: {power}")
    return sentences


def is_own_score(score: TaskScore) -> bool:
    """Return whether a score is of a user's own files."""
    return score.protocol.startswith(OWN_PROTOCOL)


def compute_mean_gain(gains: Sequence[Gain]) -> tuple[float, float, float]:
    """Return the mean gain and the lower and upper end of its 95 % interval, in points.

    The interval is computed from the tasks' own intervals. The distances of a gain to both ends of
    its interval are divided by the number of gains, and added within a data set, whose tasks are
    taken as fully dependent. Over data sets, which are taken as independent, the result is the root
    of the sum of squares.

    ``gains``: at least one gain. The first part of a task's name, before ``/``, is its data set.
    """
    mean = fmean(gain.difference for gain in gains)
    below: dict[str, float] = defaultdict(float)
    above: dict[str, float] = defaultdict(float)
    for gain in gains:
        dataset = gain.task.partition("/")[0]
        below[dataset] += (gain.difference - gain.low) / len(gains)
        above[dataset] += (gain.high - gain.difference) / len(gains)
    return mean, mean - hypot(*below.values()), mean + hypot(*above.values())


def describe_public_gains(results: Results, start: str) -> str:
    """Return a sentence part with an encoder's gains over its base on public tasks.

    A family of at most ``MOST_LISTED_TASKS`` tasks is listed task by task. A larger family is given
    by the mean difference and the names of the tasks with a significant loss.

    Args:
        results: the encoder's results, with its paired differences to the base.
        start: the name of the base before training (``Encoder.start``).

    Returns:
        The text; empty without gains on public tasks, and when the base is not a finished encoder
        (``start`` is not ``START_OF_FINISHED_ENCODER``).
    """
    if start != START_OF_FINISHED_ENCODER:
        return ""
    # Group the gains by family, without those on a user's own files.
    gains_by_task = map_by_task(results.gains)
    families: dict[str, list[Gain]] = {}
    for score in results.scores:
        gain = gains_by_task.get((score.task, score.split))
        if gain is not None and not is_own_score(score):
            families.setdefault(score.family or "STS", []).append(gain)

    # Describe a small family by its tasks, a large one by its mean.
    parts: list[str] = []
    for family, gains in families.items():
        if len(gains) <= MOST_LISTED_TASKS:
            parts += [f"{gain.task} {gain.split} {format_difference(gain)}" for gain in gains]
        else:
            parts.append(f"mean of {len(gains)} {family} tasks {_describe_mean(gains)}")
    if not parts:
        return ""
    return f"elsewhere, over the encoder {start}: {'; '.join(parts)}"


def _describe_mean(gains: Sequence[Gain]) -> str:
    """Return the mean gain with its interval, and the tasks with a significant loss."""
    mean, low, high = compute_mean_gain(gains)
    interval = format_interval(low, high, signed=True)
    worse_tasks = [gain.task for gain in gains if gain.verdict == "worse"]
    worse = ", ".join(worse_tasks) or "none of them"
    return f"{format_number(mean, signed=True)} {interval}, significantly worse on {worse}"


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table as text for a terminal: columns padded to their longest cell, 2 blanks apart.

    Args:
        rows: the header and the rows, all with the same number of cells.
        right: the indices of right-aligned columns, from 0; the other columns are left-aligned.

    Raises:
        ValueError: two rows differ in length.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cells.append(cell.rjust(width) if number in right else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
