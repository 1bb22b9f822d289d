"""Every SentEval task at hand for one encoder in one table: python -m benchmarks.papers.declutr.senteval --out FILE

all-MiniLM-L6-v2 as the benchmarks of the evaluation measured it and keep it: test scores and CPU seconds of all tasks
(``benchmarks.evaluation.cost``), what the regularisation was chosen by (``benchmarks.evaluation.probes``).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.papers.result import Measured
from eval.tasks.registry import GROUPS, TASKS
from eval.tasks.transfer import VALIDATION
from hub import cli
from hub.contract.measured import write_json
from hub.training_value import Estimate

KEPT = Path("benchmarks/results")
SCORE, CHOSEN, SECONDS = "score x 100", "validation x 100", "CPU seconds"
NOT_AT_HAND = "python -m eval.run --model MODEL --tasks {tasks} --senteval-data DIR"

app = cli.new_app(__doc__)


@app.command(no_args_is_help=False)
def main(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSON file")],
    kept: Annotated[Path, typer.Option("--kept", metavar="DIR", help="evaluation.json and probes.json")] = KEPT,
) -> None:
    """Put what is kept of an encoder into one table, and name what could not be run.

    Examples:

      python -m benchmarks.papers.declutr.senteval --out /tmp/senteval.json
    """
    read = {name: json.loads((kept / f"{name}.json").read_text(encoding="utf-8")) for name in ("evaluation", "probes")}
    write_json(out, measured(read["evaluation"]["suite"], read["probes"]["tasks"]))
    cli.say(f"written: {out}")


def measured(suite: Mapping[str, Any], probes: Mapping[str, Any]) -> Measured:
    """A row for each task of SentEval that was measured; tasks that were not, and their command, in notes."""
    wanted = list(GROUPS["papers"] + GROUPS["transfer-lbfgs"] + GROUPS["probing-lbfgs"])
    there = {one["task"]: one for one in suite["tasks"]}
    rows = {}
    for task in dict.fromkeys(wanted):
        if task.name not in there:
            continue
        found = there[task.name]
        row = {SCORE: plain(found["score"])}
        if task.mode and task.dataset in probes:
            row[CHOSEN] = plain(probes[task.dataset][task.mode]["dev_accuracy"])
        rows[task.name] = row | {SECONDS: plain(found["cost"]["cpu_s"])}
    lacking = [task.name for task in dict.fromkeys(wanted) if task.name not in rows]
    encoding = suite["encoding"]["cpu_s"]
    notes = (
        f"Encoding the {suite['distinct']:,} distinct texts of all tasks took {encoding:,.0f} CPU seconds, which are "
        "in no row: a text is encoded once, whatever the number of its tasks.",
        f"Not run, because their data are not at hand ({len(lacking)} tasks): "
        f"`{NOT_AT_HAND.format(tasks=','.join(lacking))}`.",
    )
    assert all(name + VALIDATION in TASKS for name, row in rows.items() if CHOSEN in row)
    return Measured(rows=rows, notes=notes)


def plain(value: float) -> Estimate:
    """A number for which no interval is kept."""
    return Estimate(score=value, low=value, high=value)


if __name__ == "__main__":
    cli.run(app)
