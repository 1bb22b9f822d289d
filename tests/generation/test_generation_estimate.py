from collections import Counter
from pathlib import Path

import pytest
from test_generation_dry_run import few_shot_recipe, recipe_of
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import plan as estimate
from generation import run
from generation.backends.registry import load_writer
from generation.pipeline.job import generate
from generation.plan import load_prompts, survey

X1X2 = Path("recipes/demo/sts-dino-x1x2.yaml")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("estimate") / "lm")


def shard(**changes) -> estimate.Pilot:
    label = Counter({"1": 96})
    return estimate.Pilot(
        **{
            "firsts": 64,
            "texts": 400,
            "seconds": 12.0,
            "full": 8.0,
            "full_texts": 250,
            "raw": 192,
            "kept": label,
            "asked": Counter({"1": 128}),
            **changes,
        }
    )


def test_a_larger_shard_drains_once():
    pilot = shard()  # 250 texts in 8 s with a full batch of 150, which then drains in 4 s
    assert pilot.shard_seconds(64) == pytest.approx(12)
    assert pilot.shard_seconds(128) == pytest.approx(8 * 650 / 250 + 4)
    assert pilot.shard_seconds(16) == pytest.approx(3)  # all in the batch at once


def test_a_pilot_that_never_filled_the_batch_grows_with_the_texts():
    assert shard(full=0.0, full_texts=0).shard_seconds(128) == pytest.approx(24)


def test_prediction_adds_shards_variants_and_first_texts(model):
    recipe = recipe_of(model, "shard_size=64")
    labels = {"kept": Counter({"1": 96, "0.5": 64, "0": 32}), "asked": Counter({"1": 128, "0.5": 128, "0": 128})}
    found = estimate.predict(recipe, 160, {None: shard(**labels)}, first_seconds=5.0)
    assert found.seconds == pytest.approx(5 + 2 * 12 + shard().shard_seconds(32))
    assert found.rows == 192 * 160 / 64
    assert found.keep_rate == {"1": 0.75, "0.5": 0.5, "0": 0.25}
    assert "keep rate of label 0.5: 50.0%" in str(found)


@pytest.mark.slow("writes a run and its pilot")
def test_the_pilot_is_the_run_in_small(model, tmp_path):
    """With as many first texts as the pilot takes, the pilot asks for exactly what the run asks for."""
    recipe = recipe_of(model, "source.limit=64", "decoding.max_new_tokens=8", "shard_size=64")
    found = estimate.estimate(recipe)
    counts = generate(recipe, tmp_path / "run", "a test").counts
    assert found.keep_rate == {name: row["kept"] / row["requested"] for name, row in counts["by_label"].items()}
    assert found.rows == counts["splits"]["raw"]["train"]


def test_every_shot_count_has_its_pilot(model, tmp_path):
    recipe = few_shot_recipe(tmp_path, model)
    found = estimate.estimate(recipe)
    assert found.first_texts == 7
    assert set(found.keep_rate) == {"entailment", "contradiction"}
    assert found.seconds > found.pilot_seconds / 2


def test_first_texts_of_the_model_count_in_the_time(model):
    recipe = recipe_of(model, "source.limit=200", "decoding.max_new_tokens=8", path=X1X2)
    ticks = iter(range(10_000))
    found = estimate.estimate(recipe, clock=lambda: float(next(ticks)))
    assert found.first_texts == 200
    whole = estimate.predict(recipe, 200, {None: shard(kept=Counter(), asked=Counter({"1": 1, "0.5": 1, "0": 1}))}, 3.0)
    assert whole.seconds == pytest.approx(3 + shard().shard_seconds(200))


def test_the_watch_sees_the_queue_run_empty(model):
    recipe = recipe_of(model, "decoding.max_new_tokens=6", "decoding.batch_size=24")
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    firsts = list(survey(recipe, writer.count_tokens).sample[:32])
    ticks = iter(range(100_000))
    found = estimate.pilot(writer, prompts, recipe, firsts, recipe.variants[0], lambda: float(next(ticks)))
    assert 0 < found.full < found.seconds
    assert 0 < found.full_texts < found.texts
    assert found.texts - found.full_texts <= 24 + 1
    assert found.texts == found.asked.total()


def test_the_command_writes_nothing(model, tmp_path):
    options = ["recipes/demo/sts-dino-x2.yaml", "--set", f"model.path={model}", "--set", "decoding.max_new_tokens=4"]
    result = CliRunner().invoke(run.app, [*options, "--limit", "64", "--out", str(tmp_path / "run"), "--estimate"])
    assert result.exit_code == 0, result.output
    assert "rows/s: " in result.stdout
    assert "hours" in result.stdout
    assert not list(tmp_path.iterdir())
