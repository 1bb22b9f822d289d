"""sts-dino value: variants of equal size, trained and scored once, resumed after a kill; refusals first."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
import yaml
from card_runs import dataset_run
from forked_python import python_in
from planted_evaluations import evaluation, planted
from small_runs import small_recipe, small_run
from tiny_lm import make_lm
from training_inputs import sts_rows, triplet_rows, write_dataset, write_recipe

import release.value as value_module
from hub.client.fetch import fetch
from hub.client.publish import Options, publish
from hub.client.repository import Repository
from hub.contract.measured import VALUE, TrainingValue, require_value
from hub.contract.recipe import DatasetRecipe, ModelRecipe
from hub.contract.recipe_file import checked, load_recipe
from hub.contract.run_dir import Manifest, read_manifest, write_manifest
from hub.contract.schema import TRIPLET
from hub.contract.shards import read_table
from hub.errors import InputError, RunError
from model_cards.render import render, write
from release.value import (
    STUDENT,
    Experiment,
    arm_recipe,
    copies,
    find_people,
    read_dataset,
    read_people,
    read_student,
    shuffled,
    table,
    write_pairs,
)

pytest_plugins = ["local_hub"]
DEV = Path(__file__).parents[2] / "assets/stsb/sts-dev.csv"
SEEDS = "1-2"


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / "pairs", {"train": sts_rows(90), "validation": sts_rows(24, seed=1)})


def small_student(folder):
    """A static student of a tiny base, as a recipe."""
    make_lm(folder / "lm")
    tree = yaml.safe_load(STUDENT.read_text())
    tree["base"]["path"] = str(folder / "lm")
    tree["arguments"] |= {"max_steps": 4}
    path = folder / "student.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture
def stages(monkeypatch, tmp_path):
    """Quick stages: a training leaves a manifest, a score is planted by the variant's name."""
    calls = []

    def run_stage(command, *words, stop=None):
        calls.append((command, Path(words[0])))
        recipe, model = load_recipe(Path(words[0]), ModelRecipe), Path(words[2])
        if command == "train":
            model.mkdir(parents=True)
            manifest = Manifest(kind="model", name=recipe.name, version="1.0.0", fingerprint="f", complete=True)
            write_manifest(model, manifest)
            return
        quality = {"untrained": 0.2, "shuffled": 0.3, "copies": 0.5, "dataset": 0.6, "people": 0.8}
        variant = model.parent.name.split("-")[0]
        folder = model.with_name(f"{model.name}.evaluation")
        tasks = {entry.task: planted(entry.task, quality[variant] + recipe.seed / 100) for entry in recipe.evaluation}
        evaluation(folder, variant, tasks)
        results = (folder / "results.json").read_text().replace('"fingerprint": null', '"fingerprint": "f"')
        (model / "results.json").write_text(results)

    monkeypatch.setattr(value_module, "run_stage", run_stage)
    return calls


def measure(*places, out, **more):
    """The command with its defaults, on the planted tasks of the test split."""
    given = {"senteval_data": out.parent / "senteval", "split": "test", "pairs": 60, "seeds": SEEDS, "people": DEV}
    given |= {"config": None, "student": STUDENT, "settings": [], "with_shuffled": True, "workers": 1, "samples": 200}
    (out.parent / "senteval/downstream").mkdir(parents=True, exist_ok=True)
    value_module.main(datasets=list(map(str, places)), **given | more, out=out, as_json=False)


def trainings(stages) -> int:
    return sum(command == "train" for command, _ in stages)


def test_every_arm_has_the_same_number_of_pairs_and_the_value_is_written(data, stages, tmp_path, capsys):
    measure(data, out=tmp_path / "out")
    value = TrainingValue.read(data, read_manifest(data))
    assert value is not None
    assert list(value.arms) == ["untrained", "shuffled", "copies", "dataset", "people"]
    assert (value.pairs, value.seeds, value.split, value.skipped) == (60, (1, 2), "test", {})
    assert value.gain.score == pytest.approx(value.arms["dataset"].average.score - value.arms["copies"].average.score)
    assert value.gain.low > 0 > value.arms["shuffled"].over_copies.high
    trained = [load_recipe(path, ModelRecipe) for command, path in stages if command == "train"]
    assert len(trained) == 1 + 2 * 4
    sizes = {read_manifest(Path(one.datasets[0].path)).files[0].rows for one in trained if one.datasets}
    assert sizes == {60}
    assert {one.arguments["max_steps"] for one in trained if one.datasets} == {"750"}
    assert [one.datasets[0].loss for one in trained if one.datasets and one.datasets[0].example_type == "triplet"] == [
        "MultipleNegativesRankingLoss"
    ] * 2
    assert capsys.readouterr().out.startswith("pairs (postprocessed): 60 pairs, 2 seeds, test, Spearman x 100\n")


def test_the_other_student_drops_tokens_in_every_arm_and_is_the_same_else(data, stages, tmp_path):
    other = STUDENT.with_name("value-student-dropout.yaml")
    measure(data, out=tmp_path / "out", student=other)
    recipes = [load_recipe(path, ModelRecipe) for command, path in stages if command == "train"]
    assert {one.token_dropout for one in recipes if one.datasets} == {0.1}
    assert [one.token_dropout for one in recipes if not one.datasets] == [0.0]  # the untrained one
    trees = [load_recipe(path, ModelRecipe).model_dump() for path in (STUDENT, other)]
    assert {key for key in trees[0] | trees[1] if trees[0].get(key) != trees[1].get(key)} == {
        *("name", "pretty_name", "token_dropout")
    }
    assert read_student(STUDENT).sha256 != read_student(other).sha256
    assert read_student(STUDENT, ["token_dropout=0"]).sha256 == read_student(STUDENT).sha256


def test_a_second_call_trains_nothing_and_another_seed_trains_only_that(data, stages, tmp_path):
    measure(data, out=tmp_path / "out")
    first = (data / VALUE).read_bytes()
    stages.clear()
    measure(data, out=tmp_path / "out")
    assert not stages
    assert (data / VALUE).read_bytes() == first
    stages.clear()
    measure(data, out=tmp_path / "out", seeds="1-3")
    assert trainings(stages) == 4
    stages.clear()
    measure(data, out=tmp_path / "out", settings=["arguments.learning_rate=1e-3"])  # another student
    assert trainings(stages) == 8  # the untrained one has no learning rate
    stages.clear()
    measure(data, out=tmp_path / "out", settings=["datasets.0.loss=CosineSimilarityLoss"])  # which copies have not
    trained = [path.parent.name.split("-")[0] for command, path in stages if command == "train"]
    assert sorted(set(trained)) == ["dataset", "people", "shuffled"] and len(trained) == 6


def test_the_value_is_the_same_with_several_workers(data, stages, tmp_path):
    measure(data, out=tmp_path / "alone", seeds="1")
    alone = (data / VALUE).read_bytes()
    measure(data, out=tmp_path / "out", seeds="1", workers=2)
    assert (data / VALUE).read_bytes() == alone


def test_two_datasets_share_what_is_the_same(data, stages, tmp_path):
    other = write_dataset(tmp_path / "other", {"train": sts_rows(90, seed=5)})
    measure(data, other, out=tmp_path / "out")
    assert trainings(stages) == 1 + 2 * 2 * 3 + 2
    assert (other / VALUE).is_file()


def test_without_shuffled_scores_a_choice_takes_less_time(data, stages, tmp_path, capsys):
    measure(data, out=tmp_path / "out", with_shuffled=False)
    value = TrainingValue.read(data, read_manifest(data))
    assert list(value.arms) == ["untrained", "copies", "dataset", "people"] and "shuffled" in value.skipped
    assert trainings(stages) == 1 + 2 * 3
    assert "shuffled" in capsys.readouterr().out


def test_without_peoples_pairs_that_arm_is_skipped_with_its_reason(data, stages, tmp_path, capsys):
    measure(data, out=tmp_path / "out", people=None)
    value = TrainingValue.read(data, read_manifest(data))
    assert "people" not in value.arms and "no human-annotated pairs" in value.skipped["people"]
    assert "people      not trained: no human-annotated" in capsys.readouterr().out
    assert "fewer than 2,000" in find_people(DEV, None, 2000)[1]


def test_a_stage_that_fails_is_named_with_arm_and_seed_and_nothing_is_written(data, stages, tmp_path, monkeypatch):
    def diverges(command, *words, stop=None):
        raise typer.Exit(1)

    monkeypatch.setattr(value_module, "run_stage", diverges)
    with pytest.raises(RunError, match=r"untrained, seed 1: train failed; its error is above"):
        measure(data, out=tmp_path / "out")
    assert not (data / VALUE).exists()


def test_shuffled_scores_are_those_of_the_seed_and_copies_keep_the_first_texts():
    rows = [{key: row[key] for key in ("sentence1", "sentence2", "score")} for row in sts_rows(50)]
    once = shuffled(rows, 1)
    assert once == shuffled(rows, 1) != shuffled(rows, 2)
    assert sorted(row["score"] for row in once) == sorted(row["score"] for row in rows)
    assert [(r["sentence1"], r["sentence2"]) for r in once] == [(r["sentence1"], r["sentence2"]) for r in rows]
    found = copies(rows, 1, "here")
    assert [row["anchor"] for row in found] == [row["positive"] for row in found] == [r["sentence1"] for r in rows]
    assert all(row["negative"] != row["anchor"] for row in found)
    assert found == copies(rows, 1, "here")
    with pytest.raises(InputError, match="one source sentence only"):
        copies([rows[0], rows[0]], 1, "here")


def test_pairs_are_drawn_by_the_seed_and_written_once(data, tmp_path):
    pairs = read_dataset(str(data)).pairs
    assert len(pairs.firsts) == 90  # of the train split alone
    assert pairs.draw(40, 1) == pairs.draw(40, 1) != pairs.draw(40, 2)
    folder = write_pairs(tmp_path / "arms", pairs.draw(40, 1))
    assert write_pairs(tmp_path / "arms", pairs.draw(40, 1)) == folder
    assert read_table(folder / read_manifest(folder).files[0].path).num_rows == 40


def test_what_cannot_be_measured_is_refused_in_one_line(data, stages, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"90 scored pairs, fewer than the 91 .*; give --pairs 90 or fewer"):
        measure(data, out=out, pairs=91)
    triplets = write_dataset(tmp_path / "triplets", {"train": triplet_rows(9)}, config="triplet", form=TRIPLET)
    with pytest.raises(InputError, match="has no column 'sentence1'"):
        measure(triplets, out=out)
    with pytest.raises(InputError, match="no such directory"):
        measure(tmp_path / "nowhere", out=out)
    with pytest.raises(InputError, match="has no config 'raw'"):
        measure(data, out=out, config="raw")
    with pytest.raises(InputError, match="--senteval-data: is needed for sts12/all"):
        measure(data, out=out, senteval_data=None)
    with pytest.raises(InputError, match="has no folder downstream"):
        measure(data, out=out, senteval_data=tmp_path)
    with pytest.raises(InputError, match="--split: unknown split 'train'"):
        measure(data, out=out, split="train")
    with pytest.raises(InputError, match=r"--people .*: no such file"):
        measure(data, out=out, people=tmp_path / "none.csv")
    assert not out.exists() and not stages


def test_a_student_may_read_the_pairs_in_several_forms_and_the_controls_in_one():
    form = "path: pairs, config: pairs, license: cc-by-nc-sa-4.0"
    graded = (
        f"{{{form}, example_type: graded-triplet, loss: MultipleNegativesRankingLoss, grades: {{negative_to: 0.3}}}}"
    )
    own = f"{{{form}, example_type: self-pair, loss: MultipleNegativesRankingLoss}}"
    student = read_student(STUDENT, [f"datasets=[{graded}, {own}]"])
    experiment = Experiment(student, 60, (1,), "validation", 100, Path("out"), (), 1)
    forms = {
        arm: [
            (one.example_type, one.path, one.grades is None)
            for one in checked(STUDENT, ModelRecipe, arm_recipe(experiment, arm, 1, Path("arm"))).datasets
        ]
        for arm in ("dataset", "copies", "people")
    }
    assert forms["dataset"] == [("graded-triplet", "arm", False), ("self-pair", "arm", True)]
    assert forms["copies"] == [("triplet", "arm", True)]
    assert forms["people"] == [("sts", "arm", True)]  # hardly two of their pairs share a first text


def test_a_student_is_a_recipe_of_datasets_by_path_without_validation(tmp_path):
    assert read_student(STUDENT).sha256 != read_student(STUDENT, ["batch_size=64"]).sha256
    assert read_student(STUDENT).sha256 == read_student(STUDENT, ["seed=1", "version=2.0.0"]).sha256
    with pytest.raises(InputError, match="states its max_steps"):
        read_student(write_recipe(tmp_path))
    for changes in ({"limit": "5"}, {"validation": [{"path": str(DEV)}]}):
        with pytest.raises(InputError, match="no validation and no limit"):
            read_student(write_recipe(tmp_path, **changes))
    with pytest.raises(InputError, match="one or several, by path"):
        read_student(Path("recipes/models/roberta-base-mean.yaml"))


def test_peoples_pairs_are_read_with_scores_from_0_to_1(tmp_path):
    found = read_people(DEV)
    assert len(found.firsts) == 1500 and (min(found.scores), max(found.scores)) == (0, 1)
    path = tmp_path / "wrong.csv"
    path.write_text("a\tb\n")
    with pytest.raises(InputError, match=r"wrong.csv:1: is not in"):
        read_people(path)


def a_value(fingerprint, gain=1.5):
    """A value that was measured on the run of this fingerprint."""
    at = {"score": 60.0, "low": 59.0, "high": 61.0}
    arm = {"average": at, "tasks": {"stsb/cosine": 60.0}}
    over = {"score": gain, "low": gain - 1, "high": gain + 1}
    return TrainingValue.model_validate(
        {
            "dataset": "tiny-sts",
            "config": "postprocessed",
            "fingerprint": fingerprint,
            "student": "value-student",
            "student_sha256": "0" * 64,
            "base": "assets/demo-lm",
            "pairs": 2000,
            "seeds": [1, 2, 3],
            "tasks": ["stsb/cosine"],
            "split": "validation",
            "samples": 1000,
            "arms": {"copies": arm, "dataset": arm | {"over_copies": over}},
            "skipped": {"people": "no | pairs"},
            "versions": {},
        }
    )


def test_the_card_shows_a_measured_value_and_nothing_else(tmp_path):
    run = dataset_run(tmp_path / "tiny", "sts")
    before = render(run)["README.md"].decode()
    assert "Downstream gain" not in before and "SimCSE" not in before
    (run / VALUE).write_text(a_value(read_manifest(run).fingerprint).model_dump_json())
    card = render(run)["README.md"].decode()
    assert "## Downstream gain" in card and "2000 pairs" in card.replace(",", "")
    assert "| **pairs of this dataset** | 60.00 [59.00, 61.00] | 1.50 [0.50, 2.50] |" in re.sub(" +", " ", card)
    assert "not trained: no " in card and "no | pairs" not in card
    assert render(run, manifest=read_manifest(run))["README.md"].decode() == before  # a snapshot reads only its files
    (run / VALUE).write_text(a_value("other rows").model_dump_json())
    with pytest.raises(InputError, match="was measured on other rows than the run directory holds; measure again"):
        render(run)


def test_a_measured_value_goes_to_the_hub_and_comes_back_with_the_run(local_hub, hub_api, tmp_path):
    run = tmp_path / "valued-sts"  # a name of its own: other files publish small-sts to the same Hub
    manifest = small_run(run, small_recipe("sts").model_copy(update={"name": "valued-sts"}))
    (run / VALUE).write_text(a_value(manifest.fingerprint).model_dump_json())
    write(run, render(run, f"acme/{manifest.name}"))
    publish(hub_api, run, "acme", True, Options())
    repository = Repository(hub_api, f"acme/{manifest.name}", "dataset")
    remote = repository.branch()
    assert remote is not None
    fetch(repository, remote, manifest, load_recipe(run / "recipe.yaml", DatasetRecipe), tmp_path / "again")
    assert (tmp_path / "again" / VALUE).read_bytes() == (run / VALUE).read_bytes()
    plan = publish(hub_api, run, "acme", False, Options())
    assert not plan.changes and not plan.edits  # the card's stamp covers the value


def test_a_release_asks_for_a_least_value(tmp_path):
    run = dataset_run(tmp_path / "tiny", "sts")
    manifest = read_manifest(run)
    with pytest.raises(InputError, match=r"its downstream gain is not measured \(no value.json\)"):
        require_value(run, manifest, 0)
    (run / VALUE).write_text(a_value(manifest.fingerprint).model_dump_json())
    require_value(run, manifest, 1.5)
    with pytest.raises(RunError, match=r"value, 1\.50 \[0\.50, 2\.50\] points .* is below --min-value 2"):
        require_value(run, manifest, 2)


def test_a_table_says_when_one_seed_was_measured():
    one = a_value("f").model_copy(update={"seeds": (1,)})
    assert "1 seed: intervals over sentence pairs alone" in table(one).splitlines()[0]


def command(python, data, folder, student, *more):
    words = [python, "-m", "sts_dino", "value", str(data), "--split", "validation", "--pairs", "64", "--seeds", "1"]
    words += ["--student", str(student), "--out", str(folder), "--bootstrap-samples", "50", "--no-shuffled", *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow("trains and scores three students by the real stages, killed in between")
def test_a_killed_command_goes_on_and_makes_nothing_twice(data, tmp_path):
    student, out = small_student(tmp_path), tmp_path / "out"
    first = command(sys.executable, data, out, student)
    deadline = time.monotonic() + 300
    while not list(out.glob("arms/untrained-*/encoder/results.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert not (data / VALUE).exists()
    done = {path: path.stat().st_mtime_ns for path in out.glob("arms/*/encoder/results.json")}
    assert done
    second = command(python_in(dict(os.environ)), data, out, student, "--workers", "2")
    shown, said = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert said.count("== sts-dino train") == 3 - len(done)
    assert "not trained: no human-annotated pairs available locally" in shown
    value = TrainingValue.read(data, read_manifest(data))
    assert list(value.arms) == ["untrained", "copies", "dataset"]
    assert len({found.average.score for found in value.arms.values()}) == 3
    shutil.rmtree(out)
