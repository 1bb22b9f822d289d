"""Worker: a language model that does tasks with a recipe's prompts. It knows neither directories nor processes."""

import time
from dataclasses import replace

from generation.backends.protocol import Request, Writer, complete
from generation.inputs.prompts import Prompts
from generation.inputs.row_seeds import row_seed
from generation.inputs.sources import CountTokens, text_problem
from generation.pipeline.group_rows import finish_group
from generation.rows.attempts import write_pairs
from generation.rows.counts import WORDS, TextLength
from generation.rows.filters import TextFilters
from generation.run_state.output_files import shard_files
from generation.run_state.tasks import Read, Task, TaskResult, Tick, WriteFirstTexts, WriteShard
from hub.contract.published_paths import published_path
from hub.contract.recipe import DatasetRecipe, DecodingParameters


class Worker:
    """One language model with the prompts and filters of one recipe."""

    def __init__(self, recipe: DatasetRecipe, prompts: Prompts, writer: Writer):
        self.recipe, self.prompts, self.writer = recipe, prompts, writer
        self._copies = TextFilters(recipe, prompts.sets)

    def do(self, task: Task, read: Read, tick: Tick = lambda _: None) -> TaskResult:
        """Do a task. ``read`` gives the run's finished files; ``tick`` is told of accepted texts.

        Raises InputError when a prompt and the token budget do not fit the model's context.
        """
        started = time.monotonic()
        if isinstance(task, WriteShard):
            raw, failed = write_pairs(self.writer, self.prompts, self.recipe, task.firsts, tick, task.shard.variant)
            result = shard_files(self.recipe, task, raw, failed)
        elif isinstance(task, WriteFirstTexts):
            result = self._first_texts(task)
        else:
            result = finish_group(self.recipe, task, read, text_length(self.recipe, self.writer.count_tokens).of).result
        return replace(result, seconds=time.monotonic() - started)

    def _first_texts(self, task: WriteFirstTexts) -> TaskResult:
        """Facts: for every number a row of the config ``sources``, with a ``reason`` where it cannot be one.

        The labels' instructions take turns, cut after the quotation mark that opens the first text; nucleus sampling
        at ``source.top_p`` without top-k (DINO sections 3 and 4).
        """
        recipe, own = self.recipe, self.recipe.written_labels
        labels = [own[number % len(own)] for number in task.numbers]
        requests = [
            Request(self.prompts.first_text_prefix(label), (), row_seed(recipe.seed, "x1", number))
            for number, label in zip(task.numbers, labels, strict=True)
        ]
        settings = DecodingParameters(
            decay_constant=0.0,
            top_k=0,
            top_p=recipe.source.top_p,
            max_new_tokens=recipe.decoding.max_new_tokens,
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
                or self._copies.first_text_reason(completion.text),
            }
            for number, label, request, completion in zip(task.numbers, labels, requests, completions, strict=True)
        ]
        return TaskResult(task, facts=rows, rows=sum(row["reason"] is None for row in rows))


def text_length(recipe: DatasetRecipe, count_tokens: CountTokens) -> TextLength:
    """How the card counts the length of a text: in the generator's tokens, and behind a server in words.

    A server's tokenizer is read only for a recipe that needs it: it may not be there to be read.
    """
    model = recipe.model
    if not model.facts.local and recipe.premise_tokens is None:
        return WORDS
    return TextLength("tokens", model.repo_id or published_path(model.path or ""), count_tokens)
