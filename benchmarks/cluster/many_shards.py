"""Whether a run's driver stays flat: python -m benchmarks.cluster.many_shards --shards 10000

So many tiny shards (one first text, three texts of a tiny random model) go through the real code,
``generation.pipeline.job``. The first process is killed (kill -9) when nine tenths of the shards are there; a second
one goes on and finishes. Of every tenth of the shards: the driver's time per shard, which is what passes between a
worker's result and the next one asked for (files written and flushed, journal, manifest), its CPU time, and the
resident memory of its process. Then what the finished manifest costs: to write, to read (``release.grow`` does while
a dataset is published), in memory. ``--workers N`` does the same with N local Ray workers; by default one process and
two workers are measured, each in processes of their own.
"""

import json
import os
import signal
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cluster.metered_executor import Metered, Shards, executor_of, metered, rss_mib
from benchmarks.generation import generation_memory
from benchmarks.trials import quiet, said_by, table, write_results
from generation.pipeline.job import generate
from hub import cli
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import File
from hub.durable import write_bytes, write_text

app = cli.new_app(__doc__)
TEXTS = len(generation_memory.LABELS) * generation_memory.SAMPLES  # of one first text of that recipe
RECIPE = "recipe.json"
TENTHS = 10
LARGE = 32 << 20  # bytes
KILLED_AT = 0.9  # of the shards


@app.command(no_args_is_help=False)
def main(
    shards: Annotated[int, typer.Option(min=20, help="Shards of the run")] = 10_000,
    workers: Annotated[list[int], typer.Option(help="Ray workers; 0: this process alone. Repeatable")] = [0, 2],  # noqa: B006
    out: Annotated[Path, typer.Option(help="JSON file")] = Path("benchmarks/results/many_shards.json"),
    stage: Annotated[Path | None, typer.Option(hidden=True, help="Work in this folder: one process of a run")] = None,
) -> None:
    """Measure one process and Ray workers, print a table, write a JSON file."""
    if stage is not None:
        one_stage(stage, shards, workers[0])
        return
    load = os.getloadavg()[0]
    runs = [one_run(shards, number) for number in workers]
    for one in runs:
        print(told(one))
    report = {"shards": shards, "runs": runs, "load_average_before": round(load, 2)}
    write_results(out, report, ("torch", "pyarrow", "pydantic", *(["ray"] if any(workers) else [])))


def one_run(shards: int, workers: int) -> dict[str, Any]:
    """A run that is killed and resumed: both processes' figures."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder) / RECIPE, one_shard_per_text(Path(folder), shards).model_dump_json())
        killed, resumed = (_process(Path(folder), shards, workers, code) for code in (-signal.SIGKILL, 0))
    rss = [tenth["rss_mib"] for tenth in killed["tenths"]]
    first, last = killed["tenths"][1], killed["tenths"][-1]
    return {
        "workers": workers,
        "driver_ms_per_shard": round(statistics.median(own_ms(tenth, workers) for tenth in killed["tenths"]), 3),
        "last_to_second_tenth": round(last["driver_cpu_ms"] / first["driver_cpu_ms"], 2),
        "rss_kib_per_shard": round((rss[-1] - rss[1]) * 1024 / (last["shards"] - first["shards"]), 2),
        "killed": killed,
        "resumed": resumed,
    }


def own_ms(tenth: dict[str, Any], workers: int) -> float:
    """The driver's time of a shard; with Ray, also the CPU time in which it gives tasks and takes results."""
    return float(tenth["driver_ms"] + (tenth["thread_cpu_ms"] - tenth["driver_cpu_ms"] if workers else 0))


def _process(folder: Path, shards: int, workers: int, code: int) -> dict[str, Any]:
    options = ["--stage", folder, "--shards", shards, "--workers", workers]
    found: dict[str, Any] = said_by("benchmarks.cluster.many_shards", *options, code=code)
    cli.say(json.dumps(found))
    return found


def one_stage(folder: Path, shards: int, workers: int) -> None:
    """Begin the run and be killed, or go on with it; prints the figures as one line of JSON."""
    quiet()
    directory, recipe = folder / "run", DatasetRecipe.model_validate_json((folder / RECIPE).read_bytes())
    begun = directory.exists()
    executors, stage = list[Metered](), Stage(shards, None if begun else round(KILLED_AT * shards))
    started = time.perf_counter()
    with run_dir.locked(directory):
        generate(recipe, directory, "benchmark", metered(executor_of(workers), executors.append, watch=stage.watch))
    ended = time.perf_counter()
    written, finished = executors[0].shards, executors[0].groups
    figures = {
        "seconds_before_first_task": round(written.began - started, 2),
        "shards": written.done,
        "shard_seconds": round(written.seconds, 1),
        "groups": finished.done,
        "finish_seconds": round(ended - written.ended, 1),
        "rss_mib": rss_mib(),
        "manifest": manifest_costs(directory),
        "write_mb_per_second": write_rate(folder / "written"),
    }
    print(json.dumps(figures), flush=True)


def one_shard_per_text(folder: Path, shards: int) -> DatasetRecipe:
    """A recipe of so many shards, one text of each label; its source and its model are written to ``folder``."""
    recipe = generation_memory.recipe(folder, shards * TEXTS)
    decoding = recipe.decoding.model_copy(update={"samples": 1, "max_attempts": 1})
    return recipe.model_copy(update={"shard_size": 1, "decoding": decoding})


class Stage:
    """Notes the figures of every tenth of the shards; kills its own process after ``killed_after`` of them."""

    def __init__(self, shards: int, killed_after: int | None):
        self._every, self._killed_after = max(1, shards // TENTHS), killed_after
        self._tenths, self._last = list[dict[str, Any]](), Shards()

    def watch(self, sums: Shards) -> None:
        """Called after every shard."""
        if sums.done % self._every == 0:
            self._note(sums)
        if sums.done == self._killed_after:
            print(json.dumps({"tenths": self._tenths}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, sums: Shards) -> None:
        last, count = self._last, sums.done - self._last.done
        tenth = {
            "shards": sums.done,
            "seconds": round(sums.ended - (last.ended or sums.began), 2),
            "driver_ms": round(1e3 * (sums.driver - last.driver) / count, 3),
            "driver_cpu_ms": round(1e3 * (sums.driver_cpu - last.driver_cpu) / count, 3),
            "thread_cpu_ms": round(1e3 * (sums.thread_cpu - last.thread_cpu) / count, 3),
            "worker_ms": round(1e3 * (sums.worker - last.worker) / count, 3),
            "rss_mib": rss_mib(),
        }
        self._tenths.append(tenth)
        self._last = Shards(**vars(sums))


def manifest_costs(directory: Path) -> dict[str, Any]:
    """What a run's manifest costs once: writing, reading, and the memory of a file's entry."""
    manifest = run_dir.require_complete(directory)
    facts = manifest.model_dump()["files"]
    tracemalloc.start()
    files = [File(**entry) for entry in facts]
    held = tracemalloc.get_traced_memory()[0] / len(files)
    tracemalloc.stop()
    return {
        "files": len(files),
        "mb": round((directory / run_dir.MANIFEST).stat().st_size / 1e6, 2),
        "write_seconds": _median_seconds(lambda: run_dir.write_manifest(directory, manifest)),
        "read_seconds": _median_seconds(lambda: run_dir.read_manifest(directory)),
        "check_seconds": _median_seconds(lambda: run_dir.changed_files(directory, manifest)),
        "bytes_in_memory_per_file": round(held),
    }


def write_rate(path: Path) -> float:
    """MB a second of a large file that is written and flushed as shards are."""
    content = os.urandom(LARGE)
    return round(LARGE / 1e6 / _median_seconds(lambda: write_bytes(path, content)), 1)


def _median_seconds(function: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return round(statistics.median(taken), 4)


def told(one: dict[str, Any]) -> str:
    """The figures of a run as Markdown."""
    columns = {
        "shards": f"{one['workers']} Ray workers: shards" if one["workers"] else "one process: shards",
        "driver_ms": "driver, ms a shard",
        "driver_cpu_ms": "of it CPU",
        "thread_cpu_ms": "its thread's CPU in all",
        "worker_ms": "worker, ms a shard",
        "rss_mib": "resident MiB",
    }
    tenths = table([*columns.values()], [[tenth[key] for key in columns] for tenth in one["killed"]["tenths"]], names=0)
    resumed = one["resumed"]
    begun, finished = resumed["seconds_before_first_task"], resumed["finish_seconds"]
    ends = (
        f"resumed: {begun} s to the first task, finished in {finished} s;\nmanifest: {json.dumps(resumed['manifest'])}"
    )
    return f"\n{tenths}\n\n{ends}"


if __name__ == "__main__":
    cli.run(app)
