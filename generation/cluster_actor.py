"""What runs on the nodes of a cluster: a worker with its model, and the library that lends files of the run directory.

``generation.cluster_team`` makes Ray actors of both. A worker is told a recipe, its few-shot examples and tasks, and
hands back bytes: it needs this package and the model's files, and no disk that is shared.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from generation import versions
from generation.examples import ExampleSet
from generation.memory import typed_out_of_memory
from generation.prompts import Prompts
from generation.source_digest import digest_of, module_digests
from generation.store import Store
from generation.tasks import Made, Task
from generation.worker import Worker
from generation.writer import load_writer
from hub import cli
from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.shards import sha256_file

CLUSTER_CODE = "sts-dino cluster code"


@dataclass(frozen=True)
class Job:
    """What every worker of a run is told."""

    recipe: DatasetRecipe
    sets: Mapping[int, Sequence[ExampleSet]]
    run: str  # its folder in a store
    directory: Path
    probe: tuple[Path, str]  # a file beside the run directory: who finds this content there, sees the directory
    folder: Path  # where the recipe's relative paths start
    inputs: Mapping[str, str]  # the model's files → SHA-256, for nodes that are not the driver's
    versions: Mapping[str, str]
    threads: int | None  # of a worker whose recipe names none
    store: tuple[str, str] | None  # its URL, and the driver's mark in it


@dataclass(frozen=True)
class Ready:
    """A worker's report. ``facts``: of ``Writer.describe``; ``said``: what there is to tell people."""

    facts: dict[str, Any]
    sees: bool
    said: tuple[str, ...]


class RemoteWorker:
    """A worker on some node. Ray makes it, then ``prepare`` is called once."""

    def __init__(self) -> None:
        self._said = list[str]()
        cli.listeners[:] = [self._said.append]

    def prepare(self, driver: Mapping[str, str], job: list[Any], known: bool) -> Ready:
        """Load the model. ``driver``: its versions; ``job``: a reference, read when they agree; ``known``: its node.

        Raises InputError when this node's versions, model files or store are not the driver's, OutOfMemory when there
        is no room for the model.
        """
        require_versions(driver, code_versions())
        import ray

        told: Job = ray.get(job[0])
        if told.folder.is_dir():
            os.chdir(told.folder)
        if not known:
            require_files(told.inputs)
        if told.threads:
            import torch

            torch.set_num_threads(told.threads)
        self._store = Store(told.store[0], told.run, proven=True) if told.store else None
        if self._store and told.store:
            self._store.require(told.store[1])
        recipe = on_this_gpu(told.recipe)
        with typed_out_of_memory("for the model", "start fewer workers there (--cpus, --gpus)"):
            writer = load_writer(recipe.model)
        self._worker, self._directory = Worker(recipe, Prompts(recipe, told.sets), writer), told.directory
        self._sees = is_here(*told.probe)
        return Ready(writer.describe(), self._sees, self._heard())

    def do(self, task: Task, node: str, library: Any) -> tuple[Made, tuple[str, ...]]:
        """What a task gives, done here or found in the store, and what there is to tell people. Raises OutOfMemory."""
        with typed_out_of_memory(f"for {task.key}", "start fewer workers there (--cpus, --gpus)"):
            made = self._store.found(task) if self._store else None
            if made is None:
                made = replace(self._worker.do(task, self._reader(library)), node=node)
                made = self._store.keep(made) if self._store else made
        return replace(made, node=node), self._heard()

    def _reader(self, library: Any) -> Callable[[str], Path | bytes]:
        """A file of the run directory: its path where this node sees it, else its content from the library."""

        def read(path: str) -> Path | bytes:
            here = self._directory / path
            if library is None or (self._sees and here.is_file()):
                return here
            import ray

            content: bytes = ray.get(library.read.remote(path))
            return content

        return read

    def _heard(self) -> tuple[str, ...]:
        said = tuple(self._said)
        self._said.clear()
        return said


class Library:
    """Lends the files of a run directory to workers that do not see it."""

    def __init__(self, directory: Path):
        self._directory = directory.resolve()

    def read(self, path: str) -> bytes:
        """The content of a file. Raises InputError for a path that leads out of the run directory."""
        full = (self._directory / path).resolve()
        if not full.is_relative_to(self._directory):
            raise InputError(path, "leads out of the run directory")
        return full.read_bytes()


def code_versions() -> dict[str, str]:
    """What has to be the same on all nodes: what decides the bytes, and every module of ours that a worker imports."""
    return versions.versions() | {CLUSTER_CODE: cluster_digest()}


@cache
def cluster_digest() -> str:
    """SHA-256, shortened, over the code of ours that this module can reach."""
    return digest_of(module_digests(__name__))


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
