"""Pairs by a real language model and a better encoder, offline: sts-dino real (what `make real`
calls).

A Qwen2.5-Coder model (`make lm`) generates sts-dino-qwen. Its label agreement and its downstream
gain are measured: all-MiniLM-L6-v2 as published, after unsupervised SimCSE on the same sentences,
on shuffled labels and on the pairs. The encoder is trained on the published dataset and published
with it on the embedded Hub, and a clean process loads both by name. With --taught a second encoder
learns from EmbeddingGemma-300M, too (docs/teacher.md). Each step is the command that a user types;
finished steps are skipped.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from sts_dino.experiments.demo import Chain, format_report, start_hub
from sts_dino.hub import cli
from sts_dino.hub.contract.packaged import ENCODERS, GENERATORS
from sts_dino.hub.contract.recipe import TAUGHT_PAIRS, DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.run_dir import ARTIFACTS
from sts_dino.hub.errors import InputError
from sts_dino.hub.process import measure_peak_rss_mb
from sts_dino.proposals.recipes import find_taught_folder
from sts_dino.release.options import format_settings

RECIPES = Path("recipes/small")
DATASET = "sts-dino-qwen"
ENCODER = "minilm-sts-dino"
TAUGHT_ENCODER = "minilm-sts-dino-taught"
# overrides: local places of the language model and the source sentences
OFFLINE = Path("assets/offline.yaml")
STUDENT = Path("recipes/value/value-student-minilm.yaml")
BASE = "all-minilm-l6-v2"
TEACHER = "embeddinggemma-300m"
NEEDED = (GENERATORS["qwen2.5-coder-1.5b-instruct"], ENCODERS[BASE])
SENTENCES = Path("assets/source-sentences/wikipedia.txt")  # that the teacher scores, too

app = cli.make_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[
        Path | None,
        typer.Option(
            help="Folder of all results [default: artifacts/real, of a trial artifacts/real-LIMIT]"
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            min=60,
            help="A trial on N source sentences, trained in proportion, scored on validation parts",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Threads that generate, processes that train")
    ] = 2,
    senteval: Annotated[
        Path | None,
        typer.Option(
            "--senteval-data",
            metavar="DIR",
            help="SentEval's directory, to score seven tasks and not STSb alone",
        ),
    ] = None,
    taught: Annotated[
        bool,
        typer.Option(
            "--taught", help="Train a second encoder, which EmbeddingGemma-300M teaches, too"
        ),
    ] = False,
) -> None:
    """Run the chain and print its results. After an interruption the same command resumes.

    Examples:

      sts-dino real --limit 100

      sts-dino real --senteval-data DIR
    """
    require_models(taught)
    if senteval is not None and not senteval.is_dir():
        raise InputError(f"--senteval-data {senteval}", "no such folder")
    # A trial makes another dataset, in a folder of its own.
    name = f"real-{limit}" if limit else "real"
    artifacts = artifacts or ARTIFACTS / name
    start = time.monotonic()
    with start_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        generate_and_measure(chain, limit, workers, senteval)
        encoders = [ENCODER]
        release_encoder(chain, ENCODER, limit)
        if taught:
            encoders.append(TAUGHT_ENCODER)
            release_taught_encoder(chain, limit)
        loaded = {encoder: chain.load(encoder, DATASET) for encoder in encoders}
        minutes = (time.monotonic() - start) / 60
        peak_gb = measure_peak_rss_mb(children=True) / 1024
        print(format_report(artifacts, [DATASET], loaded))
        largest = "the largest process that trains or scores"
        print(f"\n{minutes:.0f} min; {largest} took {peak_gb:.1f} GB")


def require_models(taught: bool) -> None:
    """Raise InputError when a model is missing. ``taught``: the teacher is needed, too."""
    needed = [*NEEDED, ENCODERS[TEACHER]] if taught else NEEDED
    for model in needed:
        if not model.is_here:
            hint = f"make lm NAME={model.name} downloads it"
            raise InputError(model.folder, "is missing", hint=hint)


def generate_and_measure(
    chain: Chain, limit: int | None, workers: int, senteval: Path | None
) -> None:
    """Generate the dataset, measure its label agreement and downstream gain, and publish it.

    Args:
        chain: the chain, whose folder gets the results.
        limit: the number of source sentences; None: the recipe's.
        workers: threads that generate, and processes that train.
        senteval: SentEval's directory; None: the gain is measured on STSb's validation split.

    Raises RunError when a stage fails.
    """
    recipe = RECIPES / f"{DATASET}.yaml"
    directory = str(chain.artifacts / "datasets" / DATASET)
    offline = ["--set", f"@{OFFLINE}"]

    # Generate the rows
    options = [*offline]
    if limit:
        options += ["--limit", str(limit)]
    if workers > 1:
        options += ["--workers", str(workers)]
    chain.release(recipe, *options, publish=False)

    # Measure label agreement and downstream gain
    chain.run_stage("label agreement", "fidelity", directory)
    # The recipe requests three pairs of a sentence; two remain also when some are rejected
    pairs = 2 * (limit or get_source_limit())
    arguments = [directory, "--student", str(STUDENT), "--pairs", str(pairs)]
    if senteval:
        arguments += ["--senteval-data", str(senteval)]
    else:
        arguments += ["--split", "validation"]
    arguments += ["--workers", str(workers), *offline, "--out", str(chain.artifacts / "value")]
    chain.run_stage("downstream gain", "value", *arguments)

    # Publish the dataset, with the measurements on its card
    chain.release(recipe, *options)


def release_encoder(chain: Chain, name: str, limit: int | None, *settings: str) -> None:
    """Train the encoder of a recipe of ``RECIPES`` and publish it. Raises RunError on failure.

    Args:
        chain: the chain, whose folder gets the encoder.
        name: the name of the recipe.
        limit: the number of source sentences of a trial; None: the whole training.
        settings: further settings of the recipe.
    """
    path = RECIPES / f"{name}.yaml"
    changes = [f"@{OFFLINE}", *settings]
    if limit:
        changes += scale_training(path, limit)
    chain.release(path, *format_settings(changes))


def release_taught_encoder(chain: Chain, limit: int | None) -> None:
    """Score pairs of the dataset's texts by the teacher, train an encoder on them, publish it.

    ``limit``: as for ``release_encoder``. Raises RunError when a stage fails.
    """
    # Score as many pairs as the training reads: each step of the recipe reads new ones
    recipe = load_recipe(RECIPES / f"{TAUGHT_ENCODER}.yaml", ModelRecipe)
    count = recipe.batch_size * int(recipe.arguments["max_steps"])

    # Score the pairs, and train on them
    dataset = chain.artifacts / "datasets" / DATASET
    folder = find_taught_folder(dataset)
    arguments = [str(dataset), "--teacher", TEACHER, "--base", BASE, "--out", str(folder)]
    arguments += ["--sentences", str(SENTENCES), "--pairs", str(count)]
    chain.run_stage("pairs of the teacher", "teach", *arguments)
    release_encoder(chain, TAUGHT_ENCODER, limit, f"datasets.0.path={folder / TAUGHT_PAIRS}")


def get_source_limit() -> int:
    """Return the number of source sentences that the dataset's recipe reads."""
    limit = load_recipe(RECIPES / f"{DATASET}.yaml", DatasetRecipe).source.limit
    assert limit is not None
    return limit


def scale_training(path: Path, limit: int) -> list[str]:
    """Return the settings of a trial on ``limit`` source sentences.

    The number of steps is in proportion to the source sentences, at least 10. Only validation
    splits are scored.

    path: the recipe of the encoder, which has ``max_steps``.
    """
    recipe = load_recipe(path, ModelRecipe)
    steps = int(recipe.arguments["max_steps"]) * limit // get_source_limit()
    tasks = [task for task in recipe.evaluation if task.split == "validation"]
    evaluation = json.dumps([task.model_dump(mode="json") for task in tasks])
    return [f"arguments.max_steps={max(10, steps)}", f"evaluation={evaluation}"]
