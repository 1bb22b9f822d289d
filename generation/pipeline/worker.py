"""Worker: a language model that does a recipe's tasks; and the executor with one worker, in this process."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, tee
from operator import attrgetter
from pathlib import Path
from typing import Any

from generation.backends.protocol import Request, Writer, complete
from generation.backends.registry import load_writer
from generation.inputs.prompts import Prompts
from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import CountTokens, text_problem
from generation.pipeline.finish import finish_group
from generation.pipeline.reporting import report_usage
from generation.pipeline.tasks import (
    Executor,
    ExecutorSpec,
    Read,
    Task,
    TaskResult,
    Tick,
    WriteShard,
    WriteSourceSentences,
    shard_files,
)
from generation.rows.attempts import write_shards
from generation.rows.counts import WORDS, TextLength
from generation.rows.filters import TextFilters
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe, DecodingParameters, Variant


class _Feed(Iterator[WriteShard]):
    """Tasks that come one by one: it ends when there are none, and goes on when there are more."""

    def __init__(self) -> None:
        self.tasks = deque[WriteShard]()

    def __next__(self) -> WriteShard:
        if self.tasks:
            return self.tasks.popleft()
        raise StopIteration


class Worker:
    """One language model with the prompts and filters of one recipe."""

    def __init__(self, recipe: DatasetRecipe, prompts: Prompts, writer: Writer):
        self.recipe, self.prompts, self.writer = recipe, prompts, writer
        self._filters = TextFilters(recipe, prompts.sets)
        self._begun = set[str]()  # keys of the shards of the stream that are not done
        self._feed, self._stream = _Feed(), iter(list[TaskResult]())

    def do(self, task: Task, read: Read, ahead: Sequence[Task] = ()) -> TaskResult:
        """Do a task; ``read`` gives the run's finished files. Shards ``ahead``, the next tasks, are begun meanwhile.

        Raises InputError when a prompt and the token budget do not fit the model's context.
        """
        started = time.monotonic()
        if isinstance(task, WriteShard):
            return self._write_next(task, ahead)
        if isinstance(task, WriteSourceSentences):
            result = self._source_sentences(task)
        else:
            result = finish_group(self.recipe, task, read, text_length(self.recipe, self.writer.count_tokens).of)[0]
        return result.with_(seconds=time.monotonic() - started)

    def _write_next(self, task: WriteShard, ahead: Sequence[Task]) -> TaskResult:
        """The result of a shard, from the stream in which an earlier call began it, else from a new one."""
        variant = task.shard.variant
        if task.key not in self._begun:
            self._begun, self._feed = set(), _Feed()
            self._stream = self.write(self._feed, variant)
        for one in (task, *ahead):
            if isinstance(one, WriteShard) and one.shard.variant == variant and one.key not in self._begun:
                self._feed.tasks.append(one)
                self._begun.add(one.key)
        begun, self._begun = self._begun, set()  # an error ends the stream
        for result in self._stream:
            begun.discard(result.key)
            if result.key == task.key:  # others were done elsewhere
                self._begun = begun
                return result
        raise AssertionError(f"no result for {task.key}")

    def write(self, tasks: Iterable[Any], variant: Variant, tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """Write shards of one variant, in order; the next ones are begun before one is done (``write_shards``)."""
        (ahead, tasks), started = tee(tasks), time.monotonic()
        sentences = map(attrgetter("firsts"), ahead)
        written = write_shards(self.writer, self.prompts, self.recipe, sentences, tick, variant)
        for task, (raw, failed) in zip(tasks, written, strict=False):
            result = shard_files(self.recipe, task, raw, failed)
            yield result.with_(seconds=time.monotonic() - started)
            started = time.monotonic()

    def _source_sentences(self, task: WriteSourceSentences) -> TaskResult:
        """Facts: for every number a row of the config ``sources``, with a ``reason`` where it cannot be one.

        The labels' instructions take turns, cut after the quotation mark that opens the sentence; nucleus sampling at
        ``source.top_p`` without top-k (DINO sections 3 and 4).
        """
        recipe, own = self.recipe, self.recipe.written_labels
        labels = [own[number % len(own)] for number in task.numbers]
        requests = [
            Request(self.prompts.source_sentence_prefix(label), (), row_seed(recipe.seed, "x1", number))
            for number, label in zip(task.numbers, labels, strict=True)
        ]
        settings = DecodingParameters(
            decay_constant=0.0, top_k=0, top_p=recipe.source.top_p, max_new_tokens=recipe.decoding.max_new_tokens
        )
        completions = complete(self.writer, requests, settings, recipe.decoding.batch_size)
        rows = [
            {
                "source_id": f"{number:06d}",
                "text": completion.text,
                "instruction": label.name,
                "seed": request.seed,
                "log_prob": completion.log_prob,
                "reason": completion.problem
                or text_problem(completion.text, recipe.premise_tokens, self.writer.count_tokens)
                or self._filters.reason(completion.text),
            }
            for number, label, request, completion in zip(task.numbers, labels, requests, completions, strict=True)
        ]
        return TaskResult(key=task.key, task=task, facts=rows, rows=sum(row["reason"] is None for row in rows))


def text_length(recipe: DatasetRecipe, count_tokens: CountTokens) -> TextLength:
    """How the card counts the length of a text: in the generator's tokens; behind a server mostly in words."""
    model = recipe.model
    if not model.facts.local and recipe.premise_tokens is None:
        return WORDS
    return TextLength("tokens", model.repo_id or published_path(model.path or ""), count_tokens)


class LocalExecutor:
    """Executor with one worker, in this process."""

    def __init__(self, worker: Worker, directory: Path):
        self.worker, self._directory = worker, directory
        self.model, self.describe = worker.writer, worker.writer.describe
        self.in_progress = getattr(worker.writer, "in_progress", lambda: 0.0)  # no server tells

    def run_tasks(self, tasks: Iterable[Task], tick: Tick = lambda _: None) -> Iterator[TaskResult]:
        """See ``Executor``: one task after the other, but shards of one variant in one stream."""
        for variant, alike in groupby(tasks, lambda task: task.shard.variant if isinstance(task, WriteShard) else None):
            if variant:
                yield from self.worker.write(alike, variant, tick)
            else:
                yield from (self.worker.do(task, self._directory.joinpath) for task in alike)


@contextmanager
def local_executor(spec: ExecutorSpec, workers: int = 1) -> Iterator[Executor]:
    """Load the model in this process, for so many threads that write. Raises InputError when it cannot be loaded."""
    writer = load_writer(spec.recipe.model, spec.directory, workers)
    with report_usage(writer, spec.directory):
        yield LocalExecutor(Worker(spec.recipe, spec.prompts, writer), spec.directory)
