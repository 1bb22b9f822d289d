"""Dataset quality: counts of planted rows, planted label noise found by an NLI model, the command and its report."""

import random

import datasets
import numpy as np
import pytest
from marker_nli import MARKERS, make_marker_nli
from training_inputs import PROVENANCE, write_dataset

from eval.audit.quality import Quality, class_names, load_nli_model, measure, share
from eval.audit.quality_report import pictures, report
from eval.audit.source import BATCH, default_folder, find_rows
from eval.audit.text_forms import code
from eval.encoders.load import wrap
from eval.quality import main
from hub.contract.schema import NLI_LABELS, PAIR_CLASS, TRIPLET, published_features
from hub.errors import InputError, RunError


def scored(first: str, second: str, score: float, target: str) -> dict:
    return {"sentence1": first, "sentence2": second, "score": score, **PROVENANCE, "target": target}


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
def planted_run(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("d") / "run", {"train": PLANTED[:5], "test": PLANTED[5:]})


def letters(texts: list[str]) -> np.ndarray:
    """How often each letter stands in a text: an encoder."""
    return np.array([[text.lower().count(letter) for letter in "abcdxyzwqr"] for text in texts], dtype=np.float32)


letters.revision = "1"


def test_texts_and_repeats_are_counted_exactly(planted_run):
    found = measure(find_rows(str(planted_run)))
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


def test_measures_stand_in_the_order_of_the_scores(planted_run):
    measures = {
        one.name: one for one in measure(find_rows(str(planted_run)), encoder=wrap(letters, "letters")).measures
    }
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


def test_the_command_writes_a_report_that_reads_back(planted_run, tmp_path, capsys):
    model = make_marker_nli(tmp_path / "nli")
    options = {"encoder": None, "nli_labels": None, "config": None, "split": None, "sample": 6, "tokenizer": str(model)}
    main(place=str(planted_run), nli=str(model), seed=1, out=tmp_path / "out", **options)
    reported = capsys.readouterr().out
    found = Quality.model_validate_json((tmp_path / "out" / "quality.json").read_bytes())
    assert found.rows == 6
    assert found.nli.model == "nli"
    assert "6 drawn at random (seed 1) of the 8 rows" in reported
    assert reported == (tmp_path / "out" / "quality.md").read_text()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"quality.json", "quality.md", "lengths.png", "jaccard.png", "overlap-coefficient.png", "nli.png"}
    for picture in (tmp_path / "out").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert f"![{picture.name}]({picture.name})" in reported


def test_names_of_a_stranger_do_nothing(tmp_path):
    evil = "x`|</td><script>\n# [a](http://b) $\\alpha$ \u202e"
    features = published_features(PAIR_CLASS)
    features["label"] = datasets.ClassLabel(names=[evil, "b"])
    row = {"premise": "p", "hypothesis": "h", "label": 0, **PROVENANCE}
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


WORD = {label: word for word, label in MARKERS.items()}
PAIRS = 600


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    return load_nli_model(str(make_marker_nli(tmp_path_factory.mktemp("nli"))))


def pair_rows(flipped: set[int] = frozenset(), wrong: set[int] = frozenset()) -> list[dict]:
    """Pairs of three labels; ``flipped`` rows carry the next label, ``wrong`` ones another label's text."""
    rows = []
    for number in range(PAIRS):
        true = number % 3
        written = NLI_LABELS[(true + (number in wrong)) % 3]
        label = (true + (number in flipped)) % 3
        hypothesis = f"{'so ' * (number % 7)}it is {WORD[written]} text {number}"
        rows.append({"premise": f"premise {number}", "hypothesis": hypothesis, "label": label, **PROVENANCE})
    return rows


def agreement_of(directory, rows, nli):
    write_dataset(directory, {"train": rows}, "pair-class", PAIR_CLASS)
    return measure(find_rows(str(directory)), nli=nli).nli


def test_flipped_labels_lower_the_agreement_by_what_was_planted(tmp_path, nli):
    wrong = set(range(0, PAIRS, 20))  # the dataset's writer missed its label in 5 of 100
    clean = agreement_of(tmp_path / "clean", pair_rows(wrong=wrong), nli).agreement
    flipped = set(random.Random(0).sample(sorted(set(range(PAIRS)) - wrong), PAIRS // 10))
    noisy = agreement_of(tmp_path / "noisy", pair_rows(flipped, wrong), nli).agreement
    assert (clean.count, clean.n) == (570, 600)
    assert noisy.share == pytest.approx(clean.share - 0.1)
    assert noisy.low < clean.share - 0.1 < noisy.high < clean.share  # found, and reported from no noise


def test_the_interval_covers_the_planted_rate_as_often_as_it_says():

    generator = random.Random(1)
    counts = [sum(generator.random() < 0.9 for _ in range(PAIRS)) for _ in range(400)]
    covered = sum(one.low <= 0.9 <= one.high for one in (share(count, PAIRS) for count in counts))
    assert 0.92 <= covered / 400 <= 0.98


def test_a_triplets_positive_is_to_be_entailed_and_its_negative_contradicted(tmp_path, nli):
    rows = [
        {
            "anchor": f"a {n}",
            "positive": f"surely {n}",
            "negative": f"{'never' if n else 'maybe'} {n}",
            "source_id": "s",
        }
        for n in range(10)
    ]
    write_dataset(tmp_path / "d", {"train": rows}, "triplet", TRIPLET)
    found = measure(find_rows(str(tmp_path / "d")), nli=nli).nli
    shares = {row.label: (row.intended, row.agreement.share) for row in found.labels}
    assert shares == {"negative": ("contradiction", 0.9), "positive": ("entailment", 1.0)}


def test_outputs_are_named_in_any_case_and_order_or_refused():
    assert class_names({0: "NEUTRAL", 1: "Entailment", 2: "contradiction"}, None, "m") == (
        "neutral",
        "entailment",
        "contradiction",
    )
    given = "contradiction, entailment,neutral"
    unnamed = {number: f"LABEL_{number}" for number in range(3)}
    assert class_names(unnamed, given, "m") == ("contradiction", "entailment", "neutral")
    with pytest.raises(InputError, match="--nli-labels contradiction,entailment,neutral"):
        class_names(unnamed, None, "m")
    with pytest.raises(InputError, match="itself says neutral, entailment, contradiction"):
        class_names({0: "neutral", 1: "entailment", 2: "contradiction"}, given, "m")
    with pytest.raises(InputError, match="classifies into entailment, not_entailment"):
        class_names({0: "entailment", 1: "not_entailment"}, None, "m")
    with pytest.raises(InputError, match="names yes, no"):
        class_names(unnamed, "yes,no", "m")


def test_outputs_that_are_not_finite_are_no_classes(tmp_path, nli):
    import torch

    broken = load_nli_model(str(make_marker_nli(tmp_path / "m")))
    with torch.no_grad():
        broken.model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(RunError, match="not finite"):
        broken.predict(["a"], ["b"])
