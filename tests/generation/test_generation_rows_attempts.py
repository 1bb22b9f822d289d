"""What is asked of a writer, whatever order its completions come in."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from seeded_writer import FIRSTS, ScoringWriter, SeededWriter, write_pairs

from sts_dino.generation.inputs.prompts import Prompts, load_prompts
from sts_dino.generation.inputs.sources import SourceSentence
from sts_dino.generation.pipeline.tasks import WriteShard, list_shards
from sts_dino.generation.pipeline.worker import LocalExecutor, Worker
from sts_dino.generation.rows import attempts
from sts_dino.generation.rows.attempts import compute_text_seed
from sts_dino.generation.rows.filters import filter_rows
from sts_dino.hub.contract.recipe import X1, DatasetRecipe, Variant
from sts_dino.hub.contract.recipe_file import load_recipe

X2 = Path("recipes/demo/sts-dino-x2.yaml")


@pytest.fixture(scope="module")
def recipe() -> DatasetRecipe:
    return load_recipe(X2, DatasetRecipe)


def few_shot(recipe, verification=None, **section) -> DatasetRecipe:
    examples = {
        "kind": "hand",
        "path": "assets/examples/sts.tsv",
        "description": "d",
        "license": "cc0-1.0",
    }
    more = {"few_shot": {**section, "examples": examples}, "verification": verification}
    return DatasetRecipe.model_validate({**recipe.model_dump(mode="json"), **more})


def written(recipe, writer):
    ticks: list[int] = []
    raw, rejected = write_pairs(
        writer, Prompts(recipe), recipe, FIRSTS, ticks.append, Variant(None, 0)
    )
    assert sum(ticks) == recipe.texts_per_source_sentence * len(FIRSTS) >= len(set(usable(raw)))
    return raw, rejected


def usable(raw):
    """(source, label, text) of the rows that do not copy their source sentence."""
    return [
        (row["source_id"], row["target"], row["text2"])
        for row in raw
        if row["text1"] != row["text2"]
    ]


REPEATS = [FIRSTS[0].text, FIRSTS[1].text, "a cat", "a cat", "a dog", "Sentence 2:"]


@pytest.mark.parametrize(("share", "choice"), [(0.3, None), (0.9, REPEATS)])
def test_rows_and_requests_do_not_depend_on_the_order_of_completions(recipe, share, choice):
    writers = [SeededWriter(order, share, choice) for order in range(4)]
    runs = [written(recipe, writer) for writer in writers]
    assert all(run == runs[0] for run in runs)
    assert len({frozenset(request.seed for request in writer.asked) for writer in writers}) == 1
    assert writers[0].settings == recipe.decoding
    assert writers[0].prefixes == Prompts(recipe).list_prefixes(Variant(None, 0))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_shortest_prefix_of_attempts_with_enough_accepted_texts_is_asked_for(recipe, share):
    writer = SeededWriter(3, share)
    raw, rejected = written(recipe, writer)
    assert (
        len(writer.asked)
        == len(raw) + len(rejected)
        == len({request.seed for request in writer.asked})
    )
    good = {(row["source_id"], row["target"], row["attempt"]) for row in raw}
    for first in FIRSTS:
        for label in recipe.labels:
            rows = [
                r
                for r in (*raw, *rejected)
                if (r["source_id"], r["target"]) == (first.source_id, label.name)
            ]
            rows.sort(key=lambda row: row["attempt"])
            assert [row["attempt"] for row in rows] == list(range(len(rows)))
            flags = [(first.source_id, label.name, row["attempt"]) in good for row in rows]
            assert (
                len(rows) == recipe.decoding.max_attempts or sum(flags) == recipe.decoding.samples
            )
            assert sum(flags[:-1]) < recipe.decoding.samples
            assert [row["sample"] for row in rows] == [sum(flags[:i]) for i in range(len(rows))]


def test_identical_repeated_and_copied_texts_are_asked_for_again_while_attempts_last(recipe):
    """As in the original DINO code, which generates, removes and then caps."""
    raw, rejected = written(recipe, SeededWriter(0, 0.9, REPEATS))
    assert {row["reason"] for row in rejected} == {"not_closed", "prompt_words"}
    kept, dropped = filter_rows(raw, recipe)
    assert {row["reason"] for row in dropped} == {"identical", "duplicate"}
    per_label = Counter((row["source_id"], row["target"]) for row in kept)
    attempts = Counter((row["source_id"], row["target"]) for row in (*raw, *rejected))
    assert len(attempts) == len(FIRSTS) * 3 and 5 in attempts.values() and 3 in attempts.values()
    for wanted, count in attempts.items():
        assert count == recipe.decoding.max_attempts or per_label[wanted] == recipe.decoding.samples
    assert [row["sample"] for row in kept] == [
        sum(
            (row["source_id"], row["target"]) == (other["source_id"], other["target"])
            for other in kept[:number]
        )
        for number, row in enumerate(kept)
    ]


def test_rows_come_in_the_order_of_the_source_and_requests_in_that_of_length(recipe):
    writer = SeededWriter(1, 1.0)
    raw, rejected = written(recipe, writer)
    assert list(dict.fromkeys(row["source_id"] for row in raw)) == [
        first.source_id for first in FIRSTS
    ]
    assert list(dict.fromkeys(row["target"] for row in raw)) == ["1", "0.5", "0"] and rejected == []
    asked = [
        next(one.text for one in FIRSTS if f'"{one.text}"' in request.prompt)
        for request in writer.asked
    ]
    assert list(map(len, asked)) == sorted(map(len, asked))
    pairs = zip(writer.asked[::2], writer.asked[1::2], strict=True)
    assert all(one.prompt == other.prompt and one.seed != other.seed for one, other in pairs)


def test_few_shot_variants_have_seeds_of_their_own_and_say_which_set(recipe):
    few = few_shot(recipe, shots=[0, 2], sets=2)
    prompts = Prompts(few, {2: [{label.name: () for label in few.labels}] * 2})
    seeds, rows = [], []
    for variant in few.variants:
        rows, _ = write_pairs(SeededWriter(0, 1.0), prompts, few, FIRSTS, lambda n: None, variant)
        seeds += [row["seed"] for row in rows]
        assert {row["example_set"] for row in rows} == {variant.example_set}
    assert len(few.variants) == 3 and len(set(seeds)) == len(seeds) == 3 * len(rows)
    plain, _ = written(recipe, SeededWriter(0, 1.0))
    assert "example_set" not in plain[0] and plain[0]["seed"] not in seeds


def test_a_shard_is_the_same_as_alone_while_the_next_ones_fill_the_batch(recipe, monkeypatch):
    """In the order of work, each variant for itself; a bounded number of shards is begun before one
    is done.
    """
    few = few_shot(recipe, shots=[0, 2], sets=1)
    firsts = [(SourceSentence(f"{number}", f"text {number}"),) for number in range(5)]
    tasks, ticks = (
        [WriteShard(shard, firsts[shard.block]) for shard in list_shards(few, len(firsts))],
        [],
    )
    worker = Worker(few, load_prompts(few), SeededWriter(0, 0.4))
    alone = [worker.do_task(task, Path) for task in tasks]
    alike = range(1, 2)
    for ahead, bound, most in (
        (7, 8192, range(3, 6)),
        (7, 3, range(2, 4)),
        (7, 0, alike),
        (0, 8192, alike),
    ):
        monkeypatch.setattr(
            worker.writer, "choose_queue_length", lambda settings, batch_size, ahead=ahead: ahead
        )
        monkeypatch.setattr(attempts, "MOST_PAIRS_AHEAD", bound)
        taken, begun, found = [], [], []
        asked = (taken.append(one) or one for one in tasks)
        for result in LocalExecutor(worker, Path()).run_tasks(asked, ticks.append):
            begun.append(sum(one.shard.variant == result.task.shard.variant for one in taken))
            found.append((result.key, result.contents))
        assert found == [(one.key, one.contents) for one in alone]
        assert max(count - number % len(firsts) for number, count in enumerate(begun)) in most
    assert sum(ticks) == 4 * few.texts_per_source_sentence * len(tasks)


def test_a_worker_that_gets_one_shard_a_call_fills_its_batch_with_the_next_ones(
    recipe, monkeypatch
):
    """Its bytes stay those of shards alone, also where another worker did some of them, or a call
    failed.
    """
    few = few_shot(recipe, shots=[0, 2], sets=1)
    tasks = [
        WriteShard(shard, (SourceSentence(f"{shard.block}", f"text {shard.block}"),))
        for shard in list_shards(few, 5)
    ]
    worker, alone = (Worker(few, load_prompts(few), SeededWriter(0, 0.4)) for _ in range(2))
    for number, task in enumerate(tasks):
        if number in (2, 3, 6):  # done elsewhere
            continue
        if number == 8:
            with monkeypatch.context() as broken, pytest.raises(MemoryError):
                broken.setattr(attempts, "_make_shard_rows", Mock(side_effect=MemoryError))
                worker.do_task(task, Path, tasks[9:12])
        asked = len(worker.writer.asked)
        assert (
            worker.do_task(task, Path, tasks[number + 1 : number + 4]).contents
            == alone.do_task(task, Path).contents
        )
        shown = {
            text
            for text in ("text 0", "text 1")
            for one in worker.writer.asked[asked:]
            if text in one.prompt
        }
        assert number or len(shown) == 2, "the second shard is begun in the first call"


def test_a_text_is_scored_under_every_labels_prompt_with_that_labels_own_examples(recipe):
    few, writer = few_shot(recipe, verification={}, shots=[2], sets=1), ScoringWriter(0, 1.0)
    prompts = load_prompts(few)
    write_pairs(writer, prompts, few, FIRSTS[:1], lambda n: None, Variant(2, 0))
    for request in writer.asked:
        assert request.prompt in request.scored_prompts
        for label, prompt in zip(few.labels, request.scored_prompts, strict=True):
            shown = prompts.sets[2][0][label.name]
            examples = [
                label.instruction.replace(X1, one.premise) + one.hypothesis + '"' for one in shown
            ]
            assert prompt == "\n".join([*examples, label.instruction.replace(X1, FIRSTS[0].text)])


def test_with_rotation_each_source_sentence_has_one_set_in_all_its_rows(recipe):
    rotating = few_shot(recipe, shots=[0, 2], sets=4, rotate=True)
    prompts = load_prompts(rotating)
    assert rotating.variants == (Variant(0, 0), Variant(2, 0)) and len(rotating.row_variants) == 5
    firsts = [SourceSentence(f"{i:06d}", f"Text {i}.") for i in range(30)]
    writer = SeededWriter(0, 0.5)
    raw, rejected = write_pairs(writer, prompts, rotating, firsts, lambda n: None, Variant(2, 0))
    rows = [*raw, *rejected]
    sets = {
        first.text: {row["example_set"] for row in rows if row["text1"] == first.text}
        for first in firsts
    }
    assert {len(found) for found in sets.values()} == {1} and set.union(*sets.values()) == {
        0,
        1,
        2,
        3,
    }
    assert len(writer.prefixes) == 4 * 3 and all(
        r.prompt.startswith(writer.prefixes) for r in writer.asked
    )
    for first in firsts:
        (number,) = sets[first.text]
        expected, counters = prompts.make_prompts(
            rotating.labels[2], first.text, Variant(2, number)
        )
        asked = [request for request in writer.asked if request.prompt == expected]
        assert asked and {request.counter_prompts for request in asked} == {counters}
    for row in (*raw, *rejected):
        variant, first = (
            prompts.choose_variant(Variant(2, 0), row["text1"]),
            SourceSentence(row["source_id"], row["text1"]),
        )
        assert row["seed"] == compute_text_seed(
            rotating, variant, first, row["target"], row["attempt"]
        )


@pytest.fixture
def served(recipe):
    """The recipe with a server in place of the engine."""
    server = {
        "backend": "openai",
        "license": "mit",
        "server": {"base_url": "http://localhost:1/v1", "model": "m"},
    }
    labels = [{**label.model_dump(mode="json"), "counter_labels": []} for label in recipe.labels]
    changes = {
        "model": server,
        "labels": labels,
        "decoding": {**recipe.decoding.model_dump(), "decay_constant": 0.0},
    }
    return DatasetRecipe.model_validate({**recipe.model_dump(mode="json"), **changes})


def test_a_servers_text_that_is_the_same_for_every_label_is_rejected(recipe, served):
    same = SeededWriter(0, 1.0, ["a cat"])
    raw, rejected = write_pairs(same, Prompts(served), served, FIRSTS, bool, Variant(None, 0))
    assert not raw and {row["reason"] for row in rejected} == {"same_for_labels"}
    assert {row["text2"] for row in written(recipe, same)[0]} == {"a cat"}


class PrefixingWriter(SeededWriter):
    """Begin every text with the same words."""

    beginning = "A rephrased version would be: "

    def stream(self, *arguments):
        for request, completion in super().stream(*arguments):
            yield request, replace(completion, text=self.beginning + completion.text)


def test_texts_that_begin_alike_for_unlike_source_sentences_are_rejected(recipe, served):
    def reasons(recipe, sentences):
        words = [f"thing {n}" for n in range(40)]
        prompts = Prompts(recipe)
        rows = write_pairs(
            PrefixingWriter(0, 1.0, words), prompts, recipe, sentences, bool, Variant(None, 0)
        )
        return {row["reason"] for row in rows[1]}, len(rows[0])

    unlike = [SourceSentence(f"s{n}", f"{n} dogs run over {n} hills") for n in range(12)]
    alike = [SourceSentence(f"s{n}", f"how do I return thing {n}") for n in range(12)]
    found, kept = reasons(served, unlike)
    assert found == {"same_beginning"} and kept == 0
    assert "same_beginning" not in reasons(served, alike)[0]
    assert "same_beginning" not in reasons(served, unlike[:7])[0]
    assert "same_beginning" not in reasons(recipe, unlike)[0]  # the engine's rows stay
