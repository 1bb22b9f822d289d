"""The generation command as a process that costs milliseconds, on a cluster of ``ray_cluster`` or
without.

``Drivers`` forks it from a process that has imported everything but Ray (``faults.Launcher``).
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import faults
import forked_workers
from ray_cluster import RayCluster

MODEL = "transformers.models.llama.modeling_llama"  # the tests' language models are Llamas
PRELOADED = ("sts_dino.generation.run", "sts_dino.generation.backends.engine", MODEL)


class Drivers(faults.Launcher):
    """Starts ``generate``; its workers on ``cluster`` and on local Ray instances are forked, too."""

    script = Path(__file__).resolve()

    def __init__(self, cluster: RayCluster, environment: dict[str, str], folder: Path):
        super().__init__(environment | cluster.environment, folder, *PRELOADED)


# What follows runs in the forked processes.


def generate(arguments: list[str], round_size: int | None = None) -> None:
    """``sts-dino write``; ``round_size`` is that of source sentences."""
    from sts_dino.generation import run
    from sts_dino.generation.pipeline import source_sentences
    from sts_dino.hub import cli

    if round_size:
        source_sentences.choose_round_size = lambda limit: round_size
    _fork_local_workers()
    cli.run_app(lambda: run.app(arguments), ends_on_sigterm=True)


def _fork_local_workers() -> None:
    """Have a Ray instance that this process starts take ``forked_workers``, as the nodes of the
    cluster do.
    """
    from sts_dino.generation.executors import cluster

    join = cluster.join_ray

    def forking(*arguments: Any, **options: Any) -> None:
        # no import of Ray before it is due
        parameters = importlib.import_module("ray._private.parameter").RayParams
        start, own = (
            parameters.__init__,
            {"setup_worker_path": str(Path(forked_workers.__file__).resolve())},
        )
        parameters.__init__ = lambda self, **given: start(self, **own | given)
        join(*arguments, **options)

    cluster.join_ray = forking


if __name__ == "__main__":
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
