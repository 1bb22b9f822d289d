"""Plans of experiments: mistakes are refused by name, and the pages equal the stored results."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from sts_dino.experiments import command
from sts_dino.experiments import page as pages
from sts_dino.experiments.baselines import random_words
from sts_dino.experiments.command import PLANS, RESULTS, format_overview
from sts_dino.experiments.page import plot_effects
from sts_dino.experiments.plan import Datasets, Effect, Experiment, read_plan
from sts_dino.experiments.runner import Difference, Measured, Runner, read_result
from sts_dino.experiments.steps import Steps
from sts_dino.hub.contract.measured import Estimate
from sts_dino.hub.contract.recipe import DatasetRecipe, ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe
from sts_dino.hub.errors import InputError, RunError

ROOT = Path(__file__).parents[2]
SHIPPED_PLAN = read_plan(ROOT / PLANS)


@pytest.mark.parametrize(
    "plan",
    [SHIPPED_PLAN, read_plan(ROOT / "experiments/strong_start.yaml")],
    ids=["papers", "ours"],
)
def test_declared_recipes_load_and_rows_stand_in_the_paper(plan):
    for variant in plan.datasets.variants:
        texts = plan.datasets.get_generation(variant.name)
        load_recipe(texts.recipe, DatasetRecipe, [*texts.settings, *variant.settings])
    for encoder in plan.encoders:
        if encoder.recipe:
            load_recipe(encoder.recipe, ModelRecipe, list(encoder.settings))
    for one in plan.experiments:
        if one.rows:
            columns = one.list_columns()
            assert all(one.printed.find_row(name) for name in one.rows.values() if name)
            assert all({effect.better, effect.than} <= one.rows.keys() for effect in one.effects)
            assert {effect.column for effect in one.effects} <= columns.keys()
            assert one.printed is None or any(
                pages.get_paper_difference(one, effect) for effect in one.effects
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["encoders"][0].update(dataset="x2"), "need a recipe"),
        (
            lambda tree: tree["encoders"][1].update(baseline="simcse"),
            "a baseline needs a dataset and a training",
        ),
        (lambda tree: tree["experiments"][0]["rows"].update(nobody=None), "unknown encoder nobody"),
        (
            lambda tree: tree["experiments"][0]["effects"][0].update(than="nobody"),
            "dino-1: an effect compares the unknown row nobody",
        ),
        (
            lambda tree: tree["experiments"].append(tree["experiments"][0]),
            "two experiments are called dino-1",
        ),
        (
            lambda tree: tree["experiments"][0].update(repeats="dino-9"),
            "dino-1: unknown experiment dino-9",
        ),
        (
            lambda tree: tree["experiments"][0].update(data_seeds=3),
            "dino-1: 3 data seeds, but the plan has 2",
        ),
        (
            lambda tree: tree["datasets"]["variants"][1].update(extends="x1x2"),
            "variants depend on each other",
        ),
        (
            lambda tree: tree["experiments"][0].update(parameters={"none": 270}),
            "dino-1: parameters of the unknown row none",
        ),
        (
            lambda tree: tree["datasets"]["variants"][7].update(set=["decoding.top_k=1"]),
            "changes the generated texts: use extends",
        ),
    ],
)
def test_a_wrong_plan_is_refused_with_the_name(tmp_path, change, message):
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    change(tree)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=message):
        read_plan(tmp_path / "plan.yaml")
    with pytest.raises(InputError, match="did you mean 'dino-1'"):
        SHIPPED_PLAN.choose_experiments(["dino-11"])


def test_a_variant_has_the_settings_of_the_filtered_texts_that_it_extends():
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())["datasets"]
    cooler = {
        "name": "cooler",
        "says": "",
        "extends": "x2-no-smoothing",
        "set": ["decoding.top_k=1"],
    }
    tree["variants"].append(cooler)
    plan = Datasets.model_validate(tree)
    settings = plan.get_generation("cooler").settings
    assert settings[-2:] == ("postprocess.smoothing=0", "decoding.top_k=1")


def test_the_files_of_a_folder_are_one_plan_and_each_value_is_given_once(tmp_path):
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    more = {"encoders": [tree["encoders"].pop()], "experiments": [tree["experiments"].pop()]}
    more |= {"datasets": {"variants": [tree["datasets"]["variants"].pop()], "sources": {}}}
    tree["experiments"] = [one for one in tree["experiments"] if one["name"] == "dino-1"]
    for name, part in (("a", tree), ("b", more)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(part))
    plan = read_plan(tmp_path)
    assert (
        plan.experiments[-1].name == more["experiments"][0]["name"] and len(plan.experiments) == 2
    )
    assert plan.datasets.variants[-1].name == more["datasets"]["variants"][0]["name"]
    (tmp_path / "b.yaml").write_text(
        yaml.safe_dump(more | {"datasets": {"default_source": "stsb"}})
    )
    with pytest.raises(InputError, match=r"b\.yaml:datasets:default_source.*another file"):
        read_plan(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: no such plan; allowed: .* a folder of \*\.yaml"):
        read_plan(tmp_path / "empty")


def test_a_verdict_follows_from_the_interval():
    for low, score, high, verdict in (
        (0.1, 1, 2, "reproduced"),
        (-1, 1, 2, "same direction, not significant"),
        (-2, -1, 1, "opposite direction, not significant"),
        (-2, -1, -0.1, "contradicted"),
    ):
        found = Estimate(score=score, low=low, high=high)
        assert Difference(better="a", than="b", column="Avg.", difference=found).verdict == verdict


def test_the_plot_of_effects_has_the_same_bytes_everywhere():
    found = [Estimate(score=score, low=score - 1, high=score + 1) for score in (2, 0.5, -30)]
    effects = [Difference(better="a", than="b", column="Avg.", difference=one) for one in found]
    experiment = Experiment(name="effect", title="", finished="x")
    given = []
    for number, difference in enumerate(effects):
        effect = Effect(says=str(number), better="a", than="b")
        given.append(pages.MeasuredEffect(experiment, None, effect, difference, number or None))
    drawn = plot_effects(given)
    assert drawn == plot_effects(given) and "effect: 2" in drawn and drawn.count("the paper") == 1


def test_the_plot_of_sizes_labels_the_sizes_alone_and_draws_what_every_row_has():
    """Sizes within a power of ten, a score beyond its interval by rounding, a row without judge."""
    perfect = Estimate(score=100, low=99, high=100 - 1e-14)
    rows = {"small": {"Avg.": perfect, "agreement": perfect}, "large": {"Avg.": perfect}}
    sizes = {"small": 270, "large": 600, "added to the plan since": 1500}
    experiment = Experiment(name="sizes", title="", finished="x", parameters=sizes)
    result = read_result(ROOT / RESULTS / "dino-lm-size.json")
    result = result.model_copy(update={"measured": Measured(rows=rows)})
    drawn = pages.plot_sizes(experiment, result)
    assert ">Avg.<" in drawn and ">agreement<" not in drawn
    assert ">270<" in drawn and ">600<" in drawn and "times10" not in drawn
    assert ">1500<" not in drawn
    absent = experiment.model_copy(update={"parameters": {"added to the plan since": 1500}})
    assert pages.draw_plots([(absent, result)]) == {}  # and the kept result has no plots


def test_random_words_have_the_same_vectors_everywhere():
    first, same, other, none = random_words(["a cat sat", "A cat sat", "dogs run", ""])
    assert (first == same).all() and (first != other).any() and none.shape == (300,)


def test_the_pages_equal_the_kept_results():
    kept = pages.list_run_experiments(SHIPPED_PLAN, ROOT / RESULTS)
    assert len(kept) == len(SHIPPED_PLAN.experiments)
    shown = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert shown == pages.format_summary(SHIPPED_PLAN, kept), "run: sts-dino experiment run --page"
    tables = (ROOT / RESULTS / "README.md").read_text(encoding="utf-8")
    assert tables == pages.format_tables(SHIPPED_PLAN, kept)
    for one, result in kept:
        assert len(pages.match_effects(one, result)) == len(one.effects)
        assert not one.rows or result.measured.rows.keys() == one.rows.keys()
    tally = shown.partition("| effects of |")[2].partition("\n\n")[0]
    tallied = [line.split("|")[2:5] for line in tally.splitlines()[2:]]
    verdicts = ["| **reproduced** |", ", not significant |", "| **contradicted** |"]
    assert [sum(map(int, column)) for column in zip(*tallied, strict=True)] == [
        *map(shown.count, verdicts)
    ]
    lines = format_overview(SHIPPED_PLAN.experiments, ROOT / RESULTS).splitlines()[2:]
    for one, line in zip(SHIPPED_PLAN.experiments, lines, strict=True):
        assert (f"of {len(one.effects)} effects reproduced" if one.effects else "measured") in line
    assert "not run yet" in format_overview(SHIPPED_PLAN.experiments, Path("nowhere"))


def test_a_larger_language_model_stands_beside_the_smaller_one():
    kept = (
        SHIPPED_PLAN.choose_experiments(["dino-2"])[0],
        read_result(ROOT / RESULTS / "dino-2.json"),
    )
    again = kept[0].model_copy(update={"name": "x", "repeats": "dino-2"}), kept[1]
    effects = pages.list_effects([kept, again])
    lines = pages.format_effects(effects).splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert all(row[4:7] == row[7:10] and row[5] == "2 x 3" for row in rows)
    assert [pages.BELOW_PAPER_SIZE in row[6] for row in rows] == [
        True,
        True,
        False,
        True,
        True,
        True,
        True,
    ]


def test_the_page_has_the_papers_shares_in_points():
    effect = Effect(says="", better="few", than="none", column="Entailment")
    rows = {"none": "0-shot", "few": "5-shot"}
    one = Experiment(
        name="x", paper="auto-nli", table=1, title="", finished="x", beside=rows, effects=(effect,)
    )
    assert pages.get_paper_row(one, "none") == {
        "Entailment": pytest.approx(16),
        "Contradiction": pytest.approx(88.8),
    }
    assert pages.get_paper_difference(one, effect) == pytest.approx(
        70.7
    ) and not pages.get_paper_row(one, "nothing")


def test_a_column_that_no_task_measures_is_refused():
    one = Experiment(
        name="x", paper="auto-nli", table=1, title="", rows={"a": None}, columns=("Entailment",)
    )
    with pytest.raises(InputError, match="x: column 'Entailment': has no task: a score of a"):
        one.list_columns()


def test_an_effect_in_a_column_that_is_not_measured_is_refused():
    tree = yaml.safe_load((ROOT / PLANS / "dino.yaml").read_text())
    tree["experiments"][0]["effects"][0]["column"] = "Avrg."
    one = Experiment.model_validate(tree["experiments"][0])
    with pytest.raises(
        InputError, match=r"dino-1: column 'Avrg.' of an effect: is not measured; allowed: .*Avg"
    ):
        one.list_columns()


def test_the_failures_are_counted_among_the_experiments_that_ran(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "run_all", lambda runner, experiments, results: ["dino-2"])
    monkeypatch.setattr(command, "write_pages", lambda *_: None)
    words = ["run", "--all", "--plan", str(ROOT / PLANS), "--folder", str(tmp_path)]
    runnable = [one for one in SHIPPED_PLAN.experiments if not one.finished]
    assert len(runnable) < len(SHIPPED_PLAN.experiments)
    with pytest.raises(RunError, match=f"1 of {len(runnable)} failed"):
        CliRunner().invoke(command.app, words, catch_exceptions=False)


def test_figures_of_pairs_are_of_languages_with_instructions():
    words = ["pair-quality", "qwen2.5-coder-0.5b-instruct", "--language", "xx"]
    with pytest.raises(InputError, match="--language: no instructions in 'xx'; allowed: "):
        CliRunner().invoke(command.app, words, catch_exceptions=False)
    # a missing folder is not replaced by the shipped sentences
    words = ["pair-quality", "qwen2.5-coder-0.5b-instruct", "--sentences", "nowhere"]
    with pytest.raises(InputError, match="--sentences nowhere: no such folder"):
        CliRunner().invoke(command.app, words, catch_exceptions=False)


def test_a_result_in_another_format_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="not a result of an experiment"):
        read_result(tmp_path / "x.json")


def test_a_finished_experiment_names_the_revision_that_repeats_it():
    runner = Runner(SHIPPED_PLAN, Steps(Path("nowhere")), None)
    with pytest.raises(InputError, match=r"declutr-2: is finished.*git checkout 5ab29a2"):
        runner.run(SHIPPED_PLAN.choose_experiments(["declutr-2"])[0])
