"""The scores of an encoder as a report tells them: the headline, the tables and the marks of a chart."""

from collections.abc import Callable

from eval.tasks.registry import averages
from hub.contract.results import Gain, Results, TaskScore, by_task
from sts_dino.report.charts import Mark
from sts_dino.report.collect import CONTROL, TRAINED, UNTRAINED
from sts_dino.report.tables import SPACE, Table, interval, signed

NO_INTERVAL = "no interval"


def headline(results: Results) -> TaskScore | None:
    """The score that a summary tells: the first of a test split, else the first."""
    tested = [score for score in results.scores if score.split in ("test", "all")]
    return next(iter((*tested, *results.scores)), None)


def scores(results: Results, trained: bool) -> Table:
    """Every task: before, copies control and after with their intervals, and both differences."""
    before, control = by_task(results.base_scores), by_task(results.control_scores)
    gains, over = by_task(results.gains), by_task(results.over_control)
    columns: list[tuple[str, Callable[[TaskScore], str]]] = [
        *([(UNTRAINED, lambda one: _score(before.get(_key(one))))] if before else []),
        *([(CONTROL, lambda one: _score(control.get(_key(one))))] if control else []),
        (TRAINED if trained else "score", _score),
        *([("over untrained", lambda one: _gain(gains.get(_key(one))))] if gains else []),
        *([("over the control", lambda one: _gain(over.get(_key(one))))] if over else []),
    ]
    what = [f"{one.task} {one.split} ({one.main_metric}, {one.n:,} {one.unit})" for one in results.scores]
    rows = [[task, *(told(one) for _, told in columns)] for task, one in zip(what, results.scores, strict=True)]
    return Table(["task", *(name for name, _ in columns)], rows)


def average_scores(results: Results) -> Table | None:
    """The papers' averages whose tasks are all there; the same means of the untrained encoder and of the control."""
    sides = {UNTRAINED: averages(results.base_scores), CONTROL: averages(results.control_scores)}
    sides = {name: of for name, of in sides.items() if of}
    if not results.averages:
        return None
    rows = []
    for one in results.averages:
        others = [next((f"{of.score:.2f}" for of in side if of.name == one.name), "") for side in sides.values()]
        rows.append([one.name, one.definition, str(len(one.tasks)), *others, f"{one.score:.2f}"])
    return Table(["average", "of what", "tasks", *sides, TRAINED], rows, words=(0, 1))


def marks(results: Results) -> list[tuple[str, list[Mark]]]:
    """The scores of each task as marks of a chart."""
    sides = [(UNTRAINED, by_task(results.base_scores)), (CONTROL, by_task(results.control_scores))]
    sides.append((TRAINED, by_task(results.scores)))
    return [
        (
            f"{one.task} {one.split}",
            [
                Mark(name, kind, of[_key(one)].main_score, of[_key(one)].interval())
                for kind, (name, of) in enumerate(sides)
                if _key(one) in of
            ],
        )
        for one in results.scores
    ]


def _key(score: TaskScore) -> tuple[str, str]:
    return score.task, score.split


def _score(score: TaskScore | None) -> str:
    if score is None:
        return "not run"
    around = score.interval()
    return (
        f"{score.main_score:.1f}{SPACE}[{interval(*around)}]" if around else f"{score.main_score:.1f} ({NO_INTERVAL})"
    )


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return NO_INTERVAL
    verdict = f" {gain.verdict}" if gain.verdict else ""
    return f"{signed(gain.difference)}{SPACE}[{signed(gain.low)},{SPACE}{signed(gain.high)}]{verdict}"
