"""Texts of the pilots of an estimate, which the run uses instead of generating them again.

They are in ``NAME.pilot.json`` beside the run directory until the run is complete. They change no
byte of the run: they are stored and used only where a text does not depend on its batch (float32 on
a CPU, one thread), and by a run with the recipe, inputs and versions of the pilots.
"""

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sts_dino.generation.backends.protocol import Completion, Request, Writer
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.durable import write_text

logger = logging.getLogger(__name__)

Completed = tuple[Request, Completion]


def get_pilot_path(run_directory: Path) -> Path:
    """Return the path of the file of pilot texts of a run directory."""
    return run_directory.with_name(f"{run_directory.name}.pilot.json")


def is_batch_independent(recipe: DatasetRecipe) -> bool:
    """Return whether a text is the same in every batch: float32 on a CPU with one thread.

    Call it after the model is loaded: loading sets the number of torch's threads.
    """
    import torch

    model = recipe.model
    is_float32_on_cpu = model.is_local and model.device == "cpu" and model.dtype == "float32"
    return is_float32_on_cpu and torch.get_num_threads() == 1


def hash_request(request: Request) -> str:
    """Return the SHA-256 of all values of a request except its key, which is the caller's own."""
    values = asdict(replace(request, key=None))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class PilotRecord(BaseModel, frozen=True, extra="forbid"):
    """The content of a file of pilot texts.

    ``run_key``: the key of the run that may use them.
    ``completions``: SHA-256 of a request (``hash_request``) → its completion.
    """

    run_key: str
    completions: dict[str, Completion]


class _WrappedWriter(ABC):
    """A writer that changes the stream of another one, and has all its other attributes."""

    def __init__(self, writer: Any):
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def stream(self, queue: deque[Request], *settings: Any) -> Iterator[Completed]:
        """Complete the requests of ``queue``, see ``Writer.stream``."""
        return self._change_stream(queue, self._writer.stream(queue, *settings))

    @abstractmethod
    def _change_stream(
        self, queue: deque[Request], completed: Iterator[Completed]
    ) -> Iterator[Completed]:
        """Yield what this writer completes, given the stream of the wrapped writer."""


class RecordingWriter(_WrappedWriter):
    """A writer that remembers every completion."""

    def __init__(self, writer: Writer):
        super().__init__(writer)
        self._completions: dict[str, Completion] = {}

    def _change_stream(
        self, queue: deque[Request], completed: Iterator[Completed]
    ) -> Iterator[Completed]:
        for request, completion in completed:
            self._completions[hash_request(request)] = completion
            yield request, completion

    def store(self, run_directory: Path, run_key: str) -> None:
        """Write the completions beside a run directory, for the run of ``run_key``."""
        record = PilotRecord(run_key=run_key, completions=self._completions)
        write_text(get_pilot_path(run_directory), json.dumps(record.model_dump()) + "\n")


class AnsweringWriter(_WrappedWriter):
    """A writer that takes the completions of known requests instead of generating them.

    Args:
        writer: generates all other texts.
        completions: SHA-256 of a request (``hash_request``) → its completion.
    """

    def __init__(self, writer: Writer, completions: dict[str, Completion]):
        super().__init__(writer)
        self._completions = completions

    def _change_stream(
        self, queue: deque[Request], completed: Iterator[Completed]
    ) -> Iterator[Completed]:
        yield from self._answer_known(queue)
        length = len(queue)
        for request, completion in completed:
            yield request, completion
            # Only a new shard makes the queue longer, so most texts cost no search.
            if len(queue) > length:
                yield from self._answer_known(queue)
            length = len(queue)

    def _answer_known(self, queue: deque[Request]) -> Iterator[Completed]:
        """Remove the known requests from the queue, and yield each with its completion.

        The caller may add requests between two yields, so the queue is searched until it has no
        known request. A completion is used once.
        """
        may_have_known = bool(self._completions)
        while may_have_known:
            known = list[Completed]()
            unknown = list[Request]()
            for request in queue:
                completion = self._completions.pop(hash_request(request), None)
                if completion is None:
                    unknown.append(request)
                else:
                    known.append((request, completion))
            queue.clear()
            queue.extend(unknown)
            yield from known
            may_have_known = bool(known) and bool(self._completions)


def use_pilot_texts(writer: Writer, recipe: DatasetRecipe, directory: Path, run_key: str) -> Writer:
    """Return a writer that uses the texts of this run's pilots, or ``writer`` without any.

    A file of another run, or one that cannot be read, is ignored.

    Args:
        writer: the loaded writer of the run.
        recipe: the recipe of the run.
        directory: the run directory.
        run_key: the key of the run (``pipeline.job.compute_run_key``).
    """
    path = get_pilot_path(directory)
    if not is_batch_independent(recipe) or not path.is_file():
        return writer
    try:
        record = PilotRecord.model_validate(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):  # a file that this code did not write
        return writer
    if record.run_key != run_key:
        return writer
    logger.info(f"{len(record.completions):,} texts of the estimate's pilots are used")
    answering_writer: Any = AnsweringWriter(writer, dict(record.completions))
    return answering_writer
