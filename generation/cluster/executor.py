"""Executor of a run's tasks on Ray: workers of this machine or of a cluster, driven by this process.

The driver reads tasks as workers become free and takes their results as they come; it alone writes the run directory.
Where, when and how often a task is done changes no byte, so a lost worker costs its task's time and nothing else.

What goes wrong on a node and is the node's (versions, files, memory, disk) leaves the node out, with one line; what is
the task's (a prompt that is too long) stops the run, as it does in one process; anything else is tried again elsewhere.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from generation.backends.protocol import TokenCounter
from generation.backends.registry import load_preview
from generation.cluster.actor import WorkerSpec, code_versions
from generation.cluster.connect import cluster, local_instance
from generation.cluster.failures import Cause, classify, one_line
from generation.cluster.nodes import Node, Nodes, WorkerResources
from generation.cluster.options import ClusterOptions, check, warn_of_threads, withheld_secrets, worker_resources
from generation.cluster.pool import InFlightTask, WorkerHandle, WorkerPool
from generation.cluster.result_store import LostResult, ResultStore, store_folder
from generation.cluster.scheduler import AssignedTask, TaskQueue, speculative_copy
from generation.pipeline.executor import Executor, ExecutorSpec, StartExecutor
from generation.pipeline.model_files import model_files
from generation.run_state.tasks import Task, TaskResult, Tick
from hub.contract.recipe import DatasetRecipe
from hub.durable import sha256_file, write_text
from hub.errors import RunError

IN_FLIGHT = 2  # tasks that a worker has: one at work, and one that waits, so that the worker does not
PAUSE = 1.0  # seconds without an answer, after which the cluster is looked at
PATIENCE = 60.0  # seconds that a cluster may have no node to work on
AUTOSCALED = 900.0  # the same where --workers asked for nodes: a machine takes minutes to start


def ray_executor(options: ClusterOptions) -> StartExecutor:
    """Start workers on a cluster, or so many on this machine. Raises InputError for what cannot be spread."""

    @contextmanager
    def start(spec: ExecutorSpec) -> Iterator[Executor]:
        check(options, spec.recipe)
        warn_of_threads(spec.recipe)
        resources = worker_resources(spec.recipe, options)
        folder = store_folder(spec.run, spec.directory)
        store = None if options.store is None else ResultStore(options.store, folder)
        mark = (store.url, store.mark()) if store else None
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
                inputs={} if options.address is None else _model_files(spec.recipe),
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
    """Executor on Ray workers of one recipe (``generation.pipeline.executor.Executor``)."""

    def __init__(self, ray: Any, spec: WorkerSpec, options: ClusterOptions, store: ResultStore | None):
        self._ray, self._spec, self._store, self._wanted = ray, spec, store, options.workers
        self._autoscaled = options.address is not None and options.workers is not None
        patience = 0.0 if options.address is None else AUTOSCALED if self._autoscaled else PATIENCE
        self._pool = WorkerPool(ray, spec, Nodes(spec.resources), options.workers, patience, self._autoscaled)

    def start(self) -> None:
        """Have workers started wherever there is room. Raises RunError when no node can have one."""
        if self._autoscaled:
            _ask_for_nodes(self._spec.resources, self._wanted or 0)
        self._pool.reconcile()
        room = sum(node.room for node in self._pool.nodes.usable())
        if self._wanted and room < self._wanted:
            self._pool.tell([f"warning: there is room for {room} of {self._wanted} workers now"])

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``Executor``; ``tick`` is not told of anything: texts of other processes come with their shard.

        Raises RunError when no node is left, or when a task fails time and again.
        """
        queue = TaskQueue(tasks)
        self._pool.cancel_queued()  # of an earlier call: nobody listens to it any more
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
        """See ``Executor``; as the first worker says that is ready. Raises RunError when no node can have one."""
        while self._pool.facts is None:
            self._pool.reconcile()
            answer = self._pool.wait(PAUSE)
            if answer:
                self._collect(TaskQueue(()), *answer)
        return self._pool.facts

    def close(self) -> None:
        """Let the workers go, and the nodes that were asked for, which cost money."""
        try:
            if self._autoscaled:
                _ask_for_nodes(self._spec.resources, 0)
        finally:
            self._pool.close()

    @property
    def context(self) -> int:
        """See ``Executor``; as the model's config says, read in this process."""
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
        """Give tasks to all workers: one to each, then one to wait behind it; to idle ones what others hold."""
        ready = self._pool.ready()
        names = {worker.node.name for worker in ready}
        for depth in range(IN_FLIGHT):
            for worker in [worker for worker in ready if len(worker.in_flight) == depth]:
                task = queue.next(worker.node.name, names)
                if task is None and depth == 0 and (task := speculative_copy(self._assigned(), queue)):
                    self._pool.cancel_queued(task)
                if task is not None:
                    self._pool.submit(worker, task)

    def _assigned(self) -> list[AssignedTask]:
        now = time.monotonic()
        in_flight = [one for worker in self._pool.workers for one in worker.in_flight]
        copies = Counter(one.task.key for one in in_flight)
        return [AssignedTask(one.task, one.since and now - one.since, copies[one.task.key]) for one in in_flight]

    def _collect(self, queue: TaskQueue, worker: WorkerHandle, answered: InFlightTask | None) -> TaskResult | None:
        """The result that a worker answered, if it is still wanted. Raises what stops the run."""
        from ray.exceptions import RayError, RayTaskError

        try:
            if answered is None:
                self._pool.register(worker)
                return None
            result, messages = self._ray.get(answered.ref)
        except RayError as error:
            self._failed(queue, worker, answered, error.cause if isinstance(error, RayTaskError) else error)
            return None
        self._pool.tell(messages)
        worker.node.losses = 0
        worker.drop(answered)
        return self._accept(queue, worker, answered.task, result)

    def _accept(self, queue: TaskQueue, worker: WorkerHandle, task: Task, result: TaskResult) -> TaskResult | None:
        if not queue.is_open(task):
            return None  # another was faster
        try:
            if self._store:
                self._store.fetch(result, self._spec.directory)
        except LostResult as error:  # what fails for a moment was waited for; a store that fails for long ends the run
            queue.failed(task, worker.node.name, str(error))
            return None
        queue.done(task, result.seconds)
        return result

    def _failed(self, queue: TaskQueue, worker: WorkerHandle, at: InFlightTask | None, error: BaseException) -> None:
        """A call raised, at a task or (None) at the start: do what its cause asks for."""
        cause, reason = classify(error, starting=at is None)
        if cause is Cause.TASK and at:
            if queue.is_open(at.task):
                raise error
            worker.drop(at)
        elif cause is Cause.NODE and not (at is None and self._has_ready_worker(worker.node)):
            worker.node.problem = reason
            self._exclude(queue, worker.node)
        elif cause is Cause.MEMORY:
            self._pool.out_of_memory(worker, reason)
            self._lost(queue, worker, reason, blameless=worker.node.room > 0)
        else:
            self._pool.lost(worker, reason)
            self._lost(queue, worker, reason)

    def _has_ready_worker(self, node: Node) -> bool:
        """Whether a worker of the node is ready: what kept another one from starting there, the Hub perhaps, passes."""
        return any(worker.node is node for worker in self._pool.ready())

    def _exclude(self, queue: TaskQueue, node: Node) -> None:
        for worker in [one for one in self._pool.workers if one.node is node]:
            self._pool.remove(worker)
            for one in worker.in_flight:
                queue.requeue(one.task)
        self._pool.reconcile(now=True)

    def _lost(self, queue: TaskQueue, worker: WorkerHandle, reason: str, blameless: bool = False) -> None:
        """Requeue a lost worker's tasks. The one it was at is to blame, unless ``blameless`` or its node is gone."""
        self._pool.reconcile(now=True)
        for one in worker.in_flight:
            if one.since is None or blameless or not worker.node.alive:
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
        raise RunError("Ray", one_line(error), hint="what is finished is kept; run the same command again") from error


@contextmanager
def _probe(directory: Path) -> Iterator[tuple[Path, str]]:
    """A file beside the run directory that tells a node that sees it from one with another of the same name."""
    token = secrets.token_hex(16)
    path = directory.resolve().with_name(f"{directory.name}.scratch") / f".{token}.tmp"  # removed after a kill
    write_text(path, token)
    try:
        yield path, token
    finally:
        path.unlink(missing_ok=True)


def _model_files(recipe: DatasetRecipe) -> dict[str, str]:
    """The files of a local model → SHA-256."""
    return {str(path): sha256_file(path) for path in model_files(recipe.model)}


def _ask_for_nodes(resources: WorkerResources, workers: int) -> None:
    """Have an autoscaler, if the cluster has one, start nodes for so many workers; 0 takes the wish back."""
    from ray.autoscaler.sdk import request_resources

    asked = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory}
    request_resources(bundles=[{name: amount for name, amount in asked.items() if amount}] * workers)
