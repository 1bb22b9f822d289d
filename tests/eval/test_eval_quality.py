"""What is counted of a dataset against planted rows, the report's safety, and the command itself."""

import datasets
import numpy as np
import pytest
from marker_nli import make_marker_nli
from training_inputs import write_dataset

from eval.audit.quality import Quality, auc, jaccard, measure, overlap_coefficient, share
from eval.audit.quality_report import pictures, report
from eval.audit.source import BATCH, default_folder, find_rows
from eval.audit.text_forms import code, normal_form, words
from eval.encoders.load import wrap
from eval.quality import main
from hub.contract.schema import PAIR_CLASS, published_features

PROVENANCE = {"source_id": "s", "sample": 0, "attempt": 0, "seed": 1, "log_prob": -1.0, "margin": None}


def scored(first: str, second: str, score: float, target: str) -> dict:
    return {"sentence1": first, "sentence2": second, "score": score, "target": target, **PROVENANCE}


PLANTED = [
    scored("a b c d", "a b c d", 0.9, "1"),  # the same sides, twice the same row
    scored("a b c d", "a b c d", 0.9, "1"),
    scored("A, b c d!", "a b c d", 0.9, "1"),  # a repeat but for case and punctuation
    scored("a b c d", "a b x y", 0.5, "0.5"),
    scored("a b c d", "a x y z w", 0.5, "0.5"),
    scored("a b c d", "", 0.1, "0"),
    scored("a b c d", "q r", 0.1, "0"),
    scored("a b c d", "q " * 40, 0.0, "sampled"),
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("d") / "run", {"train": PLANTED[:5], "test": PLANTED[5:]})


def letters(texts: list[str]) -> np.ndarray:
    """How often each letter stands in a text: an encoder."""
    return np.array([[text.lower().count(letter) for letter in "abcdxyzwqr"] for text in texts], dtype=np.float32)


letters.revision = "1"


def test_texts_and_repeats_are_counted_exactly(planted):
    found = measure(find_rows(str(planted)))
    second = found.columns[1]
    assert (second.texts, second.empty, second.short) == (8, 1, 2)
    assert second.lengths == {0: 1, 2: 1, 4: 4, 5: 1, 40: 1}
    assert (second.between_4_and_32.count, second.mean_length) == (5, 63 / 8)
    assert (second.different, second.different_normal) == (6, 6)
    assert (found.columns[0].different, found.columns[0].different_normal) == (2, 1)
    repeats = found.repeats
    assert (repeats.rows, repeats.exact, repeats.normal) == (8, 1, 2)
    assert (repeats.same_sides, repeats.same_sides_normal) == (2, 3)
    distinct = {one.n: (one.different, one.total) for one in second.distinct}
    assert distinct == {1: (10, 63), 2: (10, 56), 3: (8, 49)}


def test_measures_stand_in_the_order_of_the_scores(planted):
    measures = {one.name: one for one in measure(find_rows(str(planted)), encoder=wrap(letters, "letters")).measures}
    assert [one.label for one in measures["jaccard"].labels] == ["sampled", "0", "0.5", "1"]
    assert measures["jaccard"].labels[2].mean == pytest.approx((2 / 6 + 1 / 8) / 2)
    assert measures["overlap coefficient"].labels[2].mean == pytest.approx((2 / 4 + 1 / 4) / 2)
    cosine = measures["cosine"]
    assert (cosine.source, cosine.revision) == ("letters", "1")
    assert cosine.labels[3].mean == pytest.approx(1.0)
    assert cosine.labels[2].mean == pytest.approx((2 / 4 + 1 / np.sqrt(20)) / 2)
    assert cosine.labels[1].mean == 0.0  # of an empty text's zero vector too
    assert [one.auc for one in cosine.separations] == [0.5, 1.0, 1.0]
    assert sum(cosine.labels[3].histogram) == 3


def test_lexical_overlap_at_its_ends():
    assert jaccard(["", "a", "a b", "A!"], ["", "", "c", "a"]) == [1.0, 0.0, 0.0, 1.0]
    assert overlap_coefficient(["a", "a b"], ["a b c d", "c"]) == [1.0, 0.0]
    assert auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == pytest.approx(0.875)


def test_forms_in_which_spellings_meet():
    same = ["Don't!", "do n't !", "don ’t", "DON'T"]
    assert {normal_form(text) for text in same} == {"dont"}
    assert normal_form("It can not be: ﬁve U.S. `` tests ''") == normal_form('it cannot be - five U. S. "tests"')
    assert words("Don't go_there, now") == ["don", "t", "go", "there", "now"]


def test_a_sample_is_drawn_over_all_splits_and_the_same_each_time(tmp_path):
    rows = [scored(f"first {n}", f"second {n}", 0.1 * (n % 10), str(n % 10)) for n in range(BATCH + 900)]
    directory = write_dataset(tmp_path / "run", {"train": rows, "validation": rows[:100]})
    whole = find_rows(str(directory))
    assert sum(len(batch) for batch in whole.batches()) == whole.total == len(rows) + 100
    drawn = [(batch.split, number) for batch in whole.batches(500, seed=3) for number in batch.rows]
    assert len(set(drawn)) == 500
    assert drawn == [(batch.split, number) for batch in whole.batches(500, seed=3) for number in batch.rows]
    texts = [text for batch in whole.batches(500, seed=3) for text in batch.texts["sentence1"]]
    assert texts == [f"first {number}" for _, number in drawn]
    assert {split for split, _ in drawn} == {"train", "validation"}
    assert [batch.split for batch in find_rows(str(directory), split="validation").batches()] == ["validation"]


def test_the_command_writes_a_report_that_reads_back(planted, tmp_path, capsys):
    model = make_marker_nli(tmp_path / "nli")
    options = {"encoder": None, "nli_labels": None, "config": None, "split": None, "sample": 6, "tokenizer": str(model)}
    main(place=str(planted), nli=str(model), seed=1, out=tmp_path / "out", **options)
    told = capsys.readouterr().out
    found = Quality.model_validate_json((tmp_path / "out" / "quality.json").read_bytes())
    assert found.rows == 6
    assert found.nli.model == "nli"
    assert "6 drawn at random (seed 1) of the 8 rows" in told
    assert told == (tmp_path / "out" / "quality.md").read_text()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"quality.json", "quality.md", "lengths.png", "jaccard.png", "overlap-coefficient.png", "nli.png"}
    for picture in (tmp_path / "out").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"![{picture.name}]({picture.name})" in told


def test_names_of_a_stranger_do_nothing(tmp_path):
    evil = "x`|</td><script>\n# [a](http://b) $\\alpha$ \u202e"
    features = published_features(PAIR_CLASS)
    features["label"] = datasets.ClassLabel(names=[evil, "b"])
    row = {"premise": "p", "hypothesis": "h", "label": 0, **PROVENANCE, "target": "t"}
    write_dataset(tmp_path / "d", {"train": [row, {**row, "label": 1}]}, "pair-class", PAIR_CLASS, features)
    found = measure(find_rows(str(tmp_path / "d")))
    text = report(found.model_copy(update={"dataset": f"../../{evil}"}), pictures(found))
    for line in text.splitlines():
        assert "<script>" not in "".join(line.split("`")[::2])  # outside code spans
        assert line.count("`") % 2 == 0
    assert "\u202e" not in text
    assert len({line.count("|") for line in text.splitlines() if "script" in line and line.startswith("|")}) == 1
    assert code("") == "<code></code>"
    place = default_folder("quality", f"../../{evil}", "c")
    assert place.parent == default_folder("quality", "a", "b").parent


def test_a_quality_file_reads_back_as_it_was_measured(planted):
    found = measure(find_rows(str(planted)))
    assert Quality.model_validate_json(found.model_dump_json()) == found


def test_a_share_of_nothing_is_unknown():
    assert (share(0, 0).low, share(0, 0).high) == (0.0, 1.0)
    assert share(0, 10).low == 0.0 < share(0, 10).high
