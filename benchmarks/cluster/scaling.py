"""Whether two workers write twice as fast as one: python -m benchmarks.cluster.scaling

The demo recipe in one process, with one worker and with two, and in two plain processes at the same time, in turns;
then many tiny shards, for what Ray adds to one. What the clock and the CPU seconds count: benchmarks/README.md.
"""

import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cluster.many_shards import one_shard_per_text
from benchmarks.cluster.metered_executor import Metered, executor_of, metered
from benchmarks.trials import quiet, said_by, spread, table, turned, write_results
from generation.pipeline.job import generate
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

app = cli.new_app(__doc__)
MODULE = "benchmarks.cluster.scaling"
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
    lm: Annotated[Path | None, typer.Option(help="Folder of another language model for the demo recipe")] = None,
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/scaling.json"),
    stage: Annotated[str | None, typer.Option(hidden=True, help="One run: JSON of one_run's arguments")] = None,
) -> None:
    """Measure, print a table, write a JSON file with every round."""
    if stage is not None:
        print(json.dumps(one_run(**json.loads(stage))), flush=True)
        return
    load = os.getloadavg()[0]  # of others: this command has not begun
    work: dict[str, Any] = {"limit": limit, "shard_size": shard_size, "lm": str(lm or "")}
    demo, small = list[dict[str, Any]](), list[dict[str, Any]]()
    for number in range(rounds):
        demo.append(_round(WAYS | {APART: 0}, number, work))
        small.append(_round(TINY, number, {"tiny": tiny}))
    result = {
        "model": lm.name if lm else "demo-lm",
        "first_texts": limit,
        "shard_size": shard_size,
        "tiny_shards": tiny,
        "load_average_before": round(load, 2),
        "summary": {**{way: _rates([one[way] for one in demo]) for way in WAYS}, "speedup": speedup(demo)},
        "overhead_per_shard": overhead(small),
        "rounds": demo,
        "tiny_rounds": small,
    }
    print(told(result))
    write_results(out, result, ("torch", "transformers", "ray", "pyarrow"))


def _round(ways: dict[str, int], number: int, work: dict[str, Any]) -> dict[str, Any]:
    """Every way once, in an order that turns with the rounds."""
    done = dict[str, Any]()
    for way in turned(ways, number):
        stage = json.dumps({"workers": ways[way], **work})
        with ThreadPoolExecutor(2) as beside:
            found = list(beside.map(partial(said_by, MODULE, "--stage"), [stage] * (2 if way == APART else 1)))
        done[way] = found if way == APART else found[0]
        cli.say(f"round {number + 1}, {way}: {json.dumps(done[way])}")
    return done


def one_run(workers: int, limit: int = 0, shard_size: int = 0, tiny: int = 0, lm: str = "") -> dict[str, Any]:
    """Write the demo recipe, or so many tiny shards, once; the sums over shards and groups."""
    started = time.perf_counter()
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        recipe = one_shard_per_text(Path(folder), tiny) if tiny else demo_recipe(limit, shard_size, lm)
        executors, directory = list[Metered](), Path(folder) / "run"
        start = metered(executor_of(workers), executors.append, warm=WARM * max(1, workers), weigh=bool(tiny))
        with run_dir.locked(directory):
            generate(recipe, directory, "benchmark", start)
    shards, groups = executors[0].shards, executors[0].groups
    return {
        "startup": shards.began - started,
        "seconds": shards.seconds,
        "shards": asdict(shards),
        "groups": asdict(groups),
    }


def demo_recipe(limit: int, shard_size: int, lm: str = "") -> DatasetRecipe:
    """The demo recipe, shorter and in more shards. Raises InputError when it does not ask for one thread.

    ``lm``: folder of the language model that writes, instead of the built-in one.
    """
    other = [f"model.path={lm}"] if lm else []
    recipe = load_recipe(RECIPE, DatasetRecipe, [f"source.limit={limit}", f"shard_size={shard_size}", *other])
    if recipe.model.threads != 1:
        raise InputError(f"{RECIPE}: model.threads", f"is {recipe.model.threads}", allowed="1 for this benchmark")
    return recipe


def _rates(runs: list[dict[str, Any]]) -> dict[str, Any]:
    shards = [run["shards"] for run in runs]
    return {
        "startup_seconds": spread([run["startup"] for run in runs]),
        "seconds": spread([run["seconds"] for run in runs]),
        "rows_per_second": spread([s["rows"] / run["seconds"] for s, run in zip(shards, runs, strict=True)]),
        "rows_per_cpu_second": spread([one["rows"] / one["cpu"] for one in shards]),
        "finished_per_second": spread([run["shards"]["rows"] / run["groups"]["worker"] for run in runs]),
    }


def speedup(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios within a round, and their medians over the rounds: of the wall clock, and of rows per CPU-second.

    Of two processes apart, the speeds count together.
    """

    def runs(number: int, way: str) -> list[dict[str, Any]]:
        return rounds[number][way] if way == APART else [rounds[number][way]]

    def ratio(number: int, way: str, other: str) -> float:
        return float(sum(rounds[number][other]["seconds"] / run["seconds"] for run in runs(number, way)))

    def cpu(number: int, way: str, other: str) -> float:
        base = rounds[number][other]["shards"]["cpu"]
        return float(statistics.mean(base / run["shards"]["cpu"] for run in runs(number, way)))

    pairs = [("2 workers", "1 worker"), ("2 workers", "one process"), ("1 worker", "one process")]
    pairs.append((APART, "one process"))
    each = range(len(rounds))
    return {
        f"{way} / {other}": {
            "wall": spread([ratio(number, way, other) for number in each]),
            "rows_per_cpu_second": spread([cpu(number, way, other) for number in each]),
        }
        for way, other in pairs
    }


def overhead(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """What one Ray worker adds to a tiny shard over one process, in milliseconds, and the bytes that move for it.

    ``wall`` is below zero where the driver's work, now beside the worker's, outweighs what Ray adds. ``waiting``: what
    the worker does not work, which in one process is the driver's time.
    """

    def added(of: Any) -> dict[str, float]:
        return spread([1e3 * (of(one["1 worker"]) - of(one["one process"])) for one in rounds])

    last = rounds[-1]["1 worker"]["shards"]
    return {
        "wall_ms": added(lambda run: run["seconds"] / run["shards"]["done"]),
        "cpu_ms": added(lambda run: run["shards"]["cpu"] / run["shards"]["done"]),
        "waiting_ms": {
            way: spread(
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


def told(result: dict[str, Any]) -> str:
    """The figures as Markdown, ranges in brackets."""

    def cell(one: dict[str, float]) -> str:
        return f"{one['median']:.3g} ({one['low']:.3g} to {one['high']:.3g})"

    summary = result["summary"]
    columns = {"startup_seconds": "start-up, s", "seconds": "writing, s", "rows_per_second": "rows/s"}
    columns["rows_per_cpu_second"] = "rows per CPU-second"
    rows = [[way, *(cell(summary[way][name]) for name in columns)] for way in WAYS]
    lines = [table(["", *columns.values()], rows), ""]
    for name, found in summary["speedup"].items():
        lines.append(f"{name}: {cell(found['wall'])} by the clock, {cell(found['rows_per_cpu_second'])} by CPU time")
    lines.append(f"Ray, per shard: {json.dumps(result['overhead_per_shard'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(app)
