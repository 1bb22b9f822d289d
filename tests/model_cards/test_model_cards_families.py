"""The cards of the families: adapters and merged ones, documents, several trainings, and baselines, which stay here."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import HfApi, ModelCard
from test_model_cards_numbers import table_with
from test_model_cards_runs import card_of, model_provenance, model_run, score

from hub.client.publish import checked, publish
from hub.contract.licences import table as licences
from hub.contract.measured import REPEATS, RepeatScore, Run, repeats_of, write_repeats
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import fingerprint, load_recipe
from hub.contract.results import read_results, write_results
from hub.contract.run_dir import RECIPE, read_manifest, write_manifest
from hub.durable import sha256_file
from hub.errors import InputError
from model_cards.model.card import told_under
from model_cards.render import render
from model_cards.shared.changes import change_table

PROMPT = 'This sentence : "[X]" means in one word:"'
LLAMA = {
    "repo_id": "some/llama",
    "revision": "e" * 40,
    "pooling": "lasttoken",
    "prompt": PROMPT,
    "dtype": "bfloat16",
    "license": "llama2",
}
LORA = {"r": 64, "alpha": 16, "dropout": 0.05}
TRIPLETS = {
    "repo_id": "org/nli",
    "revision": "v1.0.0",
    "config": "triplet-5shot",
    "example_type": "triplet",
    "example_set": 3,
    "loss": "CachedMultipleNegativesRankingLoss",
    "loss_arguments": {"scale": "20", "mini_batch_size": "16"},
}
STSB = {"repo_id": "mteb/stsbenchmark-sts", "revision": "b" * 40}
DOCUMENTS = {
    "repo_id": "org/web",
    "revision": "d" * 40,
    "config": "plain_text",
    "example_type": "documents",
    "streaming": True,
    "loss": "DeclutrLoss",
    "loss_arguments": {"temperature": "0.05"},
    "spans": {"min_length": 16, "max_length": 64, "strategy": "subsumed", "min_document": 512},
}


def prompted(**changes: Any) -> dict[str, Any]:
    """A recipe's changes that make it an adapter on Llama 2."""
    return {"license": "llama2", "base": LLAMA, "lora": LORA, "datasets": [TRIPLETS], "validation": [STSB], **changes}


def trained_on(spec: dict[str, Any], rows: int | None, license: str) -> dict[str, Any]:
    """What the manifest says of a dataset."""
    kept = {key: value for key, value in spec.items() if key not in ("loss_arguments", "spans", "streaming")}
    return {**kept, "commit": "c" * 40, "splits": {"train": rows}, "license": license}


def family_run(directory: Path, told: list[dict[str, Any]], training: dict[str, Any] | None, **changes: Any) -> Path:
    """A finished run whose manifest tells of these datasets, and of a small training with other facts (None: none)."""
    model_run(directory, (score(), score("validation", 60.0, 1500)), **changes)
    manifest = read_manifest(directory)
    assert manifest is not None
    provenance = model_provenance() | {"datasets": told}
    provenance["training"] = None if training is None else provenance["training"] | training
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    digests = {"fingerprint": fingerprint(recipe, manifest.inputs), "recipe_sha256": sha256_file(directory / RECIPE)}
    known = {"provenance": provenance, **digests}
    write_manifest(directory, manifest.model_copy(update=known))
    return directory


def adapter_run(directory: Path, **changes: Any) -> Path:
    training = {"batch_size": 256, "processes": 4}
    return family_run(directory, [trained_on(TRIPLETS, 64_000, "mixed")], training, **prompted(**changes))


def front(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


def test_the_card_of_an_adapter(tmp_path: Path) -> None:
    card = card_of(adapter_run(tmp_path / "run"))
    data = front(card)
    assert (data["base_model"], data["base_model_relation"]) == ("some/llama", "adapter")
    assert data["library_name"] == "sentence-transformers" and {"peft", "lora", "auto-nli"} <= set(data["tags"])
    assert ModelCard(card).data.to_dict() == data
    assert "holds an adapter alone" in card and "`peft`" in card and "hf auth login" in card
    start = dict(table_with(card, "start"))
    assert start["prompt around a sentence"] == PROMPT
    assert start["adapter"] == "LoRA in all linear layers: rank 64, α 16, dropout 0.05"
    assert start["numbers of its weights"] == "bfloat16"
    (row,) = table_with(card, "dataset", "revision")
    assert row[2:] == [
        "triplet-5shot, example set 3",
        "triplet",
        "CachedMultipleNegativesRankingLoss(scale=20, mini_batch_size=16)",
        "train 64,000",
    ]
    facts = dict(table_with(card, "training"))
    assert facts["batch size"] == "256, over 4 processes"
    assert facts["checkpoint chosen by"] == "Spearman's correlation on mteb/stsbenchmark-sts (validation)"
    assert "of that, a score is not held out" in card
    assert "Scaling Sentence Embeddings with Large Language Models" in card


def test_llama_2s_notice_goes_with_its_adapter(tmp_path: Path) -> None:
    said = card_of(adapter_run(tmp_path / "run")).split("## Licence and attribution\n")[1]
    assert (licences()["llama2"].notice or "missing").split(",")[0] in said
    assert "some/llama: the Llama 2 Community License and its acceptable use policy apply." in said
    with pytest.raises(InputError, match="'mit' does not cover its parts; allowed: llama2"):
        card_of(adapter_run(tmp_path / "mit", license="mit"))


def test_a_merged_model_needs_no_base_and_is_told_of_under_its_adapters_name(tmp_path: Path) -> None:
    merged = {"lora": {**LORA, "release": "merged"}, "name": "prompteol-auto-nli-0shot-merged", "version": "1.0.0"}
    directory = adapter_run(tmp_path / "run", **merged)
    card = card_of(directory)
    assert front(card)["base_model_relation"] == "finetune"
    assert "merged here into the weights" in card and "holds an adapter alone" not in card
    recipe = load_recipe(directory / RECIPE, ModelRecipe)
    told = change_table(told_under(recipe), recipe.version, complete=True)
    assert told is not None and told in card
    whole = recipe.base.model_dump() | {"dtype": "float32"}
    named_so = ModelRecipe.model_validate({**recipe.model_dump(), "base": whole, "lora": None})
    assert told_under(named_so) == "prompteol-auto-nli-0shot-merged"


def test_rounded_weights_are_told(tmp_path: Path) -> None:
    base = {**LLAMA, "quantization": {"quant_method": "bitsandbytes_4bit", "load_in_4bit": "true"}}
    start = dict(table_with(card_of(adapter_run(tmp_path / "run", base=base)), "start"))
    assert start["rounded weights"] == "quant_method=bitsandbytes_4bit, load_in_4bit=true"


def test_the_card_of_an_encoder_trained_on_documents(tmp_path: Path) -> None:
    training = {
        "best_step": None,
        "validation_metric": None,
        "validation_score": None,
        "loss_parts": {"contrastive": [[0, 0.6], [39, 0.02]], "mlm": [[0, 0.4], [39, 0.005]]},
    }
    changes = {"datasets": [DOCUMENTS], "slanted_triangular": {"cut_fraction": 0.1}, "batch_size": 16}
    card = card_of(family_run(tmp_path / "run", [trained_on(DOCUMENTS, None, "cc0-1.0")], training, **changes))
    assert table_with(card, "dataset", "revision")[0][-2:] == ["DeclutrLoss(temperature=0.05)", "train streamed"]
    spans = dict(table_with(card, "spans"))
    assert spans["words of a span"] == "16 to 64" and spans["anchors of a document"] == "2, lengths by Beta(4, 2)"
    assert spans["place"] == "positives lie inside their anchor" and spans["words of a document, at least"] == "512"
    facts = dict(table_with(card, "training"))
    assert facts["learning rate"].startswith("slanted triangular: up for 10 % of the steps, then down to 1/32")
    assert not {"step kept", "checkpoint chosen by"} & set(facts)
    assert "and of its parts by step.]" in card and "the step that was kept" not in card
    assert "without labels" in card and "written and labelled by a language model" not in card
    assert "DeCLUTR: Deep Contrastive Learning" in card and front(card)["base_model_relation"] == "finetune"


def repeated(directory: Path, version: str = "0.3.0", model: str = "tiny-encoder") -> None:
    runs = [
        Run(
            value=seed,
            fingerprint=str(seed) * 64,
            version=version,
            scores=(RepeatScore(task="stsb/cosine", split="test", main_score=value),),
        )
        for seed, value in ((1, 70.0), (2, 71.0), (3, 75.0))
    ]
    write_repeats(directory / REPEATS, repeats_of(model, "seed", runs))


def test_the_spread_over_several_trainings_is_told(tmp_path: Path) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    assert "Over several trainings" not in card_of(directory)
    repeated(directory)
    card = card_of(directory)
    assert "The same recipe with other seeds (1, 2, 3)." in card
    assert table_with(card, "task", "split", "trainings") == [
        ["stsb/cosine", "test", "3", "72.00 ± 2.65", "70.00 to 75.00"]
    ]


@pytest.mark.parametrize("other", [{"version": "0.2.0"}, {"model": "another"}])
def test_the_spread_of_another_model_is_refused(tmp_path: Path, other: dict[str, str]) -> None:
    directory = model_run(tmp_path / "run", (score(),))
    repeated(directory, **other)
    with pytest.raises(InputError, match="tells of trainings of"):
        render(directory)


def baseline_run(directory: Path, **changes: Any) -> Path:
    settings = {"datasets": [], "license": "mit", **changes}
    return family_run(directory, [], None, **settings)


def test_a_baselines_card_tells_of_no_training(tmp_path: Path) -> None:
    directory = baseline_run(tmp_path / "run")
    files = render(directory)
    assert sorted(files) == [".eval_results/stsb.yaml", "README.md"]
    card = files["README.md"].decode()
    assert "base_model_relation" not in front(card)
    assert [row[3] for row in table_with(card, "task", "split")] == ["70.12 (69.12 to 71.12)", "60.00 (59.00 to 61.00)"]
    assert "## Training" not in card and "before training" not in card and "it is not published" in card
    said = card.split("## Licence and attribution\n")[1]
    assert "trained on" not in said and "- Base: some/base ([MIT License](" in said


def test_the_paper_stands_beside_its_baseline(tmp_path: Path) -> None:
    base = {**LLAMA, "repo_id": "meta-llama/Llama-2-7b-hf"}
    directory = baseline_run(tmp_path / "run", base=base, license="llama2")
    assert "| paper |" not in card_of(directory)  # its STS-B is SentEval's text form, ours here the organisers'
    tasks = [*(f"sts{year}/all" for year in range(12, 17)), "stsb-tokenised/cosine", "sick-r-tokenised/cosine"]
    results = read_results(directory / "results.json")
    scores = tuple(score().model_copy(update={"task": task}) for task in tasks)
    write_results(directory / "results.json", results.model_copy(update={"scores": scores, "base_scores": ()}))
    shown = {row[0]: row[-1] for row in table_with(card_of(directory), "task", "split")}
    papers = ["59.91", "78.86", "68.74", "75.71", "73.39", "73.48", "71.26"]
    assert shown == dict(zip(tasks, papers, strict=True))


def test_a_baseline_is_not_published(tmp_path: Path) -> None:
    directory = baseline_run(tmp_path / "run")
    for path, content in render(directory, "acme/tiny-encoder").items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(content)
    with pytest.raises(InputError, match="is a baseline, which is not published: nothing was trained"):
        publish(HfApi("http://127.0.0.1:9"), directory, "acme", yes=True)
    assert checked(adapter_run(tmp_path / "adapter")).name == "tiny-encoder"


@pytest.mark.parametrize("trained", [True, False])
def test_recipe_and_manifest_must_agree_on_whether_there_was_a_training(tmp_path: Path, trained: bool) -> None:
    directory = model_run(tmp_path / "run", **({"datasets": []} if trained else {}))
    manifest = read_manifest(directory)
    assert manifest is not None
    provenance = model_provenance() | ({} if trained else {"training": None})
    write_manifest(directory, manifest.model_copy(update={"provenance": provenance}))
    with pytest.raises(InputError, match="but the recipe is of a baseline" if trained else "tells of no training"):
        render(directory)
