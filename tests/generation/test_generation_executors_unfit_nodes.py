"""A cluster in which most nodes cannot work: each is named once with its reason, and the rest writes what one process
writes. What a node lacks is really not there: nodes have mounts and settings of their own.
"""

import os
import re
import signal
import time
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


def run(drivers: Drivers, lm: Path, out: Path, *words: str) -> Running:
    """Start the command."""
    sets = [word for setting in (*SETTINGS, f"model.path={lm}") for word in ("--set", setting)]
    return drivers.start("generate", [RECIPE, "--out", str(out), *sets, *words])


def good_worker(cluster: RayCluster) -> list[int]:
    """The process of the first node's worker, if there is one."""
    return [one.pid for one in cluster.workers() if (one.node, one.name) == ("node1", "RemoteWorker")]


def other_code(folder: Path) -> list[list[str]]:
    changed = folder / "engine.py"
    changed.write_text(ENGINE.read_text() + "\n_MORE = 1\n")
    return [["--bind", str(changed), str(ENGINE)]]


def left_out(said: str) -> dict[str, str]:
    """Node → why, of all lines that leave one out."""
    found = re.findall(r"^warning: node (\S+) is left out: (.*)$", said.replace("\r", "\n"), re.MULTILINE)
    assert len(found) == len(dict(found)), "a node is named twice"
    return dict(found)


def test_nodes_that_cannot_work_are_named_and_the_rest_goes_on(tmp_path):
    """The good worker waits until all of the others are named."""
    lm, store, out = make_lm(tmp_path / "lm"), tmp_path / "store", tmp_path / "many"
    with RayCluster(1) as cluster, Drivers(cluster, dict(os.environ), tmp_path / "said") as drivers:
        alone = run(drivers, lm, tmp_path / "alone")
        assert alone.code() == 0, alone.said()
        key = run_key(run_dir.require_complete(tmp_path / "alone"))
        full = store / store_folder(key, out) / "contents"
        full.mkdir(parents=True)
        bad = {
            "other code": Bad(other_code(tmp_path), {}, r"not the driver's: .*sts-dino code \w+, on the driver \w+"),
            "no model": Bad([["-t", "tmpfs", "none", str(lm)]], {}, rf"model file {lm}/\S+: is not there"),
            "full disk": Bad(
                [["-t", "tmpfs", "-o", FULL, "none", str(full)]], {}, rf"no space is left on its disk \({full}"
            ),
            "low memory": Bad(
                [], ALWAYS_LOW, r"too little memory for a worker: .*Memory usage \d+B exceeded threshold"
            ),
        }
        names = {cluster.add_node(True, one.mounts, one.environment): one for one in bad.values()}
        running = run(drivers, lm, out, "--ray", cluster.address, "--store", str(store))
        stopped, deadline = list[int](), time.monotonic() + LONGEST
        try:
            while running.alive() and len(left_out(running.said())) < len(bad):
                assert time.monotonic() < deadline, running.said()
                if not stopped:
                    stopped = good_worker(cluster)
                    for pid in stopped:
                        os.kill(pid, signal.SIGSTOP)
                time.sleep(0.05)
        finally:
            for pid in stopped if running.alive() else ():
                os.kill(pid, signal.SIGCONT)
        assert running.code() == 0, running.said()
    said = left_out(running.said())
    assert set(said) == set(names), running.said()
    for name, one in names.items():
        assert re.search(one.words, said[name])
    assert contents(out) == contents(tmp_path / "alone")
    assert not [path for path in store.rglob("*") if path.is_file()], "a finished run leaves nothing in its store"
