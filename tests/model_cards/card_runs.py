"""Tiny run directories in the form that the stages leave, and readers of a card."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from small_runs import FEW_SHOT as FEW_SHOT
from small_runs import PROMPT as PROMPT

from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe, build_config_features
from sts_dino.hub.contract.recipe_file import format_recipe
from sts_dino.hub.contract.results import Results, TaskScore, read_results, write_results
from sts_dino.hub.contract.run_dir import (
    RECIPE,
    File,
    Manifest,
    describe_file,
    read_manifest,
    write_manifest,
)
from sts_dino.hub.contract.schema import get_base_config
from sts_dino.hub.contract.shards import format_shard_path, write_shard
from sts_dino.hub.durable import write_text
from sts_dino.model_cards.render import render

STS_LABELS = [
    {"name": "1", "score": 1.0, "instruction": PROMPT.format("mean the same thing")},
    {
        "name": "0",
        "score": 0.0,
        "instruction": PROMPT.format("are unrelated"),
        "counter_labels": ["1"],
    },
]
TEXT_PROMPT = 'Task: Write a review for a {} movie.\nMovie: "<X1>"\nReview: "'
TEXT_LABELS = [
    {"name": "good", "instruction": TEXT_PROMPT.format("good"), "counter_labels": ["bad"]},
    {"name": "bad", "instruction": TEXT_PROMPT.format("bad"), "counter_labels": ["good"]},
]
FINISHED = ("postprocessed", "triplet", "pair-class")
NLI_LABELS = [
    {"name": "entailment", "instruction": PROMPT.format("entail")},
    {"name": "contradiction", "instruction": PROMPT.format("contradict")},
]


def dataset_recipe(
    form: str, source: str = "file", changes: dict[str, Any] | None = None
) -> DatasetRecipe:
    """A small recipe; ``source`` is its kind."""
    origin = {"path": "texts.txt"} if source == "file" else {"limit": 4}
    names = {
        "kind": "dataset",
        "name": f"tiny-{form}",
        "version": "1.2.0",
        "pretty_name": f"Tiny {form.upper()}",
    }
    parts = {
        "schema": form,
        "source": {"kind": source, **origin, "description": "four sentences", "license": "cc0-1.0"},
        "model": {"path": "artifacts/models/tiny-lm", "license": "apache-2.0"},
        "labels": {"sts": STS_LABELS, "nli": NLI_LABELS, "text": TEXT_LABELS}[form],
    }
    return DatasetRecipe.model_validate(
        {**names, "license": "cc-by-sa-4.0", **parts, **(changes or {})}
    )


def rows_of(
    config: str, target: str, number: int, text: str, recipe: DatasetRecipe
) -> dict[str, Any]:
    """A row of any config whose texts are all ``text``."""
    values: dict[str, Any] = {
        "score": 0.9,
        "cosine": 0.7,
        "label": target,
        "reason": "line_break",
        "instruction": "Write.",
    }
    draw = {
        "sample": 0,
        "attempt": 0,
        "seed": 2**63 + number,
        "log_prob": -1.5,
        "margin": None,
        "example_set": 1,
    }
    row = {"source_id": f"s{number}", "target": target, **draw}
    for name in build_config_features(config, recipe):
        row.setdefault(name, values.get(name, text))
    return {name: row[name] for name in build_config_features(config, recipe)}


def write_rows(
    directory: Path, config: str, split: str, rows: list[dict[str, Any]], recipe: DatasetRecipe
) -> list[File]:
    """The rows as two shards, encoded and described."""
    features = build_config_features(config, recipe)
    encoded = [features.encode_example(row) for row in rows]
    middle = (len(rows) + 1) // 2
    files = []
    for index, part in enumerate((encoded[:middle], encoded[middle:])):
        path = format_shard_path(config, split, index, 2)
        write_shard(directory / path, part, features)
        files.append(describe_file(directory, path, config=config, split=split, rows=len(part)))
    return files


def dataset_run(
    directory: Path,
    form: str,
    source: str = "file",
    texts: tuple[str, ...] = ("A man sings.",),
    changes: dict[str, Any] | None = None,
) -> Path:
    """A finished dataset: for every label four rows in train and one in validation of each finished
    config.
    """
    recipe = dataset_recipe(form, source, changes)
    targets = [label.name for label in recipe.labels]
    files: list[File] = []
    for config in recipe.configs:
        splits = (
            {"train": 4, "validation": 1} if get_base_config(config) in FINISHED else {"train": 2}
        )
        for split, size in splits.items():
            shown = [*targets, "sampled"] if (config, form) == ("postprocessed", "sts") else targets
            rows = [
                rows_of(config, target, number, texts[number % len(texts)], recipe)
                for target in shown
                for number in range(size)
            ]
            files += write_rows(directory, config, split, rows, recipe)
    write_text(directory / RECIPE, format_recipe(recipe))
    write_manifest(directory, finished_manifest(recipe, files))
    return directory


def finished_manifest(recipe: DatasetRecipe, files: list[File]) -> Manifest:
    by_label = {label.name: {"requested": 7, "kept": 5, "rejected": 2} for label in recipe.labels}
    total = len(by_label)
    rows: dict[str, Counter[str]] = {}
    for file in files:
        rows.setdefault(str(file.config), Counter())[str(file.split)] += file.rows or 0
    counts = {
        "sources": 4,
        "requested": 7 * total,
        "kept": 5 * total,
        "rejected": {"line_break": total, "not_closed": total},
        "sampled_negatives": 5 if recipe.schema_name == "sts" else 0,
        "by_label": by_label,
        "splits": {config: dict(splits) for config, splits in rows.items()},
    }
    provenance = {
        "model": {
            "id": "tiny-lm",
            "revision": None,
            "sha256": "a" * 64,
            "parameters": 1_234_567,
            "more": 1,
        },
        "source": {"description": "four sentences", "license": "cc0-1.0", "sha256": "b" * 64},
        "command": f"sts-dino write recipes/{recipe.name}.yaml",
    }
    manifest = Manifest(
        kind="dataset", name=recipe.name, version=recipe.version, fingerprint="f" * 64
    )
    return manifest.with_files(files, complete=True, counts=counts, provenance=provenance)


TRAINED_ON = {
    "repo_id": "sts-dino/tiny-sts",
    "revision": "v1.2.0",
    "config": "postprocessed",
    "example_type": "sts",
}
TRAINED_ON |= {"loss": "CosineSimilarityLoss"}


def model_recipe(**changes: Any) -> ModelRecipe:
    names = {
        "kind": "model",
        "name": "tiny-encoder",
        "version": "0.3.0",
        "pretty_name": "Tiny encoder",
    }
    base = {"repo_id": "some/base", "revision": "0123abc", "license": "mit"}
    parts = {"license": "apache-2.0", "base": base, "datasets": [TRAINED_ON]}
    return ModelRecipe.model_validate(names | parts | changes)


def model_provenance() -> dict[str, Any]:
    found = {
        "commit": "c" * 40,
        "splits": {"train": 1200, "validation": 3},
        "license": "cc-by-sa-4.0",
        "more": True,
    }
    training = {
        "steps": 40,
        "epochs": 1.0,
        "best_step": 30,
        "batch_size": 32,
        "processes": 1,
        "seed": 42,
    }
    training |= {"validation_metric": "Spearman's correlation", "validation_score": 0.5}
    training |= {"loss_curve": [[step, 1 / (step + 1)] for step in range(0, 40)]}
    training |= {"merge": {"share": 0.75, "validation_scores": {"0.75": 0.51, "1": 0.5}}}
    return {
        "datasets": [TRAINED_ON | found],
        "base": {"id": "some/base", "sha256": "d" * 64},
        "training": training | {"arguments": {"learning_rate": 2e-5, "bf16": False}},
        "command": "sts-dino train recipes/models/tiny-encoder.yaml",
    }


def score(split: str = "test", value: float = 70.123, pairs: int = 1379) -> TaskScore:
    facts: dict[str, Any] = {
        "task": "stsb/cosine",
        "protocol": "cosine, Spearman",
        "main_metric": "spearman",
    }
    facts |= {"main_score": value, "low": value - 1, "high": value + 1}
    return TaskScore(split=split, n=pairs, data_sha256="e" * 64, **facts)


def model_run(directory: Path, scores: tuple[TaskScore, ...] = (), **changes: Any) -> Path:
    """A finished model with one file, and results when there are ``scores``."""
    recipe = model_recipe(**changes)
    write_text(directory / "config.json", "{}\n")
    write_text(directory / RECIPE, format_recipe(recipe))
    manifest = Manifest(
        kind="model", name=recipe.name, version=recipe.version, fingerprint="f" * 64
    )
    files = [describe_file(directory, "config.json")]
    write_manifest(
        directory, manifest.with_files(files, complete=True, provenance=model_provenance())
    )
    if scores:
        before = tuple(
            one.model_copy(update={"main_score": 40.0, "low": 39.0, "high": 41.0})
            for one in scores[:1]
        )
        facts: dict[str, Any] = {
            "model": recipe.name,
            "revision": "r",
            "bootstrap_samples": 1000,
            "seed": 42,
        }
        results = Results(versions={}, scores=scores, base_scores=before, **facts)
        write_results(directory / "results.json", results)
    return directory


def edit(directory: Path, **changes: Any) -> Path:
    """Change the manifest of a run; ``counts`` and ``provenance`` are merged."""
    manifest = read_manifest(directory)
    assert manifest is not None
    merged = {
        key: {**getattr(manifest, key), **changes[key]}
        for key in ("counts", "provenance")
        if key in changes
    }
    write_manifest(directory, manifest.model_copy(update={**changes, **merged}))
    return directory


def scored_run(
    directory: Path, scores: list[TaskScore], run: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """A finished model with these results."""
    model_run(directory, (score(),), **(run or {}))
    results = read_results(directory / "results.json")
    write_results(
        directory / "results.json", results.model_copy(update={"scores": tuple(scores), **changes})
    )
    return directory


def card_of(directory: Path, **options: Any) -> str:
    """The text of the card of a run directory, its stamp included, and of its details."""
    return text_of(render(directory, **options))


def text_of(files: dict[str, bytes]) -> str:
    """The card among these files, followed by its details."""
    return (files["README.md"] + files.get("DETAILS.md", b"")).decode()


def front(card: str) -> dict[str, Any]:
    """The front matter of a card."""
    return dict(yaml.safe_load(card.split("---\n")[1]))


def tables(card: str) -> list[list[list[str]]]:
    """The tables of a card for a reader: header, then rows of cells."""
    tokens = MarkdownIt("commonmark").enable("table").parse(card)
    found: list[list[list[str]]] = []
    for index, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("td_open", "th_open"):
            shown = [
                child.content
                for child in tokens[index + 1].children or []
                if child.type != "html_inline"
            ]
            found[-1][-1].append("".join(shown))
    return found


def table_with(card: str, *header: str) -> list[list[str]]:
    """The rows of the table whose header begins with ``header``."""
    (found,) = [rows for rows in tables(card) if tuple(rows[0][: len(header)]) == header]
    return found[1:]
