"""The whole chain, offline: python -m demo.run (what `make demo` calls).

Writes three small datasets with the built-in language model and publishes them to the embedded Hub while they grow,
trains an encoder on two of them loaded back by repo id, scores it before and after on the STS Benchmark beside a
control that is trained on their first texts alone, publishes it with its card, and loads everything by name in a clean
process. Each step is the command a user types; finished steps are not done again.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from demo.report import report
from hub import cli
from hub.contract.run_dir import ARTIFACTS
from hub.errors import RunError
from hub.memory import peak_rss_mb
from hub_server.process import LocalHub
from release.child_process import die_with_parent

ORG = "sts-dino"
DATASETS = ("sts-dino-x2", "sts-dino-x1x2", "auto-nli")
MODEL = "demo-sts-dino"
SERVED = "http://127.0.0.1:8899"  # by `make hub`, after the demo has stopped its own server
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
    with LocalHub(artifacts / "hub", port, orgs=[ORG], home=artifacts / "hf-home") as hub:
        chain = Chain(hub, artifacts)
        with ThreadPoolExecutor(2) as lanes:  # one core each: two processes of one thread beat one of two
            for _ in lanes.map(chain.release, DATASETS, [False, True, True]):
                pass
        chain.release(MODEL)
        loaded = chain.verify()
        seconds, peak = time.monotonic() - started, peak_rss_mb(children=True)
        print(report(artifacts, DATASETS, MODEL, ORG, SERVED, loaded))
        print(f"\n{seconds:.0f} s; the largest process took {peak / 1024:.1f} GB")


class Chain:
    """The stages in order, each in a process of its own that speaks to the embedded Hub only."""

    def __init__(self, hub: LocalHub, artifacts: Path):
        self.hub, self.artifacts = hub, artifacts

    def release(self, name: str, quiet: bool = False) -> None:
        """Make an artefact and publish it, a dataset while it grows. ``quiet``: its progress shows when it fails."""
        arguments = [str(RECIPES / f"{name}.yaml"), "--artifacts", str(self.artifacts), "--org", ORG, "--yes"]
        self._stage(f"make and publish {name}", "release.run", *arguments, quiet=quiet)

    def verify(self) -> dict[str, object]:
        """Load datasets and model by repo id in a process with an empty cache."""
        said = self._stage("load everything by name, with an empty cache", "demo.verify", ORG, MODEL, *DATASETS)
        return dict(json.loads(said.splitlines()[-1]))

    def _stage(self, title: str, module: str, *arguments: str, quiet: bool = False) -> str:
        """Run ``python -m module`` and return its stdout. Raises RunError when it fails; it has said why on stderr."""
        cli.say(f"\n== {title}: python -m {module} {' '.join(arguments)}")
        environment = self.hub.client_environment()
        done = subprocess.run(  # noqa: S603 - our own modules
            [sys.executable, "-m", module, *arguments],
            env=environment | {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            check=False,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )
        if done.returncode:
            cli.say(done.stderr or "")
            raise RunError(title, f"python -m {module} failed (exit code {done.returncode}), see above")
        return done.stdout


if __name__ == "__main__":
    cli.run(app)
