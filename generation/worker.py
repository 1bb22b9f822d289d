"""What does a run's tasks: a language model with a recipe's prompts. It knows neither directories nor processes."""

import time
from dataclasses import replace
from typing import Protocol

from generation import layout
from generation.attempts import write_pairs
from generation.filters import CopyFilters, sift
from generation.group_rows import finished_group
from generation.prompts import Prompts
from generation.randomness import row_seed
from generation.sources import text_problem
from generation.tally import WORDS, TextLength
from generation.tasks import FinishGroup, Made, Piece, Read, Row, Task, Tick, WriteFirstTexts, WriteShard
from generation.writer import Request, Settings, Writer, complete
from hub.published_paths import published_path
from hub.recipe import DatasetRecipe
from hub.run_dir import described
from hub.schema import config_features
from hub.shards import shard_bytes


class CountsTokens(Protocol):
    """A writer, or a crew."""

    def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of ``text``."""
        ...


class Worker:
    """One language model at work for one recipe."""

    def __init__(self, recipe: DatasetRecipe, prompts: Prompts, writer: Writer):
        self.recipe, self.prompts, self.writer = recipe, prompts, writer
        self._copies = CopyFilters(recipe, prompts.sets)

    def do(self, task: Task, read: Read, tick: Tick = lambda _: None) -> Made:
        """Do a task. ``read`` gives the run's finished files; ``tick`` is told of accepted texts.

        Raises InputError when a prompt and the token budget do not fit the model's context.
        """
        started = time.monotonic()
        if isinstance(task, WriteShard):
            made = self._shard(task, tick)
        elif isinstance(task, WriteFirstTexts):
            made = self._first_texts(task)
        else:
            made = self._group(task, read)
        return replace(made, seconds=time.monotonic() - started)

    def _shard(self, task: WriteShard, tick: Tick) -> Made:
        raw, failed = write_pairs(self.writer, self.prompts, self.recipe, task.firsts, tick, task.shard.variant)
        return shard_files(self.recipe, task, raw, failed)

    def _first_texts(self, task: WriteFirstTexts) -> Made:
        """Facts: for every number a row of the config ``sources``, with a ``reason`` where it cannot be one.

        The labels' instructions take turns, cut after the quotation mark that opens the first text; nucleus sampling
        at ``source.top_p`` without top-k (DINO sections 3 and 4).
        """
        recipe = self.recipe
        labels = [recipe.labels[number % len(recipe.labels)] for number in task.numbers]
        requests = [
            Request(self.prompts.first_text_prefix(label), (), row_seed(recipe.seed, "x1", number))
            for number, label in zip(task.numbers, labels, strict=True)
        ]
        settings = Settings(0.0, 1.0, 0, recipe.source.top_p, recipe.decoding.max_new_tokens)
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
        return Made(task, facts=rows, rows=sum(row["reason"] is None for row in rows))

    def _group(self, task: FinishGroup, read: Read) -> Made:
        rows, tally = finished_group(self.recipe, task, read, text_length(self.recipe, self.writer).of)
        return Made(task, pieces_of(self.recipe, rows), facts=tally.parts())


def shard_files(recipe: DatasetRecipe, task: WriteShard, raw: list[Row], failed: list[Row]) -> Made:
    """The files of one shard. No file is made without rows: it cannot load.

    ``failed`` rows were no usable text; those that sifting drops join them, in the order of work.
    """
    _, dropped = sift(raw, recipe.postprocess.max_per_label)
    named = dict(zip(layout.paths(recipe, task.shard), (raw, [*failed, *dropped]), strict=True))
    empty = tuple(path for path, rows in named.items() if not rows)
    return Made(task, pieces_of(recipe, {path: rows for path, rows in named.items() if rows}), empty, rows=len(raw))


def pieces_of(recipe: DatasetRecipe, files: dict[str, list[Row]]) -> tuple[Piece, ...]:
    """Files, by path, from their rows."""
    pieces = []
    for path, rows in files.items():
        _, config, name = path.split("/")
        content = shard_bytes(rows, config_features(config, recipe))
        split = name.split("-")[0]
        pieces.append(Piece(described(path, content, config=config, split=split, rows=len(rows)), content))
    return tuple(pieces)


def text_length(recipe: DatasetRecipe, counter: CountsTokens) -> TextLength:
    """How the card counts the length of a text: in the generator's tokens, and behind a server in words.

    A server's tokenizer is read only for a recipe that needs it: it may not be there to be read.
    """
    model = recipe.model
    if model.backend == "openai" and recipe.premise_tokens is None:
        return WORDS
    return TextLength("tokens", model.repo_id or published_path(model.path or ""), counter.count_tokens)
