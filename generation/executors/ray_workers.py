"""Workers of a run on a Ray cluster: the nodes that host them, the actors, and the pool that starts and replaces them.

A worker gets a recipe, its few-shot examples and tasks, and hands back bytes: it needs this package and the model's
files, and no shared disk.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from generation.backends.registry import load_writer
from generation.executors.store import ResultStore
from generation.inputs.examples import ExampleSet
from generation.inputs.prompts import Prompts
from generation.pipeline.code_digest import digest_of, module_digests, versions
from generation.pipeline.tasks import Task, TaskResult
from generation.pipeline.worker import Worker
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.durable import sha256_file
from hub.errors import InputError, RunError

CLUSTER_CODE = "sts-dino cluster code"
LOSSES = 5  # consecutive workers that a node may lose without a finished task
LOOK = 2.0  # seconds between two looks at the cluster's nodes
SILENCE = 60.0  # seconds without any worker after which a message is due
RELEASE = 10.0  # seconds for workers to end
_GB = 10**9
_ROUNDING = 1e-6


@dataclass(frozen=True)
class WorkerResources:
    """Resources that one worker reserves on a node; ``memory`` in bytes."""

    cpus: float = 1
    gpus: float = 0
    memory: float = 0

    @property
    def asked(self) -> dict[str, float]:
        """The amounts by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}

    def room(self, resources: Mapping[str, float]) -> int:
        """How many workers a node with these resources (by Ray's names) has room for."""
        return min(int(resources.get(name, 0) / amount + _ROUNDING) for name, amount in self.asked.items() if amount)

    def lacking(self, resources: Mapping[str, float]) -> str:
        """Why a node has no room at all."""
        has = {name: resources.get(name, 0) for name in self.asked}
        asked = f"{self.cpus:g} CPU, {self.gpus:g} GPU, {self.memory / _GB:.1f} GB of memory"
        return f"a worker takes {asked}, it has {has['CPU']:g}, {has['GPU']:g}, {has['memory'] / _GB:.1f} GB"


@dataclass
class Node:
    """A node of the cluster. ``room``: workers it may host; ``problem``: why it is left out."""

    id: str
    name: str
    room: int
    alive: bool = True
    problem: str | None = None
    small: bool = False  # it never had room
    losses: int = 0  # workers lost since a task was finished here

    @property
    def usable(self) -> bool:
        """Whether it may host workers."""
        return self.alive and self.problem is None and self.room > 0


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
            node = Node(name, self._name(entry), self.share.room(entry["Resources"]))
            if not node.room and entry["Resources"].get("CPU"):  # a node without CPUs is not for work
                node.problem, node.small = self.share.lacking(entry["Resources"]), True
            self.seen[name] = node

    def usable(self) -> list[Node]:
        """The nodes that may host workers."""
        return [node for node in self.seen.values() if node.usable]

    def placements(self, have: Mapping[str, int], most: int | None) -> list[Node]:
        """Nodes for new workers, one entry each, the emptiest first; ``most`` workers in all.

        ``have``: workers by node.
        """
        count = Counter(dict(have))
        free = sum(max(0, node.room - count[node.id]) for node in self.usable())
        chosen = list[Node]()
        for _ in range(free if most is None else min(free, most - count.total())):
            open_ = [node for node in self.usable() if count[node.id] < node.room]
            chosen.append(min(open_, key=lambda node: count[node.id]))
            count[chosen[-1].id] += 1
        return chosen

    def problems(self) -> dict[str, str]:
        """The nodes without workers for good, and why."""
        return {node.name: node.problem for node in self.seen.values() if node.problem}

    def hopeless(self, growing: bool = False) -> bool:
        """Whether no known node can host a worker. ``growing``: too small ones are ignored, larger ones may join."""
        able = [node for node in self.seen.values() if (node.room or node.problem) and not (growing and node.small)]
        return bool(able) and all(node.problem for node in able)

    def none_left(self) -> RunError:
        """The error when no node can be worked on, with every node's reason."""
        gone = {node.name: "it is gone" for node in self.seen.values() if not node.alive and not node.problem}
        empty = {node.name: "it has no CPUs" for node in self.seen.values() if node.alive and not node.room}
        reasons = "; ".join(f"{name}: {why}" for name, why in (empty | gone | self.problems()).items())
        return RunError(
            "no node is left to work on", reasons or "the cluster has none", hint="finished shards are kept"
        )

    def _name(self, entry: Mapping[str, Any]) -> str:
        """A node's given name, else its host's; with its address or id where that names several."""
        given, address = entry["NodeName"], entry["NodeManagerAddress"]
        name = given if given and given != address else entry["NodeManagerHostname"]
        taken = {node.name for node in self.seen.values()}
        candidates = (name, f"{name} ({address})", f"{name} ({entry['NodeID'][:8]})")
        return next((one for one in candidates if one not in taken), candidates[-1])


@dataclass(frozen=True)
class WorkerSpec:
    """The facts that every worker of a run needs."""

    recipe: DatasetRecipe
    sets: Mapping[int, Sequence[ExampleSet]]
    run: str  # its folder in a store
    directory: Path
    probe: tuple[Path, str]  # a file beside the run directory and its content: a node that reads it sees the directory
    folder: Path  # where the recipe's relative paths start
    inputs: Mapping[str, str]  # the model's files → SHA-256, for nodes other than the driver's
    versions: Mapping[str, str]
    resources: WorkerResources
    store: tuple[str, str] | None  # its URL, and the driver's mark in it


@dataclass(frozen=True)
class WorkerReport:
    """A started worker's report. ``facts``: of ``Writer.describe``; ``sees``: the run directory."""

    facts: dict[str, Any]
    sees: bool
    messages: tuple[str, ...]


class RemoteWorker:
    """A worker on some node. Ray makes it, then ``prepare`` is called once."""

    def __init__(self) -> None:
        self._messages = list[str]()
        cli.listeners[:] = [self._messages.append]

    def prepare(self, driver: Mapping[str, str], spec_ref: list[Any], known: bool) -> WorkerReport:
        """Load the model. ``driver``: its versions; ``spec_ref``: read when they agree; ``known``: its node.

        Raises InputError when this node's versions, model files or store are not the driver's, OutOfMemory when there
        is no room for the model.
        """
        require_versions(driver, code_versions())
        import ray

        spec: WorkerSpec = ray.get(spec_ref[0])
        if spec.folder.is_dir():
            os.chdir(spec.folder)
        if not known:
            require_files(spec.inputs)
        if not (spec.recipe.model.threads or spec.resources.gpus):
            import torch

            torch.set_num_threads(max(1, int(spec.resources.cpus)))
        self._store = ResultStore(spec.store[0], spec.run, proven=True) if spec.store else None
        if self._store and spec.store:
            self._store.require(spec.store[1])
        recipe = on_this_gpu(spec.recipe)
        with _typed_out_of_memory("for the model"):
            writer = load_writer(recipe.model)
        self._worker, self._directory = Worker(recipe, Prompts(recipe, spec.sets), writer), spec.directory
        self._sees = is_here(*spec.probe)
        return WorkerReport(writer.describe(), self._sees, self._new_messages())

    def do(self, task: Task, node: str, file_server: Any) -> tuple[TaskResult, tuple[str, ...]]:
        """A task's result, made here or found in the store, and messages. Raises OutOfMemory."""
        with _typed_out_of_memory(f"for {task.key}"):
            result = self._store.find(task) if self._store else None
            if result is None:
                result = replace(self._worker.do(task, self._reader(file_server)), node=node)
                result = self._store.put(result) if self._store else result
        return replace(result, node=node), self._new_messages()

    def _reader(self, file_server: Any) -> Callable[[str], Path | bytes]:
        """A file of the run directory: its path where this node sees it, else its content from the file server."""

        def read(path: str) -> Path | bytes:
            here = self._directory / path
            if file_server is None or (self._sees and here.is_file()):
                return here
            import ray

            content: bytes = ray.get(file_server.read.remote(path))
            return content

        return read

    def _new_messages(self) -> tuple[str, ...]:
        messages = tuple(self._messages)
        self._messages.clear()
        return messages


class FileServer:
    """Serves the files of a run directory to workers that do not see it."""

    def __init__(self, directory: Path):
        self._directory = directory.resolve()

    def read(self, path: str) -> bytes:
        """The content of a file. Raises InputError for a path that leads out of the run directory."""
        full = (self._directory / path).resolve()
        if not full.is_relative_to(self._directory):
            raise InputError(path, "leads out of the run directory")
        return full.read_bytes()


def _typed_out_of_memory(what: str) -> AbstractContextManager[None]:
    from generation.backends.load_model import typed_out_of_memory

    return typed_out_of_memory(what, "start fewer workers there (--cpus, --gpus)")


@cache
def code_versions() -> dict[str, str]:
    """Versions that must agree on all nodes: those that decide the bytes, and every module that a worker imports."""
    return versions() | {CLUSTER_CODE: digest_of(module_digests(__name__))}


def require_versions(driver: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise InputError when this node would not produce the driver's bytes."""
    differ = [name for name in sorted(driver.keys() | here.keys()) if driver.get(name) != here.get(name)]
    if differ:
        changes = ", ".join(f"{name} {here.get(name)}, on the driver {driver.get(name)}" for name in differ)
        raise InputError("versions", f"are not the driver's: {changes}", hint="install the same on every node")


def require_files(inputs: Mapping[str, str]) -> None:
    """Raise InputError when one of the driver's files (paths from its folder) is missing here or has other bytes."""
    hint = "bring the driver's files there under the same path, or give a model of the Hub (model.repo_id)"
    for path, digest in inputs.items():
        if not Path(path).is_file():
            raise InputError(f"model file {Path(path).resolve()}", "is not there", hint=hint)
        if sha256_file(Path(path)) != digest:
            raise InputError(f"model file {Path(path).resolve()}", "differs from the driver's", hint=hint)


def on_this_gpu(recipe: DatasetRecipe) -> DatasetRecipe:
    """The recipe with device ``cuda``: Ray shows a worker its own GPUs alone, whatever number the recipe names."""
    if not recipe.model.device.startswith("cuda:"):
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"device": "cuda"})})


def is_here(path: Path, content: str) -> bool:
    """Whether this machine reads a file with this content."""
    try:
        return path.read_text(encoding="utf-8") == content
    except OSError:
        return False


@dataclass
class InFlightTask:
    """A task submitted to an actor; it is ``running`` or waits behind another one."""

    ref: Any
    task: Task
    running: bool = False


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
        ref = self.actor.do.remote(task, self.node.name, file_server)
        self.in_flight.append(InFlightTask(ref, task, running=not self.in_flight))

    def drop(self, in_flight: InFlightTask) -> None:
        """Stop waiting for a task."""
        self.in_flight.remove(in_flight)
        if self.in_flight:
            self.in_flight[0].running = True


class WorkerPool:
    """All workers of a run: at most ``most``, or as many as there is room for.

    ``patience``: seconds without a node to work on; ``growing``: a cluster with an autoscaler that was asked for nodes.
    """

    def __init__(self, ray: Any, spec: WorkerSpec, nodes: Nodes, most: int | None, patience: float, growing: bool):
        self._ray, self._spec, self._directory = ray, ray.put(spec), spec.directory
        self._versions, self._here = spec.versions, ray.get_runtime_context().get_node_id()
        self.nodes, self._most, self._patience, self._growing = nodes, most, patience, growing
        self.workers = list[WorkerHandle]()
        self.facts: dict[str, Any] | None = None
        self._file_server: Any = None
        self._reported = set[str]()
        self._looked = float("-inf")
        self._empty = self._unmanned = 0.0  # seconds that were seen without a node, without a ready worker

    def reconcile(self, now: bool = False) -> None:
        """Every other second, or ``now``: see which nodes are there, and start workers wherever there is room.

        Raises RunError when there was no usable node for too long, at once when all were left out.
        """
        clock = time.monotonic()
        if not now and clock - self._looked < LOOK:
            return
        seconds, self._looked = min(clock - self._looked, 2 * LOOK), clock
        self.nodes.update(self._ray.nodes())
        self.report(f"warning: node {name} is left out: {why}" for name, why in self.nodes.problems().items())
        for node in self.nodes.placements(Counter(worker.node.id for worker in self.workers), self._most):
            self._start(node)
        self._empty = 0.0 if self.nodes.usable() else self._empty + seconds
        self._unmanned = 0.0 if self.ready() else self._unmanned + seconds
        if not self.nodes.usable():
            if not self.workers and (self._empty > self._patience or self.nodes.hopeless(self._growing)):
                raise self.nodes.none_left()
            self.report(["no node can have a worker now: waiting for one"])
        elif self._unmanned > SILENCE:
            self.report([f"no worker is ready for {SILENCE:.0f} s: the cluster is busy, or the model loads slowly"])

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
        """Read the report of a worker that was started. Raises the error that kept it from starting."""
        report: WorkerReport = self._ray.get(worker.preparing)
        worker.preparing, worker.sees = None, report.sees
        self.facts = self.facts or report.facts
        self.report(report.messages)

    def submit(self, worker: WorkerHandle, task: Task) -> None:
        """Send a task to a worker; one that does not see the run directory gets its file server."""
        if not worker.sees and self._file_server is None:
            options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
            self._file_server = self._actor(FileServer, self._here, options).remote(self._directory)
        worker.submit(task, None if worker.sees else self._file_server)

    def cancel_queued(self) -> None:
        """Take back the tasks that wait behind another one."""
        for worker in self.workers:
            for one in [one for one in worker.in_flight if not one.running]:
                worker.drop(one)
                self._ray.cancel(one.ref, recursive=False)

    def lost(self, worker: WorkerHandle, reason: str) -> None:
        """Remove a worker that failed. Its node is left out after ``LOSSES`` of them with no finished task."""
        self.remove(worker)
        worker.node.losses += 1
        if worker.node.losses >= LOSSES:
            worker.node.problem = f"{LOSSES} workers failed there one after the other, the last: {reason}"

    def out_of_memory(self, worker: WorkerHandle, reason: str) -> None:
        """Remove a worker that found too little memory: its node gets one less from now on."""
        node = worker.node
        node.room = min(node.room, sum(one.node is node for one in self.workers)) - 1
        self.remove(worker)
        if node.room > 0:
            self.report([f"warning: node {node.name} has memory for {node.room} workers at most"])
        else:
            node.problem = f"it has too little memory for a worker: {reason}"

    def remove(self, worker: WorkerHandle) -> None:
        """End a worker, whatever it does."""
        self._ray.kill(worker.actor)
        self.workers.remove(worker)

    def report(self, messages: Iterable[str]) -> None:
        """Print each message once: many workers send the same."""
        for message in messages:
            if message not in self._reported:
                self._reported.add(message)
                cli.say(message)

    def close(self) -> None:
        """End all workers, and wait until they are gone."""
        refs = [one.ref for worker in self.workers for one in worker.in_flight]
        for worker in list(self.workers):
            self.remove(worker)
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=RELEASE, fetch_local=False)
        if self._file_server is not None:
            self._ray.kill(self._file_server)

    def _start(self, node: Node) -> None:
        """Start a worker. Ray must not restart it: the cause of its end decides where its task goes."""
        share = self.nodes.share
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "memory": int(share.memory) or None}
        actor = self._actor(RemoteWorker, node.id, options | {"max_restarts": 0, "max_task_retries": 0}).remote()
        known = node.id == self._here
        self.workers.append(WorkerHandle(node, actor, actor.prepare.remote(self._versions, [self._spec], known)))

    def _actor(self, kind: type, node: str, options: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        place = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(**options, scheduling_strategy=place)(kind)
