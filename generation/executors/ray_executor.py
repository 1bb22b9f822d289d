"""Executor of a run's tasks on Ray: workers of this machine or of a cluster, driven by this
process.

The driver, this process, reads tasks as workers become free and takes their results as they come.
It alone writes the run directory. No byte of the dataset depends on where, when and how often a
task is done.

The type of an error shows its cause. After a problem of a node (versions, files, disk) the node
gets no more workers, and one line reports it. A node whose memory ran out gets one worker fewer. A
problem of a task (a prompt that is too long) stops the run, as in one process. After any other
error the task is tried again, until it has failed ``MOST_TASK_FAILURES`` times.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sts_dino.generation.backends.registry import load_preview
from sts_dino.generation.executors.cluster import (
    ClusterOptions,
    join_cluster,
    list_withheld_secrets,
    start_local_ray,
)
from sts_dino.generation.executors.ray_workers import (
    RemoteWorker,
    WorkerResources,
    WorkerSpec,
    compute_worker_resources,
    read_code_versions,
)
from sts_dino.generation.executors.store import (
    FULL_DISK_ERRNOS,
    LostResult,
    ResultStore,
    name_store_folder,
)
from sts_dino.generation.inputs.prompts import TokenCounter
from sts_dino.generation.pipeline.finish import list_input_files
from sts_dino.generation.pipeline.job import list_model_files
from sts_dino.generation.pipeline.tasks import (
    Executor,
    ExecutorSpec,
    FinishGroup,
    Task,
    TaskResult,
    Tick,
    WriteShard,
)
from sts_dino.generation.rows.selection import list_selector_files
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError, OutOfMemory, RunError

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0  # longest wait for an answer of a worker before the nodes are read again
EMPTY_SECONDS = 60.0  # longest time in which a cluster has no node to work on
AUTOSCALING_SECONDS = 900.0  # EMPTY_SECONDS with --workers: a machine takes minutes to start
SHARDS_AHEAD = 4  # shards that a worker may begin while its current one is not done
MOST_TASK_FAILURES = 3  # this many failures of one task end the run
# a node that loses this many workers without a finished task in between gets no more workers
MOST_CONSECUTIVE_LOSSES = 5
LOOK_SECONDS = 2.0  # least time between two readings of the cluster's nodes
RELEASE_SECONDS = 10.0  # longest wait for workers to end
# the beginning of a line in Ray's message after it ended a worker for its memory
_KILLED_PREFIX = "OOM kill reason"
_KEPT_HINT = "finished shards are kept"


class Cause(Enum):
    """The cause of a worker's error, and the reaction to it."""

    TASK = "the task: the run stops"
    NODE = "the node: it is left out"
    MEMORY = "too many workers on the node: it gets one less"
    WORKER = "the worker is lost: its task is tried elsewhere"


class Failure(NamedTuple):
    """The cause of an error, and the reason in one line."""

    cause: Cause
    reason: str


def classify_error(error: BaseException, starting: bool) -> Failure:
    """Return the cause of an error that a worker raised, with the reason in one line.

    ``starting``: whether the worker was loading its model; a refused input is then a problem of its
    node, not of a task.
    """
    from ray.exceptions import OutOfDiskError, OutOfMemoryError, RayActorError

    if isinstance(error, InputError):
        return Failure(Cause.NODE if starting else Cause.TASK, str(error))
    # The worker reported the error, or Ray ended the worker because of its memory.
    if isinstance(error, (OutOfMemory, OutOfMemoryError)):
        return Failure(Cause.MEMORY, summarise_error(error))
    if isinstance(error, OutOfDiskError):
        return Failure(Cause.NODE, "its disk is full (Ray cannot keep objects there)")
    if isinstance(error, OSError) and error.errno in FULL_DISK_ERRNOS:
        disk = error.filename or error.strerror
        return Failure(Cause.NODE, f"no space is left on its disk ({disk})")
    is_missing_package = isinstance(error, RayActorError) and error.actor_init_failed
    if is_missing_package or isinstance(error, ImportError):
        problem = "this package is not installed there as it is here"
        return Failure(Cause.NODE, f"{problem}: {summarise_error(error)}")
    return Failure(Cause.WORKER, summarise_error(error))


def summarise_error(error: BaseException) -> str:
    """Return the type of an error and one line of its message.

    The line is the one with Ray's reason for ending the worker, else the last line. An empty
    message counts as "no reason given".
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last_line = ["no reason given", *lines][-1]
    summary = next((line for line in lines if line.startswith(_KILLED_PREFIX)), last_line)
    return f"{type(error).__name__}: {summary}"


@dataclass
class Node:
    """A node of the cluster.

    ``room``: number of workers that it may have. ``problem``: why it gets no worker; None: it may
    have some.
    """

    id: str
    name: str
    room: int
    alive: bool = True
    problem: str | None = None
    losses: int = 0  # workers lost since a task was finished here

    @property
    def is_usable(self) -> bool:
        """Whether the node may host workers."""
        return self.alive and self.problem is None and self.room > 0


@dataclass
class Nodes:
    """Every node that was seen, by id."""

    resources: WorkerResources  # of one worker
    by_id: dict[str, Node] = field(default_factory=dict)

    def update(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Update the nodes from the answer of ``ray.nodes()``: nodes join and leave.

        A known node keeps its room and problem.
        """
        alive = {entry["NodeID"]: entry for entry in entries if entry["Alive"]}
        for node_id, node in self.by_id.items():
            node.alive = node_id in alive
        for node_id, entry in alive.items():
            if node_id not in self.by_id:
                self.by_id[node_id] = self._make_node(entry)

    def _make_node(self, entry: Mapping[str, Any]) -> Node:
        """Return the node of an entry of ``ray.nodes()``.

        A node with CPUs but without room for one worker gets a problem, so it is left out.
        """
        name = entry["NodeName"]
        address = entry["NodeManagerAddress"]
        if name in ("", address):
            name = f"{entry['NodeManagerHostname']} ({address})"
        resources = entry["Resources"]
        node = Node(entry["NodeID"], name, self.resources.count_workers(resources))
        if not node.room and resources.get("CPU"):  # a node without CPUs is not for work
            node.problem = self.resources.explain_no_room(resources)
        return node

    def list_usable(self) -> list[Node]:
        """List the nodes that may host workers."""
        return [node for node in self.by_id.values() if node.is_usable]

    def choose_placements(self, workers: Mapping[str, int], most: int | None) -> list[Node]:
        """Return a node for each new worker, the node with the fewest workers first.

        Args:
            workers: node id → number of workers that the node has.
            most: number of old and new workers together, at most; None: as many as there is room.
        """
        counts = Counter(dict(workers))
        chosen = list[Node]()
        while most is None or counts.total() < most:
            candidates = [node for node in self.list_usable() if counts[node.id] < node.room]
            if not candidates:
                break
            emptiest = min(candidates, key=lambda node: counts[node.id])
            chosen.append(emptiest)
            counts[emptiest.id] += 1
        return chosen

    def is_hopeless(self) -> bool:
        """Return whether every node with CPUs has a problem, and there is at least one such node.

        Nodes that have left the cluster count, too.
        """
        with_cpus = [node for node in self.by_id.values() if node.room or node.problem]
        return bool(with_cpus) and all(node.problem for node in with_cpus)

    def make_error(self) -> RunError:
        """Return the error for a cluster without a usable node, with a reason for every node."""
        reasons = list[str]()
        for node in self.by_id.values():
            reason = node.problem
            if reason is None:
                reason = "no CPUs" if node.alive else "it is gone"
            reasons.append(f"{node.name}: {reason}")
        problem = "; ".join(reasons) or "the cluster has none"
        return RunError("no node is left to work on", problem, hint=_KEPT_HINT)


class TaskQueue:
    """The tasks of one call of ``Executor.run_tasks``, which are read as workers need them.

    A task is open from when a worker gets it until it is done. An open task may be queued again.
    """

    def __init__(self, tasks: Iterable[Task]):
        self._source: Iterator[Task] = iter(tasks)
        self._retries = dict[str, Task]()
        self._open = dict[str, Task]()
        self._failed_on = dict[str, list[str]]()  # key of a task → nodes where it ended a worker
        self._exhausted = False

    @property
    def is_finished(self) -> bool:
        """Whether every task is done."""
        return self._exhausted and not self._open

    def take_next(self, node: str, nodes: Collection[str] = ()) -> Task | None:
        """Return the next task for a worker, or None when the queue has none for this worker.

        The order is: a queued task that has not failed on the worker's node, a new task, a task
        that has failed on every node with a ready worker.

        Args:
            node: name of the worker's node.
            nodes: names of all nodes with a ready worker.
        """
        for key in self._retries:
            if node not in self._failed_on.get(key, ()):
                return self._retries.pop(key)
        task = self.take_new()
        if task is not None:
            return task
        # each task that is left has failed on this node, so it is in ``_failed_on``
        for key in self._retries:
            if set(nodes) <= set(self._failed_on[key]):
                return self._retries.pop(key)
        return None

    def take_new(self) -> Task | None:
        """Return the next task that no worker had yet, or None if there is none; it is now open."""
        if self._exhausted:
            return None
        task = next(self._source, None)
        if task is None:
            self._exhausted = True
        else:
            self._open[task.key] = task
        return task

    def has_failed(self, task: Task) -> bool:
        """Return whether the task has a recorded failure."""
        return task.key in self._failed_on

    def is_open(self, task: Task) -> bool:
        """Return whether the task was handed out and is not done."""
        return task.key in self._open

    def mark_done(self, task: Task) -> None:
        """Close an open task."""
        del self._open[task.key]
        self._retries.pop(task.key, None)

    def requeue(self, task: Task) -> None:
        """Put an open task back into the queue, for any worker; a finished task stays finished."""
        if self.is_open(task):
            self._retries.setdefault(task.key, task)

    def record_failure(self, task: Task, node: str, reason: str) -> None:
        """Record a failure of an open task, and queue the task again; ignore a task that is done.

        Args:
            task: the task that failed.
            node: name of the node of its worker.
            reason: why the task failed.

        Raises RunError when the task has now failed ``MOST_TASK_FAILURES`` times.
        """
        if not self.is_open(task):
            return
        nodes = self._failed_on.setdefault(task.key, [])
        nodes.append(node)
        if len(nodes) == MOST_TASK_FAILURES:
            names = ", ".join(dict.fromkeys(nodes))
            raise RunError(
                f"task {task.key}",
                f"failed {MOST_TASK_FAILURES} times, on {names}; the last time: {reason}",
                hint=f"{_KEPT_HINT}; mend the cause and run the same command again",
            )
        self.requeue(task)


@dataclass
class WorkerHandle:
    """An actor, its node, and the call that it works on (None: it waits for a task).

    The first call has no ``task``: it loads the model, after which ``ready`` is True. ``ahead``:
    the worker's next tasks, which it may begin while texts of the current one are unfinished.
    """

    node: Node
    actor: Any
    call: Any
    task: Task | None = None
    ready: bool = False
    ahead: list[Task] = field(default_factory=list)


@contextmanager
def start_ray_executor(options: ClusterOptions, spec: ExecutorSpec) -> Iterator[Executor]:
    """Start workers on a cluster or on this machine, and yield their executor.

    The workers end with the block.

    Args:
        options: the command-line options for the workers.
        spec: the run.

    Raises RunError when no node can have a worker, when Ray cannot be started, when the store
    cannot be written, and for an error of Ray in the block. Raises InputError for a malformed store
    or address, for a cluster that cannot be joined, and for an unusable model. Raises OSError when
    the disk of the store is full.
    """
    # Warn if texts may depend on the number of workers.
    recipe = spec.recipe
    if recipe.model.device == "cpu" and not recipe.model.threads:
        logger.warning(
            "the recipe does not fix model.threads, and sums depend on it: other workers or "
            "machines may write other texts; --set model.threads=1 writes the same everywhere"
        )

    # Collect what every worker needs.
    folder = name_store_folder(spec.run, spec.directory)
    store = None
    store_mark = None
    if options.store is not None:
        store = ResultStore(options.store, folder)
        store_mark = (store.url, store.leave_mark())  # a worker that reads the mark has this store
    inputs = dict[str, str]()
    if options.is_remote:
        files = list(list_model_files(recipe.model))
        if recipe.selection is not None and recipe.selection.path is not None:
            files += list_selector_files(Path(recipe.selection.path))
        inputs = {str(path): hash_file(path) for path in files}
    worker_spec = WorkerSpec(
        recipe=recipe,
        sets=spec.prompts.sets,
        run=folder,
        directory=spec.directory.resolve(),
        folder=Path.cwd(),
        inputs=inputs,
        resources=compute_worker_resources(recipe, options),
        store=store_mark,
    )

    # Connect to Ray, and start the workers.
    if options.address is not None:
        connection = join_cluster(options.address)
    else:
        resources = worker_spec.resources
        cpus = math.ceil((options.workers or 1) * resources.cpus)  # Ray takes a whole number
        gpus = None if resources.gpus else 0  # None: all GPUs of this machine
        connection = start_local_ray(cpus, gpus, list_withheld_secrets(recipe, options.store))
    with ExitStack() as stack:
        ray = stack.enter_context(connection)
        stack.enter_context(convert_ray_errors())
        executor = RayExecutor(ray, worker_spec, options, store)
        stack.callback(executor.close)
        executor.start()
        yield executor


class RayExecutor:
    """Executor on Ray workers of one recipe (``sts_dino.generation.pipeline.tasks.Executor``).

    Args:
        ray: the module ``ray``, connected to a cluster or to this machine's instance.
        spec: everything that a worker gets.
        options: the command-line options for the workers.
        store: where the workers leave their results; None: they send them.
    """

    def __init__(
        self, ray: Any, spec: WorkerSpec, options: ClusterOptions, store: ResultStore | None
    ):
        self.nodes = Nodes(spec.resources)
        self.workers = list[WorkerHandle]()
        self._ray = ray
        self._spec = spec
        self._spec_ref = ray.put(spec)
        self._store = store
        self._most_workers = options.workers
        self._is_remote = options.is_remote
        # With --workers an autoscaler is asked for nodes.
        self._asks_for_nodes = options.is_remote and options.workers is not None
        self._patience = 0.0
        if options.is_remote:
            self._patience = AUTOSCALING_SECONDS if self._asks_for_nodes else EMPTY_SECONDS
        self._model_facts: dict[str, Any] | None = None
        self._reported = set[str]()
        self._last_look = float("-inf")  # time.monotonic() of the last reading of the nodes
        self._seconds_empty = 0.0  # in which there was no usable node

    def start(self) -> None:
        """Start workers wherever there is room, at most ``--workers``.

        A warning is logged if there is room for fewer. On a cluster with --workers, an autoscaler
        is first asked for nodes. Raises RunError as ``_update_workers``.
        """
        if self._asks_for_nodes:
            request_nodes(self._spec.resources, self._most_workers or 0)
        self._update_workers()
        room = sum(node.room for node in self.nodes.list_usable())
        if self._most_workers and room < self._most_workers:
            self._report(f"warning: there is room for {room} of {self._most_workers} workers now")

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks on the workers, and yield their results as they come (``Executor.run_tasks``).

        ``tick`` is called once for each finished shard, with the number of its texts.

        Raises InputError for a task that no worker can do, such as a prompt that is too long.
        Raises RunError when no node is left, a task fails ``MOST_TASK_FAILURES`` times, or the
        store fails; OSError when the disk of the run directory fails.
        """
        queue = TaskQueue(tasks)
        while True:
            self._update_workers()
            self._assign_tasks(queue)
            if queue.is_finished:
                return
            result = self._wait_for_result(queue)
            if result is None:
                continue
            if isinstance(result.task, WriteShard):
                sentences = len(result.task.sentences)
                tick(self._spec.recipe.texts_per_source_sentence * sentences)
            yield result

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for the manifest (``Writer.describe``).

        They come from the first ready worker, which this waits for. Raises RunError when no node
        can have a worker.
        """
        while self._model_facts is None:
            self._update_workers()
            self._wait_for_result(TaskQueue(()))
        return self._model_facts

    @cached_property
    def model(self) -> TokenCounter:
        """Context and token counts of the model, from its config and tokenizer in this process."""
        return load_preview(self._spec.recipe.model)[0]

    def close(self) -> None:
        """Withdraw the request for nodes, and end all workers.

        This waits for the workers' running tasks to end, at most ``RELEASE_SECONDS``.
        """
        try:
            if self._asks_for_nodes:
                request_nodes(self._spec.resources, 0)  # they cost money
        finally:
            calls = [worker.call for worker in self.workers if worker.task is not None]
            for worker in list(self.workers):
                self._remove_worker(worker)
            if calls:
                number = len(calls)
                self._ray.wait(
                    calls, num_returns=number, timeout=RELEASE_SECONDS, fetch_local=False
                )

    def _update_workers(self, at_once: bool = False) -> None:
        """Read the cluster's nodes, and start workers wherever there is room.

        Nothing happens within ``LOOK_SECONDS`` of the last reading, unless ``at_once``.

        Raises RunError if there is no worker, and one of two things holds. No node was usable for
        more than ``_patience`` seconds; or every node has a problem, and the autoscaler was not
        asked for others.
        """
        clock = time.monotonic()
        if not at_once and clock - self._last_look < LOOK_SECONDS:
            return
        # The nodes are not read while the caller handles a result: that time does not count.
        seconds = min(clock - self._last_look, 2 * LOOK_SECONDS)
        self._last_look = clock

        # Update the nodes, report those with a problem, and start workers.
        self.nodes.update(self._ray.nodes())
        for node in self.nodes.by_id.values():
            if node.problem:
                self._report(f"warning: node {node.name} is left out: {node.problem}")
        workers = Counter(worker.node.id for worker in self.workers)
        for node in self.nodes.choose_placements(workers, self._most_workers):
            self._start_worker(node)

        # Give up when no node is left.
        if self.nodes.list_usable():
            self._seconds_empty = 0.0
            return
        self._seconds_empty += seconds
        is_hopeless = self.nodes.is_hopeless() and not self._asks_for_nodes  # else others may join
        is_too_long = self._seconds_empty > self._patience
        if not self.workers and (is_too_long or is_hopeless):
            raise self.nodes.make_error()
        self._report("no node can have a worker now: waiting for one")

    def _start_worker(self, node: Node) -> None:
        """Start a worker on a node.

        Ray does not restart a lost worker: the cause of the loss decides where its task goes.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        resources = self.nodes.resources
        make_actor = self._ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=int(resources.memory) or None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        actor = make_actor(RemoteWorker).remote()
        call = actor.prepare.remote(read_code_versions(), [self._spec_ref])
        self.workers.append(WorkerHandle(node, actor, call))

    def _remove_worker(self, worker: WorkerHandle) -> None:
        """End a worker, whatever it does."""
        self._ray.kill(worker.actor)
        self.workers.remove(worker)

    def _assign_tasks(self, queue: TaskQueue) -> None:
        """Give every waiting worker its next task, if there is one, and shards to begin ahead."""
        ready_nodes = {worker.node.name for worker in self.workers if worker.ready}
        waiting = [worker for worker in self.workers if worker.call is None]
        for worker in waiting:
            worker.task = self._take_task(queue, worker, ready_nodes)

        # The shards ahead are dealt out one by one in rounds, so that workers get equal numbers.
        for worker in waiting * SHARDS_AHEAD:
            if may_begin_ahead(queue, worker):
                task = queue.take_new()
                if task is not None:
                    worker.ahead.append(task)

        for worker in waiting:
            if worker.task is not None:
                files = self._read_files(worker.task)
                worker.call = worker.actor.do.remote(worker.task, files, worker.ahead)

    def _take_task(
        self, queue: TaskQueue, worker: WorkerHandle, ready_nodes: Collection[str]
    ) -> Task | None:
        """Return the next task of a worker; None: it has to wait.

        The worker's own shards ahead come first, then the queue. When the queue has none, the
        worker with the most shards ahead gives up its last one, if it has at least two.
        """
        if worker.ahead:
            return worker.ahead.pop(0)
        task = queue.take_next(worker.node.name, ready_nodes)
        if task is None:
            busiest = max(self.workers, key=lambda candidate: len(candidate.ahead))
            if len(busiest.ahead) > 1:
                return busiest.ahead.pop()  # the last one, which it has hardly begun
        return task

    def _read_files(self, task: Task) -> dict[str, bytes] | None:
        """Return path → content of the files of the run directory that a group's task needs.

        None for any other task, and where the workers read the run directory themselves because
        they are on this machine.
        """
        if not self._is_remote or not isinstance(task, FinishGroup):
            return None
        paths = list_input_files(self._spec.recipe, task.group) - task.empty
        return {path: (self._spec.directory / path).read_bytes() for path in sorted(paths)}

    def _wait_for_result(self, queue: TaskQueue) -> TaskResult | None:
        """Wait at most ``ANSWER_SECONDS`` for an answer of a worker, and handle it.

        Returns the result of an open task. Returns None if no answer came, and for the answer of a
        starting worker, a failure, or a task that is already done.

        Raises the error of a task that stops the run, and the errors of ``_accept_answer`` and
        ``_replace_workers``.
        """
        from ray.exceptions import RayError, RayTaskError

        calls = {worker.call: worker for worker in self.workers if worker.call is not None}
        if not calls:
            time.sleep(ANSWER_SECONDS)
            return None
        answered, _ = self._ray.wait(list(calls), num_returns=1, timeout=ANSWER_SECONDS)
        if not answered:
            return None
        worker = calls[answered[0]]
        try:
            answer, messages = self._ray.get(answered[0])
        except RayError as error:
            cause = error.cause if isinstance(error, RayTaskError) else error
            self._handle_failure(queue, worker, cause)
            return None
        for message in messages:
            self._report(message)
        return self._accept_answer(queue, worker, answer)

    def _accept_answer(
        self, queue: TaskQueue, worker: WorkerHandle, answer: Any
    ) -> TaskResult | None:
        """Handle the answer of a worker's call, after which the worker waits for a task.

        ``answer``: facts about the model after the first call, a ``TaskResult`` after a later one.

        Returns the result of an open task, with its files in memory or in the run directory. None
        for facts, for a task that is already done, and for a result whose files the store lost.

        Raises RunError when the task has failed too often or the store fails, OSError when the disk
        of the run directory fails.
        """
        task = worker.task
        worker.task = None
        worker.call = None
        if task is None:
            worker.ready = True
            self._model_facts = self._model_facts or answer
            return None
        worker.node.losses = 0
        if not queue.is_open(task):
            return None  # another worker has done it, or it is of an earlier call of run_tasks
        result: TaskResult = answer
        try:
            if self._store:
                self._store.fetch(result, self._spec.directory)
        # Any other error ends the run: the store has already retried temporary failures.
        except LostResult as error:
            queue.record_failure(task, worker.node.name, str(error))
            return None
        queue.mark_done(task)
        return result

    def _handle_failure(self, queue: TaskQueue, worker: WorkerHandle, error: BaseException) -> None:
        """Handle an error of a worker's call by its cause, and requeue the tasks of lost workers.

        - TASK: raise the error, unless another worker has finished the task.
        - MEMORY: replace the worker; its node gets room for one worker fewer, and is left out when
          it has none.
        - NODE: leave the node out. If the worker was starting while another one of the node is
          ready, this is handled as WORKER instead.
        - WORKER: replace the worker; leave its node out after ``MOST_CONSECUTIVE_LOSSES``.

        ``_replace_workers`` gets a reason where the task may be the cause, None where it is not.
        Its errors are raised, too.
        """
        failure = classify_error(error, starting=worker.task is None)
        # TASK always has a task: while a worker starts, classify_error names the node instead
        if failure.cause is Cause.TASK and worker.task:
            if queue.is_open(worker.task):
                raise error
            # The worker itself is fine: free it for its next task.
            worker.task = None
            worker.call = None
            return

        node = worker.node
        node_workers = [handle for handle in self.workers if handle.node is node]
        # Another worker could start on this node, so the problem may be temporary.
        may_be_temporary = worker.task is None and any(handle.ready for handle in node_workers)
        if failure.cause is Cause.MEMORY:
            node.room = min(node.room, len(node_workers)) - 1
            # While the node has room for a worker, too many workers are the cause, not the task.
            reason = None
            if node.room > 0:
                self._report(
                    f"warning: node {node.name} has memory for {node.room} workers at most"
                )
            else:
                reason = failure.reason
                node.problem = f"it has too little memory for a worker: {reason}"
            self._replace_workers(queue, [worker], reason)
        elif failure.cause is Cause.NODE and not may_be_temporary:
            node.problem = failure.reason
            self._replace_workers(queue, node_workers, None)
        else:
            node.losses += 1
            if node.losses >= MOST_CONSECUTIVE_LOSSES:
                node.problem = (
                    f"{MOST_CONSECUTIVE_LOSSES} workers failed there one after the other, "
                    f"the last: {failure.reason}"
                )
            self._replace_workers(queue, [worker], failure.reason)

    def _replace_workers(
        self, queue: TaskQueue, lost: Sequence[WorkerHandle], reason: str | None
    ) -> None:
        """End lost workers of one node, start others where there is room, and requeue their tasks.

        ``reason``: why the workers were lost; it is recorded as a failure of each one's current
        task. None: the tasks are not the cause, so no failure is recorded. Nor is one if the node
        has left the cluster.

        Raises RunError when a task has failed too often, or as ``_update_workers``.
        """
        for worker in lost:
            self._remove_worker(worker)
        self._update_workers(at_once=True)
        for worker in lost:
            for task in worker.ahead:
                queue.requeue(task)
        for worker in lost:
            if worker.task and reason is not None and worker.node.alive:
                queue.record_failure(worker.task, worker.node.name, reason)
            elif worker.task:
                queue.requeue(worker.task)

    def _report(self, message: str) -> None:
        """Log a message unless it was logged before: many workers send the same."""
        if message not in self._reported:
            self._reported.add(message)
            logger.info(message)


def may_begin_ahead(queue: TaskQueue, worker: WorkerHandle) -> bool:
    """Return whether a worker may begin another shard beside its task.

    It may if its task is a shard and it has fewer than ``SHARDS_AHEAD`` shards ahead. Beside a task
    that has failed it may not: if this worker is lost, too, no other shard can be the cause.
    """
    return (
        isinstance(worker.task, WriteShard)
        and len(worker.ahead) < SHARDS_AHEAD
        and not queue.has_failed(worker.task)
    )


@contextmanager
def convert_ray_errors() -> Iterator[None]:
    """Raise an error of Ray in a block as RunError; other errors pass unchanged."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise RunError(
            "Ray", summarise_error(error), hint=f"{_KEPT_HINT}; run the same command again"
        ) from error


def request_nodes(resources: WorkerResources, workers: int) -> None:
    """Ask the cluster's autoscaler, if there is one, for nodes with room for ``workers`` workers.

    ``resources``: what one worker takes. ``workers``: 0 withdraws an earlier request.
    """
    from ray.autoscaler.sdk import request_resources

    bundle = {name: amount for name, amount in resources.by_name.items() if amount}
    request_resources(bundles=[bundle] * workers)
