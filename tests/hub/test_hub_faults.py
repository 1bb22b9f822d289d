"""Publishing to a Hub that fails at every kind of request, by processes that are killed at any
moment.

A dataset grows, is published while it grows, and is released. However often that is disturbed,
every commit loads with the counts that it states, and the end is the one of an undisturbed run, bit
for bit.
"""

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commit_history import DATASET, History
from fault_injection import ALL_FAULTS
from faults import STARTED, TIMEOUT, FaultyHub, Launcher, Running
from growth import RECIPE_FILE, Growth, record
from huggingface_hub import HfApi
from small_runs import random_run

from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.model_cards import render

pytestmark = pytest.mark.slow("publishes among planted faults and kills, to the same bytes")

NAME = RECIPE_FILE.stem
REPO, LARGE = f"acme/{NAME}", "demo/random-run"
# about thirty processes, or a hundred
SEEDS, RUNS = 12 if os.getenv("STS_DINO_ALL_PAIRS") else 4, 9
SHARE = 0.06  # of the requests is struck
LONGEST_RUN = 240  # seconds of one process on a busy machine; it takes a few


class World:
    """The faulty Hub, and what publishes to it."""

    def __init__(self, folder: Path, growth: Growth, xet: bool = False):
        self.growth, self.faulty = (
            growth,
            FaultyHub(folder / "faulty", orgs=["acme"], part_bytes=1 << 16),
        )
        hub = self.faulty.hub
        environment = hub.client_environment(folder / "home") | {
            "HF_HUB_DISABLE_XET": "0" if xet else "1"
        }
        environment["HF_XET_CLIENT_RETRY_BASE_DELAY"] = "10ms"
        self.launcher = Launcher(environment, folder / "said")
        self.api = HfApi(endpoint=hub.endpoint, token=hub.token)
        self.history = History(self.api, REPO, folder / "downloads")

    def close(self) -> None:
        self.launcher.__exit__()
        self.faulty.hub.stop()


class Disturbed:
    """A release under way: the run directory, played forward as the publisher looks on, and the
    runs so far.
    """

    def __init__(self, world: World, artifacts: Path, random_: random.Random):
        self.world, self.artifacts, self.random = world, artifacts, random_
        self.directory = artifacts / "datasets" / NAME
        self.step = -1
        self.tag: str | None = None

    def run(self, share: float, kill_after: int | None, once: bool = False) -> int:
        """One process, killed after so many lines of the Hub's log; its exit code."""
        world, seed = self.world, self.random.randrange(1 << 30)
        started = self.artifacts / "datasets" / STARTED
        started.unlink(missing_ok=True)
        self.step = -1
        world.faulty.plan(
            seed=seed,
            share=share,
            once=once,
            slow_seconds=self.random.choice([0.05, 1.2 * TIMEOUT]),
        )
        running = world.launcher.start("command", "release", world.growth.words(self.artifacts))
        code = self._watch(running, started, kill_after, 0.01 if share else 0.001)
        world.faulty.plan(share=0.0)
        said = running.said()
        assert (
            code in (0, -9) and "Traceback" not in said and "warning: not published" not in said
        ), said
        return code

    def _watch(self, running: Running, started: Path, kill_after: int | None, hurry: float) -> int:
        faulty, deadline = self.world.faulty, time.monotonic() + LONGEST_RUN
        before, next_step = faulty.traffic(), 0
        while running.alive():
            assert time.monotonic() < deadline, running.said()
            lines = faulty.traffic() - before
            if kill_after is not None and lines >= kill_after:
                time.sleep(self.random.uniform(0, 0.004))
                running.kill()
                break
            if started.exists() and lines >= next_step:
                self.grow()
                next_step = lines + self.random.randint(4, 20)
            elif self.random.random() < hurry:
                next_step = 0  # the generator does not wait for the Hub
            time.sleep(0.002)
        return running.code()

    def grow(self) -> None:
        """One step of the generator; it begins with what the directory holds."""
        growth = self.world.growth
        if self.step < 0:
            manifest = read_manifest(self.directory)
            there = {file.path for file in manifest.files} if manifest else set()
            steps = range(len(growth))
            self.step = next(
                i for i in steps if there <= {file.path for file in growth.manifest(i).files}
            )
            if manifest and manifest.complete:
                self.step = len(growth) - 1
        elif self.step < len(growth) - 1:
            self.step += 1
        growth.lay(self.directory, self.step)

    def check_commits(self) -> None:
        """Every commit of main loads as it says, none is empty or loses a shard, and a tag stays
        where it is.
        """
        if not self.world.api.repo_exists(REPO, **DATASET):
            return
        self.world.history.check()
        tags = {
            tag.name: tag.target_commit
            for tag in self.world.api.list_repo_refs(REPO, **DATASET).tags
        }
        assert set(tags) <= {"v0.1.0"} and self.tag in (None, tags.get("v0.1.0"))
        self.tag = tags.get("v0.1.0")


@pytest.fixture(scope="module")
def growth(tmp_path_factory) -> Growth:
    return record(tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="module")
def world(growth, tmp_path_factory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("faults"), growth)
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory) -> dict[str, dict[str, str]]:
    """The end of a run that nothing disturbs; its repository is removed again."""
    release = Disturbed(world, tmp_path_factory.mktemp("undisturbed"), random.Random(0))
    assert release.run(share=0.0, kill_after=None) == 0
    release.check_commits()
    end = world.history.end()
    assert set(end) == {"refs/heads/main", "refs/heads/script", "refs/tags/v0.1.0"}
    assert end["refs/heads/main"] == end["refs/tags/v0.1.0"]
    assert len(world.api.list_repo_commits(REPO, **DATASET)) > 3, (
        "it was not published while it grew"
    )
    world.api.delete_repo(REPO, **DATASET)
    return end


@pytest.mark.parametrize("seed", range(SEEDS))
def test_killed_among_faults_it_ends_as_if_nothing_had_been(seed, world, undisturbed, tmp_path):
    moments, release = random.Random(seed), Disturbed(world, tmp_path, random.Random(seed))
    for number in range(RUNS):
        last = number == RUNS - 1
        code = release.run(SHARE, None if last else moments.randint(1, 60))
        release.check_commits()
        if code == 0:
            assert world.history.end() == undisturbed
            if last or moments.random() < 0.7:  # else it is published once more
                world.api.delete_repo(REPO, **DATASET)
                release = Disturbed(world, tmp_path / str(number), random.Random(seed + number))
        elif moments.random() < 0.2:
            shutil.rmtree(release.artifacts, ignore_errors=True)
    assert code == 0


@pytest.mark.parametrize("xet", [False, True], ids=["lfs", "xet"])
def test_every_kind_of_request_meets_every_fault(xet, growth, tmp_path):
    """Nobody is killed; published again and again until all combinations have happened."""
    directory = random_run(tmp_path / "random-run")  # large enough to be uploaded in parts
    render.write(directory, render.render(directory, LARGE))
    with closing(World(tmp_path, growth, xet)) as world:
        assert (
            Disturbed(world, tmp_path / "calm", random.Random(0)).run(share=0.0, kill_after=None)
            == 0
        )
        grown, large = world.faulty.answered(), History(world.api, LARGE, tmp_path / "large")
        publish(world, directory)
        asked = world.faulty.answered()
        assert (
            {"xet.put_xorb", "xet.put_shard"} <= set(asked)
            if xet
            else {"lfs.complete", "lfs.put"} <= set(asked)
        )
        end, large_end = world.history.end(), large.end()
        missing = {(kind, fault) for kind in asked for fault in ALL_FAULTS}
        for number in range(12):
            # only a growing run sends such requests
            if any(asked[kind] == grown[kind] for kind, _ in missing):
                world.api.delete_repo(REPO, **DATASET)
                release = Disturbed(world, tmp_path / str(number), random.Random(number))
                assert release.run(share=1.0, kill_after=None, once=True) == 0
                release.check_commits()
                assert world.history.end() == end
            world.api.delete_repo(LARGE, **DATASET)
            publish(world, directory, seed=number, share=1.0, once=True, slow_seconds=1.2 * TIMEOUT)
            assert large.end() == large_end
            met = world.faulty.injected()
            missing -= {
                (kind, fault) for kind, fault in missing if met[kind, fault.kind, fault.when]
            }
            if not missing:
                return
        raise AssertionError(f"never happened: {sorted(missing)}")


def publish(world: World, directory: Path, **faults: Any) -> None:
    """The command for a finished run."""
    world.faulty.plan(**faults)
    running = world.launcher.start("command", "publish", [str(directory), "--yes"])
    assert running.code() == 0, running.said()
    world.faulty.plan(share=0.0)
