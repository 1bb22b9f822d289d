"""The workers of a run on a Ray cluster, as the driver sees them: started where there is room, replaced when lost."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from generation.cluster_actor import Job, Library, Ready, RemoteWorker
from generation.cluster_nodes import LOSSES, Node, Nodes
from generation.tasks import Task
from hub import cli

LOOK = 2.0  # seconds between two looks at the cluster's nodes
SILENCE = 60.0  # seconds without any worker after which a word is due
RELEASE = 10.0  # seconds for workers to end


@dataclass
class Flight:
    """A task that was sent to a worker. ``since``: when its turn came, if it did."""

    ref: Any
    task: Task
    since: float | None = None


@dataclass
class Member:
    """A worker. ``preparing``: the call that has it load its model, until that is answered."""

    node: Node
    actor: Any
    preparing: Any
    sees: bool = True  # the run directory
    flights: deque[Flight] = field(default_factory=deque)

    def send(self, task: Task, library: Any) -> None:
        """Give it a task. It does one after the other."""
        self.flights.append(Flight(self.actor.do.remote(task, self.node.name, library), task))
        self._mark()

    def drop(self, flight: Flight) -> None:
        """Wait for a task no more."""
        self.flights.remove(flight)
        self._mark()

    def _mark(self) -> None:
        if self.flights and self.flights[0].since is None:
            self.flights[0].since = time.monotonic()


class Team:
    """All workers of a run: ``most`` of them, or as many as there is room for.

    ``patience``: seconds without a node to work on; ``growing``: a cluster that was asked for nodes.
    """

    def __init__(self, ray: Any, job: Job, nodes: Nodes, most: int | None, patience: float, growing: bool = False):
        self._ray, self._job, self._directory = ray, ray.put(job), job.directory
        self._versions, self._here = job.versions, ray.get_runtime_context().get_node_id()
        self.nodes, self._most, self._patience, self._growing = nodes, most, patience, growing
        self.members = list[Member]()
        self.facts: dict[str, Any] | None = None
        self._library: Any = None
        self._said = set[str]()
        self._looked = float("-inf")
        self._empty = self._unmanned = 0.0  # seconds that were seen without a node, without a ready worker

    def tend(self, now: bool = False) -> None:
        """Look at the cluster every other second, or ``now``: workers for new room, no trust in nodes that are gone.

        Raises RunError when there was no usable node for too long, at once when all were left out.
        """
        clock = time.monotonic()
        if not now and clock - self._looked < LOOK:
            return
        seconds, self._looked = min(clock - self._looked, 2 * LOOK), clock  # while nobody looked, nobody knows
        self.nodes.update(self._ray.nodes())
        self.say(f"warning: node {name} is left out: {why}" for name, why in self.nodes.problems().items())
        for node in self.nodes.wanted(Counter(member.node.id for member in self.members), self._most):
            self._start(node)
        self._check(seconds)

    def ready(self) -> list[Member]:
        """The workers that have loaded their model."""
        return [member for member in self.members if member.preparing is None]

    def wait(self, seconds: float) -> tuple[Member, Flight | None] | None:
        """The next answer of a worker: to a task, or (None) to its start. None when none came in time."""
        awaited = {member.preparing: (member, None) for member in self.members if member.preparing is not None}
        awaited |= {flight.ref: (member, flight) for member in self.members for flight in member.flights}
        if not awaited:
            time.sleep(seconds)
            return None
        done, _ = self._ray.wait(list(awaited), num_returns=1, timeout=seconds)
        return awaited[done[0]] if done else None

    def welcome(self, member: Member) -> None:
        """Take up the report of a worker that was started. Raises what kept it from starting."""
        report: Ready = self._ray.get(member.preparing)
        member.preparing, member.sees = None, report.sees
        self.facts = self.facts or report.facts
        self.say(report.said)

    def send(self, member: Member, task: Task) -> None:
        """Give a worker a task."""
        member.send(task, None if member.sees else self.library())

    def forget(self) -> None:
        """Take back what waits behind other tasks: nobody listens to it any more."""
        for task in {flight.task.key: flight.task for member in self.members for flight in member.flights}.values():
            self.take_back(task)

    def take_back(self, task: Task) -> None:
        """Take a task from the worker where it waits behind another, if it does."""
        for member in self.members:
            for flight in [flight for flight in member.flights if flight.task is task and flight.since is None]:
                member.drop(flight)
                self._ray.cancel(flight.ref, recursive=False)

    def library(self) -> Any:
        """The actor on the driver's node that lends files of the run directory."""
        if self._library is None:
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
            self._library = self._actor(Library, self._here, options).remote(self._directory)
        return self._library

    def worked(self, member: Member) -> None:
        """A worker did a task: its node is fine."""
        member.node.losses = 0

    def lost(self, member: Member, why: str) -> None:
        """Let a worker that failed go. Its node is left out when nothing but that happens there."""
        self.dismiss(member)
        member.node.losses += 1
        if member.node.losses >= LOSSES:
            member.node.problem = f"{LOSSES} workers failed there one after the other, the last: {why}"

    def crowded(self, member: Member, why: str) -> None:
        """Let a worker go that found too little memory: its node gets one less from now on."""
        member.node.room = min(member.node.room, sum(one.node is member.node for one in self.members)) - 1
        self.dismiss(member)
        if member.node.room > 0:
            self.say([f"warning: node {member.node.name} has memory for {member.node.room} workers at most"])
        else:
            member.node.problem = f"it has too little memory for a worker: {why}"

    def dismiss(self, member: Member) -> None:
        """Let a worker go, whatever it does."""
        self._ray.kill(member.actor)
        self.members.remove(member)

    def say(self, messages: Iterable[str]) -> None:
        """Tell people what they were not told yet: many workers say the same."""
        for message in messages:
            if message not in self._said:
                self._said.add(message)
                cli.say(message)

    def close(self) -> None:
        """Let everybody go, and wait until they are gone."""
        flights = [flight.ref for member in self.members for flight in member.flights]
        for member in list(self.members):
            self.dismiss(member)
        if flights:
            self._ray.wait(flights, num_returns=len(flights), timeout=RELEASE, fetch_local=False)
        if self._library is not None:
            self._ray.kill(self._library)

    def _check(self, seconds: float) -> None:
        self._empty = 0.0 if self.nodes.usable() else self._empty + seconds
        self._unmanned = 0.0 if self.ready() else self._unmanned + seconds
        if self.nodes.usable():
            if self._unmanned > SILENCE:
                self.say([f"no worker is ready for {SILENCE:.0f} s: the cluster is busy, or the model loads slowly"])
            return
        if not self.members and (self._empty > self._patience or self.nodes.hopeless(self._growing)):
            raise self.nodes.none_left()
        self.say(["no node can have a worker now: waiting for one"])

    def _start(self, node: Node) -> None:
        share = self.nodes.share
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": int(share.memory) or None}
        actor = self._actor(RemoteWorker, node.id, options | {"max_restarts": 0, "max_task_retries": 0}).remote()
        known = node.id == self._here
        self.members.append(Member(node, actor, actor.prepare.remote(self._versions, [self._job], known)))

    def _actor(self, kind: type, node: str, options: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(**options, scheduling_strategy=place)(kind)
