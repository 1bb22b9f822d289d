from pathlib import Path

import pytest
from tiny_lm import make_lm
from typer.testing import CliRunner

from generation import plan as plan
from generation import run
from hub.contract.recipe import DatasetRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError

STS, X1X2 = Path("recipes/demo/sts-dino-x2.yaml"), Path("recipes/demo/sts-dino-x1x2.yaml")
TRIPLE = 'Entails "<X1>": "', 'Contradicts "<X1>": "'


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_lm(tmp_path_factory.mktemp("plan") / "lm")


def recipe_of(model: Path, *settings: str, path: Path = STS) -> DatasetRecipe:
    return load_recipe(path, DatasetRecipe, [f"model.path={model}", *settings])


def few_shot_recipe(folder: Path, model: Path, *settings: str) -> DatasetRecipe:
    examples = "premise\thypothesis\tlabel\n" + "".join(
        f"Premise {n}.\t{label} of {n}.\t{value}\n"
        for n in range(30)
        for label, value in (("Entailed", 0), ("Contrary", 2))
    )
    (folder / "nli.tsv").write_text(examples, encoding="utf-8")
    (folder / "x1.txt").write_text("".join(f"First text {n}.\n" for n in range(7)), encoding="utf-8")
    (folder / "recipe.yaml").write_text(
        f"""
kind: dataset
name: tiny-nli
version: 1.0.0
schema: nli
pretty_name: Tiny
license: cc0-1.0
source: {{kind: file, path: {folder}/x1.txt, description: made here, license: cc0-1.0}}
model: {{path: {model}, license: cc0-1.0}}
labels:
  - {{name: entailment, instruction: '{TRIPLE[0]}'}}
  - {{name: contradiction, instruction: '{TRIPLE[1]}'}}
few_shot:
  shots: [0, 2]
  sets: 3
  examples:
    {{kind: file, path: {folder}/nli.tsv, labels: {{entailment: "0", contradiction: "2"}},
      description: x, license: cc0-1.0}}
decoding: {{max_new_tokens: 8, samples: 1}}
shard_size: 4
""",
        encoding="utf-8",
    )
    return load_recipe(folder / "recipe.yaml", DatasetRecipe, list(settings))


def test_five_prompts_of_each_label_and_all_counts(model):
    text = plan.plan(recipe_of(model, "source.limit=30", "shard_size=8"), Path("out/run"))
    assert text.count("\n--- ") == 15
    assert 'Task: Write two sentences that mean the same thing.\nSentence 1: "' in text
    assert "first texts: 30 (passed over: none)" in text
    assert "texts: 180 wanted, 60 of each label; at most 450 attempts" in text
    assert "shards: 4 (3 of 8 and one of 6 first texts; 48 wanted texts in a whole one)" in text
    assert "data/raw/: 4 shards" in text
    assert "makes one, atomic, of all files" in text


def test_files_are_counted_and_many_are_a_warning_that_says_what_to_do(model):
    """x1x2 without its source read: files depend on the recipe and the number of first texts alone."""
    small = plan.plan(recipe_of(model, "source.limit=1600", path=X1X2), Path("out"))
    assert "files in all, 4 in the fullest folder, data/raw/" in small and "warning" not in small
    recipe = recipe_of(model, "source.limit=4000000", "shard_size=400", path=X1X2)
    text = plan.plan(recipe, Path("out"))
    assert "10000 in the fullest folder" in text
    assert "warning: the Hub recommends fewer than 100000 files in a repository and 10000 in a folder" in text
    advised = int(text.partition("take shard_size: ")[2].split()[0])
    assert "warning" not in plan.plan(recipe.model_copy(update={"shard_size": advised}), Path("out"))
    huge = recipe_of(model, "source.limit=10000000000", "shard_size=400", path=X1X2)
    assert "divide the source among several recipes" in plan.plan(huge, Path("out"))


def test_token_counts_are_of_prompts_and_counter_prompts(model):
    recipe = recipe_of(model, "source.limit=3")
    text = plan.plan(recipe, Path("out"))
    writer, _ = plan.load_preview(recipe.model)
    prompts, firsts = plan.load_prompts(recipe), plan.survey(recipe, writer.count_tokens).sample
    label = recipe.labels[1]
    asked = [prompts.of(label, first.text, recipe.variants[0]) for first in firsts]
    counts = sorted(writer.count_tokens(prompt) for own, counters in asked for prompt in (own, *counters))
    assert len(counts) == 6
    assert f"=== label 0.5: {counts[0]} / {(counts[2] + counts[3]) / 2:g} / {counts[-1]} prompt tokens" in text


def test_few_shot_variants_are_shown_with_their_examples(model, tmp_path):
    text = plan.plan(few_shot_recipe(tmp_path, model), tmp_path / "run")
    assert "=== label entailment, 0 examples:" in text
    assert "=== label contradiction, 2 examples:" in text
    assert "example set 2" in text
    assert "shards: 8 (1 of 4 and one of 3 first texts, for each of 4 variants;" in text
    assert "data/raw-2shot/: 6 shards" in text
    assert "data/raw-0shot/: 2 shards" in text


def test_a_first_text_beyond_the_context_is_named_by_its_row_or_passed_over(model, tmp_path):
    (tmp_path / "x1.txt").write_text("A dog.\n" + "word " * 300, encoding="utf-8")
    settings = (f"source.path={tmp_path}/x1.txt", "source.columns=[]")
    with pytest.raises(InputError, match=r"x1\.txt: row 000001 .*longer than the model's context") as caught:
        plan.plan(recipe_of(model, *settings), tmp_path / "run")
    assert "postprocess.reject" in str(caught.value)
    passing = recipe_of(model, *settings, "postprocess.reject=[too_long]")
    assert "first texts: 1 (passed over: 1 too_long)" in plan.plan(passing, tmp_path / "run")


def test_prompts_that_leave_no_room_for_any_first_text_are_told_as_such(model, tmp_path):
    (tmp_path / "x1.txt").write_text("A dog.\n", encoding="utf-8")
    settings = (f"source.path={tmp_path}/x1.txt", "source.columns=[]", "decoding.max_new_tokens=250")
    with pytest.raises(InputError, match=r"the longest prompt: .*256 of the model's context"):
        plan.plan(recipe_of(model, *settings, "postprocess.reject=[too_long]"), tmp_path / "run")


def test_first_texts_that_the_model_writes_are_planned_too(model):
    text = plan.plan(recipe_of(model, "source.limit=1600", path=X1X2), Path("out"))
    assert "first texts: 1600, written by the model after:" in text
    assert "data/sources/: written before the shards" in text


def test_control_characters_are_written_as_codes():
    assert plan.visible("a\x1b[2J\u202eb\nc\t") == "a\\x1b[2J\\u202eb\nc\\t"


def test_the_sample_spreads_over_the_source(model):
    recipe = recipe_of(model)
    firsts = plan.survey(recipe, plan.load_preview(recipe.model)[0].count_tokens)
    numbers = [int(first.source_id) for first in firsts.sample]
    assert firsts.total == 1200
    assert len(numbers) == plan.SAMPLE
    assert numbers == sorted(set(numbers))
    assert 0.35 < sum(number < 600 for number in numbers) / plan.SAMPLE < 0.65


def test_the_command_writes_nothing(model, tmp_path):
    options = [str(STS), "--set", f"model.path={model}", "--limit", "5", "--out", str(tmp_path / "run"), "--dry-run"]
    result = CliRunner().invoke(run.app, options)
    assert result.exit_code == 0, result.output
    assert "5 (passed over: none)" in result.stdout
    assert not list(tmp_path.iterdir())
    both = CliRunner().invoke(run.app, [*options, "--estimate"])
    assert isinstance(both.exception, InputError)
