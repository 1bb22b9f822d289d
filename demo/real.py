"""Pairs by Gemma 3 270M and encoders trained on them, offline: sts-dino real (what `make real` calls).

Gemma (`make lm`) generates sts-dino-gemma. Its label agreement and its downstream gain are measured. Two encoders are
trained on it, PromptEOL with LoRA on Gemma itself and static token embeddings, each scored beside its untrained base
and its SimCSE baseline. Everything is published on the embedded Hub with its cards, and a clean process loads it by
name. Each step is the command that a user types; finished steps are skipped.
"""

import json
import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from demo.chain import Chain, local_hub, report
from hub import cli
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS
from hub.errors import InputError
from hub.process import peak_rss_mb
from release.options import set_words
from release.stages import run_parallel
from release.value import FINAL

RECIPES = Path("recipes/small")
DATASET, STATIC, PROMPTEOL = "sts-dino-gemma", "static-sts-dino-gemma", "prompteol-gemma-sts-dino"
OFFLINE = Path("assets/offline.yaml")  # overrides: local places of the language model and the source sentences
STUDENT = Path("recipes/value/value-student-triplets.yaml")
LM = ARTIFACTS / "lm" / "gemma-3-270m"

app = cli.new_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[
        Path | None,
        typer.Option(help="Folder of all results [default: artifacts/real, of a trial artifacts/real-LIMIT]"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=60, help="A trial on N source sentences, trained in proportion, scored on validation parts"
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that generate or train, a thread each")
    ] = 2,
    senteval: Annotated[
        Path | None,
        typer.Option(
            "--senteval-data", metavar="DIR", help="SentEval's directory, to score seven tasks and not STSb alone"
        ),
    ] = None,
) -> None:
    """Run the chain and print its results. After an interruption the same command resumes.

    Examples:

      sts-dino real --limit 100

      sts-dino real --senteval-data DIR
    """
    if not LM.is_dir():
        raise InputError(LM, "Gemma 3 270M is missing", hint="make lm downloads it (240 MB)")
    artifacts = artifacts or ARTIFACTS / (f"real-{limit}" if limit else "real")  # a trial is another dataset
    started = time.monotonic()
    with local_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        generate(chain, limit, workers, senteval)
        run_parallel([partial(train, chain, name, limit, senteval) for name in (PROMPTEOL, STATIC)], 2)
        loaded = {name: chain.load(name, DATASET) for name in (PROMPTEOL, STATIC)}
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, [DATASET], loaded))
        print(f"\n{seconds / 60:.0f} min; the largest process took {peak / 1024:.1f} GB")


def generate(chain: Chain, limit: int | None, workers: int, senteval: Path | None) -> None:
    """Generate the dataset, measure what its card shows, and publish it."""
    recipe, directory = RECIPES / f"{DATASET}.yaml", str(chain.artifacts / "datasets" / DATASET)
    words = ["--set", f"@{OFFLINE}", *(["--limit", str(limit)] if limit else [])]
    words += ["--workers", str(workers)] if workers > 1 else []
    chain.release(recipe, *words, publish=False)
    chain.stage("label agreement", "fidelity", directory)
    data = ["--senteval-data", str(senteval)] if senteval else ["--split", "validation"]
    pairs = str(min(2000, 2 * (limit or sentences())))  # of three labels: some texts are rejected
    given = [directory, "--student", str(STUDENT), "--pairs", pairs, *data, "--workers", str(workers)]
    given += ["--out", str(chain.artifacts / "value")]
    chain.stage("downstream gain", "value", *given)
    chain.release(recipe, *words)


def train(chain: Chain, name: str, limit: int | None, senteval: Path | None, stop: Event) -> None:
    """Train an encoder and its SimCSE baseline on the published dataset, score both, and publish the encoder."""
    path = RECIPES / f"{name}.yaml"
    settings = [f"@{OFFLINE}", *(scaled(path, limit) if limit else [])]
    data = ["--tasks", ",".join(FINAL), "--senteval-data", str(senteval)] if senteval else []
    chain.release(path, *set_words(settings), *data, quiet=name == STATIC, stop=stop)
    if senteval:
        scored = chain.artifacts / "models" / f"{name}.evaluation"
        out = scored.with_name(f"{name}.seven_tasks.json")
        words = ("--tasks", ",".join(FINAL), "--out", str(out))
        chain.stage("the mean of seven tasks", "compare-seeds", str(scored), *words, stop=stop)


def sentences() -> int:
    """Number of source sentences that the dataset's recipe reads."""
    limit = load_recipe(RECIPES / f"{DATASET}.yaml", DatasetRecipe).source.limit
    assert limit is not None
    return limit


def scaled(path: Path, limit: int) -> list[str]:
    """Settings of a trial: steps in proportion to the source sentences, and no test set."""
    recipe = load_recipe(path, ModelRecipe)
    steps = int(recipe.arguments["max_steps"])
    scored = [task.model_dump(mode="json") for task in recipe.evaluation if task.split == "validation"]
    return [f"arguments.max_steps={max(10, steps * limit // sentences())}", f"evaluation={json.dumps(scored)}"]
