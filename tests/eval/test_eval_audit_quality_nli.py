"""Labels against a cross-encoder: the loading of real models from disk, and planted label noise found again."""

import json
import random

import pytest
from marker_nli import MARKERS, make_marker_nli
from training_inputs import write_dataset

from eval.audit.quality import class_names, load_nli_model, measure
from eval.audit.quality_report import report
from eval.audit.source import find_rows
from hub.contract.recipe import NLI_LABELS
from hub.contract.schema import PAIR_CLASS, TRIPLET
from hub.errors import InputError, RunError

pytest_plugins = ["local_hub"]
WORD = {label: word for word, label in MARKERS.items()}
PROVENANCE = {"source_id": "s", "target": "x", "sample": 0, "attempt": 0, "seed": 1, "log_prob": -1.0, "margin": None}
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


def test_the_model_reads_the_hypothesis_in_any_batch(nli):
    texts = [f"{'word ' * (number % 11)}{word}" for number, word in enumerate([*MARKERS] * 20)]
    assert nli.predict(["a premise"] * 60, texts) == [*MARKERS.values()] * 20


def test_flipped_labels_lower_the_agreement_by_what_was_planted(tmp_path, nli):
    wrong = set(range(0, PAIRS, 20))  # the dataset's writer missed its label in 5 of 100
    clean = agreement_of(tmp_path / "clean", pair_rows(wrong=wrong), nli).agreement
    flipped = set(random.Random(0).sample(sorted(set(range(PAIRS)) - wrong), PAIRS // 10))
    noisy = agreement_of(tmp_path / "noisy", pair_rows(flipped, wrong), nli).agreement
    assert (clean.count, clean.n) == (570, 600)
    assert noisy.share == pytest.approx(clean.share - 0.1)
    assert noisy.low < clean.share - 0.1 < noisy.high < clean.share  # found, and told from no noise


def test_the_interval_covers_the_planted_rate_as_often_as_it_says():
    from eval.audit.quality import share

    generator = random.Random(1)
    counts = [sum(generator.random() < 0.9 for _ in range(PAIRS)) for _ in range(400)]
    covered = sum(one.low <= 0.9 <= one.high for one in (share(count, PAIRS) for count in counts))
    assert 0.92 <= covered / 400 <= 0.98


def test_ratios_by_label_and_class(tmp_path, nli):
    found = agreement_of(tmp_path / "d", pair_rows(wrong={0, 3, 6, 9}), nli)
    entailment = next(row for row in found.labels if row.label == "entailment")
    assert entailment.intended == "entailment"
    assert {name: one.count for name, one in entailment.predicted.items()} == {
        "entailment": 196,
        "neutral": 4,
        "contradiction": 0,
    }
    assert entailment.agreement.share == pytest.approx(0.98)
    assert found.classes == ("contradiction", "entailment", "neutral")


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


def test_scored_pairs_have_ratios_but_no_agreement(tmp_path, nli):
    rows = [{"sentence1": "a", "sentence2": "surely", "score": 1.0, **PROVENANCE, "target": "1"}] * 3
    write_dataset(tmp_path / "d", {"train": rows})
    found = measure(find_rows(str(tmp_path / "d")), nli=nli).nli
    assert found.agreement is None
    assert found.labels[0].predicted["entailment"].count == 3


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


def test_a_model_on_disk_without_names_needs_them_said(tmp_path):
    folder = str(make_marker_nli(tmp_path / "m", ("LABEL_0", "LABEL_1", "LABEL_2")))
    with pytest.raises(InputError, match="classifies into label_0"):
        load_nli_model(folder)
    assert load_nli_model(folder, "entailment,neutral,contradiction").predict(["p"], ["never"]) == ["contradiction"]


def test_what_cannot_classify_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match="no such model folder"):
        load_nli_model("nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="has no weights in safetensors"):
        load_nli_model(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be loaded as a cross-encoder"):
        load_nli_model(str(tmp_path))


def test_outputs_that_are_not_finite_are_no_classes(tmp_path, nli):
    import torch

    broken = load_nli_model(str(make_marker_nli(tmp_path / "m")))
    with torch.no_grad():
        broken.model.model.classifier.bias.fill_(float("nan"))
    with pytest.raises(RunError, match="not finite"):
        broken.predict(["a"], ["b"])


def test_the_papers_table_holds_the_dataset_only_under_the_papers_classifier(tmp_path, nli):
    write_dataset(tmp_path / "d", {"train": pair_rows(wrong={0, 3})}, "pair-class", PAIR_CLASS)
    found = measure(find_rows(str(tmp_path / "d")), nli=nli)
    other = report(found, [])
    assert "| 0-shot | 0.160 | 0.888 |" in other and "another scale" in other and "this dataset" not in other
    named = found.nli.model_copy(update={"model": "microsoft/deberta-v2-xxlarge-mnli"})
    same = report(found.model_copy(update={"nli": named}), [])
    assert "| **this dataset** | 0.990 [0.964, 0.997] | 1.000 [0.981, 1.000] |" in same and "as here" in same


def test_a_model_of_a_hub_is_found_again_offline_without_its_revision(tmp_path, local_hub, hub_api, repo, monkeypatch):
    address = local_hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", local_hub.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    hub_api.create_repo(repo)
    commit = hub_api.upload_folder(repo_id=repo, folder_path=make_marker_nli(tmp_path / "m")).oid
    assert load_nli_model(repo).revision == commit
    with pytest.raises(InputError, match="no such repository"):
        load_nli_model("demo/absent")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert load_nli_model(repo).revision == commit
    with pytest.raises(RunError, match="is not downloaded, and HF_HUB_OFFLINE is set"):
        load_nli_model("demo/absent")
