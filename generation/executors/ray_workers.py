"""Workers of a run on Ray: actors that get a recipe, its few-shot examples and tasks, and return
the contents of files.

A worker needs this package and the model's files, and no shared disk.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.executors.store import ResultStore
from sts_dino.generation.inputs.examples import ExampleSet
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.pipeline.code_digest import (
    combine_hashes,
    get_versions,
    hash_reachable_modules,
)
from sts_dino.generation.pipeline.tasks import Read, Task, TaskResult
from sts_dino.generation.pipeline.worker import Worker
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.durable import hash_file
from sts_dino.hub.errors import InputError
from sts_dino.hub.messages import MessageList, route_messages

if TYPE_CHECKING:
    from sts_dino.generation.executors.cluster import ClusterOptions

CLUSTER_CODE = "sts-dino cluster code"
PROCESS_BYTES = 12 * 10**8  # memory of a worker besides its model: libraries, activations
# memory of a worker for each byte of its weights: the packed output layer, and the keys and values
# of a full batch, come on top of the weights
BYTES_PER_WEIGHT_BYTE = 1.65
_GB = 10**9
_ROUNDING = 1e-6  # added to a quotient before it is cut: 0.3 / 0.1 must count as 3


@dataclass(frozen=True)
class WorkerResources:
    """Resources that one worker reserves on a node; ``memory`` in bytes."""

    cpus: float = 1
    gpus: float = 0
    memory: float = 0

    @property
    def by_name(self) -> dict[str, float]:
        """The amounts by Ray's names."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}

    def count_workers(self, resources: Mapping[str, float]) -> int:
        """Return how many workers fit on a node with these resources (Ray's name → amount)."""
        return min(
            int(resources.get(name, 0) / amount + _ROUNDING)
            for name, amount in self.by_name.items()
            if amount
        )

    def explain_no_room(self, resources: Mapping[str, float]) -> str:
        """Return a sentence on what a worker takes and what a node without room for one has.

        ``resources``: Ray's name → amount of the node.
        """
        # in the order of ``by_name``: CPU, GPU, memory
        cpus, gpus, memory = (resources.get(name, 0) for name in self.by_name)
        return (
            f"a worker takes {self.cpus:g} CPU, {self.gpus:g} GPU, {self.memory / _GB:.1f} GB of "
            f"memory, it has {cpus:g}, {gpus:g}, {memory / _GB:.1f} GB"
        )


def compute_worker_resources(recipe: DatasetRecipe, options: "ClusterOptions") -> WorkerResources:
    """Return the resources of one worker: CPUs, GPUs, and bytes of memory.

    CPUs are ``options.cpus``, else the recipe's ``model.threads``. Without both, they are one on a
    cluster, and on this machine its CPUs divided by the number of workers. GPUs are
    ``options.gpus``, else one for a model on a GPU and none for a model on the CPU. Memory is 0, so
    that none is reserved, for a model on a GPU or of unknown size, such as one of the Hub.

    Raises InputError for a missing or damaged GGUF file.
    """
    # count CPUs and GPUs
    model = recipe.model
    cpus = options.cpus or model.threads
    if not cpus:
        cpus = 1
        if not options.is_remote:
            cpus = max(1, (os.cpu_count() or 1) // (options.workers or 1))
    if model.device.startswith("cuda") or model.device_map is not None:
        return WorkerResources(cpus, options.gpus or 1)

    # estimate the memory of a local model
    memory = 0.0
    if model.path:
        from sts_dino.generation.backends.gguf_file import count_weight_bytes  # imports torch

        weights = count_weight_bytes(model.path, model.gguf_file, model.dtype)
        if weights:
            memory = BYTES_PER_WEIGHT_BYTE * weights + PROCESS_BYTES
    return WorkerResources(cpus, options.gpus or 0, memory)


@dataclass(frozen=True)
class WorkerSpec:
    """Everything that a worker of a run gets from the driver."""

    recipe: DatasetRecipe
    sets: Mapping[int, Sequence[ExampleSet]]  # shot count → its few-shot example sets
    run: str  # name of the run's folder in a store
    directory: Path  # the run directory; workers on other machines do not see it
    folder: Path  # where the recipe's relative paths start
    inputs: Mapping[str, str]  # model file → SHA-256, on a cluster; empty on this machine
    resources: WorkerResources
    store: tuple[str, str] | None  # its URL, and the driver's mark in it; None: results are sent


class WorkerAnswer(NamedTuple):
    """What a call of a worker returns: facts about the model or a task's result, and messages for
    the user.
    """

    value: Any
    messages: tuple[str, ...]


class RemoteWorker:
    """A worker on some node: a Ray actor. ``prepare`` is called once, before any task."""

    def __init__(self) -> None:
        handler = MessageList()
        route_messages(handler)
        self._messages = handler.messages

    def prepare(self, driver_versions: Mapping[str, str], spec_ref: list[Any]) -> WorkerAnswer:
        """Load the model, and return the facts of ``Writer.describe``.

        Args:
            driver_versions: versions of libraries and code of the driver.
            spec_ref: a list with Ray's reference to the ``WorkerSpec``. In a list Ray does not read
                it for us, so it is read after the versions were compared.

        Raises InputError when the versions, model files or store of this node differ from the
        driver's, or when the model cannot be loaded. Raises OutOfMemory when the model needs more
        memory, RunError or OSError when the Hub, a disk or the store fails.
        """
        # Compare this node with the driver's.
        require_versions(driver_versions, read_code_versions())
        import ray

        spec: WorkerSpec = ray.get(spec_ref[0])
        if spec.folder.is_dir():
            os.chdir(spec.folder)
        require_files(spec.inputs)
        self._store: ResultStore | None = None
        if spec.store:
            url, mark = spec.store
            self._store = ResultStore(url, spec.run, proven=True)
            self._store.require_mark(mark)

        # Load the model.
        recipe = spec.recipe
        if not (recipe.model.threads or spec.resources.gpus):
            import torch

            torch.set_num_threads(max(1, int(spec.resources.cpus)))
        if recipe.model.device.startswith("cuda:"):
            # Ray shows a worker its own GPUs alone, whatever number the recipe names.
            model = recipe.model.model_copy(update={"device": "cuda"})
            recipe = recipe.model_copy(update={"model": model})
        with convert_memory_errors("for the model"):
            writer = load_writer(recipe.model)
        self._worker = Worker(recipe, Prompts(recipe, spec.sets), writer)
        self._directory = spec.directory
        return WorkerAnswer(writer.describe(), self._take_messages())

    def do(
        self, task: Task, files: Mapping[str, bytes] | None, ahead: Sequence[Task] = ()
    ) -> WorkerAnswer:
        """Do a task and return its result, or return the result that the store already has.

        With a store the result comes without the contents of its files: they are in the store.

        Args:
            task: the task.
            files: path → content of the files that the task reads; None: read them from the run
                directory.
            ahead: the tasks of the next calls; shards among them may be begun before this task is
                done.

        Raises OutOfMemory when the task needs more memory, RunError or OSError when the store
        fails, and the errors of ``Worker.do_task``.
        """
        read: Read = self._directory.joinpath
        if files is not None:
            read = files.__getitem__
        with convert_memory_errors(f"for {task.key}"):
            result: TaskResult | None = None
            if self._store:
                result = self._store.find(task)
            if result is None:
                result = self._worker.do_task(task, read, ahead)
                if self._store:
                    result = self._store.put(result)
        return WorkerAnswer(result, self._take_messages())

    def _take_messages(self) -> tuple[str, ...]:
        """Return the messages that were logged since the last call."""
        messages = tuple(self._messages)
        self._messages.clear()
        return messages


def convert_memory_errors(purpose: str) -> AbstractContextManager[None]:
    """Raise out-of-memory errors of a block as OutOfMemory, with a hint for a cluster.

    ``purpose``: the end of the message "memory: is too small ...", e.g. ``for the model``.
    """
    from sts_dino.generation.backends.load_model import convert_out_of_memory

    return convert_out_of_memory(
        purpose, "start fewer workers there: raise --cpus-per-worker or --gpus-per-worker"
    )


@cache
def read_code_versions() -> dict[str, str]:
    """Return name → version of everything that must be the same on all nodes.

    These are the versions on which a dataset's bytes depend (``get_versions``), and under
    ``CLUSTER_CODE`` one digest of every module of ours that a worker imports.
    """
    modules = hash_reachable_modules(__name__)
    return get_versions() | {CLUSTER_CODE: combine_hashes(modules)}


def require_versions(driver: Mapping[str, str], node: Mapping[str, str]) -> None:
    """Raise InputError that lists the versions of this node that differ from the driver's.

    ``driver``, ``node``: name → version (``read_code_versions``).
    """
    differences: list[str] = []
    for name in sorted(driver.keys() | node.keys()):
        node_version = node.get(name, "missing")
        driver_version = driver.get(name, "missing")
        if node_version != driver_version:
            differences.append(f"{name} {node_version} (driver: {driver_version})")
    if differences:
        raise InputError(
            "versions",
            f"are not the driver's: {', '.join(differences)}",
            hint="install the same on every node",
        )


def require_files(inputs: Mapping[str, str]) -> None:
    """Raise InputError when a file of the driver is missing on this node or has other bytes.

    ``inputs``: path → SHA-256. A relative path starts at the working folder of this process.
    """
    hint = (
        "bring the driver's files there under the same path, or give a model of the Hub "
        "(model.repo_id)"
    )
    for path, digest in inputs.items():
        file_name = f"model file {Path(path).resolve()}"
        if not Path(path).is_file():
            raise InputError(file_name, "is not there", hint=hint)
        if hash_file(Path(path)) != digest:
            raise InputError(file_name, "differs from the driver's", hint=hint)
