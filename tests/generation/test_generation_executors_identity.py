"""One process, two threads in it, workers on Ray, three nodes, with a store or not: the same bytes,
and each resumes what another began.

Every start of a chain but the last one is killed on its way. In the way ``losses`` the cluster
loses a worker and a node, and another node joins.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_drivers import Drivers
from commit_history import contents
from ray_cluster import RayCluster
from tiny_lm import make_closing, make_tokenizer

from sts_dino.hub.contract import run_dir

pytestmark = pytest.mark.slow("kills workers of real clusters, to the same bytes")

CASES = [
    ("sts-dino-x2", "source.limit=24", "one-workers-cluster-store-one"),
    ("sts-dino-x1x2", "source.limit=12", "store-cluster-ray"),
    ("sts-dino-x2", "source.limit=48", "losses"),
]
LOSSES = ((2, "worker"), (5, "node"))  # shards that exist → what the cluster loses then
ROUND = 4  # source sentences asked for at once
SETTINGS = [
    "shard_size=2",
    "decoding.batch_size=24",
    "decoding.max_new_tokens=8",
    "decoding.top_k=0",
    "decoding.max_attempts=9",
]
LONGEST = 240  # seconds of a start; longer is a hang


def start(
    drivers: Drivers,
    cluster: RayCluster,
    arguments: list[str],
    way: str,
    out: Path,
    steps: int | None = None,
) -> int:
    """Run the command; ``kill -9`` it once so many ``steps`` are done. The exit code, or minus the
    signal.
    """
    on_cluster, losses = ["--ray", cluster.address], list(LOSSES) if way == "losses" else []
    options = {
        "one": [],
        "workers": ["--workers", "2"],
        "ray": ["--workers", "2", "--cpus-per-worker", "1"],
        "cluster": on_cluster,
        "losses": on_cluster,
        "store": [*on_cluster, "--store", str(out.parent / f"{out.name}.store")],
    }[way]
    running = drivers.start("generate", [*arguments, "--out", str(out), *options], ROUND)
    deadline = time.monotonic() + LONGEST
    while running.alive():
        assert time.monotonic() < deadline, running.said()
        if steps is not None and done(out) >= steps:
            running.kill()
        if losses and done(out) >= losses[0][0] and lost(cluster, losses[0][1]):
            losses.pop(0)
        time.sleep(0.002)
    code = running.code()
    assert code in (0, -9) and not losses, running.said()
    return code


def lost(cluster: RayCluster, part: str) -> bool:
    """``kill -9`` an actor's process, or a node, whose place another one takes; whether it was
    there.
    """
    if part == "node":
        cluster.kill_node(cluster.nodes()[1])
        return bool(cluster.add_node())
    actors = [worker for worker in cluster.workers() if worker.name not in ("", "IDLE")]
    return bool(actors) and cluster.kill_worker(actors[0])


def done(out: Path) -> int:
    """How much of a run is done: rounds of source sentences, and shards."""
    rounds = out.parent / f"{out.name}.scratch"
    return len(list(out.glob("data/raw*/*.parquet"))) + len(list(rounds.glob("round-*.json")))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[tuple[Drivers, RayCluster]]:
    folder = tmp_path_factory.mktemp("identity")
    with RayCluster() as cluster, Drivers(cluster, dict(os.environ), folder / "said") as drivers:
        yield drivers, cluster


@pytest.mark.parametrize(("recipe", "limit", "chain"), CASES)
def test_the_bytes_are_the_same_on_every_executor_and_after_every_kill(
    recipe, limit, chain, world, tmp_path
):
    lm = make_closing(tmp_path / "lm")  # it closes its quotation marks soon
    words = [word for one in (f"model.path={lm}", *SETTINGS, limit) for word in ("--set", one)]
    arguments, alone, out = (
        [f"recipes/demo/{recipe}.yaml", *words],
        tmp_path / "alone",
        tmp_path / "run",
    )
    assert start(*world, arguments, "one", alone) == 0
    counts, ways = run_dir.require_complete(alone).counts, chain.split("-")
    asked = (
        counts["sources"] + sum(counts["sources_rejected"].values())
        if "sources_rejected" in counts
        else 0
    )
    steps = done(alone) + asked // ROUND
    for number, way in enumerate(ways[:-1], 1):
        mark = max(1, steps * number // len(ways))
        assert done(out) < mark, "an earlier start did more than it was to"
        assert start(*world, arguments, way, out, mark) == -9, "it ended before it was killed"
        assert not run_dir.read_manifest(out).complete
    assert start(*world, arguments, ways[-1], out) == 0
    assert contents(out) == contents(alone)
    assert not (tmp_path / "run.scratch").exists()
    left = [path for path in tmp_path.glob("run.store/**/*") if path.is_file()]
    assert not left or ways[-1] != "store", "a finished run leaves nothing in its store"


def test_an_encoder_chooses_the_same_texts_on_every_executor(world, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    encoder = tmp_path / "encoder"
    words = StaticEmbedding(make_tokenizer(), embedding_dim=16)
    SentenceTransformer(modules=[words]).save_pretrained(str(encoder))
    settings = [
        f"model.path={make_closing(tmp_path / 'lm')}",
        f"selection={{candidates: 2, path: '{encoder}'}}",
        "source.limit=8",
        *SETTINGS,
    ]
    arguments = ["recipes/demo/sts-dino-x2.yaml"]
    for setting in settings:
        arguments += ["--set", setting]
    ways = ("one", "workers", "cluster")
    for way in ways:
        assert start(*world, arguments, way, tmp_path / way) == 0
    rejected = run_dir.require_complete(tmp_path / "one").counts["rejected"]
    assert rejected["not_best"] > 0
    assert contents(tmp_path / "one") == contents(tmp_path / "workers")
    assert contents(tmp_path / "one") == contents(tmp_path / "cluster")
