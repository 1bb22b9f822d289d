"""Executor of a run's tasks on Ray: workers of this machine or of a cluster, driven by this process.

The driver reads tasks as workers become free and takes their results as they come; it alone writes the run directory.
No byte depends on where, when and how often a task is done. The type of an error decides its cause. A node's problem
(versions, files, memory, disk) leaves the node out, with one line; a task's (a prompt that is too long) stops the run,
as in one process; any other task is tried elsewhere.
"""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from generation.backends.registry import load_preview
from generation.executors.options import (
    ClusterOptions,
    WorkerResources,
    cluster,
    local_instance,
    withheld_secrets,
    worker_resources,
)
from generation.executors.ray_workers import RemoteWorker, WorkerSpec, code_versions
from generation.executors.store import FULL, LostResult, ResultStore, store_folder
from generation.inputs.prompts import TokenCounter
from generation.pipeline.finish import files_read
from generation.pipeline.job import model_files
from generation.pipeline.tasks import Executor, ExecutorSpec, FinishGroup, Task, TaskResult, Tick, WriteShard
from hub import cli
from hub.durable import sha256_file
from hub.errors import InputError, OutOfMemory, RunError

PAUSE = 1.0  # seconds without an answer, after which the cluster is looked at
PATIENCE = 60.0  # seconds that a cluster may have no node to work on
AUTOSCALED = 900.0  # the same where --workers asked for nodes: a machine takes minutes to start
AHEAD = 4  # shards that a worker may begin while one is not done
TRIES = 3  # workers that a task may take with it
LOSSES = 5  # consecutive workers that a node may lose without a finished task
LOOK = 2.0  # seconds between two looks at the cluster's nodes
RELEASE = 10.0  # seconds for workers to end
_KILLED = "OOM kill reason"  # begins the line of Ray's message when it ended a worker before the kernel would


class Cause(Enum):
    """The cause of a worker's error, and so the reaction to it."""

    TASK = "the task: the run stops"
    NODE = "the node: it is left out"
    MEMORY = "too many workers on the node: it gets one less"
    WORKER = "the worker is lost: its task is tried elsewhere"


def classify(error: BaseException, starting: bool) -> tuple[Cause, str]:
    """The cause of an error and the reason in one line. ``starting``: the worker was loading its model."""
    from ray.exceptions import OutOfDiskError, OutOfMemoryError, RayActorError

    if isinstance(error, InputError):
        return Cause.NODE if starting else Cause.TASK, str(error)
    if isinstance(error, (OutOfMemory, OutOfMemoryError)):  # reported by the worker, or Ray ended it for that
        return Cause.MEMORY, one_line(error)
    if isinstance(error, OutOfDiskError):
        return Cause.NODE, "its disk is full (Ray cannot keep objects there)"
    if isinstance(error, OSError) and error.errno in FULL:
        return Cause.NODE, f"no space is left on its disk ({error.filename or error.strerror})"
    if isinstance(error, ImportError) or (isinstance(error, RayActorError) and error.actor_init_failed):
        return Cause.NODE, f"this package is not installed there as it is here: {one_line(error)}"
    return Cause.WORKER, one_line(error)


def one_line(error: BaseException) -> str:
    """An error's type and the most useful line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no reason given"]
    line = next((line for line in lines if line.startswith(_KILLED)), lines[-1])
    return f"{type(error).__name__}: {line}"


@dataclass
class Node:
    """A node of the cluster. ``room``: workers it may host; ``problem``: why it is left out."""

    id: str
    name: str
    room: int
    alive: bool = True
    problem: str | None = None
    losses: int = 0  # workers lost since a task was finished here


@dataclass
class Nodes:
    """Every node that was seen, by id."""

    share: WorkerResources
    seen: dict[str, Node] = field(default_factory=dict)

    def update(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Apply the answer of ``ray.nodes()``: nodes come and go. A node that is left out stays so."""
        alive = {entry["NodeID"]: entry for entry in found if entry["Alive"]}
        for name, node in self.seen.items():
            node.alive = name in alive
        for name, entry in alive.items():
            if name in self.seen:
                continue
            given, address, resources = entry["NodeName"], entry["NodeManagerAddress"], entry["Resources"]
            shown = f"{entry['NodeManagerHostname']} ({address})" if given in ("", address) else given
            node = self.seen[name] = Node(name, shown, self.share.room(resources))
            if not node.room and resources.get("CPU"):  # a node without CPUs is not for work
                node.problem = self.share.lacking(resources)

    def usable(self) -> list[Node]:
        """The nodes that may host workers."""
        return [node for node in self.seen.values() if node.alive and node.problem is None and node.room > 0]

    def placements(self, have: Mapping[str, int], most: int | None) -> list[Node]:
        """Nodes for new workers, one entry each, the emptiest first; ``most`` in all, with those they ``have``."""
        count, chosen = Counter(dict(have)), list[Node]()
        while most is None or count.total() < most:
            open_ = [node for node in self.usable() if count[node.id] < node.room]
            if not open_:
                break
            chosen.append(min(open_, key=lambda node: count[node.id]))
            count[chosen[-1].id] += 1
        return chosen

    def hopeless(self) -> bool:
        """Whether every node that was meant for work is left out."""
        meant = [node for node in self.seen.values() if node.room or node.problem]
        return bool(meant) and all(node.problem for node in meant)

    def none_left(self) -> RunError:
        """The error when no node can be worked on, with every node's reason."""
        why = {node.name: node.problem or ("no CPUs" if node.alive else "it is gone") for node in self.seen.values()}
        reasons = "; ".join(f"{name}: {reason}" for name, reason in why.items()) or "the cluster has none"
        return RunError("no node is left to work on", reasons, hint="finished shards are kept")


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

        A task that failed there comes last, and waits for one of the ``others`` where it did not, if there is any.
        """
        for key in self._again:
            if node not in self._tried.get(key, ()):
                return self._again.pop(key)
        if new := self.new():
            return new
        again = (key for key in self._again if all(other in self._tried[key] for other in others))
        return self._again.pop(next(again, ""), None)

    def new(self) -> Task | None:
        """The next task that no worker had yet, or None."""
        task = None if self._exhausted else next(self._source, None)
        self._exhausted = task is None
        if task is not None:
            self._open[task.key] = task
        return task

    def has_failed(self, task: Task) -> bool:
        """Whether a worker ended at the task."""
        return task.key in self._tried

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
            problem = f"failed {TRIES} times, on {', '.join(dict.fromkeys(nodes))}; the last time: {reason}"
            hint = "finished shards are kept; mend the cause and run the same command again"
            raise RunError(f"task {task.key}", problem, hint=hint)
        self.requeue(task)


@dataclass
class WorkerHandle:
    """An actor, its node, and the call that it works on (None: it waits): a task, or first its model's loading.

    ahead: its next tasks, which it may begin while texts of the first one are unfinished.
    """

    node: Node
    actor: Any
    call: Any
    task: Task | None = None
    ready: bool = False
    ahead: list[Task] = field(default_factory=list)


@contextmanager
def ray_executor(options: ClusterOptions, spec: ExecutorSpec) -> Iterator[Executor]:
    """Start workers on a cluster, or so many on this machine. Raises RunError when no node can have one."""
    recipe, remote = spec.recipe, options.remote
    if recipe.model.device == "cpu" and not recipe.model.threads:
        cli.say(
            "warning: the recipe does not fix model.threads, and sums depend on it: other workers or machines may "
            "write other texts; --set model.threads=1 writes the same everywhere"
        )
    folder = store_folder(spec.run, spec.directory)
    store = None if options.store is None else ResultStore(options.store, folder)
    worker = WorkerSpec(
        recipe=recipe,
        sets=spec.prompts.sets,
        run=folder,
        directory=spec.directory.resolve(),
        folder=Path.cwd(),
        inputs={str(path): sha256_file(path) for path in model_files(recipe.model)} if remote else {},
        resources=worker_resources(recipe, options),
        store=(store.url, store.mark()) if store else None,
    )
    if options.address is not None:
        connection = cluster(options.address)
    else:
        cpus = math.ceil((options.workers or 1) * worker.resources.cpus)  # Ray has whole ones
        gpus = None if worker.resources.gpus else 0
        connection = local_instance(cpus, gpus, withheld_secrets(recipe, options.store))
    with ExitStack() as stack:
        ray = stack.enter_context(connection)
        stack.enter_context(_translated_errors())
        executor = RayExecutor(ray, worker, options, store)
        stack.callback(executor.close)
        executor.start()
        yield executor


class RayExecutor:
    """Executor on Ray workers of one recipe (``generation.pipeline.tasks.Executor``)."""

    def __init__(self, ray: Any, spec: WorkerSpec, options: ClusterOptions, store: ResultStore | None):
        self._ray, self._spec, self._store, self._most = ray, spec, store, options.workers
        self._spec_ref, self._remote = ray.put(spec), options.remote
        self._growing = self._remote and options.workers is not None  # an autoscaler is asked for nodes
        self._patience = 0.0 if not self._remote else AUTOSCALED if self._growing else PATIENCE
        self.nodes, self.workers = Nodes(spec.resources), list[WorkerHandle]()
        self._facts: dict[str, Any] | None = None
        self._reported = set[str]()
        self._looked = float("-inf")
        self._empty = 0.0  # seconds that were seen without a node

    def start(self) -> None:
        """Start workers wherever there is room. Raises RunError when no node can have one."""
        if self._growing:
            _ask_for_nodes(self._spec.resources, self._most or 0)
        self._reconcile()
        room = sum(node.room for node in self.nodes.usable())
        if self._most and room < self._most:
            self._report([f"warning: there is room for {room} of {self._most} workers now"])

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``Executor``; ``tick`` is called for whole shards: texts of other processes come with them.

        Raises RunError when no node is left, or when a task fails repeatedly.
        """
        queue = TaskQueue(tasks)
        while True:
            self._reconcile()
            self._assign(queue)
            if queue.finished:
                return
            if result := self._next(queue):
                if isinstance(result.task, WriteShard):
                    tick(self._spec.recipe.texts_per_source_sentence * len(result.task.firsts))
                yield result

    def describe(self) -> dict[str, Any]:
        """See ``Executor``; reported by the first ready worker. Raises RunError when no node can have one."""
        while self._facts is None:
            self._reconcile()
            self._next(TaskQueue(()))
        return self._facts

    @cached_property
    def model(self) -> TokenCounter:
        """See ``Executor``; by config and tokenizer, in this process."""
        return load_preview(self._spec.recipe.model)[0]

    def close(self) -> None:
        """Release the nodes that were asked for, which cost money; end all workers, and wait until they are gone."""
        try:
            if self._growing:
                _ask_for_nodes(self._spec.resources, 0)
        finally:
            calls = [worker.call for worker in self.workers if worker.task is not None]
            for worker in list(self.workers):
                self._remove(worker)
            if calls:
                self._ray.wait(calls, num_returns=len(calls), timeout=RELEASE, fetch_local=False)

    def _reconcile(self, now: bool = False) -> None:
        """Every other second, or ``now``: see which nodes are there, and start workers wherever there is room.

        Raises RunError when there was no usable node for too long; at once when all were left out and none may join.
        """
        clock = time.monotonic()
        if not now and clock - self._looked < LOOK:
            return
        seconds, self._looked = min(clock - self._looked, 2 * LOOK), clock
        self.nodes.update(self._ray.nodes())
        left_out = (node for node in self.nodes.seen.values() if node.problem)
        self._report(f"warning: node {node.name} is left out: {node.problem}" for node in left_out)
        for node in self.nodes.placements(Counter(worker.node.id for worker in self.workers), self._most):
            self._start_worker(node)
        usable = self.nodes.usable()
        self._empty = 0.0 if usable else self._empty + seconds
        if not usable:
            hopeless = self.nodes.hopeless() and not self._growing  # else other nodes may join
            if not self.workers and (self._empty > self._patience or hopeless):
                raise self.nodes.none_left()
            self._report(["no node can have a worker now: waiting for one"])

    def _start_worker(self, node: Node) -> None:
        """Start a worker. Ray must not restart it: the cause of its end decides where its task goes."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        share, place = self.nodes.share, NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": int(share.memory) or None}
        remote = self._ray.remote(**options, max_restarts=0, max_task_retries=0, scheduling_strategy=place)
        actor = remote(RemoteWorker).remote()
        self.workers.append(WorkerHandle(node, actor, actor.prepare.remote(code_versions(), [self._spec_ref])))

    def _assign(self, queue: TaskQueue) -> None:
        """Give a task to every worker that waits for one, and new shards to begin ahead.

        A task at which a worker ended is done alone, so that a second end is not another shard's.
        """
        names, waiting = {one.node.name for one in self.workers if one.ready}, list[WorkerHandle]()
        for worker in self.workers:
            if worker.call is None:
                worker.task = worker.ahead.pop(0) if worker.ahead else queue.next(worker.node.name, names)
                busiest = max((one.ahead for one in self.workers), key=len)
                if worker.task is None and len(busiest) > 1:
                    worker.task = busiest.pop()  # the last of its tasks, which it has hardly begun
                waiting.append(worker)
        for worker in waiting * AHEAD:
            if isinstance(worker.task, WriteShard) and not queue.has_failed(worker.task) and len(worker.ahead) < AHEAD:
                following = queue.new()
                worker.ahead += [following] if following else []
        for worker in waiting:
            if worker.task is not None:
                worker.call = worker.actor.do.remote(worker.task, self._files(worker.task), worker.ahead)

    def _files(self, task: Task) -> dict[str, bytes] | None:
        """The files of the run directory that a task reads, for workers that may not see it."""
        if not self._remote or not isinstance(task, FinishGroup):
            return None
        paths = files_read(self._spec.recipe, task.group) - task.empty
        return {path: (self._spec.directory / path).read_bytes() for path in sorted(paths)}

    def _next(self, queue: TaskQueue) -> TaskResult | None:
        """Wait for an answer of a worker, and react to it; the result, if it is still wanted.

        Raises errors that stop the run.
        """
        from ray.exceptions import RayError, RayTaskError

        calls = {worker.call: worker for worker in self.workers if worker.call is not None}
        if not calls:
            time.sleep(PAUSE)
            return None
        for done in self._ray.wait(list(calls), num_returns=1, timeout=PAUSE)[0]:
            worker = calls[done]
            try:
                answer, messages = self._ray.get(done)
            except RayError as error:
                self._failed(queue, worker, error.cause if isinstance(error, RayTaskError) else error)
                return None
            self._report(messages)
            return self._answered(queue, worker, answer)
        return None

    def _answered(self, queue: TaskQueue, worker: WorkerHandle, answer: Any) -> TaskResult | None:
        task, worker.task, worker.call = worker.task, None, None
        if task is None:
            worker.ready, self._facts = True, self._facts or answer
            return None
        worker.node.losses = 0
        if not queue.is_open(task):
            return None  # of an earlier call
        result: TaskResult = answer
        try:
            if self._store:
                self._store.fetch(result, self._spec.directory)
        except LostResult as error:  # the store retries passing failures; a store that fails for long ends the run
            queue.failed(task, worker.node.name, str(error))
            return None
        queue.done(task)
        return result

    def _failed(self, queue: TaskQueue, worker: WorkerHandle, error: BaseException) -> None:
        """A call raised: react to its cause, and requeue the tasks of lost workers."""
        cause, reason = classify(error, starting=worker.task is None)
        node, lost, blamed = worker.node, [worker], True
        there = [one for one in self.workers if one.node is node]
        if cause is Cause.TASK and worker.task:
            if queue.is_open(worker.task):
                raise error
            worker.task = worker.call = None
            return
        if cause is Cause.MEMORY:
            node.room = min(node.room, len(there)) - 1
            blamed = node.room <= 0
            if blamed:
                node.problem = f"it has too little memory for a worker: {reason}"
            else:
                self._report([f"warning: node {node.name} has memory for {node.room} workers at most"])
        elif cause is Cause.NODE and (worker.task or not any(one.ready for one in there)):
            node.problem, lost, blamed = reason, there, False
        else:  # also a node's problem where another worker is ready: it may pass
            node.losses += 1
            if node.losses >= LOSSES:
                node.problem = f"{LOSSES} workers failed there one after the other, the last: {reason}"
        for one in lost:
            self._remove(one)
        self._reconcile(now=True)
        for task in (task for one in lost for task in one.ahead):
            queue.requeue(task)
        for task in [one.task for one in lost if one.task]:
            if blamed and node.alive:
                queue.failed(task, node.name, reason)
            else:
                queue.requeue(task)

    def _remove(self, worker: WorkerHandle) -> None:
        """End a worker, whatever it does."""
        self._ray.kill(worker.actor)
        self.workers.remove(worker)

    def _report(self, messages: Iterable[str]) -> None:
        """Print each message once: many workers send the same."""
        for message in messages:
            if message not in self._reported:
                self._reported.add(message)
                cli.say(message)


@contextmanager
def _translated_errors() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        hint = "finished shards are kept; run the same command again"
        raise RunError("Ray", one_line(error), hint=hint) from error


def _ask_for_nodes(resources: WorkerResources, workers: int) -> None:
    """Have an autoscaler, if the cluster has one, start nodes for so many workers; 0 withdraws the request."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{name: amount for name, amount in resources.asked.items() if amount}] * workers)
