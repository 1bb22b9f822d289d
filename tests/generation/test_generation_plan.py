"""--dry-run and --estimate: prompts, counts, files and warnings; the pilot and its prediction. Nothing is written."""

from collections import Counter
from pathlib import Path

import pytest
from command_outcomes import outcome_of
from tiny_lm import make_lm

from generation import plan, run
from generation.backends.registry import load_preview, load_writer
from generation.inputs.prompts import load_prompts
from generation.pipeline.job import generate
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

STS, X1X2 = Path("recipes/demo/sts-dino-x2.yaml"), Path("recipes/demo/sts-dino-x1x2.yaml")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("plan") / "lm")


def recipe_of(model: Path, *settings: str, path: Path = STS) -> DatasetRecipe:
    return load_recipe(path, DatasetRecipe, [f"model.path={model}", *settings])


def few_shot_recipe(folder: Path, model: Path) -> DatasetRecipe:
    values = (("Entailed", 0), ("Contrary", 2))
    lines = [f"Premise {n}.\t{label} of {n}.\t{value}" for n in range(30) for label, value in values]
    (folder / "nli.tsv").write_text("\n".join(["premise\thypothesis\tlabel", *lines]) + "\n", encoding="utf-8")
    (folder / "x1.txt").write_text("".join(f"First text {n}.\n" for n in range(7)), encoding="utf-8")
    told = {"description": "x", "license": "cc0-1.0"}
    names = {"entailment": ("0", "Entails"), "contradiction": ("2", "Contradicts")}
    examples = {"kind": "file", "path": f"{folder}/nli.tsv", "labels": {n: v for n, (v, _) in names.items()}, **told}
    tree = {
        "name": "tiny-nli", "version": "1.0.0", "schema": "nli", "pretty_name": "Tiny", "license": "cc0-1.0",
        "source": {"kind": "file", "path": f"{folder}/x1.txt", **told},
        "model": {"path": str(model), "license": "cc0-1.0"},
        "labels": [{"name": name, "instruction": f'{word} "<X1>": "'} for name, (_, word) in names.items()],
        "few_shot": {"shots": [0, 2], "sets": 3, "examples": examples},
        "decoding": {"max_new_tokens": 8, "samples": 1}, "shard_size": 4,
    }  # fmt: skip
    return DatasetRecipe.model_validate({"kind": "dataset", **tree})


def test_five_prompts_of_each_label_and_all_counts(model):
    recipe = recipe_of(model, "source.limit=30", "shard_size=8")
    text = plan.plan(recipe, Path("out/run"))
    assert text.count("\n--- ") == 15
    assert 'Task: Write two sentences that mean the same thing.\nSentence 1: "' in text
    assert "first texts: 30 (passed over: none)" in text
    assert "texts: 180 wanted, 60 of each label; at most 450 attempts" in text
    assert "shards: 4 (3 of 8 and one of 6 first texts; 48 wanted texts in a whole one)" in text
    assert "data/raw/: 4 shards" in text and "makes one, atomic, of all files" in text
    writer, _ = load_preview(recipe.model)
    prompts, firsts = load_prompts(recipe), plan.survey(recipe, writer.count_tokens).sample
    asked = [prompts.of(recipe.labels[1], first.text, recipe.variants[0]) for first in firsts]
    counts = sorted(writer.count_tokens(prompt) for own, counters in asked for prompt in (own, *counters))
    middle = (counts[29] + counts[30]) / 2
    assert f"=== label 0.5: {counts[0]} / {middle:g} / {counts[-1]} prompt tokens (least / median / most of 60" in text


def test_files_are_counted_and_too_many_are_a_warning_with_advice(model):
    """Files depend on the recipe and the number of source sentences alone; the model writes these."""
    small = plan.plan(recipe_of(model, "source.limit=1600", path=X1X2), Path("out"))
    assert (
        "first texts: 1600, written by the model after:" in small
        and "data/sources/: written before the shards" in small
    )
    assert "files in all, 4 in the fullest folder, data/raw/" in small and "warning" not in small
    recipe = recipe_of(model, "source.limit=4000000", "shard_size=400", path=X1X2)
    text = plan.plan(recipe, Path("out"))
    assert "10000 in the fullest folder" in text
    assert "warning: the Hub recommends fewer than 100000 files in a repository and 10000 in a folder" in text
    advised = int(text.partition("take shard_size: ")[2].split()[0])
    assert "warning" not in plan.plan(recipe.model_copy(update={"shard_size": advised}), Path("out"))
    huge = recipe_of(model, "source.limit=10000000000", "shard_size=400", path=X1X2)
    assert "divide the source among several recipes" in plan.plan(huge, Path("out"))


def test_few_shot_variants_are_shown_with_their_examples_and_have_pilots(model, tmp_path):
    recipe = few_shot_recipe(tmp_path, model)
    text = plan.plan(recipe, tmp_path / "run")
    assert "=== label entailment, 0 examples:" in text and "=== label contradiction, 2 examples:" in text
    assert "example set 2" in text and "data/raw-2shot/: 6 shards" in text and "data/raw-0shot/: 2 shards" in text
    assert "shards: 8 (1 of 4 and one of 3 first texts, for each of 4 variants;" in text
    found = plan.estimate(recipe)
    assert found.first_texts == 7 and set(found.keep_rate) == {"entailment", "contradiction"}
    assert found.seconds > found.pilot_seconds / 2


def test_source_sentences_beyond_the_context_are_named_or_skipped(model, tmp_path):
    (tmp_path / "x1.txt").write_text("A \u202edog.\n" + "word " * 300, encoding="utf-8")
    settings = (f"source.path={tmp_path}/x1.txt", "source.columns=[]")
    with pytest.raises(InputError, match=r"x1\.txt: row 000001 .*longer than the model's context.*postprocess.reject"):
        plan.plan(recipe_of(model, *settings), tmp_path / "run")
    skipping = [*settings, "postprocess.reject=[too_long]"]
    text = plan.plan(recipe_of(model, *skipping), tmp_path / "run")
    assert "first texts: 1 (passed over: 1 too_long)" in text and "A dog." in text and "\u202e" not in text
    with pytest.raises(InputError, match=r"the longest prompt: .*256 of the model's context"):
        plan.plan(recipe_of(model, *skipping, "decoding.max_new_tokens=250"), tmp_path / "run")


def test_the_sample_spreads_over_the_source(model):
    recipe = recipe_of(model)
    firsts = plan.survey(recipe, load_preview(recipe.model)[0].count_tokens)
    numbers = [int(first.source_id) for first in firsts.sample]
    assert firsts.total == 1200 and len(numbers) == plan.SAMPLE and numbers == sorted(set(numbers))
    assert 0.35 < sum(number < 600 for number in numbers) / plan.SAMPLE < 0.65


def shard(**changes) -> plan.Pilot:
    taken = {"firsts": 64, "texts": 400, "seconds": 12.0, "full": 8.0, "full_texts": 250, "raw": 192}
    return plan.Pilot(**{**taken, "kept": Counter({"1": 96}), "asked": Counter({"1": 128}), **changes})


def test_a_larger_shard_drains_once_and_a_prediction_adds_shards(model):
    pilot = shard()  # 250 texts in 8 s with a full batch of 150, which then drains in 4 s
    assert pilot.shard_seconds(64) == pytest.approx(12)
    assert pilot.shard_seconds(128) == pytest.approx(8 * 650 / 250 + 4)
    assert pilot.shard_seconds(16) == pytest.approx(3)  # all in the batch at once
    assert shard(full=0.0, full_texts=0).shard_seconds(128) == pytest.approx(24)  # never a full batch
    labels = {"kept": Counter({"1": 96, "0.5": 64, "0": 32}), "asked": Counter({"1": 128, "0.5": 128, "0": 128})}
    found = plan.predict(recipe_of(model, "shard_size=64"), 160, {None: shard(**labels)}, first_seconds=5.0)
    assert found.seconds == pytest.approx(5 + 2 * 12 + pilot.shard_seconds(32))
    assert found.rows == 192 * 160 / 64 and found.keep_rate == {"1": 0.75, "0.5": 0.5, "0": 0.25}
    assert "keep rate of label 0.5: 50.0%" in str(found)


@pytest.mark.slow("writes a run and its pilot")
def test_the_pilot_is_the_run_in_small(model, tmp_path):
    """With as many source sentences as the pilot takes, the pilot asks for exactly what the run asks for."""
    recipe = recipe_of(model, "source.limit=64", "decoding.max_new_tokens=8", "shard_size=64")
    found = plan.estimate(recipe)
    counts = generate(recipe, tmp_path / "run", "a test").counts
    assert found.keep_rate == {name: row["kept"] / row["requested"] for name, row in counts["by_label"].items()}
    assert found.rows == counts["splits"]["raw"]["train"]


def test_the_pilot_sees_the_queue_run_empty_and_counts_generated_source_sentences(model):
    recipe = recipe_of(model, "decoding.max_new_tokens=6", "decoding.batch_size=24")
    writer, prompts = load_writer(recipe.model), load_prompts(recipe)
    firsts, ticks = list(plan.survey(recipe, writer.count_tokens).sample[:32]), iter(range(100_000))
    found = plan.pilot(writer, prompts, recipe, firsts, recipe.variants[0], lambda: float(next(ticks)))
    assert 0 < found.full < found.seconds and 0 < found.full_texts < found.texts == found.asked.total()
    assert found.texts - found.full_texts <= 24 + 1
    generated = recipe_of(model, "source.limit=200", "decoding.max_new_tokens=8", path=X1X2)
    assert plan.estimate(generated, clock=lambda: float(next(ticks))).first_texts == 200


def test_the_commands_write_nothing(model, tmp_path):
    words = [STS, "--set", f"model.path={model}", "--set", "decoding.max_new_tokens=4", "--out", tmp_path / "run"]
    planned, estimated = (
        outcome_of(run, *words, "--limit", 5, "--dry-run"),
        outcome_of(run, *words, "--limit", 64, "--estimate"),
    )
    assert planned.code == 0 and "5 (passed over: none)" in planned.printed
    assert estimated.code == 0 and "rows/s: " in estimated.printed and "hours" in estimated.printed
    assert outcome_of(run, *words, "--dry-run", "--estimate").code == 2 and not list(tmp_path.iterdir())
