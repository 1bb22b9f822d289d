"""Pairs by a real language model and a better encoder, offline: sts-dino real (what `make real` calls).

A Qwen2.5-Coder model (`make lm`) generates sts-dino-qwen. Its label agreement and its downstream gain are measured:
all-MiniLM-L6-v2 as downloaded, after unsupervised SimCSE on the same sentences, on shuffled labels and on the pairs.
The encoder is trained on the published dataset and published with it on the embedded Hub, and a clean process loads
both by name. Each step is the command that a user types; finished steps are skipped.
"""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from demo.chain import Chain, local_hub, report
from hub import cli
from hub.contract.packaged import ENCODERS, GENERATORS
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS
from hub.errors import InputError
from hub.process import peak_rss_mb
from release.options import set_words

RECIPES = Path("recipes/small")
DATASET, ENCODER = "sts-dino-qwen", "minilm-sts-dino"
OFFLINE = Path("assets/offline.yaml")  # overrides: local places of the language model and the source sentences
STUDENT = Path("recipes/value/value-student-minilm.yaml")
NEEDED = (GENERATORS["qwen2.5-coder-1.5b-instruct"], ENCODERS["all-minilm-l6-v2"])

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
        typer.Option(min=60, help="A trial on N source sentences, trained in proportion, scored on validation parts"),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads that generate, processes that train")] = 2,
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
    for model in NEEDED:
        if not model.is_here:
            raise InputError(model.folder, "is missing", hint="make lm downloads it")
    artifacts = artifacts or ARTIFACTS / (f"real-{limit}" if limit else "real")  # a trial is another dataset
    started = time.monotonic()
    with local_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        generate(chain, limit, workers, senteval)
        path = RECIPES / f"{ENCODER}.yaml"
        chain.release(path, *set_words([f"@{OFFLINE}", *(scaled(path, limit) if limit else [])]))
        loaded = {ENCODER: chain.load(ENCODER, DATASET)}
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, [DATASET], loaded))
        print(f"\n{seconds / 60:.0f} min; the largest process that trains or scores took {peak / 1024:.1f} GB")


def generate(chain: Chain, limit: int | None, workers: int, senteval: Path | None) -> None:
    """Generate the dataset, measure what its card shows, and publish it."""
    recipe, directory = RECIPES / f"{DATASET}.yaml", str(chain.artifacts / "datasets" / DATASET)
    words = ["--set", f"@{OFFLINE}", *(["--limit", str(limit)] if limit else [])]
    words += ["--workers", str(workers)] if workers > 1 else []
    chain.release(recipe, *words, publish=False)
    chain.stage("label agreement", "fidelity", directory)
    data = ["--senteval-data", str(senteval)] if senteval else ["--split", "validation"]
    pairs = str(2 * (limit or sentences()))  # of three labels: some texts are rejected
    given = [directory, "--student", str(STUDENT), "--pairs", pairs, *data, "--workers", str(workers)]
    given += ["--set", f"@{OFFLINE}", "--out", str(chain.artifacts / "value")]
    chain.stage("downstream gain", "value", *given)
    chain.release(recipe, *words)


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
