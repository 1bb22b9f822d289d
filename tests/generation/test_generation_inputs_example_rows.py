"""generation.inputs.examples: examples by hand, of scored pairs, of a finished run; what is wrong with them."""

from pathlib import Path

import pytest
from small_runs import small_recipe, small_run

from generation.inputs.examples import best, example_sets, local_files
from generation.pipeline.job import input_hashes
from hub.contract.recipe import DatasetRecipe
from hub.errors import InputError

TOLD = {"description": "examples", "license": "cc0-1.0"}
LABELS = ["1", "0.5", "0"]
HAND = Path("assets/examples/sts.tsv")


def sts(shots=(2,), sets=2, rotate=False, **examples) -> DatasetRecipe:
    few_shot = {"shots": shots, "sets": sets, "rotate": rotate, "examples": {**TOLD, **examples}}
    return small_recipe("sts", few_shot=few_shot)


def hand(folder: Path, rows: list[str], header: str = "text1\t1\t0.5\t0") -> DatasetRecipe:
    path = folder / "examples.tsv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return sts(kind="hand", path=str(path))


ROWS = [f"First {n}.\tSame {n}.\tLike {n}.\tOther {n}." for n in range(4)]


def test_a_file_written_by_hand_has_a_column_for_every_label(tmp_path):
    recipe = hand(tmp_path, ROWS)
    sets = example_sets(recipe)[2]
    for one in sets:
        for label, word in zip(LABELS, ("Same", "Like", "Other"), strict=True):
            assert [example.hypothesis for example in one[label]] == [f"{word} {e.row}." for e in one[label]]
            assert [example.premise for example in one[label]] == [f"First {e.row}." for e in one["1"]]
    assert sorted(example.row for one in sets for example in one["1"]) == [0, 1, 2, 3]
    assert input_hashes(recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": None})}))


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (ROWS, "text1\t1\t0.5\t0.0", r"column '0.0': is no label.* allowed: text1, 1, 0.5, 0"),
        (ROWS, "text1\t1\t0.5\t1.0", r"column '1.0': is no label"),
        (["a\tb\tc"], "text1\t1\t0.5", r"has no column '0'"),
        (['First "a".\tb\tc\td'], None, r"row 0, column 'text1': has a quotation mark inside"),
        ([*ROWS, 'First.\tb\tc "so".\td'], None, r"row 4, column '0.5': has a quotation mark inside"),
        (["First.\tb\t \td"], None, r"row 0, column '0.5': cannot stand in a prompt \(empty\)"),
        (["First.\tFirst.\tc\td"], None, r"row 0, column '1': repeats its source sentence"),
        (ROWS[:3], None, r"has 3 usable examples of '1', but 2 sets of 2 need 4"),
        (["First.\tb\tc"], None, r"examples.tsv:2: has 3 columns"),
    ],
)
def test_what_is_wrong_with_a_file_written_by_hand_is_one_line(tmp_path, rows, header, message):
    with pytest.raises(InputError, match=message):
        example_sets(hand(tmp_path, rows, header or "text1\t1\t0.5\t0"))


def test_other_files_and_keys_are_refused(tmp_path):
    (tmp_path / "examples.csv").write_text("text1,1\n")
    with pytest.raises(InputError, match=r"unknown kind of file '.csv'; allowed: .tsv|unknown kind of file '.csv'"):
        example_sets(sts(kind="hand", path=str(tmp_path / "examples.csv")))
    with pytest.raises(InputError, match="no such file"):
        example_sets(sts(kind="hand", path=str(tmp_path / "none.tsv")))
    with pytest.raises(ValueError, match="name their columns themselves: remove labels"):
        sts(kind="hand", path="a.tsv", labels={"1": "x"})
    with pytest.raises(ValueError, match="examples of kind own need path"):
        sts(kind="own")
    with pytest.raises(ValueError, match="scores: unknown label '2'"):
        sts(kind="file", path="a.tsv", scores={"1": (4, 5), "0.5": (2, 3), "0": (0, 1), "2": (6, 7)})
    with pytest.raises(ValueError, match="scores: no band is given for '0'"):
        sts(kind="file", path="a.tsv", scores={"1": (4, 5), "0.5": (2, 3)})
    with pytest.raises(ValueError, match=r"the bands of '0.5' and '1' share a score"):
        sts(kind="file", path="a.tsv", scores={"1": (3, 5), "0.5": (2, 3), "0": (0, 1)})
    with pytest.raises(ValueError, match="give both or neither"):
        sts(kind="own", path="run", rank_by="log_prob")


def test_the_shipped_examples_are_fit_and_unlike_their_first_texts():
    from hub.word_overlap import word_overlap

    recipe = sts(shots=(5,), sets=4, kind="hand", path=str(HAND))
    sets = example_sets(recipe)[5]
    assert sum(len(one["1"]) for one in sets) == 20
    for label, most in (("1", 0.7), ("0.5", 0.5), ("0", 0.2)):
        assert all(word_overlap(e.premise, e.hypothesis) <= most for one in sets for e in one[label])


def test_rotating_sets_share_examples_and_differ_in_choice_and_order():
    recipe = sts(shots=(5,), sets=8, rotate=True, kind="hand", path=str(HAND))
    sets = example_sets(recipe)[5]
    orders = [tuple(example.row for example in one["1"]) for one in sets]
    assert len(set(orders)) == 8 and all(len(set(order)) == 5 for order in orders)
    for one in sets:
        assert len({tuple(example.premise for example in one[label]) for label in LABELS}) == 1
    more = sts(shots=(5, 3), sets=9, rotate=True, kind="hand", path=str(HAND))
    assert example_sets(more)[5][:8] == sets
    with pytest.raises(InputError, match="but a set needs 21"):
        example_sets(sts(shots=(21,), sets=8, rotate=True, kind="hand", path=str(HAND)))


def test_scored_pairs_give_each_label_a_band(tmp_path):
    path = tmp_path / "gold.csv"
    lines = [f"First {n}.,Second {n}.,{n % 26 / 5}" for n in range(260)]
    path.write_text("\n".join(["sentence1,sentence2,score", *lines]) + "\n")
    bands = {"1": (4.6, 5), "0.5": (2, 3), "0": (0, 0.4)}
    columns = {"premise": "sentence1", "hypothesis": "sentence2", "label": "score"}
    for rotate in (False, True):
        found = example_sets(sts((3,), 4, rotate, kind="file", path=str(path), scores=bands, **columns))[3]
        for one in found:
            for label, (low, high) in bands.items():
                assert len(one[label]) == 3
                assert all(low <= example.row % 26 / 5 <= high for example in one[label])
    path.write_text("sentence1,sentence2,score\na,b,high\n")
    with pytest.raises(InputError, match="'high' is no number"):
        example_sets(sts(kind="file", path=str(path), scores=bands, **columns))


def test_the_best_rows_of_an_own_run_are_its_examples(tmp_path):
    made = small_recipe("sts")
    small_run(tmp_path / "first", made)
    recipe = sts((2,), 2, True, kind="own", path=str(tmp_path / "first"), rank_by="log_prob", top=6)
    sets = example_sets(recipe)[2]
    rows = {label: {example.row for one in sets for example in one[label]} for label in LABELS}
    assert all(2 <= len(found) <= 4 for found in rows.values())
    assert all(example.premise != example.hypothesis for one in sets for found in one.values() for example in found)
    numbers = {int(e.premise.split()[2].strip(",")) for one in sets for found in one.values() for e in found}
    assert max(numbers) < 20  # log_prob falls with the number of the first text
    hashes = input_hashes(recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": None})}))
    assert {name for name in hashes if name.startswith("first/")} == {
        str(path.relative_to(tmp_path)) for path in local_files(recipe.few_shot.examples)
    }


def test_too_few_good_rows_and_unfinished_runs_are_one_line(tmp_path):
    small_run(tmp_path / "done", small_recipe("sts"))
    small_run(tmp_path / "begun", small_recipe("sts"), blocks_done=1)
    few = sts(kind="own", path=str(tmp_path / "done"), rank_by="log_prob", top=10_000)
    with pytest.raises(InputError, match=r"few_shot.examples.top: \d+ rows of label '.*' have a log_prob, and 10000"):
        example_sets(few)
    with pytest.raises(InputError, match="the run is not finished"):
        example_sets(sts(kind="own", path=str(tmp_path / "begun")))
    with pytest.raises(InputError, match=r"column 'margins'.*did you mean 'margin'"):
        example_sets(sts(kind="own", path=str(tmp_path / "done"), rank_by="margins", top=3))
    with pytest.raises(InputError, match="'x' is no number"):
        list(best([(("a", "b", "1"), "x")], ["1"], "score", 1))
    with pytest.raises(InputError, match="0 rows of label '1' have a margin, and 3 are wanted"):
        example_sets(sts(kind="own", path=str(tmp_path / "done"), rank_by="margin", top=3))


def test_ranking_keeps_the_numbers_of_rows():
    pairs = [((f"f{n}", f"t{n}", "1"), str(n % 5)) for n in range(10)]
    more = [*pairs, (("f", "t", "of another label"), "9"), (("f", "f", "1"), "9"), (("f", "t", "1"), "")]
    assert [place for place, pair in enumerate(best(more, ["1"], "c", 4)) if pair[2]] == [3, 4, 8, 9]
