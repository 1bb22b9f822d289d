"""sts-dino value: variants of equal size, trained and scored once, resumed after a kill; refusals
first.
"""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
import typer
import yaml
from card_runs import dataset_run
from forked_python import python_in
from planted_evaluations import evaluation, planted
from tiny_lm import make_lm
from training_inputs import sts_rows, triplet_rows, write_dataset

import sts_dino.release.value as value_module
from sts_dino.hub.contract.measured import VALUE, TrainingValue, require_value
from sts_dino.hub.contract.recipe import ModelRecipe
from sts_dino.hub.contract.recipe_file import load_recipe, read_yaml, validate_recipe
from sts_dino.hub.contract.run_dir import Manifest, read_manifest, write_manifest
from sts_dino.hub.contract.schema import TRIPLET
from sts_dino.hub.contract.shards import read_table
from sts_dino.hub.errors import InputError, RunError
from sts_dino.model_cards.render import render
from sts_dino.release.value import (
    STUDENT,
    Experiment,
    Training,
    hash_training,
    make_simcse_triplets,
    make_variant_recipe,
    read_dataset,
    read_human_pairs,
    read_student,
    replace_training_data,
    shuffle_scores,
    write_pairs,
)

pytest_plugins = ["local_hub"]
DEV = Path(__file__).parents[2] / "assets/stsb/sts-dev.csv"


@pytest.fixture
def data(tmp_path):
    return write_dataset(
        tmp_path / "pairs", {"train": sts_rows(90), "validation": sts_rows(24, seed=1)}
    )


@pytest.fixture
def stages(monkeypatch, tmp_path):
    """Quick stages: a training leaves a manifest, a score is planted by the variant's name."""
    calls = []

    def run_stage(command, *words, stop=None):
        calls.append((command, Path(words[0])))
        recipe, model = load_recipe(Path(words[0]), ModelRecipe), Path(words[2])
        if command == "train":
            model.mkdir(parents=True)
            manifest = Manifest(
                kind="model", name=recipe.name, version="1.0.0", fingerprint="f", complete=True
            )
            write_manifest(model, manifest)
            return
        quality = {"untrained": 0.2, "shuffled": 0.3, "copies": 0.5, "dataset": 0.6, "people": 0.8}
        variant = model.parent.name.split("-")[0]
        folder = model.with_name(f"{model.name}.evaluation")
        tasks = {
            entry.task: planted(entry.task, quality[variant] + recipe.seed / 100)
            for entry in recipe.evaluation
        }
        evaluation(folder, variant, tasks, split=recipe.evaluation[0].split)
        results = (
            (folder / "results.json")
            .read_text()
            .replace('"fingerprint": null', '"fingerprint": "f"')
        )
        (model / "results.json").write_text(results)

    monkeypatch.setattr(value_module, "run_stage", run_stage)
    return calls


def measure(*places, out, **more):
    """The command with its defaults, on the planted task of the validation split."""
    given = {
        "senteval_data": out.parent / "senteval",
        "split": "validation",
        "pairs": 60,
        "seeds": "1-2",
    }
    given |= {
        "config": None,
        "student": STUDENT,
        "settings": [],
        "with_shuffled": True,
        "workers": 1,
        "samples": 50,
    }
    given |= {"people": DEV}
    (out.parent / "senteval/downstream").mkdir(parents=True, exist_ok=True)
    value_module.main(datasets=list(map(str, places)), **given | more, out=out, as_json=False)


def trainings(stages) -> int:
    return sum(command == "train" for command, _ in stages)


def test_every_variant_has_as_many_pairs_and_the_value_is_written_and_printed(
    data, stages, tmp_path, capsys
):
    measure(data, out=tmp_path / "out", split="test")
    value = TrainingValue.read(data, read_manifest(data))
    assert value is not None and list(value.variants) == [
        "untrained",
        "copies",
        "shuffled",
        "dataset",
        "people",
    ]
    assert (value.pairs, value.seeds, value.split, value.skipped) == (60, (1, 2), "test", {})
    with_pairs, without = (value.variants[name].average.score for name in ("dataset", "copies"))
    assert value.gain.score == pytest.approx(with_pairs - without)
    assert value.gain.low > 0 > value.variants["shuffled"].over_simcse.high
    trained = [load_recipe(path, ModelRecipe) for command, path in stages if command == "train"]
    with_data = [one for one in trained if one.datasets]
    assert (len(trained), len(with_data)) == (1 + 2 * 4, 2 * 4)
    assert {read_manifest(Path(one.datasets[0].path)).files[0].rows for one in with_data} == {60}
    assert {one.arguments["max_steps"] for one in with_data} == {"750"}
    simcse = [
        one.datasets[0].loss for one in with_data if one.datasets[0].example_type == "triplet"
    ]
    assert simcse == ["MultipleNegativesRankingLoss"] * 2
    assert capsys.readouterr().out.startswith(
        "pairs (postprocessed): 60 pairs, 2 seeds, test, Spearman x 100\n"
    )


def test_a_second_call_trains_nothing_and_a_change_trains_only_what_it_affects(
    data, stages, tmp_path
):
    def trained(**more) -> list[str]:
        stages.clear()
        measure(data, out=tmp_path / "out", **more)
        return [path.parent.name.split("-")[0] for command, path in stages if command == "train"]

    assert len(trained()) == 9
    first = (data / VALUE).read_bytes()
    assert trained() == [] and not stages and (data / VALUE).read_bytes() == first
    assert len(trained(seeds="1-3")) == 4
    # the untrained one has no learning rate
    assert len(trained(settings=["arguments.learning_rate=1e-3"])) == 8
    # SimCSE has a loss of its own
    again = trained(settings=["datasets.0.loss=CosineSimilarityLoss"])
    assert sorted(set(again)) == ["dataset", "people", "shuffled"] and len(again) == 6


def test_workers_change_nothing_and_two_datasets_share_equal_variants(data, stages, tmp_path):
    measure(data, out=tmp_path / "alone", seeds="1")
    alone = (data / VALUE).read_bytes()
    stages.clear()
    other = write_dataset(tmp_path / "other", {"train": sts_rows(90, seed=5)})
    measure(data, other, out=tmp_path / "out", seeds="1", workers=2)
    assert trainings(stages) == 1 + 2 * 3 + 1 and (other / VALUE).is_file()
    assert (data / VALUE).read_bytes() == alone


def test_a_variant_is_left_out_with_its_reason(data, stages, tmp_path, capsys):
    measure(data, out=tmp_path / "out", with_shuffled=False, people=None)
    value = TrainingValue.read(data, read_manifest(data))
    people = "no human-annotated pairs available locally (--people FILE)"
    assert value.skipped == {"shuffled": "left out (--no-shuffled)", "people": people}
    assert not {*value.skipped} & {*value.variants} and trainings(stages) == 1 + 2 * 2
    assert f"not trained: {people}" in capsys.readouterr().out


def test_a_stage_that_fails_is_named_with_variant_and_seed_and_nothing_is_written(
    data, stages, tmp_path, monkeypatch
):
    def diverges(command, *words, stop=None):
        raise typer.Exit(1)

    monkeypatch.setattr(value_module, "run_stage", diverges)
    with pytest.raises(RunError, match=r"untrained, seed 1: train failed; its error is above"):
        measure(data, out=tmp_path / "out")
    assert not (data / VALUE).exists()


def test_draws_and_baselines_follow_the_seed(data, tmp_path):
    pairs = read_dataset(str(data)).pairs
    assert len(pairs.firsts) == 90  # of the train split alone
    rows = pairs.draw(40, 1)
    assert rows == pairs.draw(40, 1) != pairs.draw(40, 2)
    permuted = shuffle_scores(rows, 1)
    assert permuted == shuffle_scores(rows, 1) != shuffle_scores(rows, 2)
    assert sorted(row["score"] for row in permuted) == sorted(row["score"] for row in rows)
    assert [row | {"score": 0} for row in permuted] == [row | {"score": 0} for row in rows]
    found = make_simcse_triplets(rows, 1, "here")
    assert (
        [row["anchor"] for row in found]
        == [row["positive"] for row in found]
        == [r["sentence1"] for r in rows]
    )
    assert all(row["negative"] != row["anchor"] for row in found) and found == make_simcse_triplets(
        rows, 1, "here"
    )
    with pytest.raises(InputError, match="one source sentence only"):
        make_simcse_triplets([rows[0], rows[0]], 1, "here")
    folder = write_pairs(tmp_path / "variants", rows)
    assert write_pairs(tmp_path / "variants", rows) == folder
    assert read_table(folder / read_manifest(folder).files[0].path).num_rows == 40


def test_data_that_hold_no_scored_pairs_are_refused(stages, tmp_path):
    triplets = write_dataset(
        tmp_path / "triplets", {"train": triplet_rows(9)}, config="triplet", form=TRIPLET
    )
    with pytest.raises(InputError, match=r"has no scores; allowed: .*'score'"):
        measure(triplets, out=tmp_path / "out")
    found = read_human_pairs(DEV)
    assert len(found.firsts) == 1500 and (min(found.scores), max(found.scores)) == (0, 1)
    lines = [f"main\tfile\t2012\t1\t{score}\tA dog runs.\tA cat sleeps." for score in (1, 5, 8)]
    (tmp_path / "pairs.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=r"line 3: has the score 8; allowed: 0 to 5"):
        read_human_pairs(tmp_path / "pairs.csv")


def test_an_encoder_may_read_pairs_as_several_example_types_and_the_baselines_as_one():
    place = {
        "path": "pairs",
        "config": "pairs",
        "license": "mit",
        "loss": "MultipleNegativesRankingLoss",
    }
    graded = {**place, "example_type": "graded-triplet", "grades": {"negative_to": 0.3}}
    student = read_student(
        STUDENT, [f"datasets={json.dumps([graded, {**place, 'example_type': 'self-pair'}])}"]
    )
    experiment = Experiment(student, 60, (1,), "validation", 100, Path("out"), (), 1)

    def types(variant) -> list[tuple[str, bool]]:
        recipe = validate_recipe(
            STUDENT,
            ModelRecipe,
            make_variant_recipe(experiment, Training(variant, 1, Path("here"))),
        )
        assert {one.path for one in recipe.datasets} == {"here"}
        return [(one.example_type, one.grades is None) for one in recipe.datasets]

    assert types("dataset") == [("graded-triplet", False), ("self-pair", True)]
    assert (types("copies"), types("people")) == ([("triplet", True)], [("sts", True)])


def test_a_variant_without_the_teacher_is_not_under_its_licence():
    place = {"path": "pairs", "config": "pairs", "license": "mit"}
    teacher = {"path": "teacher", "license": "gemma"}
    taught = {**place, "example_type": "sts", "loss": "CorrelationLoss", "teacher": teacher}
    student = read_student(STUDENT, [f"datasets={json.dumps([taught])}", "license=gemma"])
    experiment = Experiment(student, 60, (1,), "validation", 100, Path("out"), (), 1)
    licence_of = {}
    for variant in ("dataset", "copies"):
        training = Training(variant, 1, Path("here"))
        licence_of[variant] = make_variant_recipe(experiment, training)["license"]
    assert licence_of["dataset"] == "gemma" and licence_of["copies"] != "gemma"


@pytest.mark.parametrize("variant", ["dataset", "copies", "people"])
def test_pairs_in_the_place_of_a_hub_dataset_take_the_recipes_licence(variant):
    tree = read_yaml(Path("recipes/small/minilm-sts-dino.yaml"))
    (found,) = replace_training_data(tree, variant, Path("here"), "pairs", 1)["datasets"]
    assert (found["path"], found["license"]) == ("here", tree["license"])
    assert not {"repo_id", "revision"} & found.keys()


def test_an_evaluation_encoder_is_a_recipe_of_datasets_by_path_without_validation(
    data, stages, tmp_path
):
    dropout = STUDENT.with_name("value-student-dropout.yaml")
    measure(data, out=tmp_path / "out", student=dropout, seeds="1")
    recipes = [load_recipe(path, ModelRecipe) for command, path in stages if command == "train"]
    assert {(bool(one.datasets), one.token_dropout) for one in recipes} == {
        (True, 0.1),
        (False, 0.0),
    }
    plain = read_student(STUDENT)
    assert plain.sha256 not in (
        read_student(dropout).sha256,
        read_student(STUDENT, ["batch_size=64"]).sha256,
    )
    assert (
        plain.sha256 == read_student(STUDENT, ["seed=1", "version=2.0.0", "token_dropout=0"]).sha256
    )


def test_a_base_beside_the_recipe_of_an_evaluation_encoder_is_found_from_anywhere(tmp_path):
    tree = read_yaml(STUDENT)
    tree["base"]["path"] = "own-base"
    (tmp_path / "own-base").mkdir()
    path = tmp_path / "student.yaml"
    path.write_text(yaml.safe_dump(tree))
    assert read_student(path).recipe.base.path == str(tmp_path / "own-base")


def test_the_hash_of_a_training_covers_weights_in_subfolders_of_the_base(tmp_path):
    recipe = read_student(STUDENT).recipe
    # a static encoder has its weights there
    weights = tmp_path / "base/0_StaticEmbedding/model.safetensors"
    weights.parent.mkdir(parents=True)
    base = recipe.base.model_copy(update={"path": str(tmp_path / "base")})
    hashes = set()
    for content in (b"first", b"second"):
        weights.write_bytes(content)
        hashes.add(hash_training(recipe.model_copy(update={"base": base})))
    assert len(hashes) == 2


def a_value(fingerprint, gain=1.5):
    """A value that was measured on the run of this fingerprint."""
    at = {"score": 60.0, "low": 59.0, "high": 61.0}
    variant = {"average": at, "tasks": {"stsb/cosine": 60.0}}
    over = {"score": gain, "low": gain - 1, "high": gain + 1}
    known = {
        "dataset": "tiny-sts",
        "config": "postprocessed",
        "student": "value-student",
        "student_sha256": "0" * 64,
    }
    known |= {
        "base": "assets/demo-lm",
        "pairs": 2000,
        "seeds": [1, 2, 3],
        "tasks": ["stsb/cosine"],
        "samples": 1000,
    }
    variants = {"copies": variant, "dataset": variant | {"over_simcse": over}}
    more = {
        "fingerprint": fingerprint,
        "split": "validation",
        "skipped": {"people": "no | pairs"},
        "versions": {},
    }
    return TrainingValue.model_validate({**known, **more, "variants": variants})


def test_the_card_shows_a_measured_value_and_a_release_asks_for_a_least_one(tmp_path):
    run = dataset_run(tmp_path / "tiny", "sts")
    before, manifest = render(run)["README.md"].decode(), read_manifest(run)
    with pytest.raises(InputError, match=r"its downstream gain is not measured \(no value.json\)"):
        require_value(run, manifest, 0)
    (run / VALUE).write_text(a_value(manifest.fingerprint).model_dump_json())
    files = render(run)
    card = files["DETAILS.md"].decode()
    assert b"unsupervised SimCSE, Spearman x 100: 1.50 [0.50, 2.50]." in files["README.md"]
    assert b"gao-etal-2021-simcse" in files["README.md"] and "gao-etal-2021-simcse" not in before
    assert "| **pairs of this dataset** | 60.00 [59.00, 61.00] | 1.50 [0.50, 2.50] |" in re.sub(
        " +", " ", card
    )
    assert (
        "2000 pairs" in card.replace(",", "")
        and "not trained: no " in card
        and "no | pairs" not in card
    )
    require_value(run, manifest, 1.5)
    with pytest.raises(
        RunError, match=r"gain, 1\.50 \[0\.50, 2\.50\] points .* is below --min-value 2"
    ):
        require_value(run, manifest, 2)
    with pytest.raises(RunError, match="is below --min-value nan"):
        require_value(run, manifest, float("nan"))


def command(data, folder, student, *more):
    words = [
        python_in(dict(os.environ)),
        "-m",
        "sts_dino",
        "value",
        str(data),
        "--split",
        "validation",
        "--seeds",
        "1",
    ]
    words += [
        "--pairs",
        "64",
        "--student",
        str(student),
        "--out",
        str(folder),
        "--bootstrap-samples",
        "50",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*words, "--no-shuffled", *more], **pipes)


@pytest.mark.slow("trains and scores three encoders by the real stages, killed in between")
def test_a_killed_command_goes_on_and_makes_nothing_twice(data, tmp_path):
    student, out, tree = (
        tmp_path / "student.yaml",
        tmp_path / "out",
        yaml.safe_load(STUDENT.read_text()),
    )
    tree["base"]["path"] = str(make_lm(tmp_path / "lm"))
    tree["arguments"] |= {"max_steps": 4}
    student.write_text(yaml.safe_dump(tree))
    first = command(data, out, student)
    deadline = time.monotonic() + 300
    while (
        not list(out.glob("variants/untrained-*/encoder/results.json"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    first.kill()
    first.communicate()
    assert not (data / VALUE).exists()
    done = {path: path.stat().st_mtime_ns for path in out.glob("variants/*/encoder/results.json")}
    assert done
    second = command(data, out, student, "--workers", "2")
    shown, said = second.communicate(timeout=600)
    assert second.returncode == 0, said
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert said.count("== sts-dino train") == 3 - len(done)
    assert "not trained: no human-annotated pairs available locally" in shown
    value = TrainingValue.read(data, read_manifest(data))
    assert list(value.variants) == ["untrained", "copies", "dataset"]
    assert len({found.average.score for found in value.variants.values()}) == 3
