"""A dataset is published while it grows, by a Hub that again and again fails for longer than anybody's patience.

The release is the real command with ``--patience 1``; its generator is played (``faults.LaidRun``); waits are short.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from commit_history import DATASET, History, contents
from faults import STARTED, FaultyHub, Launcher, Running
from growth import RECIPE_FILE, Growth
from huggingface_hub import HfApi

from hub_server.faults import KINDS, WRONG

NAME = RECIPE_FILE.stem
REPO = f"acme/{NAME}"
PATIENCE, LONGER = 1.0, 1.2  # seconds; of every outage, at least
CAUSES = tuple(kind for kind in (*KINDS, *WRONG) if kind not in ("cut", "slow", "409", "412"))  # a Hub that is away
LATEST = 30.0  # seconds from the end of an outage until everything is published


@dataclass
class Outcome:
    """What happened in a run: the outages, and the faults that were met."""

    outages: list[str] = field(default_factory=list)
    faults: int = 0


class World:
    """The faulty Hub, what publishes to it, and the end of a release that nothing disturbs."""

    def __init__(self, folder: Path, growth: Growth, xet: bool = False):
        self.folder, self.growth = folder, growth
        self.faulty = FaultyHub(folder / "faulty", orgs=["acme"], part_bytes=1 << 16)
        hub = self.faulty.hub
        environment = hub.client_environment(folder / "home") | {"HF_HUB_DISABLE_XET": "0" if xet else "1"}
        environment["HF_XET_CLIENT_RETRY_BASE_DELAY"] = "10ms"
        self.launcher = Launcher(environment, folder / "said")
        self.api = HfApi(endpoint=hub.endpoint, token=hub.token)
        self.history = History(self.api, REPO, folder / "downloads")

    def close(self) -> None:
        self.launcher.__exit__()
        self.faulty.hub.stop()

    def run(self, seed: int, causes: Sequence[str] = ()) -> Outcome:
        """A release with an outage for each of ``causes`` (else drawn). Raises AssertionError when one is its end."""
        before = self.faulty.injected()
        artifacts, random_, outcome = self.folder / f"run-{seed}", random.Random(seed), Outcome()
        directory, words = artifacts / "datasets" / NAME, self.growth.words(artifacts, "--patience", str(PATIENCE))
        running = self.launcher.start("command", "release", words)
        try:
            until((directory.parent / STARTED).exists, "the generator was not started", running)
            steps = iter(self._steps())
            for cause in causes or random_.sample(CAUSES, k=len(self._steps()) // 2):
                self.growth.lay(directory, step := next(steps))
                until(partial(self._holds, step), "not published while all is well", running)
                outcome.outages.append(cause)
                self._outage(cause, directory, next(steps), random_, running)
            self.growth.lay(directory, len(self.growth) - 1)
            assert running.code() == 0 and "Traceback" not in running.said(), running.said()
        finally:
            self.faulty.plan(share=0.0)
            running.kill()
        assert self.history.end()["refs/tags/v0.1.0"] == contents(directory), "the repository is not the run directory"
        self.history.check()
        self.api.delete_repo(REPO, **DATASET)
        outcome.faults = (self.faulty.injected() - before).total()
        return outcome

    def _outage(self, cause: str, directory: Path, step: int, random_: random.Random, running: Running) -> None:
        """The Hub is away while the generator goes on to a step; what it missed is published afterwards."""
        self.faulty.plan(share=1.0, kinds=[cause], seed=random_.randrange(1 << 30), slow_seconds=0.05)
        seen, end = self.faulty.injected(), time.monotonic() + LONGER + random_.uniform(0, 1)
        self.growth.lay(directory, step)
        while time.monotonic() < end or self.faulty.injected() == seen:
            assert running.alive(), f"an outage ({cause}) ended it:\n{running.said()}"
            time.sleep(0.05)
        self.faulty.plan(share=0.0)
        until(partial(self._holds, step), f"not published after an outage ({cause})", running)

    def _steps(self) -> list[int]:
        """The steps of the generator at which there is something more to publish."""
        manifests = [self.growth.manifest(step) for step in range(len(self.growth))]
        rows = [0 if m.complete else sum(file.rows or 0 for file in m.shards("raw")) for m in manifests]
        return [step for step in range(1, len(rows)) if rows[step] > max(rows[:step])]

    def _holds(self, step: int) -> bool:
        """Whether main has all data of a step."""
        if not self.api.repo_exists(REPO, **DATASET):
            return False
        return {file.path for file in self.growth.manifest(step).files} <= set(self.history.tree("main"))


def until(done: Callable[[], bool], problem: str, running: Running) -> None:
    """Wait. Raises AssertionError with what the process said, when it takes too long."""
    end = time.monotonic() + LATEST
    while not done():
        assert time.monotonic() < end, f"{problem}:\n{running.said()}"
        time.sleep(0.05)
