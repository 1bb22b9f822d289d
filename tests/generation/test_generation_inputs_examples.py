"""Few-shot examples: the draw from a dataset, a file by hand, scored pairs or an own run; unusable
origins.
"""

import json
import random
import tracemalloc
from pathlib import Path

import pytest
from small_runs import small_recipe, small_run

from sts_dino.generation.inputs.examples import (
    Example,
    choose_best_pairs,
    draw_example_sets,
    list_example_files,
    load_example_sets,
)
from sts_dino.generation.pipeline.job import hash_inputs
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError
from sts_dino.hub.word_overlap import compute_word_overlap

LABELS, STS_LABELS = ["entailment", "contradiction"], ["1", "0.5", "0"]
VALUES = {"entailment": "0", "contradiction": "2"}
DESCRIBED = {"description": "pairs", "license": "cc0-1.0"}
HAND = Path("assets/examples/sts.tsv")
ROWS = [f"First {n}.\tSame {n}.\tLike {n}.\tOther {n}." for n in range(4)]


def recipe(shots=(0, 2, 3), sets=4, seed=1, text_end="quotation_mark", **changes) -> DatasetRecipe:
    prompt = 'Write what {} "<X1>". Answer: "'
    labels = [{"name": name, "instruction": prompt.format(name)} for name in LABELS]
    examples = {"kind": "file", "path": "nli.jsonl", "labels": VALUES, **DESCRIBED} | changes
    few_shot, decoding = (
        {"shots": shots, "sets": sets, "examples": examples},
        {"text_end": text_end},
    )
    return small_recipe("nli", labels=labels, few_shot=few_shot, seed=seed, decoding=decoding)


def sts(shots=(2,), sets=2, rotate=False, **examples) -> DatasetRecipe:
    given = {"shots": shots, "sets": sets, "rotate": rotate, "examples": {**DESCRIBED, **examples}}
    return small_recipe("sts", few_shot=given)


def hand(folder: Path, rows: list[str], header: str = "text1\t1\t0.5\t0") -> DatasetRecipe:
    (folder / "examples.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return sts(kind="hand", path=str(folder / "examples.tsv"))


def pairs(premises: int, labels: str = "012") -> list[tuple[str, str, str]]:
    return [
        (f"Premise {i}.", f"Text {i} of {label}.", label)
        for i in range(premises)
        for label in labels
    ]


def drawn(rows, **changes) -> dict:
    found = recipe(**changes)
    return draw_example_sets(
        (Example(number, *row) for number, row in enumerate(rows)), found, found.few_shot
    )


def texts(sets, label="entailment"):
    return [[(example.premise, example.hypothesis) for example in one[label]] for one in sets]


def test_every_shot_count_gets_sets_of_distinct_premises_that_all_labels_share():
    rows = pairs(100)
    random.Random(0).shuffle(rows)  # as in MultiNLI, where the rows of a premise are apart
    for shots, sets in drawn(rows).items():
        premises = [example.premise for one in sets for example in one["entailment"]]
        assert len(sets) == 4 and len(set(premises)) == len(premises) == 4 * shots
        for one in sets:
            assert [e.premise for e in one["entailment"]] == [
                e.premise for e in one["contradiction"]
            ]
            for label, examples in one.items():
                assert [rows[e.row] for e in examples] == [
                    (e.premise, e.hypothesis, VALUES[label]) for e in examples
                ]
    rows = pairs(5) + [
        (f"Lonely {i} {label}.", "Text.", label) for label in "02" for i in range(50)
    ]
    (first, second, *_) = drawn(rows, shots=(4,))[4]  # premises without a partner come last
    assert [e.premise for e in first["entailment"]] == [e.premise for e in first["contradiction"]]
    same = [one.premise == other.premise for one, other in zip(*second.values(), strict=True)]
    assert same == [True, False, False, False]


def test_the_draw_depends_on_the_seed_and_the_premises_alone():
    wanted = texts(drawn(pairs(5000))[3])
    assert texts(drawn(pairs(5000), seed=2)[3]) != wanted == texts(drawn(pairs(5000)[::-1])[3])
    assert texts(drawn(pairs(5000), shots=(3, 20), sets=6)[3][:4]) == wanted
    others = [("", "", "-1"), ("Neutral.", "Text.", "1")]  # rows of other labels
    assert texts(drawn(pairs(5000) + others)[3]) == wanted


def test_texts_that_would_break_the_prompt_are_skipped():
    for bad in ('A "quoted" word.', "Two\nlines.", "Two\u2028lines.", "  ", "half \ud800"):
        for spoilt in ((bad, "Text."), ("P.", bad)):
            found = drawn([(*spoilt, label) for label in "02"] + pairs(8), shots=(2,))
            assert not {bad, "P."} & {
                text for one in texts(found[2]) for pair in one for text in pair
            }
    quoted = [(f'Premise "{i}".', f"Text {i}.", label) for i in range(8) for label in "02"]
    found = drawn(quoted, shots=(2,), text_end="line")
    assert all('"' in premise for one in texts(found[2]) for premise, _ in one)


def test_memory_does_not_grow_with_the_rows():
    def peak(count: int) -> int:
        tracemalloc.start()
        drawn(
            (
                (f"Premise {i}.", f"Text {i} of {label}.", label)
                for i in range(count)
                for label in "02"
            ),
            sets=1,
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    assert peak(20_000) < 1.5 * peak(3_000)


def test_examples_from_a_file(tmp_path):
    path = tmp_path / "nli.jsonl"
    lines = [json.dumps({"premise": p, "hypothesis": h, "label": int(v)}) for p, h, v in pairs(30)]
    path.write_text("\n".join(lines) + "\n")
    assert load_example_sets(recipe(path=str(path))) == drawn(pairs(30))
    assert load_example_sets(recipe(shots=(0,), path="nowhere.tsv")) == {}, (
        "no dataset is read for 0 examples"
    )


def test_a_row_of_triplets_is_an_example_of_every_label(tmp_path):
    """The authors draw rows of SimCSE's triplets: sent0, sent1 (entailed), hard_neg
    (contradicting).
    """
    path = tmp_path / "nli_for_simcse.csv"
    path.write_text(
        "sent0,sent1,hard_neg\n" + "".join(f'"P {i}, 1.",E {i}.,C {i}.\n' for i in range(20))
    )
    columns = {"entailment": "sent1", "contradiction": "hard_neg"}
    sets = load_example_sets(
        recipe(path=str(path), premise="sent0", labels={}, texts=columns, shots=(0, 2), sets=3)
    )[2]
    for one in sets:
        for entailed, contradicting in zip(one["entailment"], one["contradiction"], strict=True):
            number = entailed.row
            assert (entailed.premise, entailed.hypothesis) == (f"P {number}, 1.", f"E {number}.")
            assert (contradicting.row, contradicting.hypothesis) == (number, f"C {number}.")
    assert len({example.row for one in sets for example in one["entailment"]}) == 6


def test_a_file_by_hand_has_a_column_for_every_label(tmp_path):
    found = hand(tmp_path, ROWS)
    sets = load_example_sets(found)[2]
    for one in sets:
        for label, word in zip(STS_LABELS, ("Same", "Like", "Other"), strict=True):
            assert [example.hypothesis for example in one[label]] == [
                f"{word} {e.row}." for e in one[label]
            ]
            assert [example.premise for example in one[label]] == [
                f"First {e.row}." for e in one["1"]
            ]
    assert sorted(example.row for one in sets for example in one["1"]) == [0, 1, 2, 3]
    assert hash_inputs(
        found.model_copy(update={"model": found.model.model_copy(update={"path": None})})
    )


def test_rotating_sets_share_the_shipped_examples_and_differ_in_choice_and_order():
    shipped = {"kind": "hand", "path": str(HAND)}
    sets = load_example_sets(sts((5,), 8, True, **shipped))[5]
    orders = [tuple(example.row for example in one["1"]) for one in sets]
    assert len(set(orders)) == 8 and all(len(set(order)) == 5 for order in orders)
    for one in sets:
        assert len({tuple(example.premise for example in one[label]) for label in STS_LABELS}) == 1
        for label, most in (("1", 0.7), ("0.5", 0.5), ("0", 0.2)):
            assert all(compute_word_overlap(e.premise, e.hypothesis) <= most for e in one[label])
    assert load_example_sets(sts((5, 3), 9, True, **shipped))[5][:8] == sets
    with pytest.raises(InputError, match="but a set needs 21"):
        load_example_sets(sts((21,), 8, True, **shipped))


def test_the_shipped_queries_fit_the_prompts_and_copy_no_passage():
    shipped = load_recipe(Path("recipes/search/search-cranfield.yaml"), DatasetRecipe)
    for one in load_example_sets(shipped)[5]:
        assert len({tuple(example.premise for example in one[label]) for label in ("1", "0")}) == 1
        assert all(
            compute_word_overlap(e.premise, e.hypothesis) <= 0.5
            for shown in one.values()
            for e in shown
        )


def test_scored_pairs_give_each_label_a_band(tmp_path):
    path = tmp_path / "gold.csv"
    lines = [f"First {n}.,Second {n}.,{n % 26 / 5}" for n in range(260)]
    path.write_text("\n".join(["sentence1,sentence2,score", *lines]) + "\n")
    bands = {"1": (4.6, 5), "0.5": (2, 3), "0": (0, 0.4)}
    columns = {"premise": "sentence1", "hypothesis": "sentence2", "label": "score"}
    for one in load_example_sets(
        sts((3,), 4, kind="file", path=str(path), scores=bands, **columns)
    )[3]:
        for label, (low, high) in bands.items():
            assert len(one[label]) == 3 and all(
                low <= example.row % 26 / 5 <= high for example in one[label]
            )
    path.write_text("sentence1,sentence2,score\na,b,high\n")
    with pytest.raises(InputError, match="'high' is not a number"):
        load_example_sets(sts(kind="file", path=str(path), scores=bands, **columns))


def test_the_best_rows_of_an_own_run_are_its_examples(tmp_path):
    small_run(tmp_path / "first", small_recipe("sts"))
    found = sts((2,), 2, True, kind="own", path=str(tmp_path / "first"), rank_by="log_prob", top=6)
    sets = load_example_sets(found)[2]
    rows = {label: {example.row for one in sets for example in one[label]} for label in STS_LABELS}
    assert all(2 <= len(of_label) <= 4 for of_label in rows.values())
    assert all(
        example.premise != example.hypothesis
        for one in sets
        for shown in one.values()
        for example in shown
    )
    numbers = {
        int(e.premise.split()[2].strip(","))
        for one in sets
        for shown in one.values()
        for e in shown
    }
    assert max(numbers) < 20  # log_prob falls with the number of the source sentence
    hashes = hash_inputs(
        found.model_copy(update={"model": found.model.model_copy(update={"path": None})})
    )
    files = {
        str(path.relative_to(tmp_path)) for path in list_example_files(found.few_shot.examples)
    }
    assert {name for name in hashes if name.startswith("first/")} == files
    more = [(f"f{n}", f"t{n}", "1", str(n % 5)) for n in range(10)]
    more += [("f", "t", "of another label", "9"), ("f", "f", "1", "9"), ("f", "t", "1", "")]
    ranked = (Example(number, *row) for number, row in enumerate(more))
    assert [pair.row for pair in choose_best_pairs(ranked, ["1"], "c", 4)] == [3, 4, 8, 9]
    lost = min((tmp_path / "first").glob("data/raw/*.parquet"))
    lost.unlink()
    with pytest.raises(InputError, match=f"{lost.name}: no such file"):
        load_example_sets(found)


def test_hints_about_a_file_of_examples_name_neither_the_source_nor_a_first_round(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("A sentence.\n")
    with pytest.raises(InputError, match="file has no columns; leave the columns out, or"):
        load_example_sets(sts(kind="hand", path=str(lines)))
    with pytest.raises(InputError, match="; lower top, or take a dataset with more rows"):
        choose_best_pairs([Example(0, "f", "t", "1", "2")], ["1"], "c", 2)
