"""What a dataset card claims follows from its recipe: labels used, sameness of bytes, the form of its rows."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_model_cards_runs import FEW_SHOT, card_of, dataset_run

from hub.contract.run_dir import read_manifest, write_manifest


def card(directory: Path, form: str = "nli", source: str = "file", **changes: Any) -> str:
    return card_of(dataset_run(directory, form, source, changes=changes))


def model(**changes: Any) -> dict[str, Any]:
    return {"repo_id": "org/lm", "revision": "a" * 40, "license": "mit", **changes}


def test_few_shot_data_is_said_to_use_gold_examples(tmp_path):
    said = card(tmp_path / "run", few_shot=FEW_SHOT)
    assert "**Only the configs ending in `0shot` are label-free**" in said
    assert "| `0shot` | 0 | 0 |\n| `5shot` | 5 | 2 |" in said
    assert f"From `org/nli` at `{'c' * 40}`" in said and "pairs that people wrote (licence: cc-by-sa-4.0)" in said
    assert "| `triplet-5shot` |" in said and "5 gold examples in the prompt" in said


def test_without_0shot_no_config_is_free_of_labels(tmp_path):
    said = card(tmp_path / "run", few_shot={**FEW_SHOT, "shots": [5, 10]})
    assert "**No config is label-free**" in said and "Only the configs" not in said


HAND = {"kind": "hand", "path": "assets/examples/sts.tsv", "description": "ours", "license": "cc0-1.0"}


def test_examples_by_hand_rotation_and_word_overlap_are_told(tmp_path):
    few_shot = {"shots": [5], "sets": 8, "rotate": True, "examples": HAND}
    said = card(tmp_path / "run", few_shot=few_shot, postprocess={"near_copy": 0.8})
    assert "**No config is label-free**: every prompt has examples before it that people wrote for each label." in said
    assert "5 hand-written examples in the prompt" in said and "gold" not in said
    assert "Each first text has one of\nthe example sets, chosen by a hash" in said
    assert "| share of words in common from which a text is a near-copy | 0.8 |" in said
    assert "| texts wanted per first text and label |" in said


def test_examples_of_an_own_run_are_no_persons_labels(tmp_path):
    own = {**HAND, "kind": "own", "path": "artifacts/datasets/first", "rank_by": "margin", "top": 50}
    said = card(tmp_path / "run", few_shot={"shots": [5], "sets": 2, "examples": own})
    assert "**No person labelled an example**" in said and "label-free where that run is" in said
    assert "the 50 rows with the largest `margin` are drawn from" in said and "gold" not in said


def test_examples_are_not_spoken_of_where_there_are_none(tmp_path):
    said = card(tmp_path / "run")
    assert "gold" not in said and "example_set" not in said


@pytest.mark.parametrize(
    ("chosen", "claim"),
    [
        (model(), "the command gives the same bytes, whatever the batch size"),
        (model(dtype="bfloat16", device="cuda"), "Here the generator ran in bfloat16 on cuda: which texts"),
        (model(device_map="auto"), "Here the generator ran in float32 on auto"),
        (
            model(backend="openai", server={"base_url": "http://127.0.0.1:1/v1", "model": "m"}),
            "the texts come from a server: the same bytes are not promised",
        ),
    ],
)
def test_the_same_bytes_are_promised_for_fp32_on_a_cpu_only(tmp_path, chosen, claim):
    said = card(tmp_path / "run", model=chosen)
    assert claim in said
    assert ("gives the same bytes" in said) == (chosen == model())


def test_a_chat_template_is_told(tmp_path):
    assert "chat template" in card(tmp_path / "chat", model=model(chat_template=True))
    assert "chat template" not in card(tmp_path / "raw", model=model())


def test_a_server_does_not_tell_its_size(tmp_path):
    directory = dataset_run(tmp_path / "run", "nli")
    manifest = read_manifest(directory)
    assert manifest is not None
    generator = {**manifest.provenance["model"], "parameters": None}
    provenance = {**manifest.provenance, "model": generator}
    write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))
    said = card_of(directory)
    assert "parameters" not in said and "tiny (" not in said


def test_single_texts_are_a_classification_dataset(tmp_path):
    said = card(tmp_path / "run", "text", "model")
    data = yaml.safe_load(said.split("---\n")[1])
    assert data["task_categories"] == ["text-classification"] and "task_ids" not in data
    assert "sentence-transformers" not in data["tags"]
    assert "| `label` | `class: 0 good, 1 bad` | the class asked for |" in said
    assert "| `good` | A man sings. | good |" in said
    assert "Label `good`, against `bad`:" in said and "δ(t)" in said
    assert "The texts and the first texts were written by a language model" in said
    assert "Schick" in said and "Sato" not in said and "score" not in said.split("## Load it")[1]


def test_guidance_is_told_where_it_is_on(tmp_path):
    without, with_it = (
        card(tmp_path / name, form="sts", decoding=decoding)
        for name, decoding in (("off", {}), ("on", {"guidance": 0.5}))
    )
    assert "uidance" not in without and "Sanchez" not in without and "p'(t) = α(t) · p(t | own prompt)" in without
    assert 'neither task nor first\ntext, here `Sentence 2: "`:' in with_it and "| guidance γ | 0.5 |" in with_it
    assert "p'(t) = α(t) · g(t)" in with_it and "Sanchez" in with_it and "applied to g." not in with_it
    few = card(tmp_path / "few", few_shot=FEW_SHOT, decoding={"guidance": 1})
    assert "text nor examples, here" in few and "Top-k and top-p are applied to g." in few and "δ(t)" not in few
