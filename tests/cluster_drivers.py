"""The generation and release commands as processes that cost milliseconds, on a cluster of ``ray_cluster`` or without.

``Drivers`` forks them from a process that has imported everything but Ray (``faults.Launcher``). A release's generator
is a fork, too, where ``release.stages`` starts an interpreter; all else is what a user's command does.
"""

import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import faults
import forked_workers
from ray_cluster import RayCluster

HOUR = 24  # seconds, of a release's commit budget
MODEL = "transformers.models.llama.modeling_llama"  # the tests' language models are Llamas
PRELOADED = ("release.run", "generation.run", "generation.backends.engine", MODEL)


class Drivers(faults.Launcher):
    """Starts ``generate`` and ``release``; their workers on ``cluster`` and on local Ray instances are forked, too."""

    script = Path(__file__).resolve()

    def __init__(self, cluster: RayCluster, environment: dict[str, str], folder: Path):
        super().__init__(environment | cluster.environment, folder, *PRELOADED)


# What follows runs in the forked processes.


def generate(arguments: list[str], round_size: int | None = None) -> None:
    """``sts-dino write``; ``round_size`` is that of source sentences."""
    from generation import run
    from generation.pipeline import source_sentences
    from hub import cli

    if round_size:
        source_sentences.round_size = lambda limit: round_size
    _fork_local_workers()
    cli.run(lambda: run.app(arguments), ends_on_sigterm=True)


def release(arguments: list[str]) -> None:
    """``sts-dino release`` with short waits and short hours; the generator's waits are what they are."""
    import httpx2

    from hub import cli
    from hub.client import connection as client
    from hub.client import retry as budget
    from release import artefact, run, stages

    sleep = time.sleep

    class ForkedStage(stages.StageProcess):
        """The stage's command in a fork of this process."""

        def __init__(self, module: str, *words: str):
            self.name = f"sts-dino {module} {' '.join(words)}"
            self._process = Forked(lambda: self._be(module, list(words)))  # type: ignore[assignment]

        def _be(self, module: str, words: list[str]) -> None:
            stages.die_with_parent()
            time.sleep = sleep
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            assert module == "write"
            generate(words)

    time.sleep = lambda seconds: sleep(min(seconds * faults.WAITS, faults.LONGEST_WAIT))
    budget.HOUR = timedelta(seconds=HOUR)
    client.TIMEOUT = httpx2.Timeout(faults.TIMEOUT)
    artefact.StageProcess = ForkedStage
    cli.run(lambda: run.app(arguments))


class Forked:
    """What ``subprocess.Popen`` is to a stage."""

    def __init__(self, be: Callable[[], None]):
        self._process = multiprocessing.get_context("fork").Process(target=be)
        self._process.start()
        self.pid, self.terminate = self._process.pid, self._process.terminate

    def poll(self) -> int | None:
        """The exit code once it has ended."""
        return self._process.exitcode

    def wait(self) -> int | None:
        """The exit code."""
        self._process.join()
        return self._process.exitcode


def _fork_local_workers() -> None:
    """Have a Ray instance that this process starts take ``forked_workers``, as the nodes of the cluster do."""
    from generation.executors import options as cluster_start

    join = cluster_start._join

    def forking(*arguments: Any, **options: Any) -> None:
        parameters = importlib.import_module("ray._private.parameter").RayParams  # no import of Ray before it is due
        start, own = parameters.__init__, {"setup_worker_path": str(Path(forked_workers.__file__).resolve())}
        parameters.__init__ = lambda self, **given: start(self, **own | given)
        join(*arguments, **options)

    cluster_start._join = forking


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
