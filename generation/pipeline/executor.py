"""Executor protocol: who does a run's tasks, one worker in this process or many (``generation.cluster.executor``)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from generation.backends.registry import load_writer
from generation.inputs.prompts import Prompts
from generation.pipeline.usage import told_usage
from generation.pipeline.worker import Worker
from generation.run_state.tasks import Task, TaskResult, Tick
from hub.contract.recipe import DatasetRecipe


class Executor(Protocol):
    """Workers of one recipe."""

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks; their results, in whatever order they come.

        ``tasks`` is read as workers become free, never far ahead. Every file of a result is either whole in the run
        directory or handed over. The caller may stop listening; what is under way then is given up.
        """
        ...

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together; 0: not known."""
        ...

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        ...

    def prompt_tokens(self, prompt: str) -> int:
        """How many tokens the model reads of a prompt. Asked for only where the context is known."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the manifest (``generation.backends.protocol.Writer.describe``)."""
        ...


@dataclass(frozen=True)
class ExecutorSpec:
    """What an executor works on. ``run``: names recipe, inputs and code; results of another are not used."""

    recipe: DatasetRecipe
    prompts: Prompts
    directory: Path
    run: str


StartExecutor = Callable[[ExecutorSpec], AbstractContextManager[Executor]]


class LocalExecutor:
    """Executor with one worker, in this process."""

    def __init__(self, worker: Worker, directory: Path):
        self.worker, self._directory = worker, directory
        self.context, self.prompt_tokens = worker.writer.context, worker.writer.prompt_tokens
        self.count_tokens, self.describe = worker.writer.count_tokens, worker.writer.describe

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``Executor``: one task after the other."""
        for task in tasks:
            yield self.worker.do(task, self._directory.joinpath, tick)


@contextmanager
def local_executor(spec: ExecutorSpec) -> Iterator[Executor]:
    """Load the model in this process. Raises InputError when it cannot be loaded."""
    writer = load_writer(spec.recipe.model, spec.directory)
    with told_usage(writer, spec.directory):
        yield LocalExecutor(Worker(spec.recipe, spec.prompts, writer), spec.directory)
