"""Workers of a run on Ray: actors that get a recipe, its few-shot examples and tasks, and hand back bytes.

A worker needs this package and the model's files, and no shared disk.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generation.backends.registry import load_writer
from generation.executors.options import WorkerResources
from generation.executors.store import ResultStore
from generation.inputs.examples import ExampleSet
from generation.inputs.prompts import Prompts
from generation.pipeline.code_digest import digest_of, module_digests, versions
from generation.pipeline.tasks import Read, Task, TaskResult
from generation.pipeline.worker import Worker
from hub import cli
from hub.contract.recipe import DatasetRecipe
from hub.durable import sha256_file
from hub.errors import InputError

CLUSTER_CODE = "sts-dino cluster code"


@dataclass(frozen=True)
class WorkerSpec:
    """The facts that every worker of a run needs."""

    recipe: DatasetRecipe
    sets: Mapping[int, Sequence[ExampleSet]]
    run: str  # its folder in a store
    directory: Path  # of the run; workers on other machines do not see it
    folder: Path  # where the recipe's relative paths start
    inputs: Mapping[str, str]  # the model's files → SHA-256, for other machines
    resources: WorkerResources
    store: tuple[str, str] | None  # its URL, and the driver's mark in it


class RemoteWorker:
    """A worker on some node. Ray makes it, then ``prepare`` is called once."""

    def __init__(self) -> None:
        self._messages = list[str]()
        cli.listeners[:] = [self._messages.append]

    def prepare(self, driver: Mapping[str, str], spec_ref: list[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Load the model; return facts about it, and messages. ``spec_ref``: read when the ``driver`` has our versions.

        Raises InputError when this node's versions, model files or store are not the driver's, and OutOfMemory.
        """
        require_versions(driver, code_versions())
        import ray

        spec: WorkerSpec = ray.get(spec_ref[0])
        if spec.folder.is_dir():
            os.chdir(spec.folder)
        require_files(spec.inputs)
        if not (spec.recipe.model.threads or spec.resources.gpus):
            import torch

            torch.set_num_threads(max(1, int(spec.resources.cpus)))
        self._store = ResultStore(spec.store[0], spec.run, proven=True) if spec.store else None
        if self._store and spec.store:
            self._store.require(spec.store[1])
        recipe, model = spec.recipe, spec.recipe.model
        if model.device.startswith("cuda:"):  # Ray shows a worker its own GPUs alone, whatever number the recipe names
            recipe = recipe.model_copy(update={"model": model.model_copy(update={"device": "cuda"})})
        with _typed_out_of_memory("for the model"):
            writer = load_writer(recipe.model)
        self._worker, self._directory = Worker(recipe, Prompts(recipe, spec.sets), writer), spec.directory
        return writer.describe(), self._new_messages()

    def do(
        self, task: Task, files: Mapping[str, bytes] | None, ahead: Sequence[Task] = ()
    ) -> tuple[TaskResult, tuple[str, ...]]:
        """A task's result, and messages. Raises OutOfMemory.

        files: those that it reads; None: they are here. ahead: the tasks of the next calls.
        """
        read: Read = self._directory.joinpath if files is None else files.__getitem__
        with _typed_out_of_memory(f"for {task.key}"):
            result = self._store.find(task) if self._store else None
            if result is None:
                result = self._worker.do(task, read, ahead)
                result = self._store.put(result) if self._store else result
        return result, self._new_messages()

    def _new_messages(self) -> tuple[str, ...]:
        messages = tuple(self._messages)
        self._messages.clear()
        return messages


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
