"""generation.inputs.examples: what is drawn, from what, and what an unusable dataset is told."""

import json
import random
import subprocess
import sys
import tracemalloc

import pytest
from huggingface_hub import HfApi
from nli_recipe import nli_recipe

from generation.inputs.examples import POOL, PremiseSample, draw, example_sets
from hub.contract.recipe import DatasetRecipe, FewShot
from hub.errors import InputError

pytest_plugins = ["local_hub"]

LABELS = ["entailment", "contradiction"]
VALUES = {"entailment": "0", "contradiction": "2"}


def few_shot(shots=(0, 2, 3), sets=4, **changes) -> FewShot:
    examples = {"kind": "file", "path": "nli.jsonl", "labels": VALUES, "description": "pairs", "license": "CC0"}
    return FewShot.model_validate({"shots": shots, "sets": sets, "examples": examples | changes})


def recipe(**changes) -> DatasetRecipe:
    prompt = 'Write what {} "<X1>". Answer: "'
    labels = [{"name": name, "instruction": prompt.format(name)} for name in LABELS]
    return nli_recipe(labels, few_shot=few_shot(**changes).model_dump())


def pairs(premises: int, labels: str = "012") -> list[tuple[str, str, str]]:
    return [(f"Premise {i}.", f"Text {i} of {label}.", label) for i in range(premises) for label in labels]


def texts(sets, label="entailment"):
    return [[(example.premise, example.hypothesis) for example in one[label]] for one in sets]


def test_every_shot_count_gets_its_sets_of_distinct_examples():
    drawn = draw(pairs(100), few_shot(), LABELS, seed=1)
    assert {shots: [len(one["entailment"]) for one in sets] for shots, sets in drawn.items()} == {
        2: [2] * 4,
        3: [3] * 4,
    }
    for sets in drawn.values():
        premises = [example.premise for one in sets for example in one["entailment"]]
        assert len(set(premises)) == len(premises)


def test_both_labels_show_the_same_premises_in_the_same_order_and_rows_are_named():
    rows = pairs(60)
    random.Random(0).shuffle(rows)  # as in MultiNLI, where the rows of a premise do not stand together
    for one in draw(rows, few_shot(), LABELS, seed=1)[3]:
        assert [e.premise for e in one["entailment"]] == [e.premise for e in one["contradiction"]]
        for label, examples in one.items():
            assert [rows[e.row] for e in examples] == [(e.premise, e.hypothesis, VALUES[label]) for e in examples]


def test_the_seed_decides_and_nothing_else():
    drawn = draw(pairs(200), few_shot(), LABELS, seed=1)
    assert texts(draw(pairs(200), few_shot(), LABELS, seed=2)[3]) != texts(drawn[3])
    assert texts(draw(pairs(200)[::-1], few_shot(), LABELS, seed=1)[3]) == texts(drawn[3])
    assert texts(draw(pairs(200), few_shot(shots=(3, 20), sets=6), LABELS, seed=1)[3][:4]) == texts(drawn[3])


def test_premises_without_a_partner_come_last():
    rows = pairs(5) + [(f"Lonely {i} {label}.", "Text.", label) for label in "02" for i in range(50)]
    (first, second, *_) = draw(rows, few_shot(shots=(4,)), LABELS, seed=1)[4]
    assert [e.premise for e in first["entailment"]] == [e.premise for e in first["contradiction"]]
    assert second["entailment"][0].premise == second["contradiction"][0].premise
    assert second["entailment"][1].premise != second["contradiction"][1].premise


@pytest.mark.parametrize("bad", ['A "quoted" word.', "Two\nlines.", "Two\u2028lines.", "  ", "half \ud800"])
@pytest.mark.parametrize("place", [0, 1])
def test_texts_that_would_break_the_prompt_are_passed_over(bad, place):
    spoilt = [(bad, "Text.", "0"), (bad, "Text.", "2")] if place == 0 else [("P.", bad, "0"), ("P.", bad, "2")]
    drawn = draw(spoilt + pairs(8), few_shot(shots=(2,)), LABELS, seed=1)
    assert not {bad, "P."} & {text for one in texts(drawn[2]) for pair in one for text in pair}


def test_a_text_with_a_quotation_mark_is_an_example_where_none_ends_a_text():
    """Of the 860 examples in the Auto-NLI authors' files 13 have one."""
    rows = [(f'Premise "{i}".', f"Text {i}.", label) for i in range(8) for label in "02"]
    drawn = draw(rows, few_shot(shots=(2,)), LABELS, seed=1, quotes=True)
    assert all('"' in premise for one in texts(drawn[2]) for premise, _ in one)


def test_a_row_of_triplets_is_an_example_of_every_label(tmp_path):
    """The authors draw rows of SimCSE's triplets: sent0, sent1 (entailed), hard_neg (contradicting)."""
    path = tmp_path / "nli_for_simcse.csv"
    path.write_text("sent0,sent1,hard_neg\n" + "".join(f'"P {i}, 1.",E {i}.,C {i}.\n' for i in range(20)))
    columns = {"entailment": "sent1", "contradiction": "hard_neg"}
    found = recipe(path=str(path), premise="sent0", labels={}, texts=columns, shots=(0, 2), sets=3)
    sets = example_sets(found)[2]
    for one in sets:
        for entailed, contradicting in zip(one["entailment"], one["contradiction"], strict=True):
            number = entailed.row
            assert (entailed.premise, entailed.hypothesis) == (f"P {number}, 1.", f"E {number}.")
            assert (contradicting.row, contradicting.hypothesis) == (number, f"C {number}.")
            assert contradicting.premise == entailed.premise
    assert len({example.row for one in sets for example in one["entailment"]}) == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": {"entailment": "a", "contradiction": "b"}}, "give either labels .* or texts"),
        ({"labels": {}}, "give either labels .* or texts"),
        (
            {"labels": {}, "texts": {"entailment": "a"}},
            "few_shot.examples.texts: no column is given for 'contradiction'",
        ),
        ({"labels": {}, "texts": {"entailment": "a", "contradiction": "a"}}, "texts: two labels have one column"),
        ({"labels": {"entailment": "0"}}, "labels: no value of the label column is given for 'contradiction'"),
    ],
)
def test_examples_have_a_label_column_or_a_column_for_every_label(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


def test_rows_of_other_labels_are_passed_over():
    rows = [("No gold.", "Text.", "-1"), ("Neutral.", "Text.", "1"), *pairs(8)]
    assert draw(rows, few_shot(shots=(2,)), LABELS, seed=3) == draw(
        [("", "", "-1"), ("", "", "1"), *pairs(8)], few_shot(shots=(2,)), LABELS, seed=3
    )


def test_too_few_examples_and_unknown_values_are_one_clear_error():
    with pytest.raises(InputError, match=r"nli.jsonl: has 7 usable examples of 'entailment', but 4 sets of 2 need 8"):
        draw(pairs(7), few_shot(), LABELS, seed=1)
    with pytest.raises(InputError, match=r"labels.contradiction: '2' does not occur in the column 'label' .*'0', '1'"):
        draw(pairs(20, "01"), few_shot(), LABELS, seed=1)
    with pytest.raises(InputError, match="no rows"):
        draw([], few_shot(), LABELS, seed=1)


def test_the_sample_is_the_smallest_hashes_whatever_the_order():
    rows = draw(pairs(5000), few_shot(shots=(1,), sets=2), LABELS, seed=9)
    assert POOL * 2 < 5000
    assert texts(rows[1]) == texts(draw(pairs(5000)[::-1], few_shot(shots=(1,), sets=2), LABELS, seed=9)[1])


def test_memory_does_not_grow_with_the_rows():
    def peak(count: int) -> int:
        tracemalloc.start()
        draw((row for i in range(count) for row in pairs_of(i)), few_shot(shots=(2,), sets=1), LABELS, seed=1)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    def pairs_of(i: int):
        return [(f"Premise {i}.", f"Text {i} of {label}.", label) for label in "02"]

    assert peak(20_000) < 1.5 * peak(2_000)


def test_a_premise_that_was_pushed_out_does_not_come_back():
    from generation.inputs.examples import Example

    sample = PremiseSample(2, "seed")
    for i in range(200):
        sample.add("a", Example(i, f"Premise {i % 40}.", "Text."))
        sample.add("b", Example(i, f"Premise {i % 40}.", "Text."))
    held = sample.by_label(["a", "b"])
    assert len(held["a"]) == 2 and max(example.row for example in held["a"]) < 40


@pytest.mark.parametrize("kind", ["jsonl", "tsv"])
def test_examples_from_a_file(tmp_path, kind):
    path = tmp_path / f"nli.{kind}"
    if kind == "jsonl":
        lines = [json.dumps({"premise": p, "hypothesis": h, "label": int(v)}) for p, h, v in pairs(30)]
    else:
        lines = ["premise\thypothesis\tlabel", *("\t".join(row) for row in pairs(30))]
    path.write_text("\n".join(lines) + "\n")
    assert example_sets(recipe(path=str(path))) == draw(pairs(30), few_shot(), LABELS, seed=42)


def test_a_file_that_is_not_there_or_lacks_a_column(tmp_path):
    with pytest.raises(InputError, match=r"few_shot.examples.path .*none.tsv: no such file"):
        example_sets(recipe(path=str(tmp_path / "none.tsv")))
    path = tmp_path / "nli.tsv"
    path.write_text("premise\thypothesis\tgold\na\tb\t0\n")
    with pytest.raises(InputError, match=r"column 'label'.*allowed: premise, hypothesis, gold"):
        example_sets(recipe(path=str(path)))


def test_no_dataset_is_read_for_0_shot_alone():
    assert example_sets(recipe(shots=(0,), path="nowhere.tsv")) == {}


@pytest.mark.slow("a fresh process without our code, and a Hub")
def test_examples_from_a_pinned_hub_dataset(local_hub, hub_api: HfApi, repo: str, tmp_path):
    """SNLI's form: labels are numbers, -1 where the annotators did not agree."""
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features(
        {
            "premise": Value("string"),
            "hypothesis": Value("string"),
            "label": ClassLabel(names=["entailment", "neutral", "contradiction"]),
        }
    )
    rows = [{"premise": p, "hypothesis": h, "label": int(v)} for p, h, v in pairs(30)]
    rows.append({"premise": "No gold.", "hypothesis": "Text.", "label": -1})
    Dataset.from_list(rows, features=features).to_parquet(tmp_path / "train.parquet")
    commit = hub_api.upload_file(
        path_or_fileobj=tmp_path / "train.parquet",
        path_in_repo="data/train-00000-of-00001.parquet",
        repo_id=repo,
        repo_type="dataset",
    ).oid
    asked = recipe(kind="hub", path=None, repo_id=repo, revision=commit)
    script = (
        "import json, sys; from hub.contract.recipe import DatasetRecipe;"
        "from generation.inputs.prompts import load_prompts;"
        "prompts = load_prompts(DatasetRecipe.model_validate_json(sys.argv[1]));"
        "print(json.dumps(prompts.provenance()))"
    )
    command = [sys.executable, "-c", script, asked.model_dump_json()]
    environment = local_hub.client_environment(tmp_path / "home")
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)["examples"]
    assert (found["repo_id"], found["revision"]) == (repo, commit)
    drawn = draw(pairs(30), few_shot(), LABELS, seed=42)
    assert found["rows"]["3shot"] == [{label: [e.row for e in one[label]] for label in LABELS} for one in drawn[3]]
