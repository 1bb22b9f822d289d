"""What the release hands on to the evaluation: the very options that the evaluation takes."""

import sys
from pathlib import Path

import pytest
import typer

from eval import run as evaluation
from hub.cli import run
from release.options import EvaluationOptions, words_of
from release.run import app

ALL = EvaluationOptions(["papers", "mteb/STS17"], ["snli/senteval"], Path("senteval"), Path("sts"), "org/data@v1")


def test_the_evaluation_takes_every_option():
    words = words_of(ALL)
    assert words[:4] == ["--tasks", "papers", "--tasks", "mteb/STS17"]
    taken = {name for parameter in typer.main.get_command(evaluation.app).params for name in parameter.opts}
    assert set(words[::2]) <= taken
    parsed = typer.main.get_command(evaluation.app).make_context("eval.run", ["recipe.yaml", *words]).params
    assert (parsed["tasks"], parsed["skip"]) == (["papers", "mteb/STS17"], ["snli/senteval"])
    assert (parsed["senteval_data"], parsed["sts_data"]) == (Path("senteval"), Path("sts"))
    assert parsed["hub_data"] == "org/data@v1"


def test_to_score_something_and_to_make_nothing_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["release.run", "recipes/demo", "--again", "--tasks", "papers"])
    with pytest.raises(SystemExit) as stopped:
        run(app)
    assert stopped.value.code == 2 and "--again: scores nothing" in capsys.readouterr().err
