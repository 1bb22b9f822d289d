"""Ask the model for texts until each (first text, label) has what the recipe wants, or its attempts are used up.

Source: DINO section 4, footnote 2: up to five tries for two texts, because a model may not close its quotation mark.
Every completion asked for ends up in exactly one of two lists, so kept + rejected = requested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from generation.prompts import Prompts
from generation.randomness import row_seed
from generation.sources import FirstText
from generation.writer import Completion, Request, Settings, Writer, complete
from hub.recipe import DatasetRecipe, Label

Row = dict[str, Any]
Tick = Callable[[int], object]


@dataclass
class _Wanted:
    """One (first text, label): what it still needs and how often it was asked."""

    first: FirstText
    label: Label
    missing: int
    attempts: int = 0


def settings_of(recipe: DatasetRecipe) -> Settings:
    """The engine's settings for second texts."""
    decoding = recipe.decoding
    return Settings(decoding.decay_constant, decoding.floor, decoding.top_k, decoding.top_p, decoding.max_new_tokens)


def write_pairs(
    engine: Writer, prompts: Prompts, recipe: DatasetRecipe, firsts: Sequence[FirstText], tick: Tick
) -> tuple[list[Row], list[Row]]:
    """Raw rows and rejected rows (with ``reason``) of some first texts, ordered by first text, label, attempt.

    ``tick(n)`` is told of every n accepted texts. The rows depend on the first texts given and on the recipe only.
    """
    wanted = [_Wanted(first, label, recipe.decoding.samples) for first in firsts for label in recipe.labels]
    raw, rejected = list[Row](), list[Row]()

    def accepted(completions: list[Completion]) -> None:
        tick(sum(completion.problem is None for completion in completions))

    while pending := [need for need in wanted if need.missing and need.attempts < recipe.decoding.max_attempts]:
        asked = [(need, need.attempts + i) for need in pending for i in range(_next_attempts(need, recipe))]
        requests = [_request(need, attempt, recipe, prompts) for need, attempt in asked]
        completions = complete(engine, requests, settings_of(recipe), recipe.decoding.batch_size)
        accepted(completions)
        for (need, attempt), request, completion in zip(asked, requests, completions, strict=True):
            need.attempts += 1
            need.missing -= completion.problem is None
            row = _row(need, attempt, request.seed, completion)
            if completion.problem is None:
                raw.append(row)
            else:
                rejected.append({**row, "reason": completion.problem})
    place = {(need.first.source_id, need.label.name): i for i, need in enumerate(wanted)}

    def order(row: Row) -> tuple[int, int]:
        return place[row["source_id"], row["target"]], row["attempt"]

    return sorted(raw, key=order), sorted(rejected, key=order)


def _next_attempts(need: _Wanted, recipe: DatasetRecipe) -> int:
    return min(need.missing, recipe.decoding.max_attempts - need.attempts)


def _request(need: _Wanted, attempt: int, recipe: DatasetRecipe, prompts: Prompts) -> Request:
    prompt, counter_prompts = prompts.of(need.label, need.first.text, recipe.variants[0])
    seed = row_seed(recipe.seed, need.first.source_id, need.first.text, need.label.name, attempt)
    return Request(prompt, counter_prompts, seed)


def _row(need: _Wanted, attempt: int, seed: int, completion: Completion) -> Row:
    return {
        "text1": need.first.text,
        "text2": completion.text,
        "source_id": need.first.source_id,
        "target": need.label.name,
        "sample": 0,
        "attempt": attempt,
        "seed": seed,
        "log_prob": completion.log_prob,
        "margin": completion.margin,
    }


def write_first_texts(
    engine: Writer, prompts: Prompts, recipe: DatasetRecipe, tick: Tick
) -> tuple[list[Row], dict[str, int]]:
    """``source.limit`` distinct first texts from the model itself, and how many were rejected, by reason.

    The labels' instructions take turns, cut after the quotation mark that opens the first text; nucleus sampling at
    ``source.top_p`` without top-k (DINO sections 3 and 4). Gives up after ``max_attempts`` times ``limit`` completions
    and returns fewer.
    """
    limit = recipe.source.limit or 0
    settings = Settings(0.0, 1.0, 0, recipe.source.top_p, recipe.decoding.max_new_tokens)
    rows, rejected, seen, asked = list[Row](), dict[str, int](), set[str](), 0
    while len(rows) < limit and asked < limit * recipe.decoding.max_attempts:
        numbers = range(asked, asked + min(limit, limit * recipe.decoding.max_attempts - asked))
        labels = [recipe.labels[number % len(recipe.labels)] for number in numbers]
        requests = [
            Request(prompts.first_text_prefix(label), (), row_seed(recipe.seed, "x1", number))
            for number, label in zip(numbers, labels, strict=True)
        ]
        completions = complete(engine, requests, settings, recipe.decoding.batch_size)
        for number, label, request, completion in zip(numbers, labels, requests, completions, strict=True):
            reason = completion.problem or ("duplicate" if completion.text in seen else None)
            if reason or len(rows) == limit:
                rejected[reason or "not_needed"] = rejected.get(reason or "not_needed", 0) + 1
                continue
            seen.add(completion.text)
            rows.append(
                {
                    "source_id": f"{number:06d}",
                    "text": completion.text,
                    "instruction": label.name,
                    "seed": request.seed,
                    "log_prob": completion.log_prob,
                }
            )
        asked += len(numbers)
        tick(len(rows))
    return rows, dict(sorted(rejected.items()))
