"""eval.run: results.json of model and base, the table, and refusals without a traceback."""

import sys
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tiny_lm import make_tokenizer
from training_inputs import write_recipe

from eval.run import app, default_base, main, results_path
from hub.cli import run
from hub.results import read_results
from hub.run_dir import Manifest, write_manifest

STSB = Path(__file__).parent.parent / "assets" / "stsb"
EVALUATION = [
    {"task": "stsb/cosine", "split": "validation", "path": str(STSB / "sts-dev.csv")},
    {"task": "stsb/cosine", "split": "test", "path": str(STSB / "sts-test.csv")},
]


def save_encoder(folder, seed):
    """Random static token embeddings: word overlap, so scores well above zero."""
    torch.manual_seed(seed)
    SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=16)]).save_pretrained(
        str(folder), create_model_card=False
    )


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored")
    save_encoder(folder / "model", 1)
    save_encoder(folder / "model.base", 2)
    manifest = Manifest(kind="model", name="tiny", version="0.1.0", fingerprint="abc", complete=True)
    write_manifest(folder / "model", manifest)
    recipe = write_recipe(folder, evaluation=EVALUATION, bootstrap_samples="100")
    main(recipe, model=str(folder / "model"))
    return folder


def test_results_hold_both_models_under_one_protocol(scored):
    results = read_results(scored / "model" / "results.json")
    assert (results.model, results.fingerprint, results.bootstrap_samples) == ("model", "abc", 100)
    assert [score.n for score in results.scores] == [1500, 1379]
    for before, after in results.pairs_of_scores():
        assert before.protocol == after.protocol
        assert before.data_sha256 == after.data_sha256
        for score in (before, after):
            assert score.low < score.main_score < score.high
            assert set(score.other) == {"pearson"}
    for gain, (before, after) in zip(results.gains, results.pairs_of_scores(), strict=True):
        assert gain.difference == pytest.approx(after.main_score - before.main_score)
        assert gain.low < gain.difference < gain.high


def test_the_table_goes_to_stdout_and_a_second_run_agrees(scored, capsys):
    first = (scored / "model" / "results.json").read_text()
    main(scored / "recipe.yaml", model=str(scored / "model"))
    captured = capsys.readouterr()
    assert (scored / "model" / "results.json").read_text() == first
    assert captured.out.splitlines()[0].split() == ["task", "split", "metric", "pairs", "before", "after", "gain"]
    assert "stsb/cosine  test        spearman  1379" in captured.out
    assert "stsb" in captured.err  # progress


def test_part_of_the_data_never_lands_in_the_run_directory(scored, capsys):
    before = (scored / "model" / "results.json").read_text()
    main(scored / "recipe.yaml", model=str(scored / "model"), out=scored / "part.json", limit=50)
    part = read_results(scored / "part.json")
    assert part.scores[0].protocol.endswith("ONLY the first 50 pairs")
    assert part.scores[0].n == 50
    assert results_path(None, str(scored / "model"), 50) is None
    assert (scored / "model" / "results.json").read_text() == before


def test_the_untrained_student_is_found_beside_the_model(scored):
    assert default_base(str(scored / "model")) == str(scored / "model.base")
    assert default_base(str(scored / "model.base")) is None


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "evaluation.0.path=none.csv"], 2, "none.csv: no such data file"),
        (["--set", f"evaluation.0.path={STSB / 'readme.txt'}"], 2, "readme.txt:1: has 1 tab-separated columns"),
        (["--set", "evaluation.0.task=stsb/cos"], 2, "did you mean 'stsb/cosine'"),
        (["--set", "evaluation=[]"], 2, "names no task"),
        (["--model", "artifacts/models/none"], 2, "no such model folder; train it first"),
        (["--model", str(STSB)], 2, "is not a SentenceTransformer model"),
        (["--model", "org/name"], 1, "read org/name at http://127.0.0.1:9: the Hub cannot be reached"),
    ],
)
def test_bad_input_ends_in_one_line(scored, monkeypatch, capsys, options, code, message):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(sys, "argv", ["eval.run", str(scored / "recipe.yaml"), *options])
    with pytest.raises(SystemExit) as stopped:
        run(app)
    error = capsys.readouterr().err
    assert stopped.value.code == code
    assert message in error
    assert "Traceback" not in error


def test_dry_run_reads_the_data_and_no_model(scored, capsys):
    main(scored / "recipe.yaml", model="org/none", dry_run=True)
    assert "stsb/cosine test: 1379 pairs" in capsys.readouterr().out


def test_an_unfinished_model_is_refused(scored, tmp_path, monkeypatch, capsys):
    save_encoder(tmp_path / "model", 1)
    manifest = Manifest(kind="model", name="tiny", version="0.1.0", fingerprint="abc")
    write_manifest(tmp_path / "model", manifest)
    arguments = ["eval.run", str(scored / "recipe.yaml"), "--model", str(tmp_path / "model")]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        run(app)
    assert stopped.value.code == 2
    assert "the run is not finished" in capsys.readouterr().err
