"""Results as plain tables for people: scores beside those of base and control, or with what they cost."""

from eval.tasks.registry import averages
from hub.cli import aligned
from hub.contract.results import RULE, Gain, Results, TaskScore, by_task

BESIDE = ("pearson", "f1")  # metrics that papers report next to a task's main one
COSTS = ("encoding", "probing")


def table(results: Results) -> str:
    """Scores with 95 % intervals in brackets, one line a task or average; a dash where something is not there.

    Where there is a base or a copies control, their scores stand beside, and a second table has the differences, so
    that a line fits a screen; else a line ends with further metrics and seconds. What each average is the mean of, and
    what is to be known of the scores, stands below.
    """
    compared = bool(results.control_scores) or any(before for before, _ in results.pairs_of_scores())
    parts = [aligned(rows) for rows in (_compared(results) if compared else [_alone(results)])]
    lines = ["\n\n".join(parts), *_notes(results)]
    if results.averages:
        lines += ["", *(f"{item.name}: {item.definition}" for item in results.averages)]
    return "\n".join(lines)


def _alone(results: Results) -> list[tuple[str, ...]]:
    """The scores of one encoder with other metrics and seconds; averages have no interval."""
    rows = [("task", "split", "metric", "rows", "score", "also", *(f"{cost} s" for cost in COSTS))]
    for score in results.scores:
        also = ", ".join(f"{name} {score.other[name]:.2f}" for name in BESIDE if name in score.other) or "-"
        costs = (_seconds(score, cost) for cost in COSTS)
        rows.append((score.task, score.split, score.main_metric, _rows(score), _score(score), also, *costs))
    for item in results.averages:
        rows.append((item.name, "", "mean", f"{len(item.tasks)} tasks", _plain(item.score), "-", *("-" for _ in COSTS)))
    return rows


def _compared(results: Results) -> list[list[tuple[str, ...]]]:
    """Two tables: the scores of base, copies control and encoder, and the encoder's differences to the two."""
    pairs, gains = results.pairs_of_scores(), by_task(results.gains)
    control, over = by_task(results.control_scores), by_task(results.over_control)
    has_base = any(before for before, _ in pairs)

    def beside(first: str, second: str) -> tuple[str, ...]:
        return (*((first,) if has_base else ()), *((second,) if control else ()))

    scores = [("task", "split", "rows", *beside("before", "copies control"), "after" if has_base else "score")]
    differences = [("task", "split", "metric", *beside("gain", "over control"))]
    for before, after in pairs:
        key = after.task, after.split
        scores.append((*key, _rows(after), *beside(_score(before), _score(control.get(key))), _score(after)))
        differences.append((*key, after.main_metric, *beside(_gain(gains.get(key)), _gain(over.get(key)))))
    of_base = {one.name: one.score for one in averages(results.base_scores)}
    of_control = {one.name: one.score for one in averages(results.control_scores)}
    for item in results.averages:  # where all of its tasks have those; no intervals
        first, second = of_base.get(item.name), of_control.get(item.name)
        number = f"{len(item.tasks)} tasks"
        scores.append((item.name, "", number, *beside(_plain(first), _plain(second)), _plain(item.score)))
        differences.append((item.name, "", "mean", *beside(_more(item.score, first), _more(item.score, second))))
    return [scores, differences]


def _rows(score: TaskScore) -> str:
    return f"{score.n} {score.unit}" + (" drawn" if score.limit else "")


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
