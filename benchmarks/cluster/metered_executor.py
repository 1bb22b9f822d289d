"""An executor under the clock: when each shard came, what it took its worker, and what its driver did in between."""

import itertools
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from generation.pipeline.tasks import Executor, ExecutorSpec, StartExecutor, Task, TaskResult, Tick, WriteShard
from generation.pipeline.worker import local_executor

Watch = Callable[["Shards"], None]
MIB = 2**20


@dataclass
class Shards:
    """Sums over the tasks of one kind that a executor has done. Seconds are of the wall clock unless they say CPU.

    ``cpu``: CPU time of this process and those below it, from the first task to the last; ``thread_cpu``: of it that of
    the thread that drives. ``driver``: what passes between handing over what a task gave and being asked for the next,
    and in making tasks; ``driver_cpu``: of it the CPU time of that thread. ``worker``: what the workers say they took.
    ``sent`` and ``got``: bytes of the tasks and of what they gave, as Ray moves them.
    """

    done: int = 0
    rows: int = 0
    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    thread_cpu: float = 0.0
    driver: float = 0.0
    driver_cpu: float = 0.0
    worker: float = 0.0
    sent: int = 0
    got: int = 0

    @property
    def seconds(self) -> float:
        """From the first task asked for to the last one taken in."""
        return self.ended - self.began


class Metered:
    """An executor that measures its driver.

    ``watch`` is called after every shard. ``warm``: so many shards are first written in vain, before the clock starts,
    so that every worker has its model. ``weigh``: count bytes.
    """

    def __init__(self, executor: Executor, watch: Watch = lambda _: None, warm: int = 0, weigh: bool = False):
        self.executor, self._watch, self._warm, self._weigh = executor, watch, warm, weigh
        self.shards, self.groups = Shards(), Shards()

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``generation.pipeline.tasks.Executor``."""
        given = iter(tasks)
        first = list(itertools.islice(given, max(1, self._warm)))
        for _ in self.executor.run_tasks(first[: self._warm]):
            pass
        self._warm, tasks = 0, itertools.chain(first, given)
        sums = self.shards if first and isinstance(first[0], WriteShard) else self.groups
        sums.began, before, thread = time.perf_counter(), cpu_seconds(), time.thread_time()
        for result in self.executor.run_tasks(self._asked(tasks, sums), tick):
            wall, cpu = time.perf_counter(), time.thread_time()
            yield result
            sums.ended = time.perf_counter()
            sums.driver += sums.ended - wall
            sums.driver_cpu += time.thread_time() - cpu
            sums.thread_cpu = time.thread_time() - thread
            self._count(sums, result)
        sums.cpu = cpu_seconds() - before

    def _count(self, sums: Shards, result: TaskResult) -> None:
        sums.worker += result.seconds
        sums.done, sums.rows = sums.done + 1, sums.rows + result.rows
        if self._weigh:
            sums.sent, sums.got = sums.sent + len(pickle.dumps(result.task)), sums.got + len(pickle.dumps(result))
        if sums is self.shards:
            self._watch(sums)

    def _asked(self, tasks: Iterator[Task], sums: Shards) -> Iterator[Task]:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            task = next(tasks, None)
            sums.driver += time.perf_counter() - wall
            sums.driver_cpu += time.thread_time() - cpu
            if task is None:
                return
            yield task

    def count_tokens(self, text: str) -> int:
        """See ``generation.pipeline.tasks.Executor``."""
        return self.executor.count_tokens(text)

    @property
    def context(self) -> int:
        """See ``generation.pipeline.tasks.Executor``."""
        return self.executor.context

    def prompt_tokens(self, prompt: str) -> int:
        """See ``generation.pipeline.tasks.Executor``."""
        return self.executor.prompt_tokens(prompt)

    def describe(self) -> dict[str, Any]:
        """See ``generation.pipeline.tasks.Executor``."""
        return self.executor.describe()


def executor_of(workers: int) -> StartExecutor:
    """This process (0), or so many local Ray workers."""
    if not workers:
        return local_executor
    from generation.executors.options import ClusterOptions
    from generation.executors.ray_executor import ray_executor

    return ray_executor(ClusterOptions(workers=workers))


def metered(start: StartExecutor, told: Callable[[Metered], object], **options: Any) -> StartExecutor:
    """``start`` whose executor is ``Metered``; ``told`` gets it when it is started."""

    @contextmanager
    def started(spec: ExecutorSpec) -> Iterator[Executor]:
        executors: AbstractContextManager[Executor] = start(spec)
        with executors as executor:
            meter = Metered(executor, **options)
            told(meter)
            yield meter

    return started


def rss_mib() -> float:
    """Resident memory of this process now, in MiB."""
    return round(psutil.Process().memory_info().rss / MIB, 1)


def cpu_seconds() -> float:
    """CPU time so far of this process and of every process below it that lives."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # ended since it was listed
            continue
        total += times.user + times.system
    return total
