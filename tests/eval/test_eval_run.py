"""The command from recipe or function to results.json, both models under one protocol; bad input is
one line.
"""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from senteval_layout import bag_of_words, one_task, write_senteval
from tiny_lm import make_tokenizer
from training_inputs import write_recipe

from sts_dino.eval.compare.run import compare
from sts_dino.eval.compare.tables import format_results
from sts_dino.eval.encoders.load import wrap
from sts_dino.eval.run import app
from sts_dino.eval.runs.job import parse_seeds
from sts_dino.eval.runs.records import Records, get_records_folder, read_evaluation
from sts_dino.eval.runs.score import make_results, score_encoder, score_tasks
from sts_dino.eval.scoring.bootstrap import EvaluationSettings
from sts_dino.eval.tasks.sources import Source, TaskReader
from sts_dino.hub.cli import run_app
from sts_dino.hub.contract.results import Limit, read_results
from sts_dino.hub.contract.run_dir import Manifest, lock_run, write_manifest
from sts_dino.hub.errors import InputError

STSB = Path(__file__).parents[2] / "assets" / "stsb"
EVALUATION = [
    {"task": "stsb/cosine", "split": "validation", "path": str(STSB / "sts-dev.csv")},
    {"task": "stsb/cosine", "split": "test", "path": str(STSB / "sts-test.csv")},
]
WORDS = "python:test_eval_run:words"


def words(texts):
    return bag_of_words(texts)


words.revision = "1"


def save_encoder(folder, seed):
    """Random static token embeddings: word overlap, so scores well above zero."""
    torch.manual_seed(seed)
    SentenceTransformer(
        modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)]
    ).save_pretrained(str(folder), create_model_card=False)


def command(*arguments):
    """``sts-dino score`` with these words: its exit code."""
    sys.argv = ["sts_dino.eval.run", *map(str, arguments)]
    with pytest.raises(SystemExit) as stopped:
        run_app(app)
    return stopped.value.code or 0


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    save_encoder(folder / "model", 1)
    save_encoder(folder / "model.base", 2)
    manifest = Manifest(
        kind="model", name="tiny", version="0.1.0", fingerprint="abc", complete=True
    )
    write_manifest(folder / "model", manifest)
    recipe = write_recipe(folder, evaluation=EVALUATION, bootstrap_samples="100")
    assert command(recipe, "--model", folder / "model") == 0
    return folder


def test_results_hold_both_models_under_one_protocol_and_a_second_run_agrees(scored, capsys):
    first = (scored / "model" / "results.json").read_text()
    results = read_results(scored / "model" / "results.json")
    assert (results.model, results.fingerprint, results.bootstrap_samples) == ("model", "abc", 100)
    assert [score.n for score in results.scores] == [1500, 1379]
    for gain, (before, after) in zip(results.gains, results.list_score_pairs(), strict=True):
        assert (before.protocol, before.data_sha256) == (after.protocol, after.data_sha256)
        assert all(
            one.low < one.main_score < one.high and set(one.other) == {"pearson"}
            for one in (before, after)
        )
        assert gain.difference == pytest.approx(after.main_score - before.main_score)
        assert gain.low < gain.difference < gain.high
    assert command(scored / "recipe.yaml", "--model", scored / "model") == 0
    captured = capsys.readouterr()
    assert (scored / "model" / "results.json").read_text() == first and captured.err.count(
        "(kept)"
    ) == 4
    scores, differences = captured.out.split("\n\n")[:2]
    assert scores.splitlines()[0].split() == [
        "task",
        "split",
        "rows",
        "before",
        "training",
        "trained",
    ]
    assert (
        "stsb/cosine  test        1379 pairs" in scores
        and "stsb/cosine  test        spearman" in differences
    )


def test_the_run_directory_has_every_score_of_this_very_model(tmp_path):
    """A later ``--tasks`` joins the recipe's scores, for the card; the recipe again loses none;
    other weights do.
    """
    model, recipe = (
        tmp_path / "model",
        write_recipe(tmp_path, evaluation=EVALUATION[:1], bootstrap_samples="20"),
    )

    def save(seed, fingerprint):
        save_encoder(model, seed)
        manifest = Manifest(
            kind="model", name="tiny", version="0.1.0", fingerprint=fingerprint, complete=True
        )
        write_manifest(model, manifest)

    def splits(*options):
        assert command(recipe, "--model", model, *options) == 0
        return [score.split for score in read_results(model / "results.json").scores]

    save(1, "abc")
    assert splits() == ["validation"]
    assert splits("--tasks", "stsb/cosine") == splits() == ["validation", "test"]
    save(3, "def")
    assert splits() == ["validation"]


def test_part_of_the_data_never_lands_in_the_run_directory(scored):
    before = (scored / "model" / "results.json").read_text()
    assert command(scored / "recipe.yaml", "--model", scored / "model", "--limit", 50) == 0
    part = read_results(scored / "model.evaluation.limit-50-seed-42" / "results.json")
    assert part.limit == part.scores[0].limit == Limit(rows=50, seed=42) and part.scores[0].n == 50
    assert (scored / "model" / "results.json").read_text() == before
    assert len(read_evaluation(scored / "model").read_outcomes("stsb/cosine", "test")) == 1379


def test_a_trial_replaces_no_whole_evaluation_nor_the_other_way_round(tmp_path, capsys):
    options = [
        "--model",
        WORDS,
        "--tasks",
        "stsb/cosine",
        "--set",
        "bootstrap_samples=20",
        "--out",
        tmp_path / "out",
    ]
    assert command(*options, "--limit", 50) == 0
    assert (
        "ONLY 50 rows of each split, drawn with seed 42: a trial, no scores"
        in capsys.readouterr().out
    )
    assert command(*options) == 2
    said = capsys.readouterr().err
    assert (
        "holds an evaluation of 50 rows of each split, drawn with seed 42, this one is of all rows"
        in said
    )
    assert command(*options, "--limit", 50, "--set", "seed=7") == 2


def test_what_lacks_its_data_ends_in_exit_code_1_unless_it_is_skipped_by_name(tmp_path, capsys):
    model = ["--model", WORDS, "--tasks", "sts", "--limit", 20, "--set", "bootstrap_samples=20"]
    assert command(*model, "--out", tmp_path / "out") == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "left out, because no source of their data is given: sts12/all,sts12/mean" in last
    assert (tmp_path / "out" / "results.json").is_file()
    assert command(*model, "--out", tmp_path / "out", "--skip", last.rpartition("--skip ")[2]) == 0


def test_every_kind_of_task_gets_score_interval_data_and_time(tmp_path):
    data = TaskReader(Source(senteval=write_senteval(tmp_path / "senteval", rows=30), pins={}))
    names = (
        "sts12/all",
        "mr/lbfgs",
        "mrpc/lbfgs",
        "sick-e/lbfgs",
        "sick-r/regression",
        "tense/lbfgs",
    )
    settings, encoder = EvaluationSettings(bootstrap_samples=50), wrap(bag_of_words, "words", "r1")
    scored = score_tasks(
        list(map(one_task, names)), data, encoder, Records(tmp_path / "words"), settings, None
    )
    assert not scored.failures
    results = make_results(scored)
    found = {score.task: score for score in results.scores}
    assert all(score.low <= score.main_score <= score.high for score in results.scores)
    assert all(len(score.data_sha256 or "") == 64 for score in results.scores)
    assert found["mr/lbfgs"].split == "all"
    assert found["mrpc/lbfgs"].unit == "pairs" and "f1" in found["mrpc/lbfgs"].other
    assert found["sick-r/regression"].seeds == (1111,)
    assert found["tense/lbfgs"].seconds["probing"] > 0 and found["tense/lbfgs"].main_score > 80
    lines = format_results(results).splitlines()
    assert len(lines) == 1 + len(results.scores) and lines[0].endswith("probing s")


def blind_to_validation(texts):
    """The same embedding for every sentence of STSb's validation part."""
    seen = (STSB / "sts-dev.csv").read_text(encoding="utf-8")
    return np.where(np.array([[f"\t{text}" in seen] for text in texts]), 1.0, bag_of_words(texts))


def test_an_undefined_score_ends_in_exit_code_1_with_the_others_written(tmp_path, capsys):
    model = ["--model", "python:test_eval_run:blind_to_validation"]
    assert command(*model, "--tasks", "stsb/cosine", "--limit", 40, "--out", tmp_path / "out") == 1
    captured = capsys.readouterr()
    assert (
        "stsb/cosine validation, python:test_eval_run:blind_to_validation: not scored"
        in captured.err
    )
    assert "undefined" in captured.err
    scores = read_results(tmp_path / "out" / "results.json").scores
    assert [(score.task, score.split) for score in scores] == [("stsb/cosine", "test")]
    assert "stsb/cosine  test" in captured.out


def test_dry_run_reads_the_data_and_no_model(scored, capsys):
    assert command(scored / "recipe.yaml", "--model", "org/none", "--dry-run") == 0
    assert "stsb/cosine test: 1379 pairs" in capsys.readouterr().out


def test_a_second_process_on_the_same_folder_is_refused(scored, capsys):
    with lock_run(get_records_folder(scored / "model")):
        assert command(scored / "recipe.yaml", "--model", scored / "model") == 1
    assert "another process is working on this run" in capsys.readouterr().err


def test_a_gain_is_what_a_comparison_with_the_base_says(scored, tmp_path):
    """Same difference, interval, test, correction and verdict: cards show the one, people read the
    other.
    """
    base = get_records_folder(scored / "model") / "base"
    compare([scored / "model", base], tmp_path / "compared")
    with (tmp_path / "compared" / "differences.csv").open(encoding="utf-8", newline="") as lines:
        reported = {row["split"]: row for row in csv.DictReader(lines)}
    gains = read_results(scored / "model" / "results.json").gains
    assert [gain.split for gain in gains] == ["validation", "test"]
    for gain in gains:
        row = reported[gain.split]
        numbers = [float(row[name]) for name in ("difference", "low", "high", "p", "p_holm")]
        assert numbers == [gain.difference, gain.low, gain.high, gain.p, gain.p_holm]
        assert (row["test"], row["verdict"]) == (gain.test, gain.verdict)


def test_the_pages_example_for_notebooks_scores_an_encoder(capsys):
    page = (Path(__file__).parents[2] / "docs" / "protocols.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "docs/protocols.md", "exec"), {})
    assert "stsb/cosine" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--out", "--cache"])
@pytest.mark.parametrize("name", ["", "made"])
def test_a_folder_whose_files_would_change_the_revision_is_refused(scored, option, name, capsys):
    model = scored / "model"
    refused = (scored / "recipe.yaml", "--model", model, option, model / name)
    assert command(*refused) == 2
    assert f"lies in the model folder {model}: its files would change" in capsys.readouterr().err
    assert command(*refused[:-1], model / ".hidden", "--dry-run") == 0


def test_notebooks_learn_of_bad_tasks_before_the_encoder_is_loaded():
    with pytest.raises(InputError, match="unknown name 'stsb/cosin'"):
        score_encoder("no/encoder@nowhere", ["stsb/cosin"])
    with pytest.raises(InputError, match="tasks: name no task whose data are given"):
        score_encoder("no/encoder@nowhere", ["transfer"])


def test_a_skip_that_leaves_no_task_is_the_named_cause(tmp_path, capsys):
    options = ("--tasks", "stsb/cosine", "--skip", "sts", "--out", tmp_path / "out")
    assert command("--model", tmp_path, *options) == 2
    assert "--tasks: names no task that --skip leaves" in capsys.readouterr().err


@pytest.mark.parametrize("seeds", ["1,01", "4294967296", "-1", "1.5", "9" * 5000])
def test_seeds_that_numpy_refuses_or_that_repeat_are_refused(seeds):
    with pytest.raises(InputError, match=r"--seeds: .* are not distinct seeds; allowed: e.g. 1111"):
        parse_seeds([seeds])
    assert parse_seeds(["0,4294967295", " 7 "]) == (0, 4294967295, 7)
    assert parse_seeds([]) == (1111,)
