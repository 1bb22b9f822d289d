"""Worker: a language model that does a recipe's tasks; and the executor with one worker."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, tee
from operator import attrgetter
from pathlib import Path

from sts_dino.generation.backends.protocol import Request, Writer, complete
from sts_dino.generation.backends.registry import load_writer
from sts_dino.generation.inputs.prompts import Prompts
from sts_dino.generation.inputs.row_seeds import make_seed
from sts_dino.generation.inputs.sources import CountTokens, find_text_problem
from sts_dino.generation.pipeline.finish import LENGTH_IN_WORDS, TextLength, finish_group
from sts_dino.generation.pipeline.pilot_texts import use_pilot_texts
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
    """One language model with the prompts and filters of one recipe."""

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
        """Do a task and return its result.

        Raises InputError when a prompt and the token budget do not fit the model's context.

        Args:
            task: the task.
            read: returns the path or content of a finished file of the run.
            ahead: the next tasks; the shards among them may be begun before this task is done.
        """
        started = time.monotonic()
        if isinstance(task, WriteShard):
            return self._generate_next_shard(task, ahead)
        if isinstance(task, WriteSourceSentences):
            result = self._generate_source_sentences(task)
        else:
            length = choose_text_length(self.recipe, self.writer.count_tokens)
            result, _ = finish_group(self.recipe, task, read, length.measure)
        return result.replace(seconds=time.monotonic() - started)

    def _generate_next_shard(self, task: WriteShard, ahead: Sequence[Task]) -> TaskResult:
        """Return the result of a shard, and begin the shards ahead in the same stream.

        An earlier call may have begun the shard in the current stream; otherwise a new stream
        starts.
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

        Later shards are begun before the first one is done (``rows.attempts.generate_shards``).

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
            yield result.replace(seconds=time.monotonic() - started)
            started = time.monotonic()

    def _generate_source_sentences(self, task: WriteSourceSentences) -> TaskResult:
        """Generate a source sentence for every number (DINO sections 3 and 4).

        The prompt is a label's instruction, cut after the quotation mark that opens the source
        sentence; the labels take turns. Texts are sampled at ``source.top_p``, without top-k and
        without counter-prompts.

        Returns the task's result. Its facts are a list of rows of the config ``sources``, each with
        a ``reason``: why the text cannot be a source sentence, or None.
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
            reason = completion.problem
            reason = reason or find_text_problem(
                text, recipe.premise_tokens, self.writer.count_tokens
            )
            reason = reason or self._filters.find_reason(text)
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
    tokens of a source sentence; else it is in words. ``count_tokens``: the model's token counter.
    """
    model = recipe.model
    if not model.is_local and recipe.premise_tokens is None:
        return LENGTH_IN_WORDS
    return TextLength("tokens", model.repo_id or hide_folders(model.path or ""), count_tokens)


class LocalExecutor:
    """Executor with one worker, in this process."""

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
        """See ``Executor``: one task after the other, but shards of one variant in one stream."""
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

    Raises InputError when the model cannot be loaded.
    """
    writer = load_writer(spec.recipe.model, spec.directory, workers)
    writer = use_pilot_texts(writer, spec.recipe, spec.directory, spec.run)
    with report_usage(writer, spec.directory):
        yield LocalExecutor(Worker(spec.recipe, spec.prompts, writer), spec.directory)
