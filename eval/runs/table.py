"""Results as plain tables: scores beside those of base and baseline, or with what they cost."""

from eval.tasks.registry import averages
from hub import scores as shown
from hub.cli import aligned
from hub.contract.results import RULE, Results, TaskScore, by_task

BESIDE = ("pearson", "f1")  # metrics that papers report next to a task's main one


def table(results: Results, start: str = "base encoder") -> str:
    """Scores with 95 % intervals in brackets, one line a task or average; a dash where something is not there.

    With a base or a SimCSE baseline, their scores stand beside, and a second table has the differences; else a line
    ends with further metrics and the seconds that probes took. Below: how each average is defined, and notes.
    ``start``: what the base is called.
    """
    compared = bool(results.control_scores) or any(before for before, _ in results.pairs_of_scores())
    parts = [aligned(rows) for rows in (_compared(results, start) if compared else [_alone(results)])]
    lines = ["\n\n".join(parts), *_notes(results), *filter(None, [shown.elsewhere(results, start)])]
    if results.averages:
        lines += ["", *(f"{item.name}: {item.definition}" for item in results.averages)]
    return "\n".join(lines)


def _alone(results: Results) -> list[tuple[str, ...]]:
    """The scores of one encoder with other metrics and seconds; averages have no interval."""
    rows: list[tuple[str, ...]] = [("task", "split", "metric", "rows", "score", "also", "probing s")]
    for one in results.scores:
        also = ", ".join(f"{name} {shown.number(one.other[name])}" for name in BESIDE if name in one.other)
        seconds = f"{one.seconds['probing']:.1f}" if "probing" in one.seconds else shown.ABSENT
        score = shown.score(one)
        rows.append((one.task, one.split, one.main_metric, _rows(one), score, also or shown.ABSENT, seconds))
    for item in results.averages:
        count, score = f"{len(item.tasks)} tasks", shown.number(item.score)
        rows.append((item.name, "", "mean", count, score, shown.ABSENT, shown.ABSENT))
    return rows


def _compared(results: Results, start: str) -> list[list[tuple[str, ...]]]:
    """Two tables: the scores of base, baseline and encoder, and the encoder's differences to the two."""
    pairs, gains = results.pairs_of_scores(), by_task(results.gains)
    control, over = by_task(results.control_scores), by_task(results.over_control)
    has_base = any(before for before, _ in pairs)

    def beside(first: str, second: str) -> tuple[str, ...]:
        return (*((first,) if has_base else ()), *((second,) if control else ()))

    def more(value: float, than: float | None) -> str:
        return shown.number(None if than is None else value - than, signed=True)

    scores = [("task", "split", "rows", *beside(start, "SimCSE baseline"), "trained" if has_base else "score")]
    differences = [("task", "split", "metric", *beside("gain", "over SimCSE"))]
    for before, after in pairs:
        key = after.task, after.split
        around = beside(shown.score(before), shown.score(control.get(key)))
        scores.append((*key, _rows(after), *around, shown.score(after)))
        found = beside(shown.difference(gains.get(key)), shown.difference(over.get(key)))
        differences.append((*key, after.main_metric, *found))
    of_base = {one.name: one.score for one in averages(results.base_scores)}
    of_control = {one.name: one.score for one in averages(results.control_scores)}
    for item in results.averages:  # no intervals
        first, second = of_base.get(item.name), of_control.get(item.name)
        means = (*beside(shown.number(first), shown.number(second)), shown.number(item.score))
        scores.append((item.name, "", f"{len(item.tasks)} tasks", *means))
        differences.append((item.name, "", "mean", *beside(more(item.score, first), more(item.score, second))))
    return [scores, differences]


def _rows(score: TaskScore) -> str:
    return f"{score.n} {score.unit}" + (" drawn" if score.limit else "")


def _notes(results: Results) -> list[str]:
    """The verdicts' rule, that only a part was scored, and scores made with other libraries."""
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
