"""The tables of a model's scores: after training beside before, the paper's number, and the spread over trainings."""

from typing import Any

from hub.repeats import Repeats
from hub.results import Gain, Results, TaskScore
from model_cards.escape import Markdown, code, table
from model_cards.papers import PaperRow

NOT_RUN = "not run"


def score_table(results: Results, row: PaperRow | None = None) -> Markdown:
    """Every score after training beside that of the untrained base under the same protocol, and beside the paper's."""
    gains = {(gain.task, gain.split): gain for gain in results.gains}
    rows: list[list[Any]] = [
        [
            code(after.task),
            after.split,
            after.n,
            _score(before),
            _score(after),
            _gain(gains.get((after.task, after.split))),
            *_paper(after, row),
        ]
        for before, after in results.pairs_of_scores()
    ]
    header = ["task", "split", "pairs", "before training", "after training", "gain"]
    return table([*header, *(["paper"] if row else [])], rows)


def baseline_table(results: Results, row: PaperRow | None = None) -> Markdown:
    """The scores of an encoder that was not trained here."""
    rows: list[list[Any]] = [
        [code(score.task), score.split, score.n, _score(score), *_paper(score, row)] for score in results.scores
    ]
    return table(["task", "split", "pairs", "score", *(["paper"] if row else [])], rows)


def repeat_table(repeats: Repeats) -> Markdown:
    """The scores of several trainings of the recipe: mean, sample standard deviation, the worst and the best."""
    rows: list[list[Any]] = []
    for found in repeats.summaries:
        sd = "" if found.sd is None else f" ± {found.sd:.2f}"
        told = Markdown(f"{found.mean:.2f}{sd}")
        rows.append([code(found.task), found.split, found.runs, told, Markdown(f"{found.low:.2f} to {found.high:.2f}")])
    return table(["task", "split", "trainings", "mean ± sd", "worst to best"], rows)


def _score(score: TaskScore | None) -> Markdown:
    if score is None:
        return Markdown(NOT_RUN)
    around = score.interval()
    told = f"{around[0]:.2f} to {around[1]:.2f}" if around else "no interval"
    return Markdown(f"{score.main_score:.2f} ({told})")


def _paper(score: TaskScore, row: PaperRow | None) -> list[Markdown]:
    if row is None:
        return []
    told = row.score(score)
    return [Markdown("" if told is None else f"{told:.2f}")]


def _gain(gain: Gain | None) -> Markdown:
    if gain is None:
        return Markdown(NOT_RUN)
    return Markdown(f"{gain.difference:+.2f} ({gain.low:+.2f} to {gain.high:+.2f})")
