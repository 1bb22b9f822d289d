"""The annotation page's components, without a browser: they speak the language that was asked for."""

import json

from small_runs import small_recipe, small_run
from typer.testing import CliRunner

from eval.annotate import app
from eval.audit.page import application
from eval.audit.source import find_rows
from eval.audit.survey import AnswerStore, Survey, draw, read_examples


def test_the_page_speaks_the_language_that_was_asked_for(tmp_path):
    run = tmp_path / "run"
    small_run(run, small_recipe("sts"))
    sample = draw(read_examples(find_rows(str(run)), "de"), 4, seed=42)
    (mounted,) = (route.app for route in application(Survey(sample, AnswerStore(tmp_path, sample.examples))).routes)
    shown = json.dumps(mounted.get_blocks().get_config_file(), ensure_ascii=False, default=str)
    for words in ("Ergebnisse zeigen", "Satz 1", "Wie ähnlich sind sich", "0.5: ähneln sich ein wenig", "← Zurück"):
        assert words in shown
    assert not [words for words in ("Show the results", "Sentence 1", "Your name", "Forward") if words in shown]
    refused = CliRunner().invoke(app, [str(run), "--language", "fr"]).exception
    assert "'fr' is not spoken by the page; allowed: en, de" in str(refused)
