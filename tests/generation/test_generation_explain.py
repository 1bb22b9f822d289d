import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from reference_decoding import requests
from seeded_writer import rows_of
from tiny_lm import make_family
from typer.testing import CliRunner

from sts_dino.generation import explain
from sts_dino.generation.backends.trace import Tracer
from sts_dino.generation.pipeline.job import generate
from sts_dino.hub.contract.recipe import (
    DatasetRecipe,
    DecodingParameters,
    Examples,
    FewShot,
    LanguageModel,
    Variant,
)
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError, RunError

DEMO = Path("recipes/demo/sts-dino-x2.yaml")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the demo's recipe, small and in two shards."""
    folder = tmp_path_factory.mktemp("explain")
    recipe = load_recipe(
        DEMO, DatasetRecipe, ["source.limit=4", "shard_size=3", "decoding.batch_size=8"]
    )
    generate(recipe, folder / "run", "a test")
    return folder / "run"


def test_every_row_is_written_again_identically_and_its_steps_are_the_formula(run):
    for config in ("raw", "rejected"):
        for row in rows_of(run, config)[:2]:
            found = explain.explain_row(run, f"{row['source_id']}/{row['target']}/{row['attempt']}")
            assert found.differences == []
            assert found.row["text2"] == row["text2"] == found.traced_text == found.regenerated.text
    row = next(row for row in rows_of(run, "raw") if row["target"] == "0")
    steps = explain.explain_row(run, f"{row['source_id']}/0/{row['attempt']}").steps
    assert any(step.delta < 0 and step.alpha < 1 for step in steps)
    for step in steps:
        assert step.delta == pytest.approx(step.own - step.counter)
        assert step.alpha == pytest.approx(max(math.exp(100 * min(step.delta, 0)), 0.01), rel=1e-3)
        assert 0 < step.debiased <= step.sampled <= 1 + 1e-6
    mean = sum(math.log(step.own) for step in steps) / len(steps)
    assert mean == pytest.approx(row["log_prob"], rel=1e-4)


@pytest.mark.parametrize("name", ["falcon-mamba", "bamba"])
def test_a_model_with_a_cache_argument_or_positions_of_its_own_is_traced(name, tmp_path):
    make_family(tmp_path, name)
    tracer = Tracer(LanguageModel(path=str(tmp_path), dtype="float32", license="unknown"))
    settings = DecodingParameters(max_new_tokens=12)
    traces = [tracer.trace(request, settings) for request in requests(3)]
    for request, (steps, text) in zip(requests(3), traces, strict=True):
        completion = tracer.regenerate(request, settings, None, ())
        mean = sum(math.log(step.own) for step in steps) / len(steps)
        assert text == completion.text and mean == pytest.approx(completion.log_prob, rel=1e-3)


def test_the_command_prints_prompts_and_tokens_and_says_identical(run):
    row = next(row for row in rows_of(run, "raw") if row["target"] == "0")
    name = f"{row['source_id']}/0/{row['attempt']}"
    result = CliRunner().invoke(explain.app, [str(run), name])
    assert result.exit_code == 0, result.output
    assert (
        f'completely different topics.\nSentence 1: "{row["text1"]}"\nSentence 2: "'
        in result.stdout
    )
    assert f'the same thing.\nSentence 1: "{row["text1"]}"\nSentence 2: "' in result.stdout
    assert "identical" in result.stderr
    machine = json.loads(CliRunner().invoke(explain.app, [str(run), name, "--json"]).stdout)
    assert machine["identical"] is True
    assert machine["row"]["seed"] == row["seed"]


def test_control_characters_of_a_model_do_not_reach_the_terminal(run):
    row = rows_of(run, "raw")[0]
    found = explain.explain_row(run, f"{row['source_id']}/{row['target']}/{row['attempt']}")
    evil = "\x1b[2J\u202e\x07\r"
    step = found.steps[0].__class__(**{**found.steps[0].__dict__, "token": evil})
    texts = {"text2": evil}
    shown = str(
        explain.Explanation(
            found.row_id, "raw", texts, found.request, [step], evil, found.regenerated
        )
    )
    assert not set(shown) & set(evil) - set("[2J")


def test_a_row_that_comes_out_otherwise_is_an_error(run, tmp_path):
    changed = tmp_path / "run"
    shutil.copytree(run, changed)
    row, path = rows_of(run, "raw")[0], sorted(changed.glob("data/raw/*.parquet"))[0]
    table = pq.read_table(path)
    forged = [
        {**entry, "text2": "forged"} if i == 0 else entry
        for i, entry in enumerate(table.to_pylist())
    ]
    pq.write_table(table.from_pylist(forged, schema=table.schema), path)
    name = f"{row['source_id']}/{row['target']}/{row['attempt']}"
    result = CliRunner().invoke(explain.app, [str(changed), name])
    assert isinstance(result.exception, RunError)
    assert "cannot be generated again: text2 was 'forged'" in str(result.exception)


def test_a_damaged_shard_is_named_when_the_first_row_is_looked_up(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    assert explain.find_first_row_id(copy) == explain.find_first_row_id(run)
    shard = min(copy.glob("data/raw*/*.parquet"))
    shard.write_bytes(shard.read_bytes()[:40])
    with pytest.raises(InputError, match=rf"{shard.name}.*"):
        explain.find_first_row_id(copy)
    shard.unlink()
    with pytest.raises(InputError, match=rf"{shard.name}: no such file"):
        explain.find_first_row_id(copy)


def test_another_seed_is_blamed_on_the_recipe_and_not_on_a_batch(run):
    row_id = explain.find_first_row_id(run)
    with pytest.raises(
        RunError, match=r"its seed was .*; the recipe of the run decides it"
    ) as said:
        explain.explain_row(run, row_id, ["seed=99"])
    assert "batch" not in str(said.value)


def test_a_label_may_hold_the_separator_and_few_shot_rows_name_their_set():
    renamed = ["labels.0.name=a/b", "labels.1.counter_labels=[]", "labels.2.counter_labels=[]"]
    sts = load_recipe(DEMO, DatasetRecipe, renamed)
    assert explain.parse_row_id("x/000012/a/b/3", sts) == explain.RowId(
        "x/000012", "a/b", 3, Variant(None, 0)
    )
    examples = Examples(
        kind="file",
        path="x.tsv",
        labels={"1": "1", "0.5": "2", "0": "3"},
        description="",
        license="",
    )
    shown = {"few_shot": FewShot(shots=(0, 5), sets=2, examples=examples)}
    few_shot = load_recipe(DEMO, DatasetRecipe).model_copy(update=shown)
    row_id = explain.parse_row_id("000012/0.5/3/5shot-1", few_shot)
    assert row_id == explain.RowId("000012", "0.5", 3, Variant(5, 1))
    assert str(row_id) == "000012/0.5/3/5shot-1"
    with pytest.raises(InputError, match="0shot-0, 5shot-0, 5shot-1"):
        explain.parse_row_id("000012/0.5/3/5shot-2", few_shot)
    with pytest.raises(InputError, match="not found in this run"):
        explain.parse_row_id(f"000012/0.5/{2**63}", load_recipe(DEMO, DatasetRecipe))
