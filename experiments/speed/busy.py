"""CPU seconds of ``sts-dino write`` on a machine that other processes keep busy.

Threads that spin while they wait for each other take several times the CPU seconds there, so the
command lets threads sleep (``OMP_WAIT_POLICY=passive``). The work is STS-x2 as in
``recipes/demo/sts-dino-x2.yaml``, loading included. Every trial is compared with one thread on a
quiet machine in the same round.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.experiments.speed.trials import (
    compute_ratios,
    compute_spread,
    format_table,
    run_interleaved,
    write_results,
)
from sts_dino.release.stages import name_failure, run_stage

RECIPE = "recipes/demo/sts-dino-x2.yaml"
RESULTS = Path("experiments/speed/results/busy_machine.json")
ENDLESS_LOOP = "while True: pass"
# libgomp's own default without OMP_WAIT_POLICY: loops that a thread spins before it sleeps
SPINNING = {"GOMP_SPINCOUNT": "300000"}


@dataclass(frozen=True)
class Way:
    """A way to run the command: torch threads of the command, and other busy processes.

    ``spins``: the threads spin while they wait, in place of sleeping.
    """

    threads: int
    busy_processes: int
    spins: bool = False


QUIET_THREAD = "1 thread"
WAYS = {
    QUIET_THREAD: Way(1, 0),
    "2 threads": Way(2, 0),
    "2 threads, 1 busy process": Way(2, 1),
    "2 threads, 2 busy processes": Way(2, 2),
    "2 threads, 4 busy processes": Way(2, 4),
    "2 spinning threads": Way(2, 0, spins=True),
    "2 spinning threads, 2 busy processes": Way(2, 2, spins=True),
}


@dataclass(frozen=True)
class Usage:
    """The CPU seconds of a command and its children, and its seconds of the clock."""

    cpu_seconds: float
    seconds: float


def main(
    sentences: Annotated[int, typer.Option(min=1, help="Source sentences of a trial")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all ways")] = 3,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Result to write")] = RESULTS,
) -> None:
    """Measure the CPU seconds of `write` beside zero, one, two and four busy processes.

    Example:

      sts-dino benchmark busy --rounds 1
    """

    def measure_way(name: str, _: int) -> Usage:
        """Measure one way in one round."""
        with keep_machine_busy(WAYS[name].busy_processes):
            return measure_write(WAYS[name], sentences)

    # Measure every way, and compare it with one thread on a quiet machine
    usages = run_interleaved(list(WAYS), rounds, measure_way)
    quiet = usages[QUIET_THREAD]
    quiet_cpu_seconds = [usage.cpu_seconds for usage in quiet]
    quiet_seconds = [usage.seconds for usage in quiet]
    summary = {}
    rows = []
    for name, way_usages in usages.items():
        cpu_seconds = [usage.cpu_seconds for usage in way_usages]
        seconds = [usage.seconds for usage in way_usages]
        spreads = {
            "cpu_seconds": compute_spread(cpu_seconds),
            "cpu_ratio": compute_ratios(cpu_seconds, quiet_cpu_seconds),
            "seconds": compute_spread(seconds),
            "seconds_ratio": compute_ratios(seconds, quiet_seconds),
        }
        summary[name] = spreads
        row = [name]
        for column in ("cpu_seconds", "cpu_ratio", "seconds"):
            spread = spreads[column]
            row.append(f"{spread['median']:g} ({spread['low']:g}-{spread['high']:g})")
        rows.append(row)

    # Print the table, and write the result
    print(format_table(["way", "CPU seconds", "to one quiet thread", "seconds"], rows))
    results = {"sentences": sentences, "rounds": rounds, "ways": summary, "trials": usages}
    write_results(out, results, ("torch", "transformers"))


@contextmanager
def keep_machine_busy(processes: int) -> Iterator[None]:
    """Run endless loops in ``processes`` other processes for the duration of a block."""
    loops = [
        subprocess.Popen([sys.executable, "-c", ENDLESS_LOOP])  # noqa: S603 - fixed words
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_write(way: Way, sentences: int) -> Usage:
    """Run ``sts-dino write`` on ``sentences`` source sentences in a temporary folder; measure it.

    The CPU seconds are those of child processes that ended meanwhile, so the loops of
    ``keep_machine_busy`` do not count. Raises InputError or RunError when the command fails.
    """
    environment = dict(os.environ)
    if way.spins:
        environment |= SPINNING
    with tempfile.TemporaryDirectory() as folder:
        words = [RECIPE, "--limit", str(sentences), "--out", f"{folder}/run"]
        words += ["--set", f"model.threads={way.threads}"]
        start = os.times()
        started = time.monotonic()
        with name_failure("sts-dino write", Path(RECIPE), "run the command by itself to see why"):
            run_stage("write", *words, environment=environment, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        end = os.times()
    user_seconds = end.children_user - start.children_user
    system_seconds = end.children_system - start.children_system
    return Usage(user_seconds + system_seconds, seconds)
