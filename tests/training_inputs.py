"""Small inputs for the training tests: a dataset run directory of synthetic pairs, and a recipe around it."""

import random
from pathlib import Path

import torch
import yaml
from tiny_lm import make_lm

from hub.contract.recipe import TrainingData
from hub.contract.run_dir import Manifest, describe, write_manifest
from hub.contract.schema import STS, RowSchema, published_features
from hub.contract.shards import shard_path, write_shard

WORDS = [
    "man",
    "dog",
    "cat",
    "plays",
    "runs",
    "flute",
    "beach",
    "woman",
    "cooks",
    "red",
    "blue",
    "car",
    "two",
    "young",
    "old",
]

torch.set_num_threads(1)  # on busy cores, threads that wait for one another cost more than they give
PROVENANCE = {"source_id": "s", "target": "1", "attempt": 0, "seed": 1, "log_prob": -1.0, "margin": 0.1}

PAIRS_CARD = """---
configs:
- config_name: postprocessed
  data_files:
  - {split: train, path: data/postprocessed/train-*}
  - {split: validation, path: data/postprocessed/validation-*}
---
"""  # of a dataset that ``write_dataset`` wrote


def sts_rows(count, seed=0):
    """Pairs that share 0, 2 or 5 of their words, scored accordingly."""
    generator = random.Random(seed)
    rows = []
    for index in range(count):
        first = [generator.choice(WORDS) for _ in range(5)]
        shared, score = ((0, 0.1), (2, 0.5), (5, 0.9))[index % 3]
        second = first[:shared] + [generator.choice(WORDS) for _ in range(5 - shared)]
        rows.append({"sentence1": " ".join(first), "sentence2": " ".join(second), "score": score, **PROVENANCE})
    return rows


def triplet_rows(count):
    return [
        {"anchor": row["sentence1"], "positive": row["sentence1"] + " too", "negative": row["sentence2"], **PROVENANCE}
        for row in sts_rows(count)
    ]


def write_dataset(directory: Path, splits: dict, config="postprocessed", form: RowSchema = STS, features=None) -> Path:
    """A finished dataset run directory with one shard per split."""
    files = []
    for split, rows in splits.items():
        path = shard_path(config, split, 0, 1)
        write_shard(directory / path, rows, features or published_features(form))
        files.append(describe(directory, path, config=config, split=split, rows=len(rows)))
    manifest = Manifest(kind="dataset", name="pairs", version="0.1.0", fingerprint="f", complete=True, files=files)
    write_manifest(directory, manifest)
    return directory


def write_recipe(folder: Path, **changes) -> Path:
    """A model recipe for the tiny encoder in ``folder``; makes dataset and encoder there unless they are there."""
    if not (folder / "pairs").exists():
        write_dataset(folder / "pairs", {"train": sts_rows(96), "validation": sts_rows(24, seed=1)})
    if not (folder / "lm").exists():
        make_lm(folder / "lm")
    data = {
        "path": str(folder / "pairs"),
        "config": "postprocessed",
        "example_type": "sts",
        "loss": "CosineSimilarityLoss",
    }
    arguments = {"learning_rate": "1e-3", "num_train_epochs": "3", "report_to": "none"}
    recipe = {
        "kind": "model",
        "name": "tiny",
        "version": "0.1.0",
        "pretty_name": "Tiny",
        "license": "apache-2.0",
        "base": {"path": str(folder / "lm"), "license": "apache-2.0"},
        "datasets": [data],
        "batch_size": "16",
        "arguments": {**arguments, "logging_steps": "4"},
        "threads": "1",
        **changes,
    }
    recipe["datasets"] = [{"license": "mit", **item} for item in recipe["datasets"]]
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def data_spec(path, **changes) -> TrainingData:
    """The scored pairs of a dataset run directory, as a recipe names them."""
    fields = {
        "path": str(path),
        "config": "postprocessed",
        "example_type": "sts",
        "loss": "CosineSimilarityLoss",
        **changes,
    }
    return TrainingData(**fields)


def hub_spec() -> TrainingData:
    """Scored pairs on a Hub, as a recipe names them."""
    return TrainingData(
        repo_id="o/d", revision="v1", config="postprocessed", example_type="sts", loss="CosineSimilarityLoss"
    )
