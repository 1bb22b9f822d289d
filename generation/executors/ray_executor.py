"""Executor of a run's tasks on Ray: workers of this machine or of a cluster, driven by this process.

The driver reads tasks as workers become free and takes their results as they come; it alone writes the run directory.
A lost worker costs its task's time and nothing else: no byte depends on where, when and how often a task is done.

The type of an error decides its cause. A node's problem (versions, files, memory, disk) leaves the node out, with one
line; a task's (a prompt that is too long) stops the run, as in one process; any other task is tried elsewhere.
"""

import errno
import math
import secrets
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from generation.backends.registry import load_preview
from generation.executors.options import (
    ClusterOptions,
    check,
    cluster,
    local_instance,
    warn_of_threads,
    withheld_secrets,
    worker_resources,
)
from generation.executors.ray_workers import (
    InFlightTask,
    Nodes,
    WorkerHandle,
    WorkerPool,
    WorkerResources,
    WorkerSpec,
    code_versions,
)
from generation.executors.store import LostResult, ResultStore, store_folder
from generation.inputs.prompts import TokenCounter
from generation.pipeline.job import model_files
from generation.pipeline.tasks import Executor, ExecutorSpec, StartExecutor, Task, TaskResult, Tick
from hub.contract.recipe import DatasetRecipe
from hub.durable import sha256_file, write_text
from hub.errors import InputError, OutOfMemory, RunError

IN_FLIGHT = 2  # tasks that a worker has: one at work, and one that waits, so that the worker does not
PAUSE = 1.0  # seconds without an answer, after which the cluster is looked at
PATIENCE = 60.0  # seconds that a cluster may have no node to work on
AUTOSCALED = 900.0  # the same where --workers asked for nodes: a machine takes minutes to start
TRIES = 3  # workers that a task may take with it
_KILLED = "OOM kill reason"  # begins the line of Ray's message when it ended a worker before the kernel would
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Cause(Enum):
    """The cause of a worker's error, and so the reaction to it."""

    TASK = "the task: the run stops"
    NODE = "the node: it is left out"
    MEMORY = "too many workers on the node: it gets one less"
    WORKER = "the worker is lost: its task is tried elsewhere"


class Failure(NamedTuple):
    """Why a call to a worker raised; ``reason`` in one line."""

    cause: Cause
    reason: str


def classify(error: BaseException, starting: bool) -> Failure:
    """The failure behind an error. ``starting``: the worker was loading its model, it had no task."""
    from ray.exceptions import OutOfDiskError, OutOfMemoryError, RayActorError

    if isinstance(error, InputError):
        return Failure(Cause.NODE if starting else Cause.TASK, str(error))
    if isinstance(error, (OutOfMemory, OutOfMemoryError)):  # reported by the worker, or Ray ended it for that
        return Failure(Cause.MEMORY, one_line(error))
    if isinstance(error, OutOfDiskError):
        return Failure(Cause.NODE, "its disk is full (Ray cannot keep objects there)")
    if isinstance(error, OSError) and error.errno in _FULL:
        return Failure(Cause.NODE, f"no space is left on its disk ({error.filename or error.strerror})")
    if isinstance(error, ImportError) or (isinstance(error, RayActorError) and error.actor_init_failed):
        return Failure(Cause.NODE, f"this package is not installed there as it is here: {one_line(error)}")
    return Failure(Cause.WORKER, one_line(error))


def one_line(error: BaseException) -> str:
    """An error's type and the most useful line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    line = next((line for line in lines if line.startswith(_KILLED)), lines[-1])
    return f"{type(error).__name__}: {line}"


class TaskQueue:
    """Queue of one call of ``Executor.run_tasks``: lazily read, with retries. Each task is finished once."""

    def __init__(self, tasks: Iterable[Task]):
        self._source: Iterator[Task] = iter(tasks)
        self._again = dict[str, Task]()
        self._open = dict[str, Task]()
        self._tried = dict[str, list[str]]()  # task → nodes where it ended a worker
        self._exhausted = False

    @property
    def finished(self) -> bool:
        """Whether every task is done."""
        return self._exhausted and not self._open

    def next(self, node: str, others: Collection[str] = ()) -> Task | None:
        """The next task for a worker of ``node``, or None.

        A task that ended a worker there waits for one of the ``others`` where it did not, if there is any.
        """
        for key in self._again:
            tried = self._tried.get(key, ())
            if node not in tried or all(other in tried for other in others):
                return self._again.pop(key)
        new = None if self._exhausted else next(self._source, None)
        self._exhausted = new is None
        if new is not None:
            self._open[new.key] = new
        return new

    def is_open(self, task: Task) -> bool:
        """Whether the task was handed out and is not done."""
        return task.key in self._open

    def done(self, task: Task) -> None:
        """Note that an open task is done."""
        del self._open[task.key]
        self._again.pop(task.key, None)

    def requeue(self, task: Task) -> None:
        """Have another worker do a task."""
        if self.is_open(task):
            self._again.setdefault(task.key, task)

    def failed(self, task: Task, node: str, reason: str) -> None:
        """Requeue a task at which its worker failed. Raises RunError after ``TRIES`` failures."""
        if not self.is_open(task):
            return
        nodes = self._tried.setdefault(task.key, [])
        nodes.append(node)
        if len(nodes) == TRIES:
            raise RunError(
                f"task {task.key}",
                f"failed {TRIES} times, on {', '.join(dict.fromkeys(nodes))}; the last time: {reason}",
                hint="finished shards are kept; mend the cause and run the same command again",
            )
        self.requeue(task)


def ray_executor(options: ClusterOptions) -> StartExecutor:
    """Start workers on a cluster, or so many on this machine. Raises InputError for a run that cannot be spread."""

    @contextmanager
    def start(spec: ExecutorSpec) -> Iterator[Executor]:
        check(options, spec.recipe)
        warn_of_threads(spec.recipe)
        resources = worker_resources(spec.recipe, options)
        folder = store_folder(spec.run, spec.directory)
        store = None if options.store is None else ResultStore(options.store, folder)
        mark = (store.url, store.mark()) if store else None
        files = [] if options.address is None else model_files(spec.recipe.model)
        with ExitStack() as stack:
            ray = stack.enter_context(_connected(options, resources, spec.recipe))
            stack.enter_context(_translated_errors())
            probe = stack.enter_context(_probe(spec.directory))
            worker = WorkerSpec(
                recipe=spec.recipe,
                sets=spec.prompts.sets,
                run=folder,
                directory=spec.directory.resolve(),
                probe=probe,
                folder=Path.cwd(),
                inputs={str(path): sha256_file(path) for path in files},
                versions=code_versions(),
                resources=resources,
                store=mark,
            )
            executor = RayExecutor(ray, worker, options, store)
            stack.callback(executor.close)
            executor.start()
            yield executor

    return start


class RayExecutor:
    """Executor on Ray workers of one recipe (``generation.pipeline.tasks.Executor``)."""

    def __init__(self, ray: Any, spec: WorkerSpec, options: ClusterOptions, store: ResultStore | None):
        self._ray, self._spec, self._store, self._wanted = ray, spec, store, options.workers
        self._autoscaled = options.address is not None and options.workers is not None
        patience = 0.0 if options.address is None else AUTOSCALED if self._autoscaled else PATIENCE
        self._pool = WorkerPool(ray, spec, Nodes(spec.resources), options.workers, patience, self._autoscaled)

    def start(self) -> None:
        """Start workers wherever there is room. Raises RunError when no node can have one."""
        if self._autoscaled:
            _ask_for_nodes(self._spec.resources, self._wanted or 0)
        self._pool.reconcile()
        room = sum(node.room for node in self._pool.nodes.usable())
        if self._wanted and room < self._wanted:
            self._pool.report([f"warning: there is room for {room} of {self._wanted} workers now"])

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``Executor``; ``tick`` is never called: texts of other processes come with their shard.

        Raises RunError when no node is left, or when a task fails repeatedly.
        """
        queue = TaskQueue(tasks)
        self._pool.cancel_queued()  # of an earlier call, which has ended
        while True:
            self._pool.reconcile()
            self._assign(queue)
            if queue.finished:
                return
            answer = self._pool.wait(PAUSE)
            result = self._collect(queue, *answer) if answer else None
            if result:
                yield result

    def count_tokens(self, text: str) -> int:
        """See ``Executor``; by a tokenizer of this process."""
        return len(self._tokenizer(text, add_special_tokens=False).input_ids)

    def describe(self) -> dict[str, Any]:
        """See ``Executor``; reported by the first ready worker. Raises RunError when no node can have one."""
        while self._pool.facts is None:
            self._pool.reconcile()
            answer = self._pool.wait(PAUSE)
            if answer:
                self._collect(TaskQueue(()), *answer)
        return self._pool.facts

    def close(self) -> None:
        """Release the workers, and the nodes that were asked for, which cost money."""
        try:
            if self._autoscaled:
                _ask_for_nodes(self._spec.resources, 0)
        finally:
            self._pool.close()

    @property
    def context(self) -> int:
        """See ``Executor``; from the model's config, read in this process."""
        return self._preview.context

    def prompt_tokens(self, prompt: str) -> int:
        """See ``Executor``; by a tokenizer of this process."""
        return self._preview.prompt_tokens(prompt)

    @cached_property
    def _preview(self) -> TokenCounter:
        return load_preview(self._spec.recipe.model)[0]

    @cached_property
    def _tokenizer(self) -> Any:
        from generation.backends.load_model import load_tokenizer

        return load_tokenizer(self._spec.recipe.model)

    def _assign(self, queue: TaskQueue) -> None:
        """Give tasks to all workers: one to each, then one that waits behind it."""
        ready = self._pool.ready()
        names = {worker.node.name for worker in ready}
        for depth in range(IN_FLIGHT):
            for worker in [worker for worker in ready if len(worker.in_flight) == depth]:
                task = queue.next(worker.node.name, names)
                if task is not None:
                    self._pool.submit(worker, task)

    def _collect(self, queue: TaskQueue, worker: WorkerHandle, answered: InFlightTask | None) -> TaskResult | None:
        """The result that a worker answered, if it is still wanted. Raises errors that stop the run."""
        from ray.exceptions import RayError, RayTaskError

        try:
            if answered is None:
                self._pool.register(worker)
                return None
            result, messages = self._ray.get(answered.ref)
        except RayError as error:
            self._failed(queue, worker, answered, error.cause if isinstance(error, RayTaskError) else error)
            return None
        self._pool.report(messages)
        worker.node.losses = 0
        worker.drop(answered)
        return self._accept(queue, worker, answered.task, result)

    def _accept(self, queue: TaskQueue, worker: WorkerHandle, task: Task, result: TaskResult) -> TaskResult | None:
        if not queue.is_open(task):
            return None  # of an earlier call
        try:
            if self._store:
                self._store.fetch(result, self._spec.directory)
        except LostResult as error:  # the store retries passing failures; a store that fails for long ends the run
            queue.failed(task, worker.node.name, str(error))
            return None
        queue.done(task)
        return result

    def _failed(self, queue: TaskQueue, worker: WorkerHandle, at: InFlightTask | None, error: BaseException) -> None:
        """A call raised, at a task or (None) at the start: react to its cause."""
        cause, reason = classify(error, starting=at is None)
        node = worker.node
        started = at is None and any(one.node is node for one in self._pool.ready())
        if cause is Cause.TASK and at:
            if queue.is_open(at.task):
                raise error
            worker.drop(at)
        elif cause is Cause.NODE and not started:  # a worker is ready there: a problem of another's start may pass
            node.problem = reason
            for one in [one for one in self._pool.workers if one.node is node]:
                self._pool.remove(one)
                for waiting in one.in_flight:
                    queue.requeue(waiting.task)
            self._pool.reconcile(now=True)
        elif cause is Cause.MEMORY:
            self._pool.out_of_memory(worker, reason)
            self._lost(queue, worker, reason, blameless=node.room > 0)
        else:
            self._pool.lost(worker, reason)
            self._lost(queue, worker, reason)

    def _lost(self, queue: TaskQueue, worker: WorkerHandle, reason: str, blameless: bool = False) -> None:
        """Requeue a lost worker's tasks. The running one counts a failure, unless ``blameless`` or its node is gone."""
        self._pool.reconcile(now=True)
        for one in worker.in_flight:
            if not one.running or blameless or not worker.node.alive:
                queue.requeue(one.task)
            else:
                queue.failed(one.task, worker.node.name, reason)


@contextmanager
def _connected(options: ClusterOptions, resources: WorkerResources, recipe: DatasetRecipe) -> Iterator[Any]:
    if options.address is not None:
        with cluster(options.address) as ray:
            yield ray
    else:
        cpus = math.ceil((options.workers or 1) * resources.cpus)  # Ray has whole ones
        with local_instance(cpus, None if resources.gpus else 0, withheld_secrets(recipe, options.store)) as ray:
            yield ray


@contextmanager
def _translated_errors() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        hint = "finished shards are kept; run the same command again"
        raise RunError("Ray", one_line(error), hint=hint) from error


@contextmanager
def _probe(directory: Path) -> Iterator[tuple[Path, str]]:
    """A file beside the run directory that distinguishes a node that sees it from one with another of its name."""
    token = secrets.token_hex(16)
    path = directory.resolve().with_name(f"{directory.name}.scratch") / f".{token}.tmp"  # removed after a kill
    write_text(path, token)
    try:
        yield path, token
    finally:
        path.unlink(missing_ok=True)


def _ask_for_nodes(resources: WorkerResources, workers: int) -> None:
    """Have an autoscaler, if the cluster has one, start nodes for so many workers; 0 withdraws the request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{name: amount for name, amount in resources.asked.items() if amount}] * workers)
