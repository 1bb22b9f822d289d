"""The stages of a chain in order, each a command of its own that speaks to the embedded Hub only."""

import json
import subprocess
import sys
from pathlib import Path

from hub import cli
from hub.errors import RunError
from hub_server.process import LocalHub
from hub_server.storage.refusals import CommandError
from release.child_process import die_with_parent

ORG = "sts-dino"
SERVED = "http://127.0.0.1:8899"  # by `make hub`, after a chain has stopped its own server


def local_hub(artifacts: Path, port: int) -> LocalHub:
    """Start the embedded Hub below ``artifacts``. Raises RunError."""
    try:
        return LocalHub(artifacts / "hub", port, orgs=[ORG], home=artifacts / "hf-home").start()
    except CommandError as error:
        raise RunError("demo", str(error)) from error


class Chain:
    """Makes, publishes and loads artefacts below ``artifacts``, to and from ``hub``."""

    def __init__(self, hub: LocalHub, artifacts: Path):
        self.hub, self.artifacts = hub, artifacts

    def release(self, recipe: Path, *words: str, publish: bool = True, quiet: bool = False) -> None:
        """Make an artefact and publish it, a dataset while it grows. ``quiet``: its progress shows when it fails."""
        arguments = [str(recipe), "--artifacts", str(self.artifacts), "--org", ORG, *words]
        title = f"make and publish {recipe.stem}" if publish else f"make {recipe.stem}"
        self.stage(title, "release.run", *arguments, *(["--yes"] if publish else []), quiet=quiet)

    def verify(self, model: str, *datasets: str) -> dict[str, object]:
        """Load datasets and model by repo id in a process with an empty cache."""
        said = self.stage("load everything by name, with an empty cache", "demo.verify", ORG, model, *datasets)
        return dict(json.loads(said.splitlines()[-1]))

    def stage(self, title: str, module: str, *arguments: str, quiet: bool = False) -> str:
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
