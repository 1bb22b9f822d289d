"""Whether two workers write twice as fast as one: python -m benchmarks.scaling

The demo recipe (recipes/demo/sts-dino-x2.yaml, the built-in language model, one thread each) is written in one process,
with ``--workers 1`` and with ``--workers 2``, in turns, each time by a fresh process into an empty directory. The clock
runs from the first task to the last one taken in; starting Ray, loading the models and two shards a worker written in
vain come before it and are told apart. Rows per CPU-second count the CPU time of the driver, of Ray and of the workers:
on a shared machine they say more than the wall clock. Two plain processes that know nothing of each other, at the same
time, are what the machine itself allows: its cores share caches, memory and perhaps more. So many tiny shards of a tiny
random model follow, in one process and on one Ray worker: what Ray adds to a shard.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from transformers.utils import logging as transformers_logging

from benchmarks.many_shards import one_shard_per_text
from benchmarks.metered_crew import Metered, crew_of, metered
from benchmarks.throughput.worker import hardware
from generation.job import generate
from hub import cli, run_dir
from hub.errors import InputError, RunError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.shards import write_text

app = cli.new_app(__doc__)
RECIPE = Path("recipes/demo/sts-dino-x2.yaml")
WAYS = {"one process": 0, "1 worker": 1, "2 workers": 2}
APART = "two processes apart"  # at the same time, each with the whole recipe
TINY = {"one process": 0, "1 worker": 1}
WARM = 2  # shards a worker, written before the clock starts


@app.command(no_args_is_help=False)
def main(
    limit: Annotated[int, typer.Option(min=2, help="First texts of the demo recipe")] = 192,
    shard_size: Annotated[int, typer.Option(min=1, help="First texts of a shard")] = 3,
    tiny: Annotated[int, typer.Option(min=10, help="Tiny shards for Ray's overhead")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way takes its turn")] = 3,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/scaling.json"),
    stage: Annotated[str | None, typer.Option(hidden=True, help="One run: JSON of one_run's arguments")] = None,
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    if stage is not None:
        print(json.dumps(one_run(**json.loads(stage))), flush=True)
        return
    load = os.getloadavg()[0]  # of others: this command has not begun
    demo, small = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(rounds):
        demo.append(_round(WAYS | {APART: 0}, number, {"limit": limit, "shard_size": shard_size}))
        small.append(_round(TINY, number, {"tiny": tiny}))
    result = {
        "first_texts": limit,
        "shard_size": shard_size,
        "tiny_shards": tiny,
        "hardware": hardware("cpu"),
        "load_average_before": round(load, 2),
        "versions": {name: version(name) for name in ("torch", "transformers", "ray", "pyarrow")},
        "summary": {**{way: _rates([one[way] for one in demo]) for way in WAYS}, "speedup": speedup(demo)},
        "overhead_per_shard": overhead(small),
        "rounds": demo,
        "tiny_rounds": small,
    }
    write_text(out, json.dumps(result, indent=2) + "\n")
    print(table(result))
    cli.say(f"wrote {out}")


def _round(ways: dict[str, int], number: int, work: dict[str, int]) -> dict[str, Any]:
    """Every way once, in an order that turns with the rounds."""
    turns, done = list(ways), dict[str, Any]()
    for way in turns[number % len(turns) :] + turns[: number % len(turns)]:
        stage = json.dumps({"workers": ways[way], **work})
        with ThreadPoolExecutor(2) as beside:
            found = list(beside.map(_told, [stage] * (2 if way == APART else 1)))
        done[way] = found if way == APART else found[0]
        cli.say(f"round {number + 1}, {way}: {json.dumps(done[way])}")
    return done


def _told(stage: str) -> dict[str, Any]:
    """What a fresh process says of its run."""
    command = [sys.executable, "-m", "benchmarks.scaling", "--stage", stage]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - our own module
    if ended.returncode:
        raise RunError(f"benchmarks.scaling --stage {stage}", f"ended with exit code {ended.returncode}")
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def one_run(workers: int, limit: int = 0, shard_size: int = 0, tiny: int = 0) -> dict[str, Any]:
    """Write the demo recipe, or so many tiny shards, once; the sums over shards and groups."""
    started = time.perf_counter()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        recipe = one_shard_per_text(Path(folder), tiny) if tiny else demo_recipe(limit, shard_size)
        crews, directory = list[Metered](), Path(folder) / "run"
        hire = metered(crew_of(workers), crews.append, warm=WARM * max(1, workers), weigh=bool(tiny))
        with run_dir.locked(directory):
            generate(recipe, directory, "benchmark", hire)
    shards, groups = crews[0].shards, crews[0].groups
    return {
        "startup": shards.began - started,
        "seconds": shards.seconds,
        "shards": asdict(shards),
        "groups": asdict(groups),
    }


def demo_recipe(limit: int, shard_size: int) -> DatasetRecipe:
    """The demo recipe, shorter and in more shards. Raises InputError when it does not ask for one thread."""
    recipe = load_recipe(RECIPE, DatasetRecipe, [f"source.limit={limit}", f"shard_size={shard_size}"])
    if recipe.model.threads != 1:
        raise InputError(f"{RECIPE}: model.threads", f"is {recipe.model.threads}", allowed="1 for this benchmark")
    return recipe


def _rates(runs: list[dict[str, Any]]) -> dict[str, Any]:
    shards = [run["shards"] for run in runs]
    return {
        "startup_seconds": _spread([run["startup"] for run in runs]),
        "seconds": _spread([run["seconds"] for run in runs]),
        "rows_per_second": _spread([s["rows"] / run["seconds"] for s, run in zip(shards, runs, strict=True)]),
        "rows_per_cpu_second": _spread([one["rows"] / one["cpu"] for one in shards]),
        "finished_per_second": _spread([run["shards"]["rows"] / run["groups"]["worker"] for run in runs]),
    }


def speedup(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios within a round, and their medians over the rounds: of the wall clock, and of rows per CPU-second.

    Of two processes apart, the speeds count together.
    """

    def ratio(number: int, way: str, other: str) -> float:
        base, runs = rounds[number][other], rounds[number][way]
        return float(sum(base["seconds"] / run["seconds"] for run in (runs if way == APART else [runs])))

    def cpu(number: int, way: str, other: str) -> float:
        base, runs = rounds[number][other], rounds[number][way]
        each = [base["shards"]["cpu"] / run["shards"]["cpu"] for run in (runs if way == APART else [runs])]
        return float(statistics.mean(each))

    pairs = [("2 workers", "1 worker"), ("2 workers", "one process"), ("1 worker", "one process")]
    pairs.append((APART, "one process"))
    each = range(len(rounds))
    return {
        f"{way} / {other}": {
            "wall": _spread([ratio(number, way, other) for number in each]),
            "rows_per_cpu_second": _spread([cpu(number, way, other) for number in each]),
        }
        for way, other in pairs
    }


def overhead(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What one Ray worker adds to a tiny shard over one process, in milliseconds, and the bytes that move for it.

    ``wall`` is below zero where the driver's work, now beside the worker's, outweighs what Ray adds. ``waiting``: what
    the worker does not work, which in one process is the driver's time.
    """

    def added(of: Any) -> dict[str, float]:
        return _spread([1e3 * (of(one["1 worker"]) - of(one["one process"])) for one in rounds])

    last = rounds[-1]["1 worker"]["shards"]
    return {
        "wall_ms": added(lambda run: run["seconds"] / run["shards"]["done"]),
        "cpu_ms": added(lambda run: run["shards"]["cpu"] / run["shards"]["done"]),
        "waiting_ms": {
            way: _spread(
                [
                    1e3 * (one[way]["seconds"] - one[way]["shards"]["worker"]) / one[way]["shards"]["done"]
                    for one in rounds
                ]
            )
            for way in TINY
        },
        "bytes_of_a_task": round(last["sent"] / last["done"]),
        "bytes_of_what_it_gives": round(last["got"] / last["done"]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown, ranges in brackets."""

    def cell(one: dict[str, float]) -> str:
        return f"{one['median']:.3g} ({one['low']:.3g} to {one['high']:.3g})"

    summary = result["summary"]
    names = {"startup_seconds": "start-up, s", "seconds": "writing, s", "rows_per_second": "rows/s"}
    names["rows_per_cpu_second"] = "rows per CPU-second"
    lines = [f"| | {' | '.join(names.values())} |", f"| --- |{' ---: |' * len(names)}"]
    lines += [f"| {way} | {' | '.join(cell(summary[way][name]) for name in names)} |" for way in WAYS]
    lines.append("")
    for name, found in summary["speedup"].items():
        lines.append(f"{name}: {cell(found['wall'])} by the clock, {cell(found['rows_per_cpu_second'])} by CPU time")
    lines.append(f"Ray, per shard: {json.dumps(result['overhead_per_shard'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(app)
