"""The whole chain, offline: sts-dino demo (what `make demo` calls).

The built-in language model generates three small datasets, which are published to the embedded Hub while they grow. An
encoder is trained on two of them, loaded by repo id, and scored on the STS Benchmark beside the untrained encoder and
the SimCSE baseline. The encoder is published with its card, and a clean process loads everything by name. Each step is
the command that a user types; finished steps are skipped.
"""

import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer

from demo.chain import Chain, local_hub, report
from hub import cli
from hub.contract.run_dir import ARTIFACTS
from hub.process import peak_rss_mb
from release.stages import run_parallel

DATASETS = ("sts-dino-x2", "sts-dino-x1x2", "auto-nli")
MODEL = "demo-sts-dino"
RECIPES = Path("recipes/demo")

app = cli.new_app(__doc__)


@app.command()
def main(
    artifacts: Annotated[Path, typer.Option(help="Folder of all results, the Hub's storage included")] = ARTIFACTS,
    port: Annotated[int, typer.Option(help="Port of the embedded Hub; 0 takes a free one")] = 0,
) -> None:
    """Run the chain and print its results. After an interruption the same command resumes, to the same bytes."""
    started = time.monotonic()
    with local_hub(artifacts, port) as hub:
        chain = Chain(hub, artifacts)
        calls = [partial(release, chain, name) for name in DATASETS]
        run_parallel(calls, 2)  # one core each: two processes of one thread are faster than one of two
        chain.release(RECIPES / f"{MODEL}.yaml")
        loaded = {MODEL: chain.load(MODEL, *DATASETS)}
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, DATASETS, loaded))
        print(f"\n{seconds:.0f} s; the largest process took {peak / 1024:.1f} GB")


def release(chain: Chain, name: str, stop: Event) -> None:
    """Generate and publish a dataset; of several at a time, the first one shows its progress."""
    chain.release(RECIPES / f"{name}.yaml", quiet=name != DATASETS[0], stop=stop)
