"""A cluster in which most nodes cannot work: each is named once with its reason, and the rest writes what one process
writes. What a node lacks is really not there: nodes have mounts and settings of their own.
"""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cluster_drivers import Drivers
from commit_history import contents
from faults import Running
from ray_cluster import RayCluster, can_mount
from tiny_lm import make_lm

from generation.executors.store import store_folder
from generation.pipeline.job import run_key
from hub.contract import run_dir

pytest_plugins = ["local_hub"]
pytestmark = [
    pytest.mark.slow("nodes of real clusters with mounts of their own"),
    pytest.mark.skipif(not can_mount(), reason="nodes with mounts of their own need a user who may mount"),
]
RECIPE = "recipes/demo/sts-dino-x2.yaml"
SETTINGS = ["source.limit=24", "decoding.max_new_tokens=6", "shard_size=2", "decoding.max_attempts=3"]
ENGINE = Path("generation/backends/engine.py").resolve()
LONGEST = 120  # seconds until all are named; longer is a hang
FULL = "size=16k"
ALWAYS_LOW = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "50"}  # of all memory


class Bad(NamedTuple):
    """A node that cannot work: what it lacks, and the warning that names it."""

    mounts: list[list[str]]
    environment: dict[str, str]
    words: str


class World:
    """A head that can work, and the command."""

    def __init__(self, folder: Path, cluster: RayCluster, drivers: Drivers):
        self.folder, self.cluster, self.drivers = folder, cluster, drivers

    def start(self, out: str, settings: list[str], *words: str) -> Running:
        """Start the command."""
        sets = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
        return self.drivers.start("generate", [RECIPE, "--out", str(self.folder / out), *sets, *words])

    def alone(self, out: str, settings: list[str]) -> Path:
        """What one process writes."""
        running = self.start(out, settings)
        assert running.code() == 0, running.said()
        return self.folder / out

    def among(self, bad: dict[str, Bad], out: str, settings: list[str], *words: str) -> dict[str, str]:
        """Write on the cluster with these nodes in it. The good worker waits until all of them are named; with why."""
        names = {why: self.cluster.add_node(True, one.mounts, one.environment) for why, one in bad.items()}
        running, stopped = self.start(out, settings, "--ray", self.cluster.address, *words), list[int]()
        deadline = time.monotonic() + LONGEST
        try:
            while running.alive() and len(left_out(running.said())) < len(bad):
                assert time.monotonic() < deadline, running.said()
                stopped = stopped or self.stop("node1")
                time.sleep(0.05)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert running.code() == 0, running.said()
        for name in names.values():
            self.cluster.kill_node(name)
        said = left_out(running.said())
        assert set(said) == set(names.values()), running.said()
        return {why: said[name] for why, name in names.items()}

    def stop(self, node: str) -> list[int]:
        """Have a node's worker hang; its process, if there is one."""
        pids = [one.pid for one in self.cluster.workers() if (one.node, one.name) == (node, "RemoteWorker")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        return pids


@pytest.fixture(scope="module")
def world(tmp_path_factory, local_hub) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("nodes")
    environment = local_hub.client_environment(folder / "home") | {"HF_HUB_DISABLE_XET": "1"}
    with RayCluster(1, environment) as cluster, Drivers(cluster, environment, folder / "said") as drivers:
        yield World(folder, cluster, drivers)


def other_code(folder: Path) -> list[list[str]]:
    changed = folder / "engine.py"
    changed.write_text(ENGINE.read_text() + "\n_MORE = 1\n")
    return [["--bind", str(changed), str(ENGINE)]]


def left_out(said: str) -> dict[str, str]:
    """Node → why, of all lines that leave one out."""
    found = re.findall(r"^warning: node (\S+) is left out: (.*)$", said.replace("\r", "\n"), re.MULTILINE)
    assert len(found) == len(dict(found)), "a node is named twice"
    return dict(found)


def test_nodes_that_cannot_work_are_named_and_the_rest_goes_on(world):
    lm, store = make_lm(world.folder / "lm"), world.folder / "store"
    alone = world.alone("alone", [f"model.path={lm}"])
    run = store_folder(run_key(run_dir.require_complete(alone)), world.folder / "many")
    full = store / run / "contents"
    full.mkdir(parents=True)
    bad = {
        "other code": Bad(other_code(world.folder), {}, r"not the driver's: .*sts-dino code \w+, on the driver \w+"),
        "no model": Bad([["-t", "tmpfs", "none", str(lm)]], {}, rf"model file {lm}/\S+: is not there"),
        "full disk": Bad(
            [["-t", "tmpfs", "-o", FULL, "none", str(full)]], {}, rf"no space is left on its disk \({full}"
        ),
        "low memory": Bad([], ALWAYS_LOW, r"too little memory for a worker: .*Memory usage \d+B exceeded threshold"),
    }
    for why, said in world.among(bad, "many", [f"model.path={lm}"], "--store", str(store)).items():
        assert re.search(bad[why].words, said)
    assert contents(world.folder / "many") == contents(alone)
    assert not [path for path in store.rglob("*") if path.is_file()], "a finished run leaves nothing in its store"


def test_nodes_that_cannot_fetch_the_model_are_named_and_the_rest_goes_on(world, local_hub, hub_api):
    repo = hub_api.create_repo("demo/nodes-lm", private=True).repo_id
    commit = hub_api.upload_folder(repo_id=repo, folder_path=make_lm(world.folder / "published")).oid
    settings = [
        "model.path=null",
        f"model.repo_id={repo}",
        f"model.revision={commit}",
        "model.license=mit",
        "license=mixed",
    ]
    alone, home, nobody = world.alone("hub-alone", settings), world.folder / "home", world.folder / "nobody"
    nobody.touch()
    bad = {
        "no token": Bad(
            [["-t", "tmpfs", "none", str(home)], ["--bind", str(nobody), str(local_hub.token_file)]],
            {},
            r"demo/nodes-lm: its tokenizer .*; .* a private or gated model needs a token here",
        ),
        "full disk": Bad([["-t", "tmpfs", "-o", FULL, "none", str(home)]], {}, "No space left on device"),
    }
    for why, said in world.among(bad, "hub-many", settings).items():
        assert re.search(bad[why].words, said)
    assert contents(world.folder / "hub-many") == contents(alone)
