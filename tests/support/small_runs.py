"""Finished datasets of every form in a second, without a language model: raw rows with all that
filters reject.

``small_run`` leaves a directory as the generation stage does, with its card: ready to be published.
"""

import base64
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sts_dino.generation.pipeline.directory import DatasetRun
from sts_dino.generation.pipeline.finish import LENGTH_IN_WORDS, TextLength, finish
from sts_dino.generation.pipeline.tasks import (
    Row,
    Shard,
    WriteShard,
    list_shards,
    make_shard_result,
)
from sts_dino.hub.contract import run_dir
from sts_dino.hub.contract.recipe import DatasetRecipe
from sts_dino.hub.contract.recipe_file import compute_fingerprint, format_recipe, load_recipe
from sts_dino.hub.contract.run_dir import Manifest
from sts_dino.model_cards.render import render, write

PROMPT = 'Task: Write two sentences that {}.\nSentence 1: "<X1>"\nSentence 2: "'
FEW_SHOT = {
    "shots": [0, 5],
    "sets": 2,
    "examples": {
        "kind": "hub",
        "repo_id": "org/nli",
        "revision": "c" * 40,
        "labels": {"entailment": "0", "contradiction": "2"},
        "description": "pairs that people wrote",
        "license": "cc-by-sa-4.0",
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "sts": {
        "labels": [
            {"name": "1", "score": 1.0, "instruction": PROMPT.format("mean the same thing")},
            {
                "name": "0.5",
                "score": 0.5,
                "instruction": PROMPT.format("are alike"),
                "counter_labels": ["1"],
            },
            {
                "name": "0",
                "score": 0.0,
                "instruction": PROMPT.format("are unrelated"),
                "counter_labels": ["1", "0.5"],
            },
        ]
    },
    "nli": {
        "labels": [
            {"name": "entailment", "instruction": PROMPT.format("entail")},
            {"name": "contradiction", "instruction": PROMPT.format("contradict")},
        ],
        "few_shot": FEW_SHOT,
    },
    "text": {
        "labels": [
            {"name": "gut", "instruction": PROMPT.format("praise"), "counter_labels": ['bö"se']},
            {"name": 'bö"se', "instruction": PROMPT.format("scold"), "counter_labels": ["gut"]},
        ],
        "source": {
            "kind": "model",
            "limit": 90,
            "description": "sentences",
            "license": "apache-2.0",
        },
    },
    "search": {
        "labels": [
            {"name": "1", "instruction": PROMPT.format("ask and answer")},
            {
                "name": "0",
                "instruction": PROMPT.format("ask without an answer"),
                "counter_labels": ["1"],
            },
        ]
    },
}
BLOCKS, SIZE = 3, 30  # blocks of source sentences; the last block of an example set has no raw row
PROVENANCE = {
    "model": {
        "id": "org/lm",
        "revision": "0123abc",
        "sha256": None,
        "parameters": 10**9,
        "license": "apache-2.0",
    },
    "source": {"description": "sentences", "license": "cc0-1.0", "sha256": None},
    "command": "sts-dino write recipes/tiny.yaml",
}


def small_recipe(form: str, **changes: Any) -> DatasetRecipe:
    """The recipe of one form: sts, nli (with shot counts 0 and 5) or text (with source sentences by
    the model).
    """
    return DatasetRecipe.model_validate(
        {
            "kind": "dataset",
            "name": f"small-{form}",
            "version": "1.2.0",
            "schema": form,
            "pretty_name": f"Small {form.upper()}",
            "license": "cc-by-sa-4.0",
            "source": {
                "kind": "file",
                "path": "texts.txt",
                "description": "sentences",
                "license": "cc0-1.0",
            },
            "model": {"path": "artifacts/models/lm", "license": "apache-2.0"},
            **FORMS[form],
            **changes,
        }
    )


def small_run(
    directory: Path,
    recipe: DatasetRecipe,
    blocks_done: int | None = None,
    blocks: int = BLOCKS,
    length: TextLength = LENGTH_IN_WORDS,
) -> Manifest:
    """The run of a recipe in ``directory``, with its card; growing when ``blocks_done`` is given
    (shards written).
    """
    begun = Manifest(
        kind="dataset",
        name=recipe.name,
        version=recipe.version,
        fingerprint=compute_fingerprint(recipe, {}),
    )
    run = DatasetRun(directory, recipe, run_dir.begin(directory, begun, format_recipe(recipe)))
    run.update_manifest(provenance=PROVENANCE, counts={"sources": blocks * SIZE})
    if recipe.source.kind == "model":
        run.write_sources([list(source_sentences(recipe, blocks))])
    for shard in list_shards(run.recipe, blocks)[:blocks_done]:
        rows = list(raw_rows(recipe, shard)) if shard.block < blocks - 1 else []
        failed = [{**row, "text2": "öffen", "reason": "not_closed"} for row in rows[::7]]
        write_shard(run, shard, rows, failed)
    if blocks_done is None:
        finish(run, blocks, blocks * SIZE, length)
    write(directory, render(directory, f"acme/{recipe.name}"))
    return run.manifest


def write_shard(run: DatasetRun, shard: Shard, raw: list[Row], failed: list[Row]) -> None:
    """Write the rows of one shard and enter it in the manifest."""
    run.add_shard(make_shard_result(run.recipe, WriteShard(shard, ()), raw, failed), shard.blocks)
    run.write_progress(shard.blocks)


def source_sentences(recipe: DatasetRecipe, blocks: int) -> Iterator[dict[str, Any]]:
    for number in range(blocks * SIZE):
        yield {
            "source_id": f"{number:06d}",
            "text": source_sentence(number),
            "instruction": recipe.labels[0].name,
            "seed": 2**64 - 1 - number,
            "log_prob": -1.25,
        }


def raw_rows(recipe: DatasetRecipe, shard: Shard) -> Iterator[dict[str, Any]]:
    """Up to four texts for a source sentence and label: some equal to it, some twice, some above
    the cap.
    """
    sets = {"example_set": shard.variant.example_set} if recipe.few_shot else {}
    for number in range(SIZE * shard.block, SIZE * shard.block + SIZE):
        for place, label in enumerate(recipe.labels):
            for attempt in range(1 + (number + place) % 4):
                yield {
                    "text1": source_sentence(number),
                    "text2": second_text(number, attempt, label.name, shard),
                    "source_id": f"{number:06d}",
                    "target": label.name,
                    "sample": attempt,
                    "attempt": attempt,
                    "seed": 2**63 + number,
                    "log_prob": -1.1 - number / 7,
                    "margin": 0.3 if label.counter_labels else None,
                    **sets,
                }


def source_sentence(number: int) -> str:
    return f"Source sentence {number}, «naïve»."


def second_text(number: int, attempt: int, label: str, shard: Shard) -> str:
    """Some repeat their own source sentence, some another; some stand under two labels or two
    source sentences.
    """
    if number % 11 == attempt:
        return source_sentence(number)
    if number % 13 == 5:
        return source_sentence(7 * number % 40)
    shown = "any label" if number % 9 == 2 else label
    variant = shard.variant
    return f"Text {number % 25} {attempt - attempt // 2} for {shown} ({variant.shots} {variant.example_set})."


def random_run(directory: Path) -> Path:
    """A finished run of the demo's recipe, of random texts: they do not compress, so it is uploaded
    in parts.
    """
    recipe, draw = (
        load_recipe(
            Path("recipes/demo/sts-dino-x2.yaml"), DatasetRecipe, [f"name={directory.name}"]
        ),
        Random(0),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "small_runs.second_text", lambda *_: base64.b64encode(draw.randbytes(600)).decode()
        )
        small_run(directory, recipe)
    return directory
