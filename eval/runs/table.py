"""Results as a plain table for people: score, cost and, where they are, those of base and control."""

from eval.tasks.averages import averages
from hub.cli import aligned
from hub.contract.results import RULE, Gain, Results, TaskScore, by_task

FIXED = ("task", "split", "metric", "rows")
BESIDE = ("pearson", "f1")  # metrics that papers report next to a task's main one
COSTS = ("encoding", "probing")


def table(results: Results) -> str:
    """One line a task or average; 95 % intervals in brackets, seconds last, a dash where something is not there.

    What each average is the mean of stands below.
    """
    pairs, gains = results.pairs_of_scores(), by_task(results.gains)
    control, over = by_task(results.control_scores), by_task(results.over_control)
    has_base = any(before for before, _ in pairs)
    named: tuple[str, ...] = ("before", "after", "gain") if has_base else ("score",)
    named += ("copies control", "over control") if control else ()
    rows = [(*FIXED, *named, "also", *(f"{cost} s" for cost in COSTS))]
    for before, after in pairs:
        key = after.task, after.split
        middle: tuple[str, ...] = (
            (_score(before), _score(after), _gain(gains.get(key))) if has_base else (_score(after),)
        )
        middle += (_score(control.get(key)), _gain(over.get(key))) if control else ()
        costs = (_seconds(after, cost) for cost in COSTS)
        also = ", ".join(f"{name} {after.other[name]:.2f}" for name in BESIDE if name in after.other) or "-"
        number = f"{after.n} {after.unit}" + (" drawn" if after.limit else "")
        rows.append((after.task, after.split, after.main_metric, number, *middle, also, *costs))
    rows += _averages(results, has_base, bool(control))
    lines = [aligned(rows), *_notes(results)]
    if results.averages:
        lines += ["", *(f"{item.name}: {item.definition}" for item in results.averages)]
    return "\n".join(lines)


def _averages(results: Results, has_base: bool, has_control: bool) -> list[tuple[str, ...]]:
    """A row for each average, with the base's and the control's where all of its tasks have those; no intervals."""
    before = {one.name: one.score for one in averages(results.base_scores)}
    control = {one.name: one.score for one in averages(results.control_scores)}
    rows = list[tuple[str, ...]]()
    for item in results.averages:
        first, beside = before.get(item.name), control.get(item.name)
        middle: tuple[str, ...] = (_plain(item.score),)
        if has_base:
            middle = (_plain(first), _plain(item.score), _more(item.score, first))
        middle += (_plain(beside), _more(item.score, beside)) if has_control else ()
        rows.append((item.name, "", "mean", f"{len(item.tasks)} tasks", *middle, "-", *("-" for _ in COSTS)))
    return rows


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _more(value: float, than: float | None) -> str:
    return "-" if than is None else f"{value - than:+.2f}"


def _notes(results: Results) -> list[str]:
    """What is to be known of the scores: the verdicts' rule, that only a part was scored, and with other libraries."""
    notes = [RULE] if any(gain.verdict for gain in (*results.gains, *results.over_control)) else []
    if results.limit:
        notes.append(f"{results.limit}: a trial, no scores of the tasks")
    others: dict[str, list[str]] = {}
    for score in results.scores:
        if score.versions:
            made = ", ".join(f"{name} {version}" for name, version in score.versions.items())
            others.setdefault(made, []).append(f"{score.task} {score.split}")
    notes += [f"made with {made}: {', '.join(tasks)}" for made, tasks in others.items()]
    return ["", *notes] if notes else []


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return "-"
    shown = f"{gain.difference:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]"
    return shown + (f" {gain.verdict}" if gain.verdict else "")


def _score(score: TaskScore | None) -> str:
    if score is None:
        return "-"
    around = score.interval()
    return f"{score.main_score:.2f} " + (f"[{around[0]:.2f}, {around[1]:.2f}]" if around else "[no interval]")


def _seconds(score: TaskScore, cost: str) -> str:
    return f"{score.seconds[cost]:.1f}" if cost in score.seconds else "-"
