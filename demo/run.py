"""The whole chain, offline: python -m demo.run (what `make demo` calls).

Writes three small datasets with the built-in language model and publishes them to the embedded Hub while they grow,
trains an encoder on two of them loaded back by repo id, scores it before and after on the STS Benchmark beside a
control that is trained on their first texts alone, publishes it with its card, and loads everything by name in a clean
process. Each step is the command a user types; finished steps are not done again.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from demo.chain import ORG, SERVED, Chain, local_hub
from demo.report import report
from hub import cli
from hub.contract.run_dir import ARTIFACTS
from hub.memory import peak_rss_mb

DATASETS = ("sts-dino-x2", "sts-dino-x1x2", "auto-nli")
MODEL = "demo-sts-dino"
RECIPES = Path("recipes/demo")

app = cli.new_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[
        Path, typer.Option(help="Where everything is written, the Hub's storage included")
    ] = ARTIFACTS,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
) -> None:
    """Run the chain and print what came out. Run again after any interruption: it goes on, to the same bytes."""
    started = time.monotonic()
    with local_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        with ThreadPoolExecutor(2) as lanes:  # one core each: two processes of one thread beat one of two
            made = [lanes.submit(chain.release, recipe(name), quiet=name != DATASETS[0]) for name in DATASETS]
            for one in made:
                one.result()
        chain.release(recipe(MODEL))
        loaded = {MODEL: chain.verify(MODEL, *DATASETS)}
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, DATASETS, ORG, SERVED, loaded))
        print(f"\n{seconds:.0f} s; the largest process took {peak / 1024:.1f} GB")


def recipe(name: str) -> Path:
    """The recipe of that name."""
    return RECIPES / f"{name}.yaml"


if __name__ == "__main__":
    cli.run(app)
