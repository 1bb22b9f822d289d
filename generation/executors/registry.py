"""The executors of a run: how each is started. Capabilities: ``generation.executors.options``."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from generation.executors.options import CLUSTER, LOCAL, WORKERS, ClusterOptions
from generation.pipeline.tasks import Executor, ExecutorSpec, StartExecutor
from generation.pipeline.worker import local_executor


def _on_ray(options: ClusterOptions, spec: ExecutorSpec) -> AbstractContextManager[Executor]:
    from generation.executors.ray_executor import ray_executor

    return ray_executor(options, spec)


Start = Callable[[ClusterOptions, ExecutorSpec], AbstractContextManager[Executor]]
EXECUTORS: dict[str, Start] = {
    LOCAL.name: lambda _, spec: local_executor(spec),
    WORKERS.name: _on_ray,
    CLUSTER.name: _on_ray,
}


def start_executor(options: ClusterOptions) -> StartExecutor:
    """Start the executor that the options choose."""
    return partial(EXECUTORS[options.executor.name], options)
