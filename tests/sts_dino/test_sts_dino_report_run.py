"""The report of whole runs: what it tells, that nothing of a model's text works in it, where it goes."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_model_cards_runs import FEW_SHOT, card_of, dataset_run, model_run, rows_of, score
from test_sts_dino_report_pairs import make_encoder
from typer.testing import CliRunner

from eval.audit.source import find_rows
from eval.audit.survey import AnswerStore, read_examples
from eval.encoders.load import content_hash
from hub.client.publish import snapshot_of
from hub.contract.run_dir import MANIFEST, read_manifest
from hub.errors import InputError
from sts_dino.report.collect import Correlation, Judgements
from sts_dino.report.run import app, report
from sts_dino.report.words import not_measured

HOSTILE = (
    "<script>x</script><img src=x onerror=y>",
    "a\u202eb\x1b[31m {{ 7*7 }}",
    "x" * 5000,
    "Straße „ü“ 5 €",
    "</style><!--",
)
TEXTS = ("A man plays.", "Two dogs run on the beach.", "A man sings.", "A dog sleeps.")
WORKING = {"script", "link", "img", "iframe", "object", "embed", "form", "base", "video", "audio"}


class Page(HTMLParser):
    """The elements and attributes of a page, and its text."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.names, self.text = list[str](), set[str](), ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def change(directory: Path, **changes) -> Path:
    facts = json.loads((directory / MANIFEST).read_text())
    (directory / MANIFEST).write_text(json.dumps({**facts, **changes}))
    return directory


@pytest.mark.parametrize("form", ["sts", "nli", "text"])
def test_a_models_text_is_shown_and_does_nothing(tmp_path, form):
    report([dataset_run(tmp_path / "run", form, texts=HOSTILE)], tmp_path / "report.html")
    source, page = (tmp_path / "report.html").read_text(), Page(tmp_path / "report.html")
    assert not {*page.tags} & WORKING and not [name for name in page.names if name.startswith("on")]
    assert "<script>x</script><img" in page.text and "a\ufffdb\ufffd[31m {{ 7*7 }}" in page.text
    assert "Straße „ü“ 5 €" in page.text and "… (5,000 characters)" in page.text and "x" * 401 not in source
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in source


def test_dataset_and_encoder_are_told_with_their_numbers(tmp_path):
    dataset = dataset_run(tmp_path / "sts", "sts")
    model = model_run(tmp_path / "encoder", (score(),))
    (tmp_path / "sts.timing.json").write_text('{"seconds": 10.0, "rows": 50, "peak_rss_mb": 1.0}')
    (tmp_path / "sts.usage.json").write_text('{"prompt_tokens": 1200, "completion_tokens": 34, "cost": 0.5}')
    (tmp_path / "out.cosines.json").write_text("not read: no encoder can be loaded")
    people = Judgements(12, (Correlation("tiny", 61.0, 50.0, 70.0),), "Asked twice.")
    model_alone = report([model], tmp_path / "model.html")
    facts = report([dataset], tmp_path / "out.html", ["make it --now"], people)
    told, of_model = Page(tmp_path / "out.html").text, Page(tmp_path / "model.html").text
    for words in (
        "14 texts, of which 10 (71\u00a0%) were kept",
        "a line break inside the text",
        "1,200 read, 34 written",
    ):
        assert words in told
    for words in (
        "make it --now",
        "12 pairs were judged",
        "61.0",
        "50.0\u00a0to\u00a070.0",
        "Asked twice.",
        "CC BY-SA 4.0",
        "0.5000",
    ):
        assert words in told
    assert "trained on 1,200 rows in 40 steps and scores 70.1 [69.1,\u00a071.1] on stsb/cosine test" in of_model
    assert "step 30 was kept" in of_model and "40.0\u00a0[39.0,\u00a041.0]" in of_model and "Hollow circle" in of_model
    assert "Hollow diamond" not in of_model and any("copies control" in line for line in not_measured(model_alone))
    missing = not_measured(facts)
    assert any("no trained encoder is in this report" in line for line in missing)
    assert not any(line.startswith(("People", "Time", "Money")) for line in missing)


def test_what_is_not_there_is_said(tmp_path):
    growing = dataset_run(tmp_path / "growing", "sts", texts=HOSTILE)
    raw = [one for one in json.loads((growing / MANIFEST).read_text())["files"] if one["config"] == "raw"]
    change(growing, complete=False, counts={"shards_done": 1, "shards_total": 4}, files=raw, provenance={})
    begun = change(model_run(tmp_path / "begun"), complete=False, provenance={})
    whole = model_run(tmp_path / "whole")
    facts = report([growing, begun, replaced_counts(dataset_run(tmp_path / "all", "sts"))], tmp_path / "report.html")
    told = Page(tmp_path / "report.html").text
    for words in (
        "1 of 4 shards are done (25%)",
        "The first rows of each label",
        "This training is not finished",
        "Nothing was rejected.",
    ):
        assert words in told
    assert any("until its training is finished" in line for line in not_measured(facts))
    assert "It was not scored." in Page(written(whole, tmp_path)).text
    report([dataset_run(tmp_path / "few", "nli", changes={"few_shot": FEW_SHOT})], tmp_path / "few.html")


def replaced_counts(directory: Path) -> Path:
    """A run of which nothing was rejected."""
    counts = json.loads((directory / MANIFEST).read_text())["counts"]
    kept = {label: {"requested": 5, "kept": 5, "rejected": 0} for label in counts["by_label"]}
    return change(directory, counts={**counts, "requested": 10, "kept": 10, "rejected": {}, "by_label": kept})


def written(run: Path, folder: Path) -> Path:
    report([run], folder / "one.html")
    return folder / "one.html"


def test_in_a_run_it_is_published_with_it_and_its_card_links_it(tmp_path):
    for run in (dataset_run(tmp_path / "sts", "sts"), model_run(tmp_path / "encoder", (score(),))):
        hashed, card = content_hash(run), card_of(run)
        done = CliRunner().invoke(app, [str(run)])
        assert done.exit_code == 0 and f"next: sts-dino card {run}" in done.stderr
        page = (run / "report.html").read_bytes()
        manifest = read_manifest(run)
        assert "report.html" in snapshot_of(run, manifest) and content_hash(run) == hashed
        assert "[report](report.html)" not in card and "[report](report.html)" in card_of(run)
        report([run], run / "report.html")
        assert (run / "report.html").read_bytes() == page
        other = dataset_run(tmp_path / f"other-{run.name}", "text", changes={"seed": 1})
        report([change(other, fingerprint="0" * 64)], run / "report.html")
        with pytest.raises(InputError, match="tells of other rows or weights"):
            card_of(run)
    assert not list(tmp_path.rglob("*.cosines.json")) and not list(tmp_path.rglob("*.lock"))


def test_the_command_answers_and_refuses(tmp_path):
    run = dataset_run(tmp_path / "sts", "sts")
    growing = change(dataset_run(tmp_path / "growing", "sts"), complete=False, counts={}, files=[])
    done = CliRunner().invoke(app, [str(run), "--out", str(tmp_path / "new" / "r.html"), "--json"])
    facts = json.loads(done.stdout)
    assert facts["report"] == str(tmp_path / "new" / "r.html") and "14 texts" in facts["summary"][0]
    refused = {
        (run, growing): "2 runs; say where: --out FILE",
        (growing,): "the run is not finished",
        (run, "--out", tmp_path): f"is a folder; allowed: a file; --out {tmp_path}/report.html",
        (tmp_path, "--out", "x.html"): "is not a run directory",
        (run, "--out", tmp_path / "x.html", "--annotations", tmp_path): "holds no answers",
    }
    for words, said in refused.items():
        with pytest.raises(InputError, match=said.replace("(", r"\(")):
            CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert not (tmp_path / "x.html").exists()


def scored_rows(config, target, number, text, recipe):
    row = rows_of(config, target, number, text, recipe)
    other = TEXTS[(number + 1 + (target == "1")) % len(TEXTS)]
    return {**row, "score": float(target == "1"), "sentence2": other} if "score" in row else row


def test_similarities_and_peoples_answers_of_a_real_encoder(tmp_path, monkeypatch):
    monkeypatch.setattr("test_model_cards_runs.rows_of", scored_rows)
    run = dataset_run(tmp_path / "tiny-sts", "sts", texts=TEXTS)
    model = model_run(tmp_path / "encoder")
    make_encoder(model)
    make_encoder(tmp_path / "encoder.base")
    examples = read_examples(find_rows(str(run), split="train"))
    store, scores = AnswerStore(tmp_path / "answers", examples), examples.scale.labels
    for row in range(len(examples)):
        store.add("anna", row, scores[row % len(scores)])
    facts = report([run, model], tmp_path / "report.html", annotations=[tmp_path / "answers"])
    told = Page(tmp_path / "report.html").text
    assert facts.datasets[0].was_trained_on and {*facts.datasets[0].cosines} == {"untrained", "trained"}
    assert "The 10 worst pairs" in told and "How alike the pairs" in told and "encoder, untrained" in told
    assert (tmp_path / "report.cosines.json").is_file() and facts.judgements.pairs == len(examples)
