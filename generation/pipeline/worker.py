"""Worker: a language model that does a recipe's tasks; and the executor with one worker.

The executor uses the texts of an estimate's pilots instead of generating them again. They are in
``NAME.pilot.json`` beside the run directory until the run is complete. They change no byte of the
run. They are stored and used only where a text does not depend on its batch: float32 on a CPU, with
one thread. And only a run with the recipe, inputs and versions of the pilots uses them.
"""

import hashlib
import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import groupby, tee
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sts_dino.generation.backends.protocol import Completion, Request, Writer, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.generation.inputs.sources import CountTokens, find_text_problem
from sts_dino.generation.pipeline.finish import LENGTH_IN_WORDS, TextLength, finish_group
from sts_dino.generation.pipeline.reporting import report_usage
from sts_dino.generation.pipeline.tasks import (
    Executor,
    ExecutorSpec,
    Read,
    Task,
    TaskResult,
    Tick,
    WriteShard,
    WriteSourceSentences,
    make_shard_result,
)
from sts_dino.generation.rows.attempts import generate_shards
from sts_dino.generation.rows.filters import TextFilters
from sts_dino.hub.contract.published_paths import hide_folders
from sts_dino.hub.contract.recipe import DatasetRecipe, DecodingParameters, Variant
from sts_dino.hub.durable import write_text

logger = logging.getLogger(__name__)

Completed = tuple[Request, Completion]


class _TaskFeed(Iterator[WriteShard]):
    """An iterator over waiting shards that ends when none waits, and resumes when one is added.

    A generator could not resume after its end.
    """

    def __init__(self) -> None:
        self.waiting = deque[WriteShard]()

    def __next__(self) -> WriteShard:
        if self.waiting:
            return self.waiting.popleft()
        raise StopIteration


class Worker:
    """One language model with the prompts and filters of one recipe.

    Args:
        recipe: the dataset's recipe.
        prompts: the prompts of the recipe.
        writer: the loaded language model.
    """

    def __init__(self, recipe: DatasetRecipe, prompts: Prompts, writer: Writer):
        self.recipe = recipe
        self.prompts = prompts
        self.writer = writer
        self._filters = TextFilters(recipe, prompts.sets)
        # the stream of shards that earlier calls began, and the keys of its unfinished shards
        self._feed = _TaskFeed()
        self._stream: Iterator[TaskResult] = iter(())
        self._begun: set[str] = set()

    def do_task(self, task: Task, read: Read, ahead: Sequence[Task] = ()) -> TaskResult:
        """Do a task and return its result, with its files in memory.

        Args:
            task: the task.
            read: path from the run directory → full path or content of a file that is written.
            ahead: the next tasks; the shards among them may be begun before this task is done.

        Raises the errors of ``Writer.stream``, such as InputError for a prompt that does not fit
        the model's context, and those of ``rows.selection.load_selector``.
        """
        started = time.monotonic()
        if isinstance(task, WriteShard):
            return self._generate_next_shard(task, ahead)
        if isinstance(task, WriteSourceSentences):
            result = self._generate_source_sentences(task)
        else:
            length = choose_text_length(self.recipe, self.writer.count_tokens)
            result, _ = finish_group(self.recipe, task, read, length.measure)
        return result.model_copy(update={"seconds": time.monotonic() - started})

    def _generate_next_shard(self, task: WriteShard, ahead: Sequence[Task]) -> TaskResult:
        """Return the result of a shard, and begin the shards ahead in the same stream.

        An earlier call may have begun the shard in the current stream; otherwise a new stream
        starts. ``ahead``: the next tasks; those that are no shard of the same variant are ignored.
        """
        # feed the shard, and those ahead of the same variant, to the stream
        variant = task.shard.variant
        if task.key not in self._begun:
            self._begun = set()
            self._feed = _TaskFeed()
            self._stream = self.generate_shards(self._feed, variant)
        for next_task in (task, *ahead):
            if (
                isinstance(next_task, WriteShard)
                and next_task.shard.variant == variant
                and next_task.key not in self._begun
            ):
                self._feed.waiting.append(next_task)
                self._begun.add(next_task.key)

        # read its result; after an error no shard counts as begun, so the next call starts anew
        begun = self._begun
        self._begun = set()
        for result in self._stream:
            begun.discard(result.key)
            if result.key == task.key:  # else another worker has done this earlier shard
                self._begun = begun
                return result
        raise AssertionError(f"no result for {task.key}")

    def generate_shards(
        self, tasks: Iterable[WriteShard], variant: Variant, tick: Tick = lambda _: None
    ) -> Iterator[TaskResult]:
        """Yield the results of shards of one variant, in order.

        Later shards are begun before the first one is done (``rows.attempts.generate_shards``,
        whose errors are raised).

        Args:
            tasks: the shards, which are read as the model needs further requests.
            variant: shot count and example set of all shards.
            tick: called with 1 for each text that is accepted or given up.
        """
        started = time.monotonic()
        # the generation reads the tasks ahead of this loop; unlike a generator, map can resume
        # after its end, as _TaskFeed does
        tasks_ahead, tasks = tee(tasks)
        sentences = map(attrgetter("sentences"), tasks_ahead)
        shard_rows = generate_shards(
            self.writer, self.prompts, self.recipe, sentences, tick, variant
        )
        for task, rows in zip(tasks, shard_rows, strict=True):
            result = make_shard_result(self.recipe, task, rows.raw, rows.rejected)
            yield result.model_copy(update={"seconds": time.monotonic() - started})
            started = time.monotonic()

    def _generate_source_sentences(self, task: WriteSourceSentences) -> TaskResult:
        """Generate a source sentence for every number (DINO sections 3 and 4).

        The prompt is a label's instruction, cut after the quotation mark that opens the source
        sentence; the labels take turns. Texts are sampled at ``source.top_p``, without top-k and
        without counter-prompts.

        Returns the task's result, without files. Its facts are a list of rows of the config
        ``sources``, in the order of the numbers. Each has a ``reason``: why its text cannot be a
        source sentence, or None. Raises the errors of ``Writer.stream``.
        """
        # generate a text for each number
        recipe = self.recipe
        labels = []
        requests = []
        for number in task.numbers:
            label = recipe.written_labels[number % len(recipe.written_labels)]
            prefix = self.prompts.get_source_prefix(label)
            labels.append(label)
            requests.append(Request(prefix, (), make_seed(recipe.seed, "x1", number)))
        settings = DecodingParameters(
            decay_constant=0.0,
            top_k=0,
            top_p=recipe.source.top_p,
            max_new_tokens=recipe.decoding.max_new_tokens,
        )
        completions = complete(self.writer, requests, settings, recipe.decoding.batch_size)

        # make their rows
        rows = []
        for number, label, request, completion in zip(
            task.numbers, labels, requests, completions, strict=True
        ):
            text = completion.text
            reason = (
                completion.problem
                or find_text_problem(text, recipe.premise_tokens, self.writer.count_tokens)
                or self._filters.find_reason(text)
            )
            row = {
                "source_id": f"{number:06d}",
                "text": text,
                "instruction": label.name,
                "seed": request.seed,
                "log_prob": completion.log_prob,
                "reason": reason,
            }
            rows.append(row)
        usable = sum(row["reason"] is None for row in rows)
        return TaskResult(key=task.key, task=task, facts=rows, rows=usable)


def choose_text_length(recipe: DatasetRecipe, count_tokens: CountTokens) -> TextLength:
    """Return how the length of a text is measured for the dataset card.

    The length is in the model's tokens for a local model, and for a server if the recipe limits the
    tokens of a source sentence; else it is in words. ``count_tokens``: counts the model's tokens of
    a text.
    """
    model = recipe.model
    if not model.is_local and recipe.premise_tokens is None:
        return LENGTH_IN_WORDS
    return TextLength("tokens", model.repo_id or hide_folders(model.path or ""), count_tokens)


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


class _WrappedWriter:
    """Base of writers with a ``stream`` of their own and all other attributes of ``writer``."""

    def __init__(self, writer: Any, completions: dict[str, Completion]):
        self._writer = writer
        self._completions = completions  # SHA-256 of a request (``hash_request``) → its completion

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)


class RecordingWriter(_WrappedWriter):
    """A writer that keeps every completion in memory, and can store them all."""

    def stream(self, queue: deque[Request], *settings: Any) -> Iterator[Completed]:
        """Complete the requests of ``queue``, see ``Writer.stream``."""
        for request, completion in self._writer.stream(queue, *settings):
            self._completions[hash_request(request)] = completion
            yield request, completion

    def store(self, run_directory: Path, run_key: str) -> None:
        """Write the completions beside a run directory, for the run with the key ``run_key``.

        Raises OSError when the disk fails.
        """
        record = PilotRecord(run_key=run_key, completions=self._completions)
        write_text(get_pilot_path(run_directory), json.dumps(record.model_dump()) + "\n")


class AnsweringWriter(_WrappedWriter):
    """A writer that answers known requests with stored completions.

    The wrapped writer completes all other requests.
    """

    def stream(self, queue: deque[Request], *settings: Any) -> Iterator[Completed]:
        """Complete the requests of ``queue``, the known ones first; see ``Writer.stream``.

        ``settings``: the other arguments of ``Writer.stream``.
        """
        yield from self._answer_known(queue)
        length = len(queue)
        for request, completion in self._writer.stream(queue, *settings):
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
    """Return a writer that uses the texts of this run's pilots, or ``writer`` if there are none.

    A file of another run, or one that this code did not write, is ignored. ``writer`` is returned,
    too, where a text depends on its batch.

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


class LocalExecutor:
    """Executor with one worker, in this process. ``directory``: the run directory."""

    def __init__(self, worker: Worker, directory: Path):
        self.worker = worker
        self.model = worker.writer
        self.describe = worker.writer.describe
        # a server does not report unfinished texts
        self.measure_texts_in_progress = getattr(
            worker.writer, "measure_texts_in_progress", lambda: 0.0
        )
        self._directory = directory

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Do tasks in order, and yield their results in this order (``Executor.run_tasks``).

        Consecutive shards of one variant share a stream, so that the batch stays full. ``tick`` is
        called for the texts of shards only. Raises the errors of ``Worker.do_task``.
        """
        for variant, group in groupby(tasks, _get_variant):
            if variant is None:
                for task in group:
                    yield self.worker.do_task(task, self._directory.joinpath)
            else:
                shard_tasks = (task for task in group if isinstance(task, WriteShard))
                yield from self.worker.generate_shards(shard_tasks, variant, tick)


def _get_variant(task: Task) -> Variant | None:
    """Return the variant of a shard's task; None for other tasks."""
    return task.shard.variant if isinstance(task, WriteShard) else None


@contextmanager
def start_local_executor(spec: ExecutorSpec, workers: int = 1) -> Iterator[Executor]:
    """Load the model in this process, and yield the executor.

    Args:
        spec: the run.
        workers: threads that generate with this model at the same time.

    Raises InputError when the model cannot be loaded, OutOfMemory when it does not fit into memory,
    and RunError when the Hub or the disk fails.
    """
    writer = load_writer(spec.recipe.model, spec.directory, workers)
    writer = use_pilot_texts(writer, spec.recipe, spec.directory, spec.run)
    with report_usage(writer, spec.directory):
        yield LocalExecutor(Worker(spec.recipe, spec.prompts, writer), spec.directory)
