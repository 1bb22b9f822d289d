"""Who does a run's tasks: one worker in this process, or many on a cluster (``generation.cluster``)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from generation.backends.usage import told_usage
from generation.prompts import Prompts
from generation.tasks import Made, Task, Tick
from generation.worker import Worker
from generation.writer import load_writer
from hub.recipe import DatasetRecipe


class Crew(Protocol):
    """Workers of one recipe."""

    def work(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[Made]:
        """Do tasks; what they give, in whatever order it comes.

        ``tasks`` is read as workers become free, never far ahead. Every file in what is given is either whole in the
        run directory or handed over. The caller may stop listening; what is under way then is given up.
        """
        ...

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``, without special tokens."""
        ...

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the manifest (``generation.writer.Writer.describe``)."""
        ...


@dataclass(frozen=True)
class Contract:
    """What a crew is hired for. ``run``: names recipe, inputs and code; what was made under another is not ours."""

    recipe: DatasetRecipe
    prompts: Prompts
    directory: Path
    run: str


Hire = Callable[[Contract], AbstractContextManager[Crew]]


class OneProcess:
    """A crew of one, in this process."""

    def __init__(self, worker: Worker, directory: Path):
        self.worker, self._directory = worker, directory

    def work(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[Made]:
        """See ``Crew``: one task after the other."""
        for task in tasks:
            yield self.worker.do(task, self._directory.joinpath, tick)

    def count_tokens(self, text: str) -> int:
        """See ``Crew``."""
        return self.worker.writer.count_tokens(text)

    def describe(self) -> dict[str, Any]:
        """See ``Crew``."""
        return self.worker.writer.describe()


@contextmanager
def one_process(contract: Contract) -> Iterator[Crew]:
    """Hire this process. Raises InputError when the model cannot be loaded."""
    writer = load_writer(contract.recipe.model, contract.directory)
    with told_usage(writer, contract.directory):
        yield OneProcess(Worker(contract.recipe, contract.prompts, writer), contract.directory)
