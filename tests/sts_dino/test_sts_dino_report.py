"""The report of whole runs: its facts, random pairs and cosines, escaping, and the place where it
is published.
"""

import json
import re
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import card_runs
import numpy as np
import pytest
from card_runs import FEW_SHOT, card_of, dataset_run, edit, model_run, score
from command_outcomes import outcome_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tiny_lm import make_tokenizer
from typer.testing import CliRunner

from sts_dino.eval.audit import fidelity
from sts_dino.eval.audit.source import Batch, DatasetRows, find_rows
from sts_dino.eval.audit.survey import AnswerStore, read_examples
from sts_dino.eval.encoders.load import hash_model_folder
from sts_dino.hub.client.plan import MEASURED
from sts_dino.hub.client.publish import collect_snapshot
from sts_dino.hub.contract.measured import Interval
from sts_dino.hub.contract.run_dir import read_manifest
from sts_dino.hub.errors import InputError
from sts_dino.model_cards.renderer import convert_to_html
from sts_dino.report import app, list_sentences, make_report
from sts_dino.report_facts import (
    Judgements,
    Pair,
    Sample,
    compute_sample_cosines,
    draw_sample,
    find_misfits,
)

HOSTILE = (
    "<script>x</script><img src=x onerror=y>",
    "a\u202eb\x1b[31m {{ 7*7 }}",
    "x" * 5000,
    "Straße „ü“ 5 € </style><!-- ![p](http://h) </section><section lang=x onclick=y>",
)
TEXTS = ("A man plays.", "Two dogs run on the beach.", "A man sings.", "A dog sleeps.")
WORKING = {"script", "link", "iframe", "object", "embed", "form", "base", "video", "audio"}


class Page(HTMLParser):
    """The elements and attributes of a page, and its text on one line."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.names, self.sources, self.text = list[str](), set[str](), list[str](), ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.sources += [value for name, value in attrs if name == "src"]

    def handle_data(self, data):
        self.text += data


def reported(place: Path, *runs: Path, **options) -> tuple[Page, list[str]]:
    """The page of a report and its list of missing measurements."""
    facts = make_report(runs, place, **options)
    return Page(place), list_sentences("missing", facts)


@pytest.mark.parametrize("form", ["sts", "nli", "text"])
def test_generated_texts_are_shown_and_do_nothing(tmp_path, form):
    page, _ = reported(tmp_path / "report.html", dataset_run(tmp_path / "run", form, texts=HOSTILE))
    assert not {*page.tags} & WORKING and not [name for name in page.names if name.startswith("on")]
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert "<script>x</script><img" in page.text and "a\ufffdb\ufffd[31m {{ 7*7 }}" in page.text
    assert (
        "![p](http://h) </section><section lang=x" in page.text
        and page.source.count("<section") < 5
    )
    assert (
        "Straße „ü“ 5 €" in page.text
        and "… (5,000 characters)" in page.text
        and "x" * 401 not in page.source
    )
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page.source
    assert not re.search(r"""(src|href)=["']?(http:|//)|url\(|@import""", page.source)
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page.source
    # the page itself never scrolls
    assert re.search(r"\ntable {[^}]*display: block; overflow-x: auto", page.source)
    # words and numbers stay whole; texts break
    assert re.search(r"\nth, td {[^}]*overflow-wrap: normal", page.source)
    assert re.search(r"\nsection td[^}]*overflow-wrap: anywhere; min-width: 10em", page.source)
    assert "img { max-width: 100%;" in page.source and not re.search(r"[^-]width: \d", page.source)
    assert report_bytes(tmp_path, tmp_path / "run") == report_bytes(tmp_path, tmp_path / "run")


def report_bytes(folder: Path, run: Path) -> bytes:
    make_report([run], folder / "again.html")
    return (folder / "again.html").read_bytes()


def test_markup_beside_the_templates_own_is_text():
    own = '<section lang="de">\n\n<code>a</code> <b onclick=x> <script>\n\n</section>\n\n<img src=x>\n'
    found = convert_to_html(own)
    assert '<section lang="de">' in found and "<code>a</code>" in found and "</section>" in found
    assert (
        "<b" not in found
        and "<script" not in found
        and "<img" not in found
        and "&lt;b onclick" in found
    )


@pytest.mark.filterwarnings("error:constrained_layout not applied")
def test_dataset_and_encoder_appear_with_their_numbers(tmp_path, monkeypatch):
    long = score().model_copy(update={"task": "mteb/" + "name" * 30})
    dataset, model = (
        dataset_run(tmp_path / "sts", "sts"),
        model_run(tmp_path / "encoder", (score(), long)),
    )
    (tmp_path / "sts.timing.json").write_text('{"seconds": 10.0, "rows": 50, "peak_rss_mb": 1.0}')
    (tmp_path / "sts.usage.json").write_text(
        '{"prompt_tokens": 1200, "completion_tokens": 34, "cost": 0.5}'
    )
    people = Judgements(12, {"tiny": Interval(value=0.61, low=0.5, high=0.7)})
    monkeypatch.setattr("sts_dino.report_facts.read_judgements", lambda *_: people)
    of_model, missing_of_model = reported(tmp_path / "model.html", model)
    page, missing = reported(
        tmp_path / "out.html",
        dataset,
        commands=["make it --now"],
        annotations=[tmp_path],
        advice="to try next: a teacher (--teacher <b>)",
    )
    for words in (
        *("generated 14 texts; tiny-sts keeps 10 (71%)", "a line break inside the text"),
        *(
            "1,200 in prompts, 34 generated",
            "make it --now",
            "To try next: a teacher (--teacher <b>).",
            "12 pairs have human scores",
            "61.00",
            "[50.00, 70.00]",
        ),
        *("has seen them, under the generator's labels.", "CC BY-SA 4.0", "0.5000", "5.0"),
    ):
        assert words in page.text, words
    scores = "1,200 rows in 40 steps and scores 70.12 [69.12, 71.12] on stsb/cosine test"
    assert scores in of_model.text and "40.00 [39.00, 41.00]" in of_model.text
    widths = [
        int.from_bytes(b64decode(one.split(",")[1])[16:20])
        for one in page.sources + of_model.sources
    ]
    assert max(widths) < 720  # pixels: letters stay legible on a telephone
    assert (
        "selected step" in of_model.text
        and len(of_model.sources) == 2
        and "gain over SimCSE" not in of_model.text
    )
    assert any("unsupervised SimCSE baseline" in line for line in missing_of_model)
    assert any("this report has no trained encoder" in line for line in missing)
    assert not any(line.startswith(("Human", "Time", "Price")) for line in missing)


def test_unfinished_and_unscored_runs_are_named(tmp_path):
    growing = dataset_run(tmp_path / "growing", "sts", texts=HOSTILE)
    raw = tuple(read_manifest(growing).shards("raw"))
    edit(growing, complete=False, files=raw)
    begin(growing, shards_done=1, shards_total=4)
    begun = begin(model_run(tmp_path / "begun"))
    whole = dataset_run(tmp_path / "all", "sts")
    kept = {label: {"requested": 5, "kept": 5, "rejected": 0} for label in ("1", "0")}
    edit(whole, counts={"requested": 10, "kept": 10, "rejected": {}, "by_label": kept})
    page, missing = reported(tmp_path / "report.html", growing, begun, whole)
    assert (
        "1 of 4 shards are done (25%)" in page.text and "The first rows of each label" in page.text
    )
    assert "training is not finished" in page.text and "No row was rejected." in page.text
    assert any("until its training is finished" in line for line in missing)
    assert (
        "It was not scored."
        in reported(tmp_path / "one.html", model_run(tmp_path / "whole"))[0].text
    )
    make_report(
        [dataset_run(tmp_path / "few", "nli", changes={"few_shot": FEW_SHOT})],
        tmp_path / "few.html",
    )


def begin(directory: Path, **counts) -> Path:
    """A run that is not finished: no provenance, and these counts."""
    facts = json.loads((directory / "manifest.json").read_text()) | {
        "complete": False,
        "provenance": {},
    }
    (directory / "manifest.json").write_text(json.dumps(facts | {"counts": counts}))
    return directory


def test_measurements_in_an_encoders_folder_leave_its_revision(tmp_path):
    run = model_run(tmp_path / "encoder", (score(),))
    hashed = hash_model_folder(run)
    for name in MEASURED:
        (run / name).write_text("{}")
    assert hash_model_folder(run) == hashed


def test_in_a_run_it_is_published_with_it_and_its_card_links_it(tmp_path):
    for run in (dataset_run(tmp_path / "sts", "sts"), model_run(tmp_path / "encoder", (score(),))):
        hashed, card = hash_model_folder(run), card_of(run)
        done = CliRunner().invoke(app, [str(run)])
        assert done.exit_code == 0 and f"next: sts-dino card {run}" in done.stderr
        page = (run / "report.html").read_bytes()
        assert (
            "report.html" in collect_snapshot(run, read_manifest(run))
            and hash_model_folder(run) == hashed
        )
        assert "[report](report.html)" not in card and "[report](report.html)" in card_of(run)
        make_report([run], run / "report.html")
        assert (run / "report.html").read_bytes() == page
        other = dataset_run(tmp_path / f"other-{run.name}", "text", changes={"seed": 1})
        make_report([edit(other, fingerprint="0" * 64)], run / "report.html")
        with pytest.raises(InputError, match="other rows or weights"):
            card_of(run)
    assert not list(tmp_path.rglob("*.lock"))


def test_the_command_answers(tmp_path):
    run = dataset_run(tmp_path / "sts", "sts")
    done = CliRunner().invoke(app, [str(run), "--out", str(tmp_path / "new" / "r.html"), "--json"])
    facts = json.loads(done.stdout)
    assert facts["report"] == str(tmp_path / "new" / "r.html") and "14 texts" in facts["summary"][0]


def make_encoder(folder: Path) -> Path:
    encoder = SentenceTransformer(modules=[StaticEmbedding(make_tokenizer(), embedding_dim=8)])
    encoder.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_cosines_and_human_scores_of_a_real_encoder(tmp_path, monkeypatch):
    row_of = card_runs.rows_of

    def scored_rows(config, target, number, text, recipe):
        row = row_of(config, target, number, text, recipe)
        other = TEXTS[(number + 1 + (target == "1")) % len(TEXTS)]
        return {**row, "score": float(target == "1"), "sentence2": other} if "score" in row else row

    monkeypatch.setattr("card_runs.rows_of", scored_rows)
    monkeypatch.chdir(tmp_path)  # where embeddings are kept
    run, model = (
        dataset_run(tmp_path / "tiny-sts", "sts", texts=TEXTS),
        model_run(tmp_path / "encoder"),
    )
    make_encoder(model)
    make_encoder(tmp_path / "encoder.base")
    examples = read_examples(find_rows(str(run), split="train"))
    store, scores = AnswerStore(tmp_path / "answers", examples), examples.scale.labels
    for row in range(len(examples)):
        store.add("anna", row, scores[row % len(scores)])
    judge = make_encoder(tmp_path / "judge")
    for module in ("sts_dino.eval.audit.fidelity", "sts_dino.report_facts"):
        monkeypatch.setattr(f"{module}.require_packaged_encoder", lambda *_: judge)
    assert outcome_of(fidelity, run).code == 0
    facts = make_report([run, model], tmp_path / "report.html", annotations=[tmp_path / "answers"])
    page = Page(tmp_path / "report.html")
    assert facts.datasets[0].was_trained_on and {*facts.datasets[0].cosines} == {
        "before training",
        "trained",
    }
    for words in (
        "Pairs farthest from their label, by all-MiniLM-L6-v2",
        "Cosine similarity by label",
        "tiny-encoder, before training",
    ):
        assert words in page.text, words
    assert facts.judgements.pairs == len(examples)
    again = model_run(tmp_path / "again")  # a repeated training: another folder, the same name
    make_encoder(again)
    facts = make_report(
        [run, model, again], tmp_path / "two.html", annotations=[tmp_path / "answers"]
    )
    assert list(facts.judgements.correlations) == [
        "tiny-encoder, before training",
        "tiny-encoder, trained",
        "tiny-encoder#2, trained",
    ]
    recipe = (run / "recipe.yaml").read_text(encoding="utf-8")
    (run / "recipe.yaml").write_text(
        recipe.replace("language: en", "language: de"), encoding="utf-8"
    )
    page, missing = reported(tmp_path / "report.html", run)  # no packaged encoder judges German
    assert "by all-MiniLM-L6-v2" not in page.text.split("Label agreement")[0]
    assert "tiny-sts: pairs farthest from their label: they need English" in " ".join(missing)


class Rows(DatasetRows):
    """Rows of one split in batches of three: text i has label i mod 2, the last one a label of its
    own.
    """

    def read_batches(self, sample=None, seed=0):
        for start in range(0, self.total, 3):
            rows = range(start, min(start + 3, self.total))
            texts = {"sentence1": [f"a{i}" for i in rows], "sentence2": [f"b{i}" for i in rows]}
            labels = ["rare" if i == self.total - 1 else str(i % 2) for i in rows]
            yield Batch("train", np.array(rows), texts, labels, [i / 100 for i in rows])


def rows(total: int) -> Rows:
    return Rows(
        "tiny",
        "r",
        "postprocessed",
        "sts",
        {"train": total},
        (),
        "target",
        lambda split, columns: iter(()),
    )


def test_pairs_are_drawn_by_label_without_replacement_and_the_same_each_time():
    found = draw_sample(rows(50), ["1", "missing", "0"], count=10, seed=1)
    assert list(found.pairs) == ["1", "0", "rare"]
    assert [len({*pairs}) for pairs in found.pairs.values()] == [10, 10, 1]
    assert found.pairs["rare"] == (Pair("a49", "b49", 0.49),)
    assert all(int(pair.first[1:]) % 2 == 1 for pair in found.pairs["1"])
    assert (
        found
        == draw_sample(rows(50), ["1", "0"], count=10, seed=1)
        != draw_sample(rows(50), ["1", "0"], count=10, seed=2)
    )
    first = Counter(
        draw_sample(rows(21), [], count=5, seed=seed).pairs["1"][0].first for seed in range(400)
    )
    # uniform: 40 each
    assert len(first) == 10 and min(first.values()) > 15 and max(first.values()) < 80


def test_misfits_are_farthest_from_their_score_or_their_labels_median():
    pairs = {label: tuple(Pair(f"{label}{i}", "") for i in range(5)) for label in ("high", "low")}
    cosines = {"high": [0.9, 0.9, 0.8, 0.1, 0.9], "low": [0.1, 0.15, 0.1, 0.6, 0.1]}
    found = find_misfits(Sample("c", pairs), cosines, 3)
    assert [(one.pair.first, one.cosine, one.expected) for one in found[:2]] == [
        ("high3", 0.1, 0.9),
        ("low3", 0.6, 0.1),
    ]
    assert found[2].pair.first == "high2"
    scored = Sample(
        "c",
        {"1": (Pair("right", "", 1.0), Pair("wrong", "", 1.0)), "0": (Pair("low", "", 0.0),)},
    )
    assert [one.pair.first for one in find_misfits(scored, {"1": [0.9, 0.2], "0": [0.3]}, 2)] == [
        "wrong",
        "low",
    ]


def test_cosines_are_those_of_the_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where embeddings are kept
    sample = Sample(
        "c", {"1": (Pair("A man plays.", "A man plays."), Pair("A man", "Two dogs run"))}
    )
    found = compute_sample_cosines(sample, {"trained": make_encoder(tmp_path / "encoder")})
    vectors = SentenceTransformer(str(tmp_path / "encoder"), device="cpu").encode(
        ["A man", "Two dogs run"]
    )
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert found["trained"]["1"] == pytest.approx([1, cosine], abs=1e-5)
