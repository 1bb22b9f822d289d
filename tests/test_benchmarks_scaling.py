import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import many_shards, scale_costs, scaling
from benchmarks.metered_crew import Metered, Shards, crew_of, metered
from benchmarks.scale_costs import FILES_PER_FOLDER, FILES_PER_REPOSITORY, LEAST_TEXTS, Facts, costs, spread, suggest
from generation.job import generate
from hub import run_dir
from hub.errors import InputError
from hub.recipe import DatasetRecipe
from hub.recipe_file import load_recipe
from hub.run_dir import Manifest, read_manifest

SHARDS = 12
FACTS = Facts(
    rows_per_second=50.0,
    finished_per_second=5000.0,
    rows_per_text=5.0,
    bytes_per_row=100.0,
    driver_seconds_per_shard=0.01,
    driver_bytes_per_second=1e8,
    driver_memory=4e8,
    driver_memory_per_shard=3000.0,
    manifest_bytes_per_file=250.0,
    manifest_seconds_per_file=1e-5,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[DatasetRecipe, Path, Manifest, Metered, list[int]]:
    """A run of tiny shards under the clock, two of them written in vain before."""
    folder, crews, seen = tmp_path_factory.mktemp("tiny"), list[Metered](), list[int]()
    recipe = many_shards.one_shard_per_text(folder, SHARDS)
    hire = metered(crew_of(0), crews.append, watch=lambda sums: seen.append(sums.done), warm=2, weigh=True)
    with run_dir.locked(folder / "run"):
        manifest = generate(recipe, folder / "run", "benchmark", hire)
    return recipe, folder, manifest, crews[0], seen


def recipe_of(name: str, **changes: object) -> DatasetRecipe:
    return load_recipe(Path(f"recipes/demo/{name}.yaml"), DatasetRecipe, [f"{k}={v}" for k, v in changes.items()])


def test_the_clock_sees_every_shard_once_and_not_those_written_in_vain(tiny):
    _, _, manifest, crew, seen = tiny
    rows = sum(file.rows for file in manifest.shards("raw"))
    assert seen == list(range(1, SHARDS + 1))
    assert (crew.shards.done, crew.shards.rows, crew.groups.done) == (SHARDS, rows, 1)
    assert min(crew.shards.worker, crew.shards.cpu) > 0
    assert 0 < crew.shards.driver_cpu < crew.shards.thread_cpu
    assert crew.shards.driver + crew.shards.worker <= crew.shards.seconds
    assert sum(file.bytes for file in manifest.shards("raw")) < crew.shards.got
    assert 0 < crew.shards.sent < crew.shards.got


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


def test_files_on_paper_are_those_of_a_run(tiny):
    recipe, _, manifest, _, _ = tiny
    plan = spread(recipe, SHARDS, 1, 1)
    empty = len(manifest.counts.get("empty_shards", ()))
    assert plan.files == {"postprocessed": 2, "raw": SHARDS, "rejected": SHARDS}
    assert sum(plan.files.values()) - empty - 2 <= len(manifest.files) <= sum(plan.files.values()) - empty


def test_few_shot_shards_of_a_shot_count_share_a_folder():
    recipe = load_recipe(Path("recipes/datasets/auto-nli.yaml"), DatasetRecipe, [])
    plan = spread(recipe, 10_000, 100, 1)
    sets = max(variant.example_set for variant in recipe.variants) + 1
    assert plan.shards == 100 * len(recipe.variants)
    assert plan.files["raw-20shot"] == 100 * sets
    assert set(plan.files) == set(recipe.configs)


@pytest.mark.parametrize("texts", [1, 1000, 200_000, 20_000_000, 2_000_000_000])
@pytest.mark.parametrize("name", ["sts-dino-x2", "sts-dino-x1x2", "auto-nli"])
def test_a_suggestion_keeps_to_the_hubs_limits_and_is_the_smallest(name, texts):
    recipe = recipe_of(name)
    plan = suggest(recipe, texts, 20_000)
    assert max(plan.files.values()) <= FILES_PER_FOLDER and sum(plan.files.values()) <= FILES_PER_REPOSITORY
    assert plan.texts_per_shard * plan.shards * plan.repositories >= texts
    assert plan.texts_per_shard <= 20_000
    if plan.repositories > 1:
        assert not spread(recipe, texts, plan.texts_per_shard, plan.repositories - 1).fits
    elif plan.texts_per_shard > LEAST_TEXTS:
        assert not spread(recipe, texts, int(plan.texts_per_shard / 1.1) - 1, 1).fits


def test_costs_follow_from_the_facts():
    found = costs(recipe_of("sts-dino-x2"), FACTS, 10**6, shard_minutes=30, per_hour=100)
    assert found["first_texts"] == 200_000
    assert found["worker_hours"] == pytest.approx(10**6 / 50 / 3600 + 10**6 / 5000 / 3600)
    assert found["shards"] == 200_000 // 64
    assert found["bytes"] == 10**8
    assert found["commits"] == -(-found["files"] // 100)
    assert found["commit_hours"] == found["commits"] / 97
    assert found["driver_hours"] == pytest.approx(found["shards"] * (0.01 + 64 * 5 * 100 / 1e8) / 3600)
    assert found["first_text_bytes"] == 200_000 * 23


def test_a_slow_worker_gets_shards_that_it_can_write_in_time():
    recipe, pairs = recipe_of("sts-dino-x2"), 10**8
    fast, slow = (
        costs(recipe, facts, pairs, 10, 100) for facts in (FACTS, scale_costs.replace(FACTS, rows_per_second=1))
    )
    assert slow["shard_minutes"] <= 10 and slow["repositories"] > fast["repositories"]


@pytest.fixture
def results(tmp_path) -> Path:
    """Results of the three benchmarks, shortened."""
    engine = {"cases": {"sts-x2, demo-lm": {"variants": {"engine float32": {"rate": 40.0}}}}}
    once = {"summary": {"one process": {"finished_per_second": {"median": 4000.0}}}}
    manifest = {"files": 1000, "mb": 0.25, "read_seconds": 0.01}
    resumed = {"manifest": manifest, "write_mb_per_second": 300.0}
    run = {"driver_ms_per_shard": 5.0, "rss_kib_per_shard": 2.5, "killed": {"tenths": [{"rss_mib": 400.0}]}}
    for name, found in (
        ("engine_throughput", engine),
        ("scaling", once),
        ("many_shards", {"runs": [run | {"resumed": resumed}]}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    return tmp_path


def test_the_table_of_a_real_run(tiny, results):
    _, folder, manifest, _, _ = tiny
    options = ["--run", str(folder / "run"), "--results", str(results), "--pairs", "1000000", "--price", "2"]
    done = CliRunner().invoke(scale_costs.app, [*options, "--out", str(results / "costs.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((results / "costs.json").read_text())
    rows = sum(file.rows for file in manifest.shards("raw"))
    assert report["facts"]["rows_per_text"] == rows / SHARDS
    assert report["facts"]["bytes_per_row"] == sum(file.bytes for file in manifest.files) / rows
    assert report["costs"][0]["price"] == 2 * report["costs"][0]["worker_hours"]
    assert "| pairs | 10^6 |" in done.output and "| repositories |" in done.output
    own = CliRunner().invoke(scale_costs.app, [*options, "--rows-per-second", "80", "--out", str(results / "own.json")])
    assert own.exit_code == 0
    assert json.loads((results / "own.json").read_text())["facts"]["rows_per_second"] == 80


def test_missing_figures_name_the_benchmark_that_measures_them(tiny, results):
    _, folder, _, _, _ = tiny
    (results / "scaling.json").unlink()
    options = ["--run", str(folder / "run"), "--results", str(results)]
    with pytest.raises(InputError, match=r"scaling\.json: no such file.*python -m benchmarks\.scaling"):
        CliRunner().invoke(scale_costs.app, options, catch_exceptions=False)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, "count", "-"),
        (1234567.4, "count", "1,234,567"),
        (0.5, "hours", "30 min"),
        (12.345, "hours", "12.3"),
        (1234.5, "hours", "1,234"),
        (134e6, "bytes", "134 MB"),
        (12, "bytes", "12 B"),
        (4e16, "bytes", "4e+04 TB"),
    ],
)
def test_numbers_for_people(value, form, text):
    assert scale_costs.cell(value, form) == text
