import json
from pathlib import Path

import pytest

from benchmarks.cluster import many_shards, scaling
from benchmarks.cluster.metered_executor import Metered, Shards, executor_of, metered
from generation.pipeline.job import generate
from hub.contract import run_dir
from hub.contract.recipe import DatasetRecipe
from hub.contract.run_dir import Manifest, read_manifest

SHARDS = 12


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[DatasetRecipe, Path, Manifest, Metered, list[int]]:
    """A run of tiny shards under the clock, two of them written in vain before."""
    folder, executors, seen = tmp_path_factory.mktemp("tiny"), list[Metered](), list[int]()
    recipe = many_shards.one_shard_per_text(folder, SHARDS)
    start = metered(executor_of(0), executors.append, watch=lambda sums: seen.append(sums.done), warm=2, weigh=True)
    with run_dir.locked(folder / "run"):
        manifest = generate(recipe, folder / "run", "benchmark", start)
    return recipe, folder, manifest, executors[0], seen


def test_the_clock_sees_every_shard_once_and_not_those_written_in_vain(tiny):
    _, _, manifest, executor, seen = tiny
    rows = sum(file.rows for file in manifest.shards("raw"))
    assert seen == list(range(1, SHARDS + 1))
    assert (executor.shards.done, executor.shards.rows, executor.groups.done) == (SHARDS, rows, 1)
    assert min(executor.shards.worker, executor.shards.cpu) > 0
    assert 0 < executor.shards.driver_cpu < executor.shards.thread_cpu
    assert executor.shards.driver + executor.shards.worker <= executor.shards.seconds
    assert sum(file.bytes for file in manifest.shards("raw")) < executor.shards.got
    assert 0 < executor.shards.sent < executor.shards.got


def test_a_run_under_the_clock_ends_in_the_same_bytes(tiny, tmp_path):
    recipe, _, manifest, _, _ = tiny
    with run_dir.locked(tmp_path / "run"):
        assert generate(recipe, tmp_path / "run", "benchmark") == manifest


def test_a_tenth_tells_what_came_since_the_last_one(monkeypatch, capsys):
    killed = list[int]()
    monkeypatch.setattr("os.kill", lambda number, signal: killed.append(signal))
    stage = many_shards.Stage(shards=20, killed_after=4)
    for done in range(1, 5):
        stage.watch(Shards(done=done, began=100, ended=100 + done, driver=done * done / 1000, worker=done / 100))
    tenths = json.loads(capsys.readouterr().out)["tenths"]
    assert [tenth["shards"] for tenth in tenths] == [2, 4]
    assert [tenth["driver_ms"] for tenth in tenths] == [2.0, 6.0]
    assert [tenth["seconds"] for tenth in tenths] == [2.0, 2.0]
    assert all(tenth["worker_ms"] == 10.0 and tenth["rss_mib"] > 10 for tenth in tenths)
    assert killed == [9]


def test_what_a_driver_spends_on_ray_is_its_own_time():
    tenth = {"driver_ms": 5.0, "driver_cpu_ms": 2.0, "thread_cpu_ms": 3.5}
    assert many_shards.own_ms(tenth, workers=2) == 6.5
    assert many_shards.own_ms(tenth, workers=0) == 5.0  # the thread is the worker's, too


def test_the_manifest_costs_are_those_of_the_run(tiny):
    _, folder, manifest, _, _ = tiny
    found = many_shards.manifest_costs(folder / "run")
    assert found["files"] == len(manifest.files)
    assert 40 < found["bytes_in_memory_per_file"] < 5000
    assert read_manifest(folder / "run") == manifest


def test_the_demo_recipe_has_one_thread_and_the_shards_asked_for():
    recipe = scaling.demo_recipe(24, 4)
    assert (recipe.source.limit, recipe.shard_size, recipe.model.threads) == (24, 4, 1)


def run_of(seconds: float, cpu: float, worker: float) -> dict:
    return {
        "seconds": seconds,
        "shards": {"done": 10, "rows": 100, "cpu": cpu, "worker": worker, "sent": 50, "got": 70},
    }


def test_a_speedup_is_a_ratio_within_a_round():
    apart = [run_of(15, 12.5, 9), run_of(15, 12.5, 9)]
    rounds = [
        {"one process": run_of(10, 10, 9), "1 worker": run_of(11, 10.5, 9), "2 workers": run_of(5.5, 11, 9)},
        {"one process": run_of(30, 10, 9), "1 worker": run_of(36, 12, 9), "2 workers": run_of(12, 12, 9)},
    ]
    found = scaling.speedup([one | {scaling.APART: apart} for one in rounds])
    assert found["two processes apart / one process"]["wall"] == {"median": 2.667, "low": 1.333, "high": 4.0}
    assert found["two processes apart / one process"]["rows_per_cpu_second"]["median"] == 0.8
    found = found["2 workers / 1 worker"]
    assert found["wall"] == {"median": 2.5, "low": 2.0, "high": 3.0}
    assert found["rows_per_cpu_second"] == {"median": 0.9773, "low": 0.9545, "high": 1.0}


def test_the_overhead_is_that_of_a_shard():
    found = scaling.overhead([{"one process": run_of(1.0, 1.0, 0.8), "1 worker": run_of(1.2, 1.5, 0.9)}])
    assert found["wall_ms"]["median"] == 20
    assert found["cpu_ms"]["median"] == 50
    assert (found["waiting_ms"]["one process"]["median"], found["waiting_ms"]["1 worker"]["median"]) == (20, 30)
    assert (found["bytes_of_a_task"], found["bytes_of_what_it_gives"]) == (5, 7)
