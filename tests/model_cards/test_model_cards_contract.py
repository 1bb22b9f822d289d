"""A directory as the generation stage really leaves it gets a card, while it grows and when it is finished."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from small_runs import write_shard
from test_model_cards_runs import FEW_SHOT, card_of, dataset_recipe, provenance_columns
from tiny_lm import make_lm

from generation.pipeline import job
from generation.pipeline.directory import DatasetRun
from generation.pipeline.finish import finish
from generation.pipeline.tasks import Shard
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import resolved
from hub.contract.run_dir import Manifest
from model_cards.render import render, write

PROVENANCE = {
    "model": {"id": "org/lm", "revision": "0123abc", "sha256": None, "parameters": 10**9, "license": "mit"},
    "source": {"description": "sentences", "license": "cc0-1.0", "sha256": None},
    "command": "sts-dino write recipes/tiny.yaml",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def raw_rows(recipe: DatasetRecipe, shard: Shard) -> list[dict[str, Any]]:
    """Twenty first texts with a text for every label."""
    asked = f"{shard.variant.shots} {shard.variant.example_set}"
    example_set = {"example_set": shard.variant.example_set} if recipe.few_shot else {}
    return [
        {
            "text1": f"First text {number}.",
            "text2": f"Text {number} for {label.name} ({asked}).",
            **provenance_columns(label.name, number),
            **example_set,
        }
        for number in range(20 * shard.block, 20 * shard.block + 20)
        for label in recipe.labels
    ]


def loads_whole(directory: Path, recipe: DatasetRecipe) -> None:
    """The card names every config of the recipe, and each has rows."""
    card = (directory / "README.md").read_text()
    named = [config["config_name"] for config in yaml.safe_load(card.split("---\n")[1])["configs"]]
    assert named == list(recipe.configs)
    for config in named:
        assert len(datasets.load_dataset(str(directory), config, split="train")) > 0


@pytest.mark.parametrize(("form", "changes"), [("sts", {}), ("nli", {}), ("nli", {"few_shot": FEW_SHOT}), ("text", {})])
def test_generated_directories_get_a_card(tmp_path: Path, form: str, changes: dict[str, Any]) -> None:
    recipe, directory = dataset_recipe(form, changes=changes), tmp_path / "run"
    begun = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64)
    run = DatasetRun(directory, recipe, run_dir.begin(directory, begun, resolved(recipe)))
    render(directory)
    run.record([], provenance=PROVENANCE, counts={"sources": 40, "sources_skipped": {"duplicate": 2}})
    shards = run.shards(2)
    for shard in shards:
        rows = raw_rows(recipe, shard)
        write_shard(run, shard, [*rows, rows[0]], [{**rows[0], "text2": "open", "reason": "not_closed"}])
        assert f"of {len(shards)} shards are done" in card_of(directory)
    finish(run, 2, 40)
    files = render(directory)
    write(directory, files)
    card = files["README.md"].decode()
    kept, rejected = 40 * len(shards), 2 * len(shards)
    said = f"{kept + rejected} texts were requested: {kept} were kept and {rejected} rejected."
    assert f"From 40 first texts, {said}" in card
    assert f"| `not_closed` | no closing quotation mark within the token limit | {len(shards)} | 0 |" in card
    assert "| `duplicate` | the same first text was there before | 2 |" in card
    loads_whole(directory, recipe)


def test_a_real_few_shot_run_gets_a_card(tmp_path: Path) -> None:
    """From a model, a source and labelled pairs to a card that names the rows the examples came from."""
    nli = tmp_path / "nli.tsv"
    rows = [f"Premise {i}.\tText {i}.\t{label}" for i in range(40) for label in "02"]
    nli.write_text("\n".join(["premise\thypothesis\tlabel", *rows]) + "\n")
    (tmp_path / "x1.txt").write_text("".join(f"A man sings {i} songs.\n" for i in range(6)))
    lm = make_lm(tmp_path / "lm", "llama")
    examples = {**FEW_SHOT["examples"], "kind": "file", "path": str(nli), "repo_id": None, "revision": None}
    recipe = dataset_recipe("nli").model_dump(exclude_unset=True) | {
        "source": {"kind": "file", "path": str(tmp_path / "x1.txt"), "description": "-", "license": "cc0-1.0"},
        "model": {"path": str(lm), "license": "mit", "threads": 1},
        "few_shot": {"shots": [0, 1], "sets": 2, "examples": examples},
        "decoding": {"max_new_tokens": 6, "samples": 1, "max_attempts": 20, "top_k": 0},
        "postprocess": {"validation_fraction": 0},
        "shard_size": 4,
    }
    made = DatasetRecipe.model_validate(recipe)
    directory = tmp_path / "run"
    manifest = job.generate(made, directory, "sts-dino write recipe.yaml")
    files = render(directory)
    write(directory, files)
    card = files["README.md"].decode()
    loads_whole(directory, made)
    assert [len(found["entailment"]) for found in manifest.provenance["examples"]["rows"]["1shot"]] == [1, 1]
    assert "Only the configs ending in `0shot` are label-free" in card
    assert "rows as listed in `manifest.json`" in card
