"""The papers' experiments: what is declared can be run, results are read back, the page says what they hold."""

import json
import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from forked_python import python_in

from benchmarks.better_pairs.steps import Steps
from benchmarks.papers import full_size
from benchmarks.papers import page as pages
from benchmarks.papers.__main__ import PLAN, RESULTS, main, overview
from benchmarks.papers.dino import examples
from benchmarks.papers.effects_plot import effects_plot
from benchmarks.papers.made import source_of
from benchmarks.papers.plan import read_papers
from benchmarks.papers.random_words import encode
from benchmarks.papers.result import Difference, Measured, Result, read_result
from benchmarks.papers.runner import Experiments
from hub.assets import asset
from hub.contract.measured import Estimate
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.errors import InputError, RunError

ROOT = Path(__file__).parents[2]
SHIPPED = read_papers(PLAN)


def test_every_declared_recipe_can_be_read_and_every_row_stands_in_the_paper():
    for arm in SHIPPED.pairs.arms:
        texts = SHIPPED.pairs.texts(arm.name)
        load_recipe(texts.recipe, DatasetRecipe, [*texts.settings, *arm.settings])
    for encoder in SHIPPED.encoders:
        if encoder.recipe:
            load_recipe(encoder.recipe, ModelRecipe, list(encoder.settings))
    for one in SHIPPED.experiments:
        if one.measure:
            continue
        columns = one.measured_columns()
        assert all(one.printed.row(name) for name in one.rows.values() if name)
        assert all({effect.better, effect.than} <= one.rows.keys() for effect in one.effects)
        assert {effect.column for effect in one.effects} <= columns.keys()
        assert one.printed is None or any(pages.printed_difference(one, effect) for effect in one.effects)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree["encoders"][0].update(pairs="x2"), "scored as it is"),
        (lambda tree: tree["encoders"][2].update(pairs="nothing"), "no arm is called nothing"),
        (lambda tree: tree["experiments"][0]["rows"].update(nobody=None), "no encoder is called nobody"),
        (lambda tree: tree["experiments"][0].update(measure=["x"]), "exactly one of rows and measure"),
        (lambda tree: tree["experiments"].append(tree["experiments"][0]), "two are called dino-1"),
        (lambda tree: tree["experiments"][0].update(data_seeds=3), "dino-1: 3 data seeds, but the stage has 2"),
    ],
)
def test_a_wrong_plan_is_refused_with_the_name(tmp_path, change, said):
    tree = yaml.safe_load((PLAN / "dino.yaml").read_text())
    change(tree)
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=said):
        read_papers(tmp_path / "plan.yaml")
    with pytest.raises(InputError, match="did you mean 'dino-1'"):
        SHIPPED.chosen(["dino-11"])


def test_the_files_of_a_folder_are_one_plan_and_each_value_is_given_once(tmp_path):
    tree = yaml.safe_load((PLAN / "dino.yaml").read_text())
    more = {"encoders": [tree["encoders"].pop()], "experiments": [tree["experiments"].pop()]}
    more |= {"pairs": {"arms": [tree["pairs"]["arms"].pop()], "first_texts": {}}}
    tree["experiments"] = [one for one in tree["experiments"] if one["name"] == "dino-1"]
    for name, part in (("a", tree), ("b", more)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(part))
    papers = read_papers(tmp_path)
    assert papers.experiments[-1].name == more["experiments"][0]["name"] and len(papers.experiments) == 2
    assert papers.pairs.arms[-1].name == more["pairs"]["arms"][0]["name"]
    assert papers.encoders[-1].name == more["encoders"][0]["name"]
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(more | {"pairs": {"default_first_texts": "stsb"}}))
    with pytest.raises(InputError, match=r"b\.yaml:pairs:default_first_texts.*another file"):
        read_papers(tmp_path)


@pytest.mark.parametrize(
    ("low", "score", "high", "verdict"),
    [
        (0.1, 1, 2, "reproduced"),
        (-1, 1, 2, "same direction, not separable"),
        (-2, -1, 1, "opposite direction, not separable"),
        (-2, -1, -0.1, "contradicted"),
    ],
)
def test_a_verdict_is_the_intervals(low, score, high, verdict):
    found = Estimate(score=score, low=low, high=high)
    assert Difference(better="a", than="b", column="Avg.", difference=found).verdict == verdict


def test_effects_are_drawn_with_the_papers_beside_them_the_same_everywhere():
    found = [
        Difference(better="a", than="b", column="Avg.", difference=Estimate(score=score, low=score - 1, high=score + 1))
        for score in (2, 0.5, -30)
    ]
    given = [(f"effect {number}", one, number or None) for number, one in enumerate(found)]
    drawn = effects_plot(given)
    assert drawn == effects_plot(given) and "effect 2" in drawn
    assert drawn.count("the paper") == 1 and drawn != effects_plot([(name, one, None) for name, one, _ in given])


def test_the_plan_at_full_size_sums_each_recipe_once():
    dino = SHIPPED.chosen(["dino-1"])[0]
    one = dino.full_size.recipes[0]
    assert full_size.gpu_hours(one.model_copy(update={"sequences": 2 * one.sequences})) == 2 * full_size.gpu_hours(one)
    told = full_size.plan([dino, dino])
    assert told.endswith(full_size.plan([dino]).splitlines()[-1])
    assert "python -m generation.run recipes/datasets/sts-dino-x2.yaml" in told


def test_a_random_encoder_gives_a_word_the_same_vector_everywhere():
    first, same, other, none = encode(["a cat sat", "A cat sat", "dogs run", ""])
    assert (first == same).all() and (first != other).any() and none.shape == (300,)


def test_the_page_is_what_is_kept():
    kept = [(one, read_result(ROOT / RESULTS / f"{one.name}.json")) for one in SHIPPED.experiments]
    assert all(result for _, result in kept)
    shown = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert shown == pages.page(SHIPPED, kept), "run: python -m benchmarks.papers --page"
    for one, result in kept:
        assert len(pages.matched(one, result)) == len(one.effects)
        assert one.measure or result.measured.rows.keys() == one.rows.keys()
    tallied = [line.split("|")[2:5] for line in shown.partition("| effects of |")[2].splitlines()[2:5]]
    verdicts = ["| **reproduced** |", ", not separable |", "| **contradicted** |"]
    assert [sum(map(int, column)) for column in zip(*tallied, strict=True)] == [*map(shown.count, verdicts)]
    lines = overview(SHIPPED.experiments, ROOT / RESULTS).splitlines()[2:]
    for one, line in zip(SHIPPED.experiments, lines, strict=True):
        assert (f"of {len(one.effects)} effects reproduced" if one.effects else "measured") in line
    assert "not run yet" in overview(SHIPPED.experiments, Path("nowhere"))


def test_the_readme_shows_effects_of_the_page():
    shown = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Do the papers' effects")[2]
    lines = [line.split(" | ") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 5
    for _, paper, here, verdict in lines:
        found = f"| {paper.strip()} | {here.removeprefix('+')} | {verdict.removesuffix(' |')}"
        assert found in shown.replace("**", ""), found


def test_a_result_of_another_form_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match="is no result of an experiment"):
        read_result(tmp_path / "x.json")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A plan on the built-in language model: four arms, a handful of steps."""
    place = tmp_path_factory.mktemp("papers")
    tree = yaml.safe_load((PLAN / "dino.yaml").read_text())
    texts = {"path": str(asset("first-texts/wikipedia.txt").resolve()), "checked": False}
    licences = {"license": "cc-by-sa-3.0", "dataset_license": "mixed-non-commercial", "description": "sentences"}
    tree["pairs"]["first_texts"] = {"stsb": texts | licences}
    tree["pairs"]["stages"]["small"] |= {"texts": 12, "data_seeds": [42, 43], "training_seeds": 1}
    decoding = ["decoding.samples=1", "postprocess.validation_fraction=0"]
    tree["pairs"]["arms"] = [
        {"name": "x2", "group": "g", "varies": "", "recipe": "recipes/demo/sts-dino-x2.yaml", "set": decoding},
        {"name": "plain", "group": "g", "varies": "", "same_texts": "x2", "set": ["postprocess.smoothing=0"]},
    ]
    steps = ["arguments.max_steps=4", "arguments.save_steps=4", "batch_size=4"]
    student = {"says": "", "recipe": "recipes/value/value-student-dropout.yaml", "set": steps}
    tree["encoders"] = [
        {**student, "name": "untrained", "trained": False, "set": []},
        {**student, "name": "simcse", "pairs": "x2", "copies": True},
        {**student, "name": "x2", "pairs": "x2"},
        {**student, "name": "plain", "pairs": "plain"},
    ]
    column = {"dev": {"tasks": ["stsb/cosine"], "split": "validation"}}
    rows = dict.fromkeys(("untrained", "simcse", "x2", "plain"))
    effect = {"says": "it trains", "better": "x2", "than": "untrained", "column": "dev"}
    one = {"name": "tiny", "paper": "dino", "title": "tiny", "rows": rows, "own_columns": column, "effects": [effect]}
    one["data_seeds"] = 2
    tree["experiments"] = [one]
    (place / "plan.yaml").write_text(yaml.safe_dump(tree))
    return place


@pytest.fixture
def forked(monkeypatch):
    """Stages are forked from a process that has imported the libraries."""
    monkeypatch.setattr(sys, "executable", python_in(dict(os.environ)))


def run(place, *names, **more):
    given = {"every": False, "listed": False, "page_too": False, "scale": "small", "settings": [], "data": None}
    given |= {"file": place / "plan.yaml", "folder": place / "steps", "results": place, "page": place / "page.md"}
    main(list(names), **given | more)
    return read_result(place / "tiny.json")


@pytest.mark.slow("writes with the built-in language model and trains")
def test_an_experiment_is_run_once_and_goes_on_after_a_kill(tiny, forked, monkeypatch):
    whole, ran = Steps._run, []

    def stage(self, words, note):
        ran.append(words[0])
        if ran.count("training.run") == 3 and words[0] == "training.run" and "killed" not in ran:
            ran.append("killed")
            raise RunError(words[0], "was killed")
        return whole(self, words, note)

    monkeypatch.setattr(Steps, "_run", stage)
    with pytest.raises(RunError, match="1 of 1 failed"):
        run(tiny, "tiny")
    assert not (tiny / "tiny.json").exists()
    result = run(tiny, "tiny")
    assert ran.count("generation.run") == 2 and ran.count("benchmarks.better_pairs.refinish") == 2
    assert ran.count("training.run") == 7 + 1 and ran.count("eval.run") == 7  # one was killed
    assert result.measured.rows.keys() == {"untrained", "simcse", "x2", "plain"}
    found = result.measured.differences[0].difference
    both = [result.measured.rows[name]["dev"].score for name in ("x2", "untrained")]
    assert found.low < found.score == pytest.approx(both[0] - both[1]) and found.score != 0
    assert result.sizes["x2"]["first texts"] == 12 and result.seconds > 0
    assert "it trains" in (tiny / "page.md").read_text()
    ran.clear()
    assert run(tiny, "tiny").measured == result.measured and ran == []


@pytest.mark.slow("follows an experiment that was run")
def test_a_measurement_reads_datasets_and_encoders_by_name(tiny, tmp_path, forked, monkeypatch):
    found = Measured(rows={"x": {"n": Estimate(score=1, low=1, high=1)}}, notes=("a note",), plots={"p": "<svg/>"})

    def stage(self, words, note):
        assert Path(words[1], "manifest.json").is_file() and Path(words[2], "manifest.json").is_file()
        Path(words[3]).parent.mkdir(exist_ok=True)
        Path(words[3]).write_text(found.model_dump_json())
        return 3.0

    tree = yaml.safe_load((tiny / "plan.yaml").read_text())
    words = ["some.module", "<run:x2>", "<encoder:x2>", "<out>"]
    tree["experiments"] = [{"name": "tiny", "paper": "dino", "title": "tiny", "measure": words}]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(tree))
    run(tiny, "tiny")  # nothing is left to do where the test above has run
    for kind, seconds in (("dataset", 5.0), ("encoder", 7.0)):  # of a forked stage hardly any may have been counted
        for path in (tiny / "steps/steps").glob(f"{kind}-*.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": [seconds]}))
    monkeypatch.setattr(Steps, "_run", stage)
    papers = read_papers(tmp_path / "plan.yaml")
    result = Experiments(papers, Steps(tiny / "steps"), None).run(papers.experiments[0])
    assert isinstance(result, Result) and result.measured == found and result.seconds == 3 + 5 + 7
    shown = pages.page(papers, [(papers.experiments[0], result)])
    assert "a note" in shown and "![p](results/p.svg)" in shown


def test_examples_are_told_by_the_order_of_their_cosines_and_escaped():
    texts = {"a": ("good | x", [0.9, 0.5, 0.1]), "b": ("bad", [0.2, 0.5, 0.6]), "c": ("lacks a label", [0.9, 0.5])}
    pairs, cosines = [], []
    for source, (first, values) in texts.items():
        for label, value in zip(("1", "0.5", "0"), values, strict=False):
            pairs.append((first, f"<b>{label}</b> of {source}", source, label))
            cosines.append(value)
    found = examples.examples(pairs[::-1], cosines[::-1])
    assert {one.first: one.gap > 0 for one in found} == {"good | x": True, "bad": False}
    told = examples.measured(found, 1)
    assert told.notes == ("The cosines of 50% of 2 first texts lie in the order of their labels.",)
    good, bad = told.pages
    assert "of a" in good and "of b" in bad and "of b" not in good and "<b>" not in good + bad
    assert told.rows["asked for 0.5"]["median cosine x 100"].score == pytest.approx(50)


@pytest.mark.slow("judges with all-MiniLM-L6-v2")
def test_the_examples_of_a_real_dataset_are_measured_and_their_key_follows_the_source(tiny, tmp_path, forked):
    run(tiny, "tiny")
    tree = yaml.safe_load((tiny / "plan.yaml").read_text())
    words = ["benchmarks.papers.dino.examples", "<run:x2>", "--out", "<out>"]
    tree["experiments"] = [{"name": "tiny", "paper": "dino", "title": "tiny", "figure": 1, "measure": words}]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(tree))
    papers = read_papers(tmp_path / "plan.yaml")
    found = Experiments(papers, Steps(tiny / "steps"), None).run(papers.experiments[0]).measured
    assert list(found.rows) == ["asked for 1", "asked for 0.5", "asked for 0"] and len(found.pages) == 2
    assert all(0 <= row["median cosine x 100"].score <= 100 for row in found.rows.values())


def test_what_a_module_does_decides_its_step():
    known = source_of("python:benchmarks.papers.random_words:encode")
    assert known == source_of("benchmarks.papers.random_words") != source_of("benchmarks.papers.dino.examples")
    assert source_of("ORG/NAME@v1") is None and source_of("artifacts/models/x") is None


def test_the_printed_commands_are_whole():
    runner = Experiments(SHIPPED, Steps(Path("nowhere")), None, ["@assets/offline.yaml"])
    told = runner.commands(SHIPPED.chosen(["dino-2"])[0])
    trained = [line for line in told if "training.run" in line]
    settings = [shlex.split(line)[5::2] for line in trained]
    assert len(trained) == 5 and all("@" not in line for line in trained)  # their base is in the repository
    assert all("datasets.0.config=postprocessed-5shot" in line for line in settings)
    load_recipe(Path(shlex.split(trained[0])[3]), ModelRecipe, settings[0][:-1])
    assert sum("eval.run" in line and "sts16/all" in line for line in told) == 5
