"""DeCLUTR's experiments: documents and a small base made once, spans shown as they are sampled, SentEval's table."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from benchmarks.better_pairs.steps import Steps
from benchmarks.papers import page, spread
from benchmarks.papers.__main__ import PLAN
from benchmarks.papers.declutr import documents, masked_lm, senteval, spans
from benchmarks.papers.made import Made
from benchmarks.papers.page import told
from benchmarks.papers.plan import Encoder, Experiment, OwnColumn, Papers, read_papers
from benchmarks.papers.result import Measured, Result
from benchmarks.papers.runner import Experiments
from hub.contract.recipe import ModelRecipe
from hub.contract.recipe_file import load_recipe
from hub.contract.results import Results, TaskScore, write_results
from hub.contract.sections.model import Spans
from hub.errors import InputError
from hub.training_value import Estimate
from release.value import training_sha256
from training.data.spans import Span

SHIPPED = read_papers(PLAN)
SCORE = {"task": "stsb/cosine", "protocol": "p", "split": "validation", "main_metric": "m", "main_score": 81.5, "n": 9}
SCORE["data_sha256"] = "0" * 64
RESULTS = {"model": "m", "revision": "r", "bootstrap_samples": 1, "seed": 1, "versions": {}}
RECIPE = Path("benchmarks/papers/recipes/declutr-mini.yaml")
SMALL = Spans(min_length=2, max_length=4, min_document=16)


def test_what_is_made_is_made_once_from_what_it_names_and_its_cost_counts(tmp_path, monkeypatch):
    ran = []

    def stage(self, words, note):
        ran.append(words)
        Path(words[-1]).parent.mkdir(exist_ok=True, parents=True)
        Path(words[-1]).write_text("")
        return 2.0

    monkeypatch.setattr(Steps, "_run", stage)
    commands = {"text.txt": ("some.module", "<data>/x", "<out>"), "model": ("other.module", "<made:text.txt>", "<out>")}
    made = Made(commands, Steps(tmp_path), Path("data"))
    found = made.find("model")
    assert [words[0] for words in ran] == ["some.module", "other.module"] and found.seconds == 4
    assert ran[0][1:] == ["data/x", str(made.find("text.txt").path)] and made.find("text.txt").path.name == "text.txt"
    assert ran[1][1] == made.filled("<made:text.txt>") and len(ran) == 2
    assert made.seconds(["base.path=<made:model>", "x"]) == {"model": 4}
    commands["text.txt"] = ("some.module", "<data>/y", "<out>")
    assert Made(commands, Steps(tmp_path), Path("data")).find("model").path != found.path
    told = made.commands(["base.path=<made:model>"])
    assert told[0].startswith("python -m some.module") and "'<made:model>'" in told[1]
    with pytest.raises(InputError, match="reads the data folder"):
        Made(commands, Steps(tmp_path / "new"), None).find("text.txt")


def test_a_grid_stands_for_its_cells_and_unknown_names_are_refused():
    anchors, positives = SHIPPED.chosen(["declutr-figure-2a", "declutr-figure-2b"])
    cells = {encoder.name for one in (anchors, positives) for encoder in SHIPPED.encoders_of(one)} - {"small-roberta"}
    assert len(cells) == 36, "as many as the paper's grid has, whatever the rows that pool them"
    one, two = (SHIPPED.pooled(SHIPPED.encoder(name)) for name in ("one-anchor", "two-anchors"))
    assert [name.replace("-a1-", "-a2-") for name in one] == two and len(one) == 18, "cells stand in one order"
    assert {len(SHIPPED.pooled(SHIPPED.encoder(name))) for name in positives.rows} == {1, 12}
    tree = SHIPPED.model_dump(mode="json", by_alias=True)
    for change, said in (
        ({"grid": "nothing"}, "no grid is called nothing"),
        ({"grid": "declutr-grid", "cells": {"a": "3"}}, "no cell has a 3"),
        ({"recipe": str(RECIPE), "set": ["a=<made:x>"]}, "is called x"),
    ):
        with pytest.raises(ValueError, match=said):
            Papers.model_validate(tree | {"encoders": [*tree["encoders"], {"name": "new", "says": "", **change}]})
    with pytest.raises(ValueError, match="exactly one of recipe, model and grid"):
        Encoder(name="x", says="", grid="a", model="b")
    with pytest.raises(ValueError, match="cells are of a grid"):
        Encoder(name="x", says="", model="b", cells={"a": "1"})


def test_every_cell_is_a_recipe_of_its_own_and_one_anchor_has_as_many_spans_a_step_as_two():
    """Section 5.2: twice the documents, so that the number of anchors alone differs."""
    digests, spans_a_step = set(), set()
    for encoder in SHIPPED.grids[0].encoders():
        recipe = load_recipe(encoder.recipe, ModelRecipe, list(encoder.settings))
        digests.add(training_sha256(recipe))
        spans_a_step.add((recipe.batch_size or 0) * recipe.datasets[0].spans.anchors)
    assert len(digests) == 36 and len(spans_a_step) == 1


def test_a_grids_cells_are_drawn_each_the_same_everywhere(tmp_path):
    for cell, score in enumerate((60.0, 70.0, 80.0)):
        given = SCORE | {"main_score": score}
        write_results(tmp_path / str(cell) / "results.json", Results.model_validate(RESULTS | {"scores": [given]}))
    columns = {"STSb": OwnColumn(tasks=("stsb/cosine",), split="validation")}
    folders = [tmp_path / str(cell) for cell in range(3)]
    assert spread.scores_of(columns["STSb"], folders) == [60, 70, 80]
    drawn = spread.over_cells(columns, {"1 anchor": folders, "2 anchors": folders})
    assert "1 anchor" in drawn and "STSb, x 100" in drawn
    assert drawn == spread.over_cells(columns, {"1 anchor": folders, "2 anchors": folders})
    folds = SCORE | {"task": "mr/lbfgs", "split": "all"}  # which have no test part
    write_results(tmp_path / "folds" / "results.json", Results.model_validate(RESULTS | {"scores": [folds]}))
    assert spread.scores_of(OwnColumn(tasks=("mr/lbfgs",)), [tmp_path / "folds"]) == [81.5]


def test_the_printed_commands_make_the_base_first():
    told = Experiments(SHIPPED, Steps(Path("nowhere")), None).commands(SHIPPED.chosen(["declutr-figure-3"])[0])
    assert [line.split()[2] for line in told[:2]] == [
        "benchmarks.papers.declutr.documents",
        "benchmarks.papers.declutr.masked_lm",
    ]
    assert sum("training.run" in line for line in told) == 4


@pytest.fixture
def text(tmp_path):
    """The data folder's layout with two documents of each kind."""
    folder = tmp_path / "text"
    (folder / "captions").mkdir(parents=True)
    for number in range(1, 6):
        lines = f"A dog runs over field number {number} .\nA man rides a red bicycle up hill {number} .\n"
        (folder / "captions" / f"train.{number}.en.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "wikitext-2-valid.txt").write_text(" = Title = \n\n A well @-@ known <unk> town . It is old . \n")
    (folder / "wikitext-2-test.txt").write_text(" One paragraph . \n")
    (folder / "wikipedia-sentences-10k.txt").write_text("".join(f"Sentence {n}.\n" for n in range(7)))
    return folder


def test_documents_are_captions_paragraphs_and_runs_of_sentences(text):
    assert [len(document) for document in documents.captions(text)] == [5, 5]
    assert list(documents.wikitext(text)) == [("A well-known town .", "It is old ."), ("One paragraph .",)]
    assert [len(document) for document in documents.wikipedia(text)] == [5, 2]
    kinds = lambda texts: ["near" if "dog" in text else None for text in texts]  # noqa: E731
    found = documents.matched([sentence for document in documents.captions(text) for sentence in document], kinds)
    assert len(found) == 5 and all("dog" in sentence for sentence in found)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(0, 5, "adjacent"), (10, 12, "adjacent"), (6, 9, "subsumed"), (5, 10, "subsumed"), (3, 6, "overlapping")],
)
def test_a_positives_view_is_the_papers(start, end, expected):
    assert spans.view(Span(5, 10), Span(start, end)) == expected


def test_spans_are_counted_by_view_and_shown_with_negatives_of_both_kinds():
    lines = [" ".join(f"w{document}x{word}" for word in range(30)) for document in range(40)] + ["too short"]
    found = spans.cuts(lines, SMALL, 100)
    assert len(found) == 40 and found == spans.cuts(lines, SMALL, 100)
    told = spans.measured(found, shown=1)
    assert sum(row["% of positives"].score for row in told.rows.values()) == pytest.approx(100)
    counted = Counter(spans.view(a, p) for c in found for a, ps in zip(c.anchors, c.positives, strict=True) for p in ps)
    assert told.rows["subsumed"]["% of positives"].score == pytest.approx(100 * counted["subsumed"] / 160)
    assert all(row["% of positives"].low <= row["% of positives"].high for row in told.rows.values())
    rows = [line.split(" | ") for line in told.pages[0].splitlines()[2:]]
    assert len(rows) == 3
    for _, anchor, positive, hard, easy in rows:
        documents_of = [cell.split("x")[0].strip("| ") for cell in (anchor, positive, hard, easy)]
        assert documents_of[0] == documents_of[1] == documents_of[2] != documents_of[3]


def test_sentevals_table_has_validation_and_seconds_and_names_what_was_not_run():
    names = ("cr/senteval", "cr/lbfgs", "cr/lbfgs-validation", "sts12/all")
    scores = [
        SCORE | {"task": name, "seconds": {"encoding": 2.0} | ({"probing": 3.0} if "cr" in name else {})}
        for name in names
    ]
    found = senteval.measured(Results.model_validate(RESULTS | {"scores": scores}))
    assert list(found.rows) == ["sts12/all", "cr/senteval", "cr/lbfgs"]
    assert found.rows["cr/lbfgs"]["validation x 100"].score == 81.5
    assert found.rows["cr/lbfgs"]["probing, seconds"].score == 3 and "probing, seconds" not in found.rows["sts12/all"]
    assert "coco/retrieval" in found.notes[1] and "cr/lbfgs" not in found.notes[1]
    one = TaskScore.model_validate(SCORE | {"low": 80.0, "high": 83.0})
    assert senteval.estimate(one) == Estimate(score=81.5, low=80, high=83)


def test_a_wide_table_stands_upright():
    tasks = [f"t{number}" for number in range(12)]
    row = {task: Estimate(score=number, low=number, high=number) for number, task in enumerate(tasks)}
    one = Experiment(name="x", paper="declutr", title="", measure=("x",))
    given = {
        "experiment": "x",
        "seconds": 1,
        "data_seeds": 1,
        "training_seeds": 1,
        "commands": (),
        "hardware": {},
        "versions": {},
    }
    wide, narrow = (
        page.scores(SHIPPED, one, Result(measured=Measured(rows={"a": of, "b": of}), **given)).splitlines()
        for of in (row, {"t3": row["t3"]})
    )
    assert len(wide) == 2 + 12 and wide[0].endswith("| a | b |") and wide[5] == "| t3 | 3.0 | 3.0 |"
    assert len(narrow) == 2 + 2 and narrow[2] == "| a | 3.0 |"


def test_a_number_without_an_interval_is_told_alone():
    assert told(Estimate(score=80, low=80, high=80)) == "80.0"
    assert told(Estimate(score=80, low=79, high=81)) == "80.0 [79.0, 81.0]"


TEXTS = ["A man plays the guitar on a small stage .", "Two dogs run over a green field ."] * 20


def test_the_small_base_reads_any_text_in_lower_case():
    tokenizer = masked_lm.make_tokenizer(TEXTS)
    assert tokenizer("A Man").input_ids == tokenizer("a man").input_ids
    assert tokenizer.unk_token_id not in tokenizer("é ß 漢").input_ids and tokenizer.pad_token_id == 1
    model = masked_lm.make_model(tokenizer, size=16, layers=1)
    assert model.config.vocab_size == len(tokenizer) and model(torch.tensor([[0, 5, 2]])).logits.shape[1] == 3


@pytest.mark.slow("trains a tiny masked language model")
def test_pretraining_lowers_the_loss_and_leaves_what_declutr_starts_from(tmp_path):
    from training.encoder.bases import find_base
    from training.losses.modules import load_head

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    masked_lm.main(tmp_path / "texts.txt", tmp_path / "base", steps=40, size=16, layers=1, tokens=16, seed=1)
    found = json.loads((tmp_path / "base" / "pretraining.json").read_text())
    assert found["loss"] < found["first_loss"] and found["steps"] == 40
    recipe = load_recipe(RECIPE, ModelRecipe, [f"base.path={tmp_path / 'base'}"])
    assert load_head(find_base(recipe.base)).model.config.hidden_size == 16
