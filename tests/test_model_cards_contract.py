"""A directory as the generation stage really leaves it gets a card, while it grows and when it is finished."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml
from test_model_cards_runs import dataset_recipe, provenance_columns

from generation.dataset_run import DatasetRun
from hub import run_dir
from hub.recipe_file import resolved
from hub.run_dir import Manifest
from model_cards.render import render, write

PROVENANCE = {
    "model": {"id": "org/lm", "revision": "0123abc", "sha256": None, "parameters": 10**9, "license": "mit"},
    "source": {"description": "sentences", "license": "CC0", "sha256": None},
    "command": "python -m generation.run recipes/tiny.yaml",
}


def raw_row(target: str, number: int) -> dict[str, Any]:
    texts = {"text1": f"First text {number}.", "text2": f"Text {number} for {target}."}
    return {**texts, **provenance_columns(target, number)}


@pytest.mark.parametrize("form", ["sts", "nli"])
def test_generated_directories_get_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    recipe, directory = dataset_recipe(form), tmp_path / "run"
    begun = Manifest(kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64)
    run = DatasetRun(directory, recipe, run_dir.begin(directory, begun, resolved(recipe)))
    render(directory)
    run.record([], provenance=PROVENANCE, counts={"sources": 40, "sources_skipped": {"duplicate": 2}})
    rows = [raw_row(label.name, number) for number in range(40) for label in recipe.labels]
    run.write_shard(0, 2, rows[:40], [])
    assert "1 of 2 shards are done" in render(directory)["README.md"]
    run.write_shard(1, 2, [*rows[40:], rows[40]], [{**rows[0], "text2": "open", "reason": "not_closed"}])
    run.finish(2, 40)
    files = render(directory)
    write(directory, files)
    assert "From 40 first texts, 82 texts were requested: 80 were kept and 2 rejected." in files["README.md"]
    assert "| `duplicate` | the same first text was there before | 2 |" in files["README.md"]
    for config in yaml.safe_load(files["README.md"].split("---\n")[1])["configs"]:
        assert len(datasets.load_dataset(str(directory), config["config_name"], split="train")) > 0
