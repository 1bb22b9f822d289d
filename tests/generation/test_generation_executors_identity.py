"""One process, workers of this machine, three nodes, with a store or without: the same bytes, and each goes on with
what another began.

Every start of a chain but the last one is killed on its way. CI takes chains that cover all ways and most steps from
one to another; ``STS_DINO_ALL_PAIRS=1`` takes every ordered pair.
"""

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster_drivers import Drivers
from commit_history import contents
from ray_cluster import RayCluster

from benchmarks.tiny_model import make_model
from hub.contract import run_dir

pytestmark = pytest.mark.slow("kills workers of real clusters, to the same bytes")

WAYS = ("one", "workers", "cluster", "store")
CHAINS = {"x2": ["one-workers-cluster-store-one"], "x1x2": ["store-cluster-workers"]}
PAIRS = ["-".join(pair) for pair in itertools.product(WAYS, repeat=2)]
CASES = [
    (name, chain) for name, chains in CHAINS.items() for chain in (PAIRS if os.getenv("STS_DINO_ALL_PAIRS") else chains)
]
ROUND = 4  # source sentences asked for at once
SETTINGS = ["shard_size=2", "decoding.max_new_tokens=8", "decoding.top_k=0", "decoding.max_attempts=9"]
RECIPES = {"x2": ["sts-dino-x2", "source.limit=24"], "x1x2": ["sts-dino-x1x2", "source.limit=12"]}
LONGEST = 240  # seconds of a start; longer is a hang


class Case(NamedTuple):
    """A recipe's arguments, and what one process makes of it: path → digest, and how many steps that took."""

    arguments: list[str]
    made: dict[str, str]
    steps: int


class World:
    """The cluster, what starts commands, and one process's runs."""

    def __init__(self, folder: Path, cluster: RayCluster, drivers: Drivers):
        self.folder, self.cluster, self.drivers = folder, cluster, drivers
        self._lm = make_model(folder / "lm", context=1024)  # it closes its quotation marks soon
        self._cases = dict[str, Case]()

    def case(self, name: str) -> Case:
        """A case, made when it is first asked for."""
        if name not in self._cases:
            recipe, *settings = RECIPES[name]
            words = [word for one in (f"model.path={self._lm}", *SETTINGS, *settings) for word in ("--set", one)]
            arguments, out = [f"recipes/demo/{recipe}.yaml", *words], self.folder / name
            assert self.start(arguments, "one", out, None) == 0
            counts = run_dir.require_complete(out).counts
            asked = counts["sources"] + sum(counts.get("sources_rejected", {}).values()) if name == "x1x2" else 0
            steps = len(list(out.glob("data/raw*/*.parquet"))) + asked // ROUND
            self._cases[name] = Case(arguments, contents(out), steps)
        return self._cases[name]

    def start(self, arguments: list[str], way: str, out: Path, steps: int | None) -> int:
        """Run the command; ``kill -9`` it once so many ``steps`` are done. The exit code, or minus the signal."""
        options = {
            "one": [],
            "workers": ["--workers", "2"],
            "cluster": ["--ray", self.cluster.address],
            "store": ["--ray", self.cluster.address, "--store", str(out.parent / f"{out.name}.store")],
        }[way]
        running = self.drivers.start("generate", [*arguments, "--out", str(out), *options], ROUND)
        deadline = time.monotonic() + LONGEST
        while running.alive():
            assert time.monotonic() < deadline, running.said()
            if steps is not None and done(out) >= steps:
                running.kill()
            time.sleep(0.002)
        code = running.code()
        assert code in (0, -9), running.said()
        return code


def done(out: Path) -> int:
    """How much of a run is done: rounds of source sentences, and shards."""
    rounds = out.parent / f"{out.name}.scratch"
    return len(list(out.glob("data/raw*/*.parquet"))) + len(list(rounds.glob("round-*.json")))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("identity")
    with RayCluster() as cluster, Drivers(cluster, dict(os.environ), folder / "said") as drivers:
        yield World(folder, cluster, drivers)


@pytest.mark.parametrize(("name", "chain"), CASES)
def test_the_bytes_are_the_same_on_every_executor_and_after_every_kill(name, chain, world, tmp_path):
    case, out, ways = world.case(name), tmp_path / "run", chain.split("-")
    for number, way in enumerate(ways[:-1], 1):
        mark = max(1, case.steps * number // len(ways))
        assert done(out) < mark, "an earlier start did more than it was to"
        assert world.start(case.arguments, way, out, mark) == -9, "it ended before it was killed"
        assert not run_dir.read_manifest(out).complete
    assert world.start(case.arguments, ways[-1], out, None) == 0
    assert contents(out) == case.made
    assert not (tmp_path / "run.scratch").exists()
    left = [path for path in tmp_path.glob("run.store/**/*") if path.is_file()]
    assert not left or ways[-1] != "store", "a finished run leaves nothing in its store"
