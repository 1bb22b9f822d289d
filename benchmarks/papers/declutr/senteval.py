"""Every SentEval task at hand for one encoder, in one table: python -m benchmarks.papers.declutr.senteval FILE

FILE is what ``eval.run`` wrote of it. Each task's test score has its interval, the accuracy on validation that its
regularisation was chosen by, and the seconds of encoding and of its probes.
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.papers.result import Measured
from eval.tasks.registry import GROUPS, TASKS
from eval.tasks.transfer import VALIDATION
from hub import cli
from hub.contract.measured import Estimate, write_json
from hub.contract.results import Results, TaskScore, read_results

SCORE, CHOSEN = "score x 100", "validation x 100"
PARTS = ("encoding", "probing")
NOT_AT_HAND = "python -m eval.run --model MODEL --tasks {tasks} --senteval-data DIR"

app = cli.new_app(__doc__)


@app.command()
def main(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="results.json of an evaluation")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
) -> None:
    """Put the scores of an encoder into one table, and name what could not be run.

    Examples:

      python -m benchmarks.papers.declutr.senteval artifacts/evaluations/A/results.json --out /tmp/senteval.json
    """
    write_json(out, measured(read_results(results)))
    cli.say(f"written: {out}")


def measured(results: Results) -> Measured:
    """A row for each task of SentEval that was scored; tasks that were not, and their command, in notes."""
    wanted = list(dict.fromkeys(GROUPS["papers"] + GROUPS["transfer-lbfgs"] + GROUPS["probing-lbfgs"]))
    there = {one.task: one for one in results.scores}
    rows = {}
    for task in wanted:
        if task.name not in there:
            continue
        row = {SCORE: estimate(there[task.name])}
        if task.name + VALIDATION in there:
            row[CHOSEN] = estimate(there[task.name + VALIDATION])
        spent = there[task.name].seconds
        took = {f"{part}, seconds": plain(spent[part]) for part in PARTS if part in spent}
        rows[task.name] = row | took
    lacking = [task.name for task in wanted if task.name not in rows]
    notes = (
        "A text is encoded once, whatever the number of its tasks; the seconds are those of a task's texts.",
        f"Not run, because their data are not at hand ({len(lacking)} tasks): "
        f"`{NOT_AT_HAND.format(tasks=','.join(lacking))}`.",
    )
    assert all(name + VALIDATION in TASKS for name, row in rows.items() if CHOSEN in row)
    return Measured(rows=rows, notes=notes)


def estimate(score: TaskScore) -> Estimate:
    """A score with its interval, where it has one."""
    if score.low is None or score.high is None:
        return plain(score.main_score)
    return Estimate(score=score.main_score, low=score.low, high=score.high)


def plain(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(score=value, low=value, high=value)


if __name__ == "__main__":
    cli.run(app)
