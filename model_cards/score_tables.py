"""The tables of a model's scores: after training beside before, the paper's number, and the spread over trainings."""

from dataclasses import dataclass
from typing import Any

from hub.repeats import Repeats, Summary
from hub.results import Gain, Results, TaskScore
from model_cards.escape import Markdown, code, table
from model_cards.papers import PaperRow
from model_cards.score_families import Family, families, in_order, title

NOT_RUN = "not run"
NO_INTERVAL = "no interval"
OTHER_METRIC = "other metric"


@dataclass(frozen=True)
class FamilyTable:
    """One family's scores as a table; ``title`` is plain text."""

    title: str
    table: Markdown


def score_tables(results: Results, row: PaperRow | None = None, trained: bool = True) -> list[FamilyTable]:
    """A table a family: every score, of a trained encoder beside the untrained base's, and beside the paper's."""
    before = {(score.task, score.split): score for score in results.base_scores}
    gains = {(gain.task, gain.split): gain for gain in results.gains}

    def middle(score: TaskScore) -> list[Markdown]:
        if not trained:
            return [_score(score)]
        key = score.task, score.split
        return [_score(before.get(key)), _score(score), _gain(before.get(key), score, gains.get(key))]

    header = ["before training", "after training", "gain"] if trained else ["score"]
    return [
        FamilyTable(
            family.title,
            table(
                ["task", "split", family.unit or "rows", *header, *(["paper"] if _has_paper(family, row) else [])],
                [
                    [code(score.task), score.split, _rows(score, family), *middle(score), *_paper(score, family, row)]
                    for score in family.scores
                ],
            ),
        )
        for family in families(results.scores)
    ]


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
        (
            score.task.partition("/")[0] if score.task.partition("/")[0] != "mteb" else score.task,
            score.split,
            name,
            part,
        )
        for score in results.scores
        for name, part in score.parts.items()
    }
    listed = sorted(parts, key=lambda found: found[:3])
    rows: list[list[Any]] = [
        [code(place), split, name, part.n, Markdown(f"{part.score:.2f}")] for place, split, name, part in listed
    ]
    return table(["data set", "split", "part", "rows", "score"], rows) if rows else None


def repeat_tables(repeats: Repeats, results: Results | None = None) -> list[FamilyTable]:
    """The scores of several trainings of the recipe: mean, sample standard deviation, the worst and the best.

    ``results`` tell the metric of a task, where they have it.
    """
    metrics = {score.task: score.main_metric for score in results.scores} if results else {}
    found = {one.task: title(one.task, metrics.get(one.task, OTHER_METRIC)) for one in repeats.summaries}
    header = ["task", "split", "trainings", "mean ± sd", "worst to best"]
    return [
        FamilyTable(name, table(header, [_repeated(one) for one in repeats.summaries if found[one.task] == name]))
        for name in in_order(found.values())
    ]


def _repeated(one: Summary) -> list[Any]:
    sd = "" if one.sd is None else f" ± {one.sd:.2f}"
    spread = Markdown(f"{one.low:.2f} to {one.high:.2f}")
    return [code(one.task), one.split, one.runs, Markdown(f"{one.mean:.2f}{sd}"), spread]


def _rows(score: TaskScore, family: Family) -> int | str:
    return score.n if family.unit else f"{score.n:,} {score.unit}"


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


def _has_paper(family: Family, row: PaperRow | None) -> bool:
    return row is not None and any(row.score(score) is not None for score in family.scores)


def _paper(score: TaskScore, family: Family, row: PaperRow | None) -> list[Markdown]:
    return [_number(row.score(score))] if row and _has_paper(family, row) else []


def _number(value: float | None) -> Markdown:
    return Markdown("" if value is None else f"{value:.2f}")
