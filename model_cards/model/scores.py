"""The tables of a model's scores: after training beside before, the paper's number, and the spread over trainings."""

from typing import Any

from hub.contract.measured import Repeats, Summary
from hub.contract.results import Gain, Results, TaskScore, by_task
from hub.untrusted import Markdown, code, table
from model_cards.model.families import families, in_order, title
from model_cards.model.papers import PaperRow

NOT_RUN = "not run"
NO_INTERVAL = "no interval"
OTHER_METRIC = "other metric"


def score_tables(results: Results, row: PaperRow | None = None, trained: bool = True) -> dict[str, Markdown]:
    """Title → table of a family: every score, of a trained encoder beside the untrained base's, beside the paper's."""
    told = families(results.scores)
    return {name: _family_table(scores, results, row, trained) for name, scores in told.items()}


def _family_table(scores: list[TaskScore], results: Results, row: PaperRow | None, trained: bool) -> Markdown:
    before, gains = by_task(results.base_scores), by_task(results.gains)
    control, over = by_task(results.control_scores), by_task(results.over_control)
    units = {score.unit for score in scores}
    papers = [row.score(score) if row else None for score in scores]
    in_paper = any(paper is not None for paper in papers)
    header = ["task", "split", *(units if len(units) == 1 else ["rows"])]
    header += ["before training", "after training", "gain"] if trained else ["score"]
    header += ["copies control", "over the control"] if control else []
    rows: list[list[Any]] = []
    for score, paper in zip(scores, papers, strict=True):
        counted = score.n if len(units) == 1 else f"{score.n:,} {score.unit}"
        key = score.task, score.split
        measured = [_score(score)]
        if trained:
            measured = [_score(before.get(key)), _score(score), _gain(before.get(key), score, gains.get(key))]
        if control:
            measured += [_score(control.get(key)), _gain(control.get(key), score, over.get(key))]
        rows.append([code(score.task), score.split, counted, *measured, *([_number(paper)] if in_paper else [])])
    return table([*header, *(["paper"] if in_paper else [])], rows)


def average_table(results: Results, row: PaperRow | None = None) -> Markdown | None:
    """The papers' averages by name with their definitions; None when there is none."""
    told = row.averages if row else {}
    rows: list[list[Any]] = [
        [
            code(average.name),
            len(average.tasks),
            Markdown(f"{average.score:.2f}"),
            *([_number(told.get(average.name))] if told else []),
            average.definition,
        ]
        for average in results.averages
    ]
    header = ["average", "tasks", "score", *(["paper"] if told else []), "definition"]
    return table(header, rows) if rows else None


def part_table(results: Results) -> Markdown | None:
    """The parts of every task, e.g. STS subsets, once a data set; None when no task has parts."""
    parts = {
        (score.task if score.task.startswith("mteb/") else score.task.partition("/")[0], score.split, name, part)
        for score in results.scores
        for name, part in score.parts.items()
    }
    listed = sorted(parts, key=lambda found: found[:3])
    rows: list[list[Any]] = [
        [code(place), split, name, part.n, Markdown(f"{part.score:.2f}")] for place, split, name, part in listed
    ]
    return table(["data set", "split", "part", "rows", "score"], rows) if rows else None


def repeat_tables(repeats: Repeats, results: Results | None = None) -> dict[str, Markdown]:
    """Title → table of the scores of several trainings: mean, sample standard deviation, the worst and the best.

    ``results`` tell the metric of a task, where they have it.
    """
    told = {score.task: (score.main_metric, score.family) for score in results.scores} if results else {}
    found = {one.task: title(one.task, *told.get(one.task, (OTHER_METRIC, None))) for one in repeats.summaries}
    header = ["task", "split", "trainings", "mean ± sd", "worst to best"]
    return {
        name: table(header, [_repeated(one) for one in repeats.summaries if found[one.task] == name])
        for name in in_order(found.values())
    }


def _repeated(one: Summary) -> list[Any]:
    sd = "" if one.sd is None else f" ± {one.sd:.2f}"
    spread = Markdown(f"{one.low:.2f} to {one.high:.2f}")
    return [code(one.task), one.split, one.runs, Markdown(f"{one.mean:.2f}{sd}"), spread]


def _score(score: TaskScore | None) -> Markdown:
    if score is None:
        return Markdown(NOT_RUN)
    around = score.interval()
    told = f"{around[0]:.2f} to {around[1]:.2f}" if around else NO_INTERVAL
    return Markdown(f"{score.main_score:.2f} ({told})")


def _gain(before: TaskScore | None, after: TaskScore, gain: Gain | None) -> Markdown:
    if gain is not None:
        verdict = f", {gain.verdict}" if gain.verdict else ""
        return Markdown(f"{gain.difference:+.2f} ({gain.low:+.2f} to {gain.high:+.2f}){verdict}")
    if before is None:
        return Markdown(NOT_RUN)
    return Markdown(f"{after.main_score - before.main_score:+.2f} ({NO_INTERVAL})")


def _number(value: float | None) -> Markdown:
    return Markdown("" if value is None else f"{value:.2f}")
