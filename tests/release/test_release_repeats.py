"""sts_dino.release.repeats: several trainings in one command, by the real stages; bad input is one
line.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forked_python import python_in
from training_inputs import write_recipe

from sts_dino.eval.runs.job import EvaluationOptions
from sts_dino.hub.contract.measured import Repeats, read_repeats
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.contract.results import read_results, write_results
from sts_dino.hub.contract.run_dir import require_complete
from sts_dino.hub.errors import InputError
from sts_dino.release.options import RecipeOverrides
from sts_dino.release.repeats import (
    RepeatOptions,
    format_repeats,
    is_scored,
    keep_shared_scores,
    parse_range,
    plan_series,
)

STSB = Path(__file__).parents[2] / "assets" / "stsb"
EVALUATION = [{"task": "stsb/cosine", "split": "validation", "path": str(STSB / "sts-dev.csv")}]


def small_recipe(folder, **changes):
    """A static encoder that trains in a second."""
    arguments = {"learning_rate": "1e-2", "num_train_epochs": "1", "logging_steps": "4"}
    settings = {"evaluation": EVALUATION, "bootstrap_samples": "20", "arguments": arguments}
    return write_recipe(folder, **settings | changes)


def repeat(recipe, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        python_in(environment),
        "-m",
        "sts_dino",
        "repeat",
        str(recipe),
        "--set",
        "base.modules=static",
    ]
    command += options
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The recipe's own run, then two seeds of which the second finds its folder taken; then the
    same command again.
    """
    folder = tmp_path_factory.mktemp("repeats")
    recipe, out = small_recipe(folder), folder / "models" / "tiny.repeats"
    foreign = out / "seed-43" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("somebody's")
    options = ("--seeds", "42,43", "--out", str(out))
    failed = repeat(recipe, *options)
    first = {path.name: path.stat().st_mtime_ns for path in (out / "seed-42").iterdir()}
    report_after_failure = out.with_name("tiny.repeats.json").exists()
    shutil.rmtree(foreign.parent)
    shutil.copytree(out / "seed-42", out.with_name("tiny"))  # the recipe's own run: its seed is 42
    again = repeat(recipe, *options)
    return {
        "out": out,
        "failed": failed,
        "again": again,
        "first": first,
        "early_report": report_after_failure,
    }


@pytest.mark.slow("trains and scores a recipe several times")
def test_a_failing_run_is_named_and_the_same_command_resumes_without_repeating_finished_runs(story):
    failed, again, model = story["failed"], story["again"], "model.safetensors"
    assert failed.returncode == 2 and "is not empty and not a run directory" in failed.stderr
    assert "seed-43: seed 43: train failed" in failed.stderr.strip().splitlines()[-1]
    assert "Traceback" not in failed.stderr and "results.json" in story["first"]
    assert not story["early_report"]  # no mean over fewer runs than asked for
    assert again.returncode == 0 and "seed-42: already finished" in again.stderr, again.stderr
    now = {path.name: path.stat().st_mtime_ns for path in (story["out"] / "seed-42").iterdir()}
    assert all(now[name] == story["first"][name] for name in (model, "results.json"))


@pytest.mark.slow("trains and scores a recipe several times")
def test_the_report_holds_what_each_run_scored_and_the_recipes_own_run_gets_it_for_its_card(story):
    out = story["out"]
    repeats = read_repeats(out.with_name("tiny.repeats.json"))
    assert (repeats.model, repeats.over, [run.value for run in repeats.runs]) == (
        "tiny",
        "seed",
        [42, 43],
    )
    for run in repeats.runs:
        scored = read_results(out / f"seed-{run.value}" / "results.json")
        assert run.fingerprint == scored.fingerprint
        assert [score.main_score for score in run.scores] == [
            score.main_score for score in scored.scores
        ]
    assert repeats.runs[0].fingerprint != repeats.runs[1].fingerprint
    # the seed decides the order of the batches
    assert repeats.runs[0].scores != repeats.runs[1].scores
    line, mean, sd = (
        story["again"].stdout.splitlines()[-1],
        repeats.summaries[0].mean,
        repeats.summaries[0].sd,
    )
    assert (
        line.split()[:3] == ["stsb/cosine", "validation", "2"] and f"{mean:.2f} ± {sd:.2f}" in line
    )
    assert (
        "±"
        not in format_repeats(
            Repeats(model="tiny", over="seed", runs=repeats.runs[:1])
        ).splitlines()[1]
    )
    assert read_repeats(out.with_name("tiny") / "repeats.json") == repeats


def test_numbers_and_ranges():
    for text, found in (
        ("42", (42,)),
        ("42,43,44", (42, 43, 44)),
        ("0-3", (0, 1, 2, 3)),
        ("7, 0-1", (7, 0, 1)),
    ):
        assert parse_range(text, "--seeds") == found
    for text in ("", "1,,2", "-1", "1.5", "3-1", "٣"):
        with pytest.raises(InputError, match="is not a number or ascending range"):
            parse_range(text, "--seeds")
    with pytest.raises(InputError, match="42 stands twice"):
        parse_range("42,43,42", "--seeds")
    assert len(parse_range("1-1000", "--seeds")) == 1000
    for text in ("0-1000", "0-999,2000-2001", "0-999999999"):
        with pytest.raises(InputError, match="names more than 1,000 runs"):
            parse_range(text, "--seeds")


def test_example_sets_take_the_place_of_the_recipes(tmp_path):
    data = {
        "path": str(tmp_path / "pairs"),
        "config": "postprocessed",
        "example_type": "sts",
        "loss": "CoSENTLoss",
    }
    path = small_recipe(tmp_path, datasets=[data, {**data, "example_set": "0"}])
    options, overrides = (
        RepeatOptions(None, "0-2", tmp_path / "out"),
        RecipeOverrides(5, ["version=0.2.0"]),
    )
    series = plan_series(path, options, overrides, EvaluationOptions())
    assert series.values == (0, 1, 2)
    assert series.locate_run(2) == (tmp_path / "out" / "example-set-2").resolve()
    settings = series.format_words(2)[1::2]
    assert settings == ["version=0.2.0", "datasets.1.example_set=2"]
    found = load_recipe(path, ModelRecipe, settings)
    assert [item.example_set for item in found.datasets] == [None, 2]


@pytest.mark.slow("trains and scores a recipe several times")
def test_only_whole_scores_of_these_weights_count_and_only_shared_ones_have_a_spread(
    story, tmp_path, capsys
):
    directory = story["out"] / "seed-42"
    manifest, results = require_complete(directory), read_results(directory / "results.json")
    folds = results.scores[0].model_copy(update={"task": "mr/senteval", "split": "all"})
    write_results(
        tmp_path / "results.json", results.model_copy(update={"scores": (folds, *results.scores)})
    )

    def scored(*tasks, **changes):
        entries = [
            {"task": task, "split": "validation" if task == "stsb/cosine" else "test"}
            for task in tasks
        ]
        recipe = load_recipe(small_recipe(tmp_path, evaluation=entries), ModelRecipe)
        return is_scored(tmp_path, manifest.model_copy(update=changes), recipe)

    assert scored("stsb/cosine") and scored("mr/senteval") and scored("stsb/cosine", "mr/senteval")
    assert not scored("stsb/cosine", "cr/senteval")
    assert not scored("transfer")  # only the evaluation resolves a group
    assert not scored("stsb/cosine", fingerprint="of other weights")
    first, second = read_repeats(story["out"].with_name("tiny.repeats.json")).runs
    more = second.scores[0].model_copy(update={"task": "mr/senteval", "split": "all"})
    assert keep_shared_scores(
        [first, second.model_copy(update={"scores": (more, *second.scores)})]
    ) == [
        first,
        second,
    ]
    assert "no spread for scores that not every run has: mr/senteval all" in capsys.readouterr().err
    assert keep_shared_scores([first, second]) == [first, second] and not capsys.readouterr().err
