"""Small inputs for the training tests: a dataset run directory of synthetic pairs, and a recipe
around it.
"""

import random
from pathlib import Path

import torch
import yaml
from tiny_lm import make_lm

from sts_dino.hub.contract import schema
from sts_dino.hub.contract.recipe import ModelRecipe, TrainingData
from sts_dino.hub.contract.run_dir import Manifest, describe_file, write_manifest
from sts_dino.hub.contract.schema import PAIR_CLASS, STS, TRIPLET, RowSchema
from sts_dino.hub.contract.shards import format_shard_path, write_shard

WORDS = ["man", "dog", "cat", "plays", "runs", "flute", "beach", "woman", "cooks", "red"]
WORDS += ["blue", "car", "two", "young", "old"]

# on busy cores, threads that wait for one another cost more than they give
torch.set_num_threads(1)
PROVENANCE = {
    "source_id": "s",
    "target": "1",
    "attempt": 0,
    "seed": 1,
    "log_prob": -1.0,
    "margin": 0.1,
}
STS_DATA = {"config": "postprocessed", "example_type": "sts", "loss": "CosineSimilarityLoss"}

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
        rows.append(
            {
                "sentence1": " ".join(first),
                "sentence2": " ".join(second),
                "score": score,
                **PROVENANCE,
            }
        )
    return rows


def triplet_rows(count):
    return [
        {
            "anchor": row["sentence1"],
            "positive": row["sentence1"] + " too",
            "negative": row["sentence2"],
            **PROVENANCE,
        }
        for row in sts_rows(count)
    ]


def write_dataset(
    directory: Path, splits: dict, config="postprocessed", form: RowSchema = STS, features=None
) -> Path:
    """A finished dataset run directory with one shard per split."""
    files = []
    for split, rows in splits.items():
        path = format_shard_path(config, split, 0, 1)
        write_shard(
            directory / path,
            rows,
            features or schema.build_features({**form.columns, **form.provenance}),
        )
        files.append(describe_file(directory, path, config=config, split=split, rows=len(rows)))
    manifest = Manifest(
        kind="dataset", name="pairs", version="0.1.0", fingerprint="f", complete=True, files=files
    )
    write_manifest(directory, manifest)
    return directory


def write_recipe(folder: Path, **changes) -> Path:
    """A model recipe for the tiny encoder in ``folder``; makes dataset and encoder there unless
    they are there.
    """
    if not (folder / "pairs").exists():
        write_dataset(folder / "pairs", {"train": sts_rows(96), "validation": sts_rows(24, seed=1)})
    if not (folder / "lm").exists():
        make_lm(folder / "lm")
    names = {
        "kind": "model",
        "name": "tiny",
        "version": "0.1.0",
        "pretty_name": "Tiny",
        "license": "apache-2.0",
    }
    arguments = {
        "learning_rate": "1e-3",
        "num_train_epochs": "3",
        "report_to": "none",
        "logging_steps": "4",
    }
    parts = {
        "base": {"path": str(folder / "lm"), "license": "apache-2.0"},
        "datasets": [STS_DATA | {"path": str(folder / "pairs")}],
    }
    recipe = {
        **names,
        **parts,
        "batch_size": "16",
        "threads": "1",
        "arguments": arguments,
        **changes,
    }
    recipe["datasets"] = [{"license": "mit", **item} for item in recipe["datasets"]]
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def data_spec(path, **changes) -> TrainingData:
    """The scored pairs of a dataset run directory, as a recipe names them."""
    return TrainingData(**{"path": str(path), **STS_DATA, **changes})


def hub_spec() -> TrainingData:
    """Scored pairs on a Hub, as a recipe names them."""
    return TrainingData(repo_id="o/d", revision="v1", **STS_DATA)


def triplet_data(folder: Path, count: int = 70, loss: str = "MultipleNegativesRankingLoss") -> dict:
    """A recipe's entry for triplets, which are written to ``folder``."""
    path = write_dataset(folder / "triplets", {"train": triplet_rows(count)}, "triplet", TRIPLET)
    return {"path": str(path), "config": "triplet", "example_type": "triplet", "loss": loss}


def labelled_data(folder: Path, count: int = 70) -> dict:
    """A recipe's entry for pairs with three labels, whose classifier is the loss's own."""
    texts = [(row["sentence1"], row["sentence2"]) for row in sts_rows(count)]
    rows = [
        {"premise": a, "hypothesis": b, "label": index % 3} for index, (a, b) in enumerate(texts)
    ]
    path = write_dataset(folder / "nli", {"train": rows}, "pair-class", PAIR_CLASS)
    return {
        "path": str(path),
        "config": "pair-class",
        "example_type": "pair-class",
        "loss": "SoftmaxLoss",
    }


def document_data(folder: Path, **changes: str) -> dict:
    """A recipe's entry for a file of documents of some 60 to 120 tokens of the tiny tokenizer."""
    generator = random.Random(3)
    lines = [
        " ".join(generator.choice(WORDS) for _ in range(generator.randint(20, 40)))
        for _ in range(12)
    ]
    (folder / "documents.txt").write_text("\n".join(lines) + "\n")
    spans = {"unit": "tokens", "min_length": "3", "max_length": "8", "min_document": "32"}
    data = {"path": str(folder / "documents.txt"), "config": "default", "example_type": "documents"}
    return {**data, "loss": "DeclutrLoss", "spans": spans, **changes}


def model_recipe(*datasets: dict | TrainingData, **changes: object) -> ModelRecipe:
    """A model recipe of these datasets, for tests that read no file of it."""
    names = {"kind": "model", "name": "m", "version": "0.1.0", "pretty_name": "M", "license": "mit"}
    parts = {"base": {"path": "b", "license": "mit"}, "datasets": datasets}
    return ModelRecipe.model_validate(names | parts | changes)
