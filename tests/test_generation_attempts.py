"""What is asked of a writer, whatever order its completions come in."""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from generation.attempts import write_pairs
from generation.prompts import Prompts
from generation.sources import FirstText
from generation.writer import Completion, Request, Settings
from hub.recipe import DatasetRecipe, Variant
from hub.recipe_file import load_recipe

X2 = Path("recipes/demo/sts-dino-x2.yaml")
FIRSTS = [FirstText(f"{i:06d}", "word " * length) for i, length in enumerate((9, 1, 5, 1, 7))]


class SeededWriter:
    """A writer whose texts are a function of the request, as an engine's are; it ends them in a shuffled order."""

    context = 0

    def __init__(self, order: int, share: float):
        self.order, self.share = random.Random(order), share
        self.asked: list[Request] = []
        self.settings: Settings | None = None
        self.prefixes: tuple[str, ...] = ()

    def stream(
        self, queue: deque[Request], settings: Settings, batch_size: int | None, prefixes: Sequence[str] = ()
    ) -> Iterator[tuple[Request, Completion]]:
        self.settings, self.prefixes, live = settings, tuple(prefixes), list[Request]()
        while queue or live:
            while queue and len(live) < 7:
                live.append(queue.popleft())
                self.asked.append(live[-1])
            request = live.pop(self.order.randrange(len(live)))
            good = random.Random(request.seed).random() < self.share
            yield request, Completion(f"text {request.seed}", None if good else "not_closed", -1.0, None)

    def count_tokens(self, text: str) -> int:
        return len(text)

    def describe(self) -> dict[str, object]:
        return {}


@pytest.fixture(scope="module")
def recipe() -> DatasetRecipe:
    return load_recipe(X2, DatasetRecipe)


def written(recipe, writer):
    ticks: list[int] = []
    raw, rejected = write_pairs(writer, Prompts(recipe), recipe, FIRSTS, ticks.append, Variant(None, 0))
    assert sum(ticks) == len(raw)
    return raw, rejected


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_rows_do_not_depend_on_the_order_of_completions(recipe, share):
    first = written(recipe, SeededWriter(0, share))
    assert all(written(recipe, SeededWriter(order, share)) == first for order in range(1, 6))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_shortest_prefix_of_attempts_with_enough_accepted_texts_is_asked_for(recipe, share):
    writer = SeededWriter(3, share)
    raw, rejected = written(recipe, writer)
    assert len(writer.asked) == len(raw) + len(rejected) == len({request.seed for request in writer.asked})
    good = {(row["source_id"], row["target"], row["attempt"]) for row in raw}
    for first in FIRSTS:
        for label in recipe.labels:
            rows = [r for r in (*raw, *rejected) if (r["source_id"], r["target"]) == (first.source_id, label.name)]
            rows.sort(key=lambda row: row["attempt"])
            assert [row["attempt"] for row in rows] == list(range(len(rows)))
            flags = [(first.source_id, label.name, row["attempt"]) in good for row in rows]
            assert len(rows) == recipe.decoding.max_attempts or sum(flags) == recipe.decoding.samples
            assert sum(flags[:-1]) < recipe.decoding.samples
            assert [row["sample"] for row in rows] == [sum(flags[:i]) for i in range(len(rows))]


def test_rows_come_in_the_order_of_the_source_and_requests_in_that_of_length(recipe):
    writer = SeededWriter(1, 1.0)
    raw, rejected = written(recipe, writer)
    assert list(dict.fromkeys(row["source_id"] for row in raw)) == [first.source_id for first in FIRSTS]
    assert list(dict.fromkeys(row["target"] for row in raw)) == ["1", "0.5", "0"] and rejected == []
    lengths = [len(request.prompt) - len("mean the same thing") for request in writer.asked]
    per_first = [sum(lengths[i : i + 6]) for i in range(0, 30, 6)]
    assert per_first == sorted(per_first)
    assert all(
        a.prompt == b.prompt and a.seed != b.seed for a, b in zip(writer.asked[::2], writer.asked[1::2], strict=True)
    )


def test_a_failed_text_is_asked_for_again_before_new_ones(recipe):
    writer = SeededWriter(0, 0.0)
    written(recipe, writer)
    first = writer.asked[0].prompt
    last = max(i for i, request in enumerate(writer.asked) if request.prompt == first)
    assert last < len(writer.asked) / 2


def test_settings_and_prefixes_are_the_recipes(recipe):
    writer = SeededWriter(0, 1.0)
    written(recipe, writer)
    assert writer.settings == Settings(100.0, 0.01, 5, 0.9, 40)
    assert writer.prefixes == Prompts(recipe).prefixes(Variant(None, 0))


def test_few_shot_variants_have_seeds_of_their_own_and_say_which_set(recipe):
    shots = {
        "shots": ["0", "2"],
        "sets": "2",
        "examples": {
            "kind": "file",
            "path": "x.tsv",
            "labels": {"1": "a", "0.5": "b", "0": "c"},
            "description": "d",
            "license": "l",
        },
    }
    few = DatasetRecipe.model_validate({**recipe.model_dump(mode="json"), "few_shot": shots})
    prompts = Prompts(few, {2: [{label.name: () for label in few.labels}] * 2})
    seeds, rows = [], []
    for variant in few.variants:
        rows, _ = write_pairs(SeededWriter(0, 1.0), prompts, few, FIRSTS, lambda n: None, variant)
        seeds += [row["seed"] for row in rows]
        assert {row["example_set"] for row in rows} == {variant.example_set}
    assert len(few.variants) == 3 and len(set(seeds)) == len(seeds) == 3 * len(rows)
    plain, _ = written(recipe, SeededWriter(0, 1.0))
    assert "example_set" not in plain[0] and plain[0]["seed"] not in seeds
