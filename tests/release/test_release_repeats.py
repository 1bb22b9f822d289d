"""release.repeats: several trainings in one command, by the real stages; bad input is one line."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from forked_python import python_in
from training_inputs import write_recipe

from hub.contract.measured import read_repeats, repeats_of
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.results import read_results, write_results
from hub.contract.run_dir import require_complete
from hub.errors import InputError
from release.options import EvaluationOptions, RecipeOverrides
from release.repeats import RepeatOptions, comparable, is_scored, parsed_range, planned, table, varied, without

STSB = Path(__file__).parents[2] / "assets" / "stsb"
EVALUATION = [{"task": "stsb/cosine", "split": "validation", "path": str(STSB / "sts-dev.csv")}]


def small_recipe(folder, **changes):
    """A static student that trains in a second."""
    arguments = {"learning_rate": "1e-2", "num_train_epochs": "1", "logging_steps": "4"}
    settings = {"evaluation": EVALUATION, "bootstrap_samples": "20", "arguments": arguments}
    path = write_recipe(folder, **settings | changes)
    return path


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
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The recipe's own run, then two seeds of which the second finds its folder taken; then the same command again."""
    folder = tmp_path_factory.mktemp("repeats")
    recipe, out = small_recipe(folder), folder / "models" / "tiny.repeats"
    stranger = out / "seed-43" / "notes.txt"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("somebody's")
    options = ("--seeds", "42,43", "--out", str(out))
    failed = repeat(recipe, *options)
    first = {path.name: path.stat().st_mtime_ns for path in (out / "seed-42").iterdir()}
    report_after_failure = out.with_name("tiny.repeats.json").exists()
    shutil.rmtree(stranger.parent)
    shutil.copytree(out / "seed-42", out.with_name("tiny"))  # the recipe's own run: its seed is 42
    again = repeat(recipe, *options)
    return {"out": out, "failed": failed, "again": again, "first": first, "early_report": report_after_failure}


@pytest.mark.slow("trains and scores a recipe several times")
def test_a_failing_run_is_named_and_the_others_are_kept(story):
    failed = story["failed"]
    assert failed.returncode == 2
    last = failed.stderr.strip().splitlines()[-1]
    assert "seed-43: seed 43: train failed" in last
    assert "is not empty and not a run directory" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "results.json" in story["first"]
    assert not story["early_report"]  # no mean over fewer runs than asked for


@pytest.mark.slow("trains and scores a recipe several times")
def test_the_same_command_goes_on_and_makes_nothing_twice(story):
    again = story["again"]
    assert again.returncode == 0, again.stderr
    assert "seed-42: already made" in again.stderr
    now = {path.name: path.stat().st_mtime_ns for path in (story["out"] / "seed-42").iterdir()}
    model = "model.safetensors"
    assert now[model] == story["first"][model]
    assert now["results.json"] == story["first"]["results.json"]


@pytest.mark.slow("trains and scores a recipe several times")
def test_the_report_holds_what_each_run_scored(story):
    out = story["out"]
    repeats = read_repeats(out.with_name("tiny.repeats.json"))
    assert (repeats.model, repeats.over, [run.value for run in repeats.runs]) == ("tiny", "seed", [42, 43])
    for run in repeats.runs:
        scored = read_results(out / f"seed-{run.value}" / "results.json")
        assert run.fingerprint == scored.fingerprint
        assert [score.main_score for score in run.scores] == [score.main_score for score in scored.scores]
    assert repeats.runs[0].fingerprint != repeats.runs[1].fingerprint
    assert repeats.runs[0].scores != repeats.runs[1].scores  # the seed decides the order of the batches
    line = story["again"].stdout.splitlines()[-1]
    mean, sd = repeats.summaries[0].mean, repeats.summaries[0].sd
    assert line.split()[:3] == ["stsb/cosine", "validation", "2"]
    assert f"{mean:.2f} ± {sd:.2f}" in line


@pytest.mark.slow("trains and scores a recipe several times")
def test_the_recipes_own_finished_run_gets_them_for_its_card(story):
    out = story["out"]
    assert read_repeats(out.with_name("tiny") / "repeats.json") == read_repeats(out.with_name("tiny.repeats.json"))


@pytest.mark.parametrize(
    ("text", "values"), [("42", (42,)), ("42,43,44", (42, 43, 44)), ("0-3", (0, 1, 2, 3)), ("7, 0-1", (7, 0, 1))]
)
def test_numbers_and_ranges(text, values):
    assert parsed_range(text, "--seeds") == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no number or range"),
        ("1,,2", "'' is no number or range"),
        ("-1", "'-1' is no number or range"),
        ("1.5", "'1.5' is no number or range"),
        ("3-1", "'3-1' is no number or range"),
        ("٣", "is no number or range"),
        ("42,43,42", "42 stands twice"),
        ("1-3,2", "2 stands twice"),
    ],
)
def test_other_numbers_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parsed_range(text, "--seeds")


def few_shot(folder):
    data = {"path": str(folder / "pairs"), "config": "postprocessed", "example_type": "sts", "loss": "CoSENTLoss"}
    return small_recipe(folder, datasets=[data, {**data, "example_set": "0"}])


def test_example_sets_take_the_place_of_the_recipes(tmp_path):
    path = few_shot(tmp_path)
    series = planned(
        path,
        RepeatOptions(None, "0-2", tmp_path / "out"),
        RecipeOverrides(5, ["version=0.2.0"]),
        EvaluationOptions(),
    )
    assert series.values == (0, 1, 2)
    assert series.directory(2) == (tmp_path / "out" / "example-set-2").resolve()
    settings = series.words(2)[1::2]
    assert settings == ["version=0.2.0", "datasets.1.example_set=2"]
    found = load_recipe(path, ModelRecipe, settings)
    assert [item.example_set for item in found.datasets] == [None, 2]
    assert without(found, series.keys) == without(load_recipe(path, ModelRecipe, ["version=0.2.0"]), series.keys)
    assert without(found, ("seed",)) != without(load_recipe(path, ModelRecipe, ["version=0.2.0"]), ("seed",))


def refused(path, message, seeds="1,2", example_sets=None, settings=()):
    with pytest.raises(InputError, match=message):
        planned(path, RepeatOptions(seeds, example_sets), RecipeOverrides(None, list(settings)), EvaluationOptions())


def test_bad_input_is_refused_before_anything_is_trained(tmp_path):
    path = small_recipe(tmp_path)
    refused(path, "give one of them", seeds=None)
    refused(path, "give one of them", example_sets="1")
    refused(path, "none of them is restricted to an example_set", seeds=None, example_sets="0-9")
    refused(path, "is what --seeds sets", settings=["seed=3"])
    refused(path, "names no task", settings=["evaluation=[]"])
    refused(path, "trains nothing", settings=["datasets=[]", "arguments={}"])
    refused(path, "unknown key", settings=["sed=3"])
    assert varied(load_recipe(path, ModelRecipe), "seed", path) == ("seed",)


@pytest.mark.slow("trains and scores a recipe several times")
def test_a_task_that_cuts_its_own_folds_is_found_and_further_scores_do_no_harm(story, tmp_path):
    directory = story["out"] / "seed-42"
    manifest, results = require_complete(directory), read_results(directory / "results.json")
    folds = results.scores[0].model_copy(update={"task": "mr/senteval", "split": "all"})
    write_results(tmp_path / "results.json", results.model_copy(update={"scores": (folds, *results.scores)}))

    def scored(*tasks, **changes):
        entries = [{"task": task, "split": "validation" if task == "stsb/cosine" else "test"} for task in tasks]
        recipe = load_recipe(small_recipe(tmp_path, evaluation=entries), ModelRecipe)
        return is_scored(tmp_path, manifest.model_copy(update=changes), recipe)

    assert scored("stsb/cosine") and scored("mr/senteval") and scored("stsb/cosine", "mr/senteval")
    assert not scored("stsb/cosine", "cr/senteval")
    assert not scored("transfer")  # what a group stands for only the evaluation knows
    assert not scored("stsb/cosine", fingerprint="of other weights")


@pytest.mark.slow("trains and scores a recipe several times")
def test_only_what_every_run_was_scored_on_has_a_spread(story, capsys):
    first, second = read_repeats(story["out"].with_name("tiny.repeats.json")).runs
    more = second.scores[0].model_copy(update={"task": "mr/senteval", "split": "all"})
    ahead = second.model_copy(update={"scores": (more, *second.scores)})
    assert comparable([first, ahead]) == [first, second]
    assert "no spread for scores that not every run has: mr/senteval all" in capsys.readouterr().err
    assert comparable([first, second]) == [first, second] and not capsys.readouterr().err


@pytest.mark.slow("trains and scores a recipe several times")
def test_a_single_run_is_shown_without_a_spread(story):
    repeats = read_repeats(story["out"].with_name("tiny.repeats.json"))
    assert "±" not in table(repeats_of("tiny", "seed", repeats.runs[:1])).splitlines()[1]
