"""Ray actors of a run: a worker with its model, and the file server for the run directory.

``generation.cluster.pool`` starts both. A worker is told a recipe, its few-shot examples and tasks, and hands back
bytes: it needs this package and the model's files, and no disk that is shared.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from generation.backends.registry import load_writer
from generation.cluster.nodes import WorkerResources
from generation.cluster.result_store import ResultStore
from generation.inputs.examples import ExampleSet
from generation.inputs.prompts import Prompts
from generation.pipeline.worker import Worker
from generation.run_state.code_digest import digest_of, module_digests, versions
from generation.run_state.tasks import Task, TaskResult
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.durable import sha256_file
from hub.errors import InputError

CLUSTER_CODE = "sts-dino cluster code"


@dataclass(frozen=True)
class WorkerSpec:
    """What every worker of a run needs to know."""

    recipe: DatasetRecipe
    sets: Mapping[int, Sequence[ExampleSet]]
    run: str  # its folder in a store
    directory: Path
    probe: tuple[Path, str]  # a file beside the run directory: who finds this content there, sees the directory
    folder: Path  # where the recipe's relative paths start
    inputs: Mapping[str, str]  # the model's files → SHA-256, for nodes that are not the driver's
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
        """A task's result, made here or found in the store, and messages for people. Raises OutOfMemory."""
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
    """What has to be the same on all nodes: what decides the bytes, and every module of ours that a worker imports."""
    return versions() | {CLUSTER_CODE: digest_of(module_digests(__name__))}


def require_versions(driver: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise InputError when this node would not write the driver's bytes."""
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
            raise InputError(f"model file {Path(path).resolve()}", "is another than on the driver", hint=hint)


def on_this_gpu(recipe: DatasetRecipe) -> DatasetRecipe:
    """Ray shows a worker its own GPUs alone: ``cuda`` is the right one, whatever number the recipe names."""
    if not recipe.model.device.startswith("cuda:"):
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"device": "cuda"})})


def is_here(path: Path, content: str) -> bool:
    """Whether a file is this machine's to read, and the one that is meant."""
    try:
        return path.read_text(encoding="utf-8") == content
    except OSError:
        return False
