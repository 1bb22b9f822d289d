"""Pairs by a real language model and encoders of it, offline: python -m demo.real (what `make real` calls).

Gemma 3 270M (`make lm`) writes sts-dino-gemma; its label fidelity and its training value beside the controls are
measured; two encoders are trained on it, PromptEOL with LoRA on Gemma itself and static token embeddings, each scored
beside its untrained base and its copies control; all of it is published on the embedded Hub with its cards and loaded
by name in a clean process. Each step is the command a user types; finished steps are not done again.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from demo.chain import ORG, SERVED, Chain, local_hub
from demo.report import report
from hub import cli
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.run_dir import ARTIFACTS
from hub.errors import InputError
from hub.memory import peak_rss_mb
from release.options import set_words
from release.value import FINAL

RECIPES = Path("recipes/small")
DATASET, STATIC, PROMPTEOL = "sts-dino-gemma", "static-sts-dino-gemma", "prompteol-gemma-sts-dino"
STAND_INS = Path("assets/offline.yaml")  # of the language model and the first texts; the dataset is on the embedded Hub
STUDENT = Path("recipes/value/value-student-triplets.yaml")
LM = ARTIFACTS / "lm" / "gemma-3-270m"

app = cli.new_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[
        Path | None,
        typer.Option(help="Where all is written [default: artifacts/real, of a trial artifacts/real-LIMIT]"),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=60, help="A trial on N first texts, trained in proportion, scored on validation parts"
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that write or train, a thread each")] = 2,
    senteval: Annotated[
        Path | None, typer.Option("--senteval-data", metavar="DIR", help="SentEval's: seven tasks, not STSb alone")
    ] = None,
) -> None:
    """Run it and print what came out. Run again after any interruption: it goes on.

    Examples:

      python -m demo.real --limit 100

      python -m demo.real --senteval-data DIR
    """
    if not LM.is_dir():
        raise InputError(LM, "Gemma 3 270M is not here", hint="make lm brings it (240 MB)")
    artifacts = artifacts or ARTIFACTS / (f"real-{limit}" if limit else "real")  # a trial is another dataset
    started = time.monotonic()
    with local_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        write(chain, limit, workers, senteval)
        with ThreadPoolExecutor(2) as lanes:  # a thread each
            made = [lanes.submit(train, chain, name, limit, senteval) for name in (PROMPTEOL, STATIC)]
            for one in made:
                one.result()
        loaded = {name: chain.verify(name, DATASET) for name in (PROMPTEOL, STATIC)}
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, [DATASET], ORG, SERVED, loaded))
        print(f"\n{seconds / 60:.0f} min; the largest process took {peak / 1024:.1f} GB")


def write(chain: Chain, limit: int | None, workers: int, senteval: Path | None) -> None:
    """Make the dataset, measure what its card shows of it, and publish it."""
    recipe, directory = RECIPES / f"{DATASET}.yaml", str(chain.artifacts / "datasets" / DATASET)
    words = ["--set", f"@{STAND_INS}", *(["--limit", str(limit)] if limit else [])]
    words += ["--workers", str(workers)] if workers > 1 else []
    chain.release(recipe, *words, publish=False)
    chain.stage("how well texts fit their labels", "eval.fidelity", directory)
    data = ["--senteval-data", str(senteval)] if senteval else ["--split", "validation"]
    pairs = str(min(2000, 2 * (limit or first_texts())))  # of three labels: some texts are no use
    given = [directory, "--student", str(STUDENT), "--pairs", pairs, *data, "--workers", str(workers)]
    given += ["--out", str(chain.artifacts / "value")]
    chain.stage("what an encoder gains from it", "release.value", *given)
    chain.release(recipe, *words)


def train(chain: Chain, name: str, limit: int | None, senteval: Path | None) -> None:
    """Train an encoder and its control on the published dataset, score both, and publish the encoder."""
    path = RECIPES / f"{name}.yaml"
    settings = [f"@{STAND_INS}", *(scaled(path, limit) if limit else [])]
    data = ["--tasks", ",".join(FINAL), "--senteval-data", str(senteval)] if senteval else []
    chain.release(path, *set_words(settings), *data, quiet=name == STATIC)
    if senteval:
        scored = chain.artifacts / "models" / f"{name}.evaluation"
        out = scored.with_name(f"{name}.seven_tasks.json")
        words = ("--tasks", ",".join(FINAL), "--out", str(out))
        chain.stage("the mean of seven tasks", "eval.compare.seeds", str(scored), *words)


def first_texts() -> int:
    """How many first texts the dataset's recipe reads."""
    limit = load_recipe(RECIPES / f"{DATASET}.yaml", DatasetRecipe).source.limit
    assert limit is not None
    return limit


def scaled(path: Path, limit: int) -> list[str]:
    """Settings of a trial: as small a part of the steps as ``limit`` is of the first texts, and no test set is read."""
    recipe = load_recipe(path, ModelRecipe)
    steps = int(recipe.arguments["max_steps"])
    scored = [task.model_dump(mode="json") for task in recipe.evaluation if task.split == "validation"]
    return [f"arguments.max_steps={max(10, steps * limit // first_texts())}", f"evaluation={json.dumps(scored)}"]


if __name__ == "__main__":
    cli.run(app)
