"""Dataset quality: counts of planted rows, planted label noise found by an NLI model, the command
and its report.
"""

import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
from marker_nli import MARKERS, make_marker_nli
from training_inputs import PROVENANCE, write_dataset

from sts_dino.eval.audit.command import get_default_folder
from sts_dino.eval.audit.quality import list_class_names, load_nli_model, main, measure_quality
from sts_dino.eval.audit.source import BATCH_ROWS, find_rows
from sts_dino.eval.encoders.load import wrap
from sts_dino.hub.contract import schema
from sts_dino.hub.contract.schema import NLI_LABELS, PAIR, PAIR_CLASS, TRIPLET
from sts_dino.hub.errors import InputError, RunError


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
    return write_dataset(
        tmp_path_factory.mktemp("d") / "run", {"train": PLANTED[:5], "test": PLANTED[5:]}
    )


def letters(texts: list[str]) -> np.ndarray:
    """How often each letter stands in a text: an encoder."""
    return np.array(
        [[text.lower().count(letter) for letter in "abcdxyzwqr"] for text in texts],
        dtype=np.float32,
    )


def test_texts_repeats_and_measures_by_label_are_those_of_the_planted_rows(planted_run):
    found = measure_quality(find_rows(str(planted_run)), encoder=wrap(letters, "letters", "1"))
    first, second = (found.texts.loc[column] for column in ("sentence1", "sentence2"))
    assert (second["texts"], second["empty"], second["under 3"]) == (8, 1, 2)
    assert (second["4 to 32"].value, second["mean length"]) == (5 / 8, 63 / 8)
    assert (second["different"], second["different, normal"]) == (6, 6)
    assert (first["different"], first["different, normal"]) == (2, 1)
    assert found.repeats["rows that repeat an earlier one"].to_dict() == {"exact": 1, "normal": 2}
    assert found.repeats["rows whose first two texts are the same"].to_dict() == {
        "exact": 2,
        "normal": 3,
    }
    assert [second[f"distinct-{n}"] for n in (1, 2, 3)] == pytest.approx([10 / 63, 10 / 56, 8 / 49])
    assert found.facts["encoder"] == {"name": "letters", "revision": "1"}
    assert list(found.measures["word overlap"].index) == ["sampled", "0", "0.5", "1"]
    assert found.measures["word overlap"].loc["0.5", "mean"] == pytest.approx((2 / 6 + 1 / 8) / 2)
    cosine = found.measures["cosine"]
    assert cosine.loc["0.5", "mean"] == pytest.approx((2 / 4 + 1 / np.sqrt(20)) / 2)
    assert cosine.loc["1", "mean"] == pytest.approx(1.0) and cosine.loc["1", "pairs"] == 3
    assert cosine.loc["0", "mean"] == 0.0  # of an empty text's zero vector too
    assert list(cosine["AUC"]) == [None, 0.5, 1.0, 1.0]


def test_a_sample_is_drawn_over_all_splits_and_the_same_each_time(tmp_path):
    rows = [
        scored(f"first {n}", f"second {n}", 0.1 * (n % 10), str(n % 10))
        for n in range(BATCH_ROWS + 900)
    ]
    directory = write_dataset(tmp_path / "run", {"train": rows, "validation": rows[:100]})
    whole = find_rows(str(directory))
    assert sum(len(batch) for batch in whole.read_batches()) == whole.total == len(rows) + 100
    drawn, again = (
        [
            (batch.split, number, text)
            for batch in whole.read_batches(500, seed=3)
            for number, text in zip(batch.rows, batch.texts["sentence1"], strict=True)
        ]
        for _ in range(2)
    )
    assert (
        drawn == again
        and len(set(drawn)) == 500
        and {split for split, *_ in drawn} == {"train", "validation"}
    )
    assert all(text == f"first {number}" for _, number, text in drawn)
    assert [
        batch.split for batch in find_rows(str(directory), split="validation").read_batches()
    ] == ["validation"]


def test_the_command_writes_a_report_that_reads_back(planted_run, tmp_path, capsys):
    model = make_marker_nli(tmp_path / "nli")
    options = {"encoder": None, "nli_labels": None, "config": None, "split": None, "sample": 6}
    main(run=str(planted_run), nli=str(model), seed=1, out=tmp_path / "out", **options)
    reported = capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "quality.json").read_bytes())
    assert found["rows"] == 6 and found["nli_model"]["name"] == "nli"
    assert found["nli"][0].keys() == {"label", "pairs", *NLI_LABELS, "agreement"}
    assert found["measures"]["word overlap"][0]["AUC"] is None and found["texts"][0]["texts"] == 6
    assert "6 drawn at random (seed 1) of the 8 rows" in reported
    assert reported == (tmp_path / "out" / "quality.md").read_text()


def test_pairs_without_labels_are_measured_together(tmp_path):
    row = {"anchor": "a b", "positive": "a c", **dict.fromkeys(PAIR.provenance)}
    write_dataset(tmp_path / "d", {"train": [row, row]}, "pair", PAIR)
    overlap = measure_quality(find_rows(str(tmp_path / "d"))).measures["word overlap"]
    assert overlap.loc["no label", "pairs"] == 2
    assert overlap.loc["no label", "mean"] == pytest.approx(1 / 3)


def test_a_model_in_the_current_folder_has_the_folders_name(tmp_path, monkeypatch):
    monkeypatch.chdir(make_marker_nli(tmp_path / "judge"))
    assert load_nli_model(".").name == "judge"


def test_untrusted_names_do_nothing(tmp_path):
    evil = "x`|</td><script>\n# [a](http://b) $\\alpha$ \u202e"
    features = schema.build_features({**PAIR_CLASS.columns, **PAIR_CLASS.provenance})
    features["label"] = datasets.ClassLabel(names=[evil, "b"])
    row = {"premise": "p", "hypothesis": "h", "label": 0, **PROVENANCE}
    write_dataset(
        tmp_path / "d", {"train": [row, {**row, "label": 1}]}, "pair-class", PAIR_CLASS, features
    )
    found = measure_quality(find_rows(str(tmp_path / "d")))
    text = replace(found, facts=found.facts | {"dataset": f"../../{evil}"}).to_markdown()
    for line in text.splitlines():
        assert "<script>" not in "".join(line.split("`")[::2])  # outside code spans
        assert line.count("`") % 2 == 0
    assert "\u202e" not in text
    assert (
        len(
            {
                line.count("|")
                for line in text.splitlines()
                if "script" in line and line.startswith("|")
            }
        )
        == 1
    )
    place = get_default_folder("quality", f"../../{evil}", "c")
    assert place.parent == get_default_folder("quality", "a", "b").parent


WORD = {label: word for word, label in MARKERS.items()}
PAIRS = 600


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    return load_nli_model(str(make_marker_nli(tmp_path_factory.mktemp("nli"))))


def test_flipped_labels_lower_the_agreement_by_what_was_planted(tmp_path, nli):
    """The generator missed its label in 5 of 100 pairs; the labels of another tenth are flipped."""
    agreement = {}
    for name, flipped in (("clean", []), ("noisy", range(1, PAIRS, 10))):
        rows = []
        for number in range(PAIRS):
            written, label = (
                NLI_LABELS[(number + (number % 20 == 0)) % 3],
                (number + (number in flipped)) % 3,
            )
            hypothesis = f"{'so ' * (number % 7)}it is {WORD[written]} text {number}"
            rows.append(
                {
                    "premise": f"premise {number}",
                    "hypothesis": hypothesis,
                    "label": label,
                    **PROVENANCE,
                }
            )
        write_dataset(tmp_path / name, {"train": rows}, "pair-class", PAIR_CLASS)
        agreement[name] = measure_quality(find_rows(str(tmp_path / name)), nli=nli).nli[
            "agreement"
        ]["all"]
    clean, noisy = agreement.values()
    assert clean.value == 570 / 600 and noisy.value == pytest.approx(clean.value - 0.1)
    assert noisy.low < clean.value - 0.1 < noisy.high < clean.value


def test_a_triplets_positive_should_be_entailed_and_its_negative_contradicted(tmp_path, nli):
    texts = [("surely", "never" if n else "maybe") for n in range(10)]
    rows = [
        {"anchor": "a", "positive": one, "negative": other, "source_id": "s"}
        for one, other in texts
    ]
    write_dataset(tmp_path / "d", {"train": rows}, "triplet", TRIPLET)
    found = measure_quality(find_rows(str(tmp_path / "d")), nli=nli).nli["agreement"]
    assert {label: one.value for label, one in found.items()} == {
        "negative": 0.9,
        "positive": 1,
        "all": 0.95,
    }


UNNAMED = {number: f"LABEL_{number}" for number in range(3)}


def test_outputs_are_named_in_any_case_and_order():
    named = list_class_names({0: "NEUTRAL", 1: "Entailment", 2: "contradiction"}, None, "m")
    assert named == ("neutral", "entailment", "contradiction")
    given = list_class_names(UNNAMED, "contradiction, entailment,neutral", "m")
    assert given == ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize(
    ("outputs", "given", "problem"),
    [
        (UNNAMED, None, "m: its outputs are label_0, .*--nli-labels contradiction"),
        (
            dict(enumerate(NLI_LABELS)),
            "contradiction,entailment,neutral",
            "are entailment, .* names contradiction",
        ),
        ({0: "entailment", 1: "not_entailment"}, None, "are entailment, not_entailment; allowed"),
        (UNNAMED, "yes,no", "--nli-labels names yes, no"),
    ],
)
def test_outputs_that_are_not_the_three_classes_are_refused(outputs, given, problem):
    with pytest.raises(InputError, match=problem):
        list_class_names(outputs, given, "m")


def test_outputs_that_are_not_finite_are_no_classes(tmp_path):
    import torch

    broken = load_nli_model(str(make_marker_nli(tmp_path / "m")))
    with torch.no_grad():
        broken.model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(RunError, match="not finite"):
        broken.predict(["a"], ["b"])
