"""A directory as the training stage really leaves it gets a card: baseline, adapter merged, loss of several parts."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_model_cards_numbers import PNG, table_with
from tiny_bases import make_llama, make_mlm
from training_inputs import triplet_rows, write_dataset, write_recipe

from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe, resolved
from hub.contract.run_dir import RECIPE, read_manifest, write_manifest
from hub.contract.schema import TRIPLET
from hub.durable import write_text
from model_cards.render import render
from training.loop.job import prepare
from training.loop.train import work

COMMAND = "sts-dino train recipe.yaml"


def trained(folder: Path, **changes: Any) -> Path:
    """The run directory of a tiny recipe, trained here."""
    recipe = write_recipe(folder, **changes)
    job = prepare(recipe, folder / "tiny", None, [])
    work(job, COMMAND)
    return folder / "tiny"


def licensed(folder: Path, name: str) -> None:
    """Give a dataset's run directory a recipe, which names its licence."""
    recipe = load_recipe(Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe)
    write_text(folder / name / RECIPE, resolved(recipe.model_copy(update={"license": "mit"})))


def test_a_baseline_as_it_is_made(tmp_path: Path) -> None:
    changes = {"datasets": [], "arguments": {}}
    files = render(trained(tmp_path, **changes))
    assert list(files) == ["README.md"] and "baseline of the evaluation" in files["README.md"].decode()


def test_scored_pairs_choose_a_checkpoint(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    licensed(tmp_path, "pairs")
    directory = trained(tmp_path)
    files, manifest = render(directory), read_manifest(directory)
    assert manifest is not None
    facts = dict(table_with(files["README.md"].decode(), "training"))
    told = manifest.provenance["training"]
    assert facts["checkpoint chosen by"] == "Spearman's correlation on the training data's own validation splits"
    assert facts["step kept"] == str(told["best_step"]) and facts["batch size"] == "16"
    assert float(facts["Spearman's correlation at that step"]) == pytest.approx(told["validation_score"], abs=1e-3)
    assert files["assets/training.png"].startswith(PNG)


def test_a_merged_adapter(tmp_path: Path) -> None:
    make_llama(tmp_path / "llama")
    write_dataset(tmp_path / "triplets", {"train": triplet_rows(32)}, "triplet-0shot", TRIPLET)
    licensed(tmp_path, "triplets")
    data = {
        "path": str(tmp_path / "triplets"),
        "config": "triplet-0shot",
        "example_type": "triplet",
        "loss": "CachedMultipleNegativesRankingLoss",
        "loss_arguments": {"scale": "20", "mini_batch_size": "8"},
    }
    prompt = 'This sentence : "[X]" means in one word:"'
    base = {"path": str(tmp_path / "llama"), "pooling": "lasttoken", "prompt": prompt, "license": "llama2"}
    changes: dict[str, Any] = {"base": base, "lora": {"r": "4", "alpha": "8", "release": "merged"}, "license": "llama2"}
    directory = trained(tmp_path, datasets=[data], **changes)
    card = render(directory)["README.md"].decode()
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "llama2"
    start = dict(table_with(card, "start"))
    assert start["prompt around a sentence"] == prompt and start["adapter"].startswith(
        "LoRA in all linear layers: rank 4"
    )
    (row,) = table_with(card, "dataset", "revision")
    assert row[-2:] == ["CachedMultipleNegativesRankingLoss(mini_batch_size=8, scale=20)", "train 32"]
    assert "step kept" not in dict(table_with(card, "training"))


def test_spans_of_documents(tmp_path: Path) -> None:
    make_mlm(tmp_path / "mlm")
    words = ["man", "dog", "plays", "flute", "beach", "woman", "red", "car"]
    texts = [" ".join(words[(i * j + j) % 8] for j in range(400)) for i in range(24)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    spans = {"min_length": "8", "max_length": "32", "min_document": "128"}
    data = {
        "path": str(tmp_path / "texts.txt"),
        "config": "default",
        "example_type": "documents",
        "loss": "DeclutrLoss",
    }
    changes: dict[str, Any] = {
        "base": {"path": str(tmp_path / "mlm"), "max_seq_length": "48", "license": "mit"},
        "datasets": [{**data, "spans": spans}],
        "batch_size": "4",
        "arguments": {"max_steps": "4", "logging_steps": "1", "report_to": "none", "save_strategy": "no"},
        "slanted_triangular": {"cut_fraction": "0.25"},
    }
    directory = trained(tmp_path, **changes)
    manifest = read_manifest(directory)
    assert manifest is not None
    manifest.provenance["datasets"][0]["license"] = "cc0-1.0"  # a file has none: a release names data of the Hub
    write_manifest(directory, manifest)
    files = render(directory)
    card = files["README.md"].decode()
    assert set(manifest.provenance["training"]["loss_parts"]) == {"contrastive", "mlm"}
    assert "and of its parts by step.]" in card and files["assets/training.png"].startswith(PNG)
    assert dict(table_with(card, "spans"))["words of a span"] == "8 to 32"
    assert load_recipe(directory / RECIPE, ModelRecipe).slanted_triangular is not None
    assert "slanted triangular: up for 25 %" in card


def test_texts_paired_with_themselves_and_pairs_by_their_grades(tmp_path: Path) -> None:
    make_mlm(tmp_path / "guide")
    write_recipe(tmp_path)
    copies = {"path": str(tmp_path / "pairs"), "config": "postprocessed", "example_type": "self-pair"}
    copies |= {"loss": "MultipleNegativesRankingLoss", "columns": ["sentence1", "sentence2"]}
    card = render(trained(tmp_path / "copies", datasets=[copies]))["README.md"].decode()
    assert "trained on texts paired with themselves, without labels" in card and "language model wrote" not in card
    assert "gao-etal-2021-simcse" in card and "schick-schutze" not in card
    (row,) = table_with(card, "dataset", "revision")
    assert row[3] == "self-pair: each distinct text (sentence1, sentence2) with itself"
    guide = {"path": str(tmp_path / "guide"), "license": "cc-by-nc-4.0"}
    graded = copies | {"example_type": "graded-pair", "loss": "GISTEmbedLoss", "guide": guide}
    del graded["columns"]
    data = [copies, graded]
    card = render(trained(tmp_path / "both", datasets=data, license="cc-by-nc-4.0"))["README.md"].decode()
    assert "wrote and labelled, and on texts paired with themselves" in card
    tags = yaml.safe_load(card.split("---\n")[1])["tags"]
    assert {"simcse", "dino"} < set(tags) and len(set(tags)) == len(tags)
    _, row = table_with(card, "dataset", "revision")
    assert row[3:5] == ["graded-pair: positive from 0.75", "GISTEmbedLoss, guided by guide"]
    assert "Guide of the loss" in card
