"""A release on three nodes: a worker, a node, the generator and the driver are killed while the Hub fails.

Run directory and repository end as those of an undisturbed release, and every commit loads as it says.
"""

import contextlib
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from cluster_drivers import Drivers
from commit_history import DATASET, History, contents
from faults import FaultyHub, Running
from growth import RECIPE_FILE
from huggingface_hub import HfApi
from ray_cluster import RayCluster
from tiny_lm import make_lm

NAME = RECIPE_FILE.stem
REPO = f"acme/{NAME}"
SETTINGS = ["source.limit=48", "shard_size=4", "decoding.max_new_tokens=16", "decoding.max_attempts=3"]  # 12 shards
KILLS = ((1, "worker"), (3, "node"), (5, "generator"), (7, "release"))  # shards that exist → what is killed then
CODES = {"": 0, "generator": 1, "release": -9}
SHARE = 0.15  # of the requests fail
LONGEST = 240  # seconds of one start; longer is a hang
LOCKED = "another process is working on this run"


class World:
    """Three Ray nodes, a faulty Hub, and releases to it. Use it as a context manager."""

    def __init__(self, folder: Path):
        self.folder, self.lm = folder, make_lm(folder / "lm")

    def __enter__(self) -> "World":
        with ExitStack() as stack:
            self.cluster = stack.enter_context(RayCluster())
            self.faulty = FaultyHub(self.folder / "faulty", orgs=["acme"], part_bytes=1 << 16)
            hub = self.faulty.hub
            stack.callback(hub.stop)
            environment = hub.client_environment(self.folder / "home") | {"HF_HUB_DISABLE_XET": "1"}
            self.drivers = stack.enter_context(Drivers(self.cluster, environment, self.folder / "said"))
            self.api = HfApi(endpoint=hub.endpoint, token=hub.token)
            self.history = History(self.api, REPO, self.folder / "downloads")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, artifacts: Path, *options: str) -> Running:
        fixed = ["--org", "acme", "--yes", "--artifacts", str(artifacts), "--commits-per-hour", "12"]
        settings = [word for setting in (f"model.path={self.lm}", *SETTINGS) for word in ("--set", setting)]
        return self.drivers.start("release", [str(RECIPE_FILE), *fixed, *settings, *options])


class Disturbed:
    """A release that is started again until it ends, while the parts that ``KILLS`` names are killed."""

    def __init__(self, world: World, artifacts: Path):
        self.world, self.artifacts, self.random = world, artifacts, random.Random(7)
        self.kills = list(KILLS)
        self._joins: list[float] = []  # when a new node takes the place of a lost one

    def start(self) -> int:
        """Start once; the exit code, or minus the signal."""
        self.world.faulty.plan(seed=self.random.randrange(1 << 30), share=SHARE, slow_seconds=0.05)
        running = self.world.start(self.artifacts, "--ray", self.world.cluster.address)
        killed = self._watch(running)
        code, said = running.code(), running.said()
        assert "Traceback" not in said and "warning: not published" not in said, said
        if code == 1 and LOCKED in said:  # the generator of the killed release still holds the run
            time.sleep(0.5)
        else:
            assert code == CODES[killed], f"{killed!r} killed, code {code}:\n{said}"
        return code

    def _watch(self, running: Running) -> str:
        """Kill what is planned until the process ends; which part of the driver was killed."""
        deadline = time.monotonic() + LONGEST
        while running.alive():
            assert time.monotonic() < deadline, f"it hangs:\n{running.said()}"
            if self._joins and self._joins[0] <= time.monotonic():
                self._joins.pop()
                self.world.cluster.add_node()
            shards = len(list(self.artifacts.glob(f"datasets/{NAME}/data/raw/*.parquet")))
            if self.kills and shards >= self.kills[0][0] and self._kill(self.kills[0][1], running):
                _, kind = self.kills.pop(0)
                if kind in CODES:
                    return kind
            time.sleep(0.005)
        return ""

    def _kill(self, kind: str, running: Running) -> bool:
        """Kill one part; whether it was there."""
        cluster, generator = self.world.cluster, child(running.pid)
        if generator is None:
            return False
        if kind == "release":
            running.kill()
            with contextlib.suppress(psutil.NoSuchProcess):
                generator.wait(30)  # it ends with its parent
            shutil.rmtree(self.artifacts)  # the next start finds an empty disk
        elif kind == "generator":
            generator.kill()
        elif kind == "node":
            cluster.kill_node(cluster.nodes()[1])
            self._joins.append(time.monotonic() + 1)
        else:
            actors = [worker for worker in cluster.workers() if worker.name not in ("", "IDLE")]
            return bool(actors) and cluster.kill_worker(self.random.choice(actors))
        return True


def child(pid: int) -> psutil.Process | None:
    """The generator of a release."""
    with contextlib.suppress(psutil.Error):
        return next(iter(psutil.Process(pid).children()), None)
    return None


def ended(world: World, artifacts: Path, run: Callable[[], object]) -> tuple[dict, dict]:
    """Digests of the run directory and of every ref of the repository after a release, which is then deleted."""
    run()
    assert world.history.check() > 2, "it was not published while it grew"
    found = contents(artifacts / "datasets" / NAME), world.history.end()
    assert found[1]["refs/heads/main"] == found[0], "the repository is not the run directory"
    world.api.delete_repo(REPO, **DATASET)
    return found


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    with World(tmp_path) as made:
        yield made


@pytest.mark.slow("kills a release on a cluster of three nodes while the Hub fails")
def test_killed_among_faults_a_release_ends_as_if_nothing_had_been(world, tmp_path):
    plain, struck = tmp_path / "plain", tmp_path / "struck"
    undisturbed = ended(world, plain, lambda: world.start(plain).code() == 0 or pytest.fail("it fails undisturbed"))
    disturbed = Disturbed(world, struck)

    def until_it_ends() -> None:
        starts = 0
        while disturbed.start():
            starts += 1
            assert starts < 20, "it does not end"
        world.faulty.plan(share=0.0)

    assert ended(world, struck, until_it_ends) == undisturbed
    assert not disturbed.kills and world.faulty.injected(), "a part was not killed, or no request failed"
    beside = {path.name for path in (struck / "datasets").iterdir()}
    assert beside <= {NAME, *(f"{NAME}.{ending}" for ending in ("lock", "timing.json", "places.json"))}
