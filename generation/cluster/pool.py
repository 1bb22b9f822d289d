"""Worker pool of a run on a Ray cluster: actors are started where there is room and replaced when they are lost."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from generation.cluster.actor import FileServer, RemoteWorker, WorkerReport, WorkerSpec
from generation.cluster.nodes import LOSSES, Node, Nodes
from generation.run_state.tasks import Task
from hub import cli

LOOK = 2.0  # seconds between two looks at the cluster's nodes
SILENCE = 60.0  # seconds without any worker after which a word is due
RELEASE = 10.0  # seconds for workers to end


@dataclass
class InFlightTask:
    """A task submitted to an actor. ``since``: when it became the running one (monotonic), None while queued."""

    ref: Any
    task: Task
    since: float | None = None


@dataclass
class WorkerHandle:
    """An actor, its node and its tasks. ``preparing``: the call that loads the model, until it is answered."""

    node: Node
    actor: Any
    preparing: Any
    sees: bool = True  # the run directory
    in_flight: deque[InFlightTask] = field(default_factory=deque)

    def submit(self, task: Task, file_server: Any) -> None:
        """Send it a task. It does one after the other."""
        self.in_flight.append(InFlightTask(self.actor.do.remote(task, self.node.name, file_server), task))
        self._mark()

    def drop(self, in_flight: InFlightTask) -> None:
        """Wait for a task no more."""
        self.in_flight.remove(in_flight)
        self._mark()

    def _mark(self) -> None:
        if self.in_flight and self.in_flight[0].since is None:
            self.in_flight[0].since = time.monotonic()


class WorkerPool:
    """All workers of a run: at most ``most``, or as many as there is room for.

    ``patience``: seconds without a node to work on; ``growing``: a cluster that was asked for nodes.
    """

    def __init__(self, ray: Any, spec: WorkerSpec, nodes: Nodes, most: int | None, patience: float, growing: bool):
        self._ray, self._spec, self._directory = ray, ray.put(spec), spec.directory
        self._versions, self._here = spec.versions, ray.get_runtime_context().get_node_id()
        self.nodes, self._most, self._patience, self._growing = nodes, most, patience, growing
        self.workers = list[WorkerHandle]()
        self.facts: dict[str, Any] | None = None
        self._file_server: Any = None
        self._told = set[str]()
        self._looked = float("-inf")
        self._empty = self._unmanned = 0.0  # seconds that were seen without a node, without a ready worker

    def reconcile(self, now: bool = False) -> None:
        """Every other second, or ``now``: see which nodes are there, and start workers wherever there is room.

        Raises RunError when there was no usable node for too long, at once when all were left out.
        """
        clock = time.monotonic()
        if not now and clock - self._looked < LOOK:
            return
        seconds, self._looked = min(clock - self._looked, 2 * LOOK), clock  # while nobody looked, nobody knows
        self.nodes.update(self._ray.nodes())
        self.tell(f"warning: node {name} is left out: {why}" for name, why in self.nodes.problems().items())
        for node in self.nodes.placements(Counter(worker.node.id for worker in self.workers), self._most):
            self._start(node)
        self._check(seconds)

    def ready(self) -> list[WorkerHandle]:
        """The workers that have loaded their model."""
        return [worker for worker in self.workers if worker.preparing is None]

    def wait(self, seconds: float) -> tuple[WorkerHandle, InFlightTask | None] | None:
        """The next answer of a worker: to a task, or (None) to its start. None when none came in time."""
        awaited = {worker.preparing: (worker, None) for worker in self.workers if worker.preparing is not None}
        awaited |= {one.ref: (worker, one) for worker in self.workers for one in worker.in_flight}
        if not awaited:
            time.sleep(seconds)
            return None
        done, _ = self._ray.wait(list(awaited), num_returns=1, timeout=seconds)
        return awaited[done[0]] if done else None

    def register(self, worker: WorkerHandle) -> None:
        """Take up the report of a worker that was started. Raises what kept it from starting."""
        report: WorkerReport = self._ray.get(worker.preparing)
        worker.preparing, worker.sees = None, report.sees
        self.facts = self.facts or report.facts
        self.tell(report.messages)

    def submit(self, worker: WorkerHandle, task: Task) -> None:
        """Send a task to a worker."""
        worker.submit(task, None if worker.sees else self._files())

    def cancel_queued(self, task: Task | None = None) -> None:
        """Take back what waits in a worker behind another task: ``task``, or everything."""
        for worker in self.workers:
            queued = [one for one in worker.in_flight if one.since is None]
            for one in [one for one in queued if task is None or one.task is task]:
                worker.drop(one)
                self._ray.cancel(one.ref, recursive=False)

    def lost(self, worker: WorkerHandle, reason: str) -> None:
        """Let a worker that failed go. Its node is left out when nothing but that happens there."""
        self.remove(worker)
        worker.node.losses += 1
        if worker.node.losses >= LOSSES:
            worker.node.problem = f"{LOSSES} workers failed there one after the other, the last: {reason}"

    def out_of_memory(self, worker: WorkerHandle, reason: str) -> None:
        """Let a worker go that found too little memory: its node gets one less from now on."""
        node = worker.node
        node.room = min(node.room, sum(one.node is node for one in self.workers)) - 1
        self.remove(worker)
        if node.room > 0:
            self.tell([f"warning: node {node.name} has memory for {node.room} workers at most"])
        else:
            node.problem = f"it has too little memory for a worker: {reason}"

    def remove(self, worker: WorkerHandle) -> None:
        """Let a worker go, whatever it does."""
        self._ray.kill(worker.actor)
        self.workers.remove(worker)

    def tell(self, messages: Iterable[str]) -> None:
        """Tell people what they were not told yet: many workers say the same."""
        for message in messages:
            if message not in self._told:
                self._told.add(message)
                cli.say(message)

    def close(self) -> None:
        """Let everybody go, and wait until they are gone."""
        refs = [one.ref for worker in self.workers for one in worker.in_flight]
        for worker in list(self.workers):
            self.remove(worker)
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=RELEASE, fetch_local=False)
        if self._file_server is not None:
            self._ray.kill(self._file_server)

    def _check(self, seconds: float) -> None:
        self._empty = 0.0 if self.nodes.usable() else self._empty + seconds
        self._unmanned = 0.0 if self.ready() else self._unmanned + seconds
        if self.nodes.usable():
            if self._unmanned > SILENCE:
                self.tell([f"no worker is ready for {SILENCE:.0f} s: the cluster is busy, or the model loads slowly"])
            return
        if not self.workers and (self._empty > self._patience or self.nodes.hopeless(self._growing)):
            raise self.nodes.none_left()
        self.tell(["no node can have a worker now: waiting for one"])

    def _files(self) -> Any:
        """The actor on the driver's node that serves files of the run directory."""
        if self._file_server is None:
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
            self._file_server = self._actor(FileServer, self._here, options).remote(self._directory)
        return self._file_server

    def _start(self, node: Node) -> None:
        """Start a worker. Ray must not restart it: whose fault its end was decides where its task goes."""
        share = self.nodes.share
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": int(share.memory) or None}
        actor = self._actor(RemoteWorker, node.id, options | {"max_restarts": 0, "max_task_retries": 0}).remote()
        known = node.id == self._here
        self.workers.append(WorkerHandle(node, actor, actor.prepare.remote(self._versions, [self._spec], known)))

    def _actor(self, kind: type, node: str, options: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(**options, scheduling_strategy=place)(kind)
